"""Clients in blocks: their ratings, and what is summed over all of them.

A simulator runs clients a block at a time, so that nothing of the size of
users times items is held, and blocks are shared among devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.rows import AXIS, Rows

# Cells (client, item) that a block of clients works on at once, and clients.
_CELLS = 2**16
_CLIENTS = 16
# Slices of ratings that are laid out at once.
_SLICES = 64


class Profile(NamedTuple):
  """One client's ratings: where there is none, the value is 0."""

  value: jax.Array  # [I]
  rated: jax.Array  # [I] bool


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
) -> Profile:
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
  return Profile(jnp.where(rated, cells, 0.0), rated)


def over_clients(
  run: Callable[..., tuple[Any, Any]],
  key: jax.Array,
  clients: Any,
  rows: Rows,
  blocks: Blocks,
  public: Any,
  shapes: Any,
  *,
  first: jax.Array | int = 0,
) -> tuple[Any, Any]:
  """(clients after `run`, sums of what it gave), block by block.

  Args:
    run: (keys [B], clients, own ratings, public) -> (clients, sums of
      `shapes`), for a block of B clients at once.
    key: a client's own is folded in from its number.
    clients: a tree of arrays [U, ...].
    rows: user-major ratings.
    blocks: `client_blocks` of them.
    public: a tree that every client may read.
    shapes: of the sums; the first has I as its first axis.
    first: number of the first client, where those before it are elsewhere.
  """
  num_items = jax.tree.leaves(shapes)[0].shape[0]
  count, size = block_shape(rows, num_items)
  missing = count * size - rows.num_rows

  def in_blocks(leaf):
    padding = [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)
    return jnp.pad(leaf, padding).reshape(count, size, *leaf.shape[1:])

  # As words: under vmap the check of reused keys takes a scan over keys for a
  # second use of them.
  numbers = first + jnp.arange(count * size).reshape(count, size)
  each = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))
  words = jax.random.key_data(each(key, numbers))
  as_keys = functools.partial(
    jax.random.wrap_key_data, impl=jax.random.key_impl(key)
  )
  cut = jax.tree.map(in_blocks, clients)

  def local(words, cut, index, rows, blocks, public):
    def block(sums, xs):
      index, words, cut = xs
      own = own_ratings(rows, blocks, index, size, num_items)
      cut, more = run(as_keys(words), cut, own, public)
      return jax.tree.map(jnp.add, sums, more), cut

    return jax.lax.scan(block, zeros_of(shapes), (index, words, cut))

  index = jnp.arange(count, dtype=jnp.int32)
  if rows.mesh is None:
    sums, cut = local(words, cut, index, rows, blocks, public)
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
    )(words, cut, index, rows, blocks, public)
  # Not -1, which a leaf without any entry, of no features, does not define.
  joined = lambda leaf: leaf.reshape(count * size, *leaf.shape[2:])[
    : rows.num_rows
  ]
  return jax.tree.map(joined, cut), sums


def zeros_of(shapes: Any) -> Any:
  """Zeros of these shapes, made where they are used, on each device."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
