"""What each row works out alone from its own ratings, to the bit.

A user who sees predictions of their own learns of others what the items tell,
if nothing else of others reaches them, not even by rounding. Float sums would
let it: how they are grouped depends on where a user's ratings lie among those
of all users, and on how many devices there are. Here all sums are of integers,
and the rest is on single numbers, user by user.
"""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp
from jax import Array

from dpmf_jax.accounting.rounding import MAX_SLOTS
from dpmf_jax.homes import by_block, by_home, padded
from dpmf_jax.kernels.profiles import summed_users
from dpmf_jax.kernels.slices import (
  CHUNK_BYTES,
  Chunk,
  by_row,
  pad_rank,
  sum_over_slices,
)
from dpmf_jax.rows import Rows
from dpmf_jax.types import Release, Sum

# A number is high * 2^9 + low; products of two highs are below 2^18, and a
# slice of 64 of them below 2^24, exact in float32.
_LIMB = 9
# Bits that products of highs and lows add to products of highs.
_MORE = 5
# Rows solved for at a time: their matrices stay in a core's cache, or else fill
# wide hardware, where they may take memory, with what is made of them.
_BLOCK, _WIDE_BLOCK = 32, 2**14
_COPIES = 4


def fitted_users(rows: Rows, items: Release) -> Release:
  """Both sides: released items, and all users as `items.fit` has them.

  With homes users are `padded`, and each is where the ratings are.
  """
  items = items._replace(factors=items.factors._replace(user=None))
  user = (_fitted_at_home if rows.homes else _fitted)(rows, items)
  return items._replace(factors=items.factors._replace(user=user))


def _fitted(rows: Rows, items: Release) -> Array:
  factors, offset, fit, _ = items
  assert fit is not None
  if isinstance(fit, Sum):
    return summed_users(rows, factors.item, fit)
  shape = (rows.num_rows, len(fit.prior))
  start = jnp.broadcast_to(fit.prior[None], shape)
  return ridge_fit(rows, start, factors.item, offset=offset, ridge=fit.ridge)


@jax.jit
def _fitted_at_home(rows: Rows, items: Release) -> Array:
  return padded(_fitted(rows, items), rows.num_rows, rows.mesh)


@jax.jit  # Every report of a run has one: many small operations.
def ridge_fit(
  rows: Rows,
  start: Array,
  factors: Array,
  *,
  offset: Array | float,
  ridge: Array,
) -> Array:
  """Row factors x [R, D] with the least error and distance from `start`.

  That is, each row's sum of (offset + <x, q> - r)^2 over its ratings plus
  sum_c ridge_c (x_c - start_c)^2 is smallest, with q and r rounded to 2^-18 of
  the largest of their column, and of the row. An item that is 1,000 times as
  large as the others so costs the fit of all users three digits.

  Args:
    rows: the ratings in the orientation of the rows to be fitted.
    start: [R, D]; what a row without ratings has.
    factors: [num_columns, D] of the other side.
    offset: a constant added to every prediction.
    ridge: [D], positive; infinity leaves a column as it is in `start`.

  Privacy: none of the row's own ratings. Of other rows' ratings not a bit
  enters: sums are of integers, which no order or grouping changes, and all
  else is computed number by number from the row's own sums, its own largest
  label and the factors. The program, too, is the same for all rows.
  """
  chex.assert_rank([start, factors], 2)
  chex.assert_axis_dimension(start, 0, rows.num_rows)
  chex.assert_equal_shape([start, factors], dims=1)
  size = jnp.max(jnp.abs(factors), axis=0, initial=0.0)
  size = jnp.where(size > 0, size, 1.0)
  products, spacing, label_size = _products(rows, factors / size[None], offset)
  inverse = 1 / jnp.sqrt(ridge)

  def solved(*own):
    # Rows last, which are worked on side by side: whole vectors.
    products, spacing, label_size, start = (jnp.moveaxis(x, 0, -1) for x in own)
    entry = products.astype(jnp.float32) * spacing[None, None]
    matrix = entry[:-1, :-1] * (size[:, None] * size[None])[..., None]
    right = entry[:-1, -1] * size[:, None] * label_size[None]
    # What is left for x - start to explain.
    right = jax.lax.fori_loop(
      0,
      len(start),
      lambda c, rest: rest - matrix[:, c] * start[c][None],
      right,
    )
    matrix = matrix * (inverse[:, None] * inverse[None])[..., None]
    matrix = matrix + jnp.eye(len(inverse), dtype=matrix.dtype)[..., None]
    scale = inverse[:, None]
    return (start + _solution(matrix, right * scale) * scale).T

  own = products, spacing, label_size, start
  return by_home(lambda *own: in_blocks(solved, own), rows, *own)


