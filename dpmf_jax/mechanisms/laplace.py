"""Laplace noise, one coordinate at a time or in all directions at once.

In all directions it is made of normal draws. With g in R^D and h in R^(D + 1)
standard normal, ||h|| g has a density ~ exp(-||x||): given s = ||h||^2 / 2,
which is Gamma((D + 1)/2), it is N(0, 2 s I), and the integral over s > 0 of

  s^(-D/2) exp(-||x||^2 / (4 s)) s^((D - 1)/2) exp(-s)

is sqrt(pi) exp(-||x||). So its norm is Gamma(D, 1) and its direction uniform,
without a division by ||g||.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dpmf_jax.mechanisms import noise

# No draw of `laplace` is larger, in size; e^-67.3 is 2^-97.
MOST = 68.0
# A draw x is within this times 1 + |x| of one that is Laplace, up to REACH.
ERROR = 2.0**-20
REACH = 50.0

# The largest delta that the ends of draws may leave uncovered. The delta that
# is stated pays for it.
UNCOVERED = 1e-9


def most_epsilon() -> float:
  """The largest epsilon for which ends of `laplace` cost at most UNCOVERED."""
  return math.log(UNCOVERED / uncovered(0.0)) - 1e-12


def uncovered(epsilon: float) -> float:
  """A delta for the ends of two draws of `laplace`.

  Privacy: a record that moves a draw by less than epsilon has both below
  REACH, as they are and moved, but for a chance of 4 e^(epsilon - REACH).
  """
  return 4 * math.exp(epsilon - REACH)


def most_l2_epsilon(dimension: int) -> float:
  """The same for one draw of `l2_laplace` in that many dimensions."""
  # What is taken off is more than the 1 in 1 + e^epsilon.
  return math.log(2 * UNCOVERED / l2_uncovered(0.0, dimension)) - 1e-3


def l2_uncovered(epsilon: float, dimension: int) -> float:
  """A delta for the ends of one draw of `l2_laplace`.

  Privacy: the 2 D + 1 normal draws that it is made of are in at most as many
  pairs. But for a chance p = (2 D + 1) `noise.beyond`(R), R = `noise.REACH`,
  all these have radii below R, for either neighbour, which costs a delta of at
  most (1 + e^epsilon) p besides epsilon.
  """
  chance = (2 * dimension + 1) * noise.beyond(noise.REACH)
  return (1 + math.exp(epsilon)) * chance


def laplace(key: jax.Array, shape: tuple[int, ...]) -> noise.Draws:
  """Draws whose `normal` is Laplace instead: density exp(-|x|) / 2, float32.

  Privacy: times b, it gives epsilon = (L1 sensitivity) / b. For integer
  counts use `noise.add_on_lattice(count, draws, b, unit, bits)`, with
  bits = `noise.dither_bits(b, unit)`: what it says of rounding holds for any
  noise. Sizes are -log u for a u of 96 random bits. To round u to these moves
  it by 2^-97, which is 2^-24 of u where u > e^-50, and to float32 by another
  2^-23 of it; that is how far the logarithm moves, besides its own rounding.
  """
  words = jax.random.bits(key, (4, *shape), 'uint32')
  high, middle, low = (words[k].astype(jnp.float32) for k in range(3))
  uniform = (low + 0.5) * 2.0**-96 + middle * 2.0**-64 + high * 2.0**-32
  sign = jnp.where(words[3] >> 31, -1.0, 1.0).astype(jnp.float32)
  return noise.Draws(
    -sign * jnp.log(uniform),
    (words[3] & (2**noise.DITHER_BITS - 1)).astype(jnp.int32),
  )


def l2_laplace(
  key: jax.Array, shape: tuple[int, ...], mesh: Mesh | None = None
) -> noise.Draws:
  """Draws whose `normal`, [..., D], has a density ~ exp(-||x||), in float32.

  Rows are independent; with a mesh every device makes its share. A dimension
  of 1 is the Laplace distribution.

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
