"""Matrices in text: a line for each user, a field for each item."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dpmf_jax.ratings import tokens
from dpmf_jax.ratings.columns import listed, role_of
from dpmf_jax.ratings.ids import DataError, factorize_integers
from dpmf_jax.ratings.tokens import Fields

Ids = tuple[np.ndarray, np.ndarray]  # sorted ids, [N] index


class Entries(NamedTuple):
  """The ratings of a matrix."""

  row: np.ndarray  # [N]
  column: np.ndarray  # [N], from 0 for the first item
  value: np.ndarray  # [N] float64
  cells: Fields  # one column, N rows


def entries(fields: Fields, first: int, missing: float | str) -> Entries:
  """Returns what is there of the columns from `first` on.

  Args:
    fields: of the whole file.
    first: the column of the first item.
    missing: stands for no rating: a number, however it is written, or text.
  """
  columns = [part for k, part in fields.columns.items() if k >= first]
  count, width = len(fields.line), len(columns)
  row, column = np.divmod(np.arange(count * width, dtype=np.int32), width)
  texts = pa.chunked_array([chunk for part in columns for chunk in part.chunks])
  by_line = np.arange(count * width).reshape(width, count).T.reshape(-1)
  line = np.asarray(fields.line)[row]
  cells = Fields(
    {0: texts.take(pa.array(by_line))}, line, fields.file, column + (first + 1)
  )
  mark, value = _number(missing), None
  if mark is None:
    there = ~tokens.equal(cells, 0, str(missing))
  else:
    value = tokens.numbers(cells, 0, 'rating')
    there = value != mark
  if not there.any():
    raise DataError(f'{fields.file}: every rating is missing={missing!r}')
  cells = cells._replace(
    columns={0: cells.columns[0].filter(pa.array(there))},
    line=line[there],
    place=column[there] + (first + 1),
  )
  value = tokens.numbers(cells, 0, 'rating') if value is None else value[there]
  return Entries(row[there], column[there], value.astype(np.float64), cells)


def has_header(
  names: list[str], columns: Mapping[str, str | int], missing: float | str
) -> bool:
  """Returns whether a first line names columns.

  It does if one of its ratings is neither a number nor a missing one.
  """
  user, first = columns.get('user'), columns.get('item', 0)
  if isinstance(user, str) or isinstance(first, str):
    return True
  cells = (n.strip() for k, n in enumerate(names) if k >= first and k != user)
  return any(_number(n) is None and n != str(missing) for n in cells)


def places(
  names: list[str], columns: Mapping[str, str | int], header: bool, file: str
) -> tuple[int | None, int]:
  """Returns where a matrix has its users' ids, None if nowhere, and ratings."""
  found: dict[str, int] = {}
  roles = [role_of(name) for name in names] if header else []
  if 'user' in roles:
    found['user'] = roles.index('user')
  for role, column in columns.items():
    if role not in ('user', 'item'):
      raise DataError(f'columns: {role!r} is not one of user, item of a matrix')
    known: list[Any] = names if header else []
    if isinstance(column, int):
      known = list(range(len(names)))
    if column not in known:
      have = f'there are: {listed(names)}' if header else 'no header'
      raise DataError(f'{file}, line 1: no {role} column {column!r}; {have}')
    found[role] = known.index(column)
  user = found.get('user')
  first = found.get('item', 0 if user is None else user + 1)
  if user is not None and not user < first < len(names):
    raise DataError(
      f'{file}, line 1: the user column {user} must come before those of items'
    )
  return user, first


def numbered(place: np.ndarray) -> Ids:
  """Returns ids from 1 for rows or columns without names."""
  return factorize_integers(place.astype(np.int64) + 1)


def named(ids: Ids, place: np.ndarray) -> Ids:
  """Returns those of the ids of all rows or columns that have a rating."""
  used, index = np.unique(ids[1][place], return_inverse=True)
  return ids[0][used], index.astype(np.int32)


def _number(text: float | str) -> float | None:
  try:
    number = float(text)
  except ValueError:
    return None
  return number if math.isfinite(number) else None
