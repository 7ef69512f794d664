"""Gaussian differential privacy, exactly, in both directions.

A mechanism is mu-GDP if telling two neighbours apart from its output is no
easier than telling N(0, 1) from N(mu, 1) from one draw. Gaussian noise of
standard deviation `sensitivity / mu` is mu-GDP, and no better. Its curve is

  delta(mu, eps) = Phi(-x) - e^eps Phi(-y),
  x = eps/mu - mu/2,  y = eps/mu + mu/2 = x + mu.

Reference: Balle and Wang (2018), Theorem 8; Dong, Roth and Su (2022),
Corollary 2.13. There are no RDP orders and no slack here.

How it is computed. Since e^eps = phi(x)/phi(y), with the Mills ratio
M(t) = Phi(-t)/phi(t) the curve is delta = phi(x) (M(x) - M(y)): e^eps never
appears, and what is left is a difference that each of three formulas takes
without cancellation in its own region. Everything is kept as log delta, so
that delta may be far below the smallest float.

Every result is rounded to the safe side by a bound on the floating-point
error: delta and epsilon up, mu down.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable

import numpy as np
from scipy import special

from dpmf_jax.accounting.events import (
  checked_delta,
  checked_epsilon,
  checked_number,
)

_ULP = sys.float_info.epsilon
# Past this x the continued fraction of the Mills ratio has converged.
_FAR = 3.0
_FRACTION_TERMS = 60
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def compose(mus: Iterable[float]) -> float:
  """The mu of all the mechanisms together, sqrt(sum mu^2).

  Reference: Dong, Roth and Su (2022), Corollary 3.3. Exact, and adaptive.
  """
  return math.hypot(*(_checked_mu(mu) for mu in mus))


def log_delta_of(mu: float, epsilon: float) -> float:
  """The log of the smallest delta at `epsilon`, rounded up; -inf for mu = 0."""
  mu, epsilon = _checked_mu(mu), checked_epsilon(epsilon)
  if mu == 0:
    return -math.inf
  ratio = epsilon / mu
  x = ratio - mu / 2
  if x > 1e150:  # delta < exp(-1e299)
    return -math.inf
  if x > _FAR:
    log_delta = _log_delta_far(x, mu)
  elif mu > 1:
    log_delta = _log_delta_wide(x, mu)
  else:
    log_delta = _log_delta_narrow(x, mu)
  # x carries the rounding of its two terms, and d log delta / dx is within
  # |x| + 2; the other operations are good to some units in the last place.
  error = (abs(x) + 2) * (ratio + mu) + abs(log_delta) + 32
  return min(log_delta + 2 * _ULP * error, 0.0)


def delta_of(mu: float, epsilon: float) -> float:
  """The smallest delta at `epsilon`, rounded up.

  Only mu = 0 has delta = 0; below the smallest float it is the smallest float.
  """
  log_delta = log_delta_of(mu, epsilon)
  if mu == 0:
    return 0.0
  # The factor covers the rounding of exp.
  delta = math.exp(log_delta) * (1 + 2 * _ULP)
  return min(max(delta, math.ulp(0.0)), 1.0)


def epsilon_of(mu: float, delta: float) -> float:
  """The smallest epsilon at `delta`, rounded up; 0 where delta allows it."""
  mu, log_delta = _checked_mu(mu), math.log(checked_delta(delta))
  if mu > 1e150:  # mu^2 / 2 is no float any more
    return math.inf
  holds = lambda epsilon: log_delta_of(mu, epsilon) <= log_delta
  if holds(0.0):
    return 0.0
  # Here x = sqrt(2 log(1/delta)), where Phi(-x) <= delta / 2 already.
  high = mu * (mu / 2 + math.sqrt(-2 * log_delta))
  while not holds(high):
    high *= 2
  excess = lambda epsilon: log_delta_of(mu, epsilon) - log_delta
  return _nudge(_root(excess, 0.0, high), holds, math.inf)


def mu_of(epsilon: float, delta: float) -> float:
  """The largest mu that is (epsilon, delta)-DP, rounded down."""
  epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
  log_delta = math.log(delta)
  holds = lambda mu: log_delta_of(mu, epsilon) <= log_delta
  # Two mu hold surely: the solution of mu^2/2 + mu sqrt(2 log(1/delta)) =
  # epsilon, see epsilon_of, and sqrt(2 pi) delta, even at epsilon = 0.
  root = math.sqrt(-2 * log_delta)
  low = 2 * epsilon / (math.hypot(root, math.sqrt(2 * epsilon)) + root)
  low = max(low, delta * math.sqrt(2 * math.pi)) / 2
  high = 4 * low
  while holds(high):
    high *= 2
  excess = lambda mu: log_delta_of(mu, epsilon) - log_delta
  return _nudge(_root(excess, low, high), holds, 0.0)


def _log_delta_far(x: float, mu: float) -> float:
  """log delta for x > 3, where M(x) and M(x + mu) may be almost equal.

  M(t) = 1/(t + K_1(t)) with K_n(t) = n/(t + K_{n+1}(t)) (Laplace). Then
  K_n(y) - K_n(x) = -n (mu + K_{n+1}(y) - K_{n+1}(x)) / (product of the two
  denominators), so the difference, here as a fraction of mu, is carried along
  and never computed as one.
  """
  y = x + mu
  at_x = at_y = difference = 0.0
  for n in range(_FRACTION_TERMS, 0, -1):
    difference = -n * ((1 + difference) / (x + at_x)) / (y + at_y)
    at_x, at_y = n / (x + at_x), n / (y + at_y)
  log_mills = math.log1p(difference) - math.log(x + at_x) - math.log(y + at_y)
  return _log_density(x) + math.log(mu) + log_mills


def _log_delta_wide(x: float, mu: float) -> float:
  """log delta for x <= 3 and mu > 1, where M(x + mu)/M(x) is not near 1."""
  log_tail = float(special.log_ndtr(-x))
  # phi(x) M(y) = e^eps Phi(-y). For x far below zero it is 0, and delta 1.
  minus = 0.5 * math.exp(-x * x / 2) * _erfcx(x + mu)
  return log_tail + math.log1p(-minus / math.exp(log_tail))


def _log_delta_narrow(x: float, mu: float) -> float:
  """log delta for x <= 3 and mu <= 1, as an integral of -M' > 0.

  -M'(t) = 1 - t M(t) is entire and x >= -mu/2, so on this short interval
  Gauss-Legendre is as good as a closed form.
  """
  t = x + mu * (1 + _NODES) / 2
  slope = 1 - t * math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2))
  return _log_density(x) + math.log(mu) + math.log(_WEIGHTS @ slope / 2)


def _log_density(x: float) -> float:
  return -x * x / 2 - math.log(2 * math.pi) / 2


def _erfcx(t: float) -> float:
  return float(special.erfcx(t / math.sqrt(2)))


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
  # Here and not above: it would be a third of the accountant's import time.
  from scipy import optimize

  # A relative tolerance only: the root may be anywhere from 1e-300 to 1e300.
  result = optimize.root_scalar(
    excess,
    method='brentq',
    bracket=(low, high),
    xtol=math.ulp(0.0),
    rtol=4 * _ULP,
    maxiter=2000,
  )
  return float(result.root)


def _nudge(
  value: float, holds: Callable[[float], bool], towards: float
) -> float:
  """The first value from `value` on, in growing steps, for which it holds."""
  step = _ULP
  while not holds(value):
    moved = value * (1 + step) if towards > value else value * (1 - step)
    # Among subnormals a relative step may not move at all.
    value = moved if moved != value else math.nextafter(value, towards)
    step *= 2
  return value


def _checked_mu(mu: float) -> float:
  mu = checked_number('mu', mu)
  if mu < 0:
    raise ValueError(f'mu must be >= 0, got {mu!r}')
  return mu
