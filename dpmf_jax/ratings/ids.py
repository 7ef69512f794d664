"""From original ids to indices: '7' is the integer 7, '007' stays a string."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

# Arrays have room for the longest id everywhere, at 4 bytes a character.
_SHORT = 256
_MAX_CHARACTERS = 2**27

Where = Callable[[int], str]  # row number -> the words that locate it


class DataError(ValueError):
  """Ratings that cannot be used; the message says which, and what to do.

  On one line, whatever ids and names are in it.
  """

  def __init__(self, message: str = ''):
    escaped = lambda found: repr(found.group())[1:-1]
    super().__init__(
      re.sub(r'[\x00-\x1f\x7f-\x9f\u2028\u2029]', escaped, message)
    )


class OutsideScaleError(DataError):
  """A rating outside the scale, and what to do if that is not the right one."""

  def __init__(self, message: str, otherwise: str = ''):
    super().__init__(message + otherwise)
    self.message = message


def factorize(
  labels: Any, role: str, where: Where
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (sorted ids, int32 index of each label into them)."""
  labels = np.asarray(labels)
  if labels.ndim != 1:
    raise DataError(f'{role}: ids have shape {labels.shape}, not [N]')
  kind = labels.dtype.kind
  if kind in 'iu':
    return factorize_integers(_int64(labels, role))
  if kind in 'OT':
    labels = _strings(labels, role, where)
  elif kind == 'S':
    labels = np.char.decode(labels, 'utf-8')
  elif kind != 'U':
    raise DataError(
      f'{role}: ids have type {labels.dtype}; pass integers or strings '
      '(a float id is ambiguous)'
    )
  ids, index = np.unique(labels, return_inverse=True)
  return finish(ids, index, role, where)


