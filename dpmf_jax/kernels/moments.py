"""Sums of users' rows and of products of their entries, exact as integers.

For few items: ratings are a table [U, I], and the work of second moments is U
times I^2, whoever rated what. Each number that a user adds to a sum is cut to a
whole multiple of a spacing, towards zero: int32 sums are exact, in whatever
order, and one user more or less moves them by that user's own integers and by
nothing else. All that is summed over a user's ratings is of integers, too, so
that a user's terms are the same bits wherever they are in memory.

Where whole users are protected, a user's row is bounded as a whole
(`user_weights`, `user_rows`). Where single ratings are, how far one of them
moves the row is (`rating_rows`). Shapes: U users, I items.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import LABEL_BITS
from dpmf_jax.kernels.slices import Chunk, sum_over_slices
from dpmf_jax.mechanisms.clipping import SLACK
from dpmf_jax.rows import Rows

# Products of so many users are summed at a time: they stay in the cache.
_BLOCK = 32


class Table(NamedTuple):
  """Ratings of all users; 0 where there is none."""

  rated: jax.Array  # [U, I] bool
  value: jax.Array  # [U, I] float32


class Residuals(NamedTuple):
  """Labels less the user's own bias, and how many there are."""

  value: jax.Array  # [U, I] int32
  rated: jax.Array  # [U, I] bool
  number: jax.Array  # [U] int32, of ratings
  square: jax.Array  # [U] int32, the sum of squares


def table(rows: Rows) -> Table:
  """The ratings by user as a table.

  Privacy: a cell is its rating, exactly: all that is added to it is zero.
  """
  items = jnp.arange(rows.num_columns)

  def slice_sums(chunk: Chunk, items):
    at = (chunk.column[..., None] == items[None, None]) & chunk.mask[..., None]
    value = jnp.where(at, chunk.value[..., None], 0.0).sum(axis=1)
    return jnp.concatenate([at.sum(axis=1).astype(jnp.float32), value], axis=1)

  both = sum_over_slices(slice_sums, rows, items, (), items)
  rated, value = jnp.split(both, 2, axis=1)
  return Table(rated > 0, value)


def residuals(
  table: Table,
  mean: jax.Array,
  width: jax.Array,
  ridge: jax.Array,
  label_bound: jax.Array | int,
  bound: jax.Array | int,
) -> Residuals:
  """Ratings less `mean` [I] and less each user's bias, in 2^-9 of `width`.

  The bias is the sum of a user's labels over their number plus `ridge`.

  Args:
    table: all ratings.
    mean, width, ridge: as above.
    label_bound: labels are clipped to it; at most 2^LABEL_BITS.
    bound: residuals are.

  Privacy: of the user's own ratings and of what is public. Labels are integers
  of at most 2^LABEL_BITS in size, so is the bias, and for up to
  `rounding.MAX_TABLE_ITEMS` items the sum of squares is at most 2^30. One
  rating more moves a row by at most `plans.moments.residual_move`.
  """
  label = jnp.round((table.value - mean[None]) / width * 2**LABEL_BITS)
  label = jnp.where(
    jnp.isfinite(label), jnp.clip(label, -label_bound, label_bound), 0.0
  )
  label = jnp.where(table.rated, label.astype(jnp.int32), 0)
  count = table.rated.sum(axis=1, dtype=jnp.int32)
  total = label.sum(axis=1, dtype=jnp.int32).astype(jnp.float32)
  bias = jnp.round(total / (count.astype(jnp.float32) + ridge))
  bias = jnp.clip(bias, -label_bound, label_bound).astype(jnp.int32)
  value = jnp.clip(label - bias[:, None], -bound, bound)
  value = jnp.where(table.rated, value, 0)
  square = (value * value).sum(axis=1, dtype=jnp.int32)
  return Residuals(value, table.rated, count, square)


def weights(square: jax.Array) -> jax.Array:
  """v [U] with v^2 square < 1, also in float32; of a square of 0, too."""
  # As integers they are at least 1, or all terms are 0.
  root = jnp.sqrt(jnp.maximum(square, 1).astype(jnp.float32))
  return (1 - SLACK) / root


def user_weights(own: Residuals, count_scale: jax.Array) -> jax.Array:
  """v [U] such that a user's v (count_scale, residual) have norm 1."""
  return weights(own.square + own.number * (count_scale * count_scale))


