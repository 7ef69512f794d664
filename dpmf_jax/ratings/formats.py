"""Reading rating files: text tables and matrices, Netflix, RecBole, Parquet.

What `read` does with a text file: unpacked if it is gzip, UTF-8 (with or
without BOM) or Latin-1, LF or CRLF, blank lines at the end ignored. Ids are
kept exactly as written. With a header the columns may come in any order, and
further ones are ignored where there is a rating or a count; without one they
are user, item and, if there are more, rating and timestamp.
A user who rates an item twice keeps the later line, with a warning. Without a
rating there are clicks, or counts of them, which are added up.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.ratings import dense, tokens
from dpmf_jax.ratings.columns import check_roles, choose, listed, role_of
from dpmf_jax.ratings.ids import DataError, Where, factorize
from dpmf_jax.ratings.table import (
  Duplicates,
  Ratings,
  assemble,
  check_scale,
  limit_of_clicks,
)
from dpmf_jax.ratings.titles import read_titles

FORMATS = (
  'auto', 'u.data', 'ratings.dat', 'csv', 'tsv', 'text', 'inter', 'netflix',
  'dense', 'parquet',
)  # fmt: skip
_NO_HEADER = ('u.data', 'ratings.dat')
_DELIMITER = {'u.data': '\t', 'ratings.dat': '::', 'csv': ',', 'tsv': '\t'}
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
) -> Ratings:
  """Returns the Ratings of a file.

  Args:
    path: the file.
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
  """
  path = pathlib.Path(path)
  if scale is not None:
    check_scale(scale)
  _check_options(format, columns, delimiter)
  if missing is not None and format != 'dense':
    raise DataError(f"missing={missing!r} is for format='dense' alone")
  raw = read_bytes(path)
  if format == 'parquet' or (format == 'auto' and raw.startswith(b'PAR1')):
    table = _read_parquet(path, columns)
  elif format == 'dense':
    raw = tokens.decode(raw, str(path), encoding)
    table = _read_dense(raw, path, columns, delimiter, header, missing)
  else:
    raw = tokens.decode(raw, str(path), encoding)
    table = _parse(*_read_text(raw, path, format, columns, delimiter, header))
  if not table.rated:
    scale, max_count = None, limit_of_clicks(max_count)
  if titles is not None and not isinstance(titles, Mapping):
    titles = read_titles(titles)
  return assemble(
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


class _Table(NamedTuple):
  """What a file says of who did what."""

  users: tuple[np.ndarray, np.ndarray]  # sorted ids, [N] index
  items: tuple[np.ndarray, np.ndarray]
  value: np.ndarray | None  # [N], ratings or counts
  rated: bool
  timestamp: Any  # [N] or None
  where: Where


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
  fields, found, names = _read_text(raw, path, format, columns, delimiter, None)
  names = [name.strip() for name in names]
  if names.count(column) != 1:
    have = f'there are: {listed(names)}' if names else 'it has no header'
    often = 'more than one' if column in names else 'no'
    raise DataError(f'{path}, line 1: {often} column {column!r}; {have}')
  return Column(
    tokens.ids(fields, found['user'], 'user'),
    tokens.ids(fields, found['item'], 'item'),
    tokens.numbers(fields, names.index(column), column),
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
  names, body = _cut(raw, tokens.split_lines(raw, file), _sniff(raw, file))
  if len(names) < 2 or (role and len(names) > 2):
    expected = f', {role}' if role else ' and numbers'
    raise DataError(
      f'{file}, line 1: has {len(names)} column(s), expected user{expected}'
    )
  header = _is_header(names) or names[1].strip().lower() == role
  fields = body(header)
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


def check_users_once(table: Column) -> None:
  """Raises DataError at the first user that was there before."""
  ids, index = table.users
  if len(ids) == len(index):
    return
  again = np.ones(len(index), bool)
  again[np.unique(index, return_index=True)[1]] = False
  row = int(again.argmax())
  raise DataError(
    f'{table.where(row)}: user {ids[index[row]]} is there before; keep one line'
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
  if not raw.strip():
    raise DataError(f'{path}: the file is empty')
  if raw.startswith(b'PK\x03\x04'):
    raise DataError(f'{path}: is a zip archive; unpack it first')
  if not raw.startswith(b'\x1f\x8b'):
    return raw
  try:
    return gzip.decompress(raw)
  except (OSError, EOFError, zlib.error) as error:
    raise DataError(f'{path}: is not whole gzip: {error}') from error


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
  raw, path, format, columns, delimiter, header
) -> tuple[tokens.Fields, dict[str, int], list[str]]:
  """Returns (fields, role -> position, the header's names) of a text file."""
  file = str(path)
  lines = tokens.split_lines(raw, file)
  first = lines.text(0)
  if format == 'auto':
    format = _recognise(path.name.removesuffix('.gz'), first, delimiter)
  if format == 'netflix':
    found = {'user': 0, 'item': 1, 'rating': 2, 'timestamp': 3}
    return _netflix(lines), found, []
  if format == 'inter':
    delimiter, header = delimiter or '\t', True
    if ':' not in first:
      raise DataError(
        f'{file}, line 1: not a RecBole header such as '
        f"'user_id:token<TAB>item_id:token<TAB>rating:float': {first[:60]!r}"
      )
  delimiter = delimiter or _DELIMITER.get(format) or _sniff(raw, file)
  names, body = _cut(raw, lines, delimiter, quotes=format != 'inter')
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
  return body(header), found, names if header else []


def _cut(
  raw: bytes, lines: tokens.Lines, delimiter: str, *, quotes: bool = True
) -> tuple[list[str], Callable[[bool], tokens.Fields]]:
  """Returns the first record, and what cuts the file with or without it."""
  file = lines.file
  # '::' files and RecBole's do not quote; elsewhere a quote is csv's.
  if quotes and b'"' in raw and len(delimiter) == 1:
    records, numbers = tokens.read_records(raw, delimiter, file)
    names, count = records[0], len(records)
    cut = lambda skip: tokens.from_records(
      records[skip:], numbers[skip:], len(names), file
    )
  else:
    names, count = lines.text(0).split(delimiter), len(lines.start)
    cut = lambda skip: tokens.split_fields(
      lines.tail() if skip else lines, delimiter, len(names)
    )

  def body(header: bool) -> tokens.Fields:
    if header and count == 1:
      raise DataError(f'{file}: has a header but no ratings')
    return cut(header)

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
    fields.where,
  )


