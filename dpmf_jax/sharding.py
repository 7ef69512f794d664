"""Placement of `Rows` on devices, and the one sum that runs across them.

The chunk axis is the only one that is sharded: every device sums its own
slices into rows and the row sums are added with `psum`. One device is the
same code without the `psum`.
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

from dpmf_jax.data.ratings import Ratings
from dpmf_jax.data.rows import Data, Rows, data_rows

AXIS = 'chunks'

jax.tree_util.register_dataclass(
  Rows,
  data_fields=['column', 'value', 'length', 'row', 'level'],
  meta_fields=['num_rows', 'mesh'],
)


def device_mesh(num_devices: int | None = None) -> Mesh | None:
  """A mesh over the first `num_devices` devices (all by default).

  None where there is just one: a single device needs no mesh. To use the
  cores of a CPU as devices, call
  `jax.config.update('jax_num_cpu_devices', cores)` before JAX starts.
  """
  devices = jax.devices()
  num_devices = len(devices) if num_devices is None else num_devices
  if not 1 <= num_devices <= len(devices):
    raise ValueError(
      f'num_devices={num_devices} is not in 1..{len(devices)}, the number of '
      f'{devices[0].platform} devices'
    )
  if num_devices == 1:
    return None
  return Mesh(np.array(devices[:num_devices]), (AXIS,))


def put_rows(rows: Rows, mesh: Mesh | None = None) -> Rows:
  """`rows` on the device, its chunks spread over `mesh` where there is one."""
  rows = dataclasses.replace(rows, mesh=mesh)
  if mesh is None:
    return jax.device_put(rows)
  return jax.device_put(rows, NamedSharding(mesh, Spec(AXIS)))


def put_replicated(tree, mesh: Mesh | None = None):
  """`tree` on every device of `mesh`; unchanged where there is none."""
  if mesh is None:
    return tree
  return jax.device_put(tree, NamedSharding(mesh, Spec()))


def training_data(
  ratings: Ratings, *, mesh: Mesh | None = None, **layout
) -> Data:
  """Both orientations of `ratings` on the device, as systems take them."""
  multiple = 1 if mesh is None else mesh.size
  data = data_rows(ratings, chunk_multiple=multiple, **layout)
  return Data(*(put_rows(rows, mesh) for rows in data))


def sum_over_slices(
  slice_sums: Callable[..., jax.Array], rows: Rows, *operands: Any
) -> jax.Array:
  """Row sums [num_rows, ...] of what `slice_sums` gives for each slice.

  Args:
    slice_sums: (column [S, L], value [S, L], mask [S, L], row [S],
      *operands) -> [S, ...], called on one chunk at a time so that what it
      gathers stays in the cache.
    rows: the ratings, on one device or sharded over a mesh.
    *operands: trees of arrays that every chunk reads whole (factors).
  """

  def local(rows: Rows, *operands: Any) -> jax.Array:
    slots = jnp.arange(rows.column.shape[-1])[None, :]

    def chunk(xs):
      column, value, length, row = xs
      mask = slots < length[:, None]
      return slice_sums(column, value, mask, row, *operands)

    sums = jax.lax.map(chunk, (rows.column, rows.value, rows.length, rows.row))
    return jax.ops.segment_sum(
      sums.reshape(-1, *sums.shape[2:]),
      rows.row.reshape(-1),
      rows.num_rows,
    )

  if rows.mesh is None:
    return local(rows, *operands)
  return jax.shard_map(
    lambda *args: jax.lax.psum(local(*args), AXIS),
    mesh=rows.mesh,
    in_specs=(Spec(AXIS), *(Spec() for _ in operands)),
    out_specs=Spec(),
    # lax.map's carry is not typed as varying over the mesh; psum makes the
    # result the same everywhere.
    check_vma=False,
  )(rows, *operands)
