"""Rounds of gradients with shares of fixed noise, as published.

Reference: Hua, Xia and Zhong, Differentially Private Matrix Factorization
(2015), scenarios 2 (static users) and 3 (dynamic users). Their U is our user
factors, V our item factors, d our rank.

In a round the recommender serves q_j; user s sends the gradient of
(r - p.q)^2 in q_j, plus a share of the noise eta_j, plus a mask; the third
party adds up and the recommender takes the masks off. Users move their own
vectors by their own gradients. The noise eta_j is drawn once, in shares
  (2 tau sqrt(d) / epsilon) sqrt(2 H_j[l]) C[l], C[l] ~ N(0, 1/k),
which makes it Laplace per coordinate to who does not know H. Static users add
their own share in every round. With dynamic users the shares are collected
once and dealt out again to whoever is online, so that the sum of a round has
the same noise. All sums are of fixed-point integers, exact on the ring; masks
cancel bit by bit and are not drawn here, see `federated.masks`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.kernels.gradients import row_gradient
from dpmf_jax.kernels.slices import Chunk, sum_over_slices, take
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.clipping import clip_rows
from dpmf_jax.plans.untrusted_pmf import (
  Attendance,
  UntrustedPMFConfig,
  share_scale,
)
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems import pmf
from dpmf_jax.systems.traced import MOMENTUM, optimizer_state, traced
from dpmf_jax.systems.untrusted.views import (
  PublicView,
  RecommenderView,
  ThirdPartyView,
)
from dpmf_jax.types import Factors, Release

# The sum of the shares is beyond this many times its scale with a chance of
# exp(-30).
_REACH = 30


class State(NamedTuple):
  factors: Factors
  optimizer: Any  # of optax
  noise_scales: jax.Array  # [I, D] H, known to the recommender
  noise: jax.Array  # [I, D] int32, the sum of the shares
  sums: jax.Array  # [2, I, D] int32, of the last two rounds, as received
  done: jax.Array  # int32, rounds so far
  hyper: Any  # `traced`


def fraction_bits(config: UntrustedPMFConfig, num_users: int) -> int:
  """f: bits after the point with which no item's sum can wrap."""
  spread = _REACH * (share_scale(config) + config.round_noise)
  return secure_sum.fraction_bits(num_users, 2 * config.residual_bound, spread)


def hyper_of(config: UntrustedPMFConfig, num_users: int) -> Any:
  """The traced settings; `noise` is 2 tau sqrt(d) / epsilon."""
  names = 'step_size', 'ridge', 'round_noise', 'residual_bound', 'online'
  return traced(
    config,
    *names,
    noise=share_scale(config),
    spacing=2.0 ** -fraction_bits(config, num_users),
  )


def start_factors(key: jax.Array, sizes: tuple[int, int], rank: int) -> Factors:
  """Those of so many users and items before the first round."""
  user_key, item_key = jax.random.split(key)
  return Factors(
    pmf.start_users(user_key, sizes[0], rank),
    pmf.start_items(item_key, sizes[1], rank),
  )


def start_optimizer(factors: Any, hyper: Any, num_ratings: jax.Array) -> Any:
  """That of one side or both, before the first round."""
  return optimizer_state(MOMENTUM, factors, hyper.step_size / num_ratings)


def start(key: jax.Array, data: Data, hyper: Any, *, rank: int) -> State:
  """The state before the first round, in which noise is drawn."""
  sizes = data.by_user.num_rows, data.by_item.num_rows
  begun = start_factors(key, sizes, rank)
  count = jnp.maximum(data.by_user.length.sum(), 1).astype(jnp.float32)
  optimizer = start_optimizer(begun, hyper, count)
  counts = jnp.zeros(begun.item.shape, jnp.int32)
  return State(
    factors=begun,
    optimizer=optimizer,
    noise_scales=jnp.zeros_like(begun.item),
    noise=counts,
    sums=jnp.stack([counts, counts]),
    done=jnp.int32(0),
    hyper=hyper,
  )


