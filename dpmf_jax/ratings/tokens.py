"""From the bytes of a text file to columns, without a loop over lines."""

from __future__ import annotations

import csv
import io
import re
from typing import NamedTuple

import numpy as np

from dpmf_jax.ratings.ids import (
  DataError,
  check_lengths,
  factorize_integers,
  finish,
)

_NEWLINE, _RETURN, _SPACE, _MINUS, _ZERO = b'\n\r -0'
_MAX_DIGITS = 19  # of an int64
_WIDE = 64  # a longer id is read by a plain loop, to spare memory
_PAD = _WIDE  # bytes after the end, so that start + k never leaves the array
_NUMERIC = np.zeros(256, bool)
_NUMERIC[np.frombuffer(b'0123456789+-.eE', np.uint8)] = True


class Fields(NamedTuple):
  """A table as positions in a byte array: C columns, N rows."""

  data: np.ndarray  # uint8, padded
  start: np.ndarray  # [C, N]
  stop: np.ndarray  # [C, N]
  line: np.ndarray  # [N] line numbers in the file, from 1
  file: str
  place: np.ndarray | None = None  # [N] fields in their lines, from 1

  def where(self, row: int) -> str:
    at = '' if self.place is None else f', field {self.place[row]}'
    return f'{self.file}, line {self.line[row]}{at}'

  def take(self, rows: np.ndarray) -> Fields:
    return self._replace(
      start=self.start[:, rows],
      stop=self.stop[:, rows],
      line=self.line[rows],
      place=None if self.place is None else self.place[rows],
    )

  def text(self, column: int, row: int) -> str:
    part = self.data[self.start[column, row] : self.stop[column, row]]
    return part.tobytes().decode('utf-8', 'replace')


class Lines(NamedTuple):
  """The lines of a file as positions; entry k is line k + first."""

  data: np.ndarray  # uint8, padded
  start: np.ndarray  # [N]
  stop: np.ndarray  # [N], before CR LF
  first: int
  file: str

  def text(self, index: int) -> str:
    part = self.data[self.start[index] : self.stop[index]]
    return part.tobytes().decode('utf-8', 'replace')

  def tail(self) -> Lines:
    return self._replace(
      start=self.start[1:], stop=self.stop[1:], first=self.first + 1
    )


def decode(raw: bytes, file: str, encoding: str = 'auto') -> bytes:
  """Returns the bytes as UTF-8 without BOM.

  'auto' takes UTF-8, else Latin-1 if no byte is a control code there. Any
  other encoding that Python knows can be named.
  """
  if encoding == 'auto':
    if raw.startswith((b'\xff\xfe', b'\xfe\xff')):
      raise DataError(f"{file}: is UTF-16 text; pass encoding='utf-16'")
    if (nul := raw.find(b'\0')) >= 0:
      line = raw.count(b'\n', 0, nul) + 1
      raise DataError(f'{file}, line {line}: holds a NUL byte, so is not text')
    raw = raw.removeprefix(b'\xef\xbb\xbf')
    if raw.isascii():
      return raw
    try:
      raw.decode('utf-8')
      return raw
    except UnicodeDecodeError:
      codes = np.frombuffer(raw, np.uint8)
      control = np.flatnonzero((codes >= 0x80) & (codes < 0xA0))
      if len(control):
        line = raw.count(b'\n', 0, int(control[0])) + 1
        raise DataError(
          f'{file}, line {line}: byte 0x{codes[control[0]]:02x} is neither '
          "UTF-8 nor Latin-1; pass encoding=, for example 'cp1252'"
        ) from None
      return raw.decode('latin-1').encode('utf-8')
  try:
    return raw.decode(encoding).removeprefix('\ufeff').encode('utf-8')
  except LookupError as error:
    raise DataError(f'encoding={encoding!r} is not known to Python') from error
  except UnicodeDecodeError as error:
    line = raw.count(b'\n', 0, error.start) + 1
    raise DataError(
      f'{file}, line {line}: byte 0x{raw[error.start]:02x} is not {encoding}; '
      'pass the right encoding='
    ) from error


