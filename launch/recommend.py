"""Recommends items from a model that launch.train wrote.

Example:

  python -m launch.recommend --model=runs/first --users=1,2,3 --k=5

prints a table; with --output=FILE.csv (or .parquet) it is written there, with
the columns user, item, score, rank and, where titles are known, title. Users
and items have the ids of the ratings file. Items that a user rated in
training are left out, so a list is for the eyes of its user.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

from absl import flags

from launch import cli

_MODEL = flags.DEFINE_string(
  'model', None, 'The --output folder of launch.train.', required=True
)
_USERS = flags.DEFINE_list(
  'users', None, "Original ids, separated by commas, or 'all'.", required=True
)
_K = flags.DEFINE_integer('k', 10, 'Items per user.', lower_bound=1)
_FILTER_SEEN = flags.DEFINE_bool(
  'filter_seen', True, 'Leave out the items that a user rated in training.'
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'A .csv or .parquet file to write; a table is printed else.'
)


def _columns(recommendations, titles: bool) -> dict[str, list]:
  """The recommendations as columns."""
  names = ['user', 'item', 'score', 'rank'] + (['title'] if titles else [])
  return {
    name: [getattr(row, name) for row in recommendations] for name in names
  }


def _write(path: Path, columns: dict[str, list]) -> None:
  from dpmf_jax import files

  if path.suffix == '.parquet':
    try:
      import pyarrow
      import pyarrow.parquet
    except ImportError:
      raise ValueError(
        f'--output={path} needs pyarrow: pip install pyarrow, or write a .csv'
      ) from None
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    content = buffer.getvalue()
  else:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode()
  files.write_bytes(path, content)


def main(argv) -> None:
  del argv
  from dpmf_jax import serving

  path = Path(_OUTPUT.value) if _OUTPUT.value else None
  if path is not None and path.suffix not in ('.csv', '.parquet'):
    raise ValueError(f'--output={path} must end in .csv or .parquet')
  model = serving.load_model(_MODEL.value)
  if not model.covered:
    print(
      'note: uses factors from private/, which no guarantee covers',
      file=sys.stderr,
    )
  users = None if _USERS.value == ['all'] else _USERS.value
  found = serving.recommend(
    model, users, _K.value, filter_seen=_FILTER_SEEN.value
  )
  if path is not None:
    _write(path, _columns(found, bool(model.titles)))
    print(f'{len(found)} recommendations written to {path}')
    return
  for row in found:
    if row.rank == 1:
      print(f'user {row.user}')
    name = row.item if row.title is None else f'{row.title} [{row.item}]'
    print(f'  {row.rank:>3}. {row.score:.2f}  {name}')


if __name__ == '__main__':
  cli.run(main)
