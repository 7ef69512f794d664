"""Compares systems, epsilon by epsilon, on ratings that are held out.

This is an experiment, and NOT PRIVATE: accuracy is computed from ratings
without noise. It is for ratings that anyone may see. On private ones publish
nothing of it, and do not choose by it: no epsilon covers that.

  dpmf compare --dataset=ml-100k --epsilons=1,2,5 --output=compared

A system is NAME:VARIANT:SETTING=VALUE, of which the name is enough; beside
those that are named are baselines and a model without privacy:

  dpmf compare --ratings=ratings.csv --scale=1,5 --epsilons=1,5 --seeds=5 \\
    --systems=auto,power_mf:rank=4,gaussian_mf,gaussian_mf:paper \\
    --output=compared

Lists instead of ratings, by five folds, or by the last item of each user:

  dpmf compare --dataset=ml-100k --task=ranking --folds=5 --output=lists
  dpmf compare --dataset=ml-100k --task=ranking --split=last --output=last \\
    --systems=auto,auto:unit=user,ranking_mf:rank=0

The folder gets table.csv, table.md, table.html, plot.png and cells.jsonl, which
has a line for each run. A comparison that was killed goes on from there when
the same command is given again, and one with more epsilons, systems or seeds
runs only what is not there yet.

What a paper claims is in a column of its own, and never called a guarantee.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

from absl import flags

from dpmf_jax.commands import compiled, declaring, plugins, reading, sources

flags.adopt_module_key_flags(sources)
flags.adopt_module_key_flags(reading)
flags.adopt_module_key_flags(plugins)


class _Declared:
  """What to compare, on what, and what to write.

  Attributes:
    systems: What to compare: names, as of dpmf train --system, maybe with a
      variant and settings, NAME:VARIANT:SETTING=VALUE.
    epsilons: Epsilons of the runs.
    seeds: How many runs of each; every seed has a split and noise of its own.
    delta: Delta of guarantees; 1e-6 by default.
    task: What is measured: errors of ratings, the default where there are any,
      or what lists are worth.
    split: What is held out: random ratings, or of each user the last one, by
      timestamps, or a random one.
    test_fraction: Part of the ratings held out at random; 0.2 by default.
    folds: Hold out random ratings in so many parts, one after the other: so
      many runs for each seed.
    ranking_k: The length of lists.
    ranking_threshold: The least rating that counts as relevant in lists; by
      default those in the upper third of the scale.
    output: Folder to write.
    overwrite: Begin anew: forget the runs that --output holds.
    devices: Devices to use; all by default, on a CPU one per core.
  """

  systems: Sequence[str] = ('auto', 'auto:unit=user')
  epsilons: Sequence[str] = ('0.5', '1', '2', '5', '10')
  seeds: int = 3
  delta: float | None = None
  task: Literal['rating', 'ranking'] | None = None
  split: Literal['random', 'last', 'one'] = 'random'
  test_fraction: float | None = None
  folds: int | None = None
  ranking_k: int = 10
  ranking_threshold: float | None = None
  output: str
  overwrite: bool = False
  devices: int | None = None


_FLAGS = declaring.define(_Declared)

GROUPS = {
  'data': (*sources.FLAGS, *reading.FLAGS),
  'what is compared': ('systems', 'plugin', 'epsilons', 'delta', 'seeds'),
  'how': (
    'task', 'split', 'test_fraction', 'folds', 'ranking_k', 'ranking_threshold',
  ),
  'output': ('output', 'overwrite'),
}  # fmt: skip


def main(argv) -> int:
  del argv
  compiled.keep()
  import jax

  # One device per core: a chunk of ratings is summed on each.
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)

  from dpmf_jax.evaluation.comparison import FILES, NOTE
  from dpmf_jax.runs.cells import CELLS
  from dpmf_jax.runs.compare import compare

  note = textwrap.fill(NOTE, 80)
  print(note, flush=True)
  found = compare(sources.load(), **_arguments())
  print(str(found).removeprefix(note))  # which was said first
  print(f'\nwritten to {_FLAGS.output}/: {", ".join((*FILES, CELLS))}')
  return 0


def _arguments() -> dict[str, Any]:
  """The flags as arguments of `dpmf_jax.compare`."""
  try:
    epsilons = [float(word) for word in _FLAGS.epsilons]
  except ValueError:
    epsilons = []
  if not epsilons or min(epsilons) <= 0:
    raise ValueError(
      f'--epsilons={",".join(_FLAGS.epsilons)} must be positive numbers, such '
      'as --epsilons=1,5'
    )
  own = {'epsilons': epsilons, 'scale': sources.scale()}
  return declaring.values(_Declared) | own
