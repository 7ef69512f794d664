"""Sampling, and personalised sampling and weights of ratings.

`epsilon` is each rating's own, laid out as `Rows.value`; it is public.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import rounded_up
from dpmf_jax.mechanisms import noise
from dpmf_jax.rows import Rows

# Weights are below what float32 says by more than it can be wrong.
_SLACK = 2.0**-20


def weights(epsilon: jax.Array, highest: float, rounding: float) -> jax.Array:
  """Weights [C, S, L] of ratings: about epsilon / highest, in [0, 1].

  Privacy: a rating of weight v moves a weighted sum by at most v + rounding,
  in units of what weight 1 would move it without rounding, and noise is for
  1 + rounding and a pure epsilon of `highest`. With w = epsilon / highest at
  most 1 and v = w - (1 - w) rounding, v + rounding = w (1 + rounding): the
  rating has epsilon w * highest, at most its own. One of v <= 0 is left out.
  """
  top = rounded_up(highest)
  w = jnp.minimum(epsilon / top * (1 - _SLACK), 1.0)
  # The slack covers what float32 makes of the second line, too.
  return jnp.where(
    epsilon >= top, 1.0, jnp.maximum(w - rounding * (1 + _SLACK) * (1 - w), 0)
  )


def probabilities(epsilon: jax.Array, threshold: float) -> jax.Array:
  """The chance (e^epsilon - 1)/(e^t - 1) to be sampled, or 1 for epsilon >= t.

  Reference: Jorgensen, Yu and Cormode (2015); Zhang et al., Algorithm 1.

  Privacy: for a mechanism with epsilon = t for adding or removing a rating,
  run on the sample: see `accounting.sampled_epsilon`.
  """
  t = rounded_up(threshold)  # fewer are sampled, never more
  chance = jnp.expm1(epsilon) / jnp.expm1(t)
  return jnp.where(epsilon < t, chance * (1 - _SLACK), 1.0)


def coins_below(probability: jax.Array) -> jax.Array:
  """How many of 2^32 coins are for keeping, below 1: rounded down."""
  # In halves, since float32 holds each times 2^32, and uint32 their sum.
  low = (jnp.minimum(probability, 0.5) * 2.0**32).astype(jnp.uint32)
  high = (jnp.maximum(probability - 0.5, 0.0) * 2.0**32).astype(jnp.uint32)
  return low + high


def cell_words(key: jax.Array, rows: Rows, *, by_user: bool) -> jax.Array:
  """A random uint32 for each slot, laid out as `rows.value`.

  It depends on the key and on the user and item alone, so that both
  orientations of the same ratings have the same.
  """
  row = jnp.broadcast_to(rows.row[..., None], rows.column.shape)
  user, item = (row, rows.column) if by_user else (rows.column, row)

  def word(user, item):
    cell = jax.random.fold_in(jax.random.fold_in(key, user), item)
    return jax.random.bits(cell, dtype='uint32')

  return jax.vmap(word)(user.ravel(), item.ravel()).reshape(user.shape)


# Operation by operation they take seconds the first time.
_words = jax.jit(noise.words, static_argnums=1)


def sample(key: jax.Array, probabilities: jax.Array) -> jax.Array:
  """Bool: true with each of `probabilities`, independently.

  Privacy: a chance that is below 1 in float32 is never more than was asked for:
  it is less by 2^-23 of it, in whole 2^-32, rounded down; NaN is 0. A sample
  protects nobody by itself. It makes a mechanism that runs on what is kept more
  private, if nobody learns what that is: with one rate for all
  `accounting.SubsampledGaussian`, where delta has to pay for what the mechanism
  leaves `uncovered`, too, and for rates of their own `probabilities` and
  `accounting.sampled_epsilon`.

  >>> kept = sample(jax.random.key(0), jnp.full(1000, 0.25))
  >>> int(kept.sum())
  252
  """
  chance = jnp.asarray(probabilities, jnp.float32)
  words = _words(key, chance.size).reshape(chance.shape)
  # Float32 may have rounded it up: 0.1 is a little more than 0.1 there.
  less = jnp.where(chance < 1, chance * (1 - 2.0**-23), chance)
  return _kept(words, jnp.where(chance > 0, less, 0.0))


def _kept(words: jax.Array, probability: jax.Array) -> jax.Array:
  return (words < coins_below(probability)) | (probability >= 1)


def sample_cells(
  key: jax.Array, rows: Rows, probability: jax.Array, by_user: bool
) -> jax.Array:
  """1.0 for ratings that are kept, each with its own probability, else 0.0.

  A rating's coin depends on the key and on its user and item alone, so that
  both orientations of the same ratings keep the same.
  """
  drawn = cell_words(key, rows, by_user=by_user)
  kept = _kept(drawn, probability)
  used = jnp.arange(drawn.shape[-1])[None, None] < rows.length[..., None]
  return (kept & used).astype(jnp.float32)
