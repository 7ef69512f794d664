"""The flags that say how a file of ratings is written."""

from __future__ import annotations

from typing import Any

from absl import flags

_FORMAT = flags.DEFINE_string(
  'format',
  'auto',
  'Format of --ratings: csv, tsv, text, dense (a matrix), inter (RecBole), '
  'netflix, u.data, ratings.dat or parquet; auto goes by name and content.',
)
_COLUMNS = flags.DEFINE_list(
  'columns',
  None,
  'Which column is which, by its name in the header or its position from 0: '
  'user=userId,item=movieId,rating=2; also timestamp and count. Of a matrix '
  'user is that of user ids and item the first one with ratings.',
)
_DELIMITER = flags.DEFINE_string(
  'delimiter',
  None,
  'What is between columns: one or two characters, tab or space; found by '
  'itself where it is a tab, a comma, a semicolon or ::.',
)
_ENCODING = flags.DEFINE_string(
  'encoding', 'auto', 'Of the text, such as cp1252; auto: UTF-8 or Latin-1.'
)
_MISSING = flags.DEFINE_string(
  'missing',
  None,
  'What --format=dense has where there is no rating, such as 0, 99 or NA; '
  'nothing at all by default.',
)
_WORDS = {'tab': '\t', r'\t': '\t', 'space': ' '}
FLAGS = tuple(
  flag.name for flag in (_FORMAT, _COLUMNS, _DELIMITER, _ENCODING, _MISSING)
)


def check_unused(instead: str) -> None:
  """Raises ValueError where one was given, and no file to read with it."""
  for name in FLAGS:
    if flags.FLAGS[name].present:
      raise ValueError(f'--{name} is for --ratings=FILE, not for {instead}')


def layout() -> dict[str, Any]:
  """What says where the columns are: for `formats.read` and `read_column`."""
  delimiter = _DELIMITER.value
  return {
    'format': _FORMAT.value,
    'columns': _columns(),
    'delimiter': _WORDS.get(delimiter or '', delimiter),
    'encoding': _ENCODING.value,
  }


def options() -> dict[str, Any]:
  """All of them, for `formats.read`."""
  return layout() | {'missing': _MISSING.value}


def _columns() -> dict[str, str | int] | None:
  if _COLUMNS.value is None:
    return None
  found: dict[str, str | int] = {}
  for word in _COLUMNS.value:
    role, equals, column = word.partition('=')
    if not equals or not column or role in found:
      raise ValueError(
        f'--columns={",".join(_COLUMNS.value)} must be such as '
        'user=userId,item=movieId,rating=2, each once'
      )
    found[role] = int(column) if column.isdecimal() else column
  return found
