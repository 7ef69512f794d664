"""Tables that are spread over devices by rows, users' where their ratings are.

The users of the k-th of n devices are those with the numbers from k U/n to
(k + 1) U/n, U/n rounded up (`homes_of`). A device has all their ratings
and their rows of all tables of users, so that sums by user stay where they are,
and what goes over the network are sums by item. Tables of items are everywhere,
or spread by their numbers in the same way (`spread_items`), and then gathered
where ratings need them: their rows are those of no device's ratings.

Inside a program a table of users is [U, ...] as ever, and spread over the mesh;
the last device has fewer rows. Arrays between programs cannot be spread like
that, and have rows of zeros at their end: `padded`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.ratings.table import Ratings, check_ratings
from dpmf_jax.rows import (
  AXIS,
  Data,
  ItemTables,
  Rows,
  data_rows,
  own_rows,
  platform_of,
  training_data,
)

# Users who tell what all are like: so many, or fewer.
_TELLING = 2**16


def homes_of(user: np.ndarray, num_users: int, mesh: Mesh) -> np.ndarray:
  """The place in the mesh of the device that has each of the users."""
  return user // own_rows(num_users, mesh)


def data_at_home(ratings: Ratings, mesh: Mesh | None, **layout) -> Data:
  """`training_data` in which every device has the ratings of its users.

  Each process gives the ratings of the users that its devices have.
  """
  if mesh is None:
    return training_data(ratings, **layout)
  check_ratings(ratings)
  layout.setdefault('platform', platform_of(mesh))
  home = homes_of(ratings.user, ratings.num_users, mesh)
  places = [
    place
    for place, device in enumerate(mesh.devices.flat)
    if device.process_index == jax.process_index()
  ]
  if not np.isin(home, places).all():
    raise ValueError('there are ratings of users whose home is elsewhere')
  parts = [data_rows(ratings.take(home == place), **layout) for place in places]
  put = functools.partial(
    jax.make_array_from_process_local_data, NamedSharding(mesh, Spec(AXIS))
  )

  def put_parts(*parts: Rows) -> Rows:
    # As many chunks for each device of each process.
    most = int(jnp.max(put(np.array([len(x.row) for x in parts], np.int32))))

    def joined(*arrays: np.ndarray) -> jax.Array:
      rest = ((0, 0),) * (arrays[0].ndim - 1)
      return put(
        np.concatenate(
          [np.pad(own, ((0, most - len(own)), *rest)) for own in arrays]
        )
      )

    rows = jax.tree.map(joined, *parts)
    return dataclasses.replace(rows, mesh=mesh, homes=True)

  return Data(*map(put_parts, *parts))


def padded(tree: Any, num_rows: int, mesh: Mesh) -> Any:
  """Tables with as many rows for each device, those beyond are 0."""
  total = own_rows(num_rows, mesh) * mesh.size

  def with_more(table: jax.Array) -> jax.Array:
    more = ((0, total - len(table)),) + ((0, 0),) * (table.ndim - 1)
    return _spread(jnp.pad(table, more), mesh)

  return jax.tree.map(with_more, tree)


def trimmed(tree: Any, num_rows: int, mesh: Mesh) -> Any:
  """Tables without the rows of `padded`; inside a program only."""
  return jax.tree.map(lambda table: _spread(table[:num_rows], mesh), tree)


def gathered(table: jax.Array, num_rows: int, mesh: Mesh) -> jax.Array:
  """All of a table, without the rows of `padded`, on every device."""
  whole = NamedSharding(mesh, Spec())
  return jax.lax.with_sharding_constraint(table, whole)[:num_rows]


def _spread(table: jax.Array, mesh: Mesh) -> jax.Array:
  sharding = NamedSharding(mesh, Spec(AXIS))
  return jax.lax.with_sharding_constraint(table, sharding)


def by_home(
  function: Callable[..., Any],
  rows: Rows,
  *tables: Any,
  summed: bool = False,
) -> Any:
  """What `function` makes of tables of `rows`, row by row.

  With homes every device does it for its own users, and for rows of zeros.
  `summed` says that the results are sums over users, of integers.
  """
  if not rows.homes or rows.side == 'item':
    return function(*tables)
  mesh, users = rows.mesh, rows.num_rows
  own = jax.shard_map(
    (lambda *own: jax.lax.psum(function(*own), AXIS)) if summed else function,
    mesh=mesh,
    in_specs=Spec(AXIS),
    out_specs=Spec() if summed else Spec(AXIS),
    check_vma=False,
  )
  found = own(*padded(tables, users, mesh))
  return found if summed else trimmed(found, users, mesh)


def by_block(
  function: Callable[..., Any], sizes: tuple[int, int], *tables: Any
) -> Any:
  """What `function` makes of tables, so many rows at a time.

  A row so has the same bits in all programs, of however many rows: what XLA
  makes of an operation depends on its shape and on what else is there.

  Args:
    function: of tables, row by row.
    sizes: rows on a CPU, where they stay in a core's cache, and on wide
      hardware.
    *tables: [R, ...] each.
  """
  cpu, wide = (functools.partial(_by_block, function, size) for size in sizes)
  return jax.lax.platform_dependent(*tables, cpu=cpu, default=wide)


def _by_block(function: Callable[..., Any], size: int, *tables: Any) -> Any:
  count = len(jax.tree.leaves(tables)[0])
  # At least two blocks: a loop of one would be another program.
  blocks = max(2, -(-count // size))

  def cut(rows: jax.Array) -> jax.Array:
    more = blocks * size - count
    rows = jnp.pad(rows, ((0, more),) + ((0, 0),) * (rows.ndim - 1))
    return rows.reshape(blocks, size, *rows.shape[1:])

  found = jax.lax.map(lambda own: function(*own), jax.tree.map(cut, tables))
  return jax.tree.map(
    lambda rows: rows.reshape(-1, *rows.shape[2:])[:count], found
  )


def some_rows(tree: Any, rows: Rows) -> Any:
  """Rows of tables of `rows` that tell what all are like, on every device.

  All of them, or where there are many users every k-th, as many as are always
  at hand: sums over users are of these.
  """
  apart = 1
  if rows.side == 'user':
    apart = max(1, -(-rows.num_rows // _TELLING))
  if not rows.homes or rows.side == 'item':
    return jax.tree.map(lambda table: table[::apart], tree)
  index = jnp.arange(0, rows.num_rows, apart)

  def own(table: jax.Array) -> jax.Array:
    first = jax.lax.axis_index(AXIS) * len(table)
    here = (index >= first) & (index < first + len(table))
    here = here.reshape(-1, *(1,) * (table.ndim - 1))
    part = table[own_index(index, len(table))]
    # A row is that of one device, and zeros are added to it.
    return jax.lax.psum(jnp.where(here, part, jnp.zeros_like(part)), AXIS)

  return jax.shard_map(
    lambda tree: jax.tree.map(own, tree),
    mesh=rows.mesh,
    in_specs=Spec(AXIS),
    out_specs=Spec(),
    check_vma=False,
  )(padded(tree, rows.num_rows, rows.mesh))


def alike(function: Callable[..., Any], number: jax.Array, *args: Any) -> Any:
  """`function` of what all devices have, to the same bits in all programs.

  A product and a sum are rounded once or twice, by what else XLA puts into the
  same kernel. Nothing from outside gets into a branch of a condition. This one
  always holds: `number` [] is an integer that is never negative, though XLA
  must not see that.
  """
  shapes = jax.eval_shape(function, *args)
  none = lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  return jax.lax.cond(number >= 0, function, none, *args)


def own_index(index: jax.Array, size: int) -> jax.Array:
  """Places among a device's own users, in `shard_map`; any for padding."""
  return jnp.clip(index - jax.lax.axis_index(AXIS) * size, 0, size - 1)


