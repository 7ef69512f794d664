"""Keys of runs, and where they are from.

Privacy: every proof takes a key that nobody knows. Which keys were drawn from
the operating system is remembered for as long as the process lives, so that a
certificate says of a key what is known of it, whoever hands it over.
"""

from __future__ import annotations

import hashlib
import secrets

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.certificates import CALLER, ENTROPY, GENERATOR, SEED, randomness

# A hash of a key -> where it is from.
_SOURCES: dict[bytes, str] = {}
# Hashes of keys that runs have begun with.
_BEGUN: set[bytes] = set()


def random_key(seed: int | None = None) -> jax.Array:
  """A key from the operating system's entropy; from `seed`, if there is one.

  Privacy: of the generator that proofs are about, whatever JAX's default is.
  Noise of a seeded key can be removed by whoever knows the seed.
  """
  if seed is not None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
      raise ValueError(f'seed={seed!r} must be None or an integer')
    return _noted(jax.random.key(seed, impl=GENERATOR), SEED)
  return words_key(np.frombuffer(secrets.token_bytes(8), np.uint32), ENTROPY)


def words_key(words: np.ndarray, source: str = CALLER) -> jax.Array:
  """The key that was saved as `words`, and where it was from."""
  key = jax.random.wrap_key_data(jnp.asarray(words), impl=GENERATOR)
  return _noted(key, source)


def key_words(key: jax.Array) -> np.ndarray:
  """A key as words, to be saved."""
  return np.asarray(jax.random.key_data(key))


def source_of(key: jax.Array) -> str:
  """Where a key is from; `CALLER` if it was not made here.

  A key that was split or folded out of one made here counts as the caller's.
  """
  return _SOURCES.get(_digest(key), CALLER)


def begin(key: jax.Array) -> None:
  """Notes that a run begins with `key`; ValueError where one did before.

  Privacy: two runs with one key have one noise, which the difference of their
  releases is free of, and each certificate speaks of its own run alone. Keys
  for experiments may be used again: their runs are not to be released.
  """
  if source_of(key) == ENTROPY and _digest(key) in _BEGUN:
    raise ValueError(
      'key was used by an earlier run: what both release would show what their '
      'noise hides; draw another one with random_key(), or leave it out'
    )
  _BEGUN.add(_digest(key))


def generator(key: jax.Array) -> str:
  """The generator and the size of a key, as a certificate names them."""
  bits = 32 * jax.random.key_data(key).size
  return f'{jax.random.key_impl(key)}, {bits}-bit key'


def stated(key: jax.Array) -> dict[str, object]:
  """What a certificate says of a run's key (`certificates.randomness`)."""
  return randomness(source_of(key), generator(key))


def _noted(key: jax.Array, source: str) -> jax.Array:
  # What was once a seed's stays that.
  if _SOURCES.get(_digest(key)) != SEED:
    _SOURCES[_digest(key)] = source
  return key


def _digest(key: jax.Array) -> bytes:
  text = f'{jax.random.key_impl(key)} {key_words(key).tolist()}'
  return hashlib.sha256(text.encode()).digest()
