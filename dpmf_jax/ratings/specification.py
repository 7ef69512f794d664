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
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.ratings.formats import (
  Column,
  check_once,
  read_column,
  read_user_table,
)
from dpmf_jax.ratings.ids import Where, places
from dpmf_jax.ratings.splits import uniforms
from dpmf_jax.ratings.table import DataError, Ratings

# Added to the seed, for other hashes than those of a split with it.
_GROUP, _PLACE = 2**40, 2**41


def with_epsilon(ratings: Ratings, epsilon: Any) -> Ratings:
  """`ratings` whose i-th rating is to have epsilon[i]; scalars are for all."""
  if np.ndim(epsilon) == 0:
    epsilon = np.full(len(ratings), epsilon)
  return dataclasses.replace(ratings, epsilon=epsilon, unique=True)


class Fractions(NamedTuple):
  """The published specification: three groups of ratings, at random.

  A part `conservative` (f_c) of the ratings has epsilon uniform in [lowest,
  middle), a part `moderate` (f_m) in [middle, highest), the rest `highest`:
  the paper's eps_c, eps_m and eps_l.
  """

  conservative: float = 0.54
  moderate: float = 0.37
  lowest: float = 0.1
  middle: float = 0.2
  highest: float = 1.0


# What they are, in words.
FRACTIONS = {
  'conservative': 'part with epsilon uniform between lowest and middle.',
  'moderate': 'part with epsilon uniform between middle and highest.',
  'lowest': 'smallest epsilon.',
  'middle': 'epsilon in between.',
  'highest': 'epsilon of all other ratings.',
}


def from_fractions(
  ratings: Ratings, *, seed: int, **fractions: float
) -> Ratings:
  """`ratings` with the published specification; `fractions` are `Fractions`.

  Privacy: what a rating draws is a hash of the public seed and of its own ids.
  It depends neither on other ratings nor on its value, and is defined for
  every (user, item), rated or not.
  """
  f = _checked_fractions(fractions)
  if not 0 <= seed < 2**64:
    raise DataError(f'seed={seed} is not in 0..2^64-1')
  group, place = (
    uniforms(ratings, (seed + offset) % 2**64) for offset in (_GROUP, _PLACE)
  )
  epsilon = np.where(
    group < f.conservative,
    f.lowest + place * (f.middle - f.lowest),
    np.where(
      group < f.conservative + f.moderate,
      f.middle + place * (f.highest - f.middle),
      f.highest,
    ),
  )
  return with_epsilon(ratings, epsilon)


