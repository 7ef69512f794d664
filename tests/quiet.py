"""Traced settings without their noise, for tests of what is under it."""

import jax
import jax.numpy as jnp

from dpmf_jax.mechanisms.noise import LatticeNoise


def quiet(tree):
  """`tree` with every `LatticeNoise` in it of size 0 and without dither."""
  silent = lambda noise: noise._replace(
    std=jnp.zeros_like(noise.std), dither=jnp.zeros_like(noise.dither)
  )
  is_noise = lambda x: isinstance(x, LatticeNoise)
  return jax.tree.map(
    lambda x: silent(x) if is_noise(x) else x, tree, is_leaf=is_noise
  )
