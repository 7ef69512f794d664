"""Second moments: how few items go together, for whole users or single ratings.

A model of rows of ratings as draws of one Gaussian: items have means, and a
covariance. Two steps, each of sums over users with Gaussian noise (one budget):

  0   counts and sums of residuals of items: every user takes their own bias off
      and shortens their row to norm 1. From these, items' means.
  1   sums of x x^T and of a a^T: x is a user's row of residuals, with the means
      taken off, too, and a that of ones, both shortened to norm 1. The first
      over the second is the covariance, up to each user's own scale.

By rating, rows in step 0 are as they are, and in step 1 they are divided by the
square root of their norm, so that users with more ratings say more: no rating
moves e e^T / ||e|| by more than sqrt 2 times what it moves e by. And where
noisy counts say that there are too few ratings to tell pairs from noise, step 1
asks for counts and sums of ratings as they are, and for how users differ in
level, at the same cost, and the model is that of `power_mf` without factors.

Everything after the sums is computed from noisy numbers, and free:
`moments_items`.

Differs from the usual Gaussian mechanism on X^T X (Dwork, Talwar, Thakurta and
Zhang 2014, Analyze Gauss): rows are normalised, and ratings are missing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.homes import by_home
from dpmf_jax.kernels import moments as kernel
from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.mechanisms import noise
from dpmf_jax.plans.moments import (
  ANSWERS,
  RATING_ANSWERS,
  MomentsConfig,
  bounds,
  counted,
  lattice_spacings,
  plan,
)
from dpmf_jax.rows import Data
from dpmf_jax.systems.moments_items import (
  LEAST_RESIDUAL,
  MIN_TOGETHER,
  State,
  Sums,
  finite,
  item_columns,
  with_items,
  with_means,
  with_ratings,
)
from dpmf_jax.systems.power_mf_sums import labels
from dpmf_jax.systems.traced import traced
from dpmf_jax.systems.user_levels import levels_of_users
from dpmf_jax.types import Factors, Fit, Release, System, Unit

# What residuals are about over what they are clipped to, before it is known,
# and how far pairs must stand out of the noise times the number of a user's
# ratings.
_USUAL_SIZE, _MIN_TOLD = 0.5, 10.0


def first_sums(state: State, data: Data, unit: Unit) -> jax.Array:
  """The integers [I, 2] that get the first noise.

  Privacy: a user, or a rating, moves them by at most `Plan.sensitivity`.
  """
  hyper = state.hyper
  own = _residuals(state, data, hyper.means_bound)
  if unit == 'user':
    v = kernel.user_weights(own, hyper.counted)
  else:
    v = jnp.ones(len(own.number))
  return kernel.first_moments(own, hyper.counted, v, hyper.means.spacing)


def rating_sums(state: State, data: Data) -> jax.Array:
  """The integers [I, 2] of counts and of ratings less the scale's middle.

  Privacy: a rating moves one row of them, by at most `Plan.sensitivity`.
  """
  hyper = state.hyper._replace(sent_ridge=jnp.float32(jnp.inf))
  state = state._replace(hyper=hyper, mean=jnp.zeros_like(state.mean))
  return first_sums(state, data, 'rating')


def level_sums(state: State, data: Data) -> jax.Array:
  """The integers [2] of how users differ in level.

  Privacy: given the means, which the first step released, a rating moves both
  together by at most `Plan.sensitivity`.
  """
  mean = state.mean / state.hyper.quarter
  return levels_of_users(data.by_user, labels(data.by_user, state.hyper, mean))


def second_sums(state: State, data: Data, unit: Unit) -> jax.Array:
  """The integers [2, I, I] whose upper triangles get the second noise.

  Privacy: given the means, which the first step released, a user, or a rating,
  moves these triangles by at most `Plan.sensitivity`.
  """
  hyper = state.hyper
  own = _residuals(state, data, hyper.moments_bound)
  if unit == 'user':
    shares = kernel.user_rows(own, jnp.int32(LEAST_RESIDUAL**2))
  else:
    shares = kernel.rating_rows(own, hyper.moments_bound)
  sums = lambda shares, rated: kernel.second_moments(
    shares, rated, hyper.count_weight, hyper.moments.spacing
  )
  return by_home(sums, data.by_user, shares, own.rated, summed=True)


def _residuals(state: State, data: Data, bound: jax.Array) -> kernel.Residuals:
  hyper = state.hyper
  return kernel.residuals(
    kernel.table(data.by_user),
    hyper.center + state.mean,
    hyper.width,
    hyper.sent_ridge,
    hyper.label_bound,
    bound,
  )


def _first(key: jax.Array, state: State, data: Data, unit: Unit) -> State:
  """After the release of counts and residuals."""
  hyper, sums = state.hyper, first_sums(state, data, unit)
  (draws,) = noise.draws(key, [sums.shape], data.by_user.mesh)
  noisy = finite(hyper.means.add(sums, draws))
  return with_means(state, noisy, unit)


def _second(key: jax.Array, state: State, data: Data, unit: Unit) -> State:
  """After the second release; by rating noisy counts say of what."""
  items = len(state.mean)
  # Answers last, so that the two draws of a pair are never for one number: a
  # user's whole move would be in both, and the ends of the pair cost more.
  shape = 2, items * (items + 1) // 2, ANSWERS
  if unit == 'user':
    (draws,) = noise.draws(key, [shape], data.by_user.mesh)
    return _pairs(draws, state, data, unit)
  # Levels are no answer of the others' numbers, and have a pair of their own.
  key, last = jax.random.split(noise.unrolled(key))
  (draws,) = noise.draws(key, [shape], data.by_user.mesh)
  (of_levels,) = noise.draws(last, [(2,)], data.by_user.mesh)
  return jax.lax.cond(
    pairs_pay(state),
    lambda state: _pairs(draws, state, data, unit),
    lambda state: _ratings(draws, of_levels, state, data),
    state,
  )


def pairs_pay(state: State) -> jax.Array:
  """[] bool: whether pairs of items would be told from noise, by rating.

  If each user had the mean number of ratings, by the noisy counts, of items
  that are rated alike.
  """
  hyper, sums = state.hyper, state.sums
  users, items = len(state.factors.user), len(state.mean)
  number = jnp.sum(sums.first[:, 0]) / hyper.counted / users
  together = users * jnp.clip(number, 0.0, items) ** 1.5 / items**2
  error = hyper.moments.std * (0.5 / ANSWERS) ** 0.5 / _USUAL_SIZE
  # The more of them a user has, the more pairs tell of one more.
  least = jnp.maximum(MIN_TOGETHER, _MIN_TOLD / jnp.maximum(number, 1.0))
  return together >= hyper.pairs_from * least * error


def _pairs(draws: noise.Draws, state: State, data: Data, unit: Unit) -> State:
  """After the release of products of residuals and of counts.

  Privacy: what is below the upper triangles is a copy of what is above. Each
  of ANSWERS has noise of its own.
  """
  hyper, sums = state.hyper, second_sums(state, data, unit)
  above = jnp.triu_indices(sums.shape[-1])
  upper = sums[:, above[0], above[1]]
  answers = jnp.broadcast_to(upper[..., None], draws.value.shape)
  noisy = finite(hyper.moments.add(answers, draws)).mean(axis=-1)
  noisy = noisy * jnp.where(above[0] == above[1], 1.0, 0.5**0.5)[None]
  full = jnp.zeros(sums.shape).at[:, above[0], above[1]].set(noisy)
  full = full.at[:, above[1], above[0]].set(noisy)
  full = full / jnp.stack([1.0, hyper.count_weight])[:, None, None]
  sums = state.sums._replace(second=full)
  return with_items(state._replace(sums=sums), unit)


def _ratings(
  draws: noise.Draws, of_levels: noise.Draws, state: State, data: Data
) -> State:
  """After the release of counts, ratings as they are and levels, by rating.

  Privacy: RATING_ANSWERS of counts and ratings, and one of users' levels, each
  with noise of its own, are as many as there are of pairs.
  """
  hyper, sums = state.hyper, rating_sums(state, data).T[..., None]
  # As many of the draws as there are numbers.
  own = slice(sums.shape[1]), slice(RATING_ANSWERS)
  draws = noise.Draws(*(part[:, *own] for part in draws))
  answers = jnp.broadcast_to(sums, draws.value.shape)
  noisy = finite(hyper.ratings.add(answers, draws)).mean(axis=-1).T
  levels = finite(hyper.levels.add(level_sums(state, data), of_levels))
  sums = state.sums._replace(ratings=noisy, levels=levels)
  std = hyper.ratings.std / RATING_ANSWERS**0.5
  return with_ratings(state._replace(sums=sums), std)


@dataclasses.dataclass(frozen=True)
class Step:
  """One of the two releases; equal for equal units. Privacy: see `moments`."""

  unit: Unit

  def __call__(self, key: jax.Array, state: State, data: Data) -> State:
    state = jax.lax.cond(
      state.done == 0,
      lambda state: _first(key, state, data, self.unit),
      lambda state: _second(key, state, data, self.unit),
      state,
    )
    return state._replace(done=state.done + 1)


def model(state: State, data: Data) -> Release:
  """Items, and what each user fits to their own ratings; not released."""
  hyper, item = state.hyper, state.factors.item
  prior = jnp.zeros(item.shape[1]).at[-2].set(1.0)
  ridge = jnp.full_like(prior, state.ridge).at[-1].set(state.bias_ridge)
  fit = Fit(prior, ridge.at[-2].set(state.slope_ridge))
  offset = hyper.center + state.common
  items = Release(Factors(None, item), offset, fit, state.number)
  return fitted_users(data.by_user, items)


def _sums(key: jax.Array, state: State, data: Data) -> tuple[jax.Array, ...]:
  """The noisy sums that everything is computed from."""
  del key, data
  return tuple(state.sums)


def moments(config: MomentsConfig) -> System:
  """Means and the covariance of items; users predict at home.

  Privacy: each step releases sums over users of terms that are functions of
  their own ratings, and of what the step before released: Gaussian mechanisms
  whose unit is a user, or a rating. All answers together, adaptively, are one
  with 1/m^2 = sum of 1/m_s^2 (Dong, Roth and Su 2022, Corollary 3.3). What
  there is depends on public facts alone: settings, and the numbers of users and
  items. Means, factors and ridge are computed from noisy sums. What a user fits
  to the released items goes to that user only: joint differential privacy, as
  for `dpals`, or by rating as for `power_mf`. docs/privacy/moments.md has the
  proof.
  """

  def init(key: jax.Array, data: Data) -> State:
    del key  # nothing is random before the first release
    users, items = (rows.num_rows for rows in data)
    hyper, zero = hyper_of(config, users, items), jnp.zeros(items)
    rank = min(config.rank, items)
    factors = Factors(
      jnp.zeros((users, rank + 2)).at[:, -2].set(1.0),
      item_columns(jnp.zeros((items, rank)), zero),
    )
    sums = Sums(
      first=jnp.zeros((items, 2)),
      second=jnp.zeros((2, items, items)),
      ratings=jnp.zeros((items, 2)),
      levels=jnp.zeros(2),
    )
    return State(
      factors,
      sums,
      number=jnp.ones(items),
      mean=zero,
      common=jnp.float32(0),
      ridge=jnp.float32(1),
      bias_ridge=hyper.home_ridge,
      slope_ridge=jnp.float32(jnp.inf),
      done=jnp.int32(0),
      hyper=hyper,
    )

  return plan(config).system(
    init,
    Step(config.unit),
    model,
    views={'sums': _sums},
    scale=config.scale,
    users_apart=True,
  )


def hyper_of(config: MomentsConfig, num_users: int, num_items: int) -> Any:
  """The traced settings for that many users and items."""
  spacing = lattice_spacings(config, num_users, num_items)
  tables = {
    name: noise.lattice_noise(
      std,
      spacing[name],
      limit='int32: use a larger epsilon',
    )
    for name, std in plan(config).noise.items()
  }
  label, means, moments = bounds(config)
  return traced(
    config,
    'width',
    'center',
    'quarter',
    'scale',
    'sent_ridge',
    'home_ridge',
    'count_weight',
    'pairs_from',
    counted=counted(config),
    label_bound=label,
    means_bound=means,
    moments_bound=moments,
    **tables,
  )
