"""Bayesian personalised ranking in SDCF (SD-BPRMF), as published, or open.

Reference: Jiang, Li and Lin (2019), section 4.1, task 2 and Lemma 2; Rendle et
al. (2009). That an item was rated is all that counts; ratings' values do not.

For a rated item j and an unrated one k, x = p.q_j - p.q_k, and sigma(-x) is
the size of the gradient: j is pulled towards p by it, and k pushed away. A
client sends the items that its bits choose, as SDMF does. Whether one is
pulled or pushed tells whether it was rated; the paper does not say where the
sign comes from, and both readings are here:

  'true'       from the true bits B: it learns, and the sign of every gradient
               tells the server what was rated, whatever the bits hide.
  'perturbed'  from the permanent bits B', as the privacy argument needs: all
               that a client computes, its own factors too, is from B' alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.mechanisms import noise, response
from dpmf_jax.plans.sdbpr import SDBPRConfig, Sign, plan
from dpmf_jax.plans.sdcf import Average
from dpmf_jax.rows import Data
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf import sgld, starting
from dpmf_jax.systems.sdcf.client_blocks import Profile, over_clients
from dpmf_jax.systems.sdcf.client_errors import selection
from dpmf_jax.systems.sdcf.types import (
  Client,
  Contribution,
  OpenState,
  Public,
  Total,
)
from dpmf_jax.types import Factors, System

# Standard deviation of the initial factors.
_INIT_STD = 0.1


def some_of(key: jax.Array, mask: jax.Array, count: int) -> jax.Array:
  """`count` places where `mask` [I] is true, drawn evenly; 0 if none is."""
  before = response.ones_up_to(mask)
  drawn = jax.random.uniform(key, (count,)) * before[-1]
  wanted = jnp.minimum(drawn.astype(jnp.int32), before[-1] - 1) + 1
  place = jnp.searchsorted(before, wanted, method='scan_unrolled')
  return jnp.minimum(place, mask.size - 1)


def own_gradient(
  key: jax.Array, scores: jax.Array, rated: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """(pull [I], pairs [I]): what each item gets from a client's own pairs.

  Every rated item is paired with an item drawn from all, and the pair is left
  out where that one is rated, too: given that it is kept, it is drawn evenly
  from the unrated ones. `pull` is the sum of -sigma(-x) for rated items and of
  sigma(-x) for others; `pairs` counts the terms.
  """
  partner = jax.random.randint(key, rated.shape, 0, rated.size)
  weight = (rated & ~rated[partner]).astype(jnp.float32)
  size = weight * jax.nn.sigmoid(scores[partner] - scores)
  pull = (-size).at[partner].add(size)
  return pull, weight.at[partner].add(weight)


def client_round(
  key: jax.Array,
  client: Client,
  own: Profile,
  public: Public,
  *,
  capacity: int,
  sign: Sign,
) -> tuple[Client, Contribution]:
  """One client after a round, and what it tells in it.

  Reference: Jiang, Li and Lin (2019), Algorithm 1 with the errors of Lemma 2.

  Privacy: with sign 'perturbed' all of it post-processes the permanent bits,
  so that it is eps_P-DP over all rounds for profiles of one size. With 'true'
  there is none.
  """
  coin_key, pair_key, own_key, rest_key = jax.random.split(key, 4)
  p, eta, langevin = client.factors, public.step_size, public.langevin
  chosen = selection(coin_key, client.memory, len(public.item), capacity)
  rated = own.rated if sign == 'true' else chosen.bits

  scores = public.item @ p
  liked_key, other_key = jax.random.split(pair_key)
  liked = scores[some_of(liked_key, rated, capacity)]  # [M]
  other = scores[some_of(other_key, ~rated, capacity)]
  x = jnp.where(rated, scores - other[chosen.slot], liked[chosen.slot] - scores)
  e = jnp.where(rated, -1.0, 1.0) * jax.nn.sigmoid(-x)
  error = jnp.where(chosen.sent, e, 0.0)

  pull, pairs = own_gradient(own_key, scores, rated)
  h = jnp.maximum(pairs.sum() / 2, 1)
  move = eta * (
    langevin.likelihood * (pull @ public.item) / h + p * langevin.user_ridge
  ) - jnp.sqrt(eta / h) * noise.coarse_normal(rest_key, p.shape)
  moved = sdcf.moved_client(client, move, chosen.unsent, public)
  return moved, Contribution(error, chosen.sent, p)


def client_report(*args, sign: Sign, capacity: int):
  """One client after a round, and the message that it sends."""
  return sdcf.client_report(
    *args,
    client_round=_CLIENT_ROUNDS[sign],
    gradients=sdcf.item_gradients,
    capacity=capacity,
  )


@dataclass(frozen=True)
class OpenRounds:
  """BPR with all pairs sent, as a `System.step`; equal where settings are."""

  optimizer: optax.GradientTransformation
  average: Average

  def __call__(self, key: jax.Array, state: OpenState, data: Data):
    clients_key, noise_key = jax.random.split(key)
    public = sdcf.public_of(state)

    def run(keys, p, own, public):
      item, eta, langevin = public.item, public.step_size, public.langevin
      splits = jax.vmap(jax.random.split)(keys)
      pairs_keys, own_keys = splits[:, 0], splits[:, 1]
      scores = p @ item.T
      pull, pairs = jax.vmap(own_gradient)(pairs_keys, scores, own.rated)
      h = jnp.maximum(pairs.sum(axis=1, keepdims=True) / 2, 1)
      draw = lambda key: noise.coarse_normal(key, p.shape[1:])
      move = eta * (
        langevin.likelihood * (pull @ item) / h
        + p * langevin.user_ridge[None, :]
      ) - jnp.sqrt(eta / h) * jax.vmap(draw)(own_keys)
      return p - move, Total(pull.T @ p, pairs.sum(axis=0))

    user, total = over_clients(
      run,
      clients_key,
      state.factors.user,
      data.by_user,
      state.blocks,
      public,
      sdcf.total_shapes(*public.item.shape),
    )
    total = sdcf.item_gradients([noise_key], total, slice(None), public)
    return sdcf.open_state(state, user, total, self.optimizer, self.average)


# One object for each sign, so that equal settings are compiled once.
_CLIENT_ROUNDS = {
  sign: functools.partial(client_round, sign=sign)
  for sign in ('true', 'perturbed')
}


def sdbpr(config: SDBPRConfig) -> System:
  """SD-BPRMF as published, or ranking without privacy ('none').

  Privacy: see `client_report`; what is stated is the paper's claim.
  """
  optimizer = sgld.optimizer_of(config)

  def init(key: jax.Array, data: Data) -> Any:
    user_key, item_key, bits_key, ridge_key = jax.random.split(key, 4)
    side = lambda key, rows: (
      _INIT_STD * jax.random.normal(key, (rows.num_rows, config.rank))
    )
    factors = Factors(
      side(user_key, data.by_user), side(item_key, data.by_item)
    )
    begun = starting.open_start(ridge_key, data, factors, config)
    if config.variant == 'paper':
      return starting.start(bits_key, begun, data, config)
    return begun

  step = OpenRounds(optimizer, config.average)
  if config.variant == 'paper':
    step = sdcf.Rounds(
      _CLIENT_ROUNDS[config.gradient_sign],
      optimizer,
      config.average,
      config.sent,
    )
  return plan(config).system(init, step, sdcf.model, scale=config.scale)
