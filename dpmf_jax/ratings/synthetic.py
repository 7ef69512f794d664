"""Planted low-rank ratings of any size, as uneven as MovieLens."""

from __future__ import annotations

import numpy as np

from dpmf_jax.ratings.checks import check_scale
from dpmf_jax.ratings.table import DataError, Ratings

# Parts of the scale's width, near what a bias model finds on MovieLens.
_MEAN, _USER_BIAS, _ITEM_BIAS, _TASTE = 0.62, 0.1, 0.12, 0.15
_ACTIVITY = 1.1  # log-normal spread of ratings per user
_DENSE = 0.25  # a user with more of the items is sampled another way
_ROUNDS = 8  # of draws before the race
_CHUNK = 1 << 20  # ratings at a time, to bound memory


def synthetic(
  *,
  num_users: int,
  num_items: int,
  num_ratings: int,
  rank: int = 8,
  noise: float = 0.5,
  popularity_exponent: float = 0.8,
  scale: tuple[float, float] = (1.0, 5.0),
  integer: bool = True,
  seed: int,
  name: str = 'synthetic',
) -> Ratings:
  """Returns ratings drawn from a planted model; the same seed, the same bits.

  A rating is mean + user bias + item bias + <user, item> + Gaussian noise,
  clipped to the scale and, if `integer`, rounded. How many a user rates is
  log-normal and at least one; which items, without repetition, follows
  popularity rank^-popularity_exponent. Ids are 1..num_users, 1..num_items,
  all of them listed, and say nothing about popularity. Sorted by user.

  Args:
    num_users: at least 1, at most `num_ratings`.
    num_items: at least 1.
    num_ratings: at most num_users * num_items.
    rank: of the planted interaction.
    noise: standard deviation, in rating points.
    popularity_exponent: 0 makes all items equally popular.
    scale: smallest and largest rating.
    integer: round to integers; the scale must then be integers.
    seed: for PCG64; the work is O(num_ratings).
    name: of the result.
  """
  low, high = check_scale(scale)
  _check(
    num_users, num_items, num_ratings, rank, noise, popularity_exponent, seed
  )
  if integer and not (low.is_integer() and high.is_integer()):
    raise DataError(f'scale={scale} must be integers, or pass integer=False')
  rng = np.random.Generator(np.random.PCG64(seed))
  counts = _activity(rng, num_users, num_items, num_ratings)
  popularity = np.arange(1.0, num_items + 1) ** -popularity_exponent
  popularity = rng.permutation(popularity / popularity.sum())
  width = high - low
  factor = np.sqrt(_TASTE * width) / rank**0.25
  user = np.repeat(np.arange(num_users, dtype=np.int32), counts)
  user_factor = factor * rng.standard_normal((num_users, rank))
  item_factor = factor * rng.standard_normal((num_items, rank))
  user_bias = _USER_BIAS * width * rng.standard_normal(num_users)
  item_bias = _ITEM_BIAS * width * rng.standard_normal(num_items)

  item = np.empty(num_ratings, np.int32)
  value = np.empty(num_ratings, np.float32)
  cumulative = np.cumsum(counts)
  begin = 0
  while begin < num_users:
    done = int(cumulative[begin - 1]) if begin else 0
    end = int(np.searchsorted(cumulative, done + _CHUNK, side='right'))
    end = max(end, begin + 1)  # a user of more than _CHUNK ratings
    here = slice(done, int(cumulative[end - 1]))
    item[here] = _items(rng, counts[begin:end], popularity)
    u, i = user[here], item[here]
    mean = low + _MEAN * width + user_bias[u] + item_bias[i]
    for d in range(rank):  # a sum over [N, rank] at once needs rank times more
      mean += user_factor[u, d] * item_factor[i, d]
    mean += noise * rng.standard_normal(len(u))
    value[here] = np.clip(np.rint(mean) if integer else mean, low, high)
    begin = end
  return Ratings(
    user=user,
    item=item,
    value=value,
    user_ids=np.arange(1, num_users + 1),
    item_ids=np.arange(1, num_items + 1),
    scale=(low, high),
    name=name,
  )


def _check(users, items, ratings, rank, noise, exponent, seed) -> None:
  for field, value in (
    ('num_users', users),
    ('num_items', items),
    ('rank', rank),
  ):
    if value < 1:
      raise DataError(f'{field}={value} is not at least 1')
  if not users <= ratings <= users * items:
    raise DataError(
      f'num_ratings={ratings} is not in {users}..{users * items}: every user '
      'has at least one rating and rates an item at most once'
    )
  if not (noise >= 0 and np.isfinite(noise)):
    raise DataError(f'noise={noise} is not a finite number >= 0')
  if not 0 <= exponent <= 10:
    raise DataError(f'popularity_exponent={exponent} is not in 0..10')
  if seed < 0:
    raise DataError(f'seed={seed} is negative')


