"""Text files as fields: how they are packed, what they are cut at, a header."""

from __future__ import annotations

import gzip
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable

import pyarrow as pa

from dpmf_jax.ratings import tokens
from dpmf_jax.ratings.columns import choose, listed, role_of
from dpmf_jax.ratings.ids import DataError

_NO_HEADER = ('u.data', 'ratings.dat')
_DELIMITER = {'u.data': '\t', 'ratings.dat': '::', 'csv': ',', 'tsv': '\t'}
_PACKED = {'gzip': b'\x1f\x8b', 'zstd': b'\x28\xb5\x2f\xfd'}
DELIMITERS = ('\t', '::', ';', ',')  # as they are looked for


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


def fields_of(
  raw, path, format, columns, delimiter, header, also=None
) -> tuple[tokens.Fields, dict[str, int], list[str]]:
  """Returns (fields, role -> position, the header's names) of a text file.

  The column that is called `also` has that role.
  """
  file, raw = str(path), tokens.without_blank_end(raw)
  first = tokens.first_line(raw)
  if format == 'auto':
    format = _recognised(_unpacked(path.name), first, delimiter)
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
  delimiter = delimiter or _DELIMITER.get(format) or delimiter_of(raw, file)
  names, body = cut(raw, delimiter, file, quotes=format != 'inter')
  if format == 'inter':
    names = [name.split(':')[0] for name in names]
  looks = is_header(names)
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


def cut(
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


def _recognised(name: str, first: str, delimiter: str | None) -> str:
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


def delimiter_of(
  raw: bytes, file: str, known: tuple[str, ...] = DELIMITERS
) -> str:
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


def is_header(names: list[str]) -> bool:
  is_number = lambda text: re.fullmatch(r'\s*[-+]?[\d.]+\s*', text) is not None
  # Without digits: book1 is an id.
  known = any(role_of(name) and not re.search(r'\d', name) for name in names)
  return known and not any(map(is_number, names))
