"""Randomized response, and with it the worst of every pure-DP mechanism.

Whatever is epsilon-DP can be simulated from one binary randomized response
with that epsilon, so k of them compose no worse than k responses do. There the
privacy loss is (2 i - k) epsilon with i binomial, which makes the optimal
composition a sum of binomial terms.

Reference: Kairouz, Oh and Viswanath (2017), Theorem 3.3, for equal epsilons.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import special

from dpmf_jax.accounting.events import (
  Pure,
  RandomizedResponse,
  checked_count,
  checked_delta,
  checked_epsilon,
)

_ULP = sys.float_info.epsilon
# Terms this far below the largest (in log) change no digit, even 10^7 of them
# and with a weight of 1e-6 on the largest.
_NEGLIGIBLE = 80.0


def rdp(event: Pure | RandomizedResponse) -> Callable[[float], float]:
  """The Renyi curve of all the responses, rounded up.

  With K categories and r = 1/(e^eps + K - 1) the moment of order a is
  r (e^(a eps) + e^((1-a) eps) + K - 2) = 1 + r (1 - e^(-(a-1) eps))
  (e^(a eps) - 1). K = 2 holds for every eps-DP mechanism.

  Reference: Mironov (2017), Proposition 5, for K = 2.
  """
  epsilon, count = event.epsilon, event.count
  categories = event.categories if isinstance(event, RandomizedResponse) else 2
  log_r = -epsilon - math.log1p((categories - 1) * math.exp(-epsilon))

  def curve(order: float) -> float:
    rest = order - 1
    if order * epsilon < 30:
      up = math.exp(log_r) * math.expm1(order * epsilon)
      log_moment = math.log1p(-math.expm1(-rest * epsilon) * up)
      # The exponent's rounding is that of log_r, which is large for many
      # categories.
      error = (16 + 2 * abs(log_r)) * _ULP * log_moment
    else:
      others = math.exp(-(2 * order - 1) * epsilon)
      others += (categories - 2) * math.exp(-order * epsilon)
      parts = (order * epsilon, log_r, math.log1p(others))
      log_moment = sum(parts)
      error = 8 * _ULP * sum(map(abs, parts))
    # No order has more than the largest loss, which is exact.
    return count * min((log_moment + error) / rest, epsilon)

  return curve


def kov_delta(epsilon: float, count: int, total: float) -> float:
  """The delta at which `count` epsilon-DP releases are `total`-DP, rounded up.

  Exact for randomized response, and a bound for every pure-DP mechanism.
  """
  epsilon, total = checked_epsilon(epsilon), checked_epsilon(total)
  count = checked_count('count', count)
  most = count * epsilon
  # The product is rounded, unless there is one release or none.
  if total >= most * (1 + (_ULP if count > 1 else 0)):
    return 0.0
  # Between two corners of the curve: total = corner - gap, 0 <= gap < 2 eps.
  # Delta grows with the gap and falls with the corner, so rounding the one up
  # and the other down is safe.
  corner = count + (total / epsilon * (1 - 4 * _ULP) - count) // 2 * 2 + 2
  corner = min(corner, count)
  gap = max(corner * epsilon - total, 0.0) + 2 * _ULP * most
  log_delta = _log_delta(epsilon, count, round((count + corner) / 2), gap)
  return min(max(math.exp(log_delta) * (1 + 4 * _ULP), math.ulp(0.0)), 1.0)


def kov_epsilon(epsilon: float, count: int, delta: float) -> float:
  """The smallest total epsilon of `count` epsilon-DP releases, rounded up.

  Reference: Kairouz, Oh and Viswanath (2017), Theorem 3.3, solved between the
  corners that the theorem lists, since the curve is known there, too.
  """
  epsilon, log_target = checked_epsilon(epsilon), math.log(checked_delta(delta))
  count = checked_count('count', count)
  if epsilon == 0 or count == 0:
    return 0.0
  # The first corner whose delta is low enough; the last one, `count`, has 0.
  low, high = (count - 1) // 2, count
  while high - low > 1:
    middle = (low + high) // 2
    if _log_delta(epsilon, count, middle, 0.0) <= log_target:
      high = middle
    else:
      low = middle
  # On the way down to the next corner delta grows by (1 - e^-gap) e^rest.
  spare, rest = _spare(epsilon, count, high, log_target)
  share = math.exp(min(spare - rest, 0.0)) * (1 - 8 * _ULP)
  gap = -math.log1p(-share) if share < 1 else math.inf
  total = (2 * high - count) * epsilon - min(gap, 2 * epsilon)
  return max(total + 4 * _ULP * count * epsilon, 0.0)


@lru_cache(maxsize=2)
def _log_terms(epsilon: float, count: int) -> np.ndarray:
  """log P(i) of the binomial i = 0, 1, ..., count, rounded up."""
  i = np.arange(count + 1, dtype=np.float64)
  log_factorials = special.gammaln(i + 1)
  log_terms = log_factorials[-1] - log_factorials - log_factorials[::-1]
  log_terms -= (count - i) * epsilon
  log_terms -= count * math.log1p(math.exp(-epsilon))
  # gammaln is good to some units in the last place of its largest value.
  sizes = float(log_factorials[-1]) + count * (epsilon + 1)
  log_terms += 4 * _ULP * sizes
  log_terms.setflags(write=False)
  return log_terms


def _window(
  epsilon: float, count: int, first: int
) -> tuple[np.ndarray, np.ndarray]:
  """(log P(i), loss above that of `first`) of i >= first that matter."""
  log_terms = _log_terms(epsilon, count)[first:]
  kept = np.flatnonzero(log_terms >= log_terms.max() - _NEGLIGIBLE)
  # P is log-concave: what is kept has no holes.
  steps = np.arange(kept[0], kept[-1] + 1)
  return log_terms[steps], 2 * epsilon * steps


def _log_delta(epsilon: float, count: int, first: int, gap: float) -> float:
  """log sum over i >= first of P(i) (1 - e^-(2 (i - first) eps + gap))."""
  log_terms, losses = _window(epsilon, count, first)
  return _log_sum(log_terms + _log_one_minus_exp(losses + gap))


def _spare(
  epsilon: float, count: int, first: int, log_target: float
) -> tuple[float, float]:
  """(log of target - delta at a corner, log of sum P(i) e^-(loss above it))."""
  log_terms, losses = _window(epsilon, count, first)
  used = _log_sum(log_terms + _log_one_minus_exp(losses))
  # Here the terms near `first` count most, so all of them are looked at.
  terms = _log_terms(epsilon, count)[first:]
  rest = _log_sum(terms - 2 * epsilon * np.arange(terms.size))
  if used >= log_target:
    return -math.inf, rest
  return log_target + math.log(-math.expm1(used - log_target)), rest


def _log_one_minus_exp(losses: np.ndarray) -> np.ndarray:
  with np.errstate(divide='ignore'):  # a loss of zero adds nothing
    return np.log(-np.expm1(-losses))


def _log_sum(logs: np.ndarray) -> float:
  """log of the sum, rounded up."""
  largest = float(np.max(logs, initial=-math.inf))
  if largest == -math.inf:
    return -math.inf
  total = float(np.exp(logs[logs > largest - _NEGLIGIBLE] - largest).sum())
  return largest + math.log(total) + 64 * _ULP * (1 + abs(largest))
