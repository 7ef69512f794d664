"""Normal draws between bounds, by inverting the distribution function.

Reference: Jiang, Li and Lin (2019), section 3.3 and Theorem 3: residuals of
items that a client did not rate. The paper draws until a draw is inside; the
inverse needs one draw and no loop.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

# Halvings of (0, |mean| + 2 deviation): to the last digit of float32.
_HALVINGS = 26
# Below this a deviation (of a single residual, say) counts as this.
SMALLEST = 1e-3


def bound(
  epsilon: jax.Array, mean: jax.Array, deviation: jax.Array
) -> jax.Array:
  """alpha with P(|x| < alpha) = e^-epsilon for x ~ N(mean, deviation^2).

  Reference: Jiang, Li and Lin (2019), eq. (14), by bisection in
  (0, max |mean +- 2 deviation|). An epsilon too small for that range gets its
  upper end, which is where the bisection ends; epsilon = 0 gets inf.

  Privacy: none; see `accounting.claims.sdcf`.
  """
  mean = jnp.abs(mean)
  deviation = jnp.maximum(deviation, SMALLEST)
  target = jnp.exp(-epsilon)

  def halve(_, ends):
    low, high = ends
    middle = (low + high) / 2
    # As left tails, so that no digit is lost where both are small.
    inside = ndtr((middle - mean) / deviation) - ndtr(
      (-middle - mean) / deviation
    )
    enough = inside >= target
    return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

  ends = (jnp.zeros_like(mean), mean + 2 * deviation)
  _, high = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
  return jnp.where(epsilon > 0, high, jnp.inf)


def truncated_normal(
  key: jax.Array,
  shape: tuple[int, ...],
  mean: jax.Array,
  deviation: jax.Array,
  alpha: jax.Array,
) -> jax.Array:
  """Draws of N(mean, deviation^2) given that they are in [-alpha, alpha].

  `mean`, `deviation` and `alpha` have no axes; alpha = inf is a plain normal.
  """
  deviation = jnp.maximum(deviation, SMALLEST)
  # Mirrored to a mean >= 0, the bounds are in the left tail or astride.
  side, mean = jnp.where(mean < 0, -1.0, 1.0), jnp.abs(mean)
  low = ndtr((-alpha - mean) / deviation)
  high = ndtr((alpha - mean) / deviation)
  words = jax.random.bits(key, shape, 'uint32') >> 9
  uniform = (words.astype(jnp.float32) + 0.5) * 2.0**-23  # never 0 nor 1
  x = mean + deviation * ndtri(low + uniform * (high - low))
  return side * jnp.clip(x, -alpha, alpha)
