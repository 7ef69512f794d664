"""Laplace noise, one coordinate at a time or in all directions at once.

Both are made of normal draws. With g in R^D and h in R^(D + 1) standard
normal, ||h|| g has a density ~ exp(-||x||): given s = ||h||^2 / 2, which is
Gamma((D + 1)/2), it is N(0, 2 s I), and the integral over s > 0 of

  s^(-D/2) exp(-||x||^2 / (4 s)) s^((D - 1)/2) exp(-s)

is sqrt(pi) exp(-||x||). So its norm is Gamma(D, 1) and its direction uniform,
without a division by ||g||, and D = 1 is the Laplace distribution.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpmf_jax.mechanisms import noise


def laplace(
  key: jax.Array, shape: tuple[int, ...], mesh: Mesh | None = None
) -> noise.Draws:
  """Draws whose `normal` is Laplace instead: density exp(-|x|) / 2, float32.

  Privacy: times b, it gives epsilon = (L1 sensitivity) / b. For integer
  counts use `noise.add_on_lattice(count, draws, b, unit, bits)`, with
  bits = `noise.dither_bits(b, unit)`: what it says of rounding holds for any
  noise. For the law's tails see `l2_laplace`.
  """
  drawn = l2_laplace(key, (*shape, 1), mesh)
  return noise.Draws(*(part[..., 0] for part in drawn))


def l2_laplace(
  key: jax.Array, shape: tuple[int, ...], mesh: Mesh | None = None
) -> noise.Draws:
  """Draws whose `normal`, [..., D], has a density ~ exp(-||x||), in float32.

  Rows are independent; with a mesh every device makes its share.

  Privacy: times b, it gives epsilon = (L2 sensitivity of a row) / b, on a
  lattice as for `laplace`. What is left of floating point is that a pair of
  normal draws has no value beyond 9.5, and few beyond `noise.REACH`.
  """
  # 2 D + 1 normal draws, each from 64 random bits.
  direction, length = noise.draws(
    key, [shape, (*shape[:-1], shape[-1] + 1)], mesh
  )
  norm = jnp.linalg.norm(length.normal, axis=-1, keepdims=True)
  return noise.Draws(norm * direction.normal, direction.uniform)
