"""Ratings that are made up: scales and shapes that no file here has.

Users of `sparse` ratings have two or a few each, and are told apart by their
means more than items are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import Ratings


def sparse(
  *,
  num_users: int,
  num_items: int,
  per_user: float,
  scale: tuple[float, float],
  of_users: float,
  seed: int,
  name: str,
) -> Ratings:
  """Ratings in steps of 1 with at least two, on average `per_user`, of a user.

  Means of users have the standard deviation `of_users`, those of items 0.05 and
  ratings 0.15, all in widths of the scale. There is no taste besides.
  """
  rng = np.random.default_rng(seed)
  low, high = scale
  counts = 1 + rng.geometric(1 / (per_user - 1), num_users)
  popularity = np.arange(1.0, num_items + 1) ** -0.7
  user = np.repeat(np.arange(num_users), np.minimum(counts, num_items))
  item = rng.choice(num_items, len(user), p=popularity / popularity.sum())
  user, item = np.divmod(np.unique(user * num_items + item), num_items)
  mean = 0.7 + of_users * rng.standard_normal(num_users)[user]
  mean += 0.05 * rng.standard_normal(num_items)[item]
  value = low + (high - low) * (mean + 0.15 * rng.standard_normal(len(user)))
  return Ratings(
    user=user.astype(np.int32),
    item=item.astype(np.int32),
    value=np.clip(np.rint(value), low, high).astype(np.float32),
    user_ids=np.arange(1, num_users + 1),
    item_ids=np.arange(1, num_items + 1),
    scale=scale,
    name=name,
  )


def _half_stars() -> Ratings:
  """As uneven as MovieLens, in steps of a half from 0.5 to 5."""
  found = synthetic(
    num_users=2_000, num_items=1_500, num_ratings=120_000, scale=(1, 10),
    noise=1.6, seed=1, name='made-half-stars',
  )  # fmt: skip
  return Ratings(
    user=found.user,
    item=found.item,
    value=found.value / 2,
    user_ids=found.user_ids,
    item_ids=found.item_ids,
    scale=(0.5, 5.0),
    name=found.name,
  )


_MADE: dict[str, Callable[..., Ratings]] = {
  'made-books': functools.partial(
    sparse, num_users=30_000, num_items=20_000, per_user=4.0, scale=(1, 10),
    of_users=0.14, seed=1,
  ),
  'made-pairs': functools.partial(
    sparse, num_users=20_000, num_items=3_000, per_user=2.2, scale=(1, 5),
    of_users=0.12, seed=2,
  ),
  'made-wide': functools.partial(
    synthetic, num_users=3_000, num_items=400, num_ratings=200_000,
    scale=(-10, 10), integer=False, noise=4.0, seed=1,
  ),
  'made-dense': functools.partial(
    synthetic, num_users=1_000, num_items=150, num_ratings=100_000, noise=0.8,
    seed=1,
  ),
  # Strong taste, of which few ratings tell.
  'made-taste': functools.partial(
    synthetic, num_users=2_000, num_items=800, num_ratings=60_000, rank=3,
    noise=0.3, seed=11,
  ),
  # Few items; users have some ratings each, or a handful.
  'made-few': functools.partial(
    synthetic, num_users=5_000, num_items=50, num_ratings=50_000, noise=0.8,
    seed=2,
  ),
  'made-handful': functools.partial(
    synthetic, num_users=20_000, num_items=60, num_ratings=100_000, noise=0.8,
    seed=1,
  ),
}  # fmt: skip
NAMES = (*_MADE, 'made-half-stars')
# made-random-0, made-random-1, and so on; the first 17 have been looked at.
_RANDOM = 'made-random-'
_SCALES = (1, 5), (1, 10), (0.5, 5.0), (-10, 10)


def random(number: int) -> Ratings:
  """A set of random size, density and scale: with taste if even, or without."""
  rng = np.random.default_rng(20261119)
  return [_drawn(rng, seed) for seed in range(number + 1)][-1]()


def _drawn(rng: np.random.Generator, seed: int) -> Callable[[], Ratings]:
  users, items = (int(10 ** rng.uniform(*x)) for x in ((2.7, 4.5), (1.2, 3.6)))
  each = float(np.clip(10 ** rng.uniform(0.35, 2), 2.1, 0.4 * items))
  low, high = _SCALES[rng.integers(4)]
  users = min(users, int(4e5 / each))
  common: dict[str, Any] = {
    'num_users': users, 'num_items': items, 'scale': (low, high), 'seed': seed,
    'name': f'{_RANDOM}{seed}',
  }  # fmt: skip
  if seed % 2:
    level = float(rng.choice([0, 0.05, 0.1, 0.2]))
    return functools.partial(sparse, **common, per_user=each, of_users=level)
  rank, noise = int(rng.choice([1, 3, 8])), float(rng.choice([0.1, 0.2, 0.3]))
  return functools.partial(
    synthetic, **common, num_ratings=int(users * each), rank=rank,
    noise=noise * (high - low), integer=low == 1,
  )  # fmt: skip


def load(name: str, **where: object) -> Ratings:
  """Ratings by name: a made one, or one of those that `catalog.load` knows."""
  if name.startswith(_RANDOM):
    return random(int(name.removeprefix(_RANDOM)))
  if name == 'made-half-stars':
    return _half_stars()
  if name in _MADE:
    return _MADE[name](name=name)
  return catalog.load(name, **where)  # pyright: ignore[reportArgumentType]
