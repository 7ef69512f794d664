"""What ratings, counts, epsilons and timestamps may be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpmf_jax.ratings.ids import DataError, OutsideScaleError, Where


def check_scale(scale: Any) -> tuple[float, float]:
  """Returns (r_min, r_max) as finite floats in order, or raises DataError."""
  try:
    low, high = map(float, scale)
  except (TypeError, ValueError):
    low = high = math.nan
  if not (math.isfinite(low) and math.isfinite(high) and low < high):
    raise DataError(
      f'scale={scale!r} is not a pair of finite numbers r_min < r_max; '
      'pass the public bounds of a rating, for example (1, 5), or max_count=1 '
      'for clicks'
    )
  return low, high


def check_values(
  value: np.ndarray | None, scale: tuple[float, float] | None, where: Where
) -> None:
  """Raises DataError for a rating outside the scale; None is that of counts."""
  if value is None:
    return
  if scale is None:
    _check_numbers(value, 'count', 0, np.inf, where)
  else:
    _check_numbers(value, 'rating', *scale, where)


def _check_numbers(
  value: np.ndarray, what: str, low: float, high: float, where: Where
) -> None:
  if (row := first_of(~np.isfinite(value))) is not None:
    raise DataError(
      f'{where(row)}: {what} {value[row]} is not a finite number; '
      'remove or correct it'
    )
  if (row := first_of((value < low) | (value > high))) is None:
    return
  if what == 'count':
    raise DataError(
      f'{where(row)}: count {value[row]:g} is below 0; remove or correct it'
    )
  raise OutsideScaleError(
    f'{where(row)}: rating {value[row]:g} is outside the scale '
    f'{low:g}..{high:g}; correct it',
    ' or pass the right scale, or max_count= if it is a count',
  )


def limit_of_clicks(max_count: int | None) -> int:
  """Returns the most that a count counts where there are no ratings."""
  return 1 if max_count is None else max_count


def kind_of(
  scale: tuple[float, float] | None, max_count: int | None
) -> tuple[tuple[float, float], bool]:
  """Returns (scale, whether values are counts)."""
  if max_count is None:
    return check_scale(scale), False
  whole = isinstance(max_count, int | np.integer)
  if not whole or isinstance(max_count, bool) or not 1 <= max_count <= 10**6:
    raise DataError(f'max_count={max_count!r} must be an integer in 1..1000000')
  if scale is not None:
    raise DataError(
      f'scale={scale!r} is for ratings and max_count={max_count} for counts: '
      'give one of them'
    )
  return (0.0, float(max_count)), True


def are_truths(values: Any, scale: Any, name: str) -> bool:
  """Whether values are bools; an error on another scale, where True is low."""
  if np.asarray(values).dtype != bool:
    return False
  if scale is None:
    return True
  low, high = check_scale(scale)
  if (low, high) != (0, 1):
    raise DataError(
      f'{name}: ratings are True or False, but the scale is {low:g}..{high:g}; '
      'pass scale=(0, 1), or ratings that are numbers'
    )
  return False


def numbers(values: Any, name: str) -> np.ndarray:
  try:
    return np.asarray(values, np.float64)
  except (TypeError, ValueError) as error:
    raise DataError(f'{name}: ratings are not all numbers: {error}') from error


def epsilons(epsilon: Any, name: str) -> np.ndarray:
  try:
    epsilon = np.array(epsilon, np.float64)
  except (TypeError, ValueError) as error:
    raise DataError(f'{name}: epsilons are not all numbers: {error}') from error
  good = np.isfinite(epsilon) & (epsilon > 0)
  if (row := first_of(~good)) is not None:
    raise DataError(
      f'{name}, row {row}: epsilon {epsilon.flat[row]} is not positive and '
      'finite; remove the rating to leave it out'
    )
  return epsilon


def seconds(timestamp: Any, where: Where) -> np.ndarray:
  stamp = np.asarray(timestamp)
  if stamp.dtype.kind == 'M':
    if (row := first_of(np.isnat(stamp))) is not None:
      raise DataError(f'{where(row)}: the timestamp is missing')
    return stamp.astype('M8[s]').astype(np.int64)
  if stamp.dtype.kind in 'iu':
    return stamp.astype(np.int64, copy=False)
  if stamp.dtype.kind != 'f':
    raise DataError(
      f'timestamps have type {stamp.dtype}; make them numbers or datetimes, or '
      'leave them out'
    )
  if (row := first_of(~np.isfinite(stamp))) is not None:
    raise DataError(f'{where(row)}: timestamp {stamp[row]} is not finite')
  return stamp.astype(np.float64, copy=False)


def first_of(mask: np.ndarray) -> int | None:
  return int(mask.argmax()) if mask.any() else None