def split_lines(raw: bytes, file: str) -> Lines:
  """Returns the lines of UTF-8 bytes; blank ones at the end are dropped."""
  newline = raw.find(b'\n', len(raw.rstrip(b' \t\r\n')))
  raw = raw if newline < 0 else raw[:newline]
  data = np.frombuffer(raw + b'\n' + bytes(_PAD), np.uint8)
  size = np.int32 if len(data) < 2**31 else np.int64
  stop = np.flatnonzero(data == _NEWLINE).astype(size)
  start = np.concatenate([np.zeros(1, size), stop[:-1] + size(1)])
  stop = stop - ((stop > start) & (data[stop - 1] == _RETURN))
  return Lines(data, start, stop, 1, file)


def split_fields(
  lines: Lines, delimiter: str, columns: int, numbers: np.ndarray | None = None
) -> Fields:
  """Returns the lines cut at the delimiter, each into `columns` fields.

  `numbers` are the line numbers, for when `lines` are not all of the file.
  """
  data, start, stop, first, file = lines
  if numbers is None:
    numbers = np.arange(first, first + len(start))
  mark = delimiter.encode('utf-8')
  cut = _find(data, mark, int(start[0])).astype(start.dtype)
  per_line = columns - 1
  regular = len(cut) == per_line * len(start)
  if regular and per_line:
    cut = cut.reshape(len(start), per_line)
    regular = bool(((cut[:, 0] >= start) & (cut[:, -1] < stop)).all())
  if not regular:
    cut = cut.ravel()
    count = np.searchsorted(cut, stop) - np.searchsorted(cut, start)
    bad = int((count != per_line).argmax())
    found = int(count[bad]) + 1
    what = 'is blank' if start[bad] == stop[bad] else f'has {found} column(s)'
    raise DataError(
      f'{file}, line {numbers[bad]}: {what}, expected {columns} separated by '
      f'{delimiter!r}'
    )
  cut = cut.reshape(len(start), per_line).T
  return Fields(
    data,
    np.vstack([start, cut + cut.dtype.type(len(mark))]),
    np.vstack([cut, stop]),
    numbers,
    file,
  )


def read_records(
  raw: bytes, delimiter: str, file: str
) -> tuple[list[list[str]], list[int]]:
  """Returns (records, line of each) of text with quotes, by the csv module.

  A quote in a quoted field is written twice or, where that cannot be read,
  after a backslash.
  """
  records, lines, problem = _records(raw, delimiter)
  if problem:
    doubled = re.sub(rb'\\(["\\])', lambda m: m[1].replace(b'"', b'""'), raw)
    records, lines, still = _records(doubled, delimiter)
    if still:
      raise DataError(f'{file}, {problem}')
  while records and not ''.join(records[-1]).strip():
    del records[-1], lines[-1]
  if not records:
    raise DataError(f'{file}: holds only blank lines and empty quotes')
  return records, lines


def _records(
  raw: bytes, delimiter: str
) -> tuple[list[list[str]], list[int], str]:
  """Returns (records, line of each, what is wrong in which line, or '')."""
  records, lines, line = [], [], 1
  text = io.StringIO(raw.decode('utf-8'), newline='')
  reader = csv.reader(text, delimiter=delimiter, strict=True)
  try:
    for record in reader:
      records.append(record)
      lines.append(line)
      line = reader.line_num + 1
  except csv.Error as error:
    return records, lines, f'line {line}: {error}'
  return records, lines, ''


