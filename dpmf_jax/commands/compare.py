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
from typing import Any

from absl import flags

from dpmf_jax.commands import compiled, plugins, reading, sources

flags.adopt_module_key_flags(sources)
flags.adopt_module_key_flags(reading)
flags.adopt_module_key_flags(plugins)

_SYSTEMS = flags.DEFINE_list(
  'systems',
  ['auto', 'auto:unit=user'],
  'What to compare: names, as of dpmf train --system, maybe with a variant '
  'and settings, NAME:VARIANT:SETTING=VALUE.',
)
_EPSILONS = flags.DEFINE_list(
  'epsilons', ['0.5', '1', '2', '5', '10'], 'Epsilons of the runs.'
)
_SEEDS = flags.DEFINE_integer(
  'seeds',
  3,
  'How many runs of each; every seed has a split and noise of its own.',
)
_DELTA = flags.DEFINE_float(
  'delta', None, 'Delta of guarantees; 1e-6 by default.'
)
_TASK = flags.DEFINE_enum(
  'task',
  None,
  ['rating', 'ranking'],
  'What is measured: errors of ratings, the default where there are any, or '
  'what lists are worth.',
)
_SPLIT = flags.DEFINE_enum(
  'split',
  'random',
  ['random', 'last', 'one'],
  'What is held out: random ratings, or of each user the last one, by '
  'timestamps, or a random one.',
)
_TEST_FRACTION = flags.DEFINE_float(
  'test_fraction',
  None,
  'Part of the ratings held out at random; 0.2 by default.',
)
_FOLDS = flags.DEFINE_integer(
  'folds',
  None,
  'Hold out random ratings in so many parts, one after the other: so many runs '
  'for each seed.',
)
_RANKING_K = flags.DEFINE_integer('ranking_k', 10, 'The length of lists.')
_RANKING_THRESHOLD = flags.DEFINE_float(
  'ranking_threshold',
  None,
  'The least rating that counts as relevant in lists; by default those in the '
  'upper third of the scale.',
)
_OUTPUT = flags.DEFINE_string('output', None, 'Folder to write.', required=True)
_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Begin anew: forget the runs that --output holds.'
)
_DEVICES = flags.DEFINE_integer(
  'devices', None, 'Devices to use; all by default, on a CPU one per core.'
)

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
  print(f'\nwritten to {_OUTPUT.value}/: {", ".join((*FILES, CELLS))}')
  return 0


def _arguments() -> dict[str, Any]:
  """The flags as arguments of `dpmf_jax.compare`."""
  return {
    'systems': _SYSTEMS.value,
    'epsilons': _numbers(_EPSILONS),
    'seeds': _SEEDS.value,
    'delta': _DELTA.value,
    'task': _TASK.value,
    'split': _SPLIT.value,
    'test_fraction': _TEST_FRACTION.value,
    'folds': _FOLDS.value,
    'ranking_k': _RANKING_K.value,
    'ranking_threshold': _RANKING_THRESHOLD.value,
    'scale': sources.scale(),
    'output': _OUTPUT.value,
    'overwrite': _OVERWRITE.value,
    'devices': _DEVICES.value,
  }


def _numbers(flag: flags.FlagHolder) -> list[float]:
  try:
    found = [float(word) for word in flag.value]
  except ValueError:
    found = []
  if not found or min(found) <= 0:
    raise ValueError(
      f'--{flag.name}={",".join(flag.value)} must be positive numbers, such as '
      f'--{flag.name}=1,5'
    )
  return found
