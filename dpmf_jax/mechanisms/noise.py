"""Noise with an explicit key and an explicit scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.sharding import AXIS

_BLOCKS = 64
DITHER_BITS = 16
# A dither is at most this part of the noise: 2^-6 of it, in bits.
_BELOW = 6
# Largest std / unit; the dither then has DITHER_BITS bits.
MOST_UNITS = 2.0 ** (DITHER_BITS + _BELOW)


class Draws(NamedTuple):
  """Independent draws: N(0, 1) in float32 and uniform integers."""

  normal: jax.Array
  uniform: jax.Array  # int32 in 0 .. 2^DITHER_BITS - 1


def draws(
  key: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  mesh: Mesh | None = None,
) -> list[Draws]:
  """Draws for each of `shapes`, from 48 random bits each.

  Box-Muller: the radius of a pair comes from one 32-bit word and its angle
  from another, so that a draw takes one of 2^64 values and reaches 6.7. JAX's
  own `normal` takes one of 2^23 values, which leaves gaps in its tails that
  are wider than the lattice that noise is rounded to. With a mesh every
  device makes its share of the draws; the values do not depend on it.
  """
  sizes = [math.prod(shape) for shape in shapes]
  # Each of 64 blocks has a key of its own, so that devices share the work and
  # the values do not depend on how many there are.
  size = -(-sum(sizes) // (2 * _BLOCKS))
  # The type is said, because the default is uint64 where x64 is enabled.
  draw = jax.vmap(lambda key: _pairs(jax.random.bits(key, (3, size), 'uint32')))
  keys = jax.random.split(key, _BLOCKS)
  if mesh is None or _BLOCKS % mesh.size:
    blocks = draw(keys)
  else:
    blocks = jax.shard_map(
      draw, mesh=mesh, in_specs=Spec(AXIS), out_specs=Spec(AXIS)
    )(keys)
    blocks = jax.lax.with_sharding_constraint(
      blocks, NamedSharding(mesh, Spec())
    )
  flat = Draws(*(part.reshape(-1) for part in blocks))
  ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
  return [
    Draws(*(part[end - size : end].reshape(shape) for part in flat))
    for shape, size, end in zip(shapes, sizes, ends, strict=True)
  ]


def _pairs(words: jax.Array) -> Draws:
  """Draws [2, n] from uint32 words [3, n]."""
  uniform = (words[0].astype(jnp.float32) + 0.5) * 2.0**-32  # (0, 1]
  radius = jnp.sqrt(-2.0 * jnp.log(uniform))
  angle = words[1].astype(jnp.float32) * (2 * math.pi * 2.0**-32)
  halves = jnp.stack([words[2] >> DITHER_BITS, words[2] & 0xFFFF])
  return Draws(
    jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)]),
    halves.astype(jnp.int32),
  )


def dither_bits(std: float, unit: float) -> int:
  """How many bits of dither `add_on_lattice` needs for its noise."""
  return max(0, min(DITHER_BITS, math.frexp(std / unit)[1] - 1 - _BELOW))


def add_on_lattice(
  count: jax.Array,
  draws: Draws,
  std: jax.Array | float,
  unit: jax.Array | float,
  bits: jax.Array | int,
) -> jax.Array:
  """`count` * unit plus noise of `std`, all in multiples of `unit`.

  Args:
    count: integers, at most 2^30 in size.
    draws: of the shape of `count`.
    std: standard deviation, at most MOST_UNITS * unit.
    unit: the lattice.
    bits: from `dither_bits`.

  Privacy: round(count + z) = count + round(z) for integer counts, so this
  post-processes the Gaussian mechanism on count * unit. With
  std = m * (L2 sensitivity of count * unit) its noise multiplier is m. The
  integer sum is exact, and turning it into a float is post-processing. So is
  the dither, a uniform integer of up to 2^-6 of the noise: it is there
  because a float32 z / unit has a grid of its own, which alone would give the
  low bits of the count away. What is left of floating point is the cut-off of
  z at 6.7, and the generator. A draw that is not finite gives NaN, never the
  count.
  """
  noise = draws.normal * (std / unit)
  steps = jnp.round(noise).astype(jnp.int32)
  half = (jnp.int32(1) << bits) >> 1
  dither = (draws.uniform >> (DITHER_BITS - bits)) - half
  total = (count + steps + dither).astype(jnp.float32) * unit
  return jnp.where(jnp.isfinite(noise), total, jnp.nan)
