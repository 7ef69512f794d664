"""Renyi differential privacy: curves, and what they are worth in epsilon.

A curve is a function order -> divergence, for orders a > 1; it may return inf
where it does not hold. Those that are made here also take arrays of orders.
Curves of composed mechanisms add. A conversion is valid at every order, so the
search for the best one cannot make it unsound. There are two, by the names of
their authors: 'mironov' and 'canonne', the smaller one.

For Gaussian noise alone `gaussian.epsilon_of` is exact and smaller. These
conversions are for comparison with papers, and for curves that have no exact
form.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from dpmf_jax.accounting.arrays import elementwise
from dpmf_jax.accounting.events import (
  checked_count,
  checked_delta,
  checked_epsilon,
  checked_multiplier,
)

Curve: TypeAlias = Callable[[Any], Any]
Conversion: TypeAlias = Literal['mironov', 'canonne']

_ULP = sys.float_info.epsilon
# log(order - 1): from where order - 1 is still exact to a few digits, to where
# even a million times more noise than anyone uses has its best order.
_LOG_ORDERS = np.linspace(-30, 70, 201)


def gaussian(noise_multiplier: float, count: int = 1) -> Curve:
  """The curve of `count` Gaussian releases, count order / (2 multiplier^2).

  >>> gaussian(2.0, count=3)([2.0, 5.0]).tolist()
  [0.75, 1.875]

  Reference: Mironov (2017), Proposition 7 and Proposition 1 (composition).
  """
  count = checked_count('count', count)
  rho = count / checked_multiplier(noise_multiplier) ** 2 / 2
  return lambda order: elementwise(lambda a: rho * _checked_order(a), order)


def compose(*curves: Curve) -> Curve:
  """The curve of all the mechanisms together: the sum.

  >>> compose(gaussian(2.0), gaussian(1.0))([2.0, 5.0]).tolist()
  [1.25, 3.125]
  """

  def at(order: float) -> float:
    _checked_order(order)
    return math.fsum(curve(order) for curve in curves)

  return lambda order: elementwise(at, order)


class Converted(NamedTuple):
  """The epsilon that a curve is worth, and the order that it comes from."""

  epsilon: Any
  order: Any


def epsilon_mironov(
  curve: Curve, delta: float, order: float | None = None
) -> Converted:
  """The epsilon at `delta`, by the first conversion that was published.

  At the best order, or at the one that is given; over an array of deltas it is
  arrays.

  >>> epsilon, order = epsilon_mironov(gaussian(2.0), 1e-6)
  >>> round(epsilon, 4), round(order, 2)
  (2.7533, 11.51)

  Reference: Mironov (2017), Proposition 3: curve(a) + log(1/delta)/(a - 1).
  """
  return elementwise(lambda d: _converted(_mironov, curve, d, order), delta)


def epsilon_canonne(
  curve: Curve, delta: float, order: float | None = None
) -> Converted:
  """The epsilon at `delta`, by the best conversion of one order.

  At the best order, or at the one that is given; over an array of deltas it is
  arrays.

  >>> epsilon, order = epsilon_canonne(gaussian(2.0), [1e-6, 1e-9])
  >>> epsilon.round(4).tolist(), order.round(2).tolist()
  ([2.4191, 3.0581], [10.57, 13.05])

  Reference: Canonne, Kamath and Steinke (2020), Proposition 12; Balle et al.
  (2020), Theorem 21. Smaller than Mironov's at every order.
  """
  return elementwise(lambda d: _converted(_canonne, curve, d, order), delta)


CONVERSIONS: dict[Conversion, Callable[..., Converted]] = {
  'mironov': epsilon_mironov,
  'canonne': epsilon_canonne,
}


def log_delta_canonne(curve: Curve, epsilon: float) -> float:
  """The log of the delta at `epsilon`, by the conversion of epsilon_canonne.

  Solved for delta at every order: (a - 1) (curve(a) - epsilon + log(1 - 1/a))
  - log(a). At most 0.

  >>> round(log_delta_canonne(gaussian(2.0), 2.0), 4)
  -10.1396
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

  return min(_smallest_sum(terms)[0], 0.0)


def delta_canonne(curve: Curve, epsilon: float) -> float:
  """The delta at `epsilon`, rounded up; at least the smallest float.

  >>> [float(f'{delta_canonne(gaussian(2.0), e):.3g}') for e in (1.0, 2.0)]
  [0.018, 3.95e-05]
  """
  delta = math.exp(log_delta_canonne(curve, epsilon)) * (1 + 4 * _ULP)
  return min(max(delta, math.ulp(0.0)), 1.0)


def _converted(
  rule: Callable[[Curve, float, float], tuple[float, ...]],
  curve: Curve,
  delta: float,
  order: float | None,
) -> Converted:
  """By a rule (curve, log delta, order) -> parts of epsilon, rounded up."""
  log_delta = math.log(checked_delta(delta))
  terms = lambda order: rule(curve, log_delta, order)
  if order is None:
    found, order = _smallest_sum(terms)
  else:
    found = _rounded_sum(terms(_checked_order(order)))
  return Converted(max(found, 0.0), order)


def _mironov(curve: Curve, log_delta: float, order: float) -> tuple[float, ...]:
  return curve(order), -log_delta / (order - 1)


def _canonne(curve: Curve, log_delta: float, order: float) -> tuple[float, ...]:
  rest = order - 1  # exact, and not the rounded number the order came from
  return (
    curve(order),
    _log_one_less(order),
    -log_delta / rest,
    -math.log1p(rest) / rest,
  )


def _checked_order(order: float) -> float:
  if not order > 1:
    raise ValueError(f'order={order!r} must be > 1')
  return order


def _log_one_less(order: float) -> float:
  """log(1 - 1/order), where order - 1 is exact and may be small."""
  rest = order - 1
  return math.log(rest / order) if rest < 1 else math.log1p(-1 / order)


def _smallest_sum(
  terms: Callable[[float], tuple[float, ...]],
) -> tuple[float, float]:
  """The smallest sum of `terms` over the orders, rounded up, and its order."""
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
  found, log_rest = min(
    (float(fine.fun), float(fine.x)), (coarse[best], float(_LOG_ORDERS[best]))
  )
  return found, 1 + math.exp(log_rest)


def _rounded_sum(parts: tuple[float, ...]) -> float:
  # Rounded up: the parts may cancel, so the error goes with their sizes.
  return sum(parts) + 4 * _ULP * sum(map(abs, parts))
