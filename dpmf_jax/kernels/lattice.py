"""Gradients whose sums are exact, for private mechanisms.

A proof says that taking one rating out of a sum moves it by that rating's
term. Float32 sums do not keep to it: the other terms of the row regroup, and
in a row of 80,000 ratings their rounding errors have been seen to move the
sum by six times the largest term. Here residuals and factors are rounded to
integers first, so that products and sums are integers that float32 and int32
hold exactly, and nothing but the rating's own term can move.

Spacings: a residual is counted in residual_bound / 2^8, a factor in
clip_norm / 2^10, a product in 2^-18 of residual_bound * clip_norm, and the
result in 2^-lattice_bits of that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import (
  MAX_SLOTS,
  PRODUCT_BITS,
  RESIDUAL_BITS,
)
from dpmf_jax.kernels.slices import Chunk, exact_sums, pad_rank
from dpmf_jax.mechanisms.clipping import slack
from dpmf_jax.mechanisms.noise import LatticeNoise, lattice_noise
from dpmf_jax.rows import Data, Rows, check_side
from dpmf_jax.types import Factors

FACTOR_BITS = PRODUCT_BITS - RESIDUAL_BITS


class Columns(NamedTuple):
  """Clipped factors as integers; scale * counts is about the factors."""

  counts: jax.Array  # [R, D] float32 integers; norm <= 2^FACTOR_BITS
  scale: jax.Array  # [R]


def columns(factors: jax.Array, clip_norm: jax.Array) -> Columns:
  """`factors` [R, D] clipped to `clip_norm` and rounded.

  Entries that are not finite count as 0, and those beyond 1e15 as 1e15, so
  that no NaN can tell who rated what.

  Privacy: the norm of a row of `counts` is at most (1 - 1e-5) 2^FACTOR_BITS:
  rows are shortened to that less what rounding can add, sqrt(D)/2. That is so
  in float32, in which all of it is computed, whatever factors are.
  """
  factors = jnp.asarray(factors, jnp.float32)
  factors = jnp.clip(factors, -1e15, 1e15)  # keeps NaN
  factors = jnp.where(jnp.isnan(factors), 0.0, factors)
  spacing = clip_norm * 2.0**-FACTOR_BITS
  rank = factors.shape[1]
  room = 2.0**FACTOR_BITS * (1 - slack(rank)) - rank**0.5 / 2
  length = jnp.linalg.norm(factors, axis=-1) / spacing
  shrink = jnp.where(length > room, room / length, 1.0) / spacing
  return Columns(jnp.round(factors * shrink[:, None]), 1.0 / shrink)


def row_gradient(
  rows: Rows,
  side: Columns,
  columns: Columns,
  *,
  offset: jax.Array,
  low: jax.Array,
  high: jax.Array,
  residual_bound: jax.Array,
  shift: jax.Array,
) -> jax.Array:
  """Sums [num_rows, D] of clip(e) * clip(q), as int32.

  Args:
    rows: the ratings.
    side: the factors of the rows.
    columns: the other side's factors.
    offset: [] a constant added to every prediction.
    low, high: [] the scale; ratings are clipped to it.
    residual_bound: [] bound on |e|.
    shift: [] int32, PRODUCT_BITS - lattice_bits: bits dropped at the end.

  Privacy: a rating adds one product to one row and changes no other product,
  as the arithmetic runs: both einsums add integers that float32 holds, in
  whatever order, and the rest is elementwise. Its product has norm at most
  residual_bound * clip_norm. Rounding the sum to the result's spacing can move
  each of D coordinates by one spacing more.
  """
  chex.assert_rank([side.counts, columns.counts], 2)
  chex.assert_equal_shape([side.counts, columns.counts], dims=1)
  chex.assert_scalar_in(rows.column.shape[-1], 1, MAX_SLOTS)
  rank = side.counts.shape[1]
  most = 2.0**RESIDUAL_BITS

  def slice_sums(chunk: Chunk, offset, low, high, bound):
    q, column_scale = chunk.column  # [S, L, D], [S, L]
    p, row_scale = chunk.row  # [S, D], [S]
    # At most 2^20 in size, so exact.
    dot = jnp.einsum('sld,sd->sl', q, p, precision='highest')
    scale = column_scale * row_scale[:, None]
    e = offset + scale * dot - jnp.clip(chunk.value, low, high)
    e = jnp.clip(e * (most / bound), -most, most)
    # A residual that is no number counts as 0, on all backends.
    e = jnp.where(chunk.mask & ~jnp.isnan(e), e, 0.0)
    e = jnp.floor(e + 0.5)  # much faster on a CPU than to round
    return jnp.einsum('sl,sld->sd', e, q, precision='highest')[:, :rank]

  return exact_sums(
    slice_sums,
    rows,
    columns._replace(counts=pad_rank(columns.counts)),
    side._replace(counts=pad_rank(side.counts)),
    offset,
    low,
    high,
    residual_bound,
    shift=shift,
    # A pair is rated once at most.
    longest=columns.counts.shape[0],
  )


def gradients(
  data: Data, factors: Factors, *, clip_norm: jax.Array, **common: Any
) -> Factors:
  """`row_gradient` of both sides, at the same factors."""
  check_side(data.by_user, 'user')
  check_side(data.by_item, 'item')
  user, item = (columns(side, clip_norm) for side in factors)
  return Factors(
    user=row_gradient(data.by_user, user, item, **common),
    item=row_gradient(data.by_item, item, user, **common),
  )


def check_size(data: Data, bits: int) -> None:
  """Raises ValueError where sums of so many `lattice_bits` could overflow."""
  # A row is at most as long as the other side has members.
  longest = max(data.by_user.num_rows, data.by_item.num_rows)
  most = 2 ** (30 - bits)
  if longest > most:
    raise ValueError(
      f'lattice_bits={bits} allows {most} users or items, but there are '
      f'{longest}; use lattice_bits={30 - (longest - 1).bit_length()}'
    )
  slots = min(rows.column.shape[-1] for rows in data)
  if (-(-longest // slots) + 1) << (PRODUCT_BITS - bits) >= 2**31:
    raise ValueError(
      f'lattice_bits={bits} is too few for {longest} users or items in slices '
      f'of {slots}; use more'
    )


def gradient_noise(std: float, spacing: float, bits: int) -> LatticeNoise:
  """The noise of sums of so many `lattice_bits`."""
  limit = f'lattice_bits={bits}: use fewer bits or a larger epsilon'
  return lattice_noise(std, spacing, limit=limit)
