"""Why an item is in a user's list: what each of their own items adds to it.

A user's row is a prior and a sum over their own items, both where it is a sum
(`types.Sum`) and where it is a ridge regression (`types.Fit`), whose solution
is linear in the ratings. So is every score, and it falls into parts: one for
each of the user's items, and what a user without any would get.

Privacy: parts are made of the user's own ratings, and are for that user alone.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from dpmf_jax.kernels.profiles import counts
from dpmf_jax.types import Fit, Sum

# How far the sum of all parts may be from the user's row: it is of float32 and
# of 18 bits, and a row that was not made this way is further off.
_CLOSE = 1e-2


def own_parts(
  chosen: np.ndarray,
  own: np.ndarray,
  value: np.ndarray,
  *,
  item: np.ndarray,
  offset: float,
  fit: Fit | Sum,
  row: np.ndarray,
) -> np.ndarray:
  """[K, N]: what each item in `own` adds to predictions of those in `chosen`.

  Args:
    chosen: [K] items that are recommended.
    own: [N] items of the user.
    value: [N] their `labels`.
    item: [I, D] factors.
    offset: of predictions.
    fit: how the user was fitted.
    row: [D] of the user, which is checked to be the sum of what `own` adds and
      of the prior.
  """
  mine = item[own].astype(np.float64)
  prior = np.asarray(fit.prior, np.float64)
  if isinstance(fit, Sum):
    weight = np.asarray(fit.weight, np.float64)[own]
    weight = weight[:, None] if weight.ndim == 1 else weight
    added = mine * value[:, None] * weight
  else:
    added = _regressed(mine, value - offset - mine @ prior, fit)
  total = prior + added.sum(axis=0)
  if np.abs(total - row).max() > _CLOSE * max(1e-6, np.abs(row).max()):
    raise ValueError(
      'why is not known of users of this model: their factors are not fitted '
      'to the items by their own ratings alone; fold users in, '
      'fold_in(model, ratings)'
    )
  return item[chosen].astype(np.float64) @ added.T


def labels(ratings: np.ndarray, fit: Fit | Sum) -> np.ndarray:
  """What a fit makes of ratings: what they count, in a sum."""
  if isinstance(fit, Sum):
    return np.asarray(counts(jnp.asarray(ratings), fit.counted))
  return ratings


def _regressed(mine: np.ndarray, label: np.ndarray, fit: Fit) -> np.ndarray:
  """[N, D] what each rating adds to the solution of the ridge regression."""
  inverse = 1 / np.sqrt(np.asarray(fit.ridge, np.float64))  # 0 holds a column
  scaled = mine * inverse[None]
  matrix = scaled.T @ scaled + np.eye(len(inverse))
  return np.linalg.solve(matrix, scaled.T * label[None]).T * inverse[None]
