"""What is kept of the ratings, or clicks, that a (user, item) pair has."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np

from dpmf_jax.ratings.ids import DataError, Where, by_row

# Of users, of items, and how many there are of both.
Indices = tuple[np.ndarray, np.ndarray, int, int]


Duplicates = Literal['last', 'first', 'mean', 'error']


DUPLICATES = ('last', 'first', 'mean', 'error')


def grouped(
  user: np.ndarray, item: np.ndarray, num_users: int, num_items: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (order by user, item and place, where in it a pair is new)."""
  order, column, start = by_row(user, item, num_users, num_items)
  new = np.ones(len(order), bool)
  new[1:] = column[1:] != column[:-1]
  new[start[:-1][np.diff(start) > 0]] = True
  return order, new


def added_up(
  pairs: Indices, count: np.ndarray, timestamp: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
  """Returns (rows to keep, sums of counts, last timestamps) of pairs.

  What counts 0 is left out.
  """
  user, item, *sizes = pairs
  there = np.flatnonzero(count > 0)
  order, new = grouped(user[there], item[there], *sizes)
  order = there[order]
  start = np.flatnonzero(new)
  keep = order[start]
  back = np.argsort(keep)  # into the order in which they came
  if not len(keep):
    return keep, count[keep], timestamp
  total = np.add.reduceat(count[order], start)[back]
  if timestamp is not None:
    timestamp = np.maximum.reduceat(timestamp[order], start)[back]
  return keep[back], total, timestamp


def resolved(
  pairs: Indices, value: np.ndarray, duplicates: Duplicates, where: Where
) -> tuple[np.ndarray | slice, np.ndarray]:
  """Returns (rows to keep, their values) after the policy on duplicates."""
  order, new = grouped(*pairs)
  if new.all():
    return slice(None), value
  extra, start = int((~new).sum()), np.flatnonzero(new)
  what = f'{where(int(order[~new].min()))}: (user, item) rated before'
  if duplicates == 'error':
    raise DataError(
      f'{what}, {extra} such rating(s) in all; '
      "remove them or pass duplicates='last', 'first' or 'mean'"
    )
  warnings.warn(
    f'{what}, {extra} such rating(s) in all; keeping the {duplicates}',
    stacklevel=4,
  )
  last = np.append(start[1:], len(order)) - 1
  if duplicates == 'mean':
    sums = np.add.reduceat(value[order].astype(np.float64), start)
    value = value.astype(np.float64)
    value[order[last]] = sums / (last - start + 1)
  keep = np.sort(order[start if duplicates == 'first' else last])
  return keep, value[keep]
