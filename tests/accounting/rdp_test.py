"""Renyi curves and their conversions."""

import math

import mpmath
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax import accounting
from dpmf_jax.accounting import rdp

multipliers = st.floats(-3, 6).map(lambda log: 10.0**log)
counts = st.integers(1, 10**6)
deltas = st.floats(-300, -1).map(lambda log: 10.0**log)


def test_gaussian_curve():
  curve = rdp.gaussian(2.0, 3)
  assert curve(5.0) == pytest.approx(5.0 * 3 / 8)
  assert rdp.compose(curve, rdp.gaussian(1.0))(5.0) == pytest.approx(
    5.0 * (3 / 8 + 1 / 2)
  )


@pytest.mark.parametrize('delta', [1e-300, 1e-10, 1e-5, 0.1])
@pytest.mark.parametrize('rho', [1e-12, 1e-4, 0.1, 2.0, 50.0, 1e6])
def test_mironov_reaches_its_closed_form(rho, delta):
  # Bun and Steinke (2016), Proposition 1.3.
  closed = rho + 2 * math.sqrt(-rho * math.log(delta))
  searched = rdp.epsilon_mironov(lambda order: rho * order, delta).epsilon
  assert searched == pytest.approx(closed, rel=1e-9)
  assert searched >= closed * (1 - 1e-14)


@pytest.mark.parametrize(
  ('rho', 'delta'), [(0.5, 1e-5), (2.0, 1e-10), (20.0, 1e-6), (1e-4, 1e-8)]
)
def test_optimal_agrees_with_mpmath(rho, delta):
  with mpmath.workdps(50):
    rho_, delta_ = mpmath.mpf(rho), mpmath.mpf(delta)

    def bound(order):
      # As printed: delta = e^((a-1)(rdp - eps)) (1 - 1/a)^a / (a - 1).
      rest = order - 1
      log_rest = order * mpmath.log(1 - 1 / order) - mpmath.log(rest)
      return rho_ * order + (log_rest - mpmath.log(delta_)) / rest

    start = 1 + mpmath.sqrt(-mpmath.log(delta_) / rho_)
    order = mpmath.findroot(lambda a: mpmath.diff(bound, a), start)
    truth = bound(order)
  ours = rdp.epsilon_canonne(lambda order: rho * order, delta).epsilon
  assert ours == pytest.approx(float(truth), rel=1e-10)
  assert ours >= float(truth) * (1 - 1e-15)


@pytest.mark.parametrize(('multiplier', 'count'), [(1.0, 1), (10.0, 500)])
def test_optimal_agrees_with_dp_accounting(multiplier, count):
  accountant = RdpAccountant(orders=[1 + k / 100 for k in range(1, 3000)])
  accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), count))
  theirs = accountant.get_epsilon(1e-5)
  ours = rdp.epsilon_canonne(rdp.gaussian(multiplier, count), 1e-5).epsilon
  assert ours == pytest.approx(theirs, rel=1e-4)
  assert ours <= theirs * (1 + 1e-12)  # their grid is a part of our orders


@settings(max_examples=60, derandomize=True)
@given(multipliers, counts, deltas)
def test_exact_below_optimal_below_mironov(multiplier, count, delta):
  curve = rdp.gaussian(multiplier, count)
  exact = accounting.epsilon(accounting.Gaussian(multiplier, count), delta)
  optimal = rdp.epsilon_canonne(curve, delta).epsilon
  mironov = rdp.epsilon_mironov(curve, delta).epsilon
  assert 0 <= exact <= optimal <= mironov < math.inf


def test_orders_where_the_curve_does_not_hold_are_skipped():
  free = rdp.epsilon_canonne(lambda order: 0.1 * order, 1e-5).epsilon
  capped = rdp.epsilon_canonne(
    lambda order: 0.1 * order if order <= 5 else math.inf, 1e-5
  ).epsilon
  at_five = 0.5 + math.log(4 / 5) + (math.log(1e5) - math.log(5)) / 4
  assert free < capped == pytest.approx(at_five, rel=1e-6)


def test_a_bounded_curve_gives_at_most_its_bound():
  # Pure 0.5-DP has divergence at most 0.5 at every order.
  pure = lambda order: 0.5
  assert rdp.epsilon_canonne(pure, 1e-300).epsilon == pytest.approx(
    0.5, rel=1e-9
  )
  assert rdp.epsilon_canonne(lambda order: 0.0, 1e-5).epsilon == 0.0


@pytest.mark.parametrize('delta', [0.0, 1.0, -1.0, math.nan])
def test_delta_is_checked(delta):
  with pytest.raises(ValueError, match='delta must be'):
    rdp.epsilon_canonne(rdp.gaussian(1.0), delta)
