"""Stochastic gradient Langevin dynamics: steps that systems share.

Reference: Welling and Teh (2011); Jiang, Li and Lin (2019), eqs. (5) and (6):
with e = p.q - r and eta_t = eta_0 / t^gamma,

  p <- p - eta_t (S e q + p Lambda_u) + N(0, eta_t I), and q likewise.

S is 1 in the paper and the number of ratings in the literature, where the
gradient of one rating stands for the sum over all. With S = 1, the eta_0 of
the paper and its division by the number of all gradients nothing is learned;
defaults are the reading that learns, `plans.sdcf.LITERAL` is the other one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.plans.sdcf import LangevinSettings
from dpmf_jax.rows import Rows
from dpmf_jax.systems.traced import optimizer_or
from dpmf_jax.types import Factors

# Clients put eta_t into what they send, so the server just subtracts.
DESCENT = optax.scale(-1.0)
# Factors start uniform in [0, this); the paper does not say how it starts.
INIT_SIZE = 0.25


class Langevin(NamedTuple):
  """Traced settings of the steps."""

  step_size: jax.Array  # eta_0
  decay: jax.Array
  likelihood: jax.Array  # S
  user_ridge: jax.Array  # [D] diagonal of Lambda_u
  item_ridge: jax.Array  # [D]


def optimizer_of(config: LangevinSettings) -> optax.GradientTransformation:
  return optimizer_or(DESCENT, config.optimizer)


def langevin(key: jax.Array, config: LangevinSettings, rows: Rows) -> Langevin:
  """The traced settings; the key is for 'gamma' ridges."""
  s = config.likelihood_scale
  scale = jnp.asarray(num_ratings(rows) if s is None else s, jnp.float32)
  shape = (2, config.rank)
  if config.ridges == 'gamma':
    ridges = jax.random.exponential(key, shape)  # Gamma(1)
  else:
    ridges = jnp.ones(shape)
  user, item = ridges * config.ridge * scale
  return Langevin(
    step_size=jnp.float32(config.step_size) / scale,
    decay=jnp.float32(config.decay),
    likelihood=scale,
    user_ridge=user,
    item_ridge=item,
  )


def schedule(settings: Langevin) -> optax.Schedule:
  """eta_t = eta_0 / t^gamma of the count t - 1 of earlier rounds, for optax."""

  def at(count):
    t = jnp.asarray(count, jnp.float32) + 1
    return settings.step_size / t**settings.decay

  return at


def num_ratings(rows: Rows) -> jax.Array:
  """N as float32, at least 1."""
  return jnp.maximum(rows.length.sum(), 1).astype(jnp.float32)


class StartKeys(NamedTuple):
  """What the first key of a run is for."""

  factors: jax.Array
  bits: jax.Array
  ridges: jax.Array


def start_keys(key: jax.Array) -> StartKeys:
  return StartKeys(*jax.random.split(key, 3))


def uniform_factors(
  key: jax.Array, sizes: tuple[int, int], config: LangevinSettings
) -> Factors:
  """Factors of so many users and items, uniform in [0, INIT_SIZE)."""
  drawn = (
    INIT_SIZE * jax.random.uniform(key, (size, config.rank))
    for key, size in zip(jax.random.split(key), sizes, strict=True)
  )
  return Factors(*drawn)
