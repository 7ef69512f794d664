"""A parameter from a target: how much noise, how many steps epsilon allows."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpmf_jax.accounting import gaussian
from dpmf_jax.accounting.accountant import epsilon as epsilon_of
from dpmf_jax.accounting.events import (
  Event,
  Gaussian,
  checked_count,
  checked_delta,
  checked_epsilon,
  checked_multiplier,
  checked_number,
  delta_left,
)

_TOLERANCE = 1e-6


def calibrate(
  make: Callable[[float], Event],
  *,
  epsilon: float,
  delta: float,
  low: float,
  high: float,
  integer: bool = False,
) -> float:
  """The parameter for which `make(parameter)` spends `epsilon`, never more.

  >>> target = {'epsilon': 1.0, 'delta': 1e-6}
  >>> make = lambda noise: Gaussian(noise, count=100)
  >>> round(calibrate(make, **target, low=1.0, high=1e4), 3)
  42.247
  >>> make = lambda steps: RandomizedResponse(0.02, int(steps))
  >>> calibrate(make, **target, low=1, high=10**6, integer=True)
  142.0

  It lies within 1e-6 (relative) of a parameter that spends more, or next to
  one if `integer`; `epsilon(make(result), delta)` is at most the target.

  Raises:
    ValueError: if all of [low, high] holds the target, or none of it.
  """
  target = checked_epsilon(epsilon)
  if checked_number('delta', delta) != 0:
    checked_delta(delta)
  low, high = checked_number('low', low), checked_number('high', high)
  if not 0 < low < high:
    raise ValueError(
      f'low and high must have 0 < low < high, got {low!r} and {high!r}'
    )
  if integer:
    low, high = float(math.ceil(low)), float(math.floor(high))
  at_low, at_high = (epsilon_of(make(end), delta) for end in (low, high))
  if (at_low <= target) == (at_high <= target):
    side = 'all of' if at_low <= target else 'nothing in'
    raise ValueError(
      f'epsilon must be between its values at low and high, got {target!r}: '
      f'{side} [{low:g}, {high:g}] holds it, where epsilon goes from '
      f'{at_low:.6g} to {at_high:.6g}'
    )
  good, bad, at_good, at_bad = low, high, at_low, at_high
  if at_high <= target:
    good, bad, at_good, at_bad = high, low, at_high, at_low
  halve = False
  while not _close(good, bad, integer):
    middle = _between(good, at_good, bad, at_bad, target, halve, integer)
    at_middle = epsilon_of(make(middle), delta)
    before = abs(math.log(bad / good))
    if at_middle <= target:
      good, at_good = middle, at_middle
    else:
      bad, at_bad = middle, at_middle
    # A secant may creep up on one side: every poor step is followed by a half.
    halve = abs(math.log(bad / good)) > before / 2
  return good


def calibrate_noise_multiplier(
  *, epsilon: float, delta: float, count: int = 1
) -> float:
  """The smallest noise multiplier of `count` Gaussian releases, rounded up.

  `epsilon(Gaussian(result, count), delta)` is at most the target as computed,
  not only up to rounding. If the noise is then drawn in single precision, its
  standard deviation must be rounded up there too.

  >>> noise = calibrate_noise_multiplier(epsilon=1.0, delta=1e-6, count=100)
  >>> round(noise, 4), round(epsilon(Gaussian(noise, 100), 1e-6), 9)
  (42.2468, 1.0)
  """
  multiplier = math.sqrt(checked_count('count', count, 1)) / gaussian.mu_of(
    epsilon, delta
  )
  step = math.ulp(1.0)
  while epsilon_of(Gaussian(multiplier, count), delta) > epsilon:
    multiplier *= 1 + step
    step *= 2
  return multiplier


def drawn_gaussian(
  uncovered: Callable[[float], float],
  *,
  delta: float,
  count: int = 1,
  epsilon: float | None = None,
  noise_multiplier: float | None = None,
) -> Gaussian:
  """`count` Gaussian releases of noise that ends, at one of two targets.

  Args:
    uncovered: noise multiplier -> what the ends of all the noise cost, in
      delta; never more for more noise.
    delta: of the guarantee; the ends may cost up to a hundredth of it.
    count: of releases.
    epsilon: of the guarantee, with all that delta has to pay for.
    noise_multiplier: instead of `epsilon`.

  >>> event = drawn_gaussian(lambda noise: 1e-10, epsilon=1.0, delta=1e-6)
  >>> round(event.noise_multiplier, 4), event.uncovered
  (4.2247, 1e-10)

  Privacy: the noise is that for `epsilon` at delta less the cost of the ends
  of a little less noise, so `epsilon(result, delta)` is at most the target.

  Raises:
    ValueError: for so little noise that its ends cost more than that.
  """
  multiplier = noise_multiplier
  if epsilon is not None:
    multiplier = calibrate_noise_multiplier(
      epsilon=epsilon, delta=delta, count=count
    )
  if multiplier is None:
    raise ValueError('one of epsilon and noise_multiplier must be given')
  lost = uncovered(checked_multiplier(multiplier))
  if lost > delta / 100:
    raise ValueError(
      f'delta={delta!r} is too small, or the noise too little, for float32: '
      f'its tails end with a chance of {min(lost, 1):.2g}, and at most a '
      'hundredth of delta pays for that; use a smaller epsilon or a larger '
      'delta'
    )
  event = Gaussian(multiplier, count, lost)
  if epsilon is None:
    return event
  more = calibrate_noise_multiplier(
    epsilon=epsilon, delta=delta_left(event, delta), count=count
  )
  return Gaussian(max(multiplier, more), count, lost)


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
