"""Rounds of secure distributed collaborative filtering, for its systems.

Reference: Jiang, Li and Lin (2019), Algorithms 1 and 2. A client keeps its
ratings, factors and permanent bits; the server keeps what is public. A system
gives two pure functions,

  client_report(key, client, own, public, ...) -> (Client, Report)
  server_apply(server, total, ...) -> Server

and this module simulates rounds of them: clients run in blocks, and what they
report is summed block by block, so that nothing of the size of users times
items is ever held but packed bits. A real network runs the same two functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as Spec

from dpmf_jax import accounting
from dpmf_jax.data.rows import Rows
from dpmf_jax.mechanisms import response
from dpmf_jax.sharding import AXIS
from dpmf_jax.systems import sgld
from dpmf_jax.systems.sdmf_config import SDCFSettings

# Cells (client, item) that a block of clients works on at once, and clients.
_CELLS = 2**16
_CLIENTS = 16
# Slices of ratings that are laid out at once.
_SLICES = 64


class Own(NamedTuple):
  """One client's ratings: where there is none, the value is 0."""

  value: jax.Array  # [I]
  rated: jax.Array  # [I] bool


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

  gradient: jax.Array  # [I, W]
  count: jax.Array  # [I] gradients received for each item, float32
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


class Blocks(NamedTuple):
  """Where the ratings of each block of clients are."""

  order: jax.Array  # [C * S] slices by user
  start: jax.Array  # [blocks + 1] the first slice of each block, in `order`


def block_shape(rows: Rows, num_items: int) -> tuple[int, int]:
  """(blocks, clients in a block); blocks divide evenly over the devices."""
  devices = 1 if rows.mesh is None else rows.mesh.size
  size = int(np.clip(_CELLS // max(num_items, 1), 1, _CLIENTS))
  size = min(size, -(-rows.num_rows // devices))
  blocks = -(-rows.num_rows // size)
  return -(-blocks // devices) * devices, size


def client_blocks(rows: Rows, num_items: int) -> Blocks:
  """The slices of user-major `rows` by block of clients."""
  blocks, size = block_shape(rows, num_items)
  row = rows.row.reshape(-1)
  order = jnp.argsort(row).astype(jnp.int32)
  edges = jnp.arange(blocks + 1, dtype=jnp.int32) * size
  start = jnp.searchsorted(row[order], edges).astype(jnp.int32)
  return Blocks(order, start)


def own_ratings(
  rows: Rows, blocks: Blocks, block: jax.Array, size: int, num_items: int
) -> Own:
  """The ratings [size, I] of the clients in a block."""
  slots = rows.column.shape[-1]
  flat = [part.reshape(-1, slots) for part in (rows.column, rows.value)]
  length, row = rows.length.reshape(-1), rows.row.reshape(-1)
  start, end = blocks.start[block], blocks.start[block + 1]

  def lay_out(step, cells):
    place = start + step * _SLICES + jnp.arange(_SLICES)
    at = blocks.order[jnp.minimum(place, row.size - 1)]
    column, value = (part[at] for part in flat)  # [_SLICES, L]
    used = jnp.arange(slots)[None, :] < length[at][:, None]
    used &= (place < end)[:, None]
    cell = (row[at] - block * size)[:, None] * num_items + column
    cell = jnp.where(used, cell, size * num_items)
    return cells.at[cell].set(value, mode='drop')

  cells = jnp.full(size * num_items, jnp.nan)
  cells = jax.lax.fori_loop(0, -(-(end - start) // _SLICES), lay_out, cells)
  cells = cells.reshape(size, num_items)
  rated = ~jnp.isnan(cells)
  return Own(jnp.where(rated, cells, 0.0), rated)


def over_clients(
  run: Callable[..., tuple[Any, Any]],
  key: jax.Array,
  clients: Any,
  rows: Rows,
  blocks: Blocks,
  public: Any,
  shapes: Any,
) -> tuple[Any, Any]:
  """(clients after `run`, sums of what it gave), block by block.

  Args:
    run: (keys [B], clients, own ratings, public) -> (clients, sums of
      `shapes`), for a block of B clients at once.
    key: split into one for each client.
    clients: a tree of arrays [U, ...].
    rows: user-major ratings.
    blocks: `client_blocks` of them.
    public: a tree that every client may read.
    shapes: of the sums; the first has I as its first axis.
  """
  num_items = jax.tree.leaves(shapes)[0].shape[0]
  count, size = block_shape(rows, num_items)
  missing = count * size - rows.num_rows

  def in_blocks(leaf):
    padding = [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)
    return jnp.pad(leaf, padding).reshape(count, size, *leaf.shape[1:])

  keys = jax.random.split(key, (count, size))
  cut = jax.tree.map(in_blocks, clients)

  def local(keys, cut, index, rows, blocks, public):
    def block(sums, xs):
      index, keys, cut = xs
      own = own_ratings(rows, blocks, index, size, num_items)
      cut, more = run(keys, cut, own, public)
      return jax.tree.map(jnp.add, sums, more), cut

    return jax.lax.scan(block, zeros_of(shapes), (index, keys, cut))

  index = jnp.arange(count, dtype=jnp.int32)
  if rows.mesh is None:
    sums, cut = local(keys, cut, index, rows, blocks, public)
  else:

    def summed(*args):
      sums, cut = local(*args)
      return jax.lax.psum(sums, AXIS), cut

    sums, cut = jax.shard_map(
      summed,
      mesh=rows.mesh,
      in_specs=(Spec(AXIS),) * 3 + (Spec(),) * 3,
      out_specs=(Spec(), Spec(AXIS)),
      check_vma=False,  # the loops inside start from constants
    )(keys, cut, index, rows, blocks, public)
  joined = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: rows.num_rows]
  return jax.tree.map(joined, cut), sums


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
  num_items = shapes.count.shape[0]

  def one(key, client, own, public):
    online_key, report_key = jax.random.split(key)
    online = jax.random.uniform(online_key) < public[1].online
    online &= client.kept.active
    moved, report = client_report(report_key, client, own, public[0])
    keep = lambda new, old: jnp.where(online, new, old)
    report = report._replace(
      item=keep(report.item, num_items),
      shared=jax.tree.map(lambda x: keep(x, 0), report.shared),
    )
    return jax.tree.map(keep, moved, client), report

  def run(keys, clients, own, public):
    clients, reports = jax.vmap(one, (0, 0, 0, None))(
      keys, clients, own, public
    )
    item = reports.item.reshape(-1)
    gradient = reports.gradient.reshape(item.size, -1)
    zeros = zeros_of(shapes)
    total = Total(
      zeros.gradient.at[item].add(gradient, mode='drop'),
      zeros.count.at[item].add(1.0, mode='drop'),
      jax.tree.map(lambda x: x.sum(axis=0), reports.shared),
    )
    return clients, total

  return over_clients(
    run, key, clients, rows, blocks, (public, rules), shapes
  )


def zeros_of(shapes: Any) -> Any:
  """Zeros of these shapes, made where they are used, on each device."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


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
    settings = {
      'epsilon_permanent': epsilon_permanent,
      'epsilon_instant': epsilon_instant,
      'num_rated': np.maximum(h, 1).astype(np.float64),
      'num_items': num_items,
      # All of the items cannot be sent by anyone who keeps some secret.
      'sent': float(np.clip(mean, 1e-3, num_items * (1 - 1e-3))),
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
  if not isinstance(h, jax.core.Tracer):
    return jax.tree.map(jnp.asarray, solved(np.asarray(h), np.asarray(mean)))
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
  count = total.count if average == 'item' else total.count.sum()[None]
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
