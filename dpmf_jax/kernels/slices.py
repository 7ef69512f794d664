"""The one loop over chunks of ratings, and the one sum across devices.

Work and memory are proportional to the number of ratings: what is gathered
for one chunk stays in the cache, and only row sums leave the loop.

How the loop is written is for XLA's CPU backend, which runs every operation
of its body as a kernel of its own (jax 0.10; figures in docs/results.md):
- Factors are gathered into buffers that the loop carries. A kernel that
  writes in place is not split over threads, while a gather from a table of
  over half a megabyte is, whatever little it copies, and to hand it over
  takes longer than to copy.
- A row is gathered as lines of 8 numbers, which are copied as one vector
  each; of a line of 24, the last 16 would be copied two by two.
- Sums are added to their rows right away: no array of all slices' sums.

On other platforms chunks are large (`rows.chunk_slices`), and the same loop
goes round a few dozen times. What a chunk takes in memory is bounded here,
where it is known what a kernel gathers and sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.accounting.rounding import PRODUCT_BITS
from dpmf_jax.homes import own_index, padded, trimmed
from dpmf_jax.rows import AXIS, Rows, check_side

_LINE = 8
# What is gathered for a chunk, and its slices' sums, take so many at most.
CHUNK_BYTES = 2**28
# Up to here the products of a row fit into int32 without splitting them.
NARROW = 2 ** (31 - PRODUCT_BITS) - 1


class Chunk(NamedTuple):
  """S slices of L slots each; the last slice is a spare one, all padding."""

  value: jax.Array  # [S, L], the ratings
  mask: jax.Array  # [S, L], False for padding
  column: Any  # [S, L, ...], the tables of columns at the slots' columns
  row: Any  # [S, ...], the tables of rows at the slices' rows


def take(array: jax.Array, index: jax.Array) -> jax.Array:
  """`array[index]` for an index that is known to be in bounds."""
  # Rows are validated when built, so no check of indices is paid for here.
  return array.at[index].get(
    mode='promise_in_bounds', wrap_negative_indices=False
  )


def pad_rank(factors: jax.Array) -> jax.Array:
  """`factors` with zero columns up to a multiple of 8: whole vectors."""
  return jnp.pad(factors, ((0, 0), (0, -factors.shape[1] % _LINE)))


def sum_over_slices(
  slice_sums: Callable[..., jax.Array],
  rows: Rows,
  columns: Any,
  sides: Any,
  *operands: Any,
) -> jax.Array:
  """Row sums [num_rows, ...] of what `slice_sums` gives for each slice.

  Args:
    slice_sums: (chunk, *operands) -> [S, ...], called on one chunk at a time.
    rows: the ratings, on one device or sharded over a mesh.
    columns: a tree of tables [num_columns, ...], for `Chunk.column`.
    sides: a tree of tables [num_rows, ...], for `Chunk.row`.
    *operands: trees of arrays that every chunk reads whole.

  A table of another length is a ValueError: what is gathered beyond its end
  would be some other row of it.
  """
  if rows.homes and rows.side == 'user':
    sides = padded(sides, rows.num_rows, rows.mesh)
  elif rows.homes:
    columns = padded(columns, rows.num_columns, rows.mesh)
  num_rows, num_columns = _table_lengths(rows)
  _check_length('columns', columns, num_columns)
  _check_length('rows', sides, num_rows)

  def local(rows: Rows, columns: Any, sides: Any, *operands: Any) -> jax.Array:
    slots = jnp.arange(rows.column.shape[-1])[None, :]

    def at_home(xs):
      if not rows.homes:
        return xs
      column, value, length, row = xs
      if rows.side == 'user':
        return column, value, length, own_index(row, rows.own_users)
      return own_index(column, rows.own_users), value, length, row

    def sums_of(buffers, xs):
      column, value, length, row = xs
      mask = slots < _with_spare(length)[:, None]
      column_buffers, at_column = _taken(buffers[0], columns, column)
      row_buffers, at_row = _taken(buffers[1], sides, row)
      chunk = Chunk(_with_spare(value), mask, at_column, at_row)
      sums = slice_sums(chunk, *operands)[: len(row)]
      return (column_buffers, row_buffers), sums

    def add(carry, xs):
      total, buffers = carry
      xs = at_home(xs)
      buffers, sums = sums_of(buffers, xs)
      row_sums = total.at[xs[-1]].add(
        sums, mode='promise_in_bounds', wrap_negative_indices=False
      )
      return (row_sums, buffers), None

    def start(xs):
      first = jax.tree.map(lambda x: x[0], xs)
      buffers = (_buffers(columns, first[0]), _buffers(sides, first[-1]))
      return buffers, sums_of(buffers, first)[1]

    xs = (rows.column, rows.value, rows.length, rows.row)
    buffers, sums = jax.eval_shape(start, xs)
    if (parts := _parts(rows.row.shape[1], (buffers, sums))) > 1:
      xs = jax.tree.map(lambda x: _cut(x, parts), xs)
      buffers, sums = jax.eval_shape(start, xs)
    buffers = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), buffers)
    length = rows.num_rows
    if rows.homes and rows.side == 'user':
      length = rows.own_users
    total = jnp.zeros((length, *sums.shape[1:]), sums.dtype)
    return jax.lax.scan(add, (total, buffers), xs)[0][0]

  if rows.mesh is None:
    return local(rows, columns, sides, *operands)
  whole, spread = Spec(), Spec(AXIS)
  tables = (whole, whole)  # where columns and sides are
  if rows.homes:
    tables = (whole, spread) if rows.side == 'user' else (spread, whole)
  at_home = rows.homes and rows.side == 'user'
  sums = jax.shard_map(
    local if at_home else lambda *args: jax.lax.psum(local(*args), AXIS),
    mesh=rows.mesh,
    in_specs=(spread, *tables, *(whole for _ in operands)),
    out_specs=spread if at_home else whole,
    # The loop's carry is not typed as varying over the mesh; psum makes the
    # result the same everywhere.
    check_vma=False,
  )(rows, columns, sides, *operands)
  return trimmed(sums, rows.num_rows, rows.mesh) if at_home else sums


def exact_sums(
  slice_sums: Callable[..., jax.Array],
  rows: Rows,
  columns: Any,
  sides: Any,
  *operands: Any,
  shift: jax.Array | int,
  longest: int,
) -> jax.Array:
  """Row sums [num_rows, N] of products, over 2^shift and rounded, as int32.

  Args:
    slice_sums, rows, columns, sides, *operands: see `sum_over_slices`; slices
      give [S, N] sums of integers, of PRODUCT_BITS bits each, that float32
      holds.
    shift: bits dropped at the end.
    longest: the most ratings that a row can have.

  Privacy: all sums are exact, in whatever order: a rating moves them by its own
  products, and the rounding by one more at most.
  """
  shift = jnp.asarray(shift, jnp.int32)
  # Long rows would overflow: what is dropped is summed apart from the rest.
  wide = longest > NARROW

  def parts(chunk: Chunk, shift, *operands):
    sums = slice_sums(chunk, *operands).astype(jnp.int32)
    if not wide:
      return sums
    high = sums >> shift
    return jnp.concatenate([high, sums - (high << shift)], axis=1)

  sums = sum_over_slices(parts, rows, columns, sides, shift, *operands)
  high, low = jnp.split(sums, 2, axis=1) if wide else (0, sums)
  return high + ((low + (jnp.int32(1) << shift >> 1)) >> shift)


def _parts(slices: int, tree: Any) -> int:
  """Into how many parts a chunk is cut that takes `tree` in memory."""
  leaves = jax.tree.leaves(tree)
  num_bytes = sum(x.size * x.dtype.itemsize for x in leaves)
  parts = 1
  while num_bytes > parts * CHUNK_BYTES and slices % (2 * parts) == 0:
    parts *= 2
  return parts


def _cut(array: jax.Array, parts: int) -> jax.Array:
  """Chunks [C, S, ...] as [C * parts, S / parts, ...]."""
  chunks, slices, *rest = array.shape
  return array.reshape(chunks * parts, slices // parts, *rest)


def _check_length(name: str, tables: Any, length: int) -> None:
  for table in jax.tree.leaves(tables):
    if table.shape[0] != length:
      raise ValueError(
        f'the table of {name} is [{", ".join(map(str, table.shape))}], but the '
        f'ratings have {length} {name}: give it {length} rows'
      )


def _table_lengths(rows: Rows) -> tuple[int, int]:
  """Rows of the tables of rows and of columns."""
  if not rows.homes:
    return rows.num_rows, rows.num_columns
  users = rows.own_users * rows.mesh.size
  if rows.side == 'user':
    return users, rows.num_columns
  return rows.num_rows, users


def each_rating(
  function: Callable[..., jax.Array], rows: Rows, columns: Any, sides: Any
) -> jax.Array:
  """What `function` makes of ratings and tables, [C, S, ...].

  Args:
    function: (rows, column, row, columns, sides) -> [C, S, ...], with `column`
      and `row` for the indices of `rows`, as tables are.
    rows: the ratings.
    columns, sides: trees of tables [num_columns, ...] and [num_rows, ...].
  """
  if not rows.homes:
    return function(rows, rows.column, rows.row, columns, sides)
  by_user = rows.side == 'user'

  def local(rows: Rows, columns: Any, sides: Any) -> jax.Array:
    column, row = rows.column, rows.row
    if by_user:
      row = own_index(row, rows.own_users)
    else:
      column = own_index(column, rows.own_users)
    return function(rows, column, row, columns, sides)

  users = sides if by_user else columns
  users = padded(
    users, rows.num_rows if by_user else rows.num_columns, rows.mesh
  )
  whole, spread = Spec(), Spec(AXIS)
  return jax.shard_map(
    local,
    mesh=rows.mesh,
    in_specs=(spread, whole, spread) if by_user else (spread, spread, whole),
    out_specs=spread,
    check_vma=False,
  )(rows, *((columns, users) if by_user else (users, sides)))


def by_row(function: Callable[..., Any], rows: Rows, values: jax.Array) -> Any:
  """What `function` makes of slices' rows and `values` [C, S, ...].

  Args:
    function: (row, length, values, num_rows) -> a tree of [num_rows, ...], from
      the rows [N] and lengths [N] of slices and values [N, ...].
    rows: the ratings.
    values: of slices.
  """
  flat = lambda x: x.reshape(-1, *x.shape[2:])

  def local(rows: Rows, values: jax.Array) -> Any:
    row, num_rows = rows.row, rows.num_rows
    if rows.homes:
      row, num_rows = own_index(row, rows.own_users), rows.own_users
    return function(flat(row), flat(rows.length), flat(values), num_rows)

  if not rows.homes:
    return local(rows, values)
  check_side(rows, 'user')
  found = jax.shard_map(
    local,
    mesh=rows.mesh,
    in_specs=Spec(AXIS),
    out_specs=Spec(AXIS),
    check_vma=False,
  )(rows, values)
  return trimmed(found, rows.num_rows, rows.mesh)


def row_counts(rows: Rows) -> jax.Array:
  """How many ratings each row has, [num_rows] int32."""
  return jax.ops.segment_sum(
    rows.length.reshape(-1), rows.row.reshape(-1), rows.num_rows
  )


def _lines(table: jax.Array, at: jax.Array) -> jax.Array:
  """`table` [R, D] as [R, D / 8, 8] where that is possible and pays."""
  if table.ndim != 2 or table.shape[1] % _LINE or at.ndim == 1:
    return table
  return table.reshape(len(table), -1, _LINE)


def _with_spare(array: jax.Array) -> jax.Array:
  """`array` with one slice of zeros more."""
  return jnp.pad(array, ((0, 1),) + ((0, 0),) * (array.ndim - 1))


def _buffers(tables: Any, at: jax.Array) -> list[jax.Array | None]:
  """For each table room for `table[at]` and a spare slice.

  None for a table of numbers: gathering those is part of what uses them.
  """
  shape = (len(at) + 1, *at.shape[1:])
  return [
    None
    if table.ndim == 1
    else jnp.zeros((*shape, *_lines(table, at).shape[1:]), table.dtype)
    for table in jax.tree.leaves(tables)
  ]


def _taken(buffers: list[jax.Array | None], tables: Any, at: jax.Array):
  """The buffers, filled, and the tree of `table[at]` with a spare slice."""
  leaves, tree = jax.tree.flatten(tables)
  filled, taken = [], []
  for buffer, table in zip(buffers, leaves, strict=True):
    new = take(_lines(table, at), at)
    if buffer is None:
      filled.append(None)
      taken.append(_with_spare(new))
      continue
    # The spare slice makes this an update in place: if it were of the whole
    # buffer, it would be taken for the gather that it is.
    buffer = jax.lax.dynamic_update_slice(buffer, new, (0,) * buffer.ndim)
    filled.append(buffer)
    taken.append(buffer.reshape(*buffer.shape[: at.ndim], *table.shape[1:]))
  return filled, tree.unflatten(taken)