def finish(
  ids: np.ndarray, index: np.ndarray, role: str, where: Where
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the checked (ids, index) of sorted unique strings, int64 if so."""
  blank = np.char.str_len(np.char.strip(ids)) == 0
  if blank.any():
    row = int(np.flatnonzero(blank[index])[0])
    raise DataError(f'{where(row)}: empty {role} id; fill it in or remove it')
  numbers = canonical_integers(ids)
  if numbers is None:
    return ids, index.astype(np.int32)
  order = np.argsort(numbers)  # as strings '10' comes before '9'
  place = np.empty(len(order), np.int32)
  place[order] = np.arange(len(order), dtype=np.int32)
  return numbers[order], place[index]


def factorize_integers(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns (sorted ids, int32 index) of int64 labels, in O(N) if compact."""
  if not len(labels):
    return labels, labels.astype(np.int32)
  low, high = int(labels.min()), int(labels.max())
  if high - low > 4 * len(labels) + 1024:
    ids, index = np.unique(labels, return_inverse=True)
    return ids, index.astype(np.int32)
  offset = labels - low
  present = np.zeros(high - low + 1, bool)
  present[offset] = True
  place = np.cumsum(present, dtype=np.int32) - np.int32(1)
  return np.flatnonzero(present) + low, place[offset]


def join_ids(
  parts: list[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (sorted ids, int32 index) of labels in parts, one after the other.

  A part has (sorted ids, index); '7' is an integer where all of them are.
  """
  lists = [ids for ids, _ in parts]
  if len({ids.dtype.kind for ids in lists}) > 1:
    lists = [np.array(list(map(str, ids.tolist()))) for ids in lists]
  ids, place = np.unique(np.concatenate(lists), return_inverse=True)
  starts = np.cumsum([len(own) for own in lists])[:-1]
  index = [
    own.astype(np.int32)[index]
    for own, (_, index) in zip(np.split(place, starts), parts, strict=True)
  ]
  return ids, np.concatenate(index)


def used_ids(
  ids: np.ndarray, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (ids, index) without the ids that do not occur."""
  used = np.bincount(index, minlength=len(ids)) > 0
  if used.all():
    return ids, index
  return ids[used], (np.cumsum(used) - 1)[index]


def by_row(
  row: np.ndarray, column: np.ndarray, num_rows: int, num_columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (order, columns in it, start of each row and the end), in O(N).

  The order of indices that are in range is by row, then column, then place.
  """
  place = np.arange(len(row), dtype=np.int32 if len(row) < 2**31 else np.int64)
  shape = num_rows, num_columns
  entries = scipy.sparse.coo_array((place, (row, column)), shape)
  entries.has_canonical_format = True  # or those of a pair would be added up
  table: Any = entries.tocsc().tocsr()
  return table.data, table.indices, table.indptr


def places(known: np.ndarray, ids: np.ndarray) -> np.ndarray:
  """[N] int64, where each of `ids` is in `known`, and -1 if nowhere.

  Ids are compared as text: the same one may be 7 here and '7' there, where
  another id is no integer.
  """
  known, ids = known.astype(str), ids.astype(str)
  if not len(known):
    return np.full(len(ids), -1)
  order = np.argsort(known)
  place = np.searchsorted(known, ids, sorter=order)
  place = order[np.minimum(place, len(known) - 1)]
  return np.where(known[place] == ids, place, -1)


def id_texts(ids: Any, role: str) -> np.ndarray:
  """The id or ids, as text, in an array of the shape that was given."""
  array = np.asarray(ids)
  if array.dtype.kind in 'OT':
    where = lambda row: f'{role}s, place {row}'
    return _strings(array.reshape(-1), role, where).reshape(array.shape)
  if array.size and array.dtype.kind not in 'iuU':
    raise DataError(
      f'{role}s={ids!r} must be an id or several, integers or strings'
    )
  return array.astype(str)


def id_array(ids: list[Any], where: str) -> np.ndarray:
  """[N] int64 or str of what a file lists; ids that differ in kind are str."""
  for kind in set(map(type, ids)) - {str, int}:
    such = next(each for each in ids if type(each) is kind)
    raise DataError(
      f'{where}: {str(such)[:40]!r} is neither an integer nor a string'
    )
  texts = [each for each in ids if isinstance(each, str)]
  check_lengths(max(map(len, texts), default=0), len(ids), where)
  if not texts and not all(-(2**63) <= each < 2**63 for each in ids):
    raise DataError(f'{where}: an id is beyond 64 bits; write it as a string')
  return np.array(list(map(str, ids))) if texts else np.array(ids, np.int64)


def check_lengths(longest: int, count: int, where: str) -> None:
  """Raises DataError where ids as an array would fill the memory."""
  if longest > _SHORT and longest * count > _MAX_CHARACTERS:
    raise DataError(
      f'{where}: an id has {longest} characters, and there are {count} ids; '
      f'use ids of at most {_SHORT}'
    )


def canonical_integers(ids: np.ndarray) -> np.ndarray | None:
  """Returns string ids as int64 if each prints back the same, else None."""
  try:
    numbers = ids.astype(np.int64)
  except (ValueError, OverflowError):
    return None
  return numbers if np.array_equal(numbers.astype(str), ids) else None


def _int64(labels: np.ndarray, role: str) -> np.ndarray:
  if labels.dtype == np.uint64 and (labels > np.iinfo(np.int64).max).any():
    raise DataError(f'{role}: an id is above 2^63 - 1; pass the ids as strings')
  return labels.astype(np.int64, copy=False)


def _strings(labels: np.ndarray, role: str, where: Where) -> np.ndarray:
  allowed = (str, int, np.integer)
  for kind in set(map(type, labels)):
    if not issubclass(kind, allowed) or kind is bool:
      row = next(r for r, label in enumerate(labels) if type(label) is kind)
      raise DataError(
        f'{where(row)}: {role} id {labels[row]!r} is neither an integer nor a '
        'string; fill it in or remove it'
      )
  texts = [str(label) for label in labels]
  check_lengths(max(map(len, texts), default=0), len(texts), f'{role} ids')
  return np.array(texts, dtype=str)
