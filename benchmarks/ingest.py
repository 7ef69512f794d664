"""Times reading a file of ratings and laying it out, and checks the targets.

  python -m benchmarks.ingest --ratings=10000000
  python -m benchmarks.ingest --ratings=100000000 --parquet_parts=10 --nolayout

It makes a CSV file, or Parquet files, and reads them in a process of its own
for every measurement: by Arrow, which reads the columns as text and makes
dictionaries of both ids, and by `dpmf_jax.read`, which looks for duplicates and
ratings out of bounds besides; then `training_data` lays the ratings out. Rounds
alternate between both, so that the ratio holds on a machine whose speed
changes. The memory is what the process has at its peak beyond what its imports
take. It ends with code 1 if a target is missed by the median.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from absl import flags

from dpmf_jax.commands import cli

_RATINGS = flags.DEFINE_integer('ratings', 10_000_000, 'How many to read.', 1)
_PARQUET_PARTS = flags.DEFINE_integer(
  'parquet_parts', 0, 'So many Parquet files in place of one CSV file.', 0
)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Times that each is measured.', 1)
_LAYOUT = flags.DEFINE_bool('layout', True, 'Whether to lay them out, too.')
_MEASURE = flags.DEFINE_string(
  'measure', None, 'Of the files in --path, as this script calls itself.'
)
_PATH = flags.DEFINE_string('path', None, 'What to read for --measure.')

ITEMS = 20_000
PER_USER = 70
RATIO = 4.0  # of Arrow's seconds
BYTES = {'csv': 150.0, 'parquet': 120.0}  # for a rating, at the peak
LAYOUT = 3e-7  # seconds for a rating


def main(argv: Sequence[str]) -> int:
  del argv
  if _MEASURE.value is not None:
    print(json.dumps(MEASURES[_MEASURE.value](str(_PATH.value))))
    return 0
  with tempfile.TemporaryDirectory() as folder:
    path = make(pathlib.Path(folder), _RATINGS.value, _PARQUET_PARTS.value)
    return report(path)


def make(folder: pathlib.Path, count: int, parts: int) -> pathlib.Path:
  """Returns what names the files, which together have `count` ratings."""
  if not parts:
    path = folder / 'ratings.csv'
    options = pyarrow.csv.WriteOptions(quoting_style='none')
    for k, table in enumerate(tables(count, 10)):
      with path.open('ab') as file:
        options.include_header = k == 0
        pyarrow.csv.write_csv(table, file, options)
    return path
  for k, table in enumerate(tables(count, parts)):
    pyarrow.parquet.write_table(table, folder / f'part-{k:03d}.parquet')
  return folder / 'part-*.parquet'


def tables(count: int, parts: int) -> Iterator[pa.Table]:
  """Ratings of pairs that are all different, in no order."""
  users = max(count // PER_USER, 50)
  pairs = users * ITEMS
  step = int(pairs * (math.sqrt(5) - 1) / 2)
  while math.gcd(step, pairs) > 1:
    step += 1
  for place in np.array_split(np.arange(count), parts):
    pair = place * step % pairs
    yield pa.table(
      {
        'user': pair // ITEMS + 1,
        'item': pair % ITEMS + 1,
        'rating': place * 7 % 11 % 5 + 1,
      }
    )


def files_of(path: str) -> list[pathlib.Path]:
  whole = pathlib.Path(path)
  return sorted(whole.parent.glob(whole.name))


def by_arrow(path: str) -> dict[str, Any]:
  """Figures of Arrow, which checks nothing."""

  def read() -> Any:
    if path.endswith('.parquet'):
      table = pyarrow.parquet.read_table(files_of(path))
    else:
      text = dict.fromkeys(('user', 'item', 'rating'), pa.string())
      options = pyarrow.csv.ConvertOptions(column_types=text)
      table = pyarrow.csv.read_csv(path, convert_options=options)
    return table, *(table[k].dictionary_encode() for k in ('user', 'item'))

  return measured(read)[1]


def by_library(path: str) -> dict[str, Any]:
  """Figures of reading, and of the layout after it."""
  import jax

  from dpmf_jax.ratings.formats import read
  from dpmf_jax.rows import training_data

  jax.devices()
  ratings, figures = measured(lambda: read(path, scale=(1, 5)))
  if not _LAYOUT.value:
    return figures
  _, layout = measured(lambda: jax.block_until_ready(training_data(ratings)))
  return figures | {f'layout_{name}': value for name, value in layout.items()}


MEASURES = {'arrow': by_arrow, 'read': by_library}


def measured(made: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
  """What it returns, and the seconds and bytes that it takes."""
  before = memory('VmRSS')
  began, worked = time.perf_counter(), time.process_time()
  result = made()
  return result, {
    'seconds': time.perf_counter() - began,
    'cpu_seconds': time.process_time() - worked,
    'bytes': memory('VmHWM') - before,
  }


def memory(field: str) -> int:
  """Bytes that the process has (VmRSS), or had at its peak (VmHWM)."""
  status = pathlib.Path('/proc/self/status').read_text()
  found = re.search(rf'^{field}:\s+(\d+) kB$', status, re.M)
  if found is None:
    raise ValueError(f'/proc/self/status has no {field}: use Linux')
  return 1024 * int(found[1])


def report(path: pathlib.Path) -> int:
  """Prints the figures; returns 1 if a target is missed, else 0."""
  count, kind = _RATINGS.value, path.suffix[1:]
  size = sum(file.stat().st_size for file in files_of(str(path)))
  print(f'{count} ratings, {kind}, {size / 1e6:.0f} MB; {os.cpu_count()} cores')
  rounds = []
  for number in range(_ROUNDS.value):
    arrow, read = (in_own_process(name, path) for name in MEASURES)
    rounds.append(
      {
        'Arrow, seconds': arrow['seconds'],
        'read, seconds': read['seconds'],
        'read, CPU seconds': read['cpu_seconds'],
        'read / Arrow': read['seconds'] / arrow['seconds'],
        'Arrow, bytes for a rating': arrow['bytes'] / count,
        'read, bytes for a rating': read['bytes'] / count,
      }
    )
    if _LAYOUT.value:
      rounds[-1] |= {
        'layout, seconds': read['layout_seconds'],
        'layout, CPU seconds': read['layout_cpu_seconds'],
      }
    print(f'round {number + 1}, load {os.getloadavg()[0]:.1f}', flush=True)
  targets = {
    'read, bytes for a rating': BYTES[kind],
    'layout, seconds': LAYOUT * count,
  }
  if kind == 'csv':
    targets['read / Arrow'] = RATIO
  missed = False
  for name in rounds[0]:
    figures = [each[name] for each in rounds]
    line = f'| {name} | {statistics.median(figures):.2f} '
    line += f'| {min(figures):.2f} to {max(figures):.2f} |'
    if name in targets:
      good = statistics.median(figures) <= targets[name]
      missed |= not good
      line += f' at most {targets[name]:g}: {"met" if good else "MISSED"} |'
    print(line)
  return int(missed)


def in_own_process(name: str, path: pathlib.Path) -> dict[str, float]:
  command = [sys.executable, '-m', 'benchmarks.ingest', f'--measure={name}']
  command += [f'--path={path}', f'--layout={_LAYOUT.value}']
  run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
  return json.loads(run.stdout.splitlines()[-1])


if __name__ == '__main__':
  cli.run(main)
