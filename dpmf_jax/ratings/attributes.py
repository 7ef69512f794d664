"""What is known of users and items besides ratings: genres, age, occupation.

Reference: the README files of MovieLens-100K (u.user, u.item, u.genre) and 1M
(users.dat, movies.dat).
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from dpmf_jax import files
from dpmf_jax.ratings import tokens
from dpmf_jax.ratings.formats import Column, check_once, read_user_table
from dpmf_jax.ratings.ids import DataError, Where, places
from dpmf_jax.ratings.table import Ratings

StrPath = str | os.PathLike[str]

# A user's features may be so many times as large as the usual.
_MOST_UNUSUAL = 1e6
# Of MovieLens, in the order of the flags in u.item.
GENRES = (
  'unknown', 'Action', 'Adventure', 'Animation', "Children's", 'Comedy',
  'Crime', 'Documentary', 'Drama', 'Fantasy', 'Film-Noir', 'Horror', 'Musical',
  'Mystery', 'Romance', 'Sci-Fi', 'Thriller', 'War', 'Western',
)  # fmt: skip
# The lowest ages of the groups of MovieLens-1M; the first is 'under 18'.
AGES = (1, 18, 25, 35, 45, 50, 56)
GENDERS = ('F', 'M')
# Of MovieLens-100K by name; 1M has as many, by number, and not the same.
OCCUPATIONS = (
  'administrator', 'artist', 'doctor', 'educator', 'engineer', 'entertainment',
  'executive', 'healthcare', 'homemaker', 'lawyer', 'librarian', 'marketing',
  'none', 'other', 'programmer', 'retired', 'salesman', 'scientist', 'student',
  'technician', 'writer',
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Attributes:
  """Features of users and of items, in the order of a `Ratings`.

  Privacy: public facts, those of users too: a system that learns a weight for
  each feature tells which of them a client has. What must stay secret does not
  belong here.

  Attributes:
    user: [U, F] float32.
    item: [I, G] float32.
    user_names: F names.
    item_names: G names.
  """

  user: np.ndarray
  item: np.ndarray
  user_names: tuple[str, ...]
  item_names: tuple[str, ...]

  def __post_init__(self):
    for side in ('user', 'item'):
      table = np.array(getattr(self, side), np.float32)
      names = tuple(getattr(self, f'{side}_names'))
      if table.ndim != 2 or table.shape[1] != len(names):
        raise DataError(
          f'{side} features have shape {table.shape}, with {len(names)} names'
        )
      if not np.isfinite(table).all():
        raise DataError(f'{side} features are not all finite')
      table.flags.writeable = False
      object.__setattr__(self, side, table)
      object.__setattr__(self, f'{side}_names', names)

  def __repr__(self) -> str:
    """With a digest: runs are told apart by how their settings are written."""
    sides = (self.user, self.item)
    parts = (part for s in sides for part in (repr(s.shape).encode(), s))
    return (
      f'Attributes({len(self.user)} users by {len(self.user_names)}, '
      f'{len(self.item)} items by {len(self.item_names)}, '
      f'sha256 {files.sha256(*parts)[:16]})'
    )


def movielens(ratings: Ratings, folder: StrPath) -> Attributes:
  """The attributes in a MovieLens folder, of the users and items of `ratings`.

  Items have genres; users an age group, a gender and an occupation, one of
  each. Every row is scaled to norm 1 (or is 0), so that no user or item
  weighs more because more is known of it.
  """
  folder = pathlib.Path(folder)
  if (folder / 'u.user').is_file():
    users = _users(folder / 'u.user', '|', 'ago', OCCUPATIONS)
    occupations = OCCUPATIONS
    items = _items_100k(folder / 'u.item')
  elif (folder / 'users.dat').is_file():
    numbers = [str(k) for k in range(len(OCCUPATIONS))]
    users = _users(folder / 'users.dat', '::', 'gao', numbers)
    occupations = tuple(f'occupation {k}' for k in numbers)
    items = _items_1m(folder / 'movies.dat')
  else:
    raise DataError(
      f'{folder}: has neither u.user nor users.dat, so nothing is known of '
      'users; pass a folder of MovieLens-100K or 1M'
    )
  names = (
    *(f'age {age}+' for age in AGES),
    *(f'gender {gender}' for gender in GENDERS),
    *occupations,
  )
  return Attributes(
    user=_table(ratings.user_ids, users, len(names), folder, 'user'),
    item=_table(ratings.item_ids, items, len(GENRES), folder, 'item'),
    user_names=names,
    item_names=GENRES,
  )


def read_user_features(
  ratings: Ratings, path: str | os.PathLike[str]
) -> np.ndarray:
  """[U, 1 + D] features of norm <= 1 for the users of `ratings`.

  The first is a constant, with which items have means; the others are those
  of the file, divided by the largest norm of any of its lines. Half of the
  squared norm goes to either.

  Args:
    ratings: whose users need a line each.
    path: a text file of user,number,number,..., with or without a header that
      names the user. Lines of other users count for the largest norm only.

  Privacy: the file must be public, and known without looking at the ratings.
  """
  table = read_user_table(path)
  features = _in_order(table, ratings.user_ids, path, 'user')
  largest = _largest_norm(np.asarray(table.value, np.float64), table.where)
  constant = np.ones((ratings.num_users, 1))
  return np.hstack([constant, features / largest]) * 0.5**0.5


def read_item_features(
  ratings: Ratings, path: str | os.PathLike[str]
) -> np.ndarray:
  """[I, D] numbers of a file of item,number,number,... for all items.

  With or without a header that names the item. Lines of other items are left
  out.

  Privacy: the file must be public, and known without looking at the ratings.
  """
  return _in_order(read_user_table(path), ratings.item_ids, path, 'item')


def _in_order(
  table: Column, ids: np.ndarray, path: StrPath, role: str
) -> np.ndarray:
  """The numbers [N, D] of a table, in the order of `ids`, each there once."""
  value = np.asarray(table.value, np.float64)
  good = np.isfinite(value).all(axis=1)
  if not good.all():
    raise DataError(f'{table.where(int((~good).argmax()))}: is not finite')
  check_once(table, role)
  names, index = table.users
  place = places(ids, names)[index]
  known = np.flatnonzero(place >= 0)
  missing = np.setdiff1d(np.arange(len(ids)), place[known])
  if len(missing):
    raise DataError(
      f'{path}: {len(missing)} {role}(s) have no line, the first is '
      f'{ids[missing[0]]}'
    )
  features = np.empty((len(ids), value.shape[1]))
  features[place[known]] = value[known]
  return features


def _largest_norm(value: np.ndarray, where: Where) -> float:
  """Of rows [N, D]; DataError where next to nothing would be left of most."""
  # Squares of what is large or small are not finite, or zero.
  peak = np.abs(value).max(axis=1, initial=0.0)
  some = np.where(peak > 0, peak, 1.0)[:, None]
  norms = peak * np.linalg.norm(value / some, axis=1)
  if not norms.any():
    return 1.0
  usual = np.median(norms[norms > 0])
  if norms.max() > _MOST_UNUSUAL * usual:
    raise DataError(
      f'{where(int(norms.argmax()))}: these features have norm '
      f'{norms.max():.3g}, where most have {usual:.3g}; all are divided by the '
      'largest, so that nothing would be left of the others: correct it'
    )
  with np.errstate(over='ignore'):
    plain = np.linalg.norm(value, axis=1).max()
  return float(plain if 0 < plain < np.inf else norms.max())


def _table(ids, known, width: int, folder, role: str) -> np.ndarray:
  """[len(ids), width]: rows of norm 1 with equal values where known says."""
  table = np.zeros((len(ids), width), np.float32)
  for row, key in enumerate(ids):
    places = known.get(str(key))
    if places is None:
      raise DataError(f'{folder}: nothing is known of {role} {key}')
    if places:
      table[row, places] = len(places) ** -0.5
  return table


def _users(
  path: pathlib.Path, delimiter: str, order: str, occupations: Sequence[str]
) -> dict[str, list[int]]:
  """Lines of id, zip and, in that `order`, age, gender and occupation."""
  users = {}
  for where, (key, *cells) in _lines(path, delimiter, 5):
    known = dict(zip(order, cells, strict=False))
    age, gender, work = (known[letter] for letter in 'ago')
    if not re.fullmatch('[1-9][0-9]{0,2}', age) or gender not in GENDERS:
      raise DataError(
        f'{where}: age {age[:9]!r} or gender {gender[:9]!r} is not known'
      )
    if work not in occupations:
      raise DataError(f'{where}: occupation {work!r} is not known')
    group = int(np.searchsorted(AGES, int(age), side='right')) - 1
    after = len(AGES) + len(GENDERS)
    users[key] = [
      group,
      len(AGES) + GENDERS.index(gender),
      after + occupations.index(work),
    ]
  return users


def _items_100k(path: pathlib.Path) -> dict[str, list[int]]:
  """Lines of id|title|...|19 flags."""
  items = {}
  for where, cells in _lines(path, '|', 5 + len(GENRES)):
    flags = cells[5:]
    if len(flags) != len(GENRES) or not set(flags) <= {'0', '1'}:
      raise DataError(f'{where}: the {len(GENRES)} genres are not 0 or 1')
    items[cells[0]] = [k for k, flag in enumerate(flags) if flag == '1']
  return items


def _items_1m(path: pathlib.Path) -> dict[str, list[int]]:
  """Lines of id::title::genre|genre."""
  items = {}
  for where, cells in _lines(path, '::', 3):
    genres = cells[-1].split('|')
    if unknown := set(genres) - set(GENRES):
      raise DataError(f'{where}: genre {min(unknown)!r} is not known')
    items[cells[0]] = [GENRES.index(genre) for genre in genres]
  return items


def _lines(
  path: pathlib.Path, delimiter: str, least: int
) -> list[tuple[str, Sequence[str]]]:
  """(where it is, its cells) of each line."""
  if not path.is_file():
    raise DataError(f'{path}: no such file of attributes; check the path')
  text = tokens.decode(path.read_bytes(), str(path)).decode('utf-8')
  rows = []
  # Not splitlines, which cuts at more than ends of lines.
  for number, line in enumerate(text.split('\n'), start=1):
    if not line.strip():
      continue
    where, cells = f'{path}, line {number}', line.strip('\r').split(delimiter)
    if len(cells) < least:
      raise DataError(
        f'{where}: has {len(cells)} column(s), expected at least {least} '
        f'separated by {delimiter!r}'
      )
    rows.append((where, cells))
  return rows
