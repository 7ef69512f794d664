"""Exact sums of clipped residuals, and where they balance a line.

For each row of ratings with labels y this solves

  slope * q + push = sum of clip(y - q, -bound, bound)

which says that q is the minimum of sum h(y - q) + slope/2 q^2 + push q, with h
the Huber loss. Labels and q are integers here, so the sums are exact.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import HUBER_BITS, HUBER_ERROR
from dpmf_jax.kernels.slices import Chunk, sum_over_slices
from dpmf_jax.rows import Rows

MAX_PLACE = 2**29  # q is found where it is within +- this
_LOW = 12  # bits of a sum that are summed apart, so that int32 holds it


def clipped_sums(rows: Rows, place: jax.Array, bound: jax.Array) -> jax.Array:
  """Sums [num_rows] of clip(value - place, -bound, bound), in float32.

  Args:
    rows: ratings whose `value` is an integer of at most 2^HUBER_BITS in size.
    place: [num_rows] int32.
    bound: [] int32, at most 2^(HUBER_BITS + 1).

  See `check_size` for how long rows may be. The integers are exact; turning
  their sum into float32 adds 2^-23 of it.
  """

  def slice_sums(chunk: Chunk, bound):
    rest = chunk.value.astype(jnp.int32) - chunk.row[:, None]
    rest = jnp.where(chunk.mask, jnp.clip(rest, -bound, bound), 0)
    total = rest.sum(axis=1)
    high = total >> _LOW
    return jnp.stack([high, total - (high << _LOW)], axis=1)

  sums = sum_over_slices(slice_sums, rows, (), place, bound)
  # Low parts of many slices are carried over before float32 rounds them.
  carry = sums[:, 1] >> _LOW
  high = (sums[:, 0] + carry).astype(jnp.float32)
  return high * 2.0**_LOW + (sums[:, 1] - (carry << _LOW)).astype(jnp.float32)


def check_size(num_users: int, slots: int) -> None:
  """Raises ValueError where int32 could not hold the sums of a row."""
  if num_users > 2**22 or slots > 2**10:
    raise ValueError(
      f'{num_users} users, in slices of {slots}, are more than sums of '
      f'residuals hold: at most {2**22}, in slices of {2**10}'
    )


def balance(
  rows: Rows,
  label: jax.Array,
  *,
  bound: jax.Array,
  slope: jax.Array,
  push: jax.Array,
) -> jax.Array:
  """The q [num_rows] int32 where the line meets the sum, by bisection.

  Args:
    rows: the ratings.
    label: [C, S, L] as `rows.value`, integers of at most 2^HUBER_BITS in size.
    bound: [] int32.
    slope: [] positive.
    push: [num_rows]; |push| / slope must be below MAX_PLACE / 2.

  The difference of both sides grows by at least `slope` for each step of q,
  and is computed to within HUBER_ERROR * (slope * |q| + |push|). So the exact
  solution is within 1 + that over `slope` of what is returned, whatever the
  labels are. It is within 2^HUBER_BITS + |push| / slope of 0, where the search
  starts: beyond all labels no residual pulls back.
  """
  rows = dataclasses.replace(rows, value=label, epsilon=None)
  reach = jnp.ceil(jnp.abs(push) / slope * (1 + HUBER_ERROR)).astype(jnp.int32)
  reach = jnp.minimum(reach, MAX_PLACE) + 2**HUBER_BITS + 1

  def halve(_, ends):
    low, high = ends
    middle = low + (high - low) // 2
    line = slope * middle.astype(jnp.float32) + push
    below = line <= clipped_sums(rows, middle, bound)
    return jnp.where(below, middle, low), jnp.where(below, high, middle)

  return jax.lax.fori_loop(0, 31, halve, (-reach, reach))[0]
