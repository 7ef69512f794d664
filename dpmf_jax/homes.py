"""Tables of users that are spread over devices, each row where its ratings are.

The users of the k-th of n devices are those with the numbers from k U/n to
(k + 1) U/n, U/n rounded up (`rows.homes_of`). A device has all their ratings
and their rows of all tables of users, so that sums by user stay where they are,
and what goes over the network are sums by item. Tables of items are everywhere.

Inside a program a table of users is [U, ...] as ever, and spread over the mesh;
the last device has fewer rows. Arrays between programs cannot be spread like
that, and have rows of zeros at their end: `padded`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.rows import AXIS, Data, Rows, own_users


def padded(tree: Any, num_users: int, mesh: Mesh) -> Any:
  """Tables of users with as many rows for each device, those beyond are 0."""
  total = own_users(num_users, mesh) * mesh.size

  def with_more(table: jax.Array) -> jax.Array:
    more = ((0, total - len(table)),) + ((0, 0),) * (table.ndim - 1)
    return _spread(jnp.pad(table, more), mesh)

  return jax.tree.map(with_more, tree)


def trimmed(tree: Any, num_users: int, mesh: Mesh) -> Any:
  """Tables of users without the rows of `padded`; inside a program only."""
  return jax.tree.map(lambda table: _spread(table[:num_users], mesh), tree)


def _spread(table: jax.Array, mesh: Mesh) -> jax.Array:
  sharding = NamedSharding(mesh, Spec(AXIS))
  return jax.lax.with_sharding_constraint(table, sharding)


def by_home(
  function: Callable[..., Any],
  rows: Rows,
  *tables: Any,
  summed: bool = False,
) -> Any:
  """What `function` makes of tables of users, row by row.

  With homes every device does it for its own users, and for rows of zeros.
  `summed` says that the results are sums over users, of integers.
  """
  if not rows.homes:
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


def own_index(index: jax.Array, size: int) -> jax.Array:
  """Places among a device's own users, in `shard_map`; any for padding."""
  return jnp.clip(index - jax.lax.axis_index(AXIS) * size, 0, size - 1)


def map_users(
  function: Callable[[Any], Any],
  state: Any,
  num_rows: tuple[int, ...],
  others: Callable[[Any], Any] = lambda leaf: leaf,
) -> Any:
  """`state` with `function` of its tables of users, and `others` of the rest.

  They are named `user`, and have one of `num_rows`.
  """

  def mapped(path: Any, leaf: Any) -> Any:
    named = any(getattr(key, 'name', None) == 'user' for key in path)
    table = named and jnp.ndim(leaf) and len(leaf) in num_rows
    return function(leaf) if table else others(leaf)

  return jax.tree_util.tree_map_with_path(mapped, state)


def everywhere(data: Data) -> Data:
  """The same ratings, for systems whose tables of users all devices have."""
  return Data(*(dataclasses.replace(rows, homes=False) for rows in data))


def put_homes(tree: Any, num_users: int, mesh: Mesh) -> Any:
  """Tables of users, `padded`, with each device's own rows on it."""
  sharding = NamedSharding(mesh, Spec(AXIS))
  total = own_users(num_users, mesh) * mesh.size

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
