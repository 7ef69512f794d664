"""Corners where rounding once gave a number that was too small, or none."""

import math

import pytest

from dpmf_jax import accounting
from dpmf_jax.accounting import Composed, Gaussian, Laplace, Pure, after, ledger
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
  for event in (Pure(1.0, 0), after(Laplace(1.0, 3), 0), Composed(())):
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


def test_changes_are_counted_in_whole_ratings():
  with pytest.raises(ValueError, match='num_changed must be an integer'):
    accounting.proved_sdcf_bits(flip=0.5, num_rated=10, num_changed=0.5)
