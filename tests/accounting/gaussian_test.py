"""The exact Gaussian curve, against mpmath, dp-accounting and itself."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax.accounting import gaussian

DELTAS = (1e-300, 1e-100, 1e-30, 1e-10, 1e-6, 1e-5, 1e-2, 0.3, 0.9)
MUS = (1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.99, 1.01, 3.0, 10.0, 100.0, 1e3)

mus = st.floats(-6, 3).map(lambda log: 10.0**log)
epsilons = st.floats(-6, 4).map(lambda log: 10.0**log)
deltas = st.floats(-300, -0.01).map(lambda log: 10.0**log)


def true_log_delta(mu, epsilon):
  """log delta from the definition, with digits to spare for what cancels."""
  with mpmath.workdps(100 - math.floor(math.log10(mu))):
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    upper = lambda t: mpmath.erfc(t / mpmath.sqrt(2)) / 2
    return mpmath.log(upper(x) - mpmath.exp(epsilon) * upper(y))


def test_log_delta_agrees_with_mpmath_and_is_never_below():
  rng = np.random.default_rng(0)
  checked = 0
  for mu in 10 ** rng.uniform(-6, 3, 400):
    # Half the points where delta is a float, half anywhere.
    near = mu * max(mu / 2 + rng.uniform(-8, 37), 0)
    for epsilon in (float(near), 10 ** rng.uniform(-6, 4), 0.0):
      if epsilon / mu > 1e4:
        continue  # log delta < -5e7: slow for mpmath
      truth = true_log_delta(mu, epsilon)
      ours = gaussian.log_delta_of(mu, epsilon)
      assert ours >= truth
      # Absolute in log delta, so relative in delta.
      assert float(ours - truth) <= 1e-13 * max(100, epsilon, -float(truth))
      checked += 1
  assert checked > 800


@pytest.mark.parametrize('mu', [1e-3, 0.3, 0.999, 1.001, 4.0, 30.0])
@pytest.mark.parametrize('x', [3 - 1e-12, 3 + 1e-12])
def test_the_three_formulas_meet(mu, x):
  epsilon = mu * (x + mu / 2)
  ours = gaussian.log_delta_of(mu, epsilon)
  assert ours == pytest.approx(float(true_log_delta(mu, epsilon)), rel=1e-13)


@pytest.mark.parametrize(('mu', 'delta'), [*itertools.product(MUS, DELTAS)])
def test_epsilon_is_the_smallest_that_holds(mu, delta):
  epsilon = gaussian.epsilon_of(mu, delta)
  log_delta = mpmath.log(mpmath.mpf(delta))
  assert true_log_delta(mu, epsilon) <= log_delta
  assert gaussian.log_delta_of(mu, epsilon) <= math.log(delta)
  if epsilon > 0:
    assert true_log_delta(mu, epsilon * (1 - 1e-9)) > log_delta
  else:
    assert delta >= math.erf(mu / math.sqrt(8)) * (1 - 1e-12)


@pytest.mark.parametrize('delta', DELTAS)
@pytest.mark.parametrize('epsilon', [0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4])
def test_mu_is_the_largest_that_holds(epsilon, delta):
  mu = gaussian.mu_of(epsilon, delta)
  log_delta = mpmath.log(mpmath.mpf(delta))
  assert true_log_delta(mu, epsilon) <= log_delta
  assert gaussian.log_delta_of(mu, epsilon) <= math.log(delta)
  assert true_log_delta(mu * (1 + 1e-9), epsilon) > log_delta


def test_closed_forms():
  # At epsilon = 0 delta is the total variation distance.
  assert gaussian.delta_of(1.5, 0.0) == pytest.approx(
    math.erf(1.5 / math.sqrt(8)), rel=1e-13
  )
  # At epsilon = mu^2/2 one of the two terms is Phi(0).
  tail = math.erfc(3.0 / math.sqrt(2)) / 2
  assert gaussian.delta_of(3.0, 4.5) == pytest.approx(
    0.5 - math.exp(4.5) * tail, rel=1e-13
  )
  assert gaussian.compose([3.0, 4.0]) == pytest.approx(5.0)
  assert gaussian.compose([]) == 0.0


@pytest.mark.parametrize(
  ('mu', 'delta'),
  [*itertools.product((0.05, 0.7, 1.0, 3.0, 12.0), DELTAS[3:6])],
)
def test_epsilon_agrees_with_dp_accounting(mu, delta):
  theirs = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
  assert gaussian.epsilon_of(mu, delta) == pytest.approx(theirs, rel=1e-9)


def test_epsilon_agrees_with_pld():
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.GaussianDpEvent(10.0), 100
  )
  accountant = pld.PLDAccountant().compose(event)
  theirs = accountant.get_epsilon(1e-5)
  # PLD rounds up to its grid, so it may be above but not below.
  ours = gaussian.epsilon_of(1.0, 1e-5)
  assert ours <= theirs * (1 + 1e-9)
  assert ours == pytest.approx(theirs, rel=1e-6)


@settings(max_examples=150, derandomize=True)
@given(mus, epsilons)
def test_epsilon_of_delta_of_epsilon_is_not_below(mu, epsilon):
  delta = gaussian.delta_of(mu, epsilon)
  # Nearer to 1 the curve is too flat for a float delta to tell epsilons apart.
  if 1e-300 < delta < 0.9:
    # delta was rounded up, which moves epsilon down by as little.
    assert gaussian.epsilon_of(mu, delta) >= epsilon * (1 - 1e-9) - 1e-9


@settings(max_examples=150, derandomize=True)
@given(epsilons, deltas)
def test_mu_and_epsilon_are_inverse(epsilon, delta):
  mu = gaussian.mu_of(epsilon, delta)
  # At a small epsilon the curve is flat in epsilon: hence 1e-13 on top.
  assert gaussian.epsilon_of(mu, delta) <= epsilon * (1 + 1e-13) + 1e-13
  assert gaussian.epsilon_of(mu * (1 + 1e-9), delta) > epsilon


@settings(max_examples=150, derandomize=True)
@given(mus, mus, deltas)
def test_epsilon_grows_with_mu_and_falls_with_delta(first, second, delta):
  low, high = sorted((first, second))
  assert gaussian.epsilon_of(low, delta) <= gaussian.epsilon_of(high, delta) * (
    1 + 1e-12
  )
  looser = min(delta * 10, 0.999)
  assert gaussian.epsilon_of(low, looser) <= gaussian.epsilon_of(low, delta) * (
    1 + 1e-12
  )


def test_extremes_are_finite_numbers():
  # sigma from 1e-3 to 1e6, up to a million steps: mu from 1e-6 to 1e6.
  for mu, delta in itertools.product((1e-6, 1e-3, 1.0, 1e3, 1e6), DELTAS):
    epsilon = gaussian.epsilon_of(mu, delta)
    assert math.isfinite(epsilon)
    assert epsilon >= 0
    # Never above the bound of concentrated privacy, up to rounding.
    rho = mu * mu / 2
    assert epsilon <= (rho + 2 * math.sqrt(-rho * math.log(delta))) * (1 + 1e-9)
  for mu, epsilon in itertools.product(MUS, (0.0, 1e-6, 1.0, 1e4)):
    assert 0 < gaussian.delta_of(mu, epsilon) <= 1
    assert gaussian.log_delta_of(mu, epsilon) <= 0
  assert gaussian.log_delta_of(1e-6, 1e4) == pytest.approx(-5e19, rel=1e-9)


def test_nothing_released_costs_nothing():
  assert gaussian.epsilon_of(0.0, 1e-300) == 0.0
  assert gaussian.delta_of(0.0, 0.0) == 0.0
  assert gaussian.log_delta_of(0.0, 1.0) == -math.inf


@pytest.mark.parametrize(
  ('call', 'words'),
  [
    (lambda: gaussian.epsilon_of(1.0, 0.0), r'delta must be in \(0, 1\)'),
    (lambda: gaussian.epsilon_of(1.0, 1.0), 'got 1.0'),
    (lambda: gaussian.epsilon_of(-1.0, 0.1), 'mu must be >= 0, got -1.0'),
    (lambda: gaussian.delta_of(1.0, -0.5), 'epsilon must be >= 0, got -0.5'),
    (lambda: gaussian.delta_of(math.nan, 1.0), 'mu must be finite'),
    (lambda: gaussian.mu_of(math.inf, 0.1), 'epsilon must be finite'),
  ],
)
def test_errors_name_the_parameter(call, words):
  with pytest.raises(ValueError, match=words):
    call()
