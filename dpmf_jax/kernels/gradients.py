"""Residuals, squared errors and masked gradients over `Rows`.

Work and memory are proportional to the number of ratings. A residual is
e = offset + <p_u, q_i> - r for a rated pair, and is zero for padding.

Sums here are float32: what a private mechanism queries is in `lattice.py`.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp

from dpmf_jax.kernels.slices import Chunk, pad_rank, sum_over_slices
from dpmf_jax.rows import Data, Rows, check_side
from dpmf_jax.types import Factors


def row_gradient(
  rows: Rows,
  row_factors: jax.Array,
  column_factors: jax.Array,
  *,
  offset: jax.Array | float = 0.0,
  column_scale: jax.Array | None = None,
  weight: jax.Array | None = None,
) -> jax.Array:
  """The gradient [num_rows, D] of half the squared error in `row_factors`.

  That is, for each row, the sum over its ratings of e * column_scale * q,
  with q the factors of the rating's column.

  Args:
    rows: the ratings in the orientation of `row_factors`.
    row_factors: [num_rows, D].
    column_factors: [num_columns, D].
    offset: a constant added to every prediction.
    column_scale: [num_columns] factor that shrinks q in the gradient but not
      in the prediction (norm clipping), or None.
    weight: [C, S, L] of ratings, as `rows.value`, or None.

  Privacy: none is promised; see `lattice.row_gradient`.
  """
  chex.assert_rank([row_factors, column_factors], 2)
  chex.assert_equal_shape([row_factors, column_factors], dims=1)
  rank = row_factors.shape[1]
  if weight is not None:
    # It takes a place beside the rating, to be cut into chunks with it.
    pair = jnp.stack([rows.value, weight], axis=-1)
    rows = dataclasses.replace(rows, value=pair)

  def slice_sums(chunk: Chunk, offset):
    value, factor = chunk.value, 1.0
    if weight is not None:
      value, factor = value[..., 0], value[..., 1]
    q, scale = chunk.column  # [S, L, D], [S, L]
    e = offset + jnp.einsum('sld,sd->sl', q, chunk.row) - value
    e = jnp.where(chunk.mask, e * factor, 0.0)
    if scale is not None:
      e = e * scale
    return jnp.einsum('sl,sld->sd', e, q)[:, :rank]

  return sum_over_slices(
    slice_sums,
    rows,
    (pad_rank(column_factors), column_scale),
    pad_rank(row_factors),
    jnp.asarray(offset),
  )


def gradients(
  data: Data,
  factors: Factors,
  *,
  offset: jax.Array | float = 0.0,
  user_scale: jax.Array | None = None,
  item_scale: jax.Array | None = None,
  weights: Factors | None = None,
) -> Factors:
  """Gradients of half the squared error on both sides, at the same factors.

  `user_scale` [U] and `item_scale` [I] shrink the *other* side's factors
  where they enter a gradient, and `weights` are of ratings in either
  orientation (see `row_gradient`).

  Privacy: none is promised: what a private mechanism may query is
  `noisy_gradients`.

  >>> matrix = jnp.array([[5.0, jnp.nan], [jnp.nan, 3.0]])
  >>> factors = Factors(user=jnp.ones((2, 1)), item=jnp.ones((2, 1)))
  >>> print(gradients(dense_data(matrix), factors, offset=3.0).item.ravel())
  [-1.  1.]
  """
  check_side(data.by_user, 'user')
  check_side(data.by_item, 'item')
  (user, item), weights = factors, weights or Factors(None, None)
  of = lambda rows, own, other, scale, weight: row_gradient(
    rows, own, other, offset=offset, column_scale=scale, weight=weight
  )
  return Factors(
    user=of(data.by_user, user, item, item_scale, weights.user),
    item=of(data.by_item, item, user, user_scale, weights.item),
  )


def squared_error(
  rows: Rows,
  row_factors: jax.Array,
  column_factors: jax.Array,
  *,
  offset: jax.Array | float = 0.0,
  low: jax.Array | float = -jnp.inf,
  high: jax.Array | float = jnp.inf,
) -> tuple[jax.Array, jax.Array]:
  """The sum of squared errors and the number of ratings.

  Predictions are clipped to [low, high] first.

  Privacy: none; for the eyes of who holds the ratings.

  >>> data = dense_data(jnp.array([[5.0, jnp.nan], [jnp.nan, 3.0]]))
  >>> total, count = squared_error(data.by_user, jnp.ones((2, 1)),
  ...                              jnp.ones((2, 1)), offset=3.0)
  >>> float(total), int(count)
  (2.0, 2)
  """

  def slice_sums(chunk: Chunk, *model):
    e = _clipped_errors(chunk, *model)
    return jnp.where(chunk.mask, e * e, 0.0).sum(axis=-1)

  # Sums per row first, so that float32 never adds a small to a huge number.
  by_row = sum_over_slices(
    slice_sums,
    rows,
    pad_rank(column_factors),
    pad_rank(row_factors),
    *_numbers(row_factors, offset, low, high),
  )
  return by_row.sum(), rows.length.sum()


def error_counts(
  rows: Rows,
  row_factors: jax.Array,
  column_factors: jax.Array,
  errors: jax.Array,
  *,
  offset: jax.Array | float = 0.0,
  low: jax.Array | float = -jnp.inf,
  high: jax.Array | float = jnp.inf,
) -> tuple[jax.Array, jax.Array]:
  """How many ratings [E] are within each of `errors` [E], and of how many.

  Predictions are clipped to [low, high] first; one that is NaN is not within
  any error.
  """
  chex.assert_rank(errors, 1)

  def slice_sums(chunk: Chunk, errors, *model):
    e = jnp.abs(_clipped_errors(chunk, *model))[..., None]
    within = (e <= errors[None, None]) & chunk.mask[..., None]  # [S, L, E]
    return within.sum(axis=1, dtype=jnp.int32)

  by_row = sum_over_slices(
    slice_sums,
    rows,
    pad_rank(column_factors),
    pad_rank(row_factors),
    errors,
    *_numbers(row_factors, offset, low, high),
  )
  return by_row.sum(axis=0), rows.length.sum()


def _numbers(factors, *numbers):
  return (jnp.asarray(x, factors.dtype) for x in numbers)


def _clipped_errors(chunk: Chunk, offset, low, high):
  """Errors [S, L] of predictions that are clipped to [low, high]."""
  dot = jnp.einsum('sld,sd->sl', chunk.column, chunk.row)
  return jnp.clip(offset + dot, low, high) - chunk.value
