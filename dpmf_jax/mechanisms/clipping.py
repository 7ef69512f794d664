"""Norm clipping of factor rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Relative slack so that the rounding of the norm and of the product cannot
# leave a clipped row longer than the bound (float32, D up to some thousands).
SLACK = 1e-5


def clip_scale(rows: jax.Array, norm: jax.Array | float) -> jax.Array:
  """The factor [R] that brings each row of `rows` [R, D] to norm <= `norm`.

  Reference: Mugdho and Imtiaz, Algorithm 1, lines 4 and 5:
  a / max(1, ||a|| / C) = clip_scale(a) * a.

  Privacy: ||clip_scale(a) * a|| <= norm, also in float32: a row that is
  shrunk at all is shrunk by a further 1e-5. A row that is not finite gets 0.
  """
  length = jnp.linalg.norm(rows, axis=-1)
  scale = jnp.where(
    length > norm * (1 - SLACK), norm * (1 - SLACK) / length, 1.0
  )
  return jnp.where(jnp.isfinite(length), scale, 0.0)


def clip_rows(rows: jax.Array, norm: jax.Array | float) -> jax.Array:
  """`rows` [R, D] with every row shortened to norm <= `norm`."""
  scale = clip_scale(rows, norm)[..., None]
  # A scale of 0 marks a row that is not finite: 0 * inf would be NaN.
  return jnp.where(scale == 0, 0.0, rows * scale)
