"""ALS with user-level privacy: items are released, users stay at home.

Reference: Chien, Jain, Krichene, Rendle, Song, Thakurta and Zhang (2021),
Private Alternating Least Squares, Algorithm 1 (joint differential privacy);
Krichene, Jain, Song, Sundararajan, Thakurta and Zhang (2023), Multi-Task
Differential Privacy Under Distribution Skew (adaptive weights).

A sweep: every user fits a bias and a vector to their own ratings against the
items so far; what all users add to the items' equations is summed, exactly,
and gets noise; the items are solved for again.

Differs from the papers: labels are clipped inside the sensitivity, and so is
a user's contribution, by scaling all of it and leaving nothing out; counts
and biases are in the same sums; an item's matrix is its count times what all
items share (see `dpals_items`); noisy sums of all sweeps are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from dpmf_jax.kernels import user_sums
from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.mechanisms import noise
from dpmf_jax.plans.dpals import (
  FINAL_BIAS_RIDGE,
  MEMORY,
  POPULARITY_RIDGE,
  SLOPE_RIDGE,
  DPALSConfig,
  check_tails,
  lattice_spacing,
  plan,
  resolved,
)
from dpmf_jax.rows import Data
from dpmf_jax.systems import dpals_items, dpals_users
from dpmf_jax.systems.traced import traced
from dpmf_jax.types import Factors, Fit, Release, System

# Of a rating less its item's mean, in quarters: 2.5 and MAX_MEAN, and a bit.
_MAX_LABEL = 6.0


class State(NamedTuple):
  factors: Factors  # users as of the last sweep (secret); items as released
  items: dpals_items.Items
  hyper: Any


def hyper_of(config: DPALSConfig, num_users: int) -> Any:
  """The traced settings for that many users; the config has a rank."""
  quarter = jnp.float32(config.quarter)
  in_quarters = ('contribution', 'label_bound', 'count_scale')
  return traced(
    config,
    'quarter',
    'center',
    'vector_share',
    'clip_norm',
    'adaptivity',
    'bias_ridge',
    'vector_ridge',
    'final_vector_ridge',
    **{name: getattr(config, name) * quarter for name in in_quarters},
    memory=MEMORY,
    final_bias_ridge=FINAL_BIAS_RIDGE,
    slope_ridge=SLOPE_RIDGE,
    popularity_ridge=POPULARITY_RIDGE,
    noise=noise.lattice_noise(
      plan(config).noise['sums'],
      lattice_spacing(config, num_users),
      limit='int32: use a smaller contribution or a larger epsilon',
    ),
  )


def local_users(
  items: dpals_items.Items, hyper: Any, data: Data
) -> tuple[user_sums.Users, user_sums.Public]:
  """What users put into a sweep's sums, and what they were sent for it.

  Privacy: each user's part is a function of their own ratings and of `items`.
  """
  vector, bias = dpals_users.exact_fit(
    data.by_user,
    items.mean,
    items.vector,
    quarter=hyper.quarter,
    center=hyper.center,
    max_norm=dpals_items.MAX_NORM,
    max_label=_MAX_LABEL,
    vector_ridge=hyper.vector_ridge,
    bias_ridge=hyper.bias_ridge,
  )
  # The center is part of what a user subtracts.
  bias = jnp.where(jnp.isfinite(bias), bias, 0.0) + hyper.center
  public = user_sums.Public(
    items.mean, items.weight, hyper.label_bound, hyper.count_scale
  )
  num_items = data.by_item.num_rows
  square = user_sums.squared_norms(data.by_user, bias, public, num_items)
  weight = user_sums.weights(square, hyper.contribution)
  vector = dpals_users.clipped(vector, hyper.clip_norm, hyper.vector_share)
  if vector:
    columns = jnp.stack(vector, axis=1)
  else:
    columns = jnp.zeros((data.by_user.num_rows, 0))
  return user_sums.Users(bias, columns, weight), public


def step(key: jax.Array, state: State, data: Data) -> State:
  """One sweep; the rank is that of the state's items.

  Privacy: given `items`, which earlier sweeps released, users' terms are
  functions of their own ratings, so a user who comes or goes adds or takes
  away their own terms, of norm at most `Plan.sensitivity` over all sums of all
  items. The noise makes a sweep a Gaussian mechanism; items are computed from
  its result.
  """
  hyper = state.hyper
  users, public = local_users(state.items, hyper, data)
  sums = user_sums.item_sums(data.by_item, users, public, hyper.noise.spacing)
  (draws,) = noise.draws(key, [sums.shape], data.by_user.mesh)
  noisy = hyper.noise.add(sums, draws)
  items = dpals_items.updated(
    state.items,
    noisy,
    hyper.noise.std,
    quarter=hyper.quarter,
    count_scale=hyper.count_scale,
    contribution=hyper.contribution,
    vector_share=hyper.vector_share,
    adaptivity=hyper.adaptivity,
    memory=hyper.memory,
  )
  bias = users.bias - hyper.center
  columns = [jnp.zeros_like(bias), jnp.ones_like(bias), bias]
  columns = jnp.stack(columns, axis=1)
  user = jnp.concatenate([users.vector, columns], axis=1)
  return State(Factors(user, item_factors(items)), items, hyper)


def item_factors(items: dpals_items.Items) -> jax.Array:
  """[I, D + 3]: vector, popularity, mean and a 1 for the user's bias.

  Popularity is how often an item is rated, in logarithms: some people are
  stricter with what everybody sees than others.
  """
  mean = items.mean - dpals_items.common_mean(items)
  columns = [dpals_items.popularity(items), mean, jnp.ones_like(mean)]
  return jnp.concatenate([items.vector, jnp.stack(columns, axis=1)], axis=1)


def model(state: State, data: Data) -> Release:
  """Items, and what each user fits to their own ratings; not released."""
  return fitted_users(data.by_user, _released(state))


def _released(state: State) -> Release:
  """Items; users fit a vector, a bias and slopes on means and popularity."""
  hyper, item = state.hyper, item_factors(state.items)
  prior = jnp.zeros(item.shape[1]).at[-2].set(1.0)
  square = jnp.square(hyper.quarter)
  ridge = jnp.full_like(prior, hyper.final_vector_ridge * square)
  ridge = ridge.at[-3].set(hyper.popularity_ridge)
  ridge = ridge.at[-2].set(hyper.slope_ridge * square)
  ridge = ridge.at[-1].set(hyper.final_bias_ridge)
  offset = hyper.center + dpals_items.common_mean(state.items)
  numbers = state.items.counts
  return Release(Factors(None, item), offset, Fit(prior, ridge), numbers)


def dpals(config: DPALSConfig) -> System:
  """ALS that protects whole users; item factors are released.

  Privacy: `steps` adaptive Gaussian mechanisms (see `step`) are Gaussian DP
  with mu = sqrt(steps) / noise_multiplier (Dong, Roth and Su 2022, Corollary
  3.3). The number of sweeps, the rank and the start depend on public facts
  alone: settings, and the numbers of users and items. What a user computes
  from their own ratings and the released items goes to that user only: joint
  differential privacy (Kearns, Pai, Roth and Ullman 2014, the billboard
  lemma of Hsu et al. 2016).
  """

  def init(key: jax.Array, data: Data) -> State:
    num_users, num_items = data.by_user.num_rows, data.by_item.num_rows
    used = resolved(config, num_users, num_items)
    check_tails(used, num_items)
    hyper, rank = hyper_of(used, num_users), cast(int, used.rank)
    items = dpals_items.start(key, num_items, rank, hyper.quarter)
    user = jnp.zeros((num_users, rank + 3)).at[:, -2].set(1.0)
    return State(Factors(user, item_factors(items)), items, hyper)

  return System(
    init=init,
    step=step,
    model=model,
    steps=config.steps,
    guarantee=plan(config).guarantee,
    scale=config.scale,
  )
