"""Sums over interactions, of users and of items, exact as integers.

What a user does with an item counts x in [0, 1], by its rating (`Counted`). A
user's row is r with r_i = x g_i, g in [0, 1] public. These kernels give

  profiles   of each user: sum of r_i^2, and of r_i times public rows [I, N],
  item_sums  of each item: sum of r_i times what its users send, [U, D].

All terms are integers before they are added, so that sums are the same bits
in whatever order, and one user or one interaction more adds its own integers
and nothing else. Work is interactions times numbers, never users times items.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.slices import Chunk, pad_rank, sum_over_slices
from dpmf_jax.rows import Rows
from dpmf_jax.types import Counted, Sum

# Of a profile's sums, so that those of all items stay below 2^30.
_SUM_BITS = 30
_COUNT_BITS = 20  # of what an interaction counts


class Profiles(NamedTuple):
  """Sums of each user; see `profiles`."""

  square: jax.Array  # [U] float32, at least the sum of r^2
  sums: jax.Array  # [U, N] float32


def counts(value: jax.Array, counted: Counted) -> jax.Array:
  """x of ratings, in [0, 1] whatever they are; no number counts as 0.

  Privacy: whole 2^-20, the same bits in all programs (`profiles`, `item_sums`,
  at home): a float is never a product and a sum in one, which some compilers
  round once and others twice.
  """
  whole = 2.0**_COUNT_BITS
  more = counted.slope * jnp.maximum(value - counted.low, 0.0) * whole
  least = jnp.round(counted.least * whole).astype(jnp.int32)
  steps = jnp.minimum(jnp.where(jnp.isnan(more), 0.0, more), whole)
  x = jnp.minimum(least + steps.astype(jnp.int32), 2**_COUNT_BITS)
  return jnp.where(jnp.isnan(more), 0, x).astype(jnp.float32) / whole


def profiles(
  rows: Rows, scale: jax.Array, table: jax.Array, counted: Counted
) -> Profiles:
  """What users work out of their own interactions and public numbers.

  Args:
    rows: by user.
    scale: [I] g, in [0, 1].
    table: [I, N], entries of at most 1 in size.
    counted: how ratings count.

  Privacy: of the user's own interactions alone, and each of them adds integers
  of its own: to the square at least r_i^2 and at most 1 (rounded up), and to
  the sums no more than r_i |table_i| (cut towards zero), in every entry. Both
  are exact sums until the end, where each is turned into a float32.
  """
  bits = _SUM_BITS - max(len(scale) - 1, 1).bit_length()
  if bits < 4:
    raise ValueError(f'{len(scale)} items are too many: at most 2^26')
  spacing, width = 2.0**-bits, table.shape[1]

  def slice_sums(chunk: Chunk, counted):
    entries, g = chunk.column
    r = jnp.where(chunk.mask, counts(chunk.value, counted) * g, 0.0)
    square = jnp.ceil(r * r / spacing * (1 + 2.0**-20))
    square = jnp.minimum(square, 1 / spacing)  # as r is at most 1
    parts = r[..., None] * entries[..., :width] / spacing
    both = jnp.concatenate([square[..., None], parts], axis=-1)
    return both.astype(jnp.int32).sum(axis=1)  # cuts towards zero

  sums = sum_over_slices(
    slice_sums, rows, (pad_rank(table), scale), (), counted
  )
  floats = sums.astype(jnp.float32) * spacing
  return Profiles(floats[:, 0], floats[:, 1:])


def item_sums(
  rows: Rows, scale: jax.Array, sent: jax.Array, counted: Counted, spacing
) -> jax.Array:
  """Sums [I, D] of r_i times what the item's users send, int32 in `spacing`.

  Args:
    rows: by item.
    scale: [I] g, in [0, 1].
    sent: [U, D].
    counted: how ratings count.
    spacing: [] of the result; all users together stay below 2^30 of it.

  Privacy: a user adds r_i times their row to each item i of theirs, cut towards
  zero to whole spacings entry by entry, and changes no other term. A row with
  an entry that is no number counts as 0 there.
  """
  width = sent.shape[1]
  sent = jnp.where(jnp.isfinite(sent), sent, 0.0)

  def slice_sums(chunk: Chunk, counted, spacing):
    r = counts(chunk.value, counted) * chunk.row[:, None]
    r = jnp.where(chunk.mask, r, 0.0)
    terms = r[..., None] * (chunk.column[..., :width] / spacing)
    return terms.astype(jnp.int32).sum(axis=1)  # cuts towards zero

  return sum_over_slices(
    slice_sums, rows, pad_rank(sent), scale, counted, jnp.float32(spacing)
  )


@jax.jit  # Every report of a run has one: many small operations.
def summed_users(rows: Rows, item: jax.Array, fit: Sum) -> jax.Array:
  """Rows [U, D] of users: prior + sums of x weight_i q_i over their items i.

  Privacy: see `profiles`: of the user's own interactions and of the items, to
  the bit. All that is not a sum of integers is one product of items, which the
  barrier keeps apart, or has no rounding, as columns are divided by powers of
  two: in which order and in how many steps a program does it cannot be seen.
  """
  weight = fit.weight if fit.weight.ndim == 2 else fit.weight[:, None]
  table = jax.lax.optimization_barrier(item * weight)
  size = _above(jnp.max(jnp.abs(table), axis=0, initial=0.0))[None]
  ones = jnp.ones_like(fit.weight, shape=len(item))
  own = profiles(rows, ones, table / size, fit.counted)
  return (fit.prior[None] / size + own.sums) * size


def _above(x: jax.Array) -> jax.Array:
  """The smallest power of two above each x >= 0, exactly; 1 for 0."""
  exponent = jax.lax.bitcast_convert_type(x, jnp.int32) & 0x7F800000
  below = jax.lax.bitcast_convert_type(exponent, jnp.float32)
  return jnp.where(below > 0, 2 * below, 1.0)
