"""Privacy specifications: the epsilon that each rating is to have.

They are public: a specification that depends on what was rated, or how, tells
about it. Attach one with `with_epsilon`, or with a function that draws or reads
it; the personalised systems read it.

Reference: Zhang et al. (2019), section 5.1; Jorgensen, Yu and Cormode (2015).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpmf_jax.data.formats import read_column, read_pairs
from dpmf_jax.data.ids import Where, places
from dpmf_jax.data.ratings import DataError, Ratings
from dpmf_jax.data.splits import uniforms

# Added to the seed, for other hashes than those of a split with it.
_GROUP, _PLACE = 2**40, 2**41


def with_epsilon(ratings: Ratings, epsilon: Any) -> Ratings:
  """`ratings` whose i-th rating is to have epsilon[i]; scalars are for all."""
  if np.ndim(epsilon) == 0:
    epsilon = np.full(len(ratings), epsilon)
  return dataclasses.replace(ratings, epsilon=epsilon)


def from_fractions(
  ratings: Ratings,
  *,
  conservative: float = 0.54,
  moderate: float = 0.37,
  lowest: float = 0.1,
  middle: float = 0.2,
  highest: float = 1.0,
  seed: int,
) -> Ratings:
  """`ratings` with the published specification: three groups, at random.

  A part `conservative` (f_c) of the ratings has epsilon uniform in [lowest,
  middle), a part `moderate` (f_m) in [middle, highest), the rest `highest`:
  the paper's eps_c, eps_m and eps_l.

  Privacy: what a rating draws is a hash of the public seed and of its own ids.
  It depends neither on other ratings nor on its value, and is defined for
  every (user, item), rated or not.
  """
  if not 0 <= conservative <= conservative + moderate <= 1:
    raise DataError(
      f'conservative={conservative} and moderate={moderate} must be fractions '
      'whose sum is at most 1'
    )
  if not 0 < lowest <= middle <= highest < math.inf:
    raise DataError(
      f'lowest={lowest}, middle={middle} and highest={highest} must be '
      'positive, finite and in this order'
    )
  if not 0 <= seed < 2**64:
    raise DataError(f'seed={seed} is not in 0..2^64-1')
  group, place = (
    uniforms(ratings, (seed + offset) % 2**64) for offset in (_GROUP, _PLACE)
  )
  epsilon = np.where(
    group < conservative,
    lowest + place * (middle - lowest),
    np.where(
      group < conservative + moderate,
      middle + place * (highest - middle),
      highest,
    ),
  )
  return with_epsilon(ratings, epsilon)


def from_users(ratings: Ratings, epsilon: Mapping[Any, float]) -> Ratings:
  """`ratings`, each with the epsilon of its user; `epsilon` is by original id.

  Ids are as in `ratings.user_ids`: integers where all of them are canonical.
  """
  present, index = np.unique(ratings.user, return_inverse=True)
  users = ratings.user_ids[present].tolist()
  missing = [user for user in users if user not in epsilon]
  if missing:
    raise DataError(
      f'{ratings.name}: {len(missing)} user(s) have no epsilon, the first is '
      f'{missing[0]!r}'
    )
  values = np.array([epsilon[user] for user in users])
  return with_epsilon(
    ratings,
    _checked(values, 'epsilon', lambda row: f'user {users[row]!r}')[index],
  )


def from_function(
  ratings: Ratings, epsilon: Callable[[Any, Any], float]
) -> Ratings:
  """`ratings` with epsilon(user id, item id), which never sees a value."""
  users = ratings.user_ids[ratings.user].tolist()
  items = ratings.item_ids[ratings.item].tolist()
  return with_epsilon(
    ratings, [epsilon(u, i) for u, i in zip(users, items, strict=True)]
  )


def from_column(
  ratings: Ratings, path: str | os.PathLike[str], column: str, **options: Any
) -> Ratings:
  """`ratings` with the epsilons in a column of the file they are from.

  Args:
    ratings: read from `path`, all or some of them.
    path: a text file of ratings with a header.
    column: the name of the column. An epsilon per user is the same number on
      all of the user's lines.
    **options: format, columns, delimiter and encoding, as for `formats.read`.

  A (user, item) that the file has more than once gets the last epsilon.
  """
  table = read_column(path, column, **options)
  value = _checked(table.value, column, table.where)
  user = places(*table.users, ratings.user_ids)
  item = places(*table.items, ratings.item_ids)
  known = np.flatnonzero((user >= 0) & (item >= 0))
  pair = user[known] * ratings.num_items + item[known]
  wanted = ratings.user.astype(np.int64) * ratings.num_items + ratings.item
  if not (found := np.isin(wanted, pair)).all():
    row = int((~found).argmax())
    raise DataError(
      f'{path}: has no line for user {ratings.user_ids[ratings.user[row]]} and '
      f'item {ratings.item_ids[ratings.item[row]]}; name the file that the '
      'ratings are from'
    )
  order = np.argsort(pair, kind='stable')
  last = np.searchsorted(pair[order], wanted, side='right') - 1
  return with_epsilon(ratings, value[known[order[last]]])


def from_user_file(ratings: Ratings, path: str | os.PathLike[str]) -> Ratings:
  """`ratings`, each with the epsilon of its user in a file of user,epsilon.

  A header is allowed; users without ratings are ignored. A user who is there
  twice is an error.
  """
  table = read_pairs(path, 'epsilon')
  value = _checked(table.value, 'epsilon', table.where)
  ids, index = table.users
  if len(ids) < len(index):
    again = np.ones(len(index), bool)
    again[np.unique(index, return_index=True)[1]] = False
    row = int(again.argmax())
    raise DataError(
      f'{table.where(row)}: user {ids[index[row]]} is there before; keep one '
      'line'
    )
  place = places(ids, index, ratings.user_ids)
  users = ratings.user_ids.tolist()
  known = zip(place.tolist(), value.tolist(), strict=True)
  return from_users(ratings, {users[k]: v for k, v in known if k >= 0})


def _checked(value: np.ndarray, name: str, where: Where) -> np.ndarray:
  """`value`, or an error that locates the first that is no epsilon."""
  if value.dtype.kind not in 'iuf':
    raise DataError(f'{name}: not all of them are numbers, got {value.dtype}')
  good = np.isfinite(value) & (value > 0)
  if not good.all():
    row = int((~good).argmax())
    raise DataError(
      f'{where(row)}: {name} {value[row]} is not positive and finite; correct '
      'it'
    )
  return value
