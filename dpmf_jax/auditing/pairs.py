"""Neighbouring data sets that are small enough to run a million times.

Each is bad in its own way: the rating that changes is the only one of its
item, or cancels against another, or is one of a hundred, or sits among
extremes. What a search found worse is in `found.json` (see `search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpmf_jax.ratings.table import Ratings
from dpmf_jax.types import Relation, Unit

Row = tuple[int, int, float]  # user, item, rating

_POPULAR = 100
# Small pairs share this many users and items, so that they are one shape and
# compiled once; who has no rating is a row of noise.
_SMALLEST = (4, 3)


class Pair(NamedTuple):
  """Two data sets that differ in one unit, and share their id lists."""

  name: str
  first: Ratings
  second: Ratings


def check_pair(pair: Pair, unit: Unit, relation: Relation) -> None:
  """Raises ValueError where a guarantee does not speak of such a pair."""
  if (unit, relation) in (found := _kinds(pair)):
    return
  kinds = [f'unit={unit!r}, relation={relation!r}' for unit, relation in found]
  raise ValueError(
    f'pair={pair.name!r} has neighbours for {" and ".join(kinds) or "nothing"},'
    f' but the guarantee speaks of unit={unit!r}, relation={relation!r}: use '
    f'a pair of library_pairs({unit!r}, {relation!r}, scale)'
  )


def _kinds(pair: Pair) -> list[tuple[Unit, Relation]]:
  """For which units and relations the two data sets are neighbours."""
  if any(
    not np.array_equal(getattr(pair.first, side), getattr(pair.second, side))
    for side in ('user_ids', 'item_ids')
  ):
    return []
  first, second = (
    set(zip(*(x.tolist() for x in (r.user, r.item, r.value)), strict=True))
    for r in (pair.first, pair.second)
  )
  gone, come = first - second, second - first
  cells = {row[:2] for row in gone | come}
  users = {user for user, _ in cells}
  kept = {row[:2] for row in gone} == {row[:2] for row in come}
  # A user who comes or goes has no ratings at all in the other data set.
  alone = not come and not any(user in users for user, _, _ in second)
  alone |= not gone and not any(user in users for user, _, _ in first)
  holds: dict[tuple[Unit, Relation], bool] = {
    ('rating', 'replace'): kept and len(cells) <= 1,
    ('rating', 'add_remove'): len(gone) + len(come) <= 1,
    ('user', 'replace'): kept and len(users) <= 1,
    ('user', 'add_remove'): alone and len(users) <= 1,
  }
  return [kind for kind, true in holds.items() if true]


def library_pairs(
  unit: Unit, relation: Relation, scale: tuple[float, float]
) -> tuple[Pair, ...]:
  """The neighbours in the library for what a guarantee is about.

  The second data set has a rating of the lowest instead of the highest value
  ('replace'), or lacks it, or lacks all ratings of its user ('add_remove').
  """
  low, high = scale
  made = []
  for name, rows in _tables(low, high, (low + high) / 2).items():
    if unit == 'user':
      rows = _wide(rows, high)
    if relation == 'replace':
      changed = [*_changed(rows, unit, low), *_kept(rows, unit)]
    else:
      changed = _kept(rows, unit)
    made.append(Pair(name, *neighbours(rows, changed, scale)))
  return tuple(made)


def neighbours(
  first: Sequence[Row], second: Sequence[Row], scale: tuple[float, float]
) -> tuple[Ratings, Ratings]:
  """Both as Ratings with the same id lists: all numbers up to the largest."""
  users, items, _ = zip(*first, *second, strict=True)
  num_users = max(_SMALLEST[0], max(users) + 1)
  num_items = max(_SMALLEST[1], max(items) + 1)

  def table(rows: Sequence[Row]) -> Ratings:
    user, item, value = zip(*rows, strict=True)
    return Ratings(
      user=np.array(user),
      item=np.array(item),
      value=np.array(value),
      user_ids=np.arange(num_users),
      item_ids=np.arange(num_items),
      scale=scale,
    )

  return table(first), table(second)


def _tables(low: float, high: float, mid: float) -> dict[str, list[Row]]:
  """Ratings of the first data set; the first row is the one that changes."""
  return {
    'only rating': [(0, 0, high), (1, 1, mid)],
    'cancelling users': [(0, 0, high), (1, 0, low)],
    'few raters': [(0, 0, high), *((u, 0, low) for u in range(1, 4))],
    # The others' mean is a quarter above the lowest rating, which is where
    # the gradient of an item is 0 for factors that are all 1 on 0..4.
    'popular item': [
      (0, 0, high),
      *((u, 0, mid if u % 2 else low) for u in range(1, _POPULAR)),
    ],
    'extreme values': [
      (user, item, high if (user + item) % 2 == 0 else low)
      for user in range(2)
      for item in range(3)
    ],
  }


def _wide(rows: list[Row], high: float) -> list[Row]:
  """The same with the first user rating every item, and one of their own."""
  own = 1 + max(item for _, item, _ in rows)
  return [*((0, item, high) for item in range(own + 1)), *_kept(rows, 'user')]


def _kept(rows: list[Row], unit: Unit) -> list[Row]:
  """The rows that do not change."""
  return rows[1:] if unit == 'rating' else [row for row in rows if row[0]]


def _changed(rows: list[Row], unit: Unit, value: float) -> list[Row]:
  """The rows that change, with their new value."""
  rows = rows[:1] if unit == 'rating' else [row for row in rows if not row[0]]
  return [(user, item, value) for user, item, _ in rows]
