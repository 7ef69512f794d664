"""Matrix factorization by Langevin dynamics, and on perturbed ratings (ISGLD).

Reference: Jiang, Li and Lin (2019), eq. (5), and the two baselines of their
section 4.1: 'Non-private MF' and 'Input Perturbation SGLD', which adds Laplace
noise to every rating, once.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.kernels.slices import row_counts
from dpmf_jax.mechanisms.noise import coarse_normal
from dpmf_jax.mechanisms.sampling import cell_words
from dpmf_jax.plans.langevin import LangevinConfig, plan
from dpmf_jax.plans.sdcf import Average
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.types import Factors, Release, System


class State(NamedTuple):
  factors: Factors
  optimizer: Any  # of optax
  values: Factors | None  # perturbed ratings by user and by item
  round: jax.Array  # int32, steps done
  langevin: sgld.Langevin


def perturbed(
  key: jax.Array, rows: Rows, scale: float, *, by_user: bool
) -> jax.Array:
  """Ratings with Laplace noise of `scale`, laid out as `rows.value`.

  A rating's noise depends on the key and on its user and item alone, so that
  both orientations have the same.

  Privacy: each value is epsilon-DP with epsilon = tau / scale for exact
  Laplace noise, on its own and for all that is computed from it; this one is
  float32, from 32 bits, and ends at 22 times its scale.
  """
  words = cell_words(key, rows, by_user=by_user)
  size = -jnp.log(((words >> 1).astype(jnp.float32) + 1) * 2.0**-31)
  return rows.value + scale * jnp.where(words & 1, size, -size)


@functools.lru_cache
def _step(optimizer: optax.GradientTransformation, average: Average):
  """The step function; one object for equal arguments, see `System.step`."""

  def step(key: jax.Array, state: State, data: Data) -> State:
    if state.values is not None:
      data = Data(
        *(
          dataclasses.replace(rows, value=value)
          for rows, value in zip(data, state.values, strict=True)
        )
      )
    user_key, item_key = jax.random.split(key)
    factors, langevin = state.factors, state.langevin
    eta = jnp.asarray(sgld.schedule(langevin)(state.round))
    sums = gradients(data, factors)
    users = jnp.maximum(row_counts(data.by_user), 1)[:, None]
    items = row_counts(data.by_item)[:, None]
    total = jnp.maximum(items.sum(keepdims=True), 1)
    parts = jnp.maximum(items, 1) if average == 'item' else total

    def mean(key, sums, factors, ridge, count, parts):
      """Of `count` gradients of eq. (6), each with noise of its own."""
      drift = langevin.likelihood * sums + count * factors * ridge[None, :]
      drawn = jnp.sqrt(count * eta) * coarse_normal(key, factors.shape)
      return (eta * drift - drawn) / parts

    user = mean(
      user_key, sums.user, factors.user, langevin.user_ridge, users, users
    )
    item = mean(
      item_key, sums.item, factors.item, langevin.item_ridge, items, parts
    )
    updates, opt_state = optimizer.update(item, state.optimizer, factors.item)
    moved: Any = optax.apply_updates(factors.item, updates)
    return state._replace(
      factors=Factors(factors.user - user, moved),
      optimizer=opt_state,
      round=state.round + 1,
    )

  return step


def _model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))


def langevin(config: LangevinConfig) -> System:
  """Langevin dynamics on ratings, perturbed ('paper') or not ('none').

  Privacy (paper): one Laplace draw for each rating, which is epsilon-DP for
  its value; training only post-processes. It is a claim here and not proved,
  because the noise is added in float32.
  """
  optimizer = sgld.optimizer_of(config)
  low, high = config.scale

  def init(key: jax.Array, data: Data) -> State:
    factor_key, noise_key, ridge_key = jax.random.split(key, 3)
    sizes = data.by_user.num_rows, data.by_item.num_rows
    factors = sgld.uniform_factors(factor_key, sizes, config)
    values = None
    if config.variant == 'paper':
      scale = plan(config).noise['ratings']
      values = Factors(
        *(
          perturbed(each, rows, scale, by_user=by_user)
          for each, rows, by_user in (
            (noise_key, data.by_user, True),
            (jax.random.clone(noise_key), data.by_item, False),
          )
        )
      )
      if config.clip:
        values = Factors(*(jnp.clip(side, low, high) for side in values))
    return State(
      factors=factors,
      optimizer=optimizer.init(factors.item),
      values=values,
      round=jnp.int32(0),
      langevin=sgld.langevin(ridge_key, config, data.by_user),
    )

  return plan(config).system(
    init, _step(optimizer, config.average), _model, scale=config.scale
  )
