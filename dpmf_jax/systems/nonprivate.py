"""Plain matrix factorization by gradient descent: the baseline, not private.

Biases, where wanted, are two more columns on each side: a user row is
(p_u, b_u, 1) and an item row (q_i, 1, b_i), with the ones held fixed, so
that the kernels need not know about them.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.kernels.slices import row_counts
from dpmf_jax.plans.nonprivate import SPEC, NonprivateConfig
from dpmf_jax.rows import Data
from dpmf_jax.systems.traced import ADAM, optimizer_or, optimizer_state
from dpmf_jax.types import Factors, Release, System


class State(NamedTuple):
  factors: Factors
  optimizer: optax.OptState
  ridge: jax.Array
  offset: jax.Array


@functools.lru_cache
def _step(optimizer: optax.GradientTransformation, biases: bool):
  """The step function; one object for equal arguments, see `System.step`."""

  def step(key: jax.Array, state: State, data: Data) -> State:
    del key  # Full-batch descent draws nothing.
    factors = state.factors
    gradient = gradients(data, factors, offset=state.offset)
    counts = (row_counts(rows)[:, None].astype(jnp.float32) for rows in data)
    user, item = (
      own + state.ridge * count * side
      for own, count, side in zip(gradient, counts, factors, strict=True)
    )
    if biases:
      user = user.at[:, -1].set(0.0)  # the ones stay ones
      item = item.at[:, -2].set(0.0)
    updates, opt_state = optimizer.update(
      Factors(user, item), state.optimizer, factors
    )
    factors = optax.apply_updates(factors, updates)
    return state._replace(factors=factors, optimizer=opt_state)

  return step


def _model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, state.offset)


def nonprivate(config: NonprivateConfig) -> System:
  """Matrix factorization without any privacy, to compare with.

  Privacy: none. Everything it releases is computed from ratings as they are.
  """
  optimizer = optimizer_or(ADAM, config.optimizer)

  def init(key: jax.Array, data: Data) -> State:
    user_key, item_key = jax.random.split(key)

    def side(key, num_rows, fixed_column):
      rows = jax.random.normal(key, (num_rows, config.rank)) * config.init_std
      if not config.biases:
        return rows
      extra = jnp.zeros((num_rows, 2)).at[:, fixed_column].set(1.0)
      return jnp.concatenate([rows, extra], axis=1)

    factors = Factors(
      user=side(user_key, data.by_user.num_rows, 1),
      item=side(item_key, data.by_item.num_rows, 0),
    )
    opt_state = optimizer_state(optimizer, factors, config.step_size)
    total = jnp.sum(data.by_user.value)  # padding has value 0
    mean = total / jnp.maximum(jnp.sum(data.by_user.length), 1)
    return State(factors, opt_state, jnp.float32(config.ridge), mean)

  return SPEC.plan(config).system(
    init, _step(optimizer, config.biases), _model, scale=config.scale
  )
