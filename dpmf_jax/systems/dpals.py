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

import functools
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.homes import alike, by_home
from dpmf_jax.kernels import user_sums
from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.mechanisms import noise
from dpmf_jax.plans import dpals as plans
from dpmf_jax.plans.dpals import DPALSConfig
from dpmf_jax.rows import Data
from dpmf_jax.systems import (
  dpals_items,
  dpals_taste,
  dpals_users,
  dpals_votes,
)
from dpmf_jax.systems.row_means import own_bias_ridge
from dpmf_jax.systems.traced import traced
from dpmf_jax.types import Factors, Fit, Release, System

# Of a rating less its item's mean, in quarters: 2.5 and MAX_MEAN, and a bit.
_MAX_LABEL = 6.0
# Of columns of items in users' equations; larger ones count as so large.
_MOST_MEAN = 3.0  # quarters
_MOST_POPULARITY = 4.0
_MAX_NORM = math.hypot(dpals_items.MAX_NORM, math.sqrt(3.0))


class State(NamedTuple):
  factors: Factors  # users as of the last sweep (secret); items as released
  items: dpals_items.Items
  votes: dpals_votes.Votes
  share: jax.Array  # [] bound on users' vectors in the next sweep; 0: none
  done: jax.Array  # [] int32, sweeps so far
  hyper: Any


def hyper_of(config: DPALSConfig, num_users: int) -> Any:
  """The traced settings for that many users; the config has a rank."""
  quarter = jnp.float32(config.quarter)
  return traced(
    config,
    'quarter',
    'center',
    'vector_share',
    'clip_norm',
    'vectors_from',
    'adaptivity',
    'bias_ridge',
    'vector_ridge',
    **{
      name: getattr(config, name) * quarter
      for name in ('label_bound', 'count_scale')
    },
    terms_bound=plans.terms_bound(config, bool(config.rank)),
    vote_bound=plans.vote_bound(config),
    alternatives=np.array(plans.alternatives(config), np.float32),
    means_first=plans.means_first(config),
    steps=config.steps,
    memory=plans.MEMORY,
    final_bias_ridge=plans.FINAL_BIAS_RIDGE,
    noise=noise.lattice_noise(
      plans.plan(config).noise['sums'],
      plans.lattice_spacing(config, num_users),
      limit='int32: use a smaller contribution or a larger epsilon',
    ),
  )


def start(key: jax.Array, num_items: int, rank: int, hyper: Any) -> State:
  """What is known before any sweep; no users."""
  items = dpals_items.start(key, num_items, rank, hyper.quarter)
  votes = dpals_votes.start(hyper.alternatives)
  factors = Factors(None, item_factors(items))
  done = jnp.int32(0)
  return State(factors, items, votes, _share(True, done, hyper), done, hyper)


def _share(vectors: Any, done: jax.Array, hyper: Any) -> jax.Array:
  """Of vectors in a sweep after `done` others, where they are in any."""
  there = vectors & (done >= hyper.means_first)
  return jnp.where(there, hyper.vector_share, 0.0)


def contribution(state: State) -> jax.Array:
  """[] bound on a user's terms of counts and residuals in the next sweep.

  Privacy: with vectors of norm `share` terms are at most terms_bound long.
  """
  if not state.items.vector.shape[1]:
    return state.hyper.terms_bound
  return state.hyper.terms_bound / jnp.sqrt(1 + jnp.square(state.share))


