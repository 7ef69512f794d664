"""Sums over users whose terms a whole user bounds, exact as integers.

A user u with a bias b, a vector p and a weight v adds to every item j that
they rated, with item weights a_j and labels y = clip(r - mean_j - b),

  a_j v (count_scale, y, y p)            [2 + D] numbers.

The weight is chosen by the user so that all their terms together are at most
`bound` in L2 norm. Each number is cut to a whole multiple of a spacing, towards
zero, before it is added: int32 sums are then exact, in whatever order, and one
user more or less moves them by that user's own integers and by nothing else.
`normal.lattice_equations` has coarser terms, which users with a thousand small
weights would lose. Shapes: U users, I items, D rank.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.slices import Chunk, sum_over_slices
from dpmf_jax.mechanisms.clipping import SLACK
from dpmf_jax.rows import Rows


class Public(NamedTuple):
  """What users are sent: item estimates and settings."""

  mean: jax.Array  # [I]
  weight: jax.Array  # [I] a, in [0, MAX_ITEM_WEIGHT]
  label_bound: jax.Array  # []
  count_scale: jax.Array  # []


class Users(NamedTuple):
  """What users work out for themselves."""

  bias: jax.Array  # [U]
  vector: jax.Array  # [U, D]; norm <= vector_bound
  weight: jax.Array  # [U] v, in [0, 1]


def _label(value, mean, bias, bound):
  """y; not finite counts as 0."""
  y = jnp.clip(value - mean - bias, -bound, bound)
  return jnp.where(jnp.isnan(y), 0.0, y)


def norm_bits(num_items: int) -> int:
  """Fraction bits of a term of `squared_norms`, whose sum is below 2^31."""
  # A term is at most 4^2 (1 + 1) = 2^5 label_bound^2, and a bit more.
  return 25 - (num_items - 1).bit_length()


def squared_norms(
  rows: Rows, bias: jax.Array, public: Public, num_items: int
) -> jax.Array:
  """At least sum a^2 (count_scale^2 + y^2) for each user, [U] float32.

  `count_scale` must be at most `label_bound`. Terms are rounded up to 2^-bits
  of label_bound^2, after 1e-5 was added to |y| / label_bound for what
  floating point may do elsewhere to the same y.
  """
  bits = norm_bits(num_items)
  if bits < 4:
    raise ValueError(f'{num_items} items are too many: at most 2^21')

  def slice_sums(chunk: Chunk, public):
    mean, weight = chunk.column
    y = _label(chunk.value, mean, chunk.row[:, None], public.label_bound)
    y = jnp.abs(y) / public.label_bound + SLACK
    share = public.count_scale / public.label_bound
    term = jnp.square(weight) * (y * y + share * share)
    term = jnp.ceil(term * ((1 + SLACK) * 2.0**bits))
    return jnp.where(chunk.mask, term, 0.0).astype(jnp.int32).sum(axis=-1)

  sums = sum_over_slices(
    slice_sums, rows, (public.mean, public.weight), bias, public
  )
  return sums.astype(jnp.float32) * (
    jnp.square(public.label_bound) * (2.0**-bits * (1 + SLACK))
  )


def weights(squared_norm: jax.Array, bound: jax.Array) -> jax.Array:
  """v [U] in [0, 1], with v^2 * squared_norm <= bound^2, exactly."""
  # Less than the bound from the start: the square root may be rounded down.
  norm, room = jnp.sqrt(squared_norm), bound * (1 - SLACK)
  return jnp.where(norm > room, room / norm, 1.0)


def item_sums(
  rows: Rows, users: Users, public: Public, spacing: jax.Array
) -> jax.Array:
  """The sums of the terms of all users, [I, 2 + D] int32 of `spacing`.

  Args:
    rows: the ratings by item.
    users: one weight, bias and vector for each.
    public: see `Public`.
    spacing: a power of 2, at least `rounding.smallest_spacing`.

  Privacy: with users' weights from `weights(squared_norms(...), bound)` and
  ||p|| <= vector_bound, a user's terms times `spacing` have an L2 norm of at
  most bound * sqrt(1 + vector_bound^2), over all items together: cutting
  towards zero only makes numbers smaller, the squares of an item's numbers
  sum to at most a^2 v^2 (count_scale^2 + y^2) (1 + ||p||^2), and the first
  factors sum to at most bound^2. A weight, bias or vector of one user must
  be computed from that user's ratings and what is public alone.
  """

  def slice_sums(chunk: Chunk, public, spacing):
    users, (mean, weight) = chunk.column, chunk.row
    y = _label(chunk.value, mean[:, None], users.bias, public.label_bound)
    weight = weight[:, None] * users.weight
    weight = jnp.where(chunk.mask, weight / spacing, 0.0)[
      ..., None
    ]  # [S, L, 1]
    y = y[..., None]
    count = jnp.broadcast_to(public.count_scale, y.shape)
    terms = weight * jnp.concatenate([count, y, y * users.vector], axis=-1)
    return terms.astype(jnp.int32).sum(axis=1)  # cuts towards zero

  return sum_over_slices(
    slice_sums, rows, users, (public.mean, public.weight), public, spacing
  )
