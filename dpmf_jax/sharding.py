"""Placement of `Rows` on devices.

The chunk axis is the only one that is sharded: every device sums its own
slices into rows and the row sums are added with `psum` (`kernels/slices.py`).
One device is the same code without the `psum`.
"""

from __future__ import annotations

import dataclasses

import jax
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
