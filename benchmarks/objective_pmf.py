"""Held-out errors of objective perturbation, personalised and not.

  python -m benchmarks.objective_pmf --data_dir=DIR --json=objective_pmf.json \\
    --plots=pictures

80/20 splits and specifications with seeds 0, 1, 2 (--seeds). `paper` is as
published: k1 = 50 steps on MovieLens-100K and 450 on 1M, k2 = 50. CDF(x) is the
share of held-out ratings whose prediction is off by at most x.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import tqdm
from absl import flags

from dpmf_jax import accounting
from dpmf_jax.commands import cli
from dpmf_jax.evaluation import metrics, plots
from dpmf_jax.plans import SPECS
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.specification import asked_by_fractions, from_fractions
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import build
from dpmf_jax.training import fit

_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds 0 .. this - 1.', 1)
_ONLY = flags.DEFINE_string('only', '', 'Only rows with this in their label.')
_DATASETS = flags.DEFINE_list('datasets', ['ml-100k', 'ml-1m'], 'Which.')
_TABLE = flags.DEFINE_bool('table', True, 'All systems at the defaults.')
_SWEEPS = flags.DEFINE_bool('sweeps', True, 'Against f_c, eps_m and t.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')
_PLOTS = flags.DEFINE_string('plots', None, 'Folder for pictures.')

PMF_STEPS = {'ml-100k': 50, 'ml-1m': 450}
HIGHEST = 1.0  # of the specification
POINTS = (1.0, 1.5, 2.0)  # at which the paper shows the CDF against t
THRESHOLDS = (0.2, 0.4, 0.7, 1.0)
FRACTIONS = {
  'conservative': (0.1, 0.3, 0.5, 0.6),  # the paper's f_c
  'middle': (0.1, 0.3, 0.5, 0.8),  # the paper's eps_m
}
_PAPER_SAMPLING = 'paper, sampling, t = mean, once'
_SOUND_SAMPLING = 'sound, sampling, t = mean'
_WEIGHTS = 'sound, weights'


class Errors(NamedTuple):
  """Of held-out ratings: the RMSE, and the CDF on `metrics.error_grid`."""

  rmse: float
  cdf: np.ndarray

  def at(self, scale, point: float) -> float:
    """The share of ratings with an error of at most `point`, on the grid."""
    grid = metrics.error_grid(scale)
    return float(self.cdf[np.flatnonzero(grid <= point)[-1]])


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  figures = {}
  for name in _DATASETS.value:
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    steps = PMF_STEPS.get(name, 50)
    found = figures[name] = {}
    if _TABLE.value:
      for label, errors in table(ratings, steps).items():
        found[label] = _shown(name, label, errors, ratings.scale)
    if _SWEEPS.value:
      for label, errors in sweeps(ratings, steps).items():
        found[label] = _shown(name, label, [errors], ratings.scale)
    if _PLOTS.value:
      _pictures(pathlib.Path(_PLOTS.value), name, found)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 0


def _shown(name, label, errors: list[Errors], scale) -> dict[str, Any]:
  """What goes into the JSON file, printed on the way."""
  rmses = [each.rmse for each in errors]
  at = [np.mean([each.at(scale, x) for each in errors]) for x in POINTS]
  print(
    f'{name:8} {label:44} {np.mean(rmses):.4f}  CDF at 1, 1.5, 2: '
    f'{at[0]:.3f} {at[1]:.3f} {at[2]:.3f}  {np.round(rmses, 4)}',
    flush=True,
  )
  return {
    'rmse': rmses,
    'errors': metrics.error_grid(scale).tolist(),
    'cdf': np.mean([each.cdf for each in errors], axis=0).tolist(),
    'cdf_at': dict(zip(map(str, POINTS), map(float, at), strict=True)),
  }


def _pictures(folder: pathlib.Path, name: str, found: dict[str, Any]) -> None:
  """The paper's figures, of what there is to show."""
  folder.mkdir(parents=True, exist_ok=True)
  grid = next(iter(found.values()))['errors']
  if _TABLE.value:
    plots.error_cdf(
      folder / f'{name}_cdf.png',
      grid,
      {label: found[label]['cdf'] for label in found if '; ' not in label},
      title=f'{name}: errors of held-out predictions',
    )
  if not _SWEEPS.value:
    return
  for setting, values in FRACTIONS.items():
    plots.lines(
      folder / f'{name}_rmse_{setting}.png',
      values,
      {
        base: [found[_case(base, **{setting: v})]['rmse'][0] for v in values]
        for base in (_PAPER_SAMPLING, _WEIGHTS)
      },
      x_label={
        'conservative': 'f_c, share of conservative ratings',
        'middle': 'eps_m, smallest epsilon of moderate ratings',
      }[setting],
      y_label='held-out RMSE',
      title=name,
    )
  for base in (_PAPER_SAMPLING, _SOUND_SAMPLING):
    kind = base.split(',')[0]
    cases = {t: found[_case(base, t=t)] for t in THRESHOLDS}
    plots.error_cdf(
      folder / f'{name}_cdf_t_{kind}.png',
      grid,
      {f't = {t:g}': case['cdf'] for t, case in cases.items()},
      title=f'{name}: {kind}, sampling',
    )
    plots.lines(
      folder / f'{name}_cdf_at_{kind}.png',
      THRESHOLDS,
      {
        f'CDF({x:g})': [case['cdf_at'][str(x)] for case in cases.values()]
        for x in POINTS
      },
      x_label='t, the threshold of sampling',
      y_label='share of ratings within that error',
      title=f'{name}: {kind}, sampling',
    )