def local_users(
  state: State, data: Data
) -> tuple[user_sums.Users, user_sums.Public, jax.Array]:
  """What users put into a sweep's sums, what they were sent, and their votes.

  Privacy: each user's part is a function of their own ratings and of the items,
  votes and shares so far, which are public.
  """
  items, hyper = state.items, state.hyper
  equations = dpals_users.exact_equations(
    data.by_user,
    _fitted_columns(items, hyper.quarter),
    items.mean,
    quarter=hyper.quarter,
    center=hyper.center,
    max_norm=_MAX_NORM,
    max_label=_MAX_LABEL,
  )
  rank = items.vector.shape[1]
  ridge = jnp.full(rank + 1, hyper.vector_ridge).at[0].set(hyper.bias_ridge)
  alternatives = _ridges_of_alternatives(hyper, items)
  found, evidence = by_home(
    lambda own: dpals_users.fitted(own, ridge, alternatives),
    data.by_user,
    equations,
  )
  # The center is part of what a user subtracts.
  bias = found[:, 0] * hyper.quarter
  bias = jnp.where(jnp.isfinite(bias), bias, 0.0) + hyper.center
  public = user_sums.Public(
    items.mean, items.weight, hyper.label_bound, hyper.count_scale
  )
  num_items = data.by_item.num_rows
  square = user_sums.squared_norms(data.by_user, bias, public, num_items)
  weight = user_sums.weights(square, contribution(state))
  vector = dpals_users.clipped(found[:, 1:], hyper.clip_norm, state.share)
  votes = dpals_votes.terms(
    evidence,
    equations.matrix[:, 0, 0] > 0,
    bound=hyper.vote_bound,
    spacing=hyper.noise.spacing,
  )
  return user_sums.Users(bias, vector, weight), public, votes


def _fitted_columns(items: dpals_items.Items, quarter: jax.Array) -> jax.Array:
  """[I, D + 3]: 1, vector, mean and popularity, of norm at most _MAX_NORM."""
  mean = (items.mean - dpals_items.common_mean(items)) / quarter
  short = lambda column, most: jnp.clip(column / most, -1.0, 1.0)[:, None]
  columns = [
    jnp.ones_like(mean)[:, None],
    items.vector / quarter,
    short(mean, _MOST_MEAN),
    short(dpals_items.popularity(items), _MOST_POPULARITY),
  ]
  return jnp.concatenate(columns, axis=1)


def _bias_ridge(hyper: Any, items: dpals_items.Items) -> jax.Array:
  """[] of users' biases in their fits to what is released.

  They make up for what is not known of the mean of all ratings, too.
  """
  ridge = own_bias_ridge(hyper.final_bias_ridge, items.own)
  _, variance = dpals_items.known_common(
    items, hyper.count_scale, hyper.quarter
  )
  return 1 / (1 / ridge + variance / dpals_items.RATING)


def _ridges_of_alternatives(hyper: Any, items: dpals_items.Items) -> jax.Array:
  """[G, D + 3], for each of `_fitted_columns`; items are public."""
  vector, mean, popularity = hyper.alternatives.T[:, :, None]
  columns = [
    jnp.full_like(vector, _bias_ridge(hyper, items)),
    vector / jnp.square(items.size)[None],
    mean / _MOST_MEAN**2,
    popularity / _MOST_POPULARITY**2,
  ]
  return jnp.concatenate(columns, axis=1)


def step(key: jax.Array, state: State, data: Data) -> State:
  """One sweep; the rank is that of the state's items.

  Privacy: given items, votes and share, which earlier sweeps released, users'
  terms are functions of their own ratings, so a user who comes or goes adds or
  takes away their own terms, of norm at most `Plan.sensitivity` over all sums
  of all items and votes. The noise makes a sweep a Gaussian mechanism; what is
  known next is computed from its result.
  """
  hyper = state.hyper
  users, public, votes = local_users(state, data)
  sums = user_sums.item_sums(data.by_item, users, public, hyper.noise.spacing)
  votes = votes.sum(axis=0)
  item_draws, vote_draws = noise.draws(
    key, [sums.shape, votes.shape], data.by_user.mesh
  )
  columns = [0 * users.bias, 0 * users.bias + 1, users.bias - hyper.center]
  columns = jnp.stack(columns, axis=1)
  user = jnp.concatenate([users.vector, columns], axis=1)
  known = alike(
    functools.partial(_known, num_users=data.by_user.num_rows),
    state.done,
    state._replace(factors=None),
    hyper.noise.add(sums, item_draws),
    hyper.noise.add(votes, vote_draws),
  )
  return known._replace(factors=known.factors._replace(user=user))


