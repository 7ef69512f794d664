"""Seconds and memory of reading, layout and steps by the number of ratings.

  python -m benchmarks.scale --json=scale.json --figure=scale.png

For each of --sizes it makes Parquet files (70 ratings for each user, 20,000
items) and, in a process of its own, reads them, lays them out on two CPU
devices and takes private steps of `gaussian_mf` at rank 20. Memory is the peak
of the process beyond its imports. A step's seconds are the median over rounds
of a few steps each, with the least and the most. It ends with code 1 if a
target is missed: the power of ratings in the seconds of a step, bytes on the
devices for a rating, and 12 GB for 100M ratings with their layout.

With --read=scale.json it draws what was measured before.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from benchmarks import ingest
from dpmf_jax.commands import cli

_SIZES = flags.DEFINE_list(
  'sizes', ['1000000', '10000000', '100000000'], 'Numbers of ratings.'
)
_STEP_ROUNDS = flags.DEFINE_integer('step_rounds', 7, 'Of steps.', 1)
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')
_READ = flags.DEFINE_string('read', None, 'Figures to draw, of --json.')
_FIGURE = flags.DEFINE_string('figure', None, 'PNG of seconds and memory.')
_FILES = flags.DEFINE_string('files', None, 'Of the processes it starts.')

RANK, STEPS = 20, 2  # in one run
PARTS = 10
SLOPES = {10_000_000: 1.05, 100_000_000: 1.1}  # from the smallest to so many
BYTES = 20.0  # of the devices, for a rating
MEMORY = {100_000_000: 12e9}

Figures = dict[int, dict[str, Any]]


def main(argv: Sequence[str]) -> int:
  del argv
  if _FILES.value:
    print(json.dumps(measured(_FILES.value)))
    return 0
  if _READ.value:
    kept = json.loads(pathlib.Path(_READ.value).read_text())
    figures = {int(size): found for size, found in kept.items()}
  else:
    figures = {int(size): in_own_process(int(size)) for size in _SIZES.value}
  if _JSON.value:
    text = json.dumps(figures, indent=2)
    pathlib.Path(_JSON.value).write_text(text + '\n')
  if _FIGURE.value:
    draw(_FIGURE.value, figures)
  return report(figures)


def in_own_process(size: int) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    files = ingest.make(pathlib.Path(folder), size, PARTS)
    command = [sys.executable, '-m', 'benchmarks.scale', f'--files={files}']
    command.append(f'--step_rounds={_STEP_ROUNDS.value}')
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
  return json.loads(run.stdout.splitlines()[-1])


def measured(files: str) -> dict[str, Any]:
  """Figures of reading, layout and steps, in this process."""
  import jax

  jax.config.update('jax_num_cpu_devices', 2)
  from benchmarks.private_steps import block_arguments, private_system
  from dpmf_jax import training
  from dpmf_jax.ratings.formats import read
  from dpmf_jax.rows import device_mesh, training_data

  mesh, before = device_mesh(2), ingest.memory('VmRSS')
  peak = lambda: ingest.memory('VmHWM') - before
  began = time.perf_counter()
  ratings = read(files, scale=(1, 5))
  figures: dict[str, Any] = {
    'read_seconds': time.perf_counter() - began,
    'read_peak': peak(),
  }
  began = time.perf_counter()
  data = jax.block_until_ready(training_data(ratings, mesh=mesh))
  figures |= {
    'layout_seconds': time.perf_counter() - began,
    'layout_peak': peak(),
    'device_bytes': sum(leaf.nbytes for leaf in jax.tree.leaves(data)),
  }
  # So many bits are for up to 2M users.
  system = private_system(
    rank=RANK, steps=STEPS, step_size=1e-4, lattice_bits=9
  )
  arguments = block_arguments(system, data)
  seconds = []
  for _ in range(1 + _STEP_ROUNDS.value):
    began = time.perf_counter()
    jax.block_until_ready(training._block(*arguments))
    seconds.append((time.perf_counter() - began) / STEPS)
  return figures | {'step_seconds': seconds[1:], 'step_peak': peak()}


def report(figures: Figures) -> int:
  """Prints the figures; returns 1 if a target is missed, else 0."""
  print('| ratings | ' + ' | '.join(f'{size:,}' for size in figures) + ' |')
  print('|---' * (1 + len(figures)) + '|')
  shown = {
    'read, seconds': lambda f, _: f'{f["read_seconds"]:.2f}',
    'layout, seconds': lambda f, _: f'{f["layout_seconds"]:.2f}',
    'step, ms': lambda f, _: _spread([1e3 * s for s in f['step_seconds']]),
    'step, ns for a rating': lambda f, n: _spread(
      [1e9 * s / n for s in f['step_seconds']]
    ),
    'peak of reading, GB': lambda f, _: f'{f["read_peak"] / 1e9:.2f}',
    'with the layout, GB': lambda f, _: f'{f["layout_peak"] / 1e9:.2f}',
    'with steps, GB': lambda f, _: f'{f["step_peak"] / 1e9:.2f}',
    'bytes on devices for a rating': lambda f, n: (
      f'{f["device_bytes"] / n:.1f}'
    ),
  }
  for name, cell in shown.items():
    cells = (cell(found, size) for size, found in figures.items())
    print(f'| {name} | {" | ".join(cells)} |')
  met = True
  for what, figure, most in _targets(figures):
    met &= figure <= most
    verdict = 'met' if figure <= most else 'MISSED'
    print(f'{what}: {figure:.3g}, at most {most:g}: {verdict}')
  return 0 if met else 1


def _targets(figures: Figures) -> list[tuple[str, float, float]]:
  """(what, figure, the most that it may be)."""
  median = lambda size: statistics.median(figures[size]['step_seconds'])
  least = min(figures)
  found = [
    (
      f'power of ratings from {least:,} to {size:,}',
      math.log(median(size) / median(least)) / math.log(size / least),
      most,
    )
    for size, most in SLOPES.items()
    if size in figures and size > least
  ]
  for size, each in figures.items():
    held = each['device_bytes'] / size
    found.append((f'bytes on devices for a rating of {size:,}', held, BYTES))
    if size in MEMORY:
      what = f'GB for {size:,} with their layout'
      found.append((what, each['layout_peak'] / 1e9, MEMORY[size] / 1e9))
  return found


def _spread(figures: list[float]) -> str:
  middle = statistics.median(figures)
  return f'{middle:.3g} ({min(figures):.3g} to {max(figures):.3g})'


def draw(path: str, figures: Figures) -> None:
  """Writes the picture: seconds and memory by the number of ratings."""
  from matplotlib.figure import Figure

  sizes = sorted(figures)
  picture = Figure(figsize=(9, 3.4))
  picture.set_layout_engine('constrained')
  left, right = picture.subplots(1, 2)
  for name, key, colour in (
    ('reading Parquet', 'read_seconds', '#0072B2'),
    ('layout', 'layout_seconds', '#E69F00'),
    ('a private step, 2 devices', 'step_seconds', '#D55E00'),
  ):
    seconds = [statistics.median(_listed(figures[n][key])) for n in sizes]
    left.plot(sizes, seconds, 'o-', color=colour, label=name)
  for name, key, colour in (
    ('peak of reading', 'read_peak', '#0072B2'),
    ('with the layout', 'layout_peak', '#E69F00'),
    ('with steps', 'step_peak', '#D55E00'),
    ('ratings on devices', 'device_bytes', '#888888'),
  ):
    memory = [figures[n][key] / 1e9 for n in sizes]
    right.plot(sizes, memory, 'o-', color=colour, label=name)
  for axes, label in ((left, 'seconds'), (right, 'GB')):
    axes.set_xscale('log')
    axes.set_yscale('log')
    axes.set_xlabel('ratings')
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
  picture.savefig(path, dpi=120)


def _listed(figure: Any) -> list[float]:
  return figure if isinstance(figure, list) else [figure]


if __name__ == '__main__':
  cli.run(main)
