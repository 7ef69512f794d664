"""Rounds of secure distributed collaborative filtering, for its systems.

Reference: Jiang, Li and Lin (2019), Algorithms 1 and 2. A client keeps its
ratings, factors and permanent bits; the server keeps what is public. A system
gives two pure functions,

  client_report(key, client, own, public, ...) -> (Client, Report)
  server_apply(server, total, ...) -> Server

and this module simulates rounds of them (`client_blocks`): what clients report
is summed block by block, so that nothing of the size of users times items is
ever held but packed bits. A real network runs the same two functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from dpmf_jax import accounting
from dpmf_jax.data.rows import Data, Rows
from dpmf_jax.mechanisms import response
from dpmf_jax.systems import sgld
from dpmf_jax.systems.client_blocks import (
  Blocks,
  Own,
  client_blocks,
  over_clients,
  zeros_of,
)
from dpmf_jax.systems.sdmf_config import SDCFSettings, epsilons
from dpmf_jax.types import Factors, Release


class Kept(NamedTuple):
  """What one client keeps between rounds, besides factors and ratings.

  The permanent bits are kept, not drawn again from a kept key: that takes an
  eighth of a byte per item, saves a draw for each in every round, and a
  client that keeps them cannot draw others by mistake.

  Attributes:
    bits: [ceil(I/8)] uint8, the permanent bits B', packed.
    unrated, rated: p and q as `response.Coins`.
    converged: whether its factors hardly moved when it last took part.
    unsent: items that its last message had no room for.
    active: false without any rating; such a client never takes part.
  """

  bits: jax.Array
  unrated: jax.Array
  rated: jax.Array
  converged: jax.Array
  unsent: jax.Array
  active: jax.Array


class Client(NamedTuple):
  """What stays with one client."""

  factors: jax.Array  # [D]
  kept: Kept


class Report(NamedTuple):
  """What one client sends in a round: neither ratings nor its factors.

  Attributes:
    item: [M] int32, ascending; I in slots that are not used.
    gradient: [M, W] of each of these items.
    converged: bool, whether its own factors hardly move any more.
    shared: gradients of what is public and of no single item, or None.
  """

  item: jax.Array
  gradient: jax.Array
  converged: jax.Array
  shared: Any = None


class Total(NamedTuple):
  """The reports of a round, summed: all that the server needs of them."""

  gradient: Any  # [I, W]
  received: Any  # [I] gradients received for each item, float32
  shared: Any = None


class Server(NamedTuple):
  """What is public, as the server keeps it."""

  item: jax.Array  # [I, W]
  optimizer: Any  # of optax
  round: jax.Array  # int32, rounds done
  stopped: jax.Array  # int32, the round after which it stopped; 0 while going


class Rules(NamedTuple):
  """Traced settings of who takes part and when to stop."""

  online: jax.Array  # chance to be online in a round
  tolerance: jax.Array  # largest relative move that counts as converged
  agreement: jax.Array  # part of the clients that must say so


class Hyper(NamedTuple):
  """Traced settings: changing one does not compile again."""

  langevin: sgld.Langevin
  rules: Rules
  epsilon_value: jax.Array  # eps_g, where there is one


class State(NamedTuple):
  factors: Factors
  kept: Kept  # of all clients, [U, ...]
  optimizer: Any  # of optax
  round: jax.Array  # int32, rounds done
  stopped: jax.Array  # int32, the round after which it stopped, or 0
  unsolved: jax.Array  # int32, clients with clipped p and q
  blocks: Blocks
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


def simulated_round(
  key: jax.Array,
  client_report: Callable[..., tuple[Client, Report]],
  clients: Client,
  rows: Rows,
  blocks: Blocks,
  public: Any,
  rules: Rules,
  shapes: Total,
) -> tuple[Client, Total]:
  """All clients after a round, and the sum of what those online reported.

  `client_report` is (key, client, own, public) -> (Client, Report). A client
  that is offline does nothing and sends nothing.
  """
  one = functools.partial(online_report, client_report)

  def run(keys, clients, own, public):
    clients, reports = jax.vmap(one, (0, 0, 0, None, None))(
      keys, clients, own, *public
    )
    return clients, summed_reports(reports, shapes)

  return over_clients(run, key, clients, rows, blocks, (public, rules), shapes)


def online_report(
  client_report: Callable[..., tuple[Client, Report]],
  key: jax.Array,
  client: Client,
  own: Own,
  public: Any,
  rules: Rules,
) -> tuple[Client, Report]:
  """One client after a round, and its report: empty if it is offline."""
  online_key, report_key = jax.random.split(key)
  online = jax.random.uniform(online_key) < rules.online
  online &= client.kept.active
  moved, report = client_report(report_key, client, own, public)
  keep = lambda new, old: jnp.where(online, new, old)
  report = report._replace(
    item=keep(report.item, own.rated.size),
    shared=jax.tree.map(lambda x: keep(x, 0), report.shared),
  )
  return jax.tree.map(keep, moved, client), report


def summed_reports(reports: Report, shapes: Total) -> Total:
  """The sum of the reports [B, ...] of a block of clients."""
  item = reports.item.reshape(-1)
  gradient = reports.gradient.reshape(item.size, -1)
  zeros = zeros_of(shapes)
  return Total(
    zeros.gradient.at[item].add(gradient, mode='drop'),
    zeros.received.at[item].add(1.0, mode='drop'),
    jax.tree.map(lambda x: x.sum(axis=0), reports.shared),
  )


def total_shapes(num_items: int, width: int, shared: Any = None) -> Total:
  """The shapes of a `Total` with gradients of that width."""
  shape = lambda *axes: jax.ShapeDtypeStruct(axes, jnp.float32)
  return Total(shape(num_items, width), shape(num_items), shared)


def kept_by_clients(
  key: jax.Array,
  rows: Rows,
  blocks: Blocks,
  num_items: int,
  coins: response.Coins,
) -> Kept:
  """What clients keep from the start, their permanent bits among it."""
  count = rows.num_rows
  nothing = jax.ShapeDtypeStruct((num_items,), jnp.float32)

  def run(keys, flip, own, public):
    del public
    bits = jax.vmap(response.permanent)(keys, own.rated, flip)
    kept = jnp.packbits(bits, axis=-1), own.rated.any(axis=-1)
    return kept, zeros_of(nothing)

  (bits, active), _ = over_clients(
    run, key, jnp.asarray(coins.flip), rows, blocks, (), nothing
  )
  return Kept(
    bits=bits,
    unrated=jnp.asarray(coins.unrated),
    rated=jnp.asarray(coins.rated),
    converged=jnp.zeros(count, bool),
    unsent=jnp.zeros(count, jnp.int32),
    active=active,
  )


def coins_of(
  rows: Rows,
  num_items: int,
  *,
  epsilon_permanent: float,
  epsilon_instant: float,
  sent: float | None,
) -> tuple[response.Coins, jax.Array]:
  """The coins of every client, and how many have no solution of their own.

  A client without p and q in [0, 1] has them clipped, which keeps eps_P and
  makes a round say less (`accounting.claimed_sdcf_clipped_response`). A
  client without ratings counts as one with a single rating, and never sends.

  Args:
    rows: user-major ratings.
    num_items: I.
    epsilon_permanent: eps_P.
    epsilon_instant: eps_I.
    sent: z, or None for the mean number of ratings of a client.
  """

  def solved(h, mean):
    h = np.asarray(h)
    settings = {
      'epsilon_permanent': epsilon_permanent,
      'epsilon_instant': epsilon_instant,
      'num_rated': np.maximum(h, 1).astype(np.float64),
      'num_items': num_items,
      # All of the items cannot be sent by anyone who keeps some secret.
      'sent': float(np.clip(np.asarray(mean), 1e-3, num_items * (1 - 1e-3))),
    }
    unsolved = accounting.claimed_sdcf_unsolved(**settings)
    made = accounting.claimed_sdcf_clipped_response(**settings)
    return response.coins(made), np.int32((unsolved & (h > 0)).sum())

  users = rows.num_rows
  mean = sgld.num_ratings(rows) / users
  mean = mean if sent is None else jnp.float32(sent)
  word = jax.ShapeDtypeStruct((users,), jnp.uint32)
  shapes = response.Coins(word, word, word), jax.ShapeDtypeStruct((), 'int32')
  # In double precision, on the host: see `mechanisms.response`.
  h = sgld.counts(rows)
  if not isinstance(h, Tracer):
    return jax.tree.map(jnp.asarray, solved(h, mean))
  return jax.pure_callback(solved, shapes, h, mean, vmap_method='sequential')


def message_capacity(rows: Rows, num_items: int, sent: float | None) -> int:
  """Slots M of a message; by z, or else by the slots there are for ratings."""
  mean = rows.column.size / rows.num_rows if sent is None else sent
  return response.capacity(mean, num_items)


def server_apply(
  server: Server,
  total: Total,
  kept: Kept,
  rules: Rules,
  *,
  optimizer: optax.GradientTransformation,
  average: sgld.Average,
) -> Server:
  """The server after a round: items moved by the mean of what was received.

  Reference: Jiang, Li and Lin (2019), Algorithm 2, and section 3.5.2 for the
  convergence bits: it stops when the items hardly move and enough of the
  clients have said that their factors do not, either.

  Args:
    server: before the round.
    total: what was received.
    kept: of all clients; the server knows of it only the bits that they sent.
    rules: when to stop.
    optimizer: of the mean gradients.
    average: see `sgld.LangevinSettings`.
  """
  count = total.received if average == 'item' else total.received.sum()[None]
  mean = total.gradient / jnp.maximum(count, 1)[:, None]
  updates, state = optimizer.update(mean, server.optimizer, server.item)
  item: Any = optax.apply_updates(server.item, updates)
  moved = hardly_moved(server.item, item, rules.tolerance)
  agreed = (kept.converged & kept.active).sum()
  enough = agreed >= rules.agreement * kept.active.sum()
  done = server.round + 1
  stopped = jnp.where(moved & enough, done, 0)
  return Server(item, state, done, stopped)


def rules_of(config: SDCFSettings) -> Rules:
  return Rules(
    online=jnp.float32(config.online),
    tolerance=jnp.float32(config.tolerance),
    agreement=jnp.float32(config.agreement),
  )


def frozen_if(stopped: jax.Array, old: Any, new: Any) -> Any:
  """`old` where training has stopped, else `new`."""
  return jax.tree.map(lambda a, b: jnp.where(stopped, a, b), old, new)


def round_step(
  client_report: Callable[..., tuple[Client, Report]],
  optimizer: optax.GradientTransformation,
  average: sgld.Average,
  sent: float | None,
):
  """A round of all clients and the server, as a `System.step`."""

  def step(key: jax.Array, state: State, data: Data) -> tuple[State, Info]:
    hyper, item = state.hyper, state.factors.item
    capacity = message_capacity(data.by_user, len(item), sent)
    clients, total = simulated_round(
      key,
      functools.partial(client_report, capacity=capacity),
      Client(state.factors.user, state.kept),
      data.by_user,
      state.blocks,
      public_of(state),
      hyper.rules,
      total_shapes(*item.shape),
    )
    server = server_apply(
      Server(item, state.optimizer, state.round, state.stopped),
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
    state = frozen_if(state.stopped > 0, state, moved)
    return state, info(state, total)

  return step


def public_of(state: State) -> Public:
  """What the server tells every client in the next round."""
  hyper = state.hyper
  return Public(
    item=state.factors.item,
    step_size=jnp.asarray(sgld.schedule(hyper.langevin)(state.round)),
    langevin=hyper.langevin,
    epsilon_value=hyper.epsilon_value,
    tolerance=hyper.rules.tolerance,
  )


def info(state: State, total: Total) -> Info:
  kept = state.kept
  return Info(
    sent=total.received.sum(),
    unsafe_unsent=kept.unsent.sum(),
    unsafe_unsolved=state.unsolved,
    unsafe_inactive=(~kept.active).sum(),
    unsafe_converged=(kept.converged & kept.active).sum(),
    unsafe_stopped=state.stopped,
  )


def start(
  bits_key: jax.Array,
  ridge_key: jax.Array,
  data: Data,
  factors: Factors,
  config: SDCFSettings,
) -> State:
  """The state before the first round: permanent bits are drawn here."""
  rows, num_items = data.by_user, data.by_item.num_rows
  blocks = client_blocks(rows, num_items)
  permanent, instant = epsilons(config)
  coins, unsolved = coins_of(
    rows,
    num_items,
    epsilon_permanent=permanent,
    epsilon_instant=instant,
    sent=config.sent,
  )
  return State(
    factors=factors,
    kept=kept_by_clients(bits_key, rows, blocks, num_items, coins),
    optimizer=sgld.optimizer_of(config).init(factors.item),
    round=jnp.int32(0),
    stopped=jnp.int32(0),
    unsolved=unsolved,
    blocks=blocks,
    hyper=Hyper(
      langevin=sgld.langevin(ridge_key, config, rows),
      rules=rules_of(config),
      epsilon_value=jnp.float32(getattr(config, 'epsilon_value', 0.0)),
    ),
  )


def model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))


def release(key: jax.Array, state: State, data: Data) -> Release:
  """Item factors: user factors never leave the clients."""
  del key
  released = model(state, data)
  return released._replace(factors=released.factors._replace(user=None))


def hardly_moved(
  old: jax.Array, new: jax.Array, tolerance: jax.Array
) -> jax.Array:
  """Whether the move is below `tolerance` of what moved; never for 0."""
  return jnp.linalg.norm(new - old) < tolerance * jnp.linalg.norm(old)


def bytes_per_round(
  *, num_items: int, rank: int, sent: float
) -> dict[str, float]:
  """Bytes that a client receives and, on average, sends in a round.

  Down: item factors in float32. Up: for each of the `sent` gradients an item
  number and float32 values, and one byte with the convergence bit.
  """
  return {
    'bytes_down': 4.0 * num_items * rank,
    'bytes_up': sent * (4.0 + 4.0 * rank) + 1,
  }
