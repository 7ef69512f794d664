"""States before the first round, and what clients keep from then on."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import accounting
from dpmf_jax.kernels.slices import row_counts
from dpmf_jax.mechanisms import response
from dpmf_jax.plans.sdcf import SDCFSettings, epsilons
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.systems.sdcf.client_blocks import (
  Blocks,
  client_blocks,
  over_clients,
  zeros_of,
)
from dpmf_jax.systems.sdcf.types import Memory, OpenState, State
from dpmf_jax.systems.traced import traced
from dpmf_jax.types import Factors


def start_memory(
  key: jax.Array,
  rows: Rows,
  blocks: Blocks,
  config: SDCFSettings,
  num_items: int,
  *,
  first: int = 0,
) -> tuple[Memory, np.int32]:
  """What clients keep from the start, their permanent bits among it.

  Also how many of them have no coins of their own, see `coins_of`. `first` is
  the number of the first client, where those before it are elsewhere.
  """
  coins, unsolved = coins_of(rows, num_items, config)
  flip = jnp.asarray(coins.flip)
  bits, active = _permanent_bits(key, flip, rows, blocks, first, num_items)
  memory = Memory(
    bits=bits,
    unrated=jnp.asarray(coins.unrated),
    rated=jnp.asarray(coins.rated),
    converged=jnp.zeros(rows.num_rows, bool),
    unsent=jnp.zeros(rows.num_rows, jnp.int32),
    active=active,
  )
  return memory, unsolved


@functools.partial(jax.jit, static_argnames=('num_items',))
def _permanent_bits(key, flip, rows: Rows, blocks, first, num_items: int):
  """Packed bits [U, I / 8] of clients, and which of them have ratings, [U]."""
  nothing = jax.ShapeDtypeStruct((num_items,), jnp.float32)

  def run(keys, flip, own, public):
    del public
    bits = jax.vmap(response.permanent)(keys, own.rated, flip)
    drawn = jnp.packbits(bits, axis=-1), own.rated.any(axis=-1)
    return drawn, zeros_of(nothing)

  return over_clients(run, key, flip, rows, blocks, (), nothing, first=first)[0]


def coins_of(
  rows: Rows, num_items: int, config: SDCFSettings
) -> tuple[response.Coins, np.int32]:
  """The coins of every client, and how many have no solution of their own.

  A client without p and q in [0, 1] has them clipped, which keeps eps_P and
  makes a round say less (`accounting.claimed_sdcf_response`). A client without
  ratings counts as one with a single rating, and never sends.

  They are made on the host in double precision, see `mechanisms.response`:
  ratings cannot be traced here, keys and all else can.
  """
  with jax.ensure_compile_time_eval():
    h = np.asarray(row_counts(rows))
    mean = np.asarray(sgld.num_ratings(rows) / rows.num_rows)
  mean = mean if config.sent is None else np.float32(config.sent)
  permanent, instant = epsilons(config)
  made = accounting.claimed_sdcf_response(
    epsilon_permanent=permanent,
    epsilon_instant=instant,
    num_rated=np.maximum(h, 1).astype(np.float64),
    num_items=num_items,
    # All of the items cannot be sent by anyone who keeps some secret.
    sent=float(np.clip(mean, 1e-3, num_items * (1 - 1e-3))),
  )
  return response.coins(made), np.int32((made.unsolved & (h > 0)).sum())


def rules_of(config: SDCFSettings) -> Any:
  """Traced settings of who takes part and when to stop."""
  return traced(config, 'online', 'tolerance', 'agreement')


def start(
  bits_key: jax.Array, begun: OpenState, data: Data, config: SDCFSettings
) -> State:
  """`begun` with clients' memories: permanent bits are drawn here."""
  memory, unsolved = start_memory(
    bits_key, data.by_user, begun.blocks, config, data.by_item.num_rows
  )
  return State(
    **begun._asdict(),
    memory=memory,
    stopped=jnp.int32(0),
    unsolved=jnp.asarray(unsolved),
    sent=jnp.float32(0),
  )


def open_start(
  ridge_key: jax.Array,
  data: Data,
  factors: Factors,
  config: SDCFSettings,
  *,
  shared: Any = None,
  features: Factors | None = None,
) -> OpenState:
  """The state before the first round: all of it without privacy."""
  return OpenState(
    factors=factors,
    optimizer=sgld.optimizer_of(config).init((factors.item, shared)),
    round=jnp.int32(0),
    blocks=client_blocks(data.by_user, data.by_item.num_rows),
    hyper=traced(
      config,
      langevin=sgld.langevin(ridge_key, config, data.by_user),
      rules=rules_of(config),
      epsilon_value=getattr(config, 'epsilon_value', 0.0),
      side=None,
    ),
    shared=shared,
    features=features,
  )
