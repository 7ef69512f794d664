"""Writing ratings and other columns: the whole file appears, or none of it."""

from __future__ import annotations

import csv
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmf_jax.files import atomic
from dpmf_jax.ratings.ids import DataError
from dpmf_jax.ratings.table import Ratings

WRITE_FORMATS = ('csv', 'tsv', 'inter', 'parquet')
_INTER = {
  'user': 'user_id:token',
  'item': 'item_id:token',
  'rating': 'rating:float',
  'count': 'count:float',
  'timestamp': 'timestamp:float',
  'epsilon': 'epsilon:float',
}


def write(
  ratings: Ratings, path: str | os.PathLike[str], format: str = 'csv'
) -> pathlib.Path:
  """Returns the path, now holding the ratings with their original ids.

  The columns are user, item, rating and, if there is one, timestamp; `read`
  gives the same ratings back, and counts with the same `max_count`. The
  epsilons, if any, are one more column, for `specification.from_column`.
  """
  path = pathlib.Path(path)
  if format not in WRITE_FORMATS:
    allowed = ', '.join(WRITE_FORMATS)
    raise DataError(f'{path}: format={format!r} is not one of {allowed}')
  if format == 'inter':
    for ids in (ratings.user_ids, ratings.item_ids):
      _check_plain(ids, path)
  return _write(ratings.columns(), path, format)


def write_columns(
  columns: Mapping[str, Any], path: str | os.PathLike[str]
) -> pathlib.Path:
  """Returns the path, now holding equally long columns by their names.

  It ends in .csv or .parquet. Columns are arrays or lists; in a list None is
  an empty field. Numbers in float32 are written as short as they can be.
  """
  path = pathlib.Path(path)
  check_suffix(path)
  return _write(columns, path, path.suffix[1:])


def check_suffix(path: pathlib.Path) -> None:
  """Raises DataError where `write_columns` could not write the path."""
  if path.suffix not in ('.csv', '.parquet'):
    raise DataError(f'{path} must end in .csv or .parquet')


def _write(columns, path: pathlib.Path, format: str) -> pathlib.Path:
  with atomic(path) as partial:
    if format == 'parquet':
      _write_parquet(columns, partial)
    else:
      _write_text(columns, partial, format)
  return path


def _write_text(columns, path: pathlib.Path, format: str) -> None:
  header = list(columns)
  if format == 'inter':
    header = [_INTER[name] for name in columns]
  texts = [_plain(column) for column in columns.values()]
  quoting = csv.QUOTE_NONE if format == 'inter' else csv.QUOTE_MINIMAL
  with path.open('w', newline='', encoding='utf-8') as file:
    writer = csv.writer(
      file,
      delimiter=',' if format == 'csv' else '\t',
      lineterminator='\n',
      quoting=quoting,
      quotechar=None if format == 'inter' else '"',
    )
    writer.writerow(header)
    writer.writerows(zip(*texts, strict=True))


def _plain(column) -> list:
  """Returns the values as csv writes them well."""
  if isinstance(column, list):
    return column
  return _shortest(column) if column.dtype == np.float32 else column.tolist()


def _is_text(column) -> bool:
  return isinstance(column, np.ndarray) and column.dtype.kind == 'U'


def _shortest(values: np.ndarray) -> list[str]:
  """Returns the shortest decimal that reads back as the same float32."""
  unique, index = np.unique(values, return_inverse=True)
  texts = [np.format_float_positional(value, trim='-') for value in unique]
  return np.array(texts)[index].tolist()


def _check_plain(ids: np.ndarray, path: pathlib.Path) -> None:
  if ids.dtype.kind == 'U':
    for mark in '\t\r\n':
      if (bad := np.char.find(ids, mark) >= 0).any():
        raise DataError(
          f'{path}: id {str(ids[bad][0])!r} holds a tab or line break, which '
          "format 'inter' cannot hold; use csv"
        )


def _write_parquet(columns, path: pathlib.Path) -> None:
  arrays = {
    name: pa.array(column.tolist() if _is_text(column) else column)
    for name, column in columns.items()
  }
  pq.write_table(pa.table(arrays), path)
