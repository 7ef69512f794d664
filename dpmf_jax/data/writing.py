"""Writing ratings: the whole file appears, or none of it."""

from __future__ import annotations

import csv
import os
import pathlib

import numpy as np

from dpmf_jax.data.ids import DataError
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.files import atomic

WRITE_FORMATS = ('csv', 'tsv', 'inter', 'parquet')
_INTER = {
  'user': 'user_id:token',
  'item': 'item_id:token',
  'rating': 'rating:float',
  'timestamp': 'timestamp:float',
  'epsilon': 'epsilon:float',
}


def write(
  ratings: Ratings, path: str | os.PathLike[str], format: str = 'csv'
) -> pathlib.Path:
  """Returns the path, now holding the ratings with their original ids.

  The columns are user, item, rating and, if there is one, timestamp; `read`
  gives the same ratings back. The epsilons, if any, are one more column, for
  `specification.from_column`.
  """
  path = pathlib.Path(path)
  if format not in WRITE_FORMATS:
    allowed = ', '.join(WRITE_FORMATS)
    raise DataError(f'{path}: format={format!r} is not one of {allowed}')
  columns: dict[str, np.ndarray] = {
    'user': ratings.user_ids[ratings.user],
    'item': ratings.item_ids[ratings.item],
    'rating': ratings.value,
  }
  if ratings.timestamp is not None:
    columns['timestamp'] = ratings.timestamp
  if ratings.epsilon is not None:
    columns['epsilon'] = ratings.epsilon
  if format == 'inter':
    for ids in (ratings.user_ids, ratings.item_ids):
      _check_plain(ids, path)
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
  texts = [
    _shortest(column) if name == 'rating' else column.tolist()
    for name, column in columns.items()
  ]
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
  try:
    import pyarrow as pa
    import pyarrow.parquet as pq
  except ImportError as error:
    raise DataError(
      f"{path}: writing Parquet needs pyarrow: pip install 'dpmf_jax[parquet]'"
    ) from error
  arrays = {
    name: pa.array(column.tolist() if column.dtype.kind == 'U' else column)
    for name, column in columns.items()
  }
  pq.write_table(pa.table(arrays), path)