def _products(rows: Rows, factors: Array, offset) -> tuple[Array, Array, Array]:
  """Sums over ratings of products of (q, y) with itself, y = r - offset.

  Returns:
    [R, D + 1, D + 1] int32; [R] what they are counted in, for a y counted in
    [R] the row's largest.

  Privacy: of the row's own ratings and `factors` (in [-1, 1]) alone. Where
  there is float64 (`jax.enable_x64`), it takes one product instead of four,
  and has the same bits: whole numbers are at most 2^18, so that sums of 64
  products are at most 2^42, exact in whatever order; and to round the sum once,
  down, with both halves added, is what the two steps below come to, since
  floor((floor((s + a) / m) + b) / n) = floor((s + a + b m) / (m n)) for
  integers, and what each step leaves out is a multiple of what it divides by.
  """
  slots = rows.column.shape[-1]
  if slots > MAX_SLOTS:
    raise ValueError(f'slices of {slots} ratings overflow float32')
  used = jnp.arange(slots)[None, None] < rows.length[..., None]
  label = jnp.where(used, jnp.abs(rows.value - offset), 0.0)
  extent = lambda row, length, peak, num_rows: (
    jax.ops.segment_max(peak, row, num_segments=num_rows),
    jax.ops.segment_sum(length, row, num_segments=num_rows),
  )
  largest, count = by_row(extent, rows, label.max(axis=-1))
  largest = jnp.where(largest > 0, largest, 1.0)  # and where there are none
  # So many bits are dropped that a row's sum stays below 2^31.
  shift = jnp.maximum(32 - jax.lax.clz(jnp.maximum(count - 1, 1)) - 7, 0)
  rank = factors.shape[1]

  def slice_sums(chunk: Chunk, offset):
    q, (largest, shift) = chunk.column[..., :rank], chunk.row
    y = (chunk.value - offset) / largest[:, None]
    both = jnp.concatenate([q, y[..., None]], axis=-1)
    whole = jnp.where(chunk.mask[..., None], jnp.round(both * 4.0**_LIMB), 0.0)
    if jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64:
      whole = whole.astype(jnp.float64)
      sums = jnp.einsum('sla,slb->sab', whole, whole, precision='highest')
      bits = 2 * _LIMB - _MORE
      halves = 2.0 ** (_LIMB - 1) + 2.0 ** (bits - 1)
      sums = jnp.floor((sums + halves) * 2.0**-bits)
      return _shifted(sums.astype(jnp.int32), shift[:, None, None])
    high = jnp.round(whole * 2.0**-_LIMB)
    low = whole - high * 2.0**_LIMB
    # One product of all limbs: three of less would take twice the time.
    limbs = jnp.concatenate([high, low], axis=-1)
    sums = jnp.einsum('sla,slb->sab', limbs, limbs, precision='highest')
    sums, n = sums.astype(jnp.int32), rank + 1
    cross = sums[:, :n, n:] + sums[:, n:, :n]
    cross = cross + _shifted(sums[:, n:, n:], _LIMB)
    sums = (sums[:, :n, :n] << _MORE) + _shifted(cross, _LIMB - _MORE)
    return _shifted(sums, shift[:, None, None])

  sums = sum_over_slices(
    slice_sums,
    rows,
    pad_rank(factors),
    (largest, shift),
    jnp.asarray(offset, jnp.float32),
  )
  spacing = jnp.exp2(shift.astype(jnp.float32) - (2 * _LIMB + _MORE))
  return sums, spacing, largest


def _shifted(sums: Array, bits: Array | int) -> Array:
  """`sums` over 2^bits, rounded to the nearest: to floor adds up."""
  return (sums + (jnp.int32(1) << bits >> 1)) >> bits


def in_blocks(solved, own):
  """`solved` of all rows, a block of them at a time."""
  row_bytes = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in own)
  room = CHUNK_BYTES // (_COPIES * row_bytes)
  wide = min(max(1 << room.bit_length() >> 1, _BLOCK), _WIDE_BLOCK)
  return by_block(solved, (_BLOCK, wide), *own)


def _solution(matrix: Array, right: Array) -> Array:
  """x [D, B] with matrix [D, D, B] x = right, for positive matrices.

  By Gauss and Jordan, in operations on single numbers: a batched solver may
  round by what else is in its batch.
  """

  def eliminated(k, rows):
    pivot = rows[k] / rows[k, k, None]
    rest = rows - rows[:, k, None] * pivot[None]
    return rest.at[k].set(pivot)

  rows = jnp.concatenate([matrix, right[:, None]], axis=1)
  return jax.lax.fori_loop(0, len(right), eliminated, rows)[:, -1]
