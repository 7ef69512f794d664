"""Laplace noise, one coordinate at a time or in all directions at once.

In all directions it is made of normal draws. With g in R^D and h in R^(D + 1)
standard normal, ||h|| g has a density ~ exp(-||x||): given s = ||h||^2 / 2,
which is Gamma((D + 1)/2), it is N(0, 2 s I), and the integral over s > 0 of

  s^(-D/2) exp(-||x||^2 / (4 s)) s^((D - 1)/2) exp(-s)

is sqrt(pi) exp(-||x||). So its norm is Gamma(D, 1) and its direction uniform,
without a division by ||g||.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpmf_jax.accounting.events import checked_positive
from dpmf_jax.accounting.rounding import DITHER_BITS
from dpmf_jax.mechanisms import noise


def laplace(key: jax.Array, shape: tuple[int, ...]) -> noise.Draws:
  """Draws whose `value` is Laplace: density exp(-|x|) / 2, in float32.

  Privacy: times b, it gives epsilon = (L1 sensitivity) / b. For integer
  counts use `noise.lattice_noise(b, ...)`: what it says of rounding holds for
  any noise. Sizes are -log u for a u of 96 random bits. To round u to these
  moves it by 2^-97, which is 2^-24 of u where u > e^-50, and to float32 by
  another 2^-23 of it; that is how far the logarithm moves, besides its own
  rounding.
  """
  words = jax.random.bits(key, (4, *shape), 'uint32')
  high, middle, low = (words[k].astype(jnp.float32) for k in range(3))
  uniform = (low + 0.5) * 2.0**-96 + middle * 2.0**-64 + high * 2.0**-32
  sign = jnp.where(words[3] >> 31, -1.0, 1.0).astype(jnp.float32)
  return noise.Draws(
    -sign * jnp.log(uniform),
    (words[3] & (2**DITHER_BITS - 1)).astype(jnp.int32),
  )


def laplace_noise(
  key: jax.Array, tree: Any, scale: float, *, spacing: float = 1.0
) -> Any:
  """`tree` of integers, times `spacing`, with Laplace noise on each number.

  Args:
    key, tree, spacing: see `noise.gaussian_noise`.
    scale: of the noise: its standard deviation over sqrt(2), a Python number.

  Privacy: epsilon = (L1 sensitivity) / scale, the largest sum of what a record
  moves all numbers by, times `spacing`; but for a delta of `tails.
  laplace_uncovered(epsilon)` for every two numbers that it moves:
  `accounting.Pure(epsilon, 1, uncovered)`. Noise is a millionth larger.

  >>> counts = jnp.array([120, 7, 33])
  >>> laplace_noise(jax.random.key(0), counts, scale=1 / 0.5).tolist()
  [120.0, 10.0, 30.0]
  """

  scale = checked_positive('scale', scale)
  return noise.with_noise(
    tree, scale, spacing, lambda shapes: _draws(key, shapes)
  )


# Operation by operation they take seconds the first time.
@functools.partial(jax.jit, static_argnums=1)
def _draws(key: jax.Array, shapes) -> list[noise.Draws]:
  keys = jax.random.split(key, len(shapes))
  return [laplace(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def l2_laplace(
  key: jax.Array, shape: tuple[int, ...], mesh: Mesh | None = None
) -> noise.Draws:
  """Draws whose `value`, [..., D], has a density ~ exp(-||x||), in float32.

  Rows are independent; with a mesh every device makes its share. A dimension
  of 1 is the Laplace distribution.

  Privacy: times b, it gives epsilon = (L2 sensitivity of a row) / b, on a
  lattice as for `laplace`. What is left of floating point is that a pair of
  normal draws has no value beyond 9.5, and few beyond `tails.REACH`.
  """
  # 2 D + 1 normal draws, each from 64 random bits.
  direction, length = noise.draws(
    key, [shape, (*shape[:-1], shape[-1] + 1)], mesh
  )
  norm = jnp.linalg.norm(length.value, axis=-1, keepdims=True)
  return noise.Draws(norm * direction.value, direction.uniform)
