"""Held-out RMSE of what `--system=auto` picks, beside what it must beat.

  python -m benchmarks.auto --data_dir=DIR --json=auto.json --figure=auto.png

80/20 splits and noise with seeds 3, 4, 5 (--seeds): 0, 1 and 2 are those that
settings were chosen on. One rating is protected at delta 1e-6, or a whole user
at delta 1e-5. For each data set (--datasets; those named made-* are generated
here), unit and epsilon (--epsilons): `auto`, and what it would be with means
and biases alone (rank 0). The user mean needs no other user; the biases and
`als` are not private. With --published also the sound form of Gaussian MF, and
figures to beat of an earlier implementation of the published methods.

Data sets may be run one by one, each with a --json of its own: with
--from_json=FILE,FILE.. nothing is run, and all that is in these is checked and
drawn.

The last lines are a table of all figures, with `auto` before a slash and means
alone after it, and what fails.

What must hold of means over seeds, each but for 0.003; the exit code is 1 where
it does not:

  auto is no worse than the user mean, nor than rank 0 at the same budget;
  more epsilon is no worse than less;
  one rating is no worse off than a whole user at the same epsilon.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np
import tqdm
from absl import flags

from benchmarks import made_ratings
from benchmarks.splits import split_datasets, write
from dpmf_jax.commands import cli
from dpmf_jax.evaluation import metrics, plots
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.auto import recommended
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import System, Unit

flags.FLAGS.set_default(
  'datasets',
  'ml-100k,ml-1m,netflix-slice,anime-slice,jester-1,'
  + ','.join(made_ratings.NAMES),
)
_UNITS = flags.DEFINE_list('units', ['rating', 'user'], 'Which.')
_EPSILONS = flags.DEFINE_list('epsilons', ['.1', '1', '2', '5', '20'], 'Which.')
_PUBLISHED = flags.DEFINE_bool('published', False, 'Gaussian MF as well.')
_ALS = flags.DEFINE_bool('als', True, 'ALS without privacy as well.')
_FROM = flags.DEFINE_list(
  'from_json', [], 'Of earlier runs, to check and draw.'
)
_FIGURE = flags.DEFINE_string('figure', None, 'PNG of RMSE against epsilon.')

DELTA: dict[Unit, float] = {'rating': 1e-6, 'user': 1e-5}
ALLOWED = 0.003
# The most that L2-Laplace noise on means is drawn for: `power_mf` at rank 0.
_MAX_PURE = 18.0
# Figures to beat by data set, unit and epsilon.
TO_BEAT: dict[tuple[str, str], dict[float, float]] = {
  ('ml-100k', 'rating'): {0.1: 1.007, 1: 0.946, 2: 0.942, 5: 0.925, 10: 0.917},
  ('ml-100k', 'user'): {20: 0.985},
  ('ml-1m', 'rating'): {0.1: 0.930, 1: 0.908, 2: 0.885, 5: 0.873, 10: 0.870},
  ('ml-1m', 'user'): {1: 1.02, 5: 0.980, 20: 0.918},
}

# Of the picture; told apart by everybody (Okabe and Ito).
_COLORS = {'rating': '#0072B2', 'user': '#D55E00'}
_LEVELS = {
  'user mean': '--',
  'bias, not private': '-.',
  'als, not private': (0, (1, 1)),
}

# Rows of a data set: RMSE by seed, and more.
Rows = dict[str, dict[str, Any]]


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  figures = read(_FROM.value) if _FROM.value else measured()
  if _FIGURE.value:
    draw(_FIGURE.value, figures)
  failed = [
    f'{name}: {each}'
    for name, rows in figures.items()
    for each in failures(rows)
  ]
  print(table(figures))
  print('\n'.join(failed) or 'all that must hold does')
  return 1 if failed else 0


def read(paths: Sequence[str]) -> dict[str, Rows]:
  """What runs with --json have written; rows of one data set are joined."""
  figures: dict[str, Rows] = {}
  for path in paths:
    for name, rows in json.loads(pathlib.Path(path).read_text()).items():
      figures.setdefault(name, {}).update(rows)
      for label, row in rows.items():
        print(line(name, label, row))
  return figures


def measured() -> dict[str, Rows]:
  figures: dict[str, Rows] = {}
  for name, ratings, splits in split_datasets(made_ratings.load):
    rows = figures[name] = {}
    for label, values in baseline_rows(splits):
      rows[label] = {'rmse': values}
      print(line(name, label, rows[label]))
    runs = list(system_rows(name, ratings))
    for label, system, more in tqdm.tqdm(runs, desc=name):
      values, seconds = rmse_of(system, splits)
      rows[label] = {'rmse': values, 'seconds': seconds, **more}
      tqdm.tqdm.write(line(name, label, rows[label]))
      write(figures)
  return figures


def line(name: str, label: str, row: dict[str, Any]) -> str:
  beat = row.get('to_beat')
  text = f'{name:13} {label:32} {np.mean(row["rmse"]):.4f}'
  text += f'  (to beat {beat})' if beat else ''
  text += f'  {np.round(row["rmse"], 4)}'
  if 'system' in row:
    text += f'  {row["system"]} of rank {row["rank"]}'
  if 'seconds' in row:
    text += f'  {np.round(row["seconds"], 1)} s'
  return text


def baseline_rows(splits) -> Iterator[tuple[str, list[float]]]:
  found = [metrics.baselines(*split) for split in splits.values()]
  yield 'user mean', [each['user_mean'] for each in found]
  yield 'bias, not private', [each['bias'] for each in found]


def system_rows(name: str, ratings) -> Iterator[tuple[str, System, Any]]:
  """(label, system, what else is known of it) in the order of the table."""
  if _ALS.value:
    yield 'als, not private', built('als', ratings), {}
  for unit in cast(list[Unit], _UNITS.value):
    for epsilon in map(float, _EPSILONS.value):
      budget: dict[str, Any] = {'epsilon': epsilon, 'delta': DELTA[unit]}
      system, settings = recommended(
        unit,
        num_users=ratings.num_users,
        num_items=ratings.num_items,
        **budget,
      )
      cell = f'{unit}, epsilon {epsilon:g}'
      given = {**settings, **budget}
      to_beat = TO_BEAT.get((name, unit), {}).get(epsilon)
      more = {'system': system, 'rank': given.get('rank'), 'to_beat': to_beat}
      yield f'auto, {cell}', built(system, ratings, **given), more
      alone = {'rating': 'power_mf', 'user': 'dpals'}[unit]
      if alone == 'power_mf':
        budget['epsilon'] = min(epsilon, _MAX_PURE)
      means = built(alone, ratings, rank=0, relation='add_remove', **budget)
      yield f'means alone, {cell}', means, {}
      if unit == 'rating' and _PUBLISHED.value:
        mf = built('gaussian_mf', ratings, relation='add_remove', **budget)
        yield f'gaussian_mf, {cell}', mf, {}


def built(name: str, ratings, **settings: Any) -> System:
  entry = SPECS[name]
  variant = 'sound' if 'sound' in entry.variants else 'none'
  preset = {**entry.variants[variant], **settings}
  return build(name, entry.config(scale=ratings.scale, **preset))


def rmse_of(system: System, splits) -> tuple[list[float], list[float]]:
  """On held-out ratings, clipped to the scale, and seconds, for each seed."""
  values, seconds = [], []
  for seed, (train, test) in splits.items():
    began = time.perf_counter()
    data = training_data(train, mesh=device_mesh())
    state = fit(system, jax.random.key(seed), data)
    model = jax.device_get(jax.jit(system.model)(state, data))
    rows = training_data(test).by_user
    values.append(metrics.rmse(model, rows, train.scale))
    seconds.append(time.perf_counter() - began)
  return values, seconds


def curve(rows: Rows, what: str, unit: str) -> dict[float, float]:
  """Mean RMSE by epsilon of `auto` or of means alone."""
  begin = f'{what}, {unit}, epsilon '
  return {
    float(label.removeprefix(begin)): float(np.mean(row['rmse']))
    for label, row in rows.items()
    if label.startswith(begin)
  }


def table(figures: dict[str, Rows]) -> str:
  """Markdown: means over seeds by data set, unit and epsilon.

  What is not private stands in the first of a data set's rows.
  """
  epsilons = [*map(float, _EPSILONS.value)]
  levels = [*_LEVELS]
  lines = [
    ['', *levels, 'protected', *(f'{each:g}' for each in epsilons)],
    ['---'] * (2 + len(levels) + len(epsilons)),
  ]
  for name, rows in figures.items():
    first = [name, *(shown(rows.get(label)) for label in levels)]
    for unit in _UNITS.value:
      cells = [
        ' / '.join(
          shown(rows.get(f'{what}, {unit}, epsilon {epsilon:g}'))
          for what in ('auto', 'means alone')
        )
        for epsilon in epsilons
      ]
      lines.append([*first, unit, *cells])
      first = [''] * len(first)
  return '\n'.join(f'| {" | ".join(each)} |' for each in lines)


def shown(row: dict[str, Any] | None) -> str:
  return f'{np.mean(row["rmse"]):.3f}'.removeprefix('0') if row else '-'


def failures(rows: Rows) -> Iterator[str]:
  """What must hold of a data set and does not, in units of its ratings."""
  user_mean = float(np.mean(rows['user mean']['rmse']))
  found = {unit: curve(rows, 'auto', unit) for unit in _UNITS.value}
  for unit, values in found.items():
    means, best = curve(rows, 'means alone', unit), np.inf
    for epsilon, value in sorted(values.items()):
      bounds = {
        'the user mean': user_mean,
        'means alone': means.get(epsilon, np.inf),
        'less epsilon': best,
      }
      if unit == 'rating':
        whole = found.get('user', {}).get(epsilon, np.inf)
        bounds['a whole user'] = whole
      for what, bound in bounds.items():
        if value > bound + ALLOWED:
          yield (
            f'{unit}, epsilon {epsilon:g}: {value:.4f} is worse than '
            f'{bound:.4f}, of {what}'
          )
      best = min(best, value)


def draw(path: str, figures: dict[str, Rows]) -> None:
  """Writes the picture: RMSE by epsilon, of all data sets."""
  from matplotlib.figure import Figure

  columns = min(3, len(figures))
  rows_of = -(-len(figures) // columns)
  figure = Figure(figsize=(4 * columns, 3 * rows_of), layout='constrained')
  places = figure.subplots(rows_of, columns, squeeze=False).ravel()
  for axes in places[len(figures) :]:
    axes.axis('off')
  shown: dict[str, Any] = {}
  for axes, (name, rows) in zip(places, figures.items(), strict=False):
    for label, line in _lines(axes, rows):
      shown.setdefault(label, line)
    axes.set_xscale('log')
    axes.set_xticks([0.1, 1, 2, 5, 20], ['0.1', '1', '2', '5', '20'])
    axes.minorticks_off()
    axes.set_xlabel('epsilon')
    axes.set_ylabel('held-out RMSE')
    axes.set_title(name, fontsize=10)
    axes.grid(alpha=0.25)
    _without_far(axes, np.mean(rows['user mean']['rmse']))
  figure.legend(
    shown.values(), shown.keys(), loc='outside lower center', ncols=4
  )
  plots.save(path, places[0], mode=None)


def _without_far(axes: Any, height: float) -> None:
  """Leaves the user mean out where all else would be flat beside it."""
  heights = [
    float(each)
    for line in axes.lines
    for each in line.get_ydata()
    if each != height
  ]
  low, high = min(heights), max(heights)
  if height > high + 0.5 * (high - low):
    room = 0.08 * (high - low)
    axes.set_ylim(low - room, high + 2 * room)
    axes.text(
      0.98, 0.96, f'user mean {height:.3f}', transform=axes.transAxes,
      ha='right', va='top', fontsize=8,
    )  # fmt: skip


def _lines(axes: Any, rows: Rows) -> Iterator[tuple[str, Any]]:
  """(label, line) of what is drawn of a data set."""
  for unit in _UNITS.value:
    for what, style in (('auto', 'o-'), ('means alone', 's:')):
      values = sorted(curve(rows, what, unit).items())
      if values:
        yield (
          f'{what}, {unit}',
          axes.plot(*zip(*values, strict=True), style, color=_COLORS[unit],
                    markersize=4 if what == 'auto' else 3)[0],
        )  # fmt: skip
  for label, style in _LEVELS.items():
    if label in rows:
      height = np.mean(rows[label]['rmse'])
      yield label, axes.axhline(height, color='black', lw=1, ls=style)


if __name__ == '__main__':
  cli.run(main)
