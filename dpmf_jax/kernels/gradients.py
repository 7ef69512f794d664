"""Residuals, squared errors and masked gradients over `Rows`.

Work and memory are proportional to the number of ratings. A residual is
e = offset + <p_u, q_i> - r for a rated pair, and is zero for padding.

Sums here are float32: what a private mechanism queries is in `lattice.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp

from dpmf_jax.data.rows import Data, Rows
from dpmf_jax.sharding import sum_over_slices
from dpmf_jax.types import Factors

# XLA's CPU backend copies the end of a longer gathered row float by float: on
# one thread 24 floats took 5.5 ns, 16 and 8 together 3.2 ns.
_BLOCK = 16


def take(array: jax.Array, index: jax.Array) -> jax.Array:
  """`array[index]` for an index that is known to be in bounds."""
  # Rows are validated when built, so no check of indices is paid for here.
  return array.at[index].get(
    mode='promise_in_bounds', wrap_negative_indices=False
  )


def pad_rank(factors: jax.Array) -> jax.Array:
  """`factors` with zero columns up to a multiple of 8: whole vectors."""
  return jnp.pad(factors, ((0, 0), (0, -factors.shape[1] % 8)))


def blocks(factors: jax.Array) -> list[jax.Array]:
  """`factors` [R, D] in blocks of 16 columns, and of 8 at the end if it fits.

  Zeros fill the last block.
  """
  padded = pad_rank(factors)
  ends = list(range(_BLOCK, padded.shape[1], _BLOCK))
  return jnp.split(padded, ends, axis=1)


def dots(q: list[jax.Array], p: list[jax.Array], **how: Any) -> jax.Array:
  """Products [S, L] of rows [S, L, D] and [S, D], both in blocks."""
  products = (
    jnp.einsum('sld,sd->sl', *pair, **how) for pair in zip(q, p, strict=True)
  )
  return functools.reduce(jnp.add, products)


def weighted_sums(e: jax.Array, q: list[jax.Array], **how: Any) -> jax.Array:
  """Sums [S, D] over slots of e [S, L] times rows [S, L, D] in blocks."""
  sums = [jnp.einsum('sl,sld->sd', e, block, **how) for block in q]
  return jnp.concatenate(sums, axis=1)


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
  chex.assert_axis_dimension(row_factors, 0, rows.num_rows)
  chex.assert_equal_shape([row_factors, column_factors], dims=1)
  rank = row_factors.shape[1]
  operands = [blocks(row_factors), blocks(column_factors), jnp.asarray(offset)]
  if column_scale is not None:
    operands.append(column_scale)
  if weight is not None:
    # It takes a place beside the rating, to be cut into chunks with it.
    pair = jnp.stack([rows.value, weight], axis=-1)
    rows = dataclasses.replace(rows, value=pair)

  def slice_sums(
    column, value, mask, row, row_factors, column_factors, offset, *scale
  ):
    factor = 1.0
    if weight is not None:
      value, factor = value[..., 0], value[..., 1]
    q = [take(block, column) for block in column_factors]  # [S, L, 16]
    p = [take(block, row) for block in row_factors]  # [S, 16]
    e = offset + dots(q, p) - value
    e = jnp.where(mask, e * factor, 0.0)
    if scale:
      e = e * take(scale[0], column)
    return weighted_sums(e, q)[:, :rank]

  return sum_over_slices(slice_sums, rows, *operands)


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
  """
  return Factors(
    user=row_gradient(
      data.by_user,
      factors.user,
      factors.item,
      offset=offset,
      column_scale=item_scale,
      weight=None if weights is None else weights.user,
    ),
    item=row_gradient(
      data.by_item,
      factors.item,
      factors.user,
      offset=offset,
      column_scale=user_scale,
      weight=None if weights is None else weights.item,
    ),
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
  """

  def slice_sums(column, value, mask, row, *model):
    e = _clipped_errors(column, value, row, *model)
    return jnp.where(mask, e * e, 0.0).sum(axis=-1)

  # Sums per row first, so that float32 never adds a small to a huge number.
  by_row = sum_over_slices(
    slice_sums,
    rows,
    *_model(row_factors, column_factors, offset, low, high),
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

  def slice_sums(column, value, mask, row, errors, *model):
    e = jnp.abs(_clipped_errors(column, value, row, *model))
    within = (e[..., None] <= errors[None, None]) & mask[..., None]  # [S, L, E]
    return within.sum(axis=1, dtype=jnp.int32)

  by_row = sum_over_slices(
    slice_sums,
    rows,
    errors,
    *_model(row_factors, column_factors, offset, low, high),
  )
  return by_row.sum(axis=0), rows.length.sum()


def _model(row_factors, column_factors, *numbers):
  """The operands that `_clipped_errors` takes after the ratings."""
  return (
    blocks(row_factors),
    blocks(column_factors),
    *(jnp.asarray(x, row_factors.dtype) for x in numbers),
  )


def _clipped_errors(
  column, value, row, row_factors, column_factors, offset, low, high
):
  """Errors [S, L] of predictions that are clipped to [low, high]."""
  q = [take(block, column) for block in column_factors]
  p = [take(block, row) for block in row_factors]
  return jnp.clip(offset + dots(q, p), low, high) - value
