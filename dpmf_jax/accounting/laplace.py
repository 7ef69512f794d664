"""Laplace noise, one coordinate at a time and in all directions at once.

Both are pure epsilon-DP with epsilon = 1/noise_multiplier, and
both are better than that alone says. Their Renyi curves are known in closed
form; that of the L2-Laplace mechanism is derived here.

L2-Laplace, the derivation. The noise x in R^D has density ~ exp(-||x||/b) and
a neighbour moves it by v, ||v|| = Delta, epsilon = Delta/b. Use coordinates
with the foci 0 and v: ||x|| + ||x - v|| = Delta xi and ||x|| - ||x - v|| =
Delta eta, xi >= 1 >= |eta|, with volume element ~ (xi^2 - eta^2)
((xi^2 - 1)(1 - eta^2))^((D-3)/2). The privacy loss is -epsilon eta, and with
z = epsilon/2 and s = 2 order - 1 the moment E (P/Q)^(order - 1) under P has
the integrand exp(-z xi - s z eta): a product. By the integrals of the Bessel
functions I and K (DLMF 10.32.2, 10.32.8), with n = D/2 - 1,

  moment = s^-n z (K_{n+1}(z) I_n(s z) + K_n(z) I_{n+1}(s z) / s),

which is 1 at order 1 by the Wronskian. Differentiating gives

  d moment / dz = s^-n (s - 1/s) z K_{n+1}(z) I_{n+1}(s z) > 0,

so a smaller shift is never worse. This slope falls as n grows, because
K_m(z) I_m(z) does, and I_m(s z)/(s^m I_m(z)) does; hence a curve holds in
every higher dimension, too, and the plain Laplace curve, D = 1, in all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from scipy import special

from dpmf_jax.accounting.events import (
  L2Laplace,
  Laplace,
  checked_delta,
  checked_epsilon,
  pure_epsilon,
)

_ULP = sys.float_info.epsilon
# How good SciPy's Bessel functions are: 1.3e-13 was measured up to dimension
# 200, wherever the Wronskian, which is known, was right to 1e-13.
_BESSEL_ERROR, _WRONSKIAN_ERROR = 1e-12, 1e-13


def rdp(event: Laplace | L2Laplace) -> Callable[[float], float]:
  """The Renyi curve of all the releases of the event, rounded up.

  Reference: Mironov (2017), Proposition 6, for Laplace; the module docstring
  for L2-Laplace.
  """
  epsilon, count = pure_epsilon(event), event.count
  dimension = 1
  if isinstance(event, L2Laplace) and event.dimension is not None:
    dimension = _largest_usable(epsilon, event.dimension)

  def curve(order: float) -> float:
    log_moment = _log_moment(epsilon, order)
    if dimension > 1:
      # The smaller, since the one has no cancellation and the other is tight.
      log_moment = min(log_moment, _log_moment_l2(epsilon, order, dimension))
    return min(count * log_moment / (order - 1), count * epsilon)

  return curve


def epsilon_of_one(event: Laplace, delta: float) -> float:
  """The exact epsilon of a single Laplace release, rounded up.

  Its curve is delta(eps') = 1 - exp((eps' - eps)/2) for eps' <= eps.

  Reference: Balle, Barthe and Gaboardi (2018), Theorem 3.
  """
  epsilon = pure_epsilon(event)
  less = epsilon + 2 * math.log1p(-checked_delta(delta))
  return max(less + 4 * _ULP * epsilon, 0.0)


def delta_of_one(event: Laplace, epsilon: float) -> float:
  """The exact delta of a single Laplace release, rounded up."""
  gap = pure_epsilon(event) - checked_epsilon(epsilon)
  if gap <= 0:
    return 0.0
  gap += 2 * _ULP * (gap + 2 * epsilon)
  return min(-math.expm1(-gap / 2) * (1 + 2 * _ULP), 1.0)


def _log_moment(epsilon: float, order: float) -> float:
  """log of (a e^((a-1) eps) + (a-1) e^(-a eps)) / (2a - 1), rounded up."""
  s, rest = 2 * order - 1, order - 1
  up, down = rest * epsilon, order * epsilon
  if up < 1:
    # The terms of first order cancel exactly and are left out of both sums.
    excess = (order * _above_tangent(up) + rest * _above_tangent(-down)) / s
    return math.log1p(excess) * (1 + 16 * _ULP)
  log_rest = math.log(order / s)
  log_rest += math.log1p(rest / order * math.exp(-s * epsilon))
  return (up + log_rest) * (1 + 4 * _ULP)


def _above_tangent(x: float) -> float:
  """e^x - 1 - x, without cancellation."""
  if abs(x) > 0.5:
    return math.expm1(x) - x
  total, term = 0.0, x
  for n in range(2, 18):
    term *= x / n
    total += term
  return total


def _log_moment_l2(epsilon: float, order: float, dimension: int) -> float:
  z, s, n = epsilon / 2, 2 * order - 1, dimension / 2 - 1
  bracket = _bracket(z, s, n)
  if not 0 < bracket < math.inf:
    return math.inf  # the caller has another bound
  # The functions are scaled by e^z and e^(-s z), and (s - 1) z = (a - 1) eps.
  parts = ((order - 1) * epsilon, -n * math.log(s), math.log(bracket))
  error = 4 * _ULP * sum(map(abs, parts)) + _BESSEL_ERROR
  return sum(parts) + error


def _bracket(z: float, s: float, n: float) -> float:
  high = float(special.kve(n + 1, z)) * float(special.ive(n, s * z))
  low = float(special.kve(n, z)) * float(special.ive(n + 1, s * z))
  return z * (high + low / s)


def _largest_usable(epsilon: float, dimension: int) -> int:
  """The largest of `dimension`, half of it, ... where nothing overflows.

  The Wronskian says what `_bracket` must be at order 1.
  """
  while dimension > 1:
    wronskian = _bracket(epsilon / 2, 1.0, dimension / 2 - 1)
    if abs(wronskian - 1) < _WRONSKIAN_ERROR:
      return dimension
    dimension //= 2
  return 1
