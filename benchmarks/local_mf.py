"""Held-out RMSE of local MF, by record and by user, and what is sent.

  python -m benchmarks.local_mf --data_dir=DIR --json=local_mf.json

80/20 splits and noise with seeds 0, 1, 2 (--seeds) on MovieLens-100K; seed 0
on 1M, where only epsilon 4 is run.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from absl import flags

from dpmf_jax.commands import cli
from dpmf_jax.evaluation import metrics
from dpmf_jax.plans.local_mf import LocalMFConfig, traffic
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import training_data
from dpmf_jax.systems.local_mf import local_mf
from dpmf_jax.training import fit

_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds 0 .. this - 1.', 1)
_DATASETS = flags.DEFINE_list('datasets', ['ml-100k', 'ml-1m'], 'Which.')
_EPSILONS = flags.DEFINE_list(
  'epsilons', ['0.1', '0.5', '1', '2', '3', '4', '6', '8'], 'Of a record.'
)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

_USER = {'unit': 'user', 'delta': 1e-5}
_STARS = (1.0, 2.0, 3.0, 4.0, 5.0)


def cases(name: str) -> dict[str, dict[str, Any]]:
  """Settings by label."""
  if name != 'ml-100k':
    return {
      'record, epsilon 4': {'epsilon': 4.0},
      'record, epsilon 4, means only': {'epsilon': 4.0, 'rank': 0},
      'user, epsilon 4': {'epsilon': 4.0, **_USER},
    }
  made = {}
  for epsilon in map(float, _EPSILONS.value):
    label = f'record, epsilon {epsilon:g}'
    made[label] = {'epsilon': epsilon}
    made[f'{label}, means only'] = {'epsilon': epsilon, 'rank': 0}
  for epsilon in (1.0, 4.0):
    label = f'record, epsilon {epsilon:g}'
    made[f'{label}, six-ary'] = {'epsilon': epsilon, 'levels': _STARS}
    made[f'{label}, stochastic ternary'] = {
      'epsilon': epsilon,
      'levels': (1.0, 5.0),
      'rounding': 'stochastic',
    }
  for epsilon in (1.0, 4.0, 8.0, 16.0):
    made[f'user, epsilon {epsilon:g}'] = {'epsilon': epsilon, **_USER}
  return made


def main(argv: Sequence[str]) -> int:
  del argv
  figures = {}
  for name in _DATASETS.value:
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    seeds = range(_SEEDS.value if name == 'ml-100k' else 1)
    splits = []
    for seed in seeds:
      train, test = random_split(ratings, 0.2, seed=seed)
      splits.append((training_data(train), training_data(test).by_user))
    for label, fields in tqdm.tqdm(cases(name).items(), desc=name):
      preset: dict[str, Any] = {'unit': 'rating', **fields}
      preset['relation'] = 'add_remove'
      config = LocalMFConfig(variant='sound', scale=ratings.scale, **preset)
      values = [
        rmse(config, seed, *splits[seed], scale=ratings.scale) for seed in seeds
      ]
      sent = traffic(config, num_items=ratings.num_items)
      figures[f'{name}, {label}'] = [*values, *sent.values()]
      tqdm.tqdm.write(
        f'{name:8} {label:38} {np.mean(values):.4f}  {np.round(values, 4)}  '
        f'{sent["bytes_up"]:.0f} bytes up, {sent["bytes_down"]:.0f} down'
      )
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 0


def rmse(config: LocalMFConfig, seed: int, data, test, *, scale) -> float:
  """On the held-out part."""
  system = local_mf(config)
  state = fit(system, jax.random.key(seed), data)
  model = jax.device_get(system.model(state, data))
  return metrics.rmse(model, test, scale)


if __name__ == '__main__':
  cli.run(main)
