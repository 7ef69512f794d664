"""Renyi curves of Gaussian noise on a random sample of the records.

At integer orders both bounds are 1 plus a sum of positive terms, so they are
computed as what is above 1 and lose no digits, however small the sampling
rate. log moment = (order - 1) curve(order) is convex in the order (Wang, Balle
and Kasiviswanathan (2019), Corollary 10), and zero at order 1; its chord
between two integers is therefore a bound in between. For Poisson sampling the
exact fractional order is there as well, and the smaller of both is taken.

Whatever the sample, its Gaussian noise is never less than without sampling, so
that every curve here is at most order / (2 multiplier^2).

Every curve is rounded up: all that is summed is positive, sums of logarithms
that may cancel get a margin that goes with the size of their parts, and what
is below the smallest float is that float.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
from scipy import special

from dpmf_jax.accounting.events import SubsampledGaussian

_ULP = sys.float_info.epsilon
# Past this order only the curve without sampling is used.
_LARGEST_ORDER = 1024
# Fractional orders that need more points than this are left to the chord.
_POINTS = 20_000
# Relative, of what is summed by the trapezoidal rule; measured: 6e-14.
_QUADRATURE_ERROR = 1e-12
# The even moments of sampling without replacement are used up to this one, and
# down to this noise.
_LARGEST_EVEN = 256
_LITTLE_NOISE = 0.5


def rdp(event: SubsampledGaussian) -> Callable[[float], float]:
  """The Renyi curve of all the releases of the event, rounded up.

  Reference: Mironov, Talwar and Zhang (2019), Section 3, for Poisson sampling
  and add/remove; Wang, Balle and Kasiviswanathan (2019), Theorem 27, for
  sampling without replacement and replace.
  """
  rate, noise = event.sampling_rate, event.noise_multiplier
  poisson = event.sampling == 'poisson'

  @cache
  def at_integer(order: int) -> float:
    if order == 1:
      return 0.0
    at = _poisson_integer if poisson else _without_replacement_integer
    return at(rate, noise, order)

  def log_moment(order: float) -> float:
    below = math.floor(order)
    part = order - below
    chord = at_integer(below)
    if part > 0:
      chord += part * (at_integer(below + 1) - chord)
    if poisson and part > 0:
      chord = min(chord, _poisson_fractional(rate, noise, order))
    return chord * (1 + 8 * _ULP)

  @cache
  def curve(order: float) -> float:
    unsampled = order / noise**2 / 2 * (1 + 4 * _ULP)
    if rate == 1 or order > _LARGEST_ORDER:
      return event.count * unsampled
    return event.count * min(unsampled, log_moment(order) / (order - 1))

  return curve


def _poisson_integer(rate: float, noise: float, order: int) -> float:
  """log E ((1-q) + q P/Q)^a = log sum C(a, i) (1-q)^(a-i) q^i e^((i^2-i)/2s^2).

  The binomial weights sum to 1, so e^x - 1 in place of e^x is the excess.
  """
  i = np.arange(2, order + 1)
  return _log1p_sum(
    _rounded_up(
      _log_choose(order, i),
      i * math.log(rate),
      (order - i) * _log1m(rate),
      _log_expm1(i * (i - 1) / 2 / noise**2),
    )
  )


def _without_replacement_integer(
  rate: float, noise: float, order: int
) -> float:
  """Theorem 27: term j is at most 2 E L^j and 4 sqrt(B(j-) B(j+)).

  B(l) = E (L - 1)^l, and j-, j+ are the even numbers next to j. The first
  bound is the better one for little noise.
  """
  j = np.arange(2, order + 1)
  log_terms = math.log(2) + j * (j - 1) / 2 / noise**2
  if noise >= _LITTLE_NOISE:
    even = _log_even_moments(noise)
    covered = min(order, _LARGEST_EVEN) - 1
    below, above = j[:covered] // 2, (j[:covered] + 1) // 2
    tight = math.log(4) + (even[below] + even[above]) / 2
    log_terms[:covered] = np.minimum(log_terms[:covered], tight)
  log_terms[0] = min(
    float(log_terms[0]),
    math.log(4) + float(_log_expm1(np.array(1 / noise**2))),
  )
  return _log1p_sum(
    _rounded_up(log_terms, _log_choose(order, j), j * math.log(rate))
  )


def _poisson_fractional(rate: float, noise: float, order: float) -> float:
  """The same moment at a fractional order; inf where that takes too long.

  E (1 + u)^a with u = q (L - 1), L = P/Q and E u = 0, is 1 + E h(u) with
  h(u) = (1 + u)^a - 1 - a u >= 0. The trapezoidal rule is used on x ~ N(0, s^2)
  for it. Its error falls as e^(-2 pi d / step), d the distance from the real
  line to where 1 + u = 0, which is pi s^2.

  Reference: Mironov, Talwar and Zhang (2019), Section 3.3, who expand the same
  moment in a series that converges slowly.
  """
  step = min(noise, noise**2) / 24
  if not (order + 24 * noise) / step < _POINTS:
    return math.inf
  x = np.arange(-12 * noise, order + 12 * noise, step)
  log_likelihood = (x - 0.5) / noise**2
  u = rate * np.expm1(np.minimum(log_likelihood, 600.0))
  log1p_u = np.where(
    u < 1,
    np.log1p(np.minimum(u, 1.0)),
    np.logaddexp(_log1m(rate), math.log(rate) + log_likelihood),
  )
  log_h = _log_above_tangent(log1p_u, order)
  # What is left of digits of u counts `order` times in its logarithm.
  size = order * (np.abs(log_likelihood) - math.log(rate))
  log_terms = _rounded_up(log_h, -((x / noise) ** 2) / 2)
  log_excess = _log_sum(log_terms + 4 * _ULP * size)
  log_excess += math.log(step / noise) - math.log(2 * math.pi) / 2
  return _log1p_exp(log_excess + _QUADRATURE_ERROR)


def _log_above_tangent(log1p_u: np.ndarray, order: float) -> np.ndarray:
  """log of (1 + u)^a - 1 - a u, without cancellation, also for a near 1.

  With l = log(1 + u), s = a - 1 and g(y) = e^y - 1 - y it is
  e^l (s g(-l) + g(s l)), where no term is negative.
  """
  rest = order - 1
  near, far = _log_above_line(-log1p_u), _log_above_line(rest * log1p_u)
  return log1p_u + np.logaddexp(math.log(rest) + near, far)


def _log_above_line(y: np.ndarray) -> np.ndarray:
  """log of g(y) = e^y - 1 - y, to some units in the last place."""
  small = np.where(np.abs(y) < 0.5, y, 0.0)
  series = np.ones_like(y)
  for n in range(18, 2, -1):
    series = 1 + small / n * series
  # series is now g(y) / (y^2 / 2).
  with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
    near = 2 * np.log(np.abs(y)) + np.log(series / 2)
    above = y + np.log1p(-(1 + y) * np.exp(-y))
    below = np.log(np.expm1(np.minimum(y, 0.0)) - y)
  return np.where(np.abs(y) < 0.5, near, np.where(y > 0, above, below))


@lru_cache(maxsize=64)
def _log_even_moments(noise: float) -> np.ndarray:
  """log E (L - 1)^l of L = P/Q under Q, for l = 0, 2, 4, ...

  By the trapezoidal rule on an entire function with Gaussian tails; the step
  is fine enough for the rule's error to be nothing against rounding.
  """
  step, logs = noise / 32, [0.0]
  for power in range(2, _LARGEST_EVEN + 1, 2):
    reach = (math.sqrt(power) + 12) * noise
    x = np.arange(-reach, max(power + 12 * noise, reach), step)
    log_likelihood = (x - 0.5) / noise**2
    with np.errstate(divide='ignore'):
      log_size = np.maximum(log_likelihood, 0) + np.log(
        -np.expm1(-np.abs(log_likelihood))
      )
    logs.append(_log_sum(power * log_size - (x / noise) ** 2 / 2))
    logs[-1] -= math.log(2 * math.pi) / 2 + math.log(32)
    logs[-1] += _QUADRATURE_ERROR
  return np.array(logs)


def _log_choose(order: int, i: np.ndarray) -> np.ndarray:
  choose = special.gammaln(order + 1.0) - special.gammaln(i + 1.0)
  choose = choose - special.gammaln(order - i + 1.0)
  return choose + 8 * _ULP * float(special.gammaln(order + 1.0))


def _log_expm1(x: np.ndarray) -> np.ndarray:
  return x + np.log(-np.expm1(-x))


def _log1m(rate: float) -> float:
  return math.log1p(-rate)


def _rounded_up(*parts: np.ndarray) -> np.ndarray:
  """The sum of the parts, which may cancel: the error goes with their sizes.

  One of them may be the logarithm of 0, and then the sum is.
  """
  total, size = np.add.reduce(parts), np.add.reduce(np.abs(parts))
  return total + 4 * _ULP * np.where(np.isneginf(total), 0.0, size)


def _log1p_sum(logs: np.ndarray) -> float:
  """log(1 + sum of exp(logs)), rounded up."""
  log_sum = _log_sum(logs)
  return _log1p_exp(log_sum + 16 * _ULP * (1 + abs(log_sum)))


def _log_sum(logs: np.ndarray) -> float:
  largest = float(np.max(logs))
  return largest + math.log(float(np.exp(logs - largest).sum()))


def _log1p_exp(x: float) -> float:
  """log(1 + e^x), never 0: rounding up must not end where floats do."""
  if x > 30:
    return x + math.exp(-x)
  return math.log1p(max(math.exp(x), sys.float_info.min))
