"""Which column is which: the names that ratings have in files and frames.

Without a rating there are clicks, or counts of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dpmf_jax.ratings.ids import DataError

# The first ones in the order of columns without names.
ROLES = ('user', 'item', 'rating', 'timestamp', 'count')
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
  'count': {
    'count', 'counts', 'plays', 'playcount', 'playcounts', 'listens',
    'listencount', 'clicks', 'clickcount', 'views', 'viewcount', 'purchases',
    'quantity', 'qty', 'frequency', 'interactions', 'weight',
  },
}  # fmt: skip


def role_of(name: str) -> str | None:
  """Returns what a header name stands for, or None."""
  plain = re.sub(r'[^a-z]', '', name.lower())
  return next((role for role, all in _NAMES.items() if plain in all), None)


def check_roles(columns: Mapping[str, str | int]) -> None:
  """Raises DataError at what is no role, and where two are of one kind."""
  for role in columns:
    if role not in ROLES:
      raise DataError(f'columns: {role!r} is not one of {", ".join(ROLES)}')
  if 'rating' in columns and 'count' in columns:
    raise DataError('columns: give the rating or the count, not both')


def choose(
  names: Sequence[str],
  columns: Mapping[str, str | int],
  header: bool,
  where: str,
) -> dict[str, int]:
  """Returns role -> position, from `columns` first and the header second.

  There is a user and an item; a rating, a count or, of clicks, neither.
  """
  check_roles(columns)
  found: dict[str, int] = {}
  for role, column in columns.items():
    place = _position(role, column, names, header, where)
    for other in (each for each in found if found[each] == place):
      raise DataError(
        f'{where}: column {names[place]!r} cannot be both {other} and {role}; '
        'pass columns= with one for each'
      )
    found[role] = place
  if header:
    _add_named(found, names, where)
  elif not columns:
    if not 2 <= len(names) <= 4:
      raise DataError(
        f'{where}: has {len(names)} column(s), expected user, item[, '
        'rating[, timestamp]]; pass columns= to say which is which, or '
        "format='dense' if it is a matrix"
      )
    found |= zip(ROLES, range(len(names)), strict=False)
  for role in ('user', 'item'):
    if role not in found:
      raise DataError(
        f'{where}: no {role} column among {listed(names)}; pass columns= with '
        'its name or position'
      )
  if not found.keys() & {'rating', 'count'}:
    # What else is there may be a rating by another name.
    said = 'user' in columns and 'item' in columns
    if len(names) > len(found) and not said:
      raise DataError(
        f'{where}: no rating or count column among {listed(names)}; pass '
        'columns= with its name or position, or with those of user and item '
        'if these are clicks'
      )
  return found


def _position(
  role: str, column: str | int, names: Sequence[str], header: bool, where: str
) -> int:
  if isinstance(column, str):
    if column not in names or not header:
      have = f'there are: {listed(names)}' if header else 'no header'
      raise DataError(f'{where}: no {role} column {column!r}; {have}')
    column = names.index(column)
  if not 0 <= column < len(names):
    raise DataError(
      f'{where}: {role} column {column} is not in 0..{len(names) - 1}'
    )
  return column


def _add_named(found: dict[str, int], names: Sequence[str], where: str) -> None:
  """Adds the roles that the names of other columns stand for."""
  given, taken = set(found), set(found.values())
  roles = {
    position: role
    for position, name in enumerate(names)
    if (role := role_of(name)) and role not in given and position not in taken
  }
  # Ratings say more than how often.
  if 'rating' in given or 'rating' in roles.values():
    roles = {place: role for place, role in roles.items() if role != 'count'}
  if 'count' in given:
    roles = {place: role for place, role in roles.items() if role != 'rating'}
  for position, role in roles.items():
    if role in found:
      raise DataError(
        f'{where}: {names[found[role]]!r} and {names[position]!r} could both '
        f'be the {role}; pass columns= with the right one'
      )
    found[role] = position


def listed(names: Sequence[str], between: str = ', ') -> str:
  """Returns the names on one line of bounded length."""
  return ' '.join(between.join(map(str, names)).split())[:120]
