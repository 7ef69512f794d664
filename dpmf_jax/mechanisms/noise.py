"""Noise with an explicit key and an explicit scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.sharding import AXIS


def normal(key: jax.Array, count: int, mesh: Mesh | None = None) -> jax.Array:
  """`count` independent N(0, 1) draws in float32, from 32 random bits each.

  Box-Muller: the radius of a pair comes from one 32-bit word and its angle
  from another, so that a draw takes one of 2^64 values and reaches 6.7. JAX's
  own `normal` takes one of 2^23 values, which leaves gaps in its tails that
  are wider than the lattice noise is rounded to. With a mesh every device
  makes its share of the draws; the values do not depend on it.
  """
  # Each of 64 blocks has a key of its own, so that devices share the work and
  # the values do not depend on how many there are.
  size = -(-count // (2 * _BLOCKS))
  draw = jax.vmap(lambda key: _pairs(jax.random.bits(key, (2, size))))
  keys = jax.random.split(key, _BLOCKS)
  if mesh is None or _BLOCKS % mesh.size:
    draws = draw(keys)
  else:
    draws = jax.shard_map(
      draw, mesh=mesh, in_specs=Spec(AXIS), out_specs=Spec(AXIS)
    )(keys)
    whole = NamedSharding(mesh, Spec())
    draws = jax.lax.with_sharding_constraint(draws, whole)
  return draws.reshape(-1)[:count]


_BLOCKS = 64


def _pairs(words: jax.Array) -> jax.Array:
  """N(0, 1) draws [2, n] from uint32 words [2, n], by Box and Muller."""
  uniform = (words[0].astype(jnp.float32) + 0.5) * 2.0**-32  # (0, 1]
  radius = jnp.sqrt(-2.0 * jnp.log(uniform))
  angle = words[1].astype(jnp.float32) * (2 * math.pi * 2.0**-32)
  return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)])


def normals(
  key: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  mesh: Mesh | None = None,
) -> list[jax.Array]:
  """An array of N(0, 1) draws for each shape, from one key and one draw."""
  sizes = [math.prod(shape) for shape in shapes]
  draws = normal(key, sum(sizes), mesh)
  ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
  return [
    draws[end - size : end].reshape(shape)
    for shape, size, end in zip(shapes, sizes, ends, strict=True)
  ]


def add_on_lattice(
  count: jax.Array, noise: jax.Array, unit: jax.Array | float
) -> jax.Array:
  """`count` * unit plus `noise` rounded to multiples of `unit`, in float32.

  Args:
    count: integers, below 2^30 in size.
    noise: Gaussian, with a standard deviation below 2^27 * unit.
    unit: the lattice.

  Privacy: round(count + z) = count + round(z) for integer counts, so this
  post-processes the Gaussian mechanism on count * unit. With noise of
  standard deviation m * (L2 sensitivity of count * unit) its noise multiplier
  is m. The integer sum is exact, and turning it into a float is
  post-processing. What is left of floating point is that the noise is a
  float32 evaluation of a Gaussian from 64 random bits, cut off at 6.7
  standard deviations, and the generator.
  """
  steps = jnp.round(noise / unit).astype(jnp.int32)
  return (count + steps).astype(jnp.float32) * unit
