"""Integer noise for a count, from coins, of a law that is known exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.accounting.geometric import WORD_BITS, Law
from dpmf_jax.mechanisms import noise


def coin_words(law: Law) -> jax.Array:
  """The coins of a law as uint32 [digits, 2], high words and low words."""
  half = WORD_BITS // 2
  words = [(coin >> half, coin & (2**half - 1)) for coin in law.coins]
  return jnp.asarray(np.array(words, np.uint32))


def geometric_noise(key: jax.Array, coins: jax.Array) -> jax.Array:
  """int32 [], the difference of two numbers whose digits are `coins`.

  Privacy: added to an integer that a record moves by 1, it is (epsilon,
  uncovered)-DP with those of `accounting.geometric.law`, exactly so if words
  are random. There are no floats, and its work does not depend on what is
  drawn.
  """
  shape = (2, *coins.shape)
  first, second = jax.random.bits(noise.unrolled(key), shape, 'uint32')
  return _number(first, coins) - _number(second, coins)


def _number(words: jax.Array, coins: jax.Array) -> jax.Array:
  """int32 [] of random words [digits, 2]: a digit is 1 below its coin."""
  (high, low), (most, least) = words.T, coins.T
  one = (high < most) | ((high == most) & (low < least))
  place = jnp.arange(len(coins), dtype=jnp.int32)
  return jnp.sum(one.astype(jnp.int32) << place, dtype=jnp.int32)
