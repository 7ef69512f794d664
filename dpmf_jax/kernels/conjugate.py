"""Conjugate gradients on normal equations that are never written down."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from dpmf_jax.kernels.slices import (
  Chunk,
  pad_rank,
  row_counts,
  sum_over_slices,
)
from dpmf_jax.rows import Rows


def solution(
  rows: Rows,
  factors: Array,
  label: Array,
  ridge: Array,
  start: Array,
  *,
  weight: Array | None = None,
  common: Array | None = None,
  constant: Array | None = None,
  iterations: int,
) -> Array:
  """About x [R, D] with (A + common + ridge) x = b, for A, b of `equations`.

  One product with A is one pass over the ratings in time and memory
  proportional to D, where Cholesky needs D^2 for each rating and row; there
  are as many passes as iterations, and one. All rows take the same number of
  iterations; one that is done stays.

  Args:
    rows, factors, label, weight: see `normal.equations`.
    ridge: [R], positive.
    start: [R, D] to start from.
    common: [D, D] that is added to every row's matrix.
    constant: [] the entry of a further column, the last, that all factors
      share and that is not among them. It costs no more memory to read.
    iterations: D of them are exact but for rounding.
  """
  slots = jnp.arange(label.shape[-1])[None, None]
  used = slots < rows.length[..., None]
  weight = jnp.where(used, 1.0 if weight is None else weight, 0.0)
  # Rows without ratings start where they end, whatever the iterations.
  start = jnp.where(row_counts(rows)[:, None] > 0, start, 0.0)
  rank = factors.shape[1]
  factors = pad_rank(factors)

  def sums(value: Array, x: Array, products) -> Array:
    """Sums [R, D] over ratings of what `products` makes of value and dot."""

    def slice_sums(chunk: Chunk, *constant):
      x, last = chunk.row
      dot = jnp.einsum('sld,sd->sl', chunk.column, x)
      for each in constant:
        dot = dot + (each * last)[:, None]
      e = products(chunk.value, dot)  # [S, L]
      total = jnp.einsum('sl,sld->sd', e, chunk.column)[:, :rank]
      for each in constant:
        last = (each * e.sum(axis=1))[:, None]
        total = jnp.concatenate([total, last], axis=1)
      return total

    sides = (pad_rank(x[:, :rank]), None if constant is None else x[:, rank])
    return sum_over_slices(
      slice_sums,
      dataclasses.replace(rows, value=value),
      factors,
      sides,
      *([] if constant is None else [constant]),
    )

  def dense(x: Array) -> Array:
    """(common + ridge) x"""
    ridged = ridge[:, None] * x
    return ridged if common is None else x @ common + ridged

  def product(x: Array) -> Array:
    return sums(weight, x, lambda weight, dot: weight * dot) + dense(x)

  # The first pass has labels, too: b - A x.
  residual = sums(
    jnp.stack([weight, weight * label], axis=-1),
    start,
    lambda pair, dot: pair[..., 1] - pair[..., 0] * dot,
  ) - dense(start)

  def body(_, carry):
    x, residual, direction, square = carry
    image = product(direction)
    curvature = jnp.sum(direction * image, axis=1)
    length = jnp.where(curvature > 0, square / curvature, 0.0)[:, None]
    x, residual = x + length * direction, residual - length * image
    new = jnp.sum(residual * residual, axis=1)
    ratio = jnp.where(square > 0, new / square, 0.0)[:, None]
    return x, residual, residual + ratio * direction, new

  square = jnp.sum(residual * residual, axis=1)
  carry = (start, residual, residual, square)
  return jax.lax.fori_loop(0, iterations, body, carry)[0]
