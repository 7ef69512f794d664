"""Secure distributed matrix factorization (SDMF), as published.

Reference: Jiang, Li and Lin, Towards a more reliable privacy-preserving
recommender system (2019), Algorithms 1 and 2. Their U is our user factors,
V our item factors, K our rank.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.data.rows import Data
from dpmf_jax.mechanisms import noise, response, truncated
from dpmf_jax.systems import sdcf, sgld
from dpmf_jax.systems.sdmf_config import SDMFConfig, epsilons, guarantee
from dpmf_jax.types import Factors, Release, System


class Hyper(NamedTuple):
  """Traced settings: changing one does not compile again."""

  langevin: sgld.Langevin
  rules: sdcf.Rules
  epsilon_value: jax.Array


class State(NamedTuple):
  factors: Factors
  kept: sdcf.Kept  # of all clients, [U, ...]
  optimizer: Any  # of optax
  round: jax.Array  # int32, rounds done
  stopped: jax.Array  # int32, the round after which it stopped, or 0
  unsolved: jax.Array  # int32, clients with clipped p and q
  blocks: sdcf.Blocks
  hyper: Hyper


class Info(NamedTuple):
  """Diagnostics of a round.

  Attributes:
    sent: gradients received; the server counts them.
    unsafe_unsent: gradients that messages had no room for.
    unsafe_unsolved: clients whose p and q had to be clipped to [0, 1].
    unsafe_inactive: clients without ratings, which never take part.
    unsafe_converged: clients that last said that they had converged.
    unsafe_stopped: the round after which training stopped; 0 if it goes on.
  """

  sent: jax.Array
  unsafe_unsent: jax.Array
  unsafe_unsolved: jax.Array
  unsafe_inactive: jax.Array
  unsafe_converged: jax.Array
  unsafe_stopped: jax.Array


class Public(NamedTuple):
  """What the server tells every client in a round."""

  item: jax.Array  # [I, D]
  step_size: jax.Array  # eta_t
  langevin: sgld.Langevin
  epsilon_value: jax.Array
  tolerance: jax.Array


def client_report(
  key: jax.Array,
  client: sdcf.Client,
  own: sdcf.Own,
  public: Public,
  *,
  capacity: int,
) -> tuple[sdcf.Client, sdcf.Report]:
  """One client after a round, and what it sends in it.

  Reference: Jiang, Li and Lin (2019), Algorithm 1, lines 7 to 30.

  Args:
    key: of this client and round.
    client: what it keeps.
    own: its ratings.
    public: what the server sent.
    capacity: slots M of a message.

  Privacy: which items are sent is post-processing of the permanent bits.
  What is sent with them is not covered by anything that holds.
  """
  coin_key, fake_key, noise_key, own_key = jax.random.split(key, 4)
  p, kept = client
  eta, langevin = public.step_size, public.langevin
  num_items, rank = public.item.shape
  bits = jnp.unpackbits(kept.bits, count=num_items).astype(bool)
  sent = response.instantaneous(coin_key, bits, kept.unrated, kept.rated)
  item = response.chosen(sent, capacity)  # [M]

  # Lines 13 and 16.
  residual = jnp.where(own.rated, public.item @ p - own.value, 0.0)  # [I]
  h = jnp.maximum(own.rated.sum(), 1).astype(jnp.float32)
  mean = residual.sum() / h
  spread = jnp.where(own.rated, residual - mean, 0.0)
  deviation = jnp.sqrt((spread**2).sum() / h)

  # Lines 17 and 23 to 26, without a loop.
  alpha = truncated.bound(public.epsilon_value, mean, deviation)
  fake = truncated.truncated_normal(
    fake_key, (capacity,), mean, deviation, alpha
  )
  at = jnp.minimum(item, num_items - 1)
  e = jnp.where(own.rated[at], residual[at], fake)

  # Lines 20 and 27, eq. (6).
  gradient = eta * (
    langevin.likelihood * e[:, None] * p[None, :]
    + public.item[at] * langevin.item_ridge[None, :]
  ) - jnp.sqrt(eta) * noise.coarse_normal(noise_key, (capacity, rank))

  # Lines 14, 15 and 30. The mean of h draws of noise is one draw.
  move = eta * (
    langevin.likelihood * (residual @ public.item) / h
    + p * langevin.user_ridge
  ) - jnp.sqrt(eta / h) * noise.coarse_normal(own_key, (rank,))
  converged = sdcf.hardly_moved(p, p - move, public.tolerance)
  kept = kept._replace(
    converged=converged,
    unsent=jnp.maximum(sent.sum().astype(jnp.int32) - capacity, 0),
  )
  return (
    sdcf.Client(p - move, kept),
    sdcf.Report(item, gradient, converged),
  )


@functools.cache
def _step(
  optimizer: optax.GradientTransformation,
  average: sgld.Average,
  sent: float | None,
):
  """A round; one object for equal arguments, see `System.step`."""

  def step(key: jax.Array, state: State, data: Data) -> tuple[State, Info]:
    hyper, item = state.hyper, state.factors.item
    capacity = sdcf.message_capacity(data.by_user, len(item), sent)
    public = Public(
      item=item,
      step_size=jnp.asarray(sgld.schedule(hyper.langevin)(state.round)),
      langevin=hyper.langevin,
      epsilon_value=hyper.epsilon_value,
      tolerance=hyper.rules.tolerance,
    )
    clients, total = sdcf.simulated_round(
      key,
      functools.partial(client_report, capacity=capacity),
      sdcf.Client(state.factors.user, state.kept),
      data.by_user,
      state.blocks,
      public,
      hyper.rules,
      sdcf.total_shapes(*item.shape),
    )
    server = sdcf.server_apply(
      sdcf.Server(item, state.optimizer, state.round, state.stopped),
      total,
      clients.kept,
      hyper.rules,
      optimizer=optimizer,
      average=average,
    )
    moved = state._replace(
      factors=Factors(clients.factors, server.item),
      kept=clients.kept,
      optimizer=server.optimizer,
      round=server.round,
      stopped=server.stopped,
    )
    # A run has a fixed number of steps: after it has stopped they do nothing.
    state = sdcf.frozen_if(state.stopped > 0, state, moved)
    return state, info(state, total)

  return step


def info(state: State, total: sdcf.Total) -> Info:
  kept = state.kept
  return Info(
    sent=total.count.sum(),
    unsafe_unsent=kept.unsent.sum(),
    unsafe_unsolved=state.unsolved,
    unsafe_inactive=(~kept.active).sum(),
    unsafe_converged=(kept.converged & kept.active).sum(),
    unsafe_stopped=state.stopped,
  )


def _model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))


def _release(key: jax.Array, state: State, data: Data) -> Release:
  """Item factors: user factors never leave the clients."""
  del key
  release = _model(state, data)
  return release._replace(factors=release.factors._replace(user=None))


def sdmf(config: SDMFConfig) -> System:
  """SDMF as published, simulated round by round.

  Privacy: as the paper claims, which is true of the bits and of nothing else
  that is sent; see `sdmf_config.CLAIM`.
  """
  optimizer = sgld.optimizer_of(config)
  permanent, instant = epsilons(config)

  def init(key: jax.Array, data: Data) -> State:
    factor_key, bits_key, ridge_key = jax.random.split(key, 3)
    rows, num_items = data.by_user, data.by_item.num_rows
    factors = sgld.uniform_factors(
      factor_key, data, config.rank, config.init_size
    )
    blocks = sdcf.client_blocks(rows, num_items)
    coins, unsolved = sdcf.coins_of(
      rows,
      num_items,
      epsilon_permanent=permanent,
      epsilon_instant=instant,
      sent=config.sent,
    )
    return State(
      factors=factors,
      kept=sdcf.kept_by_clients(bits_key, rows, blocks, num_items, coins),
      optimizer=optimizer.init(factors.item),
      round=jnp.int32(0),
      stopped=jnp.int32(0),
      unsolved=unsolved,
      blocks=blocks,
      hyper=Hyper(
        langevin=sgld.langevin(ridge_key, config, rows),
        rules=sdcf.rules_of(config),
        epsilon_value=jnp.float32(config.epsilon_value),
      ),
    )

  return System(
    init=init,
    step=_step(optimizer, config.average, config.sent),
    model=_model,
    release=_release,
    steps=config.steps,
    guarantee=guarantee(config, ('item factors', 'what clients send')),
  )
