"""Folding users in who were never trained on.

A user's row is the ridge regression of their own ratings on the released item
factors (`types.Fit`), or a sum of these (`types.Sum`): for many users at a
time.

Privacy: what a user gets depends on the release and on their own ratings
alone; it costs the others nothing beyond the release.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.ids import factorize, places
from dpmf_jax.ratings.table import Ratings, with_public_ids
from dpmf_jax.rows import SLICES, SLOTS, Rows, chunk_grid, rows
from dpmf_jax.serving.models import Model, check_model, seen_matrix
from dpmf_jax.types import Factors, Fit, Release, Sum

_BLOCK = 256  # users solved for by a core at a time: [B, D, D] in memory
_FEW = 16  # chunks, up to which their number is a power of two


def user_factors(
  user: np.ndarray,
  item: np.ndarray,
  value: np.ndarray,
  num_users: int,
  *,
  item_factors: np.ndarray,
  offset: float,
  fit: Fit | Sum,
) -> np.ndarray:
  """[num_users, D] float32, many at a time; ratings are (user, item, value)."""
  _check_fit(item_factors, fit)
  items = jax.tree.map(
    lambda x: jnp.asarray(x, jnp.float32),
    Release(Factors(None, item_factors), np.float32(offset), fit),
  )
  order = np.argsort(user, kind='stable')
  user, item, value = user[order], item[order], value[order]
  # All blocks have one shape, and those of few users one of few shapes: little
  # is ever compiled. A block ends where its users or their slices fill it.
  size = min(_BLOCK, _power_of_two(num_users))
  counts = np.bincount(user, minlength=num_users)
  ends = np.r_[0, counts.cumsum()]  # of each user's ratings
  slices = np.r_[0, (-(-counts // SLOTS)).cumsum()]
  mean = -(-int(slices[-1]) * size // num_users)
  needed = max(2, -(-max(mean, int(np.diff(slices).max())) // SLICES))
  chunks = (_power_of_two if needed <= _FEW else chunk_grid)(needed)
  starts = [0]
  while starts[-1] < num_users:
    most = slices[starts[-1]] + chunks * SLICES
    full = int(np.searchsorted(slices, most, side='right')) - 1
    starts.append(min(starts[-1] + size, full))
  # A core has float64, in which sums are as exact and take less.
  wide = isinstance(fit, Fit) and jax.default_backend() == 'cpu'

  def found(start: int, stop: int) -> np.ndarray:
    part = slice(ends[start], ends[stop])
    block = rows(
      user[part] - start,
      item[part],
      value[part],
      size,
      len(item_factors),
      side='user',
      least_chunks=chunks,
    )
    with jax.enable_x64(wide):
      return np.asarray(_fitted(block, items))[: stop - start]

  blocks = [found(*starts[:2])]  # which compiles, once for all
  with ThreadPoolExecutor(os.cpu_count()) as pool:
    blocks += pool.map(found, starts[1:-1], starts[2:])
  return np.concatenate(blocks)


@jax.jit  # One program for all blocks of users.
def _fitted(rows: Rows, items: Release) -> Any:
  return fitted_users(rows, items).factors.user


def fold_in(
  model: Model,
  ratings: Ratings | Mapping[Any, Any] | Any,
  *,
  fit: Fit | Sum | None = None,
) -> Model:
  """The model with the users of `ratings` in place of its own.

  Each of them gets the row that fits their own ratings best, and what they
  rated is what they have seen. Ratings of items that the model does not know
  are left out, with a warning.

  Args:
    model: its item factors must be released.
    ratings: of users who need not be in the model, with its items' ids:
      {user: {item: rating}}, or what `ratings.given.ratings_of` takes, such as
      `Ratings`, a DataFrame or a path. {user: {}} is somebody of whom nothing
      is known, who gets what the fit starts from: means, or popularity.
      Clicks, such as {user: [item, item]}, where it makes rankings.
    fit: priors and ridges, or weights; the model's by default.

  Privacy: see the module. The result is for the eyes of these users.
  """
  fit = fit_of_new_users(model, fit)
  if isinstance(ratings, Mapping) and any(
    isinstance(own, Sized) and not len(own) for own in ratings.values()
  ):
    return _with_newcomers(model, ratings, fit)
  ratings = _as_trained(model, ratings)
  low, high = map(np.float32, model.scale)  # as ratings are
  outside = (ratings.value < low) | (ratings.value > high)
  if outside.any():
    raise ValueError(
      f'{ratings.name}: rating {ratings.value[outside][0]:g} is outside the '
      f'scale {low:g}..{high:g} of the model'
    )
  item = places(model.item_ids, ratings.item_ids)[ratings.item]
  known = item >= 0
  strange = ratings.item_ids[ratings.item[~known]].tolist()
  if not known.any():
    raise ValueError(
      f'{ratings.name}: the model knows none of the items, such as '
      f'{strange[0]!r}; its own are such as {model.item_ids[0].item()!r}'
    )
  if strange:
    lost = ratings.num_users - len(np.unique(ratings.user[known]))
    warnings.warn(
      f'{ratings.name}: {len(strange)} of {len(ratings)} ratings are left '
      f'out, of {len(set(strange))} item(s) that the model does not know, such '
      f'as {strange[0]!r}; {lost} user(s) have no others',
      stacklevel=2,
    )
  user, item, value = ratings.user[known], item[known], ratings.value[known]
  size = (ratings.num_users, len(model.item_ids))
  with ThreadPoolExecutor() as pool:
    seen = pool.submit(seen_matrix, user, item, size, value)
    factors = user_factors(
      user,
      item,
      value,
      ratings.num_users,
      item_factors=model.item_factors,
      offset=model.offset,
      fit=fit,
    )
  return model._replace(
    user_factors=factors,
    user_ids=ratings.user_ids,
    seen=seen.result(),
    covered=True,
    fit=fit,
  )


def fit_of_new_users(model: Model, fit: Fit | Sum | None = None) -> Fit | Sum:
  """`fit`, or the model's own; ValueError where new users cannot be fitted."""
  check_model(model)
  if not model.items_released:
    raise ValueError(
      'new users cannot be folded into this model: its system releases no item '
      'factors, and those in private/ are not covered by any guarantee'
    )
  fit = fit or model.fit
  if fit is None:
    raise ValueError(
      'new users cannot be folded into this model: how its users are fitted '
      'to the items is not known (neither user factors nor how to fit them are '
      'released)'
    )
  _check_fit(model.item_factors, fit)
  return fit


