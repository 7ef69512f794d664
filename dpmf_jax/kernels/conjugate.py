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
  # Both take the rating's place, to be cut into chunks with it.
  pair = jnp.stack([weight, weight * label], axis=2)  # [C, S, 2, L]
  rows = dataclasses.replace(rows, value=pair)
  factors = pad_rank(factors)

  def slice_sums(chunk: Chunk, labels, constant):
    x, last = chunk.row
    dot = jnp.einsum('sld,sd->sl', chunk.column, x)
    if constant is not None:
      dot = dot + (constant * last)[:, None]
    e = labels * chunk.value[:, 1] - chunk.value[:, 0] * dot  # [S, L]
    sums = jnp.einsum('sl,sld->sd', e, chunk.column)[:, :rank]
    if constant is None:
      return sums
    last = (constant * e.sum(axis=1))[:, None]
    return jnp.concatenate([sums, last], axis=1)

  def moved(x: Array, labels: Array) -> Array:
    """labels b - (A + common + ridge) x"""
    last = None if constant is None else x[:, rank]
    sides = (pad_rank(x[:, :rank]), last)
    sums = sum_over_slices(slice_sums, rows, factors, sides, labels, constant)
    if common is not None:
      sums = sums - x @ common
    return sums - ridge[:, None] * x

  def body(number, carry):
    """The first direction is all of the start, and leads there from zero.

    So there is one loop over ratings to compile, and none for b alone.
    """
    x, residual, direction, square = carry
    first = number == 0
    change = moved(direction, first.astype(direction.dtype))
    curvature = -jnp.sum(direction * change, axis=1)
    length = jnp.where(curvature > 0, square / curvature, 0.0)
    length = jnp.where(first, 1.0, length)[:, None]
    x, residual = x + length * direction, residual + length * change
    new = jnp.sum(residual * residual, axis=1)
    ratio = jnp.where(square > 0, new / square, 0.0)[:, None]
    return x, residual, residual + ratio * direction, new

  zeros = jnp.zeros_like(start)
  carry = (zeros, zeros, start, zeros[:, 0])
  return jax.lax.fori_loop(0, iterations + 1, body, carry)[0]
