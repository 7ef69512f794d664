"""A client of the SDCF systems, made up."""

import jax.numpy as jnp
import numpy as np

from dpmf_jax.systems.sdcf import client_blocks, types


def memory_of(bits):
  """What a client keeps that has these permanent bits, and no rounds yet."""
  half = jnp.uint32(2**31)
  return types.Memory(
    jnp.packbits(jnp.asarray(bits)),
    half,
    half,
    jnp.bool_(False),
    jnp.int32(0),
    jnp.bool_(True),
  )


def profile_of(rng, items, rated):
  """That many of the items, rated 1 to 5."""
  mask = np.isin(np.arange(items), rng.choice(items, rated, replace=False))
  return client_blocks.Profile(
    jnp.asarray(np.where(mask, rng.integers(1, 6, items), 0), jnp.float32),
    jnp.asarray(mask),
  )
