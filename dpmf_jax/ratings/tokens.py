"""From the bytes of a text file to columns of ids and numbers.

Arrow cuts a text into fields where its lines are plain. Where there is any
doubt a loop over the lines does, which takes longer, but knows quotes,
Netflix's format and what to say of a line that is wrong. Both give the same
fields, and what follows is the same for both.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from dpmf_jax.ratings.ids import (
  DataError,
  check_lengths,
  factorize,
  factorize_integers,
)

pc: Any = pyarrow.compute  # it makes its functions when it is imported

_BLOCK = 2**22  # bytes that a thread of Arrow cuts at once
_BATCH = 2**18  # fields that are Python's at a time
_WIDE = 64  # characters of a date
_NUMERIC = re.compile('[-+.0-9eE]+')

Record = tuple[int, list[str]]  # number of its first line, fields


class Fields(NamedTuple):
  """A table of text: some of its columns, N rows."""

  columns: Mapping[int, pa.ChunkedArray]  # by position in a line
  line: Sequence[int] | np.ndarray  # [N] line numbers in the file, from 1
  file: str
  place: np.ndarray | None = None  # [N] fields in their lines, from 1

  def where(self, row: int) -> str:
    at = '' if self.place is None else f', field {self.place[row]}'
    return f'{self.file}, line {self.line[row]}{at}'


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


def without_blank_end(raw: bytes) -> bytes:
  """Returns the text without blank lines and a line break at its end."""
  newline = raw.find(b'\n', len(raw.rstrip(b' \t\r\n')))
  return raw if newline < 0 else raw[:newline]


def first_line(raw: bytes) -> str:
  return next(_lines(raw), (1, ''))[1]  # a BOM alone is no line


def cut(
  raw: bytes,
  delimiter: str,
  width: int,
  wanted: Iterable[int],
  file: str,
  *,
  header: bool,
  quoted: bool,
) -> Fields:
  """Returns the wanted ones of `width` columns; the header is left out.

  `raw` is `without_blank_end`, and `readable` where it is `quoted`.
  """
  wanted = sorted(set(wanted))
  columns = _by_arrow(raw, delimiter, width, wanted, header, quoted)
  if columns is not None:
    count = len(columns[wanted[0]])
    return Fields(columns, range(1 + header, 1 + header + count), file)
  if quoted:
    records, told = _records(raw, delimiter), ''
  else:
    records = ((k, line.split(delimiter)) for k, line in _lines(raw))
    told = f' separated by {delimiter!r}'
  records = _checked(itertools.islice(records, header, None), width, file, told)
  return from_records(records, wanted, file, 'has a header but no ratings')


def _by_arrow(
  raw: bytes,
  delimiter: str,
  width: int,
  wanted: Sequence[int],
  header: bool,
  quoted: bool,
) -> dict[int, pa.ChunkedArray] | None:
  """Returns the wanted columns, or None unless it is sure to cut as we do."""
  mark = delimiter.encode('utf-8')
  begin = raw.find(b'\n') + 1 if header else 0
  last = raw[max(raw.rfind(b'\n') + 1, begin) :]
  if (
    mark != mark[:1] * len(mark)
    or (header and not begin)
    or (quoted and raw.find(b'"', begin) >= 0)
    or not last.replace(mark, b'').strip()
    or raw.startswith((b'\xef\xbb\xbf', b'\n', b'\r\n'), begin)
    or b'\n\n' in raw
    or b'\n\r\n' in raw
    or raw.count(b'\r') != raw.count(b'\r\n') + raw.endswith(b'\r')
    or b'\0' in raw
  ):
    return None
  # To Arrow '::' is two colons, and nothing in between.
  step = len(mark)
  names = list(map(str, range(step * (width - 1) + 1)))
  gaps = [name for k, name in enumerate(names) if k % step]
  used = [names[step * k] for k in wanted]
  try:
    table = pyarrow.csv.read_csv(
      pa.BufferReader(pa.py_buffer(raw).slice(begin)),
      read_options=pyarrow.csv.ReadOptions(
        column_names=names, block_size=_BLOCK
      ),
      parse_options=pyarrow.csv.ParseOptions(
        delimiter=mark[:1].decode(), quote_char=False, ignore_empty_lines=False
      ),
      convert_options=pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(used + gaps, pa.string()),
        include_columns=used + gaps,
      ),
    )
  except (pa.ArrowException, UnicodeError):
    return None
  if any(pc.max(pc.binary_length(table[gap])).as_py() for gap in gaps):
    return None
  return {k: table[name] for k, name in zip(wanted, used, strict=True)}


def netflix(raw: bytes, file: str) -> Fields:
  """Returns user, item, rating and date; the item is the 'movie:' line above.

  `raw` is `without_blank_end`.
  """

  def records() -> Iterator[Record]:
    movie = None
    for number, line in _lines(raw):
      if line.endswith(':') and ',' not in line:
        movie = line[:-1]
      elif movie is None:
        raise DataError(
          f"{file}, line {number}: a rating before any 'movie:' line: "
          f'{line[:60]!r}'
        )
      else:
        own = [(number, line.split(','))]
        for _, fields in _checked(own, 3, file, " separated by ','"):
          fields.insert(1, movie)
          yield number, fields

  return from_records(
    records(), range(4), file, "has 'movie:' lines but no ratings"
  )


def from_records(
  records: Iterator[Record], wanted: Iterable[int], file: str, without: str
) -> Fields:
  """Returns the wanted fields of records, all of which have them.

  Args:
    records: of the file.
    wanted: positions in a record.
    file: which file.
    without: what to say of a file without records.
  """
  parts = {k: [] for k in wanted}
  lines = []
  while batch := list(itertools.islice(records, -(-_BATCH // len(parts)))):
    lines.append(np.array([number for number, _ in batch]))
    for k, part in parts.items():
      texts = [fields[k] for _, fields in batch]
      part.append(pa.array(texts, pa.large_string()))
  if not lines:
    raise DataError(f'{file}: {without}')
  columns = {k: pa.chunked_array(part) for k, part in parts.items()}
  return Fields(columns, np.concatenate(lines), file)


def readable(raw: bytes, delimiter: str, file: str) -> bytes:
  """Returns text with quotes so that the csv module reads it.

  A quote in a quoted field is written twice or, where that cannot be read,
  after a backslash.
  """
  end = raw.find(b'\n')
  # Without quotes below the header nothing else can be wrong.
  text = raw[:end] if raw.rfind(b'"') < end else raw
  if problem := _problem(text, delimiter):
    raw = re.sub(rb'\\(["\\])', lambda m: m[1].replace(b'"', b'""'), raw)
    if _problem(raw, delimiter):
      raise DataError(f'{file}, {problem}')
  if not any(True for _ in _records(raw, delimiter)):
    raise DataError(f'{file}: holds only blank lines and empty quotes')
  return raw


def first_record(raw: bytes, delimiter: str, quoted: bool) -> list[str]:
  if quoted:
    return next(_records(raw, delimiter))[1]
  return first_line(raw).split(delimiter)


def _problem(raw: bytes, delimiter: str) -> str:
  """Returns what the csv module finds wrong in which line, '' if nothing."""
  try:
    for _ in _csv(raw, delimiter):
      pass
  except csv.Error as error:
    return str(error)
  return ''


def _lines(raw: bytes) -> Iterator[tuple[int, str]]:
  """Yields (number, text) of the lines, which end at LF or CR LF."""
  for number, line in enumerate(io.BytesIO(raw), 1):
    line = line.removesuffix(b'\n').removesuffix(b'\r')
    yield number, line.decode('utf-8')


def _csv(raw: bytes, delimiter: str) -> Iterator[Record]:
  """Yields the records of the csv module, whose errors then name the line."""
  text = io.TextIOWrapper(io.BytesIO(raw), 'utf-8', newline='')
  reader = csv.reader(text, delimiter=delimiter, strict=True)
  line = 1
  try:
    for record in reader:
      yield line, record
      line = reader.line_num + 1
  except csv.Error as error:
    raise csv.Error(f'line {line}: {error}') from None


def _records(raw: bytes, delimiter: str) -> Iterator[Record]:
  """Yields the records of text with quotes up to the last that is not blank."""
  blank = []
  for record in _csv(raw, delimiter):
    blank.append(record)
    if ''.join(record[1]).strip():
      yield from blank
      blank = []


def _checked(
  records: Iterable[Record], width: int, file: str, told: str
) -> Iterator[Record]:
  """Yields records that have `width` fields; `told` says what is in between."""
  for number, fields in records:
    if len(fields) != width:
      blank = fields in ([], [''])
      what = 'is blank' if blank else f'has {len(fields)} column(s)'
      raise DataError(f'{file}, line {number}: {what}, expected {width}{told}')
    yield number, fields


def ids(
  fields: Fields, column: int, role: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (sorted ids, int32 index) of a column, int64 if all canonical."""
  return ids_of(fields.columns[column], role, fields.where, fields.file)


