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


def ratings_of(given: Any, *, scale: tuple[float, float] | None) -> Ratings:
  """The Ratings of a file, a DataFrame, a sparse matrix or a named data set.

  Args:
    given: Ratings, which are returned; a path, or the name of a data set in
      the catalog where there is no such file; a pandas DataFrame; a sparse
      [U, I] matrix, whose stored entries are ratings; or
      {user: {item: rating}}.
    scale: smallest and largest rating that can be given, a public fact; 1 to
      5 by default. Ratings and named data sets have their own.
  """
  named = isinstance(given, str) and given in catalog.NAMES
  if named and not pathlib.Path(given).exists():
    given = catalog.load(given)
  if isinstance(given, Ratings):
    if scale is not None and tuple(scale) != given.scale:
      low, high = given.scale
      raise ValueError(
        f'scale={tuple(scale)} is not that of {given.name}, {low:g}..{high:g}; '
        'leave it out'
      )
    return given
  scale = scale or SCALE
  if isinstance(given, str | os.PathLike):
    _check_name(given)
    return formats.read(given, scale=scale)
  if scipy.sparse.issparse(given):
    return from_csr(given, scale=scale)
  if hasattr(given, 'columns'):
    return from_dataframe(given, scale=scale)
  if isinstance(given, Mapping) and all(
    isinstance(own, Mapping) and own for own in given.values()
  ):
    return _from_dicts(given, scale)
  raise ValueError(
    f'ratings of type {type(given).__name__} are not known: give Ratings, a '
    'path, the name of a data set, a pandas DataFrame, a sparse matrix or '
    "{user: {item: rating}} such as {'me': {'50': 5}} (dpmf_jax.from_arrays "
    'makes Ratings of columns)'
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
  given: Mapping[Any, Mapping[Any, float]], scale: tuple[float, float]
) -> Ratings:
  triples = [(u, i, r) for u, own in given.items() for i, r in own.items()]
  users, items, values = zip(*triples, strict=True) if triples else ((),) * 3
  ids = lambda column: np.array(column, object)
  return from_arrays(ids(users), ids(items), values, scale=scale)
