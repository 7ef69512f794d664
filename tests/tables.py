"""Ratings from tables, for tests of what each cell moves."""

import dataclasses

import numpy as np

from dpmf_jax.ratings.table import Ratings, from_arrays


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
