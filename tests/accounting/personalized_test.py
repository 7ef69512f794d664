"""Proved forms: weights, sampling and permanent bits."""

import itertools
import math

import numpy as np
import pytest
import sdcf_claims

from dpmf_jax import accounting
from dpmf_jax.accounting import L2Laplace, Laplace
from dpmf_jax.accounting.personalized import laplace_weights
from dpmf_jax.ratings.specification import asked_by_fractions

EPSILONS = np.array([0.1, 0.15, 0.5, 1.0])


@pytest.mark.parametrize(
  'noise', [lambda m: Laplace(m), lambda m: L2Laplace(m, 1, 20)]
)
def test_laplace_weights_give_every_record_its_epsilon(noise):
  weights = laplace_weights(EPSILONS, 1.0)
  np.testing.assert_allclose(weights, EPSILONS)
  # A record with weight w has noise that is larger by 1/w. At delta 0 it is
  # exact; at more L2-Laplace is better than its pure epsilon.
  got = np.array([accounting.epsilon(noise(1 / w), 0.0) for w in weights])
  np.testing.assert_allclose(got, EPSILONS, rtol=1e-14)
  assert np.all(got <= EPSILONS * (1 + 1e-15))
  # Weights for more than the largest are one, and for less keep the ratio.
  more = laplace_weights(EPSILONS, largest=0.5)
  np.testing.assert_allclose(more, [0.2, 0.3, 1.0, 1.0])
  with pytest.raises(ValueError, match='epsilons must be > 0'):
    laplace_weights([0.0, 1.0], 1.0)


def test_sampling_gives_every_record_its_epsilon():
  for t in ('mean', 'max', 0.7):
    chance = accounting.pdp_probabilities(EPSILONS, t)
    used = accounting.personal_threshold(EPSILONS, t, method='sampling')
    got = accounting.sampled_epsilon(chance, used)
    np.testing.assert_allclose(got, np.minimum(EPSILONS, used), rtol=1e-12)
    # Weights keep more of a record than sampling does.
    assert np.all(chance <= laplace_weights(EPSILONS, used) + 1e-12)


GRID = np.linspace(0.1, 1.0, 40)  # what may be asked for


@pytest.mark.parametrize('method', ['weights', 'sampling'])
def test_thresholds_by_rule(method):
  rule = lambda *args: accounting.personal_threshold(*args, method=method)
  assert rule(EPSILONS, 'mean') == pytest.approx(0.4375)
  assert rule(EPSILONS, 'max') == 1.0
  assert rule(EPSILONS, 0.33) == 0.33
  shares = np.array([0.5, 0.25, 0.25, 0.0])
  assert rule(EPSILONS, 'mean', shares) == pytest.approx(0.2125)
  assert 0.1 <= rule(EPSILONS, 'best', shares) <= 1.0
  # Twice the same is once with twice the share, in any order.
  many = np.repeat(EPSILONS, [2, 1, 1, 1])
  share = np.array([0.2, 0.2, 0.2, 0.4])
  for name in ('mean', 'best'):
    assert rule(many[::-1], name) == pytest.approx(
      rule(EPSILONS[[1, 2, 3, 0]], name, share)
    )
  # All alike: nothing to weigh against anything.
  assert rule([0.7, 0.7], 'best') == 0.7
  with pytest.raises(ValueError, match="must be 'mean', 'max'"):
    rule(EPSILONS, 'median')
  with pytest.raises(ValueError, match='threshold must be > 0'):
    rule(EPSILONS, -1.0)