def _activity(
  rng: np.random.Generator, num_users: int, num_items: int, num_ratings: int
) -> np.ndarray:
  """Returns [U] ratings per user in 1..num_items, adding up to num_ratings."""
  weight = np.exp(_ACTIVITY * rng.standard_normal(num_users))
  share = np.zeros(num_users)
  room = np.full(num_users, num_items - 1.0)  # one each is given already
  free = np.ones(num_users, bool)
  total = float(num_ratings - num_users)
  while True:  # ends: each round fixes at least one user at the cap
    left = total - room[~free].sum()
    if left <= 0 or not free.any():
      break
    share[free] = left * weight[free] / weight[free].sum()
    over = free & (share > room)
    if not over.any():
      break
    share[over] = room[over]
    free &= ~over
  counts = np.floor(np.minimum(share, room)).astype(np.int64)
  short = num_ratings - num_users - int(counts.sum())
  while short > 0:  # what rounding down lost, largest fraction first
    fraction = np.where(counts < room, share - counts, -np.inf)
    best = np.argsort(-fraction, kind='stable')[:short]
    best = best[counts[best] < room[best]]
    counts[best] += 1
    short -= len(best)
  return counts + 1


def _items(
  rng: np.random.Generator, counts: np.ndarray, popularity: np.ndarray
) -> np.ndarray:
  """Returns counts[u] distinct items for each user in turn, by popularity.

  This is drawing one item after the other without replacement. Most users
  get it from independent draws, repetitions left out. Those who want a large
  part of the items, or whose draws repeat too much, finish with a race over
  the items still left, which has the same distribution. Both are O(counts).
  """
  items = np.empty(int(counts.sum()), np.int32)
  kept = np.zeros(len(counts), np.int64)
  users = np.flatnonzero(counts <= _DENSE * len(popularity))
  for _ in range(_ROUNDS):
    if not len(users):
      break
    _draw(rng, users, counts, kept, items, popularity)
    users = users[kept[users] < counts[users]]
  users = np.flatnonzero(kept < counts)
  step = max(1, _CHUNK // len(popularity))
  for begin in range(0, len(users), step):
    _race(rng, users[begin : begin + step], counts, kept, items, popularity)
  return items


def _draw(rng, users, counts, kept, items, popularity) -> None:
  """Adds the new ones among some independent draws to `items` and `kept`."""
  start = np.cumsum(counts) - counts
  cumulative = np.cumsum(popularity)
  missing = counts[users] - kept[users]
  length = kept[users] + missing + missing // 2 + 4
  # The items a user has, then fresh draws: the first counts[u] distinct stay.
  owner = np.repeat(users, length)
  offset = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
  old = offset < kept[owner]
  draw = np.empty(len(owner), np.int64)
  draw[old] = items[(start[owner] + offset)[old]]
  point = rng.random(len(owner) - int(old.sum())) * cumulative[-1]
  draw[~old] = np.searchsorted(cumulative[:-1], point, side='right')
  new = _first_of_each(owner * len(popularity) + draw)
  seen = np.cumsum(new)
  rank = seen - 1 - np.repeat((seen - new)[offset == 0], length)
  good = new & (rank < counts[owner])
  items[(start[owner] + rank)[good]] = draw[good]
  kept += np.bincount(owner[good & ~old], minlength=len(counts))


def _race(rng, users, counts, kept, items, popularity) -> None:
  """Fills `items` for the users by exponential arrival times of all items."""
  start = np.cumsum(counts) - counts
  column = np.arange(len(popularity))
  race = rng.standard_exponential((len(users), len(popularity))) / popularity
  row, offset = np.nonzero(column < kept[users, None])
  race[row, items[start[users][row] + offset]] = -1  # these are in already
  order = np.argsort(race, axis=1)
  wins = column < counts[users, None]
  items[(start[users, None] + column)[wins]] = order[wins]


def _first_of_each(keys: np.ndarray) -> np.ndarray:
  """Returns the mask of the entries whose key has not occurred before."""
  order = np.argsort(keys, kind='stable')
  sorted_keys = keys[order]
  first = np.empty(len(keys), bool)
  first[order[0]] = True
  first[order[1:]] = sorted_keys[1:] != sorted_keys[:-1]
  return first
