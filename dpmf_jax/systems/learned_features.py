"""User features from part of the budget, then items from the rest.

The papers' first stage trains user factors without noise and takes them as
constants. Here they are those that sound `gaussian_mf` releases, so that the
second stage may: what it promises holds for any features that are public.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.plans import objective_pmf as objective
from dpmf_jax.rows import Data
from dpmf_jax.systems import noisy_equations
from dpmf_jax.systems.gaussian_mf import gaussian_mf
from dpmf_jax.types import Factors, Release, System


class State(NamedTuple):
  learning: Any  # state of `gaussian_mf`
  items: noisy_equations.State
  left: jax.Array  # int32, steps of learning to go

  @property
  def factors(self) -> Factors:
    return self.items.factors


def with_learned_features(config: objective.ObjectivePMFConfig) -> System:
  """Sound `objective_pmf` against user factors that are released, too.

  Privacy: both parts compose; see `learning_parts`.
  """
  learning, rest = objective.learning_parts(config)
  first = gaussian_mf(learning)
  hyper = noisy_equations.hyper_of(rest, config.rank)

  def init(key: jax.Array, data: Data) -> State:
    features = jnp.zeros((data.by_user.num_rows, config.rank))
    return State(
      first.init(key, data),
      noisy_equations.start(data, features, hyper),
      jnp.int32(first.steps),
    )

  return objective.plan(config).system(
    init,
    _step(first.step, config.relation, config.shift),
    _model,
    scale=config.scale,
  )


@functools.lru_cache
def _step(learn, relation, shift: int):
  """First the steps of `learn`, then the one of the items."""
  solve = noisy_equations.equations_step(relation, shift)

  def step(key: jax.Array, state: State, data: Data) -> State:
    def learning(key):
      return state._replace(learning=learn(key, state.learning, data))

    def last(key):
      user = noisy_equations.user_rows(state.learning.factors.user)
      factors = state.items.factors._replace(user=user)
      items = solve(key, state.items._replace(factors=factors), data)
      return state._replace(items=items)

    state = jax.lax.cond(state.left > 0, learning, last, key)
    return state._replace(left=state.left - 1)

  return step


def _model(state: State, data: Data) -> Release:
  """Items and fitted users; the features could be released as well."""
  return noisy_equations.equations_model(state.items, data)