def map_tables(
  state: Any,
  *,
  user: Callable[[Any], Any] = lambda table: table,
  item: Callable[[Any], Any] = lambda table: table,
  others: Callable[[Any], Any] = lambda leaf: leaf,
) -> Any:
  """`state` with functions of its tables of users and items, and of the rest.

  Tables are the arrays in fields named `user` or `item`, but for single
  numbers.
  """
  sides = {'user': user, 'item': item}

  def mapped(path: Any, leaf: Any) -> Any:
    named = [sides.get(getattr(key, 'name', None) or '') for key in path]
    function = next(filter(None, named), others) if jnp.ndim(leaf) else others
    return function(leaf)

  return jax.tree_util.tree_map_with_path(mapped, state)


def everywhere(data: Data) -> Data:
  """The same ratings, for systems whose tables of users all devices have."""
  return Data(*(dataclasses.replace(rows, homes=False) for rows in data))


def spread_items(data: Data, items: ItemTables = 'spread') -> Data:
  """The same ratings, for tables of items that are spread over the mesh.

  States of `training.fit` then have tables of items that are `padded`; models
  are made of `whole_items` of them.
  """
  if data.by_user.mesh is None:
    return data
  return Data(*(dataclasses.replace(rows, items=items) for rows in data))


def whole_items(tree: Any, data: Data) -> Any:
  """`tree` with all rows of its tables of items on every device."""
  rows = data.by_item
  if rows.items == 'everywhere':
    return tree
  return map_tables(tree, item=lambda x: _whole(x, rows.num_rows, rows.mesh))


def kept_items(tree: Any, data: Data) -> Any:
  """`tree` with tables of items as they are between programs."""
  rows = data.by_item
  if rows.items == 'everywhere':
    return tree
  return map_tables(tree, item=lambda x: _kept(x, rows.num_rows, rows.mesh))


_whole = jax.jit(gathered, static_argnums=(1, 2))
_kept = jax.jit(padded, static_argnums=(1, 2))


def put_homes(tree: Any, num_rows: int, mesh: Mesh) -> Any:
  """Tables, `padded`, with each device's own rows on it."""
  sharding = NamedSharding(mesh, Spec(AXIS))
  total = own_rows(num_rows, mesh) * mesh.size

  def put(table: Any) -> jax.Array:
    if isinstance(table, jax.Array) and not table.is_fully_addressable:
      return table  # it was put before
    whole = np.asarray(table)

    def part(index: Any) -> np.ndarray:
      own = whole[index]
      more = len(range(total)[index[0]]) - len(own)
      return np.pad(own, ((0, more),) + ((0, 0),) * (own.ndim - 1))

    shape = (total, *whole.shape[1:])
    return jax.make_array_from_callback(shape, sharding, part)

  return jax.tree.map(put, tree)
