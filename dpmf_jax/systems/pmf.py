"""The two stages of objective perturbation, as published, for its systems.

Reference: Zhang et al., Personalized Differential Privacy for Probabilistic
Matrix Factorization, Algorithms 1 and 2; Hua, Xia and Zhong, Differentially
Private Matrix Factorization, section 4. Their U (or P) is our user factors,
V (or Q) our item factors, gamma our step size, d our rank.

Stage 1 is plain PMF on both sides: user rows are projected to norm 1. Stage 2
takes the users as given and minimises over the items

  1/2 sum (r - p.q)^2 + ridge/2 ||Q||^2 + sum_j eta_j.q_j        (Zhang, (8))
      sum (r - p.q)^2 + ridge   ||Q||^2 + sum_j eta_j.q_j        (Hua)

by gradient descent, from where stage 1 left the items.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.kernels.gradients import gradients, row_gradient
from dpmf_jax.mechanisms import laplace
from dpmf_jax.mechanisms.clipping import clip_rows
from dpmf_jax.plans.objective_pmf import ObjectivePMFConfig, paper_noise_scale
from dpmf_jax.rows import Data
from dpmf_jax.systems.traced import MOMENTUM, optimizer_state, traced
from dpmf_jax.types import Factors, Guarantee, Release, System

Noise = Literal['once', 'every_step']

# The spread of the classical PMF code's start; the papers give none.
_START = 0.1


class State(NamedTuple):
  factors: Factors
  optimizer: Any  # of optax
  eta: jax.Array  # [I, D] as drawn for noise 'once'
  weights: Factors | None  # of ratings by user and by item, as Rows.value
  done: jax.Array  # int32, steps so far
  hyper: Any  # `traced`


def hyper_of(config: ObjectivePMFConfig) -> Any:
  """The traced settings of both stages."""
  return traced(
    config,
    'step_size',  # over the number of ratings, on sums
    'ridge',
    noise=float(paper_noise_scale(config)),
    # Times the gradient.
    loss_scale=2.0 if config.objective == 'hua' else 1.0,
    pmf_steps=config.pmf_steps,
  )


def start_factors(
  user_key: jax.Array, item_key: jax.Array, data: Data, rank: int
) -> Factors:
  """Small random factors, user rows of norm 1 at most."""
  return Factors(
    start_users(user_key, data.by_user.num_rows, rank),
    start_items(item_key, data.by_item.num_rows, rank),
  )


def start_users(key: jax.Array, num_users: int, rank: int) -> jax.Array:
  return clip_rows(start_items(key, num_users, rank), 1.0)


def start_items(key: jax.Array, num_items: int, rank: int) -> jax.Array:
  return _START * jax.random.normal(key, (num_items, rank))


def start(
  key: jax.Array,
  data: Data,
  hyper: Any,
  *,
  rank: int,
  weights: Factors | None = None,
) -> State:
  """The state before stage 1."""
  user_key, item_key, noise_key = jax.random.split(key, 3)
  factors = start_factors(user_key, item_key, data, rank)
  drawn = laplace.l2_laplace(noise_key, factors.item.shape, data.by_user.mesh)
  count = data.by_user.length.sum()
  if weights is not None:
    count = weights.user.sum()
  # An empty sample learns nothing, and divides by nothing.
  rate = hyper.step_size / jnp.maximum(count, 1).astype(jnp.float32)
  return State(
    factors=factors,
    optimizer=optimizer_state(MOMENTUM, factors, rate),
    eta=drawn.value * hyper.noise,
    weights=weights,
    done=jnp.int32(0),
    hyper=hyper,
  )


@functools.cache
def stages_step(noise: Noise):
  """The step of both stages; one object for equal arguments."""

  def step(key: jax.Array, state: State, data: Data) -> State:
    hyper, factors = state.hyper, state.factors
    weights = state.weights

    def pmf(key):
      del key
      gradient = gradients(data, factors, weights=weights)
      gradient = Factors(
        *(g + hyper.ridge * f for g, f in zip(gradient, factors, strict=True))
      )
      updates, optimizer = MOMENTUM.update(gradient, state.optimizer, factors)
      moved = cast(Factors, optax.apply_updates(factors, updates))
      # Zhang, Alg. 2, lines 9 to 11: ||u_i|| <= 1.
      moved = moved._replace(user=clip_rows(moved.user, 1.0))
      return moved, optimizer

    def perturbed(key):
      eta = state.eta
      if noise == 'every_step':
        # Alg. 2, line 17, inside the loop. The theorem needs it outside.
        eta = hyper.noise * _fresh(key, eta, data)
      sums = row_gradient(
        data.by_item,
        factors.item,
        factors.user,
        weight=None if weights is None else weights.item,
      )
      gradient = hyper.loss_scale * (sums + hyper.ridge * factors.item) + eta
      rate = state.optimizer.hyperparams['learning_rate']
      moved = factors._replace(item=factors.item - rate * gradient)
      return moved, state.optimizer

    moved, optimizer = jax.lax.cond(
      state.done < hyper.pmf_steps, pmf, perturbed, key
    )
    return state._replace(
      factors=moved, optimizer=optimizer, done=state.done + 1
    )

  return step


def stages_system(
  config: ObjectivePMFConfig,
  init: Callable[[jax.Array, Data], State],
  guarantee: Guarantee,
) -> System:
  """Both stages, from the state that `init` gives."""
  return System(
    init=init,
    step=stages_step(config.noise),
    model=stages_model,
    steps=config.pmf_steps + config.noise_steps,
    guarantee=guarantee,
    scale=config.scale,
  )


def _fresh(key: jax.Array, like: jax.Array, data: Data) -> jax.Array:
  return laplace.l2_laplace(key, like.shape, data.by_user.mesh).value


def stages_model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))
