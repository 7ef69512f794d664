"""Keys of runs: where their randomness comes from, and how they are saved."""

from __future__ import annotations

import secrets

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.certificates import GENERATOR


def random_key(seed: int | None = None) -> jax.Array:
  """A key from the operating system's entropy, or from `seed`.

  Privacy: of the generator that proofs are about, whatever JAX's default is.
  Seeds are for experiments: whoever knows one can remove the noise.
  """
  if seed is not None:
    return jax.random.key(seed, impl=GENERATOR)
  return words_key(np.frombuffer(secrets.token_bytes(8), np.uint32))


def words_key(words: np.ndarray) -> jax.Array:
  """The key that was saved as `words`."""
  return jax.random.wrap_key_data(jnp.asarray(words), impl=GENERATOR)


def key_words(key: jax.Array) -> np.ndarray:
  """A key as words, to be saved."""
  return np.asarray(jax.random.key_data(key))