def gradient_counts(
  user: jax.Array, item: jax.Array, value: jax.Array, hyper: Any
) -> jax.Array:
  """Gradients of (r - p.q)^2 in q for ratings [...], as int32 [..., D].

  Args:
    user, item: [..., D], of each rating.
    value: [...] the ratings.
    hyper: settings; residuals are clipped.
  """
  residual = jnp.sum(user * item, axis=-1) - value
  bound = hyper.residual_bound
  residual = jnp.clip(residual, -bound, bound)[..., None]
  return _counts(2.0 * residual * user, hyper)


def share_counts(
  normal: jax.Array, noise_scales: jax.Array, raters: jax.Array, hyper: Any
) -> jax.Array:
  """Shares of noise, int32 [..., D].

  Args:
    normal: [..., D] N(0, 1) draws of each rater.
    noise_scales: [..., D] H of the item.
    raters: [...] k of the item.
    hyper: settings.
  """
  own = normal / jnp.sqrt(raters)[..., None]  # C ~ N(0, 1/k)
  return _counts(hyper.noise * jnp.sqrt(2.0 * noise_scales) * own, hyper)


def _counts(values: jax.Array, hyper: Any) -> jax.Array:
  return jnp.round(values / hyper.spacing).astype(jnp.int32)


def gradient_sums(
  rows: Rows, factors: Factors, online: jax.Array, hyper: Any
) -> jax.Array:
  """The sums [I, D] int32 of the gradients of users that are online."""

  def slice_sums(chunk: Chunk, hyper):
    user, online = chunk.column
    item = jnp.broadcast_to(chunk.row[:, None], user.shape)
    counts = gradient_counts(user, item, chunk.value, hyper)
    there = chunk.mask & online
    return jnp.where(there[..., None], counts, 0).sum(axis=1, dtype=jnp.int32)

  return sum_over_slices(
    slice_sums, rows, (factors.user, online), factors.item, hyper
  )


def _drawn_noise(key: jax.Array, state: State, rows: Rows):
  """H [I, D] and the sum of all raters' shares [I, D] int32."""
  scale_key, share_key = jax.random.split(key)
  num_items, rank = state.noise.shape
  scales = jax.random.exponential(scale_key, (num_items, rank))
  raters = _raters(rows, jnp.ones(len(state.factors.user), bool))
  # Draws take the ratings' place, to be cut into chunks with them.
  drawn = jax.random.normal(share_key, (*rows.value.shape, rank))

  def slice_sums(chunk: Chunk, hyper):
    every = lambda x: jnp.broadcast_to(
      x[:, None], (*chunk.mask.shape, *x.shape[1:])
    )
    scales, raters = map(every, chunk.row)
    counts = share_counts(chunk.value, scales, raters, hyper)
    return jnp.where(chunk.mask[..., None], counts, 0).sum(
      axis=1, dtype=jnp.int32
    )

  rows = dataclasses.replace(rows, value=drawn)
  raters = raters.astype(jnp.float32)
  return scales, sum_over_slices(
    slice_sums, rows, (), (scales, raters), state.hyper
  )


def _raters(rows: Rows, online: jax.Array) -> jax.Array:
  """How many of the users that are online have rated each item [I]."""
  return sum_over_slices(
    lambda chunk: (chunk.mask & chunk.column).sum(axis=1, dtype=jnp.int32),
    rows,
    online,
    (),
  )


def _still(online: jax.Array, new: Any, old: Any) -> Any:
  """`new`, with the user side of its factors as in `old` for who is offline."""
  is_factors = lambda x: isinstance(x, Factors)

  def kept(new, old):
    if not is_factors(new):
      return new
    return new._replace(user=jnp.where(online[:, None], new.user, old.user))

  return jax.tree.map(kept, new, old, is_leaf=is_factors)


