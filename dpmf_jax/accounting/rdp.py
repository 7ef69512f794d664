"""Renyi differential privacy: curves, and what they are worth in epsilon.

A curve is a function order -> divergence, for orders a > 1; it may return inf
where it does not hold. Curves of composed mechanisms add. A conversion is
valid at every order, so the search for the best one cannot make it unsound.

For Gaussian noise alone `gaussian.epsilon_of` is exact and smaller. These
conversions are for comparison with papers, and for curves that have no exact
form.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from dpmf_jax.accounting.events import (
  checked_count,
  checked_delta,
  checked_epsilon,
  checked_multiplier,
)

Curve: TypeAlias = Callable[[float], float]

_ULP = sys.float_info.epsilon
# log(order - 1): from where order - 1 is still exact to a few digits, to where
# even a million times more noise than anyone uses has its best order.
_LOG_ORDERS = np.linspace(-30, 70, 201)


def gaussian(noise_multiplier: float, count: int = 1) -> Curve:
  """The curve of `count` Gaussian releases, count order / (2 multiplier^2).

  Reference: Mironov (2017), Proposition 7 and Proposition 1 (composition).
  """
  count = checked_count('count', count)
  rho = count / checked_multiplier(noise_multiplier) ** 2 / 2
  return lambda order: rho * order


def compose(*curves: Curve) -> Curve:
  """The curve of all the mechanisms together: the sum."""
  return lambda order: math.fsum(curve(order) for curve in curves)


def epsilon_mironov(curve: Curve, delta: float) -> float:
  """The epsilon at `delta`, by the first conversion that was published.

  Reference: Mironov (2017), Proposition 3: curve(a) + log(1/delta)/(a - 1).
  """
  log_delta = math.log(checked_delta(delta))

  def terms(order: float) -> tuple[float, ...]:
    return curve(order), -log_delta / (order - 1)

  return _smallest(terms)


def epsilon_optimal(curve: Curve, delta: float) -> float:
  """The epsilon at `delta`, by the best conversion of one order.

  Reference: Canonne, Kamath and Steinke (2020), Proposition 12; Balle et al.
  (2020), Theorem 21. Smaller than Mironov's at every order.
  """
  log_delta = math.log(checked_delta(delta))
  return _smallest(lambda order: _optimal_terms(curve, log_delta, order))


def epsilon_at(curve: Curve, delta: float, order: float) -> float:
  """The epsilon at `delta`, by the same conversion at a given order."""
  log_delta = math.log(checked_delta(delta))
  return max(_rounded_sum(_optimal_terms(curve, log_delta, order)), 0.0)


def log_delta_optimal(curve: Curve, epsilon: float) -> float:
  """The log of the delta at `epsilon`, by the conversion of epsilon_optimal.

  Solved for delta at every order: (a - 1) (curve(a) - epsilon + log(1 - 1/a))
  - log(a). At most 0.
  """
  epsilon = checked_epsilon(epsilon)

  def terms(order: float) -> tuple[float, ...]:
    rest, at = order - 1, curve(order)
    if at == math.inf:
      return (math.inf,)
    return (
      rest * at,
      -rest * epsilon,
      rest * _log_one_less(order),
      -math.log1p(rest),
    )

  return min(_smallest_sum(terms), 0.0)


def delta_optimal(curve: Curve, epsilon: float) -> float:
  """The delta at `epsilon`, rounded up; at least the smallest float."""
  delta = math.exp(log_delta_optimal(curve, epsilon)) * (1 + 4 * _ULP)
  return min(max(delta, math.ulp(0.0)), 1.0)


def _optimal_terms(
  curve: Curve, log_delta: float, order: float
) -> tuple[float, ...]:
  rest = order - 1  # exact, and not the rounded number the order came from
  return (
    curve(order),
    _log_one_less(order),
    -log_delta / rest,
    -math.log1p(rest) / rest,
  )


def _log_one_less(order: float) -> float:
  """log(1 - 1/order), where order - 1 is exact and may be small."""
  rest = order - 1
  return math.log(rest / order) if rest < 1 else math.log1p(-1 / order)


def _smallest(terms: Callable[[float], tuple[float, ...]]) -> float:
  """The smallest sum of `terms` over the orders, rounded up, at least 0."""
  return max(_smallest_sum(terms), 0.0)


def _smallest_sum(terms: Callable[[float], tuple[float, ...]]) -> float:
  """The smallest sum of `terms` over the orders, rounded up."""
  from scipy import optimize  # here, as it is slow to import

  def bound(log_rest: float) -> float:
    return _rounded_sum(terms(1 + math.exp(log_rest)))

  # A coarse look first, since the bound need not have a single minimum.
  coarse = [bound(log_rest) for log_rest in _LOG_ORDERS]
  best = int(np.argmin(coarse))
  low = _LOG_ORDERS[max(best - 1, 0)]
  high = _LOG_ORDERS[min(best + 1, len(_LOG_ORDERS) - 1)]
  fine = optimize.minimize_scalar(
    bound, bounds=(low, high), method='bounded', options={'xatol': 1e-9}
  )
  return min(float(fine.fun), coarse[best])


def _rounded_sum(parts: tuple[float, ...]) -> float:
  # Rounded up: the parts may cancel, so the error goes with their sizes.
  return sum(parts) + 4 * _ULP * sum(map(abs, parts))
