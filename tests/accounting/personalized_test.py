"""Proved forms: weights, sampling, permanent bits, local noise and shares."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpmf_jax import accounting
from dpmf_jax.accounting import Composed, Gaussian, L2Laplace, Laplace, Pure
from dpmf_jax.ratings.specification import fraction_levels

EPSILONS = np.array([0.1, 0.15, 0.5, 1.0])


@pytest.mark.parametrize(
  'noise', [lambda m: Laplace(m), lambda m: L2Laplace(m, 1, 20)]
)
def test_laplace_weights_give_every_record_its_epsilon(noise):
  weights = accounting.laplace_weights(EPSILONS)
  np.testing.assert_allclose(weights, EPSILONS)
  # At delta 0 it is exact; at more L2-Laplace is better than its pure epsilon.
  got = accounting.record_epsilons(weights, noise(1.0), 0.0)
  np.testing.assert_allclose(got, EPSILONS, rtol=1e-14)
  assert np.all(got <= EPSILONS * (1 + 1e-15))
  # Weights for more than the largest are one, and for less keep the ratio.
  more = accounting.laplace_weights(EPSILONS, largest=0.5)
  np.testing.assert_allclose(more, [0.2, 0.3, 1.0, 1.0])


@pytest.mark.parametrize('count', [1, 30])
def test_gaussian_weights_give_every_record_its_epsilon(count):
  weights = accounting.gaussian_weights(EPSILONS.reshape(2, 2), 1e-6)
  assert weights.shape == (2, 2)
  # Not eps_ij/eps_max: mu is concave in epsilon.
  assert weights[0, 0] > 0.11
  noise = accounting.calibrate_noise_multiplier(
    epsilon=1.0, delta=1e-6, count=count
  )
  got = accounting.record_epsilons(weights, Gaussian(noise, count), 1e-6)
  np.testing.assert_allclose(got.ravel(), EPSILONS, rtol=1e-9)
  assert np.all(got.ravel() <= EPSILONS)


def test_weights_of_mixtures_and_of_nothing():
  event = Composed((Gaussian(5.0), Laplace(4.0)))
  half = Composed((Gaussian(10.0), Laplace(8.0)))
  got = accounting.record_epsilons([0.0, 0.5], event, 1e-6)
  want = accounting.epsilon(half, 1e-6)
  # Rounded up: the weight may divide with a remainder.
  assert got[0] == 0.0
  assert want <= got[1] <= want * (1 + 1e-9)
  with pytest.raises(ValueError, match='event must be Gaussian, Laplace'):
    accounting.record_epsilons([0.5], Pure(1.0), 1e-6)
  with pytest.raises(ValueError, match=r'weights must be in \[0, 1\]'):
    accounting.record_epsilons([1.5], event, 1e-6)
  with pytest.raises(ValueError, match='epsilons must be > 0'):
    accounting.laplace_weights([0.0, 1.0])


def test_sampling_gives_every_record_its_epsilon():
  for t in ('mean', 'max', 0.7):
    chance = accounting.claimed_pdp_probabilities(EPSILONS, t)
    used = accounting.claimed_pdp_threshold(EPSILONS, t)
    got = accounting.sampled_epsilon(chance, used)
    np.testing.assert_allclose(got, np.minimum(EPSILONS, used), rtol=1e-12)
    # Weights keep more of a record than sampling does.
    assert np.all(chance <= accounting.laplace_weights(EPSILONS, used) + 1e-12)


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
  levels = fraction_levels()
  t = accounting.personal_threshold(
    levels.epsilon, 'best', levels.share, method='sampling'
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
  event = accounting.proved_sdcf_bits(
    flip=flip, num_rated=2, num_changed=num_changed
  )
  assert worst <= event.epsilon
  assert worst > 0.9 * event.epsilon  # three rounds come close
  if num_changed == 2:
    assert event.epsilon == pytest.approx(
      float(accounting.claimed_sdcf_epsilon_permanent(flip, 2))
    )


def test_bits_of_more_records_than_there_are():
  with pytest.raises(
    ValueError, match=r'num_changed must be in \[0, num_rated'
  ):
    accounting.proved_sdcf_bits(flip=0.5, num_rated=3, num_changed=4)
  whole = accounting.proved_sdcf_bits(flip=0.5, num_rated=100)
  one = accounting.proved_sdcf_bits(flip=0.5, num_rated=100, num_changed=1)
  assert whole.epsilon == pytest.approx(200 * math.log(3))
  assert one.epsilon == pytest.approx(2 * math.log(3))


def test_local_releases_compose_exactly():
  event = accounting.local_gaussian(
    deviations=[2.0, 4.0, 5.0], sensitivities=[1.0, 1.0, 2.0]
  )
  mu = math.sqrt(1 / 4 + 1 / 16 + 4 / 25)
  assert accounting.gaussian_mu(event) == pytest.approx(mu, rel=1e-14)
  assert accounting.gaussian_mu(event) >= mu
  assert accounting.count_of(event) == 3
  first = accounting.after(event, 1)
  assert accounting.epsilon(first, 1e-6) == pytest.approx(
    accounting.epsilon(Gaussian(2.0), 1e-6), rel=1e-12
  )
  with pytest.raises(ValueError, match='deviations must be > 0'):
    accounting.local_gaussian(deviations=[0.0], sensitivities=1.0)
  with pytest.raises(ValueError, match='must have one axis'):
    accounting.local_gaussian(deviations=1.0, sensitivities=1.0)


def test_langevin_rounds_get_cheaper():
  event = accounting.local_langevin(
    step_size=0.01, decay=0.6, rounds=100, sensitivity=3.0
  )
  # mu_t^2 = eta_t sensitivity^2.
  total = sum(0.01 / t**0.6 * 9 for t in range(1, 101))
  assert accounting.gaussian_mu(event) == pytest.approx(math.sqrt(total))
  spent = [
    accounting.gaussian_mu(accounting.after(event, t)) ** 2 for t in (1, 2, 100)
  ]
  assert spent[1] - spent[0] < spent[0] < spent[2] < 100 * spent[0]
  with pytest.raises(ValueError, match=r'step_size must be > 0, got 0.0'):
    accounting.local_langevin(
      step_size=0.0, decay=0.6, rounds=3, sensitivity=1.0
    )


@pytest.mark.parametrize(('parties', 'colluders'), [(5, 0), (10, 3)])
def test_honest_shares_add_up_to_laplace(parties, colluders):
  shape = accounting.share_shape(parties, colluders)
  honest = parties - colluders
  assert shape == pytest.approx(1 / honest)
  assert shape * honest >= 1
  # By characteristic functions: (1 + b^2 s^2)^-shape each, times `honest`.
  s = np.linspace(0, 5, 20)
  np.testing.assert_allclose(
    (1 + 4 * s**2) ** (-shape * honest), 1 / (1 + 4 * s**2), rtol=1e-12
  )
  rng = np.random.default_rng(0)
  gammas = rng.gamma(shape, 2.0, size=(2, honest, 20_000))
  noise = (gammas[0] - gammas[1]).sum(0)
  # One false alarm in 1e4 seeds, and the seed is fixed.
  assert stats.kstest(noise, stats.laplace(0, 2.0).cdf).pvalue > 1e-4
  if colluders:
    # Shares for all parties would leave too little to the honest ones.
    few = rng.gamma(1 / parties, 2.0, size=(2, honest, 20_000))
    short = (few[0] - few[1]).sum(0)
    assert stats.kstest(short, stats.laplace(0, 2.0).cdf).pvalue < 1e-4
  variance = accounting.share_variance(2.0, parties, colluders)
  assert variance == pytest.approx(8 * parties / honest)


def test_somebody_must_be_honest():
  with pytest.raises(ValueError, match=r'num_colluders must be below .* got 5'):
    accounting.share_shape(5, 5)
  with pytest.raises(ValueError, match='scale must be > 0'):
    accounting.share_variance(0.0, 5)