class RoundKeys(NamedTuple):
  """What the key of a round is for."""

  shares: jax.Array
  online: jax.Array
  own: jax.Array


def round_keys(key: jax.Array) -> RoundKeys:
  return RoundKeys(*jax.random.split(key, 3))


def who_is_online(key: jax.Array, hyper: Any, num_users: int) -> jax.Array:
  """[U] bool, of dynamic users in a round."""
  return jax.random.bernoulli(key, hyper.online, (num_users,))


def _rounds_step(users: Attendance):
  """The step: a round."""

  def step(key: jax.Array, state: State, data: Data) -> State:
    hyper, factors = state.hyper, state.factors
    keys = round_keys(key)
    scales, noise = jax.lax.cond(
      state.done == 0,
      lambda key: _drawn_noise(key, state, data.by_item),
      lambda key: (state.noise_scales, state.noise),
      keys.shares,
    )
    num_users = data.by_user.num_rows
    online = jnp.ones(num_users, bool)
    own = hyper.round_noise * jax.random.normal(keys.own, noise.shape)
    added = noise + _counts(own, hyper)
    if users == 'dynamic':
      online = who_is_online(keys.online, hyper, num_users)
      # Pieces of noise are dealt to who is online: without them there is none.
      reached = _raters(data.by_item, online) > 0
      added = jnp.where(reached[:, None], added, 0)
    sums = gradient_sums(data.by_item, factors, online, hyper) + added
    gradient = server_gradient(sums, factors.item, hyper)
    user = user_gradient(data.by_user, factors.user, factors.item, hyper)
    updates, optimizer = MOMENTUM.update(
      Factors(user, gradient), state.optimizer, factors
    )
    moved = cast(Factors, optax.apply_updates(factors, updates))
    moved = moved._replace(user=clip_rows(moved.user, 1.0))
    if users == 'dynamic':
      moved = _still(online, moved, factors)
      optimizer = _still(online, optimizer, state.optimizer)
    return state._replace(
      factors=moved,
      optimizer=optimizer,
      noise_scales=scales,
      noise=noise,
      sums=jnp.stack([state.sums[1], sums]),
      done=state.done + 1,
    )

  return step


# One object each, so that equal settings are compiled once.
STEPS = {users: _rounds_step(users) for users in ('static', 'dynamic')}


def user_gradient(
  rows: Rows, user: jax.Array, item: jax.Array, hyper: Any
) -> jax.Array:
  """The gradient [U, D] that users follow at home, from their own ratings."""
  return 2.0 * (row_gradient(rows, user, item) + hyper.ridge * user)


def server_gradient(sums: jax.Array, items: jax.Array, hyper: Any) -> jax.Array:
  """The gradient [I, D] that the recommender follows, from unmasked sums."""
  return sums.astype(jnp.float32) * hyper.spacing + 2.0 * hyper.ridge * items


def rounds_model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))


def _recommender(key: jax.Array, state: State, data: Data) -> RecommenderView:
  del key, data
  return RecommenderView(
    PublicView(state.factors.item, jnp.float32(0)),
    sums=state.sums,
    noise_scales=state.noise_scales,
  )


def _third_party(key: jax.Array, state: State, data: Data) -> ThirdPartyView:
  rows, factors = data.by_item, state.factors
  item = take(factors.item, rows.row)[:, :, None]
  item = jnp.broadcast_to(item, (*rows.column.shape, item.shape[-1]))
  counts = gradient_counts(
    take(factors.user, rows.column), item, rows.value, state.hyper
  )
  words = jax.lax.bitcast_convert_type(counts, jnp.uint32)
  masks = jax.random.bits(key, words.shape, 'uint32')
  reports = (words + masks).reshape(-1, words.shape[-1])
  return ThirdPartyView(PublicView(factors.item, jnp.float32(0)), reports)


# What parties see, for the auditor.
VIEWS = {'recommender': _recommender, 'third_party': _third_party}
