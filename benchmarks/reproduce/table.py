"""The CSV of a figure: a row per point, written whole after each case.

A case is a run, or the mean of several, that gives one point or a curve. Its
rows are found again by what determines them: data, settings and seeds.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpmf_jax.files import write_bytes

COLUMNS: tuple[str, ...] = (
  'figure', 'data', 'ratings', 'note', 'curve', 'form', 'metric', 'x', 'mean',
  'standard_error', 'claimed_epsilon', 'proved_epsilon', 'delta', 'attack',
  'published', 'settings', 'seeds', 'commit',
)  # fmt: skip
_KEY = ('data', 'ratings', 'settings', 'seeds')
# What depends on the figure and not on what was run.
_SHOWN = ('figure', 'curve', 'form', 'published')

Row = dict[str, str]
Key = tuple[str, ...]


def key_of(row: Mapping[str, str]) -> Key:
  """What tells the case of a row from all others."""
  return tuple(row[name] for name in _KEY)


def text(value: Any) -> str:
  """A cell; numbers in as many digits as tell something."""
  if value is None:
    return ''
  if not isinstance(value, float):
    return str(value)
  return f'{value:.0f}' if value.is_integer() else f'{value:.6g}'


def as_json(settings: Mapping[str, Any]) -> str:
  return json.dumps(settings, sort_keys=True, default=repr)


def read(path: Path) -> list[Row]:
  """The rows of a CSV; none where there is no file, or one of other columns."""
  if not path.is_file():
    return []
  with path.open(newline='') as file:
    reader = csv.DictReader(file)
    return list(reader) if tuple(reader.fieldnames or ()) == COLUMNS else []


def write(path: Path, rows: Iterable[Row]) -> None:
  """Writes the rows, whole or not at all."""
  made = io.StringIO()
  writer = csv.DictWriter(made, COLUMNS, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  write_bytes(path, made.getvalue().encode())


def finished(folder: Path) -> dict[Key, list[Row]]:
  """The rows of all cases that any figure in the folder has, by their keys.

  A figure may show a case under several names: each of its points is there
  once.
  """
  found: dict[Key, list[Row]] = {}
  for path in sorted(folder.glob('*/*.csv')):
    own: dict[Key, dict[Key, Row]] = {}
    for row in read(path):
      x = row['x'] if has_own_x(row['metric']) else ''
      own.setdefault(key_of(row), {})[row['metric'], x] = row
    found |= {key: list(rows.values()) for key, rows in own.items()}
  return found


def shown_as(row: Row, x: float | None, **names: str) -> Row:
  """The row of a case as a figure shows it: a point is where it says."""
  assert names.keys() == set(_SHOWN)
  if has_own_x(row['metric']):
    return row | names
  return row | names | {'x': text(None if x is None else float(x))}


def has_own_x(metric: str) -> bool:
  """Whether a run gives many points, as 'training RMSE by step'."""
  return ' by ' in metric


def commit() -> str:
  """The checkout's commit, with a + where files differ from it."""
  here = Path(__file__).parent
  run = lambda *words: subprocess.run(
    ['git', '-C', str(here), *words],
    capture_output=True,
    text=True,
    check=False,
  ).stdout.strip()
  changed = run('status', '--porcelain', '--untracked-files=no', ':/*.py')
  return (run('rev-parse', '--short', 'HEAD') or 'none') + '+' * bool(changed)