def systems(steps: int, mean: float) -> dict[str, Callable[..., Any]]:
  """What to compare, by label; `mean` is t of the rows that name it."""

  def make(name, variant, **settings):
    entry = SPECS[name]
    preset = {**entry.variants[variant], **settings}
    return lambda scale: build(name, entry.config(scale=scale, **preset))

  paper = {'pmf_steps': steps, 'noise_steps': 50}
  made = {}
  for noise in ('once', 'every_step'):
    made[f'paper, uniform 0.1, {noise}'] = make(
      'objective_pmf', 'paper', epsilon=0.1, noise=noise, **paper
    )
    made[f'paper, sampling, t = mean, {noise}'] = make(
      'personalized_pmf', 'paper', epsilon=mean, noise=noise, **paper
    )
  best = threshold('best', method='sampling')
  made[f'paper, sampling, t = best ({best:.3g}), once'] = make(
    'personalized_pmf', 'paper', epsilon=best, **paper
  )
  made['sound, uniform 0.1'] = make('objective_pmf', 'sound', epsilon=0.1)
  made['sound, uniform 1'] = make('objective_pmf', 'sound', epsilon=1.0)
  for epsilon in (0.1, 1.0):
    made[f'sound, Huber loss, uniform {epsilon:g}'] = make(
      'objective_pmf', 'sound', epsilon=epsilon, loss='huber'
    )
  for epsilon in (1.0, 10.0):
    made[f'sound, learned features, uniform {epsilon:g}'] = make(
      'objective_pmf',
      'sound',
      epsilon=epsilon,
      delta=1e-6,
      feature_share=0.3,
      rank=3,
    )
  made[_WEIGHTS] = make(
    'personalized_pmf', 'sound', epsilon=HIGHEST, method='weights'
  )
  for label, t in (
    ('mean', mean),
    ('0.7', 0.7),
    (f'best ({best:.3g})', best),
    ('max', HIGHEST),
  ):
    made[f'sound, sampling, t = {label}'] = make(
      'personalized_pmf', 'sound', epsilon=t, method='sampling'
    )
  return made


def threshold(
  rule: Literal['mean', 'max', 'best'],
  method: Literal['weights', 'sampling'],
  **fractions: float,
) -> float:
  """Of the specification, from its own numbers: not from any rating."""
  asked = asked_by_fractions(**fractions)
  return accounting.personal_threshold(
    asked.epsilon, rule, asked.share, method=method
  )


def held_out(make, ratings, seed: int, **fractions: float) -> Errors:
  """The errors on the held-out part."""
  specified = from_fractions(ratings, seed=seed, **fractions)
  train, test = random_split(specified, 0.2, seed=seed)
  data = training_data(train, mesh=device_mesh())
  system = make(ratings.scale)
  state = fit(system, jax.random.key(seed), data)
  model = jax.device_get(system.model(state, data))
  rows = training_data(test).by_user
  grid = metrics.error_grid(ratings.scale)
  return Errors(
    metrics.rmse(model, rows, ratings.scale),
    metrics.error_cdf(rows, model, grid, ratings.scale),
  )


def table(ratings, steps: int) -> dict[str, list[Errors]]:
  """All systems at the published specification, by label."""
  rows = {}
  made = systems(steps, threshold('mean', method='sampling'))
  for label, make in tqdm.tqdm(
    [row for row in made.items() if _ONLY.value in row[0]], desc=ratings.name
  ):
    began = time.perf_counter()
    rows[label] = [held_out(make, ratings, s) for s in range(_SEEDS.value)]
    spent = (time.perf_counter() - began) / _SEEDS.value
    tqdm.tqdm.write(f'{label}: {spent:.1f} s a run')
  return rows


def sweeps(ratings, steps: int) -> dict[str, Errors]:
  """One seed each, for the paper's sampling (noise once) and for ours."""
  rows = {}
  cases = [{name: v} for name, values in FRACTIONS.items() for v in values]
  for fractions in tqdm.tqdm(cases, desc='f_c and eps_m'):
    made = systems(steps, threshold('mean', method='sampling', **fractions))
    for label in (_PAPER_SAMPLING, _WEIGHTS):
      rows[_case(label, **fractions)] = held_out(
        made[label], ratings, 0, **fractions
      )
  for t in tqdm.tqdm(THRESHOLDS, desc='t'):
    made = systems(steps, t)
    for label in (_PAPER_SAMPLING, _SOUND_SAMPLING):
      rows[_case(label, t=t)] = held_out(made[label], ratings, 0)
  return rows


def _case(label: str, **setting: float) -> str:
  """The label of a run of a sweep; those of `table` have no semicolon."""
  ((name, value),) = setting.items()
  if name == 't':
    return f'{label.replace("mean", f"{value:g}")}; seed 0'
  return f'{label}; {name} {value:g}'


if __name__ == '__main__':
  cli.run(main)
