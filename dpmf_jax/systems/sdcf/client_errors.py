"""What a client sends: which items, and with which errors, true or fake.

Reference: Jiang, Li and Lin (2019), Algorithm 1, lines 7 to 26.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.mechanisms import response, truncated
from dpmf_jax.systems.sdcf.client_blocks import Profile
from dpmf_jax.systems.sdcf.types import Memory


class Selection(NamedTuple):
  """Which items a client sends in a round.

  Attributes:
    sent: [I] bool, those that a message has room for.
    slot: [I] int32, the slot of a sent item in the message.
    unsent: int32, how many did not fit.
    bits: [I] bool, the permanent bits.
  """

  sent: jax.Array
  slot: jax.Array
  unsent: jax.Array
  bits: jax.Array


def selection(
  key: jax.Array, memory: Memory, num_items: int, capacity: int
) -> Selection:
  """What is sent in a round, by the permanent bits.

  Privacy: post-processing of the permanent bits.
  """
  bits = jnp.unpackbits(memory.bits, count=num_items).astype(bool)
  sent = response.instantaneous(key, bits, memory.unrated, memory.rated)
  ones = response.ones_up_to(sent)
  return Selection(
    sent=sent & (ones <= capacity),
    slot=jnp.clip(ones - 1, 0, capacity - 1),
    unsent=jnp.maximum(ones[-1] - capacity, 0),
    bits=bits,
  )


def sent_errors(
  key: jax.Array,
  residual: jax.Array,
  own: Profile,
  chosen: Selection,
  epsilon_value: jax.Array,
  capacity: int,
) -> jax.Array:
  """[I] residuals of what is sent, fake for items not rated; 0 for the rest.

  Fake ones are drawn from the normal of the client's own `residual` [I], which
  is 0 where there is no rating, within the bound that eps_g gives.

  Privacy: none; see `truncated.bound`.
  """
  h = jnp.maximum(own.rated.sum(), 1).astype(jnp.float32)
  mean = residual.sum() / h
  spread = jnp.where(own.rated, residual - mean, 0.0)
  deviation = jnp.sqrt((spread**2).sum() / h)
  alpha = truncated.bound(epsilon_value, mean, deviation)
  fake = truncated.truncated_normal(key, (capacity,), mean, deviation, alpha)
  error = jnp.where(own.rated, residual, fake[chosen.slot])
  return jnp.where(chosen.sent, error, 0.0)
