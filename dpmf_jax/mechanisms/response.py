"""Two-stage randomized response: a permanent one, and one in each round.

Reference: Jiang, Li and Lin (2019), section 3.2, after RAPPOR (Erlingsson,
Pihur and Korolova 2014). `accounting.claimed_sdcf_response` gives f, p and q.

Probabilities are `coins`: how many of 2^32 equally likely words say yes. They
are made on the host from double precision, since in float32 an f that is
close to 1, as all are at small epsilon, would have another epsilon.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.accounting.claims.sdcf import Response
from dpmf_jax.mechanisms import noise

_WORDS = 2.0**32


class Coins(NamedTuple):
  """The probabilities of both stages in parts of 2^32, uint32.

  Attributes:
    flip: f/2, of a permanent bit that is not the true one; rounded up.
    unrated: p, of sending an item with permanent bit 0; rounded up.
    rated: q, of sending an item with permanent bit 1; rounded down.
  """

  flip: Any
  unrated: Any
  rated: Any


def coins(response: Response) -> Coins:
  """The probabilities of `response` as coins, NumPy.

  Privacy: rounding makes both stages say less, by 2^-32 at most: f is never
  below what was asked, and p and q are never further apart.
  """

  def parts(probability: np.ndarray, rounded) -> np.ndarray:
    return np.clip(rounded(probability * _WORDS), 0, _WORDS - 1).astype(
      np.uint32
    )

  return Coins(
    flip=parts(response.flip / 2, np.ceil),
    unrated=parts(response.unrated, np.ceil),
    rated=parts(response.rated, np.floor),
  )


def permanent(key: jax.Array, bits: jax.Array, flip: jax.Array) -> jax.Array:
  """B' [I]: each of `bits` B [I], or its opposite with probability f/2.

  Reference: Jiang, Li and Lin (2019), eq. (9) (PRR): one with probability
  f/2, zero with f/2, else B; so it is not B with f/2.

  Args:
    key: of this client, used for this once and never again.
    bits: bool, true where the client has a rating.
    flip: `Coins.flip`.

  Privacy: two B that differ in n bits have likelihoods of a ratio of at most
  ((1 - f/2)/(f/2))^n (Theorem 1, with n = 2 h). It must be drawn once: a
  second draw of the same bits is a second release.
  """
  return bits ^ (noise.words(key, bits.size) < flip)


def instantaneous(
  key: jax.Array, bits: jax.Array, unrated: jax.Array, rated: jax.Array
) -> jax.Array:
  """S [I]: what is sent in a round, with q where B' is 1 and with p where 0.

  Reference: Jiang, Li and Lin (2019), eq. (7) on B' (IRR).

  Privacy: post-processing of B', so that all rounds together say no more
  than `permanent`. On the true bits instead, the mean over rounds tells them.
  """
  chance = jnp.where(bits, rated, unrated)
  return noise.words(key, bits.size) < chance


def ones_up_to(bits: jax.Array) -> jax.Array:
  """[I] int32: how many of `bits` [I] are one, up to and with each place.

  Inside groups of 32 by a product with a triangle, which is exact and takes a
  fifth of the time of `jnp.cumsum` on a CPU.
  """
  size, group = bits.size, 32
  padded = jnp.pad(bits.astype(jnp.float32), (0, -size % group))
  inside = padded.reshape(-1, group) @ jnp.triu(jnp.ones((group, group)))
  last = inside[:, -1]
  before = jnp.cumsum(last) - last
  return (inside + before[:, None]).reshape(-1)[:size].astype(jnp.int32)


def chosen(bits: jax.Array, capacity: int) -> jax.Array:
  """The places of the first `capacity` ones of `bits` [I], then I's.

  A list of public length [capacity], as a message is.
  """
  wanted = jnp.arange(1, capacity + 1, dtype=jnp.int32)
  return jnp.searchsorted(
    ones_up_to(bits), wanted, method='scan_unrolled'
  ).astype(jnp.int32)


def capacity(mean: float, num_items: int) -> int:
  """How long a message is when `mean` items are sent on average.

  A client sends a sum of independent bits of that mean, whose variance is
  below it: six standard deviations more are exceeded less than once in 10^8
  messages. What does not fit is not sent, which is post-processing.
  """
  return int(min(num_items, np.ceil(mean + 6 * np.sqrt(mean) + 6)))
