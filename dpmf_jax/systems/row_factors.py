"""Factors of rows from noisy sums, and the gauge in which sums are asked for.

Rows have n ratings each, and w are the factors of the other side. The noisy
sum of a row, over its ratings, of residual times w is taken for

  n C x + errors of the ratings + noise,     C = mean of w w^T over ratings,

with x the row's factors. That C is the same for all rows is an approximation
that costs accuracy, never privacy: all of this is computed from what has been
released with noise.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.dense import eigen

_ROUNDS = 20


def second_moment(factors: jax.Array, count: jax.Array) -> jax.Array:
  """C [D, D], the mean of w w^T over ratings."""
  weight = count / jnp.maximum(count.sum(), 1.0)
  return (factors * weight[:, None]).T @ factors


class Shrunk(NamedTuple):
  """Factors of rows.

  Attributes:
    factors: [R, D] posterior means.
    prior: [D, D] covariance of rows' factors, less a standard error: 0 along
      axes where there may be nothing but errors and noise.
  """

  factors: jax.Array
  prior: jax.Array


def shrunk_rows(
  sums: jax.Array,
  count: jax.Array,
  moment: jax.Array,
  *,
  error: jax.Array,
  variance: jax.Array,
  bound: jax.Array | float = jnp.inf,
  kept: jax.Array | float = 1.0,
) -> Shrunk:
  """Factors of rows that are normal around 0, along the axes of `moment`.

  Their variances are the likeliest ones for all rows (Fisher scoring), less a
  standard error. Where nothing is left, rows are shrunk with the latter, as
  long as it explains less than errors do: rounds go on looking where nothing
  has been found so far.

  Args:
    sums: [R, D] noisy sums.
    count: [R] how many ratings a row has.
    moment: C.
    error: [] variance of a rating's own error.
    variance: [] of the noise.
    bound: [] that errors are clipped to, where they are summed.
    kept: [] part of the noise that is left of it, where factors are averaged.
  """
  size, axes = eigen(moment)
  size = jnp.maximum(size, 1e-9)
  rotated = sums @ axes
  mass = jnp.maximum(count, 0.0)[:, None] * size[None]  # [R, D]
  errors = mass * error
  summed = mass * jnp.minimum(error, jnp.square(bound))

  def information(prior):
    weight = jnp.square(mass / (mass * mass * prior[None] + summed + variance))
    return weight, jnp.maximum((weight * mass * mass).sum(axis=0), 1e-30)

  def improved(_, prior):
    weight, total = information(prior)
    found = (weight * (jnp.square(rotated) - summed - variance)).sum(axis=0)
    return jnp.maximum(found / total, 0.0)

  start = jnp.full(size.shape, 0.1, jnp.float32)
  prior = jax.lax.fori_loop(0, _ROUNDS, improved, start)
  deviation = jnp.sqrt(2 / information(prior)[1])
  sure = jnp.maximum(prior - deviation, 0.0)
  used = jnp.maximum(sure, jnp.minimum(deviation, error / size))[None]
  gain = mass * used / (mass * mass * used + errors + kept * variance)
  return Shrunk((gain * rotated) @ axes.T, (axes * sure[None]) @ axes.T)


def balanced(
  factors: jax.Array,
  count: jax.Array,
  *,
  quantile: jax.Array,
  power: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Factors of norm at most 1 to ask for sums with, and the way there.

  A direction is divided by its variance to the `power`, with 1/2 all have the
  same; rows are divided by the `quantile` of norms, and longer ones shortened.

  Returns:
    w [R, D] = x M, shortened; M [D, D]; and the inverse of M^T, by which the
    other side's factors are to be multiplied to keep products.
  """
  size, axes = eigen(second_moment(factors, count))
  size = jnp.maximum(size, 0.0)
  size = size + 1e-6 * size.max() + 1e-20
  scale = size**power
  moved = factors @ (axes / scale[None])
  length = jnp.linalg.norm(moved, axis=1)
  bound = jnp.maximum(jnp.quantile(length, quantile), 1e-12)
  shortened = moved / jnp.maximum(length, bound)[:, None]
  return shortened, axes / (scale * bound)[None], axes * (scale * bound)[None]
