"""User features from part of the budget, then items from the rest.

The papers' first stage trains user factors without noise and takes them as
constants. Here they are those that sound `gaussian_mf` releases, so that the
second stage may: what it promises holds for any features that are public.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax import accounting
from dpmf_jax.plans import objective_pmf as objective
from dpmf_jax.plans.assumptions import PUBLIC_FEATURES
from dpmf_jax.plans.gaussian_mf import GaussianMFConfig
from dpmf_jax.rows import Data
from dpmf_jax.systems import noisy_equations
from dpmf_jax.systems.gaussian_mf import gaussian_mf
from dpmf_jax.types import Factors, Guarantee, Release, System


class State(NamedTuple):
  learning: Any  # state of `gaussian_mf`
  items: noisy_equations.State
  left: jax.Array  # int32, steps of learning to go

  @property
  def factors(self) -> Factors:
    return self.items.factors


def with_learned_features(config: objective.ObjectivePMFConfig) -> System:
  """Sound `objective_pmf` against user factors that are released, too.

  Privacy: both parts compose. The first is `gaussian_mf` with its guarantee at
  feature_share * epsilon and delta, less what the ends of the second's noise
  cost; the second takes its user factors as public features and has the rest
  of epsilon, whatever they are.
  """
  share = config.feature_share
  rest = dataclasses.replace(
    config, epsilon=(1 - share) * config.epsilon, feature_share=0.0
  )
  hyper = noisy_equations.hyper_of(rest, config.rank)
  first = gaussian_mf(
    GaussianMFConfig(
      variant='sound',
      relation=config.relation,
      scale=config.scale,
      epsilon=share * config.epsilon,
      delta=config.delta - objective.uncovered(rest, config.rank),
      rank=config.rank,
      steps=config.feature_steps,
    )
  )

  def init(key: jax.Array, data: Data) -> State:
    features = jnp.zeros((data.by_user.num_rows, config.rank))
    return State(
      first.init(key, data),
      noisy_equations.start(data, features, hyper),
      jnp.int32(first.steps),
    )

  return System(
    init=init,
    step=_step(first.step, config.relation, config.shift),
    model=_model,
    steps=first.steps + 1,
    guarantee=_guarantee(
      first.guarantee, objective.guarantee(rest, config.rank)
    ),
  )


@functools.cache
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


def _guarantee(first: Guarantee, second: Guarantee) -> Guarantee:
  """What is stated of both together."""
  assert first.event is not None
  assert second.event is not None
  assumptions = tuple(
    text
    for text in second.assumptions
    if text != PUBLIC_FEATURES and text not in first.assumptions
  )
  return dataclasses.replace(
    second,
    assumptions=first.assumptions + assumptions,
    mechanism=f'user features by {first.mechanism}; then {second.mechanism}',
    event=accounting.Composed((first.event, second.event)),
    tails=first.tails,
  )
