"""Norm clipping of factor rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.events import checked_positive

# What clipped rows are kept below their bound by, besides the error of a norm,
# for the float32 operations that follow.
SLACK = 1e-5


def slack(rank: int) -> float:
  """The part of a norm bound that rows of `rank` are to be kept below it by.

  It is SLACK and what float32 can be wrong by, so that a row brought to norm
  (1 - slack) C as computed has norm at most (1 - SLACK) C. A sum of D squares
  is off by at most D 2^-24 of itself, in whatever order (a hundredth more for
  higher orders of that, up to D = 100,000), its root by half of that and one
  rounding, and the quotients and products after it have six more at most.
  """
  return SLACK + (1.01 * rank + 16) * 2.0**-25


def clip_scale(rows: jax.Array, norm: jax.Array | float) -> jax.Array:
  """The factor [R] that brings each row of `rows` [R, D] to norm <= `norm`.

  Reference: Mugdho and Imtiaz, Algorithm 1, lines 4 and 5:
  a / max(1, ||a|| / C) = clip_scale(a) * a.

  Privacy: ||clip_scale(a) * a|| <= norm, also in float32: a row that is
  shrunk at all is shrunk by `slack` more. A row that is not finite gets 0.
  Smaller floats would need a larger slack, and are refused.
  """
  kind = rows.dtype
  if jnp.issubdtype(kind, jnp.floating) and jnp.finfo(kind).bits < 32:
    raise TypeError(
      f'rows are {kind}, whose rounding can lengthen what is clipped: '
      'make them float32'
    )
  length = jnp.linalg.norm(rows, axis=-1)
  room = norm * (1 - slack(rows.shape[-1]))
  scale = jnp.where(length > room, room / length, 1.0)
  return jnp.where(jnp.isfinite(length), scale, 0.0)


def clip_rows(rows: jax.Array, norm: jax.Array | float) -> jax.Array:
  """`rows` [R, D] with every row shortened to norm <= `norm`.

  Privacy: bounds what a row adds to a sum, also in float32; no privacy by
  itself, since there is no noise. A row that is not finite becomes zeros.

  >>> rows = jnp.array([[3.0, 4.0], [0.3, 0.4]])
  >>> print(np.round(clip_rows(rows, 1.0), 3))
  [[0.6 0.8]
   [0.3 0.4]]
  """
  if not isinstance(norm, jax.Array):
    checked_positive('norm', norm)  # or rows would be turned around
  scale = clip_scale(rows, norm)[..., None]
  # A scale of 0 marks a row that is not finite: 0 * inf would be NaN.
  return jnp.where(scale == 0, 0.0, rows * scale)
