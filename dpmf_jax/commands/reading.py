"""The flags that say how a file of ratings is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpmf_jax.commands import declaring


class _Declared:
  """How a file of ratings is written.

  Attributes:
    format: Format of --ratings: csv, tsv, text, dense (a matrix), inter
      (RecBole), netflix, u.data, ratings.dat or parquet; auto goes by name and
      content.
    columns: Which column is which, by its name in the header or its position
      from 0: user=userId,item=movieId,rating=2; also timestamp and count. Of a
      matrix user is that of user ids and item the first one with ratings.
    delimiter: What is between columns: one or two characters, tab or space;
      found by itself where it is a tab, a comma, a semicolon or ::.
    encoding: Of the text, such as cp1252; auto: UTF-8 or Latin-1.
    missing: What --format=dense has where there is no rating, such as 0, 99 or
      NA; nothing at all by default.
  """

  format: str = 'auto'
  columns: Sequence[str] | None = None
  delimiter: str | None = None
  encoding: str = 'auto'
  missing: str | None = None


_FLAGS = declaring.define(_Declared)
_WORDS = {'tab': '\t', r'\t': '\t', 'space': ' '}
FLAGS = declaring.names(_Declared)


def check_unused(instead: str) -> None:
  """Raises ValueError where one was given, and no file to read with it."""
  for name in FLAGS:
    if declaring.present(name):
      raise ValueError(f'--{name} is for --ratings=FILE, not for {instead}')


def layout() -> dict[str, Any]:
  """What says where the columns are: for `formats.read` and `read_column`."""
  delimiter = _FLAGS.delimiter
  return {
    'format': _FLAGS.format,
    'columns': _columns(),
    'delimiter': _WORDS.get(delimiter or '', delimiter),
    'encoding': _FLAGS.encoding,
  }


def options() -> dict[str, Any]:
  """All of them, for `formats.read`."""
  return layout() | {'missing': _FLAGS.missing}


def _columns() -> dict[str, str | int] | None:
  if _FLAGS.columns is None:
    return None
  found: dict[str, str | int] = {}
  for word in _FLAGS.columns:
    role, equals, column = word.partition('=')
    if not equals or not column or role in found:
      raise ValueError(
        f'--columns={",".join(_FLAGS.columns)} must be such as '
        'user=userId,item=movieId,rating=2, each once'
      )
    found[role] = int(column) if column.isdecimal() else column
  return found
