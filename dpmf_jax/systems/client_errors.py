"""What a client sends: which items, and with which errors, true or fake.

Reference: Jiang, Li and Lin (2019), Algorithm 1, lines 7 to 26.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dpmf_jax.mechanisms import response, truncated
from dpmf_jax.systems.client_blocks import Own
from dpmf_jax.systems.sdcf_types import Kept


def chosen_items(
  key: jax.Array, kept: Kept, num_items: int, capacity: int
) -> tuple[jax.Array, jax.Array]:
  """(items [M] to send, I in slots that are not used; how many did not fit).

  Privacy: post-processing of the permanent bits.
  """
  bits = jnp.unpackbits(kept.bits, count=num_items).astype(bool)
  sent = response.instantaneous(key, bits, kept.unrated, kept.rated)
  unsent = jnp.maximum(sent.sum().astype(jnp.int32) - capacity, 0)
  return response.chosen(sent, capacity), unsent


def sent_errors(
  key: jax.Array,
  residual: jax.Array,
  own: Own,
  at: jax.Array,
  epsilon_value: jax.Array,
) -> jax.Array:
  """[M] residuals of the items `at` [M]; fake ones for those not rated.

  Fake ones are drawn from the normal of the client's own `residual` [I], which
  is 0 where there is no rating, within the bound that eps_g gives.

  Privacy: none; see `truncated.bound`.
  """
  h = jnp.maximum(own.rated.sum(), 1).astype(jnp.float32)
  mean = residual.sum() / h
  spread = jnp.where(own.rated, residual - mean, 0.0)
  deviation = jnp.sqrt((spread**2).sum() / h)
  alpha = truncated.bound(epsilon_value, mean, deviation)
  fake = truncated.truncated_normal(key, at.shape, mean, deviation, alpha)
  return jnp.where(own.rated[at], residual[at], fake)
