"""Rounds of secure distributed collaborative filtering, for its systems.

Reference: Jiang, Li and Lin (2019), Algorithms 1 and 2. A client keeps its
ratings, factors and permanent bits; the server keeps what is public. A system
gives two pure functions,

  client_round(key, client, own, public, capacity=) -> (Client, Sent)
  gradients(keys, total, at, public) -> Total

without and with ridge and noise. A network runs `client_report`, which is both
for one client, and `server_apply`. This module simulates it: errors are summed
block by block (`client_blocks`), then `gradients` runs once for all clients.
The sum of n draws of noise is one draw of n times the variance, so that the
server gets the same in distribution, and nothing of the size of users times
items is ever held but packed bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from dpmf_jax import accounting
from dpmf_jax.kernels.slices import row_counts
from dpmf_jax.mechanisms import noise, response
from dpmf_jax.plans.sdcf import Average, SDCFSettings, epsilons
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.systems.sdcf.client_blocks import (
  Blocks,
  Own,
  client_blocks,
  over_clients,
  zeros_of,
)
from dpmf_jax.systems.sdcf.types import Client as Client
from dpmf_jax.systems.sdcf.types import Hyper as Hyper
from dpmf_jax.systems.sdcf.types import Kept as Kept
from dpmf_jax.systems.sdcf.types import Public as Public
from dpmf_jax.systems.sdcf.types import Report as Report
from dpmf_jax.systems.sdcf.types import Rules as Rules
from dpmf_jax.systems.sdcf.types import Sent as Sent
from dpmf_jax.systems.sdcf.types import Server as Server
from dpmf_jax.systems.sdcf.types import State as State
from dpmf_jax.systems.sdcf.types import Summed as Summed
from dpmf_jax.systems.sdcf.types import Total as Total
from dpmf_jax.types import Factors, Release

ClientRound = Callable[..., tuple[Client, Sent]]
Gradients = Callable[..., Total]


def client_report(
  key: jax.Array,
  client: Client,
  own: Own,
  public: Public,
  *,
  client_round: ClientRound,
  gradients: Gradients,
  capacity: int,
) -> tuple[Client, Report]:
  """One client after a round, and the message that it sends.

  Reference: Jiang, Li and Lin (2019), Algorithm 1, lines 7 to 30.

  Args:
    key: of this client and round.
    client: what it keeps.
    own: its ratings.
    public: what the server sent.
    client_round: of the system.
    gradients: of the system.
    capacity: slots M of a message.

  Privacy: which items are sent is post-processing of the permanent bits.
  What is sent with them is not covered by anything that holds.
  """
  round_key, item_key, side_key = jax.random.split(key, 3)
  client, sent = client_round(round_key, client, own, public, capacity=capacity)
  num_items = sent.error.size
  item = response.chosen(sent.sent, capacity)  # [M]
  at = jnp.minimum(item, num_items - 1)
  used = (item < num_items).astype(jnp.float32)
  pulled = (used * sent.error[at])[:, None] * sent.vector[None, :]
  total = gradients(
    (item_key, side_key), Total(pulled, used, sent.shared), at, public
  )
  converged = client.kept.converged
  return client, Report(item, total.gradient, converged, total.shared)


def item_gradients(
  keys: tuple[jax.Array, jax.Array], total: Total, at: Any, public: Public
) -> Total:
  """`total` with ridge and noise, for items `at`; eq. (6) of the paper."""
  gradient = langevin_sum(
    keys[0],
    total.gradient,
    total.received,
    public.item[at],
    public.step_size,
    public.langevin.likelihood,
    public.langevin.item_ridge,
  )
  return total._replace(gradient=gradient)


def langevin_sum(
  key: jax.Array,
  pulled: jax.Array,
  count: jax.Array,
  weights: jax.Array,
  eta: jax.Array,
  likelihood: jax.Array,
  ridge: jax.Array,
) -> jax.Array:
  """[n, W], sums of `count` [n] gradients with ridge and noise of their own.

  Reference: Jiang, Li and Lin (2019), eq. (6).
  """
  count = count[:, None]
  drift = likelihood * pulled + count * weights * ridge[None, :]
  drawn = jnp.sqrt(eta * count) * noise.coarse_normal(key, weights.shape)
  return eta * drift - drawn


def simulated_round(
  key: jax.Array,
  client_round: ClientRound,
  clients: Client,
  rows: Rows,
  blocks: Blocks,
  public: Any,
  rules: Rules,
  shapes: Total,
) -> tuple[Client, Total]:
  """All clients after a round, and the sum of what those online tell.

  `client_round` is (key, client, own, public) -> (Client, Sent). A client
  that is offline does nothing and sends nothing.
  """

  def one(key, client, own, public):
    online_key, round_key = jax.random.split(key)
    online = jax.random.uniform(online_key) < public[1].online
    online &= client.kept.active
    moved, sent = client_round(round_key, client, own, public[0])
    keep = lambda new, old: jnp.where(online, new, old)
    sent = sent._replace(
      error=keep(sent.error, 0.0),
      sent=sent.sent & online,
      shared=jax.tree.map(lambda x: keep(x, 0), sent.shared),
    )
    return jax.tree.map(keep, moved, client), sent

  def run(keys, clients, own, public):
    clients, sent = jax.vmap(one, (0, 0, 0, None))(keys, clients, own, public)
    total = Total(
      sent.error.T @ sent.vector,
      sent.sent.sum(axis=0, dtype=jnp.float32),
      jax.tree.map(lambda x: x.sum(axis=0), sent.shared),
    )
    return clients, total

  return over_clients(run, key, clients, rows, blocks, (public, rules), shapes)


def total_shapes(num_items: int, width: int, shared: Any = None) -> Total:
  """The shapes of a `Total` with gradients of that width, and of `shared`."""
  shape = lambda *axes: jax.ShapeDtypeStruct(axes, jnp.float32)
  if shared is not None:
    shared = Summed(
      jax.tree.map(lambda x: shape(*x.shape), shared),
      jax.tree.map(lambda x: shape(*x.shape[:-1]), shared),
    )
  return Total(shape(num_items, width), shape(num_items), shared)


def kept_by_clients(
  key: jax.Array,
  rows: Rows,
  blocks: Blocks,
  num_items: int,
  coins: response.Coins,
  *,
  first: jax.Array | int = 0,
) -> Kept:
  """What clients keep from the start, their permanent bits among it."""
  count = rows.num_rows
  nothing = jax.ShapeDtypeStruct((num_items,), jnp.float32)

  def run(keys, flip, own, public):
    del public
    bits = jax.vmap(response.permanent)(keys, own.rated, flip)
    kept = jnp.packbits(bits, axis=-1), own.rated.any(axis=-1)
    return kept, zeros_of(nothing)

  flip = jnp.asarray(coins.flip)
  (bits, active), _ = over_clients(
    run, key, flip, rows, blocks, (), nothing, first=first
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
  makes a round say less (`accounting.claimed_sdcf_response`). A client without
  ratings counts as one with a single rating, and never sends.

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
    made = accounting.claimed_sdcf_response(**settings)
    return response.coins(made), np.int32((made.unsolved & (h > 0)).sum())

  users = rows.num_rows
  mean = sgld.num_ratings(rows) / users
  mean = mean if sent is None else jnp.float32(sent)
  word = jax.ShapeDtypeStruct((users,), jnp.uint32)
  shapes = response.Coins(word, word, word), jax.ShapeDtypeStruct((), 'int32')
  # In double precision, on the host: see `mechanisms.response`.
  h = row_counts(rows)
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
  average: Average,
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
    average: see `plans.sdcf.LangevinSettings`.
  """
  old = server.item, server.shared
  updates, state = optimizer.update(
    mean_gradients(total, average), server.optimizer, old
  )
  moved_public: Any = optax.apply_updates(old, updates)
  item, shared = moved_public
  moved = hardly_moved(server.item, item, rules.tolerance)
  agreed = (kept.converged & kept.active).sum()
  enough = agreed >= rules.agreement * kept.active.sum()
  done = server.round + 1
  stopped = jnp.where(moved & enough, done, 0)
  return Server(item, state, done, stopped, shared)