def _check_first_line(fields: tokens.Fields, found: Mapping[str, int]) -> None:
  """Raises DataError where names that nobody knows would be taken for ids."""
  for role in ('user', 'item'):
    start, stop = fields.start[found[role]], fields.stop[found[role]]
    _, whole = tokens.integers(fields.data, start, stop)
    if not whole[0] and whole[1:].all() and len(whole) > 1:
      raise DataError(
        f'{fields.where(0)}: {fields.text(found[role], 0)[:40]!r} is the only '
        f'{role} that is no integer: pass columns= if the line is a header'
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


def _netflix(lines: tokens.Lines) -> tokens.Fields:
  """Returns user, item, rating, date fields; the item is the line above."""
  data, start, stop, first, file = lines
  movie = (stop > start) & (data[stop - 1] == ord(':'))
  above = np.cumsum(movie) - 1
  if not movie[0]:
    raise DataError(
      f"{file}, line {first}: a rating before any 'movie:' line: "
      f'{lines.text(0)[:60]!r}'
    )
  rating = ~movie
  if not rating.any():
    raise DataError(f"{file}: has 'movie:' lines but no ratings")
  body = lines._replace(start=start[rating], stop=stop[rating])
  fields = tokens.split_fields(
    body, ',', 3, numbers=np.flatnonzero(rating) + first
  )
  item_start = start[movie][above[rating]]
  item_stop = stop[movie][above[rating]] - 1
  return fields._replace(
    start=np.insert(fields.start, 1, item_start, axis=0),
    stop=np.insert(fields.stop, 1, item_stop, axis=0),
  )


def _read_dense(raw, path, columns, delimiter, header, missing) -> _Table:
  """Returns what a matrix in text says."""
  file, missing = str(path), '' if missing is None else missing
  delimiter = delimiter or _sniff(raw, file, (*_DELIMITERS, ' '))
  names, body = _cut(raw, tokens.split_lines(raw, file), delimiter)
  if header is None:
    header = dense.has_header(names, columns or {}, missing)
  user, first = dense.places(names, columns or {}, header, file)
  fields = body(header)
  found = dense.entries(fields, first, missing)
  users, items = dense.numbered(found.row), dense.numbered(found.column)
  if user is not None:
    users = dense.named(tokens.ids(fields, user, 'user'), found.row)
  if header:
    where = lambda place: f'{file}, line 1, field {first + place + 1}'
    every = factorize(np.array(names[first:]), 'item', where)
    items = dense.named(every, found.column)
  return _Table(users, items, found.value, True, None, found.cells.where)


def _read_parquet(path: pathlib.Path, columns) -> _Table:
  """Returns what a Parquet file says."""
  try:
    import pyarrow as pa
    import pyarrow.parquet as pq
  except ImportError as error:
    raise DataError(
      f"{path}: reading Parquet needs pyarrow: pip install 'dpmf_jax[parquet]'"
    ) from error
  try:
    names = pq.read_schema(path).names
    found = choose(names, columns or {}, True, str(path))
    # Not `filters` or threads over columns: ratings fit in memory.
    table = pq.read_table(path, columns=[names[k] for k in found.values()])
  except (pa.ArrowException, OSError, UnicodeError) as error:
    raise DataError(
      f'{path}: is not readable Parquet: {listed(str(error).split(), " ")}'
    ) from error
  where = lambda row: f'{path}, row {row}'

  def column(role: str) -> Any:
    array = table[names[found[role]]]
    if array.null_count:
      row = int(np.flatnonzero(array.is_null().to_numpy())[0])
      raise DataError(f'{where(row)}: the {role} is missing')
    try:
      return array.to_numpy()
    except pa.ArrowException:
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
  if not len(table):
    raise DataError(f'{path}: has columns but no ratings')
  return _Table(
    factorize(column('user'), 'user', where),
    factorize(column('item'), 'item', where),
    value,
    rated,
    column('timestamp') if 'timestamp' in found else None,
    where,
  )
