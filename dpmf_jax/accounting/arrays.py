"""Functions of a number, over arrays of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def elementwise(function: Callable[[Any], Any], values: Any) -> Any:
  """`function(values)`, or an array of it over the numbers in an array.

  A function that gives a named tuple gives one of arrays.
  """
  if np.ndim(values) == 0:
    return function(values.item() if hasattr(values, 'item') else values)
  numbers = np.asarray(values, np.float64)
  results = [function(number) for number in numbers.ravel().tolist()]
  shaped = lambda column: np.array(column, np.float64).reshape(numbers.shape)
  if results and isinstance(results[0], tuple):
    kind: Any = type(results[0])
    return kind(*map(shaped, zip(*results, strict=True)))
  return shaped(results)