def mean_gradients(total: Total, average: Average) -> tuple[Any, Any]:
  """(of the items, of what is shared), each over what was received for it."""

  def mean(sums, count):
    count = count if average == 'item' else total.received.sum()
    count = jnp.maximum(count, 1)
    return sums / count.reshape(count.shape + (1,) * (sums.ndim - count.ndim))

  shared = None
  if total.shared is not None:
    shared = jax.tree.map(mean, total.shared.gradient, total.shared.received)
  return mean(total.gradient, total.received), shared


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
  client_round: ClientRound,
  optimizer: optax.GradientTransformation,
  average: Average,
  sent: float | None,
  *,
  gradients: Gradients = item_gradients,
  told: Callable[[Any], Any] = lambda shared: None,
):
  """A round of all clients and the server, as a `System.step`.

  `told` gives the part of what is shared that `Sent.shared` is about.
  """

  def step(key: jax.Array, state: State, data: Data) -> State:
    hyper, item = state.hyper, state.factors.item
    capacity = message_capacity(data.by_user, len(item), sent)
    clients_key, item_key, side_key = jax.random.split(key, 3)
    public = public_of(state)
    clients, total = simulated_round(
      clients_key,
      functools.partial(client_round, capacity=capacity),
      clients_of(state),
      data.by_user,
      state.blocks,
      public,
      hyper.rules,
      total_shapes(*item.shape, shared=told(state.shared)),
    )
    total = gradients((item_key, side_key), total, slice(None), public)
    return after_round(
      state, clients, total, optimizer=optimizer, average=average
    )

  return step