def _check_fit(item_factors: np.ndarray, fit: Fit | Sum) -> None:
  """Returns nothing; ValueError where nobody can be fitted to the items."""
  length, width = item_factors.shape
  shapes = {
    'prior': [(width,)],
    'ridge': [(width,)],
    'weight': [(length,), (length, width)],
  }
  for name, given in fit._asdict().items():
    if np.shape(given) not in shapes.get(name, [np.shape(given)]):
      raise ValueError(
        f'{name} of the fit has shape {np.shape(given)}, items have '
        f'{width} columns'
      )
    # A ridge may be infinite.
    if name in ('prior', 'weight') and not np.isfinite(given).all():
      raise ValueError(f'{name} of the fit has numbers that are not finite')
  if not np.isfinite(item_factors).all():
    raise ValueError('the items have factors that are not finite')
  if isinstance(fit, Fit) and not (np.asarray(fit.ridge) > 0).all():
    raise ValueError(f'ridge={fit.ridge} must be positive')


def _with_newcomers(
  model: Model, given: Mapping[Any, Any], fit: Fit | Sum
) -> Model:
  """The model with the users of `given`, some of whom have no ratings."""
  users, _ = factorize(np.array([*given], object), 'user', 'user {}'.format)
  size = (len(users), len(model.item_ids))
  found = model._replace(
    user_factors=np.tile(np.float32(fit.prior), (len(users), 1)),
    user_ids=users,
    seen=seen_matrix([], [], size, np.zeros(0, np.float32)),
    covered=True,
    fit=fit,
  )
  rated = {user: own for user, own in given.items() if own}
  if not rated:
    return found
  ratings = _as_trained(model, rated)
  return fold_in(model, with_public_ids(ratings, users=users), fit=fit)


def read_with(model: Model) -> dict[str, Any]:
  """What a file of new users is read with: a scale, or a most of counts."""
  if model.clicks:
    return {'max_count': int(model.scale[1])}
  return {'scale': model.scale}


def _as_trained(model: Model, given: Any) -> Ratings:
  """What new users give, as ratings or clicks that the model is for.

  What a model of clicks is given are counts. A ranking that was trained on
  ratings takes a click for the highest one, which counts 1.
  """
  if not isinstance(given, Ratings):
    given = ratings_of(given, **read_with(model))
  if model.clicks and not given.clicks:
    raise ValueError(
      f'{given.name} has ratings, and the model is of clicks: give (user, '
      'item) pairs, or counts'
    )
  if model.clicks or not given.clicks:
    return given
  if not isinstance(model.fit, Sum):
    raise ValueError(
      f'{given.name} has clicks, and users of this model are fitted to their '
      f'ratings: give ratings in {model.scale[0]:g}..{model.scale[1]:g}'
    )
  highest = np.full(len(given), model.scale[1])
  return dataclasses.replace(
    given, value=highest, scale=model.scale, clicks=False, unique=True
  )


def _power_of_two(least: int) -> int:
  return 1 << max(least - 1, 0).bit_length()
