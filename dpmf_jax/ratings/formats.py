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
import gzip
import json
import os
import pathlib
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmf_jax import files
from dpmf_jax.ratings import dense, exchange, tokens
from dpmf_jax.ratings.columns import check_roles, choose, listed, role_of
from dpmf_jax.ratings.ids import DataError, Where, factorize, join_ids
from dpmf_jax.ratings.table import (
  Duplicates,
  Ratings,
  assemble,
  check_scale,
  check_values,
  limit_of_clicks,
  used_ids,
)
from dpmf_jax.ratings.titles import read_titles

FORMATS = (
  'auto', 'u.data', 'ratings.dat', 'csv', 'tsv', 'text', 'inter', 'netflix',
  'dense', 'parquet',
)  # fmt: skip
_NO_HEADER = ('u.data', 'ratings.dat')
_DELIMITER = {'u.data': '\t', 'ratings.dat': '::', 'csv': ',', 'tsv': '\t'}
_PACKED = {'gzip': b'\x1f\x8b', 'zstd': b'\x28\xb5\x2f\xfd'}
_DELIMITERS = ('\t', '::', ';', ',')  # as they are looked for


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
  if not table.rated:
    scale, max_count = None, limit_of_clicks(max_count)
  elif table.named and max_count is not None:
    warnings.warn(
      f'{path.name}: ratings are read as counts: a low one speaks for its '
      'item, too',
      stacklevel=2,
    )
  if titles is not None and not isinstance(titles, Mapping):
    titles = read_titles(titles)
  ratings = assemble(
    table.users,
    table.items,
    table.value,
    scale=scale,
    max_count=max_count,
    timestamp=table.timestamp,
    titles=titles,
    duplicates=duplicates,
    name=name or path.name,
    where=table.where,
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


class _Table(NamedTuple):
  """What a file says of who did what."""

  users: tuple[np.ndarray, np.ndarray]  # sorted ids, [N] index
  items: tuple[np.ndarray, np.ndarray]
  value: np.ndarray | None  # [N], ratings or counts
  rated: bool
  timestamp: Any  # [N] or None
  where: Where
  named: bool = False  # whether a header says that these are ratings


def _read_part(
  path, format, columns, delimiter, header, encoding, missing
) -> _Table:
  """Returns what one file says."""
  raw = read_bytes(path)
  if format == 'parquet' or (format == 'auto' and raw.startswith(b'PAR1')):
    return _read_parquet(raw, path, columns)
  raw = tokens.decode(raw, str(path), encoding)
  if format == 'dense':
    return _read_dense(raw, path, columns, delimiter, header, missing)
  return _parse(*_read_text(raw, path, format, columns, delimiter, header))


def _joined(tables: list[_Table]) -> _Table:
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
  table: _Table, among: exchange.Among, path: pathlib.Path
) -> _Table:
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

  def received(number: int, content: bytes) -> _Table:
    arrays, facts = exchange.unpacked(content)
    rated, named = json.loads(facts)
    return _Table(
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
  raw = read_bytes(path)
  if format in ('parquet', 'dense') or raw.startswith(b'PAR1'):
    raise DataError(
      f'{path}: column {column!r} can only be read from a table in text'
    )
  raw = tokens.decode(raw, str(path), encoding)
  fields, found, _ = _read_text(
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
  text = tokens.decode(read_bytes(path), str(path)).decode('utf-8')
  lines = [line.strip() for line in text.split('\n')]
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
  file, raw = str(path), tokens.decode(read_bytes(path), str(path))
  raw = tokens.without_blank_end(raw)
  names, body = _cut(raw, _sniff(raw, file), file)
  if len(names) < 2 or (role and len(names) > 2):
    expected = f', {role}' if role else ' and numbers'
    raise DataError(
      f'{file}, line 1: has {len(names)} column(s), expected user{expected}'
    )
  header = _is_header(names) or names[1].strip().lower() == role
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


def read_bytes(path: pathlib.Path) -> bytes:
  """Returns the content of a file that is there and not empty."""
  if path.is_dir():
    raise DataError(f'{path}: is a directory; name the file in it')
  try:
    raw = path.read_bytes()
  except FileNotFoundError as error:
    raise DataError(f'{path}: no such file; check the path') from error
  except OSError as error:
    raise DataError(f'{path}: cannot be read: {error.strerror}') from error
  if not raw or raw.isspace():
    raise DataError(f'{path}: the file is empty')
  if raw.startswith(b'PK\x03\x04'):
    raise DataError(f'{path}: is a zip archive; unpack it first')
  packing = next((p for p, mark in _PACKED.items() if raw.startswith(mark)), '')
  try:
    if packing == 'gzip':
      return gzip.decompress(raw)
    if packing == 'zstd':
      with pa.CompressedInputStream(pa.BufferReader(raw), packing) as stream:
        return stream.read()
  except (OSError, EOFError, zlib.error) as error:
    raise DataError(f'{path}: is not whole {packing}: {error}') from error
  return raw


def _unpacked(name: str) -> str:
  return name.removesuffix('.gz').removesuffix('.zst')


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


def _read_text(
  raw, path, format, columns, delimiter, header, also=None
) -> tuple[tokens.Fields, dict[str, int], list[str]]:
  """Returns (fields, role -> position, the header's names) of a text file.

  The column that is called `also` has that role.
  """
  file, raw = str(path), tokens.without_blank_end(raw)
  first = tokens.first_line(raw)
  if format == 'auto':
    format = _recognise(_unpacked(path.name), first, delimiter)
  if format == 'netflix':
    found = {'user': 0, 'item': 1, 'rating': 2, 'timestamp': 3}
    return tokens.netflix(raw, file), found, []
  if format == 'inter':
    delimiter, header = delimiter or '\t', True
    if ':' not in first:
      raise DataError(
        f'{file}, line 1: not a RecBole header such as '
        f"'user_id:token<TAB>item_id:token<TAB>rating:float': {first[:60]!r}"
      )
  delimiter = delimiter or _DELIMITER.get(format) or _sniff(raw, file)
  names, body = _cut(raw, delimiter, file, quotes=format != 'inter')
  if format == 'inter':
    names = [name.split(':')[0] for name in names]
  looks = _is_header(names)
  if format in _NO_HEADER and (looks or header):
    raise DataError(
      f'{file}, line 1: {first[:60]!r} is a header, but format {format} has '
      "none; remove the line or pass format='text'"
    )
  by_name = any(isinstance(c, str) for c in (columns or {}).values())
  if header is None:
    header = looks or by_name
  found = choose(names, columns or {}, header, f'{file}, line 1')
  if also is not None:
    found['also'] = _named(also, names if header else [], file)
  return body(header, found.values()), found, names if header else []


def _named(column: str, names: list[str], file: str) -> int:
  """Returns where a header has a further column."""
  names = [name.strip() for name in names]
  if names.count(column) != 1:
    have = f'there are: {listed(names)}' if names else 'it has no header'
    often = 'more than one' if column in names else 'no'
    raise DataError(f'{file}, line 1: {often} column {column!r}; {have}')
  return names.index(column)


def _cut(
  raw: bytes, delimiter: str, file: str, *, quotes: bool = True
) -> tuple[list[str], Callable[[bool, Iterable[int]], tokens.Fields]]:
  """Returns the first record, and what cuts the file with or without it.

  `raw` is `without_blank_end`.
  """
  # '::' files and RecBole's do not quote; elsewhere a quote is csv's.
  quoted = quotes and b'"' in raw and len(delimiter) == 1
  if quoted:
    raw = tokens.readable(raw, delimiter, file)
  names = tokens.first_record(raw, delimiter, quoted)
  body = lambda header, wanted: tokens.cut(
    raw, delimiter, len(names), wanted, file, header=header, quoted=quoted
  )
  return names, body


def _parse(
  fields: tokens.Fields, found: Mapping[str, int], names: list[str]
) -> _Table:
  """Returns what a text file says."""
  rated = 'rating' in found
  what = 'rating' if rated else 'count'
  value = None
  if what in found:
    value = tokens.numbers(fields, found[what], what).astype(np.float64)
  elif not names:
    _check_first_line(fields, found)
  stamp = found.get('timestamp')
  return _Table(
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


def _recognise(name: str, first: str, delimiter: str | None) -> str:
  """Returns the format of a text file from its name and first line."""
  if name.endswith('.inter') or re.match(r'\w+:(token|float)\b', first):
    return 'inter'
  if name.startswith('combined_data') or re.fullmatch(r'\d+:', first.strip()):
    return 'netflix'
  if delimiter is not None:
    return 'text'
  if re.fullmatch(r'u\.data|u[1-5ab]\.(base|test)', name) and '\t' in first:
    return 'u.data'
  return 'ratings.dat' if '::' in first else 'text'


def _sniff(raw: bytes, file: str, known: tuple[str, ...] = _DELIMITERS) -> str:
  """Returns the delimiter of the first record, looking outside of quotes."""
  record = re.match(rb'(?:[^"\n]|"[^"]*")*', raw)
  first = re.sub(rb'"[^"]*"', b'', record[0] if record else raw).decode()
  for least in (3, 2):  # columns
    for delimiter in known:
      if len(first.split(delimiter)) >= least:
        return delimiter
  raise DataError(
    f'{file}, line 1: unknown format, no tab, comma, semicolon or :: in '
    f'{first[:60]!r}; pass delimiter='
  )


def _is_header(names: list[str]) -> bool:
  is_number = lambda text: re.fullmatch(r'\s*[-+]?[\d.]+\s*', text) is not None
  # Without digits: book1 is an id.
  known = any(role_of(name) and not re.search(r'\d', name) for name in names)
  return known and not any(map(is_number, names))


def _read_dense(raw, path, columns, delimiter, header, missing) -> _Table:
  """Returns what a matrix in text says."""
  file, missing = str(path), '' if missing is None else missing
  raw = tokens.without_blank_end(raw)
  delimiter = delimiter or _sniff(raw, file, (*_DELIMITERS, ' '))
  names, body = _cut(raw, delimiter, file)
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
  return _Table(users, items, found.value, True, None, found.cells.where)


def _read_parquet(raw: bytes, path: pathlib.Path, columns) -> _Table:
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
  return _Table(
    column('user'),
    column('item'),
    value,
    rated,
    column('timestamp') if 'timestamp' in found else None,
    where,
  )


def _is_text(kind: pa.DataType) -> bool:
  return pa.types.is_string(kind) or pa.types.is_large_string(kind)
