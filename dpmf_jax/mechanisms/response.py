"""Randomized response of bits, and one in two stages.

`randomized_response` answers once. In two stages there is a permanent answer,
and one to that in each round.

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
from jax.core import Tracer

from dpmf_jax.accounting.claims.sdcf import Response
from dpmf_jax.accounting.events import checked_epsilon
from dpmf_jax.accounting.records import COINS, MAX_EPSILON, lie_coins
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


def as_bits(bits: jax.Array) -> jax.Array:
  """`bits` as bool: they must be bool, or integers that are 0 or 1.

  In a trace, where values are not known, an integer that is not 0 is 1, so
  that nothing else of it can be told from an answer.
  """
  bits = jnp.asarray(bits)
  if bits.dtype == jnp.bool_:
    return bits
  if not jnp.issubdtype(bits.dtype, jnp.integer):
    raise TypeError(
      f'bits are {bits.dtype}, but must be bool, or integers that are 0 or 1'
    )
  if not isinstance(bits, Tracer):
    values = np.asarray(bits)
    if (wrong := values[(values != 0) & (values != 1)]).size:
      raise ValueError(f'bits have a {wrong[0]}, but must be 0 or 1')
  return bits != 0


def _check_coins(**coins: Any) -> None:
  """Raises TypeError for what is not uint32, such as a probability."""
  for name, value in coins.items():
    if getattr(value, 'dtype', None) != np.uint32:
      raise TypeError(
        f'{name}={value!r} must be of uint32: of 2^32 words, how many say yes, '
        'as `coins` gives it; `randomized_response` takes an epsilon'
      )


def randomized_response(
  key: jax.Array, bits: jax.Array, epsilon: float
) -> jax.Array:
  """`bits`, each turned into its opposite with probability 1/(1 + e^epsilon).

  Args:
    key: used for this once and never again.
    bits: bool, or integers that are 0 or 1; see `as_bits`.
    epsilon: of one bit; a Python number in 0..20.

  Privacy: an answer to one bit is epsilon-DP, with no floating point in it: the
  chance to lie is of whole 2^-32, rounded up. Who has n bits that may change
  has n epsilon (`accounting.RandomizedResponse(epsilon, n)`), and a second
  answer to the same bits costs as much again.

  >>> key, bits = jax.random.key(0), jnp.arange(1000) < 250
  >>> answers = randomized_response(key, bits, epsilon=2.0)
  >>> int((answers != bits).sum()), int(debiased_counts(answers, epsilon=2.0))
  (120, 245)
  """
  return _permanent(key, as_bits(bits), jnp.asarray(_lies(epsilon)))


def debiased_counts(
  answers: jax.Array, epsilon: float, *, axis: int = 0
) -> jax.Array:
  """Unbiased estimates of how many true bits were one, from answers to them.

  Args:
    answers: of `randomized_response` with the same `epsilon`, which is above 0.
    epsilon: of one bit.
    axis: over which answers are counted.

  With q the chance to lie, n answers of which k are true ones have a mean of
  n q + k (1 - 2 q).

  Privacy: post-processing of the answers, at no cost.

  >>> answers = jnp.array([[1, 0], [1, 0], [0, 1]])
  >>> debiased_counts(answers, epsilon=float(np.log(3.0))).tolist()
  [2.5, 0.5]
  """
  lie = int(_lies(epsilon)) / COINS
  if lie >= 0.5:
    raise ValueError(f'{epsilon=} must be above 0: answers tell nothing')
  answers = as_bits(answers)
  count = answers.sum(axis=axis, dtype=jnp.int32).astype(jnp.float32)
  return (count - answers.shape[axis] * lie) / (1 - 2 * lie)


def _lies(epsilon: float) -> np.ndarray:
  """How many of 2^32 coins lie."""
  if (epsilon := checked_epsilon(epsilon)) > MAX_EPSILON:
    raise ValueError(
      f'{epsilon=} must be at most {MAX_EPSILON:g}: coins of 2^-32 tell no more'
    )
  return np.asarray(lie_coins(epsilon, 2), np.uint32)


def permanent(key: jax.Array, bits: jax.Array, flip: jax.Array) -> jax.Array:
  """B': each of `bits` B, or its opposite with probability f/2.

  Reference: Jiang, Li and Lin (2019), eq. (9) (PRR): one with probability
  f/2, zero with f/2, else B; so it is not B with f/2.

  Args:
    key: of this client, used for this once and never again.
    bits: true where the client has a rating; see `as_bits`.
    flip: `Coins.flip`; a number that is not uint32 is refused.

  Privacy: two B that differ in n bits have likelihoods of a ratio of at most
  ((1 - f/2)/(f/2))^n (Theorem 1, with n = 2 h). It must be drawn once: a
  second draw of the same bits is a second release.
  """
  _check_coins(flip=flip)
  bits = as_bits(bits)
  return bits ^ (noise.words(key, bits.size).reshape(bits.shape) < flip)


# Operation by operation it takes seconds the first time.
_permanent = jax.jit(permanent)


def instantaneous(
  key: jax.Array, bits: jax.Array, unrated: jax.Array, rated: jax.Array
) -> jax.Array:
  """S [I]: what is sent in a round, with q where B' is 1 and with p where 0.

  Reference: Jiang, Li and Lin (2019), eq. (7) on B' (IRR).

  Privacy: post-processing of B', so that all rounds together say no more
  than `permanent`. On the true bits instead, the mean over rounds tells them.
  """
  _check_coins(unrated=unrated, rated=rated)
  chance = jnp.where(as_bits(bits), rated, unrated)
  return noise.words(key, bits.size) < chance


def ones_up_to(bits: jax.Array) -> jax.Array:
  """[I] int32: how many of `bits` [I] are one, up to and with each place.

  Inside groups of 32 by a product with a triangle, which is exact and takes a
  fifth of the time of `jnp.cumsum` on a CPU.
  """
  size, group = bits.size, 32
  padded = jnp.pad(bits.astype(jnp.float32), (0, -size % group))
  inside = jnp.matmul(
    padded.reshape(-1, group),
    jnp.triu(jnp.ones((group, group))),
    precision='highest',
  )
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
