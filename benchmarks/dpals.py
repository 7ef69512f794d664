"""Held-out RMSE of user-level private ALS, and of what it is compared with.

  python -m benchmarks.dpals --data_dir=DIR --json=dpals.json

80/20 splits with seeds 0, 1, 2 (--seeds). Beside it: `als` without privacy,
the user mean, and means and biases without noise. Rank and all other settings
are those that public facts choose.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Sequence

import jax
import numpy as np
import tqdm
from absl import flags

from dpmf_jax import metrics
from dpmf_jax.data import catalog
from dpmf_jax.data.splits import random_split
from dpmf_jax.sharding import device_mesh, training_data
from dpmf_jax.systems import SYSTEMS
from dpmf_jax.systems.user_choice import user_level_settings
from dpmf_jax.training import fit
from launch import cli

_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds 0 .. this - 1.', 1)
_DATASETS = flags.DEFINE_list('datasets', ['ml-100k', 'ml-1m'], 'Which.')
_EPSILONS = flags.DEFINE_list(
  'epsilons', ['0.1', '0.5', '1', '2', '5', '10', '20'], 'At delta 1e-5.'
)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

DELTA = 1e-5


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  figures = {}
  for name in _DATASETS.value:
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    figures[name] = table(ratings)
    for label, values in figures[name].items():
      print(f'{name:8} {label:32} {np.mean(values):.4f}  {np.round(values, 4)}')
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 0


def systems(ratings) -> dict:
  """What to compare, by label."""
  made = {}
  for epsilon in map(float, _EPSILONS.value):
    name, settings = user_level_settings(
      num_users=ratings.num_users,
      num_items=ratings.num_items,
      scale=ratings.scale,
      epsilon=epsilon,
      delta=DELTA,
    )
    entry = SYSTEMS[name]
    label = f'{name}, epsilon {epsilon:g}, rank {settings["rank"]}'
    made[label] = entry.build(entry.config(**settings))
  entry = SYSTEMS['als']
  made['als (not private)'] = entry.build(entry.config(scale=ratings.scale))
  return made


def table(ratings) -> dict[str, list[float]]:
  """RMSE by label, one for each seed, and seconds of a run."""
  rows: dict[str, list[float]] = {}
  made = systems(ratings)
  for seed in range(_SEEDS.value):
    train, test = random_split(ratings, 0.2, seed=seed)
    data = training_data(train, mesh=device_mesh())
    test_rows = training_data(test).by_user
    for label, system in tqdm.tqdm(made.items(), desc=f'seed {seed}'):
      began = time.perf_counter()
      state = fit(system, jax.random.key(seed), data)
      model = jax.device_get(system.model(state, data))
      error = metrics.rmse(test_rows, model, ratings.scale)
      rows.setdefault(label, []).append(error)
      spent = time.perf_counter() - began
      tqdm.tqdm.write(f'seed {seed}, {label}: {error:.4f} in {spent:.1f} s')
      rows.setdefault(f'{label}: seconds', []).append(spent)
    for label, error in metrics.baselines(train, test).items():
      rows.setdefault(f'{label} (not private)', []).append(error)
  return rows


if __name__ == '__main__':
  cli.run(main)
