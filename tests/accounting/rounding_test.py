"""Corners where rounding once gave a number that was too small, or none."""

import fractions
import itertools
import math

import mpmath
import numpy as np
import pytest

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  Composed,
  Gaussian,
  Laplace,
  Pure,
  ledger,
  prefix,
)
from dpmf_jax.accounting.composition import delta_bounds, epsilon_bounds
from dpmf_jax.accounting.events import pure_epsilon
from dpmf_jax.accounting.laplace import delta_of_one, epsilon_of_one
from dpmf_jax.accounting.personalized import laplace_weights, sampled_epsilon
from dpmf_jax.accounting.response import kov_delta


def test_pure_delta_just_below_the_whole_is_not_zero():
  # 0.5 is below 5 * 0.1, as floats go: 0.1 is a little more than a tenth.
  assert accounting.delta(Pure(0.1, 5), 0.5) > 0
  assert accounting.delta(Pure(0.1, 5), 0.5000001) == 0
  assert accounting.delta(Pure(0.1), 0.1) == 0


def test_pure_delta_is_a_number_next_to_every_corner():
  for count in (2, 3, 5, 8, 33):
    for epsilon in (0.1, 0.7, 1.3, 5.755686969028228):
      for corner in range(-count, count + 1, 2):
        at = corner * epsilon
        if at <= 0:
          continue
        near = (math.nextafter(at, 0), at, math.nextafter(at, math.inf))
        deltas = [kov_delta(epsilon, count, total) for total in near]
        assert all(0 <= delta <= 1 for delta in deltas)
        further = kov_delta(epsilon, count, at * (1 - 1e-9))
        assert max(deltas) <= further * (1 + 1e-6) + 1e-300


def test_the_top_corner_is_not_underestimated():
  # The exact value by 60-digit arithmetic is 8.8e-16.
  found = kov_delta(5.755686969028228, 3, 17.267060907084684)
  assert 8.8e-16 * 0.99 <= found < 1e-13


def test_one_laplace_release_is_never_below_its_exact_curve():
  rng = np.random.default_rng(0)
  with mpmath.workdps(60):
    for multiplier, delta, part in rng.uniform(0.01, 0.99, (2000, 3)):
      event = Laplace(multiplier)
      whole = 1 / mpmath.mpf(multiplier)
      assert pure_epsilon(event) >= whole
      exact = whole + 2 * mpmath.log(1 - mpmath.mpf(delta))
      assert epsilon_of_one(event, delta) >= exact
      epsilon = part * float(whole)
      exact = 1 - mpmath.exp((mpmath.mpf(epsilon) - whole) / 2)
      assert delta_of_one(event, epsilon) >= exact


def test_weights_never_give_a_record_more_than_its_epsilon():
  exact = fractions.Fraction
  epsilons = np.random.default_rng(2).uniform(0.01, 3.0, 2000)
  largest = epsilons.max()
  weights = laplace_weights(epsilons, largest)
  for weight, epsilon in zip(weights, epsilons, strict=True):
    assert exact(weight) * exact(largest) <= exact(epsilon)


@pytest.mark.parametrize('epsilon', [1e-3, 1.0, 29.0, 30.0, 40.0, 300.0])
def test_sampled_epsilons_are_never_below_the_exact_ones(epsilon):
  chances = 10.0 ** -np.random.default_rng(3).uniform(0, 40, 300)
  with mpmath.workdps(60):
    for chance in chances:
      exact = mpmath.log1p(mpmath.mpf(chance) * mpmath.expm1(epsilon))
      assert sampled_epsilon(chance, epsilon) >= exact


def exact_delta(epsilons, total):
  """Of binary randomized responses, by all of their answers."""
  delta = 0.0
  for signs in itertools.product((1, -1), repeat=len(epsilons)):
    loss = np.dot(signs, epsilons)
    chance = math.prod(
      1 / (1 + math.exp(-sign * epsilon))
      for sign, epsilon in zip(signs, epsilons, strict=True)
    )
    delta += chance * max(0.0, -math.expm1(total - loss))
  return delta


@pytest.mark.parametrize('epsilons', [(0.1, 2.0), (1.0, 0.3, 0.3), (0.2,) * 4])
def test_no_rule_is_below_responses_of_different_epsilons(epsilons):
  event = Composed(tuple(Pure(epsilon) for epsilon in epsilons))
  for total in np.linspace(0, sum(epsilons), 20):
    exact = exact_delta(epsilons, total)
    for rule, delta in delta_bounds(event, total).items():
      assert delta >= exact * (1 - 1e-12) - 1e-15, rule
  for delta in (1e-6, 1e-3, 0.1):
    for rule, epsilon in epsilon_bounds(event, delta).items():
      assert exact_delta(epsilons, epsilon) <= delta * (1 + 1e-12), rule


@pytest.mark.parametrize(
  'event',
  [
    Pure(1e33, 2),
    Laplace(1e-100, 2),
    Composed((Laplace(1e-7), Gaussian(1.0))),
  ],
)
def test_absurd_losses_are_numbers_and_take_no_memory(event):
  found = accounting.epsilon(event, 1e-6)
  assert found > 1e6
  assert not math.isnan(found)


def test_nothing_released_costs_nothing_at_delta_zero():
  for event in (Pure(1.0, 0), prefix(Laplace(1.0, 3), 0), Composed(())):
    assert accounting.epsilon(event, 0.0) == 0.0


def test_an_id_is_refused_for_other_ratings(tmp_path):
  spend = lambda digest: ledger.spend(
    tmp_path / 'ledger',
    Gaussian(10.0),
    delta=1e-6,
    unit='rating',
    relation='replace',
    dataset='x',
    budget_epsilon=3,
    digest=digest,
    entry_id='run',
  )
  assert spend('a') == spend('a')
  with pytest.raises(ValueError, match='about other ratings'):
    spend('b')
