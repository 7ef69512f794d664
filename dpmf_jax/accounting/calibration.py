"""A parameter from a target: how much noise, how many steps epsilon allows."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpmf_jax.accounting.events import (
  checked_delta,
  checked_epsilon,
  checked_number,
)

_TOLERANCE = 1e-6


def calibrate_by(
  epsilon_at: Callable[[float], float],
  *,
  epsilon: float,
  low: float,
  high: float,
  integer: bool = False,
) -> float:
  """The parameter in [low, high] that spends `epsilon`, never more.

  Args:
    epsilon_at: parameter -> epsilon, rising or falling.
    epsilon: the target.
    low: where the search starts; more than 0.
    high: where the search ends.
    integer: whether only whole numbers will do.

  Returns:
    A parameter within 1e-6 (relative) of one that spends more than `epsilon`,
    or next to one if `integer`, and that spends at most `epsilon` itself, as
    computed and not only up to rounding.

  Raises:
    ValueError: if all of [low, high] holds the target, or none of it.
  """
  target = checked_epsilon(epsilon)
  low, high = checked_number('low', low), checked_number('high', high)
  if not 0 < low < high:
    raise ValueError(
      f'low and high must have 0 < low < high, got {low!r} and {high!r}'
    )
  if integer:
    low, high = float(math.ceil(low)), float(math.floor(high))
  at_low, at_high = epsilon_at(low), epsilon_at(high)
  if (at_low <= target) == (at_high <= target):
    side = 'all of' if at_low <= target else 'nothing in'
    raise ValueError(
      f'epsilon must be between its values at low and high, got {target!r}: '
      f'{side} [{low:g}, {high:g}] holds it, where epsilon goes from '
      f'{at_low:.6g} to {at_high:.6g}'
    )
  good, bad = (low, high) if at_low <= target else (high, low)
  at_good, at_bad = (at_low, at_high) if good == low else (at_high, at_low)
  halve = False
  while not _close(good, bad, integer):
    middle = _between(good, at_good, bad, at_bad, target, halve, integer)
    at_middle = epsilon_at(middle)
    before = abs(math.log(bad / good))
    if at_middle <= target:
      good, at_good = middle, at_middle
    else:
      bad, at_bad = middle, at_middle
    # A secant may creep up on one side: every poor step is followed by a half.
    halve = abs(math.log(bad / good)) > before / 2
  return good


def calibrate_to(
  curve_at: Callable[[float, float], float], delta: float
) -> Callable[[float], float]:
  """parameter -> epsilon at a fixed `delta`, which is checked first."""
  if checked_number('delta', delta) != 0:
    checked_delta(delta)
  return lambda parameter: curve_at(parameter, delta)


def _close(good: float, bad: float, integer: bool) -> bool:
  if integer:
    return abs(good - bad) <= 1
  return abs(good - bad) <= _TOLERANCE * min(good, bad)


def _between(
  good: float,
  at_good: float,
  bad: float,
  at_bad: float,
  target: float,
  halve: bool,
  integer: bool,
) -> float:
  """A point between the two: on the log-log secant, or in the middle."""
  share = 0.5
  positive = 0 < at_good < at_bad < math.inf and target > 0
  if positive and not halve:
    share = math.log(target / at_good) / math.log(at_bad / at_good)
    # A little to the other side of the root, so that the bracket closes on it.
    nudge = 0.4 * _TOLERANCE / abs(math.log(bad / good))
    share = share - nudge if share > 0.5 else share + nudge
    share = min(max(share, nudge), 1 - nudge)
  middle = good * (bad / good) ** share
  if integer:
    middle = float(round(middle))
    low, high = min(good, bad) + 1, max(good, bad) - 1
    return min(max(middle, low), high)
  return middle
