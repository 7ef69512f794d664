"""Whether vectors are worth what they cost the means, before any is asked for.

What a sweep spends on vectors its counts and residuals lose. How much worse
means become by that follows from noisy counts and the noise; so does how well
vectors would be known if taste were of a usual size: an item's from its noise,
a user's from the number of their ratings, and each from how well the other is.
Below some noise both are lost, whatever the number of sweeps.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dpmf_jax.systems.dpals_items import (
  RATING,
  SPREAD,
  Items,
  mean_over_ratings,
)

# Usual part of what means and biases leave of a rating's variance.
_TASTE = 0.2
# Vectors are tried where it would bring so many times what they cost: it may be
# less than usual, and a failed attempt costs a part of it.
_TIMES = 4.0
_ROUNDS = 30


def pays(
  items: Items,
  *,
  std: jax.Array,
  quarter: jax.Array,
  share: jax.Array,
  now: jax.Array,
  memory: jax.Array,
  left: jax.Array,
  promised: jax.Array,
) -> jax.Array:
  """[] bool: whether vectors are worth trying in the sweeps to come.

  Args:
    items: after a sweep.
    std: of the noise of a sum.
    quarter: of the scale's width.
    share: bound on users' vectors where there are any.
    now: the bound in the sweep that was.
    memory: what earlier sweeps weigh in the vectors' sums.
    left: number of sweeps to come.
    promised: times that they must be worth more than is usual.

  Privacy: of settings and of what sweeps released.
  """
  noise = jnp.square(std / items.weight)  # [I]
  means = 1 / (1 + jnp.square(share))  # what precision vectors leave to them
  count = items.counts
  # A sum of n ratings has errors of n times this.
  rating = RATING * jnp.square(quarter) * items.weighed

  def unknown(part):
    """Mean squared error of items' means, over ratings."""
    error = 1 / (items.sums.precision + part * left / noise) + count * rating
    spread = SPREAD * jnp.square(quarter)
    error = spread * error / (jnp.square(count) * spread + error)
    return mean_over_ratings(error, count)

  rank = items.vector.shape[1]
  taste = _TASTE * RATING * jnp.square(quarter)
  unit = jnp.square(share) / rank  # of a user's coordinate
  # Users' terms are shorter with vectors in them.
  shorter = count * jnp.sqrt(means * (1 + jnp.square(now)))
  error = noise * (1 - memory) + shorter * rating * unit

  def known(_, user):
    """How well users are known, if items are as well as such users make them.

    As a part of the variance.
    """
    signal = jnp.square(shorter) * taste * unit / rank * user
    item = mean_over_ratings(signal / (signal + error), count)
    told = items.own * _TASTE * item / rank
    return jnp.stack([told / (told + 1 - _TASTE * item), item])

  user, item = jax.lax.fori_loop(
    0, _ROUNDS, lambda k, both: known(k, both[0]), jnp.ones(2)
  )
  cost = unknown(means) - unknown(1.0)
  return taste * user * item >= promised * _TIMES * cost
