"""Ratings of whatever somebody has them in."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from dpmf_jax.ratings import catalog, formats
from dpmf_jax.ratings.table import (
  DataError,
  Ratings,
  from_arrays,
  from_csr,
  from_dataframe,
)

SCALE = (1.0, 5.0)  # where none is given, as for MovieLens


def ratings_of(
  given: Any,
  *,
  scale: tuple[float, float] | None = None,
  max_count: int | None = None,
) -> Ratings:
  """The Ratings of a file, a DataFrame, a sparse matrix or a named data set.

  Args:
    given: Ratings, which are returned; a path, or the name of a data set in
      the catalog where there is no such file; a pandas DataFrame; a sparse
      [U, I] matrix, whose stored entries are ratings, or clicks if they are
      True; {user: {item: rating}}; or {user: [item, item]}, which are clicks.
    scale: smallest and largest rating that can be given, a public fact; 1 to
      5 by default. Ratings and named data sets have their own; of clicks it
      says nothing.
    max_count: says that these are counts; see `from_arrays`.
  """
  named = isinstance(given, str) and given in catalog.NAMES
  if named and not pathlib.Path(given).exists():
    given = catalog.load(given)
  if isinstance(given, Ratings):
    low, high = given.scale
    if max_count not in (None, high if given.clicks else None):
      raise ValueError(
        f'max_count={max_count} is for files, frames and matrices, not for '
        f'{given!r}; leave it out'
      )
    if not (scale is None or given.clicks or tuple(scale) == given.scale):
      raise ValueError(
        f'scale={tuple(scale)} is not that of {given.name}, {low:g}..{high:g}; '
        'leave it out'
      )
    return given
  default = SCALE if max_count is None else None
  if isinstance(getattr(given, 'dtype', None), np.dtypes.BoolDType):
    default = None  # clicks
  found = _made(given, {'scale': scale or default, 'max_count': max_count})
  if scale is None:
    check_default_scale(found)
  return found


def check_default_scale(ratings: Ratings) -> None:
  """Raises DataError where ratings are all alike: they may well be clicks."""
  alike = len(ratings) > 1 and (ratings.value == ratings.value[0]).all()
  if alike and not ratings.clicks:
    raise DataError(
      f'{ratings.name}: every rating is {ratings.value[0]:g}: pass max_count=1 '
      'if these are clicks, or their scale if they are ratings'
    )


def _made(given: Any, options: dict[str, Any]) -> Ratings:
  if isinstance(given, str | os.PathLike):
    _check_name(given)
    return formats.read(given, **options)
  if scipy.sparse.issparse(given):
    return from_csr(given, **options)
  if hasattr(given, 'columns'):
    return from_dataframe(given, **options)
  if isinstance(given, Mapping):
    for kind in (Mapping, (list, tuple, set, frozenset)):
      if all(isinstance(own, kind) and own for own in given.values()):
        return _from_dicts(given, options)
  raise ValueError(
    f'ratings of type {type(given).__name__} are not known: give Ratings, a '
    'path, the name of a data set, a pandas DataFrame, a sparse matrix, '
    "{user: {item: rating}} such as {'me': {'50': 5}} or {user: [item]} "
    '(dpmf_jax.from_arrays makes Ratings of columns)'
  )


def _check_name(given: str | os.PathLike) -> None:
  """Raises DataError for a bare name that no file and no data set has."""
  path = pathlib.Path(given)
  if path.name == str(path) and not (path.suffix or path.exists()):
    raise DataError(
      f'{path}: no such file, and no data set of that name; there are '
      f'{", ".join(catalog.NAMES)}'
    )


def _from_dicts(
  given: Mapping[Any, Any], options: Mapping[str, Any]
) -> Ratings:
  rated = any(isinstance(own, Mapping) for own in given.values())
  pairs = [(user, item) for user, own in given.items() for item in own]
  values = [given[user][item] for user, item in pairs] if rated else None
  users, items = zip(*pairs, strict=True) if pairs else ((), ())
  ids = lambda column: np.array(column, object)
  return from_arrays(ids(users), ids(items), values, **options)
