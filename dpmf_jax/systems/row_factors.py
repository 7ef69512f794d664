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


class Prior(NamedTuple):
  """Of rows' factors, normal around 0, along the axes of C.

  Attributes:
    size: [D] of C along its axes.
    axes: [D, D].
    used: [D] variances that rows are shrunk with.
    covariance: [D, D] of rows' factors, less a standard error: 0 along axes
      where there may be nothing but errors and noise.
  """

  size: jax.Array
  axes: jax.Array
  used: jax.Array
  covariance: jax.Array


def prior_of(
  sums: jax.Array,
  count: jax.Array,
  moment: jax.Array,
  *,
  error: jax.Array,
  variance: jax.Array,
  bound: jax.Array | float = jnp.inf,
) -> Prior:
  """The likeliest variances of rows (Fisher scoring), less a standard error.

  Where nothing is left, rows are shrunk with the latter, as long as it explains
  less than errors do: rounds go on looking where nothing has been found so far.

  Args:
    sums: [R, D] noisy sums.
    count: [R] how many ratings a row has.
    moment: C.
    error: [] variance of a rating's own error.
    variance: [] of the noise.
    bound: [] that errors are clipped to, where they are summed.
  """
  size, axes = eigen(moment)
  size = jnp.maximum(size, 1e-9)
  rotated = sums @ axes
  mass = jnp.maximum(count, 0.0)[:, None] * size[None]  # [R, D]
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
  used = jnp.maximum(sure, jnp.minimum(deviation, error / size))
  return Prior(size, axes, used, (axes * sure[None]) @ axes.T)


def shrunk_rows(
  prior: Prior,
  sums: jax.Array,
  count: jax.Array,
  *,
  error: jax.Array,
  variance: jax.Array,
  kept: jax.Array | float = 1.0,
) -> jax.Array:
  """Factors [R, D] of rows: posterior means, row by row.

  Args:
    prior: of all rows.
    sums, count, error, variance: see `prior_of`.
    kept: [] part of the noise that is left of it, where factors are averaged.
  """
  mass = jnp.maximum(count, 0.0)[:, None] * prior.size[None]
  explained = mass * mass * prior.used[None]
  gain = mass * prior.used[None]
  gain = gain / (explained + mass * error + kept * variance)
  return (gain * (sums @ prior.axes)) @ prior.axes.T


class Gauge(NamedTuple):
  """In which sums are asked for, of factors of norm at most 1, nearly."""

  there: jax.Array  # [D, D] M: factors are x M, `shortened`
  back: jax.Array  # [D, D] the inverse of M^T, for the other side's factors


def gauge_of(
  factors: jax.Array,
  count: jax.Array,
  *,
  quantile: jax.Array,
  power: jax.Array,
) -> Gauge:
  """A direction is divided by its variance to the `power`, with 1/2 all have
  the same; rows are divided by the `quantile` of norms.
  """
  size, axes = eigen(second_moment(factors, count))
  size = jnp.maximum(size, 0.0)
  size = size + 1e-6 * size.max() + 1e-20
  scale = size**power
  length = jnp.linalg.norm(factors @ (axes / scale[None]), axis=1)
  scale = scale * jnp.maximum(jnp.quantile(length, quantile), 1e-12)
  return Gauge(axes / scale[None], axes * scale[None])


def shortened(factors: jax.Array, gauge: Gauge) -> jax.Array:
  """Factors [R, D] in the gauge, those longer than 1 shortened."""
  moved = factors @ gauge.there
  length = jnp.linalg.norm(moved, axis=1)
  return moved / jnp.maximum(length, 1.0)[:, None]
