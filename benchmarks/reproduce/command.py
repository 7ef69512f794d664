"""Runs the figures and tables of the four papers, and draws them.

Examples:

  python -m launch.reproduce --list
  python -m launch.reproduce --figure=gaussian/epsilon
  python -m launch.reproduce --paper=pdp --scale=full --data_dir=DIR
  python -m launch.reproduce --all --output=reproduction

Each figure gives OUTPUT/PAPER/NAME.csv, a row per point with its settings,
seeds, mean, standard error and epsilon, claimed or proved, and a picture
beside it. --scale=quick takes seconds and ratings that are made up: it shows
that everything runs, and nothing about a paper. --scale=full has the papers'
settings, as far as two cores get with them; docs/reproduction.md says what was
found. Points that the folder has already are not run again, so that what was
interrupted is taken up where it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dpmf_jax.commands import cli

_LIST = flags.DEFINE_bool('list', False, 'Print the names of all figures.')
_FIGURE = flags.DEFINE_list('figure', [], 'Names of figures to run.')
_PAPER = flags.DEFINE_list('paper', [], 'All figures of these papers.')
_ALL = flags.DEFINE_bool('all', False, 'All figures of all papers.')
_SCALE = flags.DEFINE_enum(
  'scale', 'quick', ['quick', 'full'], 'How much is run; see above.'
)
_OUTPUT = flags.DEFINE_string('output', 'reproduction', 'Folder to write.')
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Where data sets are looked for first.'
)
_DATASETS = flags.DEFINE_list(
  'datasets', [], 'Only these of the data sets that a figure has.'
)
_RUNS = flags.DEFINE_integer(
  'runs',
  None,
  'At most so many seeds, or folds, of each point; by default as many as the '
  'figure says.',
  lower_bound=1,
)
_DEVICES = flags.DEFINE_integer(
  'devices',
  None,
  'Over how many devices a run is spread; on a CPU its cores are devices. One '
  'for quick, else all.',
  lower_bound=1,
)
_RATINGS = flags.DEFINE_string(
  'ratings',
  None,
  'A file of ratings, such as all of Netflix, instead of the data sets that a '
  "figure has. What the figure's paper keeps of it is taken.",
)
_RATING_SCALE = flags.DEFINE_list(
  'rating_scale', ['1', '5'], 'Lowest and highest rating that --ratings has.'
)


def main(argv: Sequence[str]) -> int:
  del argv
  from benchmarks.reproduce import drawing, running
  from benchmarks.reproduce.data import Source
  from benchmarks.reproduce.figures import FIGURES

  if _LIST.value:
    for figure in FIGURES.values():
      print(f'{figure.name:22} {figure.published}')
    return 0
  chosen = _chosen()
  quick = _SCALE.value == 'quick'
  mesh = _mesh(1 if quick else None)
  scale = cli.scale(_RATING_SCALE.value)
  source = Source(_DATA_DIR.value, _RATINGS.value, scale)
  sets = running.Sets(
    source,
    quick=quick,
    only=_DATASETS.value,
    most_runs=_RUNS.value,
    mesh=mesh,
  )
  import tqdm

  total = sum(
    len(list(running.cases_of(FIGURES[name], sets))) for name in chosen
  )
  folder = Path(_OUTPUT.value)
  with tqdm.tqdm(total=total, unit='case') as bar:
    for name in chosen:
      figure = FIGURES[name]
      if not sets.of(figure):
        continue  # none of --datasets

      def tick(text: str) -> None:
        bar.set_postfix_str(text, refresh=False)
        bar.update()

      rows = running.run(figure, folder, sets, tick)
      drawing.draw(folder / f'{name}.png', figure, rows)
      bar.write(f'{folder / name}.csv and .png: {len(rows)} rows')
  if quick and _RATINGS.value is None:
    print('Ratings were made up: nothing here is about a paper (--scale=full).')
  return 0


def _chosen() -> list[str]:
  """The names of the figures to run, in the order of the papers."""
  from benchmarks.reproduce.figures import FIGURES, PAPERS

  for flag, known in ((_FIGURE, FIGURES), (_PAPER, PAPERS)):
    for name in flag.value:
      if name not in known:
        raise ValueError(
          f'--{flag.name}={name} must be one of {", ".join(known)}'
        )
  chosen = [
    figure.name
    for figure in FIGURES.values()
    if _ALL.value
    or figure.name in _FIGURE.value
    or figure.paper in _PAPER.value
  ]
  if not chosen:
    raise ValueError(
      'pass --list, --figure=NAME, --paper=NAME or --all to say what to run'
    )
  return chosen


def _mesh(default: int | None):
  """The devices that --devices says; None where there is one."""
  import jax

  from dpmf_jax.rows import device_mesh

  count = _DEVICES.value or default
  jax.config.update('jax_num_cpu_devices', count or os.cpu_count() or 1)
  return device_mesh(count)
