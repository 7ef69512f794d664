"""Stochastic gradient Langevin dynamics: settings and steps that systems share.

Reference: Welling and Teh (2011); Jiang, Li and Lin (2019), eqs. (5) and (6):
with e = p.q - r and eta_t = eta_0 / t^gamma,

  p <- p - eta_t (S e q + p Lambda_u) + N(0, eta_t I), and q likewise.

S is 1 in the paper and the number of ratings in the literature, where the
gradient of one rating stands for the sum over all. With S = 1, the eta_0 of
the paper and its division by the number of all gradients nothing is learned;
the defaults here are the reading that learns, `LITERAL` is the other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.accounting.events import checked_count
from dpmf_jax.plans.settings import require, scale_check
from dpmf_jax.rows import Rows
from dpmf_jax.types import Factors

Average = Literal['item', 'all']


@dataclass(frozen=True, kw_only=True)
class LangevinSettings:
  """What all systems that take Langevin steps have in common.

  Attributes:
    scale: (lowest, highest) possible rating.
    delta: at which the certificate states epsilon; none is needed.
    rank: number of factors, the paper's K.
    steps: rounds at most.
    step_size: eta_0 times S.
    decay: gamma of eta_t = eta_0 / t^gamma.
    likelihood_scale: S; None is the number of ratings, which is then public.
    ridge: Lambda over S.
    ridges: 'fixed', or 'gamma': each of the rank diagonal entries of Lambda is
      drawn from Gamma(1) times the ridge, as in the paper.
    average: what the sum of an item's gradients is divided by: the gradients
      of that 'item', or 'all' gradients of the round, as the paper writes.
    init_size: factors start uniform in [0, init_size).
    optimizer: an optax transformation of the items' mean gradient, in which
      eta_t is already; plain descent by default.
  """

  scale: tuple[float, float]
  delta: float = 0.0
  rank: int = 50
  steps: int = 100
  step_size: float = 0.4
  decay: float = 0.6
  likelihood_scale: float | None = None
  ridge: float = 0.01
  ridges: Literal['fixed', 'gamma'] = 'fixed'
  average: Average = 'item'
  init_size: float = 0.25
  optimizer: optax.GradientTransformation | None = None

  def __post_init__(self):
    for field in ('rank', 'steps'):
      checked_count(field, getattr(self, field))
    s = self.likelihood_scale
    require(
      self,
      scale=scale_check(self.scale),
      delta=(0 <= self.delta < 1, 'in [0, 1)'),
      rank=(1 <= self.rank <= 1_000, 'in 1..1000'),
      steps=(self.steps >= 1, 'at least 1'),
      step_size=(0 < self.step_size < np.inf, 'positive and finite'),
      decay=(0 <= self.decay < np.inf, 'at least 0 and finite'),
      likelihood_scale=(s is None or 0 < s < np.inf, 'positive and finite'),
      ridge=(0 <= self.ridge < np.inf, 'at least 0 and finite'),
      ridges=(self.ridges in ('fixed', 'gamma'), "'fixed' or 'gamma'"),
      average=(self.average in ('item', 'all'), "'item' or 'all'"),
      init_size=(0 < self.init_size < np.inf, 'positive and finite'),
    )


# The paper to the letter, for MovieLens-100K: nothing is learned.
LITERAL: dict[str, Any] = {
  'likelihood_scale': 1.0,
  'step_size': 5e-6,
  'average': 'all',
  'ridges': 'gamma',
}

# Clients put eta_t into what they send, so the server just subtracts.
DESCENT = optax.scale(-1.0)


class Langevin(NamedTuple):
  """Traced settings of the steps."""

  step_size: jax.Array  # eta_0
  decay: jax.Array
  likelihood: jax.Array  # S
  user_ridge: jax.Array  # [D] diagonal of Lambda_u
  item_ridge: jax.Array  # [D]


def optimizer_of(config: LangevinSettings) -> optax.GradientTransformation:
  return DESCENT if config.optimizer is None else config.optimizer


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


def counts(rows: Rows) -> jax.Array:
  """Ratings per row, [num_rows] int32."""
  return jax.ops.segment_sum(
    rows.length.reshape(-1), rows.row.reshape(-1), rows.num_rows
  )


def uniform_factors(
  key: jax.Array, sizes: tuple[int, int], config: LangevinSettings
) -> Factors:
  """Factors of so many users and items, uniform in [0, init_size).

  The paper does not say how it starts.
  """
  drawn = (
    config.init_size * jax.random.uniform(key, (size, config.rank))
    for key, size in zip(jax.random.split(key), sizes, strict=True)
  )
  return Factors(*drawn)
