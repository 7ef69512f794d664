"""Reading rating files: text tables and matrices, Netflix, RecBole, Parquet.

What `read` does with a text file: unpacked if it is gzip or zstd, UTF-8 (with
or without BOM) or Latin-1, LF or CRLF, blank lines at the end ignored. Ids are
kept exactly as written. With a header the columns may come in any order, and
further ones are ignored where there is a rating or a count; without one they
are user, item and, if there are more, rating and timestamp.
A user who rates an item twice keeps the later line, with a warning. Without a
rating there are clicks, or counts of them, which are added up.
"""

from __future__ import annotations

import glob
import json
import os
import pathlib
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmf_jax import files
from dpmf_jax.ratings import dense, exchange, text, tokens
from dpmf_jax.ratings.checks import check_scale, check_values
from dpmf_jax.ratings.columns import check_roles, choose, listed, role_of
from dpmf_jax.ratings.ids import (
  DataError,
  Where,
  factorize,
  join_ids,
  used_ids,
)
from dpmf_jax.ratings.repeats import Duplicates
from dpmf_jax.ratings.table import Columns, Ratings, assemble
from dpmf_jax.ratings.titles import read_titles

FORMATS = (
  'auto', 'u.data', 'ratings.dat', 'csv', 'tsv', 'text', 'inter', 'netflix',
  'dense', 'parquet',
)  # fmt: skip


def read(
  path: str | os.PathLike[str],
  *,
  scale: tuple[float, float] | None = None,
  max_count: int | None = None,
  format: str = 'auto',
  columns: Mapping[str, str | int] | None = None,
  delimiter: str | None = None,
  header: bool | None = None,
  duplicates: Duplicates = 'last',
  titles: str | os.PathLike[str] | Mapping[str, str] | None = None,
  encoding: str = 'auto',
  missing: float | str | None = None,
  name: str | None = None,
  among: exchange.Among | None = None,
) -> Ratings:
  """Returns the Ratings of a file.

  Args:
    path: the file, or a pattern such as 'part-*.csv': the files that it fits,
      each with a header or each without one, in the order of their names.
    scale: the smallest and largest rating that can be given, a public fact; it
      says nothing of clicks.
    max_count: so many of a count count at most, a public fact; 1 by default,
      which makes all interactions alike. Given, it says that what would be
      ratings are counts. A count of 0 is no interaction.
    format: one of FORMATS. 'u.data' (tab) and 'ratings.dat' ('::') have no
      header; 'csv', 'tsv' and 'text' (delimiter found or given) may have one;
      'inter' is RecBole's typed header; 'netflix' has 'movie:' lines followed
      by 'user,rating,date'. 'dense' is a matrix with a line for each user and
      a field for each item; both are numbered from 1, unless a header names
      the items and a column the users.
    columns: 'user', 'item', 'rating', 'timestamp', 'count' -> header name, or
      position from 0. A file without a rating has clicks. Of a matrix 'user'
      is the column of user ids and 'item' the first one with ratings.
    delimiter: one or two characters, for 'csv', 'tsv', 'text' and 'dense'.
    header: whether the first line is one; None looks at it.
    duplicates: what to keep of a (user, item) pair rated more than once:
      'last', 'first' or 'mean', with a warning, or 'error'. Clicks are added
      up, and have the last of their timestamps.
    titles: a file for `read_titles`, or a mapping from item id to title.
    encoding: 'auto' or a Python codec.
    missing: what a matrix has where there is no rating, such as 0, 99 or 'NA';
      an empty field if None.
    name: what to call the data; the file's name if None.
    among: processes that read the files together, and of which each gets the
      ratings of its own users, in the lists of ids of all; there are at least
      as many files as processes.
  """
  path = files.checked_path(path, 'path')
  if scale is not None:
    check_scale(scale)
  _check_options(format, columns, delimiter)
  if missing is not None and format != 'dense':
    raise DataError(f"missing={missing!r} is for format='dense' alone")
  parts = parts_of(path)
  table = _joined(
    [
      _read_part(part, format, columns, delimiter, header, encoding, missing)
      for part in (parts if among is None else among.parts(parts))
    ]
  )
  if among is not None:
    # Here the lines are known that something is wrong with.
    check_values(table.value, scale if table.rated else None, table.where)
    table = _of_own_users(table, among, path)
  if table.named and max_count is not None:
    warnings.warn(
      f'{path.name}: ratings are read as counts: a low one speaks for its '
      'item, too',
      stacklevel=2,
    )
  if titles is not None and not isinstance(titles, Mapping):
    titles = read_titles(titles)
  ratings = assemble(
    table,
    scale=scale,
    max_count=max_count,
    titles=titles,
    duplicates=duplicates,
    name=name or path.name,
  )
  if among is not None:
    ratings = exchange.with_same_ids(ratings, among)
  return ratings


