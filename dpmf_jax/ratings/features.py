"""User features from a file: public facts that are not from the ratings."""

from __future__ import annotations

import os

import numpy as np

from dpmf_jax.ratings.formats import check_users_once, read_user_table
from dpmf_jax.ratings.ids import places
from dpmf_jax.ratings.table import DataError, Ratings


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
  value = np.asarray(table.value, np.float64)
  good = np.isfinite(value).all(axis=1)
  if not good.all():
    raise DataError(f'{table.where(int((~good).argmax()))}: is not finite')
  check_users_once(table)
  place = places(*table.users, ratings.user_ids)
  known = np.flatnonzero(place >= 0)
  missing = np.setdiff1d(np.arange(ratings.num_users), place[known])
  if len(missing):
    raise DataError(
      f'{path}: {len(missing)} user(s) have no line, the first is '
      f'{ratings.user_ids[missing[0]]}'
    )
  features = np.empty((ratings.num_users, value.shape[1]))
  features[place[known]] = value[known]
  largest = np.linalg.norm(value, axis=1).max() or 1.0
  constant = np.ones((ratings.num_users, 1))
  return np.hstack([constant, features / largest]) * 0.5**0.5
