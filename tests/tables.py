"""Ratings from tables, for tests of what each cell moves."""

import dataclasses

import numpy as np

from dpmf_jax.ratings.table import Ratings, from_arrays
from dpmf_jax.rows import device_mesh, training_data


def ratings_of(table):
  """Ratings on 1..5 from a table [U, I] with 0 for blanks, with fixed ids."""
  table = np.asarray(table, float)
  user, item = np.nonzero(table)
  made = from_arrays(user, item, table[user, item], scale=(1.0, 5.0))
  return dataclasses.replace(
    made,
    user=user,
    item=item,
    user_ids=np.arange(table.shape[0]),
    item_ids=np.arange(table.shape[1]),
  )


def table(rows, num_users, num_items, scale=(1.0, 5.0)):
  """Ratings from (user, item, rating) in that order, with fixed ids."""
  user, item, value = zip(*rows, strict=True)
  return Ratings(
    user=np.array(user),
    item=np.array(item),
    value=np.array(value, float),
    user_ids=np.arange(num_users),
    item_ids=np.arange(num_items),
    scale=scale,
  )


def crowd_of(num_items, most):
  """50 users: ordinary users of up to `most` items, and users who are extreme.

  User 0 rated everything highest, 1 everything by turns, 2 one item that
  nobody else rated, 3 a single popular one lowest, 4 two opposite ratings.
  """
  rng = np.random.default_rng(4)
  last = num_items - 1
  rows = [(0, i, 5.0) for i in range(last)]
  rows += [(1, i, 5.0 if i % 2 else 1.0) for i in range(last)]
  rows += [(2, last, 5.0), (3, 0, 1.0), (4, 0, 5.0), (4, 1, 1.0)]
  for user in range(5, 50):
    items = rng.choice(last, rng.integers(1, most), replace=False).tolist()
    rows += [(user, i, float(rng.integers(1, 6))) for i in sorted({0, *items})]
  return table(rows, 50, num_items)


def layouts(ratings):
  """The ratings on devices: users in other places, more chunks, a mesh."""
  order = np.random.default_rng(1).permutation(ratings.num_users)
  moved = dataclasses.replace(ratings, user=order[ratings.user])
  yield training_data(moved)
  yield training_data(ratings, least_chunks=5)
  yield training_data(ratings, mesh=device_mesh(2))
  yield training_data(moved, mesh=device_mesh(4))