def from_users(
  ratings: Ratings,
  epsilon: Mapping[Any, float],
  *,
  source: str | os.PathLike[str] | None = None,
) -> Ratings:
  """`ratings`, each with the epsilon of its user; `epsilon` is by original id.

  Ids are as in `ratings.user_ids`: integers where all of them are canonical.
  Errors speak of `source`, the file that it is from, if there is one.
  """
  present, index = np.unique(ratings.user, return_inverse=True)
  users = ratings.user_ids[present].tolist()
  missing = [user for user in users if user not in epsilon]
  if missing:
    raise DataError(
      f'{source or ratings.name}: {len(missing)} user(s) have no epsilon, the '
      f'first is {missing[0]!r}'
    )
  values = np.array([epsilon[user] for user in users])
  return with_epsilon(
    ratings,
    _checked(values, 'epsilon', lambda row: f'user {users[row]!r}')[index],
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
  user = places(ratings.user_ids, table.users[0])[table.users[1]]
  item = places(ratings.item_ids, table.items[0])[table.items[1]]
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


def from_user_table(
  ratings: Ratings, table: Column, path: str | os.PathLike[str]
) -> Ratings:
  """`ratings`, each with the epsilon of its user in what was read of `path`.

  It was read by `read_users`. Users without ratings are ignored.
  """
  ids, index = table.users
  place = places(ratings.user_ids, ids)[index]
  users = ratings.user_ids.tolist()
  known = zip(place.tolist(), table.value.tolist(), strict=True)
  own = {users[k]: v for k, v in known if k >= 0}
  return from_users(ratings, own, source=path)


class AskedEpsilons(NamedTuple):
  """The public distribution of epsilons, which no rating has a part in.

  From it come the threshold (`accounting.personal_threshold`) and what a
  certificate says of ratings' own epsilons (`summary`).
  """

  epsilon: np.ndarray  # [K]
  share: np.ndarray  # [K] of `whole`, adds up to 1
  whole: str


def asked_by_fractions(**fractions: float) -> AskedEpsilons:
  """The distribution that `from_fractions` draws from.

  A range of epsilons is given by its two ends and 999 points in between, those
  at the ends counting half: mean, least and largest are exact.
  """
  f = _checked_fractions(fractions)
  rest = max(1.0 - f.conservative - f.moderate, 0.0)
  groups = (
    (f.conservative, np.linspace(f.lowest, f.middle, 1001)),
    (f.moderate, np.linspace(f.middle, f.highest, 1001)),
    (rest, np.array([f.highest, f.highest])),
  )
  points, shares = [], []
  for part, values in groups:
    if part > 1e-12:  # what is left of 1 may be a rounding error
      share = np.full(len(values), part / (len(values) - 1))
      share[[0, -1]] /= 2
      points.append(values)
      shares.append(share)
  share = np.concatenate(shares)
  whole = 'all pairs of a user and an item, rated or not'
  return AskedEpsilons(np.concatenate(points), share / share.sum(), whole)


def asked_by_users(table: Column) -> AskedEpsilons:
  """The distribution over the users of a file, which `read_users` read.

  Every user in it counts once, with ratings or without.
  """
  value, count = np.unique(table.value, return_counts=True)
  share = count / count.sum()
  return AskedEpsilons(
    value.astype(np.float64), share, 'the users in the public file'
  )


def summary(asked: AskedEpsilons, bins: int = 10) -> dict[str, Any]:
  """Least, quartiles, largest and mean epsilon, and a histogram, for JSON.

  A quartile is the least epsilon that so many have at most. The histogram has
  equal bins from 0 to the largest; an epsilon on an edge is in the lower bin.
  """
  order = np.argsort(asked.epsilon, kind='stable')
  epsilon, share = asked.epsilon[order], asked.share[order]
  reached = np.cumsum(share)
  last = len(epsilon) - 1
  quartiles = [
    float(epsilon[min(np.searchsorted(reached, q - 1e-9), last)])
    for q in (0.25, 0.5, 0.75)
  ]
  edges = np.linspace(0.0, epsilon[-1], bins + 1)
  place = np.clip(np.searchsorted(edges, epsilon) - 1, 0, bins - 1)
  return {
    'of': asked.whole,
    'least': float(epsilon[0]),
    'quartiles': quartiles,
    'largest': float(epsilon[-1]),
    'mean': float(np.clip(share @ epsilon, epsilon[0], epsilon[-1])),
    'histogram': {
      'edges': edges.tolist(),
      'shares': np.bincount(place, share, minlength=bins).tolist(),
    },
  }


def _checked_fractions(fractions: Mapping[str, float]) -> Fractions:
  f = Fractions(**fractions)
  if not 0 <= f.conservative <= f.conservative + f.moderate <= 1:
    raise DataError(
      f'conservative={f.conservative} and moderate={f.moderate} must be '
      'fractions whose sum is at most 1'
    )
  if not 0 < f.lowest <= f.middle <= f.highest < math.inf:
    raise DataError(
      f'lowest={f.lowest}, middle={f.middle} and highest={f.highest} must be '
      'positive, finite and in this order'
    )
  return f


def read_users(path: str | os.PathLike[str]) -> Column:
  """The users and epsilons of a file of user,epsilon, each user once.

  A header is allowed. A user who is there twice is an error.
  """
  table = read_user_table(path, 'epsilon')
  _checked(table.value, 'epsilon', table.where)
  check_once(table)
  return table


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
