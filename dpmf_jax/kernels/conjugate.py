"""Conjugate gradients on normal equations that are never written down."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from dpmf_jax.kernels.gradients import row_gradient
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
  iterations: int = 16,
) -> Array:
  """About x [R, D] with (A + common + ridge) x = b, for A, b of `equations`.

  One product with A is one pass over the ratings in time and memory
  proportional to D, where Cholesky needs D^2 for each rating and row. All
  rows take the same number of iterations; one that is done stays.

  Args:
    rows, factors, label, weight: see `normal.equations`.
    ridge: [R], positive.
    start: [R, D] to start from.
    common: [D, D] that is added to every row's matrix.
    iterations: D of them are exact but for rounding.
  """
  with_value = lambda value: dataclasses.replace(rows, value=value)
  silent = with_value(jnp.zeros_like(label))

  def product(x):
    moved = row_gradient(silent, x, factors, weight=weight)
    if common is not None:
      moved = moved + x @ common
    return moved + ridge[:, None] * x

  right = -row_gradient(
    with_value(label), jnp.zeros_like(start), factors, weight=weight
  )
  residual = right - product(start)

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
