"""Rounds of SDCF message by message, as a network runs them.

Reference: Jiang, Li and Lin (2019), Algorithms 1 and 2. `rounds.Rounds` draws
the noise of all messages about an item at once. Here every client's message
has noise of its own, and the server adds up messages: the same in distribution,
slower, and with all messages of a round in memory. A deployment runs these
functions, and with `MessageRounds` the simulator equals it bit by bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.plans.sdcf import Average
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf.client_blocks import (
  Blocks,
  Profile,
  over_clients,
  zeros_of,
)
from dpmf_jax.systems.sdcf.types import (
  Client,
  Public,
  State,
  Total,
  Upload,
)

# (key, client, own ratings, public) -> (Client, Upload)
ClientReport = Callable[..., tuple[Client, Upload]]


def online_report(
  client_report: ClientReport,
  key: jax.Array,
  client: Client,
  own: Profile,
  public: Public,
  rules: Any,
) -> tuple[Client, Upload, jax.Array]:
  """One client after a round, its message, and whether it is online.

  A client that is offline does nothing, and its message is empty.
  """
  client, report, online = sdcf.if_online(
    client_report, key, client, own, public, rules
  )
  item = jnp.where(online, report.item, own.rated.size)
  return client, report._replace(item=item), online


def all_reports(
  key: jax.Array,
  client_report: ClientReport,
  clients: Client,
  rows: Rows,
  blocks: Blocks,
  public: Public,
  rules: Any,
  *,
  first: jax.Array | int = 0,
) -> tuple[Client, Upload, jax.Array]:
  """`online_report` of all clients [U, ...], or of those of one node.

  Args:
    key: of the round.
    client_report: of the system.
    clients: what they keep.
    rows: their ratings, user-major.
    blocks: `client_blocks` of them.
    public: what the server sent.
    rules: who takes part.
    first: number of the first client, where those before it are elsewhere.
  """
  nothing = jax.ShapeDtypeStruct((len(public.item),), jnp.float32)
  one = functools.partial(online_report, client_report)

  def run(keys, clients, own, public):
    made = jax.vmap(one, (0, 0, 0, None, None))(keys, clients, own, *public)
    return made, zeros_of(nothing)

  made, _ = over_clients(
    run, key, clients, rows, blocks, (public, rules), nothing, first=first
  )
  return made


def summed_reports(reports: Upload, num_items: int) -> Total:
  """The sum of messages [U, M, ...], added up in the order of users."""
  item = reports.item.reshape(-1)
  gradient = reports.gradient.reshape(item.size, -1)
  zeros = zeros_of(sdcf.total_shapes(num_items, gradient.shape[-1]))
  return Total(
    zeros.gradient.at[item].add(gradient, mode='drop'),
    zeros.received.at[item].add(1.0, mode='drop'),
    jax.tree.map(lambda x: x.sum(axis=0), reports.shared),
  )


@dataclass(frozen=True)
class MessageRounds:
  """`rounds.Rounds` message by message; `client_report` has no capacity yet."""

  client_report: Callable[..., tuple[Client, Upload]]
  optimizer: optax.GradientTransformation
  average: Average
  sent: float | None

  def __call__(self, key: jax.Array, state: State, data: Data) -> State:
    num_items = len(state.factors.item)
    capacity = sdcf.message_capacity(data.by_user, num_items, self.sent)
    clients, uploads, _ = all_reports(
      key,
      functools.partial(self.client_report, capacity=capacity),
      sdcf.clients_of(state),
      data.by_user,
      state.blocks,
      sdcf.public_of(state),
      state.hyper.rules,
    )
    total = summed_reports(uploads, num_items)
    return sdcf.moved_state(state, clients, total, self.optimizer, self.average)