def parts_of(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that a path names, in the order of their names.

  It may have *, ? and [...] in it, unless there is a file of that name.
  """
  if not glob.has_magic(str(path)) or path.exists():
    return [path]
  found = sorted(filter(os.path.isfile, glob.glob(str(path), recursive=True)))
  if not found:
    raise DataError(f'{path}: no such files; check the path')
  return list(map(pathlib.Path, found))


def _read_part(
  path, format, columns, delimiter, header, encoding, missing
) -> Columns:
  """Returns what one file says."""
  raw = text.read_bytes(path)
  if format == 'parquet' or (format == 'auto' and raw.startswith(b'PAR1')):
    return _read_parquet(raw, path, columns)
  raw = tokens.decode(raw, str(path), encoding)
  if format == 'dense':
    return _read_dense(raw, path, columns, delimiter, header, missing)
  return _parse(*text.fields_of(raw, path, format, columns, delimiter, header))


def _joined(tables: list[Columns]) -> Columns:
  """Returns what files say together, one after the other."""
  first = tables[0]
  if len(tables) == 1:
    return first
  dates = lambda stamp: None if stamp is None else stamp.dtype.kind == 'M'
  has = lambda table: (
    table.rated, table.value is None, dates(table.timestamp),
  )  # fmt: skip
  for table in tables[1:]:
    if has(table) != has(first):
      raise DataError(
        f'{table.where(0)}: has other columns than {first.where(0)}; give '
        'files that have the same'
      )
  joined = lambda name: (
    None
    if getattr(first, name) is None
    else np.concatenate([getattr(table, name) for table in tables])
  )
  starts = np.cumsum([0] + [len(table.users[1]) for table in tables])
  wheres = [table.where for table in tables]  # and not what else they have

  def where(row: int) -> str:
    part = int(np.searchsorted(starts, row, side='right')) - 1
    return wheres[part](row - int(starts[part]))

  return first._replace(
    users=join_ids([table.users for table in tables]),
    items=join_ids([table.items for table in tables]),
    value=joined('value'),
    timestamp=joined('timestamp'),
    where=where,
  )


def _of_own_users(
  table: Columns, among: exchange.Among, path: pathlib.Path
) -> Columns:
  """Returns what the files of all processes say of the users of this one.

  In the order of processes, which is that of the files.
  """
  ids, index = table.users
  owner = exchange.owners(ids, among.total)[index]
  facts = json.dumps([table.rated, table.named])
  parts = []
  for number in range(among.total):
    own = owner == number
    users = used_ids(ids, index[own])
    items = used_ids(table.items[0], table.items[1][own])
    arrays = {
      **dict(zip(('users', 'user'), users, strict=True)),
      **dict(zip(('items', 'item'), items, strict=True)),
      'value': None if table.value is None else table.value[own],
      'timestamp': None if table.timestamp is None else table.timestamp[own],
    }
    there = {name: x for name, x in arrays.items() if x is not None}
    parts.append(exchange.packed(there, facts))

  def received(number: int, content: bytes) -> Columns:
    arrays, facts = exchange.unpacked(content)
    rated, named = json.loads(facts)
    return Columns(
      (arrays['users'], arrays['user']),
      (arrays['items'], arrays['item']),
      arrays.get('value'),
      rated,
      arrays.get('timestamp'),
      lambda row: f'{path}, read by process {number}, rating {row}',
      named,
    )

  found = _joined(
    [received(*each) for each in enumerate(among.exchanged(parts))]
  )
  if not len(found.users[1]):
    raise DataError(
      f'{path}: none of its users are for process {among.number} of '
      f'{among.total}; use fewer processes'
    )
  return found


class Column(NamedTuple):
  """A further column of a file: who rated what, and the number there."""

  users: tuple[np.ndarray, np.ndarray]  # sorted ids, [N] index
  items: tuple[np.ndarray, np.ndarray]
  value: np.ndarray  # [N] int64 or float64
  where: Where


def read_column(
  path: str | os.PathLike[str],
  column: str,
  *,
  format: str = 'auto',
  columns: Mapping[str, str | int] | None = None,
  delimiter: str | None = None,
  encoding: str = 'auto',
) -> Column:
  """Returns a named numeric column of a text file of ratings with a header.

  The arguments are those of `read`. All lines are there, duplicates too.
  """
  path = pathlib.Path(path)
  _check_options(format, columns, delimiter)
  raw = text.read_bytes(path)
  if format in ('parquet', 'dense') or raw.startswith(b'PAR1'):
    raise DataError(
      f'{path}: column {column!r} can only be read from a table in text'
    )
  raw = tokens.decode(raw, str(path), encoding)
  fields, found, _ = text.fields_of(
    raw, path, format, columns, delimiter, None, column
  )
  return Column(
    tokens.ids(fields, found['user'], 'user'),
    tokens.ids(fields, found['item'], 'item'),
    tokens.numbers(fields, found['also'], column),
    fields.where,
  )


def read_ids(path: str | os.PathLike[str], role: str) -> np.ndarray:
  """Returns the ids of a text file that has one on each line.

  Empty lines, and a first line that is `role` or one of its other names, do
  not count. An id that is there twice is an error.
  """
  path = pathlib.Path(path)
  raw = tokens.decode(text.read_bytes(path), str(path))
  lines = [line.strip() for line in raw.decode('utf-8').split('\n')]
  # Without digits: movie1 is an id.
  if role_of(lines[0]) == role and not re.search(r'\d', lines[0]):
    lines[0] = ''
  seen: dict[str, int] = {}
  for number, line in enumerate(lines, 1):
    if not line:
      continue
    if line in seen:
      raise DataError(
        f'{path}, line {number}: {role} {line} is in line {seen[line]}, too; '
        'keep one'
      )
    seen[line] = number
  if not seen:
    raise DataError(f'{path}: has no {role} ids')
  return np.array(list(seen))


def read_user_table(
  path: str | os.PathLike[str], role: str | None = None
) -> Column:
  """Returns the numbers [N, D] of a text file of user,number,number,...

  It may have a header, which names the user. `items` are empty. With a `role`
  there is one number, [N], and the header may name that instead.
  """
  path = pathlib.Path(path)
  file, raw = str(path), tokens.decode(text.read_bytes(path), str(path))
  raw = tokens.without_blank_end(raw)
  names, body = text.cut(raw, text.delimiter_of(raw, file), file)
  if len(names) < 2 or (role and len(names) > 2):
    expected = f', {role}' if role else ' and numbers'
    raise DataError(
      f'{file}, line 1: has {len(names)} column(s), expected user{expected}'
    )
  header = text.is_header(names) or names[1].strip().lower() == role
  fields = body(header, range(len(names)))
  columns = [
    tokens.numbers(
      fields, place, role or (name.strip() if header else f'number {place}')
    )
    for place, name in enumerate(names)
    if place > 0
  ]
  none = np.array([], np.int64)
  return Column(
    tokens.ids(fields, 0, 'user'),
    (none, none),
    columns[0] if role else np.stack(columns, axis=1),
    fields.where,
  )


def check_once(table: Column, role: str = 'user') -> None:
  """Raises DataError at the first user, or item, that was there before."""
  ids, index = table.users
  if len(ids) == len(index):
    return
  again = np.ones(len(index), bool)
  again[np.unique(index, return_index=True)[1]] = False
  row = int(again.argmax())
  raise DataError(
    f'{table.where(row)}: {role} {ids[index[row]]} is there before; keep one '
    'line'
  )


def _check_options(
  format: str, columns: Mapping[str, Any] | None, delimiter: str | None
) -> None:
  if format not in FORMATS:
    raise DataError(f'format={format!r} is not one of {", ".join(FORMATS)}')
  check_roles(columns or {})
  if delimiter is not None and not re.fullmatch(
    '[^"\r\nA-Za-z0-9]{1,2}', delimiter
  ):
    raise DataError(
      f'delimiter={delimiter!r} must be one or two characters, no letter, '
      'digit, quote or line break'
    )


def _parse(
  fields: tokens.Fields, found: Mapping[str, int], names: list[str]
) -> Columns:
  """Returns what a text file says."""
  rated = 'rating' in found
  what = 'rating' if rated else 'count'
  value = None
  if what in found:
    value = tokens.numbers(fields, found[what], what).astype(np.float64)
  elif not names:
    _check_first_line(fields, found)
  stamp = found.get('timestamp')
  return Columns(
    tokens.ids(fields, found['user'], 'user'),
    tokens.ids(fields, found['item'], 'item'),
    value,
    rated,
    None if stamp is None else tokens.timestamps(fields, stamp),
    fields._replace(columns={}).where,  # the text is not needed again
    named=rated and bool(names),
  )


def _check_first_line(fields: tokens.Fields, found: Mapping[str, int]) -> None:
  """Raises DataError where names that nobody knows would be taken for ids."""
  for role in ('user', 'item'):
    column = found[role]
    if tokens.only_first_is_text(fields, column):
      token = fields.columns[column][0].as_py()
      raise DataError(
        f'{fields.where(0)}: {token[:40]!r} is the only {role} that is no '
        'integer: pass columns= if the line is a header'
      )


def _read_dense(raw, path, columns, delimiter, header, missing) -> Columns:
  """Returns what a matrix in text says."""
  file, missing = str(path), '' if missing is None else missing
  raw = tokens.without_blank_end(raw)
  delimiter = delimiter or text.delimiter_of(raw, file, (*text.DELIMITERS, ' '))
  names, body = text.cut(raw, delimiter, file)
  if header is None:
    header = dense.has_header(names, columns or {}, missing)
  user, first = dense.places(names, columns or {}, header, file)
  fields = body(header, range(len(names)))
  found = dense.entries(fields, first, missing)
  users, items = dense.numbered(found.row), dense.numbered(found.column)
  if user is not None:
    users = dense.named(tokens.ids(fields, user, 'user'), found.row)
  if header:
    where = lambda place: f'{file}, line 1, field {first + place + 1}'
    every = factorize(np.array(names[first:]), 'item', where)
    items = dense.named(every, found.column)
  return Columns(users, items, found.value, True, None, found.cells.where)


def _read_parquet(raw: bytes, path: pathlib.Path, columns) -> Columns:
  """Returns what a Parquet file says."""
  try:
    names = pq.read_schema(pa.BufferReader(raw)).names
    found = choose(names, columns or {}, True, str(path))
    table = pq.read_table(
      pa.BufferReader(raw), columns=[names[k] for k in found.values()]
    )
  except (pa.ArrowException, OSError, UnicodeError) as error:
    raise DataError(
      f'{path}: is not readable Parquet: {listed(str(error).split(), " ")}'
    ) from error
  if not len(table):
    raise DataError(f'{path}: has columns but no ratings')
  where = lambda row: f'{path}, row {row}'

  def column(role: str) -> Any:
    array = table[names[found[role]]]
    if pa.types.is_dictionary(array.type):
      array = array.cast(array.type.value_type)
    if array.null_count:
      row = int(np.flatnonzero(array.is_null().to_numpy())[0])
      raise DataError(f'{where(row)}: the {role} is missing')
    try:
      if role not in ('user', 'item'):
        return array.to_numpy()
      if _is_text(array.type):
        return tokens.ids_of(array, role, where, str(path))
      return factorize(array.to_numpy(), role, where)
    except (pa.ArrowException, UnicodeError):
      raise DataError(
        f'{path}: the {role} column has text that is not UTF-8'
      ) from None

  rated = 'rating' in found
  what, value = 'rating' if rated else 'count', None
  if what in found:
    value = column(what)
    if value.dtype.kind not in 'iuf':
      raise DataError(
        f'{path}: the {what} column is {value.dtype}, not numeric'
      )
    value = value.astype(np.float64)
  return Columns(
    column('user'),
    column('item'),
    value,
    rated,
    column('timestamp') if 'timestamp' in found else None,
    where,
  )


def _is_text(kind: pa.DataType) -> bool:
  return pa.types.is_string(kind) or pa.types.is_large_string(kind)