@pytest.mark.parametrize('size', [0.3, 1.0, 10.0])
@pytest.mark.parametrize('method', ['weights', 'sampling'])
def test_the_best_threshold_has_the_smallest_error(method, size):
  # The error of a mean of 50 ratings with variance 1, measured by drawing what
  # is used of them: E[u^2] / (50 E[u]^2) + 15 / (50 t E[u])^2.
  asked = size * GRID

  def error(t):
    if method == 'weights':
      used = np.minimum(asked / t, 1)
      second = np.mean(used**2)
    else:
      used = np.where(asked < t, np.expm1(asked) / np.expm1(t), 1)
      second = np.mean(used)
    first = np.mean(used)
    return second / (50 * first**2) + 15 / (50 * t * first) ** 2

  best = accounting.personal_threshold(asked, 'best', method=method)
  others = np.linspace(0.05 * size, 1.5 * size, 3000)
  assert error(best) <= min(map(error, others)) * (1 + 1e-4)
  if method == 'weights' and size <= 1:
    assert best == size  # noise is what matters: no weight is cut
  if size == 10:
    assert best < size  # spread is what matters: ratings are used alike


def test_the_best_threshold_is_the_published_one():
  # Zhang et al. find about 0.7 for these fractions.
  asked = asked_by_fractions()
  t = accounting.personal_threshold(
    asked.epsilon, 'best', asked.share, method='sampling'
  )
  assert 0.65 < t < 0.8


@pytest.mark.parametrize('epsilon', [1e-6, 1.0, 29.0, 31.0, 1e4])
def test_sampled_epsilon_at_the_ends(epsilon):
  got = accounting.sampled_epsilon([0.0, 1e-3, 0.5, 1.0], epsilon)
  assert got[0] == 0.0
  assert got[-1] == epsilon
  assert np.all(np.diff(got) > 0)
  if epsilon > 28:
    np.testing.assert_allclose(got[2], epsilon - math.log(2), rtol=1e-9)


def test_a_sampled_response_is_as_private_as_said():
  # One bit: present it is sampled with chance pi and sent by a t-DP response
  # on "is there a one?"; removed, the response is on an empty sample.
  pi, t = 0.3, 1.5
  keep = 1 / (1 + math.exp(-t))
  present = pi * keep + (1 - pi) * (1 - keep)
  absent = 1 - keep
  ratio = math.log(present / absent)
  assert float(accounting.sampled_epsilon(pi, t)) == pytest.approx(ratio)
  assert abs(math.log((1 - present) / (1 - absent))) < ratio


@pytest.mark.parametrize('num_changed', [1, 2])
def test_bits_leak_no_more_than_said_over_many_rounds(num_changed):
  # Everything is enumerated: 4 items, h = 2, three rounds.
  flip, p, q, rounds = 0.6, 0.2, 0.9, 3
  here, there = [1, 1, 0, 0], [0, 1, 1, 0] if num_changed == 1 else [0, 0, 1, 1]

  def likelihood(bit, sent):  # how often one item is sent in all the rounds
    binomial = lambda rate: rate**sent * (1 - rate) ** (rounds - sent)
    one = 1 - flip / 2 if bit else flip / 2
    return one * binomial(q) + (1 - one) * binomial(p)

  worst = max(
    sum(
      math.log(likelihood(a, sent) / likelihood(b, sent))
      for a, b, sent in zip(here, there, pattern, strict=True)
    )
    for pattern in itertools.product(range(rounds + 1), repeat=4)
  )
  # The paper's, for a change of the whole profile.
  stated = sdcf_claims.epsilon_permanent(flip, 2) * num_changed / 2
  assert 0.9 * stated < worst <= stated  # three rounds come close


def test_pdp_probabilities():
  epsilons = np.array([[0.1, 0.2], [0.5, 1.0]])
  at_max = accounting.pdp_probabilities(epsilons, 'max')
  np.testing.assert_allclose(at_max, np.expm1(epsilons) / math.expm1(1.0))
  at_mean = accounting.pdp_probabilities(epsilons, 'mean')
  expected = np.expm1(epsilons) / math.expm1(0.45)
  np.testing.assert_allclose(at_mean, np.minimum(expected, 1))
  given = accounting.pdp_probabilities(epsilons, 0.7)
  np.testing.assert_allclose(given[0], np.expm1([0.1, 0.2]) / math.expm1(0.7))
  assert given[1, 1] == 1.0
  large = accounting.pdp_probabilities([1e-6, 999.0, 1e3], 'max')
  np.testing.assert_allclose(large, [0.0, math.exp(-1), 1.0], atol=1e-300)
