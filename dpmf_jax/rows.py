"""Rows: ratings laid out for the device, as fixed-length slices of rows.

Ratings are sorted by row (user or item) and every row is cut into slices of
L slots, so that all arrays are rectangular, padding is bounded by one slice
per row, and neither orientation needs a scatter over ratings: a kernel sums
inside slices, then adds the slice sums into rows.

The chunk axis is the only one that is sharded: every device sums its own
slices into rows and the row sums are added with `psum` (`kernels/slices.py`).
One device is the same code without the `psum`.

With `homes` each device has all ratings of its own users, and `homes.py` says
where tables of users then are.

Shapes: C chunks, S slices in a chunk, L slots in a slice. Chunks are gone
through one after the other, so S is for the platform (`chunk_slices`); no sum
is bounded by it, as floats are added inside slices only.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.ratings.ids import by_row
from dpmf_jax.ratings.table import Ratings, check_ratings

SLOTS = 32
# Slices in a chunk, which a core works off from its cache...
SLICES = 64
# ...or which keep wide hardware busy: what is gathered for them at rank 64
# takes 128 MB, and 20M ratings of 138,000 users are 47 chunks at most.
WIDE_SLICES = 2**14
# Columns whose factors (0.8 MB at rank 20) stay in a core's cache together.
NEAR = 8192
# Ratings in a chunk of `coo_data`.
_COO_SLICES = 4096

Side = Literal['user', 'item']
# Where tables of items are: on every device, or each device has some rows of
# them between programs, or in programs, too.
ItemTables = Literal['everywhere', 'between', 'spread']


@dataclass(frozen=True)
class Rows:
  """One orientation of a ratings matrix, cut into slices.

  The arrays are NumPy when built and JAX once on a device. Slots past
  `length` are padding: column 0, value 0.

  Attributes:
    column: [C, S, L] uint16, or int32 where there are 2^16 columns or more:
      index on the other side.
    value: [C, S, L] float32, the rating.
    length: [C, S] int32, how many slots of a slice are ratings.
    row: [C, S] int32, the row of a slice.
    num_rows: how many rows there are (static).
    num_columns: how many there are on the other side (static).
    side: what a row is, a 'user' or an 'item'; None where neither is said
      (static).
    scale: the smallest and largest rating that can be given; None where that
      is not known (static).
    mesh: devices over which C is sharded, or None (static).
    homes: whether a device has all ratings of its users (static).
    items: where tables of items are (static); see `homes`.
    epsilon: [C, S, L] float32, the epsilon that each rating is to have, rounded
      down, and 0 in padding; None where there is no specification.
  """

  column: Any
  value: Any
  length: Any
  row: Any
  num_rows: int
  num_columns: int
  side: Side | None = None
  scale: tuple[float, float] | None = None
  mesh: Any = None
  epsilon: Any = None
  homes: bool = False
  items: ItemTables = 'everywhere'

  @property
  def own_users(self) -> int:
    """How many users a device has at home, at most."""
    return own_rows(self.num_users, self.mesh)

  @property
  def num_users(self) -> int:
    return self.num_columns if self.side == 'item' else self.num_rows

  @property
  def num_items(self) -> int:
    return self.num_rows if self.side == 'item' else self.num_columns

  @property
  def spread(self) -> tuple[bool, bool]:
    """Whether tables of users, and of items, are spread inside programs."""
    return self.homes, self.items == 'spread'


class Data(NamedTuple):
  """The same ratings by user and by item, which is what systems are given."""

  by_user: Rows
  by_item: Rows


def rows(
  row: np.ndarray,
  column: np.ndarray,
  value: np.ndarray,
  num_rows: int,
  num_columns: int,
  *,
  side: Side | None = None,
  scale: tuple[float, float] | None = None,
  epsilon: np.ndarray | None = None,
  slots: int = SLOTS,
  slices: int | None = None,
  platform: str = 'cpu',
  chunk_multiple: int = 1,
  least_chunks: int = 2,
) -> Rows:
  """Row slices of the ratings (row, column, value).

  Args:
    row: [N] row of each rating.
    column: [N] its index on the other side.
    value: [N] its value.
    num_rows: rows in all; rows without ratings take no slices.
    num_columns: on the other side, in all.
    side, scale: see `Rows`.
    epsilon: [N] the epsilon that it is to have, or None.
    slots: L, slots in a slice.
    slices: S, slices in a chunk; by default `chunk_slices` of `platform`.
    platform: what the rows are for, as JAX names it.
    chunk_multiple: C is padded to a multiple of this, to shard evenly.
    least_chunks: and to as many for each shard, and then to a number of
      `chunk_grid`. A loop over one chunk is compiled to another program than
      one over more, and may round floats differently; with two, neighbouring
      data sets have the same program.

  Returns:
    Rows of NumPy arrays. Ratings of a row are in the order of `column`.
    Slices that start within the same 8,192 columns are together, so that what
    they gather is still in the cache, and in row order among themselves: the
    layout does not depend on the order in which the ratings were given.
  """
  for name, index, size in (
    ('row', row, num_rows),
    ('column', column, num_columns),
  ):
    if index.size and not 0 <= index.min() <= index.max() < size:
      raise ValueError(
        f'{name} has {index.min()}..{index.max()}, but must be in 0..{size - 1}'
      )
  if slices is None:
    slices = chunk_slices(platform, num_rows, num_columns, slots)
  sorting, column, ends = by_row(row, column, num_rows, num_columns)
  value = value[sorting]
  counts = np.diff(ends).astype(np.int64)
  slices_of = -(-counts // slots)
  used = int(slices_of.sum())
  chunks = max(-(-used // (slices * chunk_multiple)), least_chunks)
  chunks = chunk_grid(chunks) * chunk_multiple
  total = chunks * slices

  slice_row = np.repeat(np.arange(num_rows, dtype=np.int32), slices_of)
  first_slice = np.cumsum(slices_of) - slices_of  # [num_rows]
  first_rating = np.cumsum(counts) - counts  # [num_rows]
  rank = np.arange(used) - first_slice[slice_row]  # place among row's slices
  start = first_rating[slice_row] + rank * slots  # [used]
  filled = np.minimum(counts[slice_row] - rank * slots, slots)  # [used]
  order = np.argsort(column[start] // NEAR, kind='stable')  # [used]
  place = np.empty_like(order)
  place[order] = np.arange(used)
  # [N] place in the flat layout
  slot = np.repeat(place * slots - start, filled) + np.arange(len(value))

  # Padding of `num_columns`, one past the last, is to fit in, too.
  narrow = np.uint16 if num_columns < 2**16 else np.int32
  flat_column = np.zeros(total * slots, narrow)
  flat_value = np.zeros(total * slots, np.float32)
  flat_column[slot] = column
  flat_value[slot] = value
  flat_epsilon = None
  if epsilon is not None:
    flat_epsilon = np.zeros(total * slots, np.float32)
    flat_epsilon[slot] = rounded_down(epsilon[sorting])
    flat_epsilon = flat_epsilon.reshape(chunks, slices, slots)
  length = np.zeros(total, np.int32)
  length[:used] = filled[order]
  # Padding slices belong to the last row, and add zero.
  padded_row = np.full(total, max(num_rows - 1, 0), np.int32)
  padded_row[:used] = slice_row[order]
  return Rows(
    column=flat_column.reshape(chunks, slices, slots),
    value=flat_value.reshape(chunks, slices, slots),
    length=length.reshape(chunks, slices),
    row=padded_row.reshape(chunks, slices),
    num_rows=num_rows,
    num_columns=num_columns,
    side=side,
    scale=scale,
    epsilon=flat_epsilon,
  )


def chunk_slices(
  platform: str, num_rows: int, num_columns: int, slots: int = SLOTS
) -> int:
  """S, slices in a chunk, for devices of `platform`.

  A power of two. On wide hardware (all but a CPU) half of the most slices that
  the table can have is enough.

  Privacy: a function of public sizes, and not of how many ratings there are:
  neighbours have chunks of one shape, and so one program.
  """
  if platform == 'cpu':
    return SLICES
  most = num_rows * -(-num_columns // slots)
  half = 1 << max(-(-most // 2) - 1, 0).bit_length()
  return min(max(half, SLICES), WIDE_SLICES)


def chunk_grid(least: int) -> int:
  """The smallest number from `least` on that is on a grid.

  A program is compiled for so many chunks. On the grid other splits of a data
  set, and neighbours of it, have as many but where they lie on both sides of
  one of its lines. These are about as far apart as the square root of the
  number, which is more than splits differ by, and a sixteenth of it at most.
  """
  bits = least.bit_length()
  step = 1 << max(min(bits // 2 - 1, bits - 5), 0)
  return -(-least // step) * step


def platform_of(mesh: Mesh | None) -> str:
  """The platform of the mesh's devices; without one, of the default device."""
  used = jax.device_put(0).devices() if mesh is None else mesh.devices.flat
  return next(iter(used)).platform


