"""Held-out RMSE of noisy power MF, with what `choice` says.

  python -m benchmarks.power_mf --data_dir=DIR --json=power_mf.json

80/20 splits and noise with seeds 0, 1, 2 (--seeds), delta 1e-6. Prints, for
each data set and epsilon, the rank that the rule takes, the mean and all
seeds, the same for item means alone (rank 0), and the seconds of a run. The
user mean, which needs no other user, is beside them.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import flags

from dpmf_jax import metrics
from dpmf_jax.data import catalog
from dpmf_jax.data.splits import random_split
from dpmf_jax.sharding import device_mesh, training_data
from dpmf_jax.systems import SYSTEMS
from dpmf_jax.systems.choice import choice
from dpmf_jax.training import fit
from launch import cli

_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds 0 .. this - 1.', 1)
_DATASETS = flags.DEFINE_list('datasets', ['ml-100k', 'ml-1m'], 'Which.')
_EPSILONS = flags.DEFINE_list(
  'epsilons', ['0.1', '0.5', '1', '2', '5', '10'], 'Which.'
)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

DELTA = 1e-6


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  figures = []
  for name in _DATASETS.value:
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    splits = [random_split(ratings, 0.2, seed=s) for s in range(_SEEDS.value)]
    alone = [metrics.baselines(*split)['user_mean'] for split in splits]
    print(f'{name}: user mean {np.mean(alone):.4f}')
    for epsilon in map(float, _EPSILONS.value):
      system, settings = choice(
        'rating',
        num_users=ratings.num_users,
        num_items=ratings.num_items,
        epsilon=epsilon,
        delta=DELTA,
        scale=ratings.scale,
      )
      for label, given in (
        ('choice', settings),
        ('means alone', {**settings, 'rank': 0}),
      ):
        began = time.perf_counter()
        found = [
          rmse(system, given, epsilon, *split, seed)
          for seed, split in enumerate(splits)
        ]
        row = {
          'dataset': name,
          'epsilon': epsilon,
          'what': label,
          'rank': given['rank'],
          'rounds': given['rounds'],
          'mean': float(np.mean(found)),
          'seeds': found,
          'seconds a run': (time.perf_counter() - began) / len(splits),
        }
        figures.append(row)
        print(
          f'{name:8} {epsilon:5g} {label:12} rank {given["rank"]:2} '
          f'{row["mean"]:.4f} {np.round(found, 4)} '
          f'{row["seconds a run"]:.1f} s',
          flush=True,
        )
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 0


def rmse(name, settings, epsilon, train, test, seed: int) -> float:
  """On the held-out part, clipped to the scale."""
  entry = SYSTEMS[name]
  config = entry.config(
    scale=train.scale, epsilon=epsilon, delta=DELTA, **settings
  )
  data = training_data(train, mesh=device_mesh())
  system = entry.build(config)
  state = fit(system, jax.random.key(seed), data)
  model = jax.device_get(jax.jit(system.model)(state, data))
  return metrics.rmse(training_data(test).by_user, model, train.scale)


if __name__ == '__main__':
  cli.run(main)
