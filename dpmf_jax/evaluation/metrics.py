"""Accuracy of a release and of baselines, on ratings as they are.

Privacy: nothing here is private. A metric of private ratings is for the
curator's eyes; it is not covered by any certificate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.kernels.gradients import error_counts, squared_error
from dpmf_jax.ratings.table import Ratings, check_ratings
from dpmf_jax.rows import Rows, check_side, put_rows, rows
from dpmf_jax.serving.models import Model, indices
from dpmf_jax.types import Factors, Release


@jax.jit  # Every report of a run has one: many small operations.
def _rmse(release: Release, rows: Rows, low, high):
  check_side(rows, 'user')
  total, count = squared_error(
    rows,
    release.factors.user,
    release.factors.item,
    offset=release.offset,
    low=low,
    high=high,
  )
  return jnp.sqrt(total / jnp.maximum(count, 1))


def release_rmse(
  release: Release, rows: Rows, scale: tuple[float, float] | None = None
) -> jax.Array:
  """Root mean squared error [] on user-major rows; it jits and vmaps.

  Args:
    release: both sides' factors and the offset.
    rows: `training_data(ratings).by_user`.
    scale: predictions are clipped to this; None leaves them as they are.
  """
  low, high = (-np.inf, np.inf) if scale is None else scale
  return _rmse(release, rows, low, high)


def rmse(
  model: Model | Release | Any,
  ratings: Ratings | Rows,
  scale: tuple[float, float] | None = None,
) -> float:
  """Root mean squared error of a model on ratings.

  Args:
    model: a serving `Model`, whose users and items are found by their ids; a
      `Release` with both sides, as of `System.model`; or what has such a
      `model`, as a run.
    ratings: with the id lists that a release was trained with, or its
      `training_data(ratings).by_user`.
    scale: predictions are clipped to this; that of the model or of the ratings
      by default.
  """
  _check_rated(ratings)
  model = getattr(model, 'model', model)
  if isinstance(model, Model):
    scale = scale or model.scale
    if isinstance(ratings, Ratings):
      ratings = _with_ids_of(model, ratings)
    model = Release(
      Factors(model.user_factors, model.item_factors), model.offset
    )
  if not isinstance(model, Release):
    raise ValueError(
      f'model of type {type(model).__name__} must be a Model, a Release, or '
      'have one as its `model`'
    )
  scale = scale or getattr(ratings, 'scale', None)
  if isinstance(ratings, Ratings):
    index = ratings.user, ratings.item
    sizes = ratings.num_users, ratings.num_items
    ratings = put_rows(rows(*index, ratings.value, *sizes, side='user'))
  _check_sides(model, ratings)
  return float(release_rmse(model, ratings, scale))


def _check_rated(ratings: Any) -> None:
  if isinstance(ratings, Ratings) and ratings.clicks:
    raise ValueError(
      f'{ratings.name} has clicks, and no ratings to be wrong about: use '
      'ranking_metrics'
    )


def _with_ids_of(model: Model, ratings: Ratings) -> Ratings:
  """The same ratings, with the id lists of the model."""
  found = {}
  for role in ('user', 'item'):
    index, ids = getattr(ratings, role), getattr(ratings, f'{role}_ids')
    known = getattr(model, f'{role}_ids')
    used, place = np.unique(index, return_inverse=True)
    found[role] = indices(role, known, ids[used])[place]
    found[f'{role}_ids'] = known
  return dataclasses.replace(ratings, **found, most_users=None, unique=True)


def _check_sides(release: Release, rows: Any) -> None:
  """Raises ValueError where rows cannot be those of the release."""
  if not isinstance(rows, Rows):
    raise ValueError(
      f'ratings of type {type(rows).__name__} must be Ratings, or '
      'training_data(ratings).by_user'
    )
  user, item = release.factors
  if user is None or item is None:
    raise ValueError(
      f'the model has no {"item" if item is None else "user"} factors, which '
      'are not released: the curator has both in system.model(state, data), '
      'others fold users in by their own ratings, fold_in(model, ratings)'
    )
  check_side(rows, 'user')
  users = [rows.num_rows]
  if rows.homes:  # and rows of zeros that tables have between programs
    users.append(rows.own_users * rows.mesh.size)
  if len(user) not in users or rows.num_columns != len(item):
    raise ValueError(
      f'ratings of {rows.num_rows} users for {rows.num_columns} items do not '
      f'fit a model of {len(user)} users and {len(item)} items: give Ratings '
      'with the id lists of the training ratings, or their '
      'training_data(ratings).by_user'
    )


@jax.jit  # As above.
def _error_counts(rows: Rows, release: Release, errors, low, high):
  check_side(rows, 'user')
  return error_counts(
    rows,
    release.factors.user,
    release.factors.item,
    errors,
    offset=release.offset,
    low=low,
    high=high,
  )


def error_cdf(
  rows: Rows,
  release: Release,
  errors: Sequence[float] | np.ndarray,
  scale: tuple[float, float] | None = None,
) -> np.ndarray:
  """Shares [E] of ratings whose |prediction - rating| is at most each error.

  Args:
    rows: `training_data(ratings).by_user`.
    release: both sides' factors and the offset.
    errors: [E], such as `error_grid(scale)`.
    scale: predictions are clipped to this; None leaves them as they are.

  Reference: Zhang et al. (2019), section 6.1, the CDF of prediction errors.
  """
  low, high = (-np.inf, np.inf) if scale is None else scale
  points = jnp.asarray(errors, jnp.float32)
  within, count = _error_counts(rows, release, points, low, high)
  return np.asarray(within, np.float64) / max(int(count), 1)


def error_grid(scale: tuple[float, float]) -> np.ndarray:
  """Errors from 0 to the width of the scale, in steps of 0.25.

  On a scale wider than 25 they are a hundredth of its width.
  """
  width = scale[1] - scale[0]
  step = 0.25 if width <= 25 else width / 100
  inner = step * np.arange(np.ceil(width / step - 1e-6))
  return np.append(inner, width)


def bias_model(
  train: Ratings, *, ridge: float = 5.0, sweeps: int = 10
) -> tuple[float, np.ndarray, np.ndarray]:
  """Mean, user biases [U] and item biases [I] by alternating ridge fits."""
  mean = float(np.mean(train.value, dtype=np.float64))
  centred = train.value.astype(np.float64) - mean
  sides = ((train.user, train.num_users), (train.item, train.num_items))
  counts = [np.bincount(index, minlength=size) for index, size in sides]
  biases = [np.zeros(size) for _, size in sides]
  for _ in range(sweeps):
    for side in (1, 0):
      index, size = sides[side]
      rest = centred - biases[1 - side][sides[1 - side][0]]
      total = np.bincount(index, rest, minlength=size)
      biases[side] = total / (counts[side] + ridge)
  return mean, biases[0], biases[1]


def baselines(train: Ratings, test: Ratings) -> dict[str, float]:
  """RMSE on `test` of four predictors fitted to `train`, without privacy.

  Users or items without training ratings get the global mean.
  """
  for role, ratings in (('train', train), ('test', test)):
    check_ratings(ratings, role)
    _check_rated(ratings)
  mean = float(np.mean(train.value, dtype=np.float64))

  def side_mean(index, size, at):
    counts = np.bincount(index, minlength=size)
    total = np.bincount(index, train.value, minlength=size)
    means = np.where(counts > 0, total / np.maximum(counts, 1), mean)
    return means[at]

  bias_mean, user_bias, item_bias = bias_model(train)
  predictions = {
    'global_mean': np.full(len(test), mean),
    'user_mean': side_mean(train.user, train.num_users, test.user),
    'item_mean': side_mean(train.item, train.num_items, test.item),
    'bias': np.clip(
      bias_mean + user_bias[test.user] + item_bias[test.item], *train.scale
    ),
  }
  return {
    name: float(np.sqrt(np.mean((prediction - test.value) ** 2)))
    for name, prediction in predictions.items()
  }