def rounded_down(values: np.ndarray) -> np.ndarray:
  """The largest float32 that are not above the non-negative `values`."""
  with np.errstate(over='ignore'):  # what is too large becomes the largest
    nearest = np.asarray(values).astype(np.float32)
  above = nearest > np.asarray(values, np.float64)
  return np.where(above, np.nextafter(nearest, np.float32(0)), nearest)


def data_rows(
  ratings: Ratings,
  *,
  chunk_multiple: int = 1,
  least_chunks: int | tuple[int, int] = 2,
  **layout,
) -> Data:
  """Both orientations of `ratings` as NumPy row slices; see `rows`.

  `least_chunks` may be two numbers, by user and by item, of `needed_chunks`.
  """
  if isinstance(least_chunks, int):
    least_chunks = (least_chunks, least_chunks)
  layout |= {
    'scale': ratings.scale,
    'chunk_multiple': chunk_multiple,
    'epsilon': ratings.epsilon,
  }
  user, item, value = ratings.user, ratings.item, ratings.value
  users, items = ratings.num_users, ratings.num_items
  sides: list[Side] = ['user', 'item']
  by_user, by_item = (
    functools.partial(rows, side=side, least_chunks=least, **layout)
    for side, least in zip(sides, least_chunks, strict=True)
  )
  return Data(
    by_user=by_user(user, item, value, users, items),
    by_item=by_item(item, user, value, items, users),
  )


