"""Rounds of secure distributed collaborative filtering, for its systems.

Reference: Jiang, Li and Lin (2019), Algorithms 1 and 2. A client keeps its
ratings, factors and permanent bits; the server keeps what is public. A system
gives two pure functions,

  client_round(key, client, own, public, capacity=) -> (Client, Contribution)
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.mechanisms import noise, response
from dpmf_jax.plans.sdcf import Average
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.systems.sdcf.client_blocks import (
  Blocks,
  Profile,
  over_clients,
)
from dpmf_jax.systems.sdcf.types import (
  Client,
  Contribution,
  OpenState,
  Public,
  Server,
  State,
  Summed,
  Total,
  Upload,
)
from dpmf_jax.types import Factors, Release

ClientRound = Callable[..., tuple[Client, Contribution]]
Gradients = Callable[..., Total]


def client_report(
  key: jax.Array,
  client: Client,
  own: Profile,
  public: Public,
  *,
  client_round: ClientRound,
  gradients: Gradients,
  capacity: int,
) -> tuple[Client, Upload]:
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
  converged = client.memory.converged
  return client, Upload(item, total.gradient, converged, total.shared)


def item_gradients(
  keys: Sequence[jax.Array], total: Total, at: Any, public: Public
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
  rules: Any,
  shapes: Total,
) -> tuple[Client, Total]:
  """All clients after a round, and the sum of what those online tell.

  `client_round` is (key, client, own, public) -> (Client, Contribution). A
  client that is offline does nothing and sends nothing.
  """

  def one(key, client, own, public):
    client, sent, online = if_online(client_round, key, client, own, *public)
    error = jnp.where(online, sent.error, 0.0)
    return client, sent._replace(error=error, sent=sent.sent & online)

  def run(keys, clients, own, public):
    clients, sent = jax.vmap(one, (0, 0, 0, None))(keys, clients, own, public)
    total = Total(
      sent.error.T @ sent.vector,
      sent.sent.sum(axis=0, dtype=jnp.float32),
      jax.tree.map(lambda x: x.sum(axis=0), sent.shared),
    )
    return clients, total

  return over_clients(run, key, clients, rows, blocks, (public, rules), shapes)


def if_online(
  run: Callable[..., tuple[Client, Any]],
  key: jax.Array,
  client: Client,
  own: Profile,
  public: Public,
  rules: Any,
) -> tuple[Client, Any, jax.Array]:
  """One client after `run`, what it sends, and whether it is online.

  Where it is not, it has not changed and what it sends does not count; what
  that has of `shared` is 0.
  """
  online_key, run_key = jax.random.split(key)
  online = jax.random.uniform(online_key) < rules.online
  online &= client.memory.active
  moved, sent = run(run_key, client, own, public)
  keep = lambda new, old: jnp.where(online, new, old)
  shared = jax.tree.map(lambda x: keep(x, 0), sent.shared)
  moved = jax.tree.map(keep, moved, client)
  return moved, sent._replace(shared=shared), online


def total_shapes(num_items: int, width: int, shared: Any = None) -> Total:
  """The shapes of a `Total` with gradients of that width, and of `shared`."""
  shape = lambda *axes: jax.ShapeDtypeStruct(axes, jnp.float32)
  if shared is not None:
    shared = Summed(
      jax.tree.map(lambda x: shape(*x.shape), shared),
      jax.tree.map(lambda x: shape(*x.shape[:-1]), shared),
    )
  return Total(shape(num_items, width), shape(num_items), shared)


def message_capacity(rows: Rows, num_items: int, sent: float | None) -> int:
  """Slots M of a message; by z, or else by the slots there are for ratings."""
  mean = rows.column.size / rows.num_rows if sent is None else sent
  return response.capacity(mean, num_items)


def server_apply(
  server: Server,
  total: Total,
  converged: jax.Array,
  active: jax.Array,
  rules: Any,
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
    converged: [U] what each client last said.
    active: [U] which clients take part at all.
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
  agreed = (converged & active).sum()
  enough = agreed >= rules.agreement * active.sum()
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


def frozen_if(stopped: jax.Array, old: Any, new: Any) -> Any:
  """`old` where training has stopped, else `new`."""
  return jax.tree.map(lambda a, b: jnp.where(stopped, a, b), old, new)


@dataclass(frozen=True)
class Rounds:
  """A round of all clients and the server, as a `System.step`.

  Equal where all settings are, so that it is compiled once for them.

  Attributes:
    client_round: of the system.
    optimizer: of the mean gradients.
    average: see `sgld.LangevinSettings`.
    sent: z, or None.
    gradients: of the system.
    client_sums: gives the part of what is shared that `Contribution.shared` is
      about.
  """

  client_round: ClientRound
  optimizer: optax.GradientTransformation
  average: Average
  sent: float | None
  gradients: Gradients = item_gradients
  client_sums: Callable[[Any], Any] = lambda shared: None

  def __call__(self, key: jax.Array, state: State, data: Data) -> State:
    item = state.factors.item
    capacity = message_capacity(data.by_user, len(item), self.sent)
    clients_key, item_key, side_key = jax.random.split(key, 3)
    public = public_of(state)
    clients, total = simulated_round(
      clients_key,
      functools.partial(self.client_round, capacity=capacity),
      clients_of(state),
      data.by_user,
      state.blocks,
      public,
      state.hyper.rules,
      total_shapes(*item.shape, shared=self.client_sums(state.shared)),
    )
    total = self.gradients((item_key, side_key), total, slice(None), public)
    return moved_state(state, clients, total, self.optimizer, self.average)


def moved_state(
  state: State,
  clients: Client,
  total: Total,
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
    clients.memory.converged,
    clients.memory.active,
    state.hyper.rules,
    optimizer=optimizer,
    average=average,
  )
  moved = state._replace(
    factors=Factors(clients.factors, server.item),
    sent=total.received.sum(),
    memory=clients.memory,
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
  return Client(state.factors.user, state.memory, features)


def public_of(state: State | OpenState) -> Public:
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


def open_state(
  state: OpenState,
  user: jax.Array,
  total: Total,
  optimizer: optax.GradientTransformation,
  average: Average,
) -> OpenState:
  """The state of a system without privacy, after a round."""
  mean = mean_gradients(total, average)
  old = state.factors.item, state.shared
  updates, optimizer_state = optimizer.update(mean, state.optimizer, old)
  moved: Any = optax.apply_updates(old, updates)
  return state._replace(
    factors=Factors(user, moved[0]),
    shared=moved[1],
    optimizer=optimizer_state,
    round=state.round + 1,
  )


def model(state: State | OpenState, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))


def moved_client(
  client: Client, move: jax.Array, unsent: jax.Array, public: Public
) -> Client:
  """The client once its factors have moved by -`move`."""
  factors = client.factors - move
  converged = hardly_moved(client.factors, factors, public.tolerance)
  memory = client.memory._replace(converged=converged, unsent=unsent)
  return client._replace(factors=factors, memory=memory)


def hardly_moved(
  old: jax.Array, new: jax.Array, tolerance: jax.Array
) -> jax.Array:
  """Whether the move is below `tolerance` of what moved; never for 0."""
  return jnp.linalg.norm(new - old) < tolerance * jnp.linalg.norm(old)