def from_records(
  records: list[list[str]], lines: list[int], columns: int, file: str
) -> Fields:
  """Returns the Fields of records that are already cut."""
  for record, line in zip(records, lines, strict=True):
    if len(record) != columns:
      raise DataError(
        f'{file}, line {line}: has {len(record)} column(s), expected {columns}'
      )
  parts = [field.encode('utf-8') for record in records for field in record]
  data = np.frombuffer(b''.join(parts) + bytes(_PAD), np.uint8)
  stop = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
  start = np.concatenate([np.zeros(1, np.int64), stop])[:-1]
  shape = (len(records), columns)
  return Fields(
    data, start.reshape(shape).T, stop.reshape(shape).T, np.array(lines), file
  )


def ids(
  fields: Fields, column: int, role: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (sorted ids, int32 index) of a column, int64 if all canonical."""
  start, stop = fields.start[column], fields.stop[column]
  if (start == stop).any():
    row = int((start == stop).argmax())
    raise DataError(
      f'{fields.where(row)}: empty {role} id; fill it in or remove the line'
    )
  numbers, canonical = integers(fields.data, start, stop)
  if canonical.all():
    return factorize_integers(numbers)
  unique, index = _factorize_bytes(fields.data, start, stop, fields.file)
  return finish(unique, index, role, fields.where)


def integers(
  data: np.ndarray, start: np.ndarray, stop: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (int64 values, mask of those that are canonical int64)."""
  length = stop - start
  negative = data[start] == _MINUS
  first = data[start + negative]
  digits = length - negative
  canonical = (digits > 0) & (digits <= _MAX_DIGITS)
  # '0' is canonical, '-0' and '007' are not.
  canonical &= (first != _ZERO) | (length == 1)
  total = np.zeros(len(start), np.uint64)
  position = start + negative
  shortest, longest = int(digits.min()), int(digits.max())
  for k in range(min(longest, _MAX_DIGITS)):
    digit = data[position + k] - np.uint8(_ZERO)  # wraps above 9 if no digit
    if k < shortest:  # every row has a digit here: no mask needed
      canonical &= digit < 10
      total = total * np.uint64(10) + digit
    else:
      inside = k < digits
      canonical &= (digit < 10) | ~inside
      total = np.where(inside, total * np.uint64(10) + digit, total)
  canonical &= total <= np.uint64(np.iinfo(np.int64).max)
  value = total.astype(np.int64)
  return np.where(negative, -value, value), canonical


def numbers(fields: Fields, column: int, role: str) -> np.ndarray:
  """Returns a column as int64 if every field is an integer, else float64."""
  data, (start, stop) = fields.data, _strip(fields, column)
  whole, canonical = integers(data, start, stop)
  if canonical.all():
    return whole
  length = stop - start
  bad = (length == 0) | (length > _WIDE)
  if not bad.any():
    matrix = _matrix(data, start, stop)
    bad = ~(_NUMERIC[matrix] | (matrix == 0)).all(axis=1)
    if not bad.any():
      try:
        return _as_bytes(matrix).astype(np.float64)
      except ValueError:  # such as '1-2'
        bad = np.array([not _is_float(token) for token in _as_bytes(matrix)])
  row = int(bad.argmax())
  token = fields.text(column, row).strip()
  if not token:
    problem = f'the {role} is empty; fill it in or remove the line'
  elif token.strip('+-').lower() in ('nan', 'inf', 'infinity'):
    problem = f'{role} {token!r} is not a finite number; remove or correct it'
  else:
    problem = f'{role} {token[:40]!r} is not a number; correct it'
  raise DataError(f'{fields.where(row)}: {problem}')


def timestamps(fields: Fields, column: int) -> np.ndarray:
  """Returns seconds since 1970: numbers as they are, ISO dates converted."""
  try:
    return numbers(fields, column, 'timestamp')
  except DataError:
    start, stop = _strip(fields, column)
    if int((stop - start).max()) > _WIDE:
      raise
    matrix = _matrix(fields.data, start, stop)
    try:
      dates = _as_bytes(matrix).astype('M8[s]')
    except ValueError:
      dates = None
    # NumPy takes a bare '4' for the year 4.
    if dates is None or (matrix[:, 4] != _MINUS).any() or np.isnat(dates).any():
      raise _bad_date(fields, column) from None
    return dates.astype(np.int64)


def _bad_date(fields: Fields, column: int) -> DataError:
  """Returns the error for the first field that is no number and no date."""
  for row in range(len(fields.line)):
    token = fields.text(column, row).strip()
    try:
      good = not np.isnat(np.datetime64(token, 's'))
    except ValueError:
      good = _is_float(token)
    if not good:
      return DataError(
        f'{fields.where(row)}: timestamp {token!r} is neither a number of '
        'seconds nor a date such as 2005-09-06'
      )
  return DataError(f'{fields.file}: timestamps mix numbers and dates')


def equal(fields: Fields, column: int, text: str) -> np.ndarray:
  """Returns [N], whether a field is `text`, spaces around it aside."""
  start, stop = _strip(fields, column)
  mark = text.encode('utf-8')
  same = stop - start == len(mark)
  for k, byte in enumerate(mark):
    same[same] = fields.data[start[same] + k] == byte
  return same


def _is_float(token: str | bytes) -> bool:
  try:
    float(token)
  except ValueError:
    return False
  return True


def _strip(fields: Fields, column: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns (start, stop) of a column without the spaces around its fields."""
  data, start, stop = fields.data, fields.start[column], fields.stop[column]
  while (space := (start < stop) & (data[start] == _SPACE)).any():
    start = start + space
  while (space := (start < stop) & (data[stop - 1] == _SPACE)).any():
    stop = stop - space
  return start, stop


def _matrix(
  data: np.ndarray, start: np.ndarray, stop: np.ndarray
) -> np.ndarray:
  """Returns the fields as [N, W] bytes, zero after the end of each."""
  length = stop - start
  width = -(-int(length.max(initial=1)) // 8) * 8
  matrix = np.zeros((len(start), width), np.uint8)
  for k in range(int(length.max(initial=0))):
    matrix[:, k] = np.where(k < length, data[start + k], 0)
  return matrix


def _as_bytes(matrix: np.ndarray) -> np.ndarray:
  return matrix.view(f'S{matrix.shape[1]}')[:, 0]


def _factorize_bytes(
  data: np.ndarray, start: np.ndarray, stop: np.ndarray, file: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (sorted unique strings, index), eight bytes at a time."""
  if int((stop - start).max()) > _WIDE:
    raw, ends = data.tobytes(), stop.tolist()
    tokens = [raw[a:b] for a, b in zip(start.tolist(), ends, strict=True)]
    unique = sorted(set(tokens))
    place = {token: k for k, token in enumerate(unique)}
    index = np.array([place[token] for token in tokens])
    check_lengths(int((stop - start).max()), len(unique), file)
    return np.array([token.decode('utf-8') for token in unique]), index
  matrix = _matrix(data, start, stop)
  # UTF-8 sorts like its code points and big-endian words like their bytes.
  words = matrix.view('>u8').astype(np.uint64)
  code, row = np.zeros(len(words), np.int64), np.zeros(1, np.int64)
  for word in words.T:
    values, place = np.unique(word, return_inverse=True)
    _, row, code = np.unique(
      code * len(values) + place, return_index=True, return_inverse=True
    )
  return np.char.decode(_as_bytes(matrix)[row], 'utf-8'), code


def _find(data: np.ndarray, mark: bytes, begin: int) -> np.ndarray:
  """Returns where the mark starts, from `begin`, without overlaps."""
  data = data[begin:]
  if len(mark) == 1:
    return np.flatnonzero(data == mark[0]) + begin
  found = np.flatnonzero((data[:-1] == mark[0]) & (data[1:] == mark[1]))
  if (np.diff(found) == 1).any():  # ':::' is one mark and a colon
    place = np.arange(len(found))
    new = np.concatenate([[True], np.diff(found) != 1])
    found = found[(place - np.maximum.accumulate(new * place)) % 2 == 0]
  return found + begin
