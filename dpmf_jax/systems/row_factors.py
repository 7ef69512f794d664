"""Factors of rows from noisy sums, and the gauge in which sums are asked for.

Rows have n ratings each, and w are the factors of the other side. The noisy
sum of a row, over its ratings, of residual times w is taken for

  n C x + errors of the ratings + noise,     C = mean of w w^T over ratings,

with x the row's factors. That C is the same for all rows is an approximation
that costs accuracy, never privacy: all of this is computed from what has been
released with noise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.dense import eigen

_ROUNDS = 20
_MIN_VARIANCE = 1e-8  # prior variance of a direction that noise has drowned


def second_moment(factors: jax.Array, count: jax.Array) -> jax.Array:
  """C [D, D], the mean of w w^T over ratings."""
  weight = count / jnp.maximum(count.sum(), 1.0)
  return (factors * weight[:, None]).T @ factors


def shrunk_rows(
  sums: jax.Array,
  count: jax.Array,
  moment: jax.Array,
  *,
  error: jax.Array,
  variance: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Posterior means x [R, D] of factors, and their prior covariance [D, D].

  Factors are normal around 0, with a covariance along the axes of `moment`
  that is fitted to all rows (EM): directions that drown in noise vanish.

  Args:
    sums: [R, D] noisy sums.
    count: [R] how many ratings a row has.
    moment: C.
    error: [] variance of a rating's own error.
    variance: [] of the noise.
  """
  size, axes = eigen(moment)
  size = jnp.maximum(size, 1e-9)
  rotated = sums @ axes
  mass = jnp.maximum(count, 0.0)[:, None] * size[None]  # [R, D]
  spread = mass * error + variance
  gain = lambda prior: mass * prior / (mass * mass * prior + spread)

  def improved(_, prior):
    found = gain(prior[None])
    left = jnp.square(found * rotated) + prior[None] * (1 - found * mass)
    return jnp.maximum(left.mean(axis=0), _MIN_VARIANCE)

  start = jnp.full(size.shape, 0.1, jnp.float32)
  prior = jax.lax.fori_loop(0, _ROUNDS, improved, start)
  return (gain(prior[None]) * rotated) @ axes.T, (axes * prior[None]) @ axes.T


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