def needed_chunks(
  ratings: Ratings, mesh: Mesh | None = None
) -> tuple[int, int]:
  """Chunks for each shard that these ratings take, by user and by item.

  With the largest of several tables as their `least_chunks` all have one shape,
  and what is compiled for one of them is compiled for all.
  """
  platform, shards = platform_of(mesh), 1 if mesh is None else mesh.size
  users, items = ratings.num_users, ratings.num_items

  def needed(index: np.ndarray, num_rows: int, num_columns: int) -> int:
    slices = int((-(-np.bincount(index) // SLOTS)).sum())
    size = shards * chunk_slices(platform, num_rows, num_columns)
    return chunk_grid(max(-(-slices // size), 2))

  return needed(ratings.user, users, items), needed(ratings.item, items, users)


def check_side(rows: Rows, side: Side) -> None:
  """Raises ValueError where rows are known to be of the other side."""
  if rows.side not in (side, None):
    raise ValueError(
      f'rows are by {rows.side}, but must be by {side}: use data.by_{side}'
    )


def coo_data(
  users: Any,
  items: Any,
  values: Any,
  *,
  num_users: int,
  num_items: int,
  mask: Any = None,
  scale: tuple[float, float] | None = None,
) -> Data:
  """Ratings as three arrays [N], in whatever order, as kernels take them.

  Unlike `training_data` it is made of JAX alone, and may be traced. Sums over
  it take longer: a slice is a single rating.

  Args:
    users, items: [N] indices; a pair at most once. In a trace, where values
      are not known, ratings of indices out of range are left out.
    values: [N] ratings, not NaN; in a trace NaN counts as 0.
    num_users, num_items: in all.
    mask: [N] bool, False where there is no rating.
    scale: see `Rows`.

  >>> data = coo_data([0, 0, 1], [2, 0, 1], [5.0, 3.0, 4.0],
  ...                 num_users=2, num_items=3)
  >>> data.by_item.num_rows, int(data.by_item.length.sum())
  (3, 3)
  """
  value = jnp.asarray(values, jnp.float32)
  used = jnp.ones_like(value, bool) if mask is None else jnp.asarray(mask, bool)
  user, item = _indices('users', users), _indices('items', items)
  shapes = [x.shape for x in (user, item, used)]
  if shapes != [value.shape] * 3 or value.ndim != 1:
    raise ValueError(
      'users, items, values and mask must be [N], got '
      f'{shapes[0]}, {shapes[1]}, {value.shape} and {shapes[2]}'
    )
  good = (user >= 0) & (user < num_users) & (item >= 0) & (item < num_items)
  if not any(isinstance(x, Tracer) for x in (good, used)):
    _check_pairs(user[used], item[used], good[used])
    if not isinstance(value, Tracer) and np.isnan(value[used]).any():
      raise ValueError('values have a NaN, which is no rating: mask it out')
  # A number is brought into the scale where that is needed; NaN would not be.
  value = jnp.where(jnp.isnan(value), 0.0, value)
  used = used & good
  slices = max(1, min(len(used), _COO_SLICES))
  more = -len(used) % slices if len(used) else 1  # there is always a slice
  chunked = lambda x: jnp.pad(jnp.where(used, x, 0), (0, more)).reshape(
    -1, slices
  )
  value = chunked(value)[..., None]
  length = chunked(used.astype(jnp.int32))
  user, item = chunked(user), chunked(item)
  one = lambda row, column, num_rows, num_columns, side: Rows(
    column[..., None], value, length, row, num_rows, num_columns, side, scale
  )
  return Data(
    one(user, item, num_users, num_items, 'user'),
    one(item, user, num_items, num_users, 'item'),
  )


def _indices(role: str, given: Any) -> jax.Array:
  index = given if isinstance(given, jax.Array) else np.asarray(given)
  if index.size and not jnp.issubdtype(index.dtype, jnp.integer):
    raise ValueError(
      f'{role} have type {index.dtype}, but must be indices: integers from 0'
    )
  return jnp.asarray(index, jnp.int32)


def _check_pairs(user: jax.Array, item: jax.Array, good: jax.Array) -> None:
  """Raises ValueError for an index out of range, and for a pair rated twice."""
  for what, wrong in (
    ('an index out of range', ~np.asarray(good)),
    ('a pair that was rated before', _seen_before(user, item)),
  ):
    if wrong.any():
      place = int(wrong.argmax())
      pair = int(user[place]), int(item[place])
      raise ValueError(f'(user, item) = {pair} is {what}')


def _seen_before(user: jax.Array, item: jax.Array) -> np.ndarray:
  pairs = np.stack([np.asarray(user), np.asarray(item)], axis=1)
  seen = np.ones(len(pairs), bool)
  seen[np.unique(pairs, axis=0, return_index=True)[1]] = False
  return seen


def dense_data(
  matrix: Any, mask: Any = None, *, scale: tuple[float, float] | None = None
) -> Data:
  """A dense matrix [U, I] of ratings where `mask` is true, as kernels take it.

  Args:
    matrix: [U, I].
    mask: [U, I] bool; by default what is not NaN.
    scale: see `Rows`.

  >>> matrix = jnp.array([[5.0, jnp.nan], [jnp.nan, 3.0], [1.0, 2.0]])
  >>> dense_data(matrix).by_user.length.sum()
  Array(4, dtype=int32)
  """
  matrix = jnp.asarray(matrix)
  mask = ~jnp.isnan(matrix) if mask is None else jnp.asarray(mask)
  users, items = (index.ravel() for index in np.indices(matrix.shape))
  return coo_data(
    users,
    items,
    matrix.ravel(),
    num_users=matrix.shape[0],
    num_items=matrix.shape[1],
    mask=mask.ravel(),
    scale=scale,
  )


def check_scale(data: Data, scale: tuple[float, float] | None) -> None:
  """Raises ValueError where ratings are known to be of another scale."""
  given = data.by_user.scale
  if scale is not None and given is not None and scale != given:
    raise ValueError(
      f'the system has scale={scale}, but the ratings have scale={given}: make '
      'the system with the scale of the ratings'
    )


AXIS = 'chunks'

jax.tree_util.register_dataclass(
  Rows,
  data_fields=['column', 'value', 'length', 'row', 'epsilon'],
  meta_fields=[
    *['num_rows', 'num_columns', 'side', 'scale', 'mesh', 'homes', 'items']
  ],
)


def device_mesh(devices: int | None = None) -> Mesh | None:
  """A mesh over the first `devices` devices of each process (all by default).

  None where there is just one: a single device needs no mesh. To use the
  cores of a CPU as devices, call
  `jax.config.update('jax_num_cpu_devices', cores)` before JAX starts.
  """
  known = jax.local_devices()
  count = len(known) if devices is None else devices
  if not (isinstance(count, int) and 1 <= count <= len(known)):
    raise ValueError(
      f'devices={devices!r} is not in 1..{len(known)}, the number of '
      f'{known[0].platform} devices'
    )
  if count == jax.process_count() == 1:
    return None
  each: dict[int, list] = {}
  for device in jax.devices():
    each.setdefault(device.process_index, []).append(device)
  used = [device for number in sorted(each) for device in each[number][:count]]
  return Mesh(np.array(used), (AXIS,))


def put_rows(rows: Rows, mesh: Mesh | None = None) -> Rows:
  """`rows` on the device, its chunks spread over `mesh` where there is one."""
  rows = dataclasses.replace(rows, mesh=mesh)
  if mesh is None:
    return jax.device_put(rows)
  sharding = NamedSharding(mesh, Spec(AXIS))
  if not mesh.is_multi_process:
    return jax.device_put(rows, sharding)
  # Chunks of padding, up to as many as the process with the most has.
  chunks = len(rows.row)
  put = functools.partial(jax.make_array_from_process_local_data, sharding)
  most = int(jnp.max(put(np.full(len(mesh.local_devices), chunks, np.int32))))

  def padded(array: np.ndarray) -> jax.Array:
    more = ((0, most - chunks),) + ((0, 0),) * (array.ndim - 1)
    return put(np.pad(array, more))

  return jax.tree.map(padded, rows)


def own_rows(num_rows: int, mesh: Mesh) -> int:
  """How many rows of a table that is spread a device has, at most."""
  return -(-num_rows // mesh.size)


def put_replicated(tree, mesh: Mesh | None = None):
  """`tree` on every device of `mesh`; unchanged where there is none."""
  if mesh is None:
    return tree
  sharding = NamedSharding(mesh, Spec())
  if not mesh.is_multi_process:
    return jax.device_put(tree, sharding)

  def put(leaf: Any) -> jax.Array:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
      return jax.device_put(leaf, sharding)
    own = np.asarray(leaf)  # which all processes have
    return jax.make_array_from_callback(
      own.shape, sharding, lambda index: own[index]
    )

  return jax.tree.map(put, tree)


def training_data(
  ratings: Ratings, *, mesh: Mesh | None = None, **layout
) -> Data:
  """Both orientations of `ratings` on the device, as systems take them.

  `layout` is for `rows`; by default it is made for the devices' platform. Of
  several processes each gives the ratings of its own users.
  """
  check_ratings(ratings)
  layout.setdefault('platform', platform_of(mesh))
  multiple = 1 if mesh is None else len(mesh.local_devices)
  data = data_rows(ratings, chunk_multiple=multiple, **layout)
  return Data(*(put_rows(rows, mesh) for rows in data))
