"""How much users differ in level, by what item means leave of ratings."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.slices import Chunk, sum_over_slices
from dpmf_jax.plans import user_levels as plan
from dpmf_jax.rows import Rows


def levels_of_users(rows: Rows, label: jax.Array) -> jax.Array:
  """int32 [2]: products of two ratings of a user, and squares, summed.

  Users have the means of these times their number of ratings, or 8 if they have
  more, and nothing if they have one. Ratings are in fourths of a quarter.

  Privacy: a user's terms are functions of their own ratings and `label`s: of
  exact sums, in float32, and rounded to integers, whose sums are exact.
  `plans.user_levels` has the sizes for which they fit int32.
  """
  bound = plan.BOUND

  def sums(chunk: Chunk) -> jax.Array:
    steps = jnp.clip(jnp.round(chunk.value * plan.STEPS), -bound, bound)
    there = chunk.mask & ~jnp.isnan(steps)
    steps = jnp.where(there, steps, 0.0).astype(jnp.int32)
    columns = chunk.mask.astype(jnp.int32), steps, steps * steps
    return jnp.stack(
      [column.sum(axis=1, dtype=jnp.int32) for column in columns], axis=1
    )

  own = sum_over_slices(sums, dataclasses.replace(rows, value=label), (), ())
  number, total, square = own.astype(jnp.float32).T
  there, number = number >= 2, jnp.maximum(number, 2.0)
  weight = jnp.minimum(number, plan.RATINGS) / number
  product = (total * total - square) / (number - 1)
  terms = [jnp.floor(weight * each + 0.5) for each in (product, square)]
  terms = [jnp.where(there, each, 0.0).astype(jnp.int32) for each in terms]
  return jnp.stack([each.sum(dtype=jnp.int32) for each in terms])