def ids_of(
  column: pa.ChunkedArray, role: str, where: Callable[[int], str], file: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (sorted ids, int32 index) of text, int64 if all canonical."""
  texts, index = _distinct(column)
  if (numbers := _integers(pa.chunked_array([texts]))) is not None:
    unique, place = factorize_integers(numbers)
    return unique, place[index]
  first = lambda k: where(int((index == k).argmax()))
  if (empty := texts.index('').as_py()) >= 0:
    raise DataError(
      f'{first(empty)}: empty {role} id; fill it in or remove the line'
    )
  known = texts.to_pylist()
  check_lengths(max(map(len, known)), len(known), file)
  unique, place = factorize(np.array(known), role, first)
  return unique, place[index]


def _distinct(column: pa.ChunkedArray) -> tuple[pa.Array, np.ndarray]:
  """Returns (texts in the order in which they first occur, int32 index)."""
  parts = column.dictionary_encode().chunks
  return parts[-1].dictionary, _numpy([part.indices for part in parts])


def _numpy(parts: Sequence[pa.Array]) -> np.ndarray:
  # Unlike to_numpy it does not import pandas, which takes as long as 1M lines.
  return np.concatenate([np.from_dlpack(part) for part in parts])


def _integers(texts: pa.ChunkedArray) -> np.ndarray | None:
  """Returns int64 if each prints back the same ('7', not '007'), else None."""
  try:
    numbers = texts.cast(pa.int64())
  except pa.ArrowInvalid:
    return None
  same = numbers.cast(texts.type).equals(texts)
  return _numpy(numbers.chunks) if same else None


def only_first_is_text(fields: Fields, column: int) -> bool:
  """Returns whether all fields but the first one are integers."""
  texts, index = _distinct(fields.columns[column])
  whole = lambda part: _integers(pa.chunked_array([part])) is not None
  once = len(texts) > 1 and bool(index[1:].all())
  return once and not whole(texts[:1]) and whole(texts[1:])


def numbers(fields: Fields, column: int, role: str) -> np.ndarray:
  """Returns a column as int64 if every field is an integer, else float64."""
  texts = _stripped(fields, column)
  if (whole := _integers(texts)) is not None:
    return whole
  try:
    value = _numpy(texts.cast(pa.float64()).chunks)
    if np.isfinite(value).all():
      return value
  except pa.ArrowInvalid:
    pass
  known, index = _distinct(texts)  # Arrow does not take +5
  value = np.empty(len(known))
  for k, token in enumerate(known.to_pylist()):
    number = _float(token)
    if number is None:
      row = int((index == k).argmax())
      problem = _problem_of(token, role)
      raise DataError(f'{fields.where(row)}: {problem}')
    value[k] = number
  return value[index]


def _problem_of(token: str, role: str) -> str:
  """Returns what is wrong with a number."""
  if not token.strip():
    return f'the {role} is empty; fill it in or remove the line'
  token = token.strip()
  if token.strip('+-').lower() in ('nan', 'inf', 'infinity'):
    return f'{role} {token!r} is not a finite number; remove or correct it'
  return f'{role} {token[:40]!r} is not a number; correct it'


def timestamps(fields: Fields, column: int) -> np.ndarray:
  """Returns seconds since 1970: numbers as they are, ISO dates converted."""
  try:
    return numbers(fields, column, 'timestamp')
  except DataError:
    known, index = _distinct(_stripped(fields, column))
    texts = known.to_pylist()
    # NumPy takes a bare '4' for the year 4.
    if all(text[4:5] == '-' and len(text) <= _WIDE for text in texts):
      with contextlib.suppress(ValueError):
        dates = np.array(texts).astype('M8[s]')
        if not np.isnat(dates).any():
          return dates.astype(np.int64)[index]
    raise _bad_date(fields, texts, index) from None


def _bad_date(fields: Fields, texts: list[str], index: np.ndarray) -> DataError:
  """Returns the error for the first field that is no number and no date."""
  for k, token in enumerate(texts):
    try:
      good = not np.isnat(np.datetime64(token, 's'))
    except ValueError:
      good = _float(token) is not None
    if not good:
      row = int((index == k).argmax())
      return DataError(
        f'{fields.where(row)}: timestamp {token[:40]!r} is neither a number of '
        'seconds nor a date such as 2005-09-06'
      )
  return DataError(f'{fields.file}: timestamps mix numbers and dates')


def equal(fields: Fields, column: int, text: str) -> np.ndarray:
  """Returns [N], whether a field is `text`, spaces around it aside."""
  same = pc.equal(_stripped(fields, column), text).cast(pa.uint8())
  return _numpy(same.chunks).astype(bool)


def _float(token: str) -> float | None:
  if not _NUMERIC.fullmatch(token):
    return None
  try:
    return float(token)
  except ValueError:  # such as '1-2'
    return None


def _stripped(fields: Fields, column: int) -> pa.ChunkedArray:
  return pc.utf8_trim(fields.columns[column], characters=' ')
