"""Held-out RMSE of objective perturbation, personalised and not.

  python -m benchmarks.objective_pmf --data_dir=DIR --json=objective_pmf.json

80/20 splits and specifications with seeds 0, 1, 2 (--seeds). `paper` is as
published: k1 = 50 steps on MovieLens-100K and 450 on 1M, k2 = 50.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from absl import flags

from dpmf_jax import metrics
from dpmf_jax.data import catalog
from dpmf_jax.data.specification import from_fractions
from dpmf_jax.data.splits import random_split
from dpmf_jax.sharding import device_mesh, training_data
from dpmf_jax.systems import SYSTEMS
from dpmf_jax.training import fit
from launch import cli

_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds 0 .. this - 1.', 1)
_DATASETS = flags.DEFINE_list('datasets', ['ml-100k', 'ml-1m'], 'Which.')
_SWEEPS = flags.DEFINE_bool('sweeps', True, 'RMSE against f_c, eps_m and t.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

PMF_STEPS = {'ml-100k': 50, 'ml-1m': 450}
HIGHEST = 1.0  # of the specification
_PAPER_SAMPLING = 'paper, sampling, t = mean, once'


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  figures = {}
  for name in _DATASETS.value:
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    steps = PMF_STEPS.get(name, 50)
    rows = table(ratings, steps)
    for label, values in rows.items():
      print(f'{name:8} {label:40} {np.mean(values):.4f}  {np.round(values, 4)}')
    figures[name] = rows
    if _SWEEPS.value:
      for label, value in sweeps(ratings, steps).items():
        print(f'{name:8} {label:40} {value:.4f}')
        figures[name][label] = [value]
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 0


def systems(steps: int, mean: float) -> dict[str, Callable[..., Any]]:
  """What to compare, by label; `mean` is the specification's mean epsilon."""

  def make(name, variant, **settings):
    entry = SYSTEMS[name]
    preset = {**entry.variants[variant], **settings}
    return lambda scale: entry.build(entry.config(scale=scale, **preset))

  paper = {'pmf_steps': steps, 'noise_steps': 50}
  made = {}
  for noise in ('once', 'every_step'):
    made[f'paper, uniform 0.1, {noise}'] = make(
      'objective_pmf', 'paper', epsilon=0.1, noise=noise, **paper
    )
    made[f'paper, sampling, t = mean, {noise}'] = make(
      'personalized_pmf', 'paper', epsilon=mean, noise=noise, **paper
    )
  made['sound, uniform 0.1'] = make('objective_pmf', 'sound', epsilon=0.1)
  made['sound, uniform 1'] = make('objective_pmf', 'sound', epsilon=1.0)
  made['sound, weights'] = make(
    'personalized_pmf', 'sound', epsilon=HIGHEST, method='weights'
  )
  for label, t in (('mean', mean), ('0.7', 0.7), ('max', HIGHEST)):
    made[f'sound, sampling, t = {label}'] = make(
      'personalized_pmf', 'sound', epsilon=t, method='sampling'
    )
  return made


def rmse(make, ratings, seed: int, **fractions: float) -> float:
  """On the held-out part."""
  specified = from_fractions(ratings, seed=seed, **fractions)
  train, test = random_split(specified, 0.2, seed=seed)
  data = training_data(train, mesh=device_mesh())
  system = make(ratings.scale)
  state = fit(system, jax.random.key(seed), data)
  model = jax.device_get(system.model(state, data))
  return metrics.rmse(training_data(test).by_user, model, ratings.scale)


def mean_epsilon(**fractions: float) -> float:
  """Of the specification, from its own numbers: not from any rating."""
  c = fractions.get('conservative', 0.54)
  m, middle = 0.37, fractions.get('middle', 0.2)
  groups = (c, m, 1 - c - m)
  means = ((0.1 + middle) / 2, (middle + HIGHEST) / 2, HIGHEST)
  return float(np.dot(groups, means))


def table(ratings, steps: int) -> dict[str, list[float]]:
  rows = {}
  made = systems(steps, mean_epsilon())
  for label, make in tqdm.tqdm(made.items(), desc=ratings.name):
    began = time.perf_counter()
    rows[label] = [rmse(make, ratings, s) for s in range(_SEEDS.value)]
    spent = (time.perf_counter() - began) / _SEEDS.value
    rows[f'{label}: seconds a run'] = [spent]
  return rows


def sweeps(ratings, steps: int) -> dict[str, float]:
  """One seed each, for the paper's sampling (noise once) and for weights."""
  rows = {}
  cases = [
    *({'conservative': f} for f in (0.1, 0.3, 0.5, 0.6)),
    *({'middle': m} for m in (0.1, 0.3, 0.5, 0.8)),
  ]
  for fractions in tqdm.tqdm(cases, desc='f_c and eps_m'):
    made = systems(steps, mean_epsilon(**fractions))
    for label in (_PAPER_SAMPLING, 'sound, weights'):
      value = rmse(made[label], ratings, 0, **fractions)
      rows[f'{label}, {fractions}'] = value
  for t in tqdm.tqdm((0.2, 0.4, 0.7, 1.0), desc='t'):
    made = systems(steps, t)
    for label in (
      'paper, sampling, t = mean, once',
      'sound, sampling, t = mean',
    ):
      rows[f'{label}'.replace('mean', f'{t:g}')] = rmse(made[label], ratings, 0)
  return rows


if __name__ == '__main__':
  cli.run(main)
