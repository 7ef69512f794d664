"""Recommenders without a trusted curator: clients noise what they send.

The sound form of what Jiang, Li and Lin call SDCF: the record is randomised
and not the gradient, once, and every round is computed from that. Or, for a
whole user, clipped contributions are added up by a secure sum with noise.

A network runs `records.answers` (or `client_sums`) on each client with a key of
its own, `server_apply` (or the secure sum and `released_means`) on the server,
and `regression.fitted_users` on each client for its own ratings.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpmf_jax.accounting.records import GRID
from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.kernels.slices import Chunk, sum_over_slices
from dpmf_jax.mechanisms import noise, records
from dpmf_jax.mechanisms.clipping import SLACK
from dpmf_jax.plans import local_mf as settings
from dpmf_jax.plans.local_mf import LocalMFConfig
from dpmf_jax.rows import Data
from dpmf_jax.systems.local_mf_server import server_apply
from dpmf_jax.systems.traced import traced
from dpmf_jax.types import Factors, Fit, Release, System

_CENTER_STEP = GRID * 5 // 8  # `LocalMFConfig.center` on the grid


class State(NamedTuple):
  """Attributes:
  factors: users: 1, zeros and 0; items: mean, factors and 1.
  observed: what the adversary sees: answers [U, I] uint8 or noisy sums
    [I, 2] in units of a weighted step.
  hyper: settings.
  """

  factors: Factors
  observed: Array
  hyper: Any  # `traced`


def client_sums(profile: Array, clip: Array, count: Array, weight: Array):
  """The contribution [I, 2] int32 of a client with cells `profile` [I].

  For each rated item (count, rating - center) in steps of the grid, times a
  weight that brings the norm of all below `clip` * `weight`.
  """
  terms = _terms(profile, count)
  square = jnp.square(terms).sum()
  return _weights(square, clip, weight) * terms


def _terms(cell: Array, count: Array) -> Array:
  """(count, rating - center) [..., 2] int32 of cells; 0 where they are blank.

  Whole steps of the grid, so that sums of squares are exact, too.
  """
  label = cell.astype(jnp.int32) - (1 + _CENTER_STEP)
  pair = jnp.stack([jnp.broadcast_to(count, label.shape), label], axis=-1)
  return jnp.where(cell[..., None] > 0, pair, 0)


def _weights(square: Array, clip: Array, weight: Array) -> Array:
  """Whole weights of clients whose terms have these sums of squares.

  Privacy: w = floor(weight min(1, clip (1 - 1e-5) / sqrt(square))), so that
  w sqrt(square) <= clip * weight: float32 is wrong by less than 1e-6 here.
  """
  norm = jnp.sqrt(jnp.maximum(square, 1).astype(jnp.float32))
  share = jnp.minimum(clip * (1 - SLACK) / norm, 1.0)
  return jnp.floor(weight.astype(jnp.float32) * share).astype(jnp.int32)


def summed_contributions(data: Data, hyper: Any) -> Array:
  """The sum [I, 2] int32 of `client_sums` over all users, from the ratings.

  Privacy: exact integers. A user that comes or goes adds or removes their own
  contribution, of norm at most clip * weight, and moves no other.
  """
  scale = hyper.low, hyper.high

  def squares(chunk: Chunk, low, high, count):
    cell = jnp.where(chunk.mask, records.codes(chunk.value, low, high), 0)
    return jnp.square(_terms(cell, count)).sum(axis=(1, 2))

  square = sum_over_slices(squares, data.by_user, (), (), *scale, hyper.counted)
  weights = _weights(square, hyper.clip, hyper.weight)

  def sums(chunk: Chunk, low, high, count):
    cell = jnp.where(chunk.mask, records.codes(chunk.value, low, high), 0)
    return (chunk.column[..., None] * _terms(cell, count)).sum(axis=1)

  return sum_over_slices(sums, data.by_item, weights, (), *scale, hyper.counted)


def released_means(sums: Array, hyper: Any) -> Array:
  """Item means [I] in quarters of the scale, shrunk by the noise of `sums`."""
  step = 4.0 / GRID / hyper.weight  # in quarters
  deviation = hyper.noise.std * step
  number = sums[:, 0] / (hyper.counted * hyper.weight).astype(jnp.float32)
  number = jnp.maximum(number, 0.0)
  # Ratings of weight w < 1 have a variance of w^2, less than their weight.
  variance = jnp.square(deviation) + 0.75 * number
  scale = jnp.square(number) + variance / hyper.prior_variance
  return sums[:, 1] * step * number / scale


@functools.cache
def _record_step(rank: int):
  """The one round; one object for equal arguments.

  Privacy: all is computed from `records.all_answers`.
  """

  def step(key: Array, state: State, data: Data) -> State:
    hyper = state.hyper
    clients_key, server_key = jax.random.split(key)
    answers = records.all_answers(
      clients_key, data, hyper.response, hyper.low, hyper.high
    )
    mean, factors = server_apply(
      server_key, answers, hyper.tables, hyper.prior_variance, rank=rank
    )
    return _applied(state, answers, mean, factors)

  return step


def _user_step(key: Array, state: State, data: Data) -> State:
  """The one secure sum; see `summed_contributions` for its sensitivity.

  Privacy: a Gaussian mechanism on exact integers with noise of the config's
  multiplier times the sensitivity clip * weight; the means are computed from
  the noisy sums.
  """
  sums = summed_contributions(data, state.hyper)
  (draws,) = noise.draws(key, [sums.shape], data.by_user.mesh)
  noisy = state.hyper.noise.add(sums, draws)
  mean = released_means(noisy, state.hyper)
  return _applied(state, noisy, mean, jnp.zeros((len(mean), 0)))


def _applied(state: State, observed, mean, factors) -> State:
  item = jnp.concatenate([mean[:, None], factors], axis=1)
  item = item * state.hyper.quarter
  item = state.factors.item.at[:, :-1].set(item)
  return state._replace(
    factors=state.factors._replace(item=item), observed=observed
  )


def _model(state: State, data: Data) -> Release:
  """Item factors, and what each user fits to their own ratings at home."""
  return fitted_users(data.by_user, _released(state))


def _released(state: State) -> Release:
  """Items; users fit around no bias, slope 1 and no vector."""
  hyper, item = state.hyper, state.factors.item
  prior = jnp.zeros(item.shape[1]).at[0].set(1.0)
  return Release(Factors(None, item), hyper.center, Fit(prior, hyper.ridge))


def transcript(key: Array, state: State, data: Data) -> Array:
  """All that the adversary sees, for audits: answers or noisy sums."""
  del key, data
  return state.observed.astype(jnp.float32)


def local_mf(config: LocalMFConfig) -> System:
  """Item means and factors from noised reports; users fit their own side.

  Privacy (rating): see `records.answers`: every cell has one answer of pure
  epsilon, and the server works with the answers alone. (user): see
  `summed_contributions` and `_user_step`; (epsilon, delta) for a user that
  comes or goes. In both cases what users fit at home is not released.
  """
  by_record = config.unit == 'rating'
  rank = config.rank if by_record else 0

  def init(key: Array, data: Data) -> State:
    del key
    num_users, num_items = data.by_user.num_rows, data.by_item.num_rows
    hyper = (
      _record_hyper(config)
      if by_record
      else _user_hyper(config, num_users, num_items)
    )
    user = jnp.zeros((num_users, rank + 2)).at[:, 0].set(1.0)
    item = jnp.zeros((num_items, rank + 2)).at[:, -1].set(1.0)
    observed = (
      jnp.zeros((num_users, num_items), jnp.uint8)
      if by_record
      else jnp.zeros((num_items, 2))
    )
    return State(Factors(user, item), observed, hyper)

  return settings.plan(config).system(
    init,
    _record_step(rank) if by_record else _user_step,
    _model,
    views={'transcript': transcript},
    scale=config.scale,
  )


def _hyper(config: LocalMFConfig, rank: int, **others: Any) -> Any:
  ridge = [config.mean_ridge, *[config.vector_ridge] * rank, config.bias_ridge]
  return traced(
    config,
    'scale',
    'center',
    'quarter',
    'prior_variance',
    ridge=np.asarray(ridge, np.float32),  # [D + 2]
    **others,
  )


def _record_hyper(config: LocalMFConfig) -> Any:
  levels = config.answer_levels
  return _hyper(
    config,
    config.rank,
    response=records.response(
      levels,
      scale=config.scale,
      rounding=config.rounding,
      epsilon=config.epsilon,
    ),
    tables=records.estimates(
      levels,
      settings.plan(config).noise['answers'],
      center=config.center,
      spacing=config.quarter,
    ),
  )


def _user_hyper(config: LocalMFConfig, num_users: int, num_items: int) -> Any:
  """The settings of a secure sum of that size, which is public.

  Raises ValueError where sums could overflow.
  """
  if num_items > settings.max_items(config):
    raise ValueError(
      f'{num_items} items are too many for exact sums of squares; use a '
      'smaller count_scale or fewer items'
    )
  weight = 2 ** settings.weight_bits(config, num_users)
  std = settings.noise_multiplier(config) * config.clip_steps * weight
  return _hyper(
    config,
    0,
    clip=float(config.clip_steps),  # of a contribution, in steps of the grid
    counted=config.count_steps,  # for one rating, in steps of the grid
    weight=weight,  # of a client that is not clipped
    noise=noise.lattice_noise(
      std, 1.0, limit='32-bit sums: use a smaller clip_norm'
    ),
  )