def after_round(
  state: State,
  clients: Client,
  total: Total,
  *,
  optimizer: optax.GradientTransformation,
  average: Average,
) -> State:
  """The state once the clients have moved and the server has `total`."""
  server = server_apply(
    Server(
      state.factors.item,
      state.optimizer,
      state.round,
      state.stopped,
      state.shared,
    ),
    total,
    clients.kept,
    state.hyper.rules,
    optimizer=optimizer,
    average=average,
  )
  moved = state._replace(
    factors=Factors(clients.factors, server.item),
    sent=total.received.sum(),
    kept=clients.kept,
    optimizer=server.optimizer,
    round=server.round,
    stopped=server.stopped,
    shared=server.shared,
  )
  # A run has a fixed number of steps: after it has stopped they do nothing.
  return frozen_if(state.stopped > 0, state, moved)


def clients_of(state: State) -> Client:
  """All clients, [U, ...]."""
  features = None if state.features is None else state.features.user
  return Client(state.factors.user, state.kept, features)


def public_of(state: State) -> Public:
  """What the server tells every client in the next round."""
  hyper = state.hyper
  return Public(
    item=state.factors.item,
    step_size=jnp.asarray(sgld.schedule(hyper.langevin)(state.round)),
    langevin=hyper.langevin,
    epsilon_value=hyper.epsilon_value,
    tolerance=hyper.rules.tolerance,
    side=hyper.side,
    shared=state.shared,
    features=None if state.features is None else state.features.item,
  )


def start(
  bits_key: jax.Array,
  ridge_key: jax.Array,
  data: Data,
  factors: Factors,
  config: SDCFSettings,
  *,
  shared: Any = None,
  features: Factors | None = None,
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
    optimizer=sgld.optimizer_of(config).init((factors.item, shared)),
    round=jnp.int32(0),
    stopped=jnp.int32(0),
    unsolved=unsolved,
    sent=jnp.float32(0),
    blocks=blocks,
    hyper=Hyper(
      langevin=sgld.langevin(ridge_key, config, rows),
      rules=rules_of(config),
      epsilon_value=jnp.float32(getattr(config, 'epsilon_value', 0.0)),
    ),
    shared=shared,
    features=features,
  )


def model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))


def hardly_moved(
  old: jax.Array, new: jax.Array, tolerance: jax.Array
) -> jax.Array:
  """Whether the move is below `tolerance` of what moved; never for 0."""
  return jnp.linalg.norm(new - old) < tolerance * jnp.linalg.norm(old)