def first_moments(
  own: Residuals, count_scale: jax.Array, v: jax.Array, spacing: jax.Array
) -> jax.Array:
  """Sums [I, 2] of v (count_scale, residual), int32 in multiples of `spacing`.

  Args:
    own: of each user.
    count_scale: int32, what a rating counts; at most 2^LABEL_BITS.
    v: [U] `user_weights`, or ones.
    spacing: [] a power of 2, at least `rounding.smallest_spacing(U, 1)`; 1 if
      v is.

  Privacy: with `user_weights` a user's numbers times `spacing` have an L2 norm
  below 1 over all items: v^2 times the sum of count_scale^2 and of residuals^2
  is, and cutting towards zero only makes numbers smaller. With ones they are
  integers, and moved as far as residuals and counts are.
  """
  v = v[:, None] / spacing
  both = [
    jnp.where(own.rated, count_scale.astype(jnp.float32) * v, 0.0),
    own.value.astype(jnp.float32) * v,
  ]
  sums = [x.astype(jnp.int32).sum(axis=0) for x in both]  # cuts towards zero
  return jnp.stack(sums, axis=1)


class Shares(NamedTuple):
  """What a user has in second moments: x x^T, and `part` for each pair."""

  row: jax.Array  # [U, I] x
  part: jax.Array  # [U]


def user_rows(own: Residuals, least_square: jax.Array) -> Shares:
  """Rows of residuals and of ones, shortened to norm 1.

  `least_square` is int32, of a residual: rows are shortened as if the mean of
  squares were at least this, so that no row of rounding errors is drawn out.

  Privacy: products of rows have a norm of ||x||^2 < 1, as has a matrix of parts
  for all pairs, also in float32.
  """
  square = jnp.maximum(own.square, own.number * least_square)
  part = (1 - SLACK) / jnp.maximum(own.number, 1).astype(jnp.float32)
  return Shares(_times(own, weights(square)), part)


def rating_rows(own: Residuals, bound: jax.Array) -> Shares:
  """Rows of residuals e, and of ones, times the -1/2 power of their norm.

  Residuals are over `bound`, which they are clipped to.

  Privacy: products of rows are e e^T / ||e||, which moves by at most sqrt 2
  times what e moves by; a matrix of parts is that of ones in the place of e.
  Terms are at most 1 in size.
  """
  root = jnp.sqrt(weights(own.square) / bound.astype(jnp.float32))
  return Shares(_times(own, root), weights(own.number))


def _times(own: Residuals, weight: jax.Array) -> jax.Array:
  return own.value.astype(jnp.float32) * weight[:, None]


def second_moments(
  shares: Shares,
  rated: jax.Array,
  count_weight: jax.Array,
  spacing: jax.Array,
) -> jax.Array:
  """Sums [2, I, I] of products x x^T and of c times parts, int32 in `spacing`.

  What is off the diagonal is times the square root of 2, so that the upper
  triangle, diagonal included, has the L2 norm that the matrix has.

  Args:
    shares: `user_rows` or `rating_rows`.
    rated: [U, I] bool.
    count_weight: [] c.
    spacing: [] a power of 2, at least
      `rounding.smallest_spacing(U, max(1, c))`.

  Privacy: cutting towards zero makes no number larger, and moves apart those
  of one entry by less than `spacing`.
  """
  items = rated.shape[1]
  scale = jnp.full((items, items), math.sqrt(2.0), jnp.float32)
  scale = jnp.where(jnp.eye(items, dtype=bool), 1.0, scale) / spacing

  def add(total, block):
    x, rated, part = block
    both = rated[:, :, None] & rated[:, None, :]
    products = (x[:, :, None] * x[:, None, :]) * scale[None]
    counts = jnp.where(
      both, (part * count_weight)[:, None, None] * scale[None], 0.0
    )
    sums = [y.astype(jnp.int32).sum(axis=0) for y in (products, counts)]
    return total + jnp.stack(sums), None

  cut = lambda x: _blocks(x, _BLOCK)
  start = jnp.zeros((2, items, items), jnp.int32)
  xs = (cut(shares.row), cut(rated), cut(shares.part))
  return jax.lax.scan(add, start, xs)[0]


def _blocks(rows: jax.Array, size: int) -> jax.Array:
  """Rows in blocks [B, size, ...]; zeros fill the last, and a second one."""
  # A loop of one block would be another program, which may round otherwise.
  blocks = max(2, -(-len(rows) // size))
  more = blocks * size - len(rows)
  rows = jnp.pad(rows, ((0, more),) + ((0, 0),) * (rows.ndim - 1))
  return rows.reshape(blocks, size, *rows.shape[1:])