def _known(
  state: State, sums: jax.Array, votes: jax.Array, num_users: int
) -> State:
  """The state after noisy sums and votes, without users."""
  hyper = state.hyper
  items = dpals_items.updated(
    state.items,
    sums,
    hyper.noise.std,
    num_users=num_users,
    quarter=hyper.quarter,
    count_scale=hyper.count_scale,
    contribution=contribution(state),
    vector_share=state.share,
    adaptivity=hyper.adaptivity,
    memory=hyper.memory,
  )
  factors = Factors(None, item_factors(items))
  return _after(state, items, votes)._replace(factors=factors)


def _after(state: State, items: dpals_items.Items, noisy: jax.Array) -> State:
  """The state with new items and noisy votes [G] on the old ones."""
  hyper, done = state.hyper, state.done + 1
  # Votes on vectors that no sweep had made do not count.
  made = done - hyper.means_first
  before = jax.tree.map(
    lambda total: jnp.where(made > 2, total, 0.0), state.votes
  )
  votes = dpals_votes.updated(before, noisy, hyper.noise.std, hyper.vote_bound)
  wanted = dpals_votes.vectors_help(votes, hyper.alternatives)
  wanted = wanted | (made < plans.ATTEMPTS)
  # Once they have ended they stay as they are.
  wanted = wanted & ((state.share > 0) | (made < 1))
  if items.vector.shape[1]:
    pays = dpals_taste.pays(
      items,
      std=hyper.noise.std,
      quarter=hyper.quarter,
      share=hyper.vector_share,
      now=state.share,
      memory=hyper.memory,
      left=hyper.steps - done,
      promised=hyper.vectors_from,
    )
    wanted = wanted & (pays | (done != jnp.maximum(hyper.means_first, 1)))
  share = _share(wanted, done, hyper)
  return State(state.factors, items, votes, share, done, hyper)


def item_factors(items: dpals_items.Items) -> jax.Array:
  """[I, D + 3]: vector, popularity, mean and a 1 for the user's bias.

  Vectors are of a size that leaves users' coordinates alike. Popularity is how
  often an item is rated, in logarithms: some people are stricter than others
  with what everybody sees.
  """
  mean = items.mean - dpals_items.common_mean(items)
  columns = [dpals_items.popularity(items), mean, jnp.ones_like(mean)]
  vector = items.vector * items.size[None]
  return jnp.concatenate([vector, jnp.stack(columns, axis=1)], axis=1)


def model(state: State, data: Data) -> Release:
  """Items, and what each user fits to their own ratings; not released."""
  return fitted_users(data.by_user, _released(state))


def _released(state: State) -> Release:
  """Items; users fit a vector, a bias and slopes on means and popularity."""
  hyper, item = state.hyper, item_factors(state.items)
  vector, mean, popularity = dpals_votes.chosen(state.votes, hyper.alternatives)
  prior = jnp.zeros(item.shape[1]).at[-2].set(1.0)
  square = jnp.square(hyper.quarter)
  ridge = jnp.full_like(prior, vector * square)
  ridge = ridge.at[-3].set(popularity).at[-2].set(mean * square)
  ridge = ridge.at[-1].set(_bias_ridge(hyper, state.items))
  common, _ = dpals_items.known_common(
    state.items, hyper.count_scale, hyper.quarter
  )
  offset = hyper.center + common
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
    used = plans.resolved(config, num_users, num_items)
    plans.check_tails(used, num_items)
    hyper, rank = hyper_of(used, num_users), cast(int, used.rank)
    state = start(key, num_items, rank, hyper)
    user = jnp.zeros((num_users, rank + 3)).at[:, -2].set(1.0)
    return state._replace(factors=state.factors._replace(user=user))

  return plans.plan(config).system(
    init, step, model, scale=config.scale, users_apart=True
  )
