"""Which column is which: the names that ratings have in files and frames."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dpmf_jax.ratings.ids import DataError

ROLES = ('user', 'item', 'rating', 'timestamp')
_NAMES = {
  'user': {'user', 'users', 'userid', 'uid', 'customer', 'customerid'},
  'item': {
    'item', 'items', 'itemid', 'iid', 'movie', 'movieid', 'anime', 'animeid',
    'product', 'productid', 'book', 'bookid', 'isbn', 'asin', 'track',
    'trackid', 'song', 'songid', 'artist', 'artistid', 'business', 'businessid',
  },
  'rating': {
    'rating', 'ratings', 'score', 'feedback', 'stars', 'value', 'bookrating',
  },
  'timestamp': {'timestamp', 'time', 'date', 'datetime'},
}  # fmt: skip


def role_of(name: str) -> str | None:
  """Returns what a header name stands for, or None."""
  plain = re.sub(r'[^a-z]', '', name.lower())
  return next((role for role, all in _NAMES.items() if plain in all), None)


def check_roles(columns: Mapping[str, str | int]) -> None:
  """Raises DataError at what is no role."""
  for role in columns:
    if role not in ROLES:
      raise DataError(f'columns: {role!r} is not one of {", ".join(ROLES)}')


def choose(
  names: Sequence[str],
  columns: Mapping[str, str | int],
  header: bool,
  where: str,
) -> dict[str, int]:
  """Returns role -> position, from `columns` first and the header second."""
  check_roles(columns)
  found: dict[str, int] = {}
  for role, column in columns.items():
    if isinstance(column, str):
      if column not in names or not header:
        have = f'there are: {listed(names)}' if header else 'no header'
        raise DataError(f'{where}: no {role} column {column!r}; {have}')
      column = names.index(column)
    if not 0 <= column < len(names):
      raise DataError(
        f'{where}: {role} column {column} is not in 0..{len(names) - 1}'
      )
    if column in found.values():
      other = next(name for name, place in found.items() if place == column)
      raise DataError(
        f'{where}: column {names[column]!r} cannot be both {other} and {role}; '
        'pass columns= with one for each'
      )
    found[role] = column
  if header:
    for position, name in enumerate(names):
      role = role_of(name)
      if role is None or role in columns or position in columns.values():
        continue
      if role in found:
        raise DataError(
          f'{where}: {names[found[role]]!r} and {name!r} could both be '
          f'the {role}; pass columns= with the right one'
        )
      found[role] = position
  elif not columns:
    if not 3 <= len(names) <= 4:
      raise DataError(
        f'{where}: has {len(names)} column(s), expected user, item, '
        'rating[, timestamp]; pass columns= to say which is which, or '
        "format='dense' if it is a matrix"
      )
    found = dict(zip(ROLES, range(len(names)), strict=False))
  for role in ROLES[:3]:
    if role not in found:
      clicks = ', or add one of ones, on the scale 0..1, to clicks'
      raise DataError(
        f'{where}: no {role} column among {listed(names)}; pass columns= with '
        f'its name or position{clicks if role == "rating" else ""}'
      )
  return found


def listed(names: Sequence[str], between: str = ', ') -> str:
  """Returns the names on one line of bounded length."""
  return ' '.join(between.join(map(str, names)).split())[:120]
