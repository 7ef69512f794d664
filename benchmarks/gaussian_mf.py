"""Accuracy of Gaussian-mechanism MF: the paper's figures, and what is proved.

  python -m benchmarks.gaussian_mf --data_dir=DIR

prints three tables in Markdown:
1. the published training RMSE on all of ML-1M against ours, with the paper's
   claimed epsilon, and held-out RMSE beside it from an 80/20 split;
2. held-out RMSE of the sound variant for proved epsilons, mean of the seeds;
3. the same for the paper's random start (init=unit) against init=bias.
About seven minutes on two cores.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence

import jax
import numpy as np
from absl import app, flags
from tqdm import tqdm

from dpmf_jax import accounting
from dpmf_jax.evaluation import metrics
from dpmf_jax.plans.gaussian_mf import PAPER, GaussianMFConfig
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems.gaussian_mf import gaussian_mf
from dpmf_jax.training import fit

_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the data sets are.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds of table 2, from 0.')

# eps_i, J, and the training RMSE read off the paper's figure 4 (ML-1M).
PUBLISHED = ((0.15, 900, 0.838), (0.2, 1172, 0.807), (0.3, 1322, 0.765))
EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)


def rmse(config, train, test, seed) -> float:
  """RMSE on `test` of a model trained on `train`; clipped to the scale."""
  mesh = device_mesh()
  data = training_data(train, mesh=mesh)
  rows = data if test is train else training_data(test, mesh=mesh)
  system = gaussian_mf(config)
  state = fit(system, jax.random.key(seed), data)
  # The paper's RMSE is that of predictions as they are.
  scale = None if config.variant == 'paper' else train.scale
  return metrics.rmse(system.model(state, data), rows.by_user, scale)


def paper_table(ratings) -> list[str]:
  """Published against reproduced, on all ratings as in the paper."""
  lines = [
    '| eps_i | J | claimed eps | paper, training | ours, training | ours, '
    'held out |',
    '|---|---|---|---|---|---|',
  ]
  train, test = random_split(ratings, 0.2, seed=0)
  for epsilon, steps, published in tqdm(PUBLISHED, desc='paper'):
    config = GaussianMFConfig(
      **{**PAPER, 'steps': steps},
      scale=ratings.scale,
      delta=1e-5,
      epsilon_per_step=epsilon,
    )
    claimed = accounting.epsilon(gaussian_mf(config).guarantee, 1e-5)
    lines.append(
      f'| {epsilon} | {steps} | {claimed:.1f} | {published:.3f} | '
      f'{rmse(config, ratings, ratings, 0):.3f} | '
      f'{rmse(config, train, test, 0):.3f} |'
    )
  return lines


def sound_table(name, ratings, seeds, **settings) -> list[str]:
  """Held-out RMSE for proved epsilons, mean over seeds."""
  found = {epsilon: [] for epsilon in EPSILONS}
  lines = []
  for seed in tqdm(range(seeds), desc=name):
    train, test = random_split(ratings, 0.2, seed=seed)
    lines.append(metrics.baselines(train, test))
    for epsilon in EPSILONS:
      config = GaussianMFConfig(
        variant='sound',
        relation='add_remove',
        scale=ratings.scale,
        delta=1e-6,
        epsilon=epsilon,
        **settings,
      )
      found[epsilon].append(rmse(config, train, test, seed))
  cells = [f'{np.mean(values):.3f}' for values in found.values()]
  names = ('user_mean', 'item_mean', 'bias')
  cells += [f'{np.mean([b[key] for b in lines]):.3f}' for key in names]
  return [f'| {name} | {" | ".join(cells)} |']


def main(argv: Sequence[str]) -> None:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  load = lambda name: catalog.load(name, data_dir=_DATA_DIR.value)
  small, large = load('ml-100k'), load('ml-1m')
  commit = subprocess.run(
    ['git', 'rev-parse', '--short', 'HEAD'],
    capture_output=True,
    text=True,
    check=False,
  ).stdout.strip()
  head = [f'epsilon {epsilon:g}' for epsilon in EPSILONS]
  head += ['user mean', 'item mean', 'bias (not private)']
  titles = [
    f'| held-out RMSE | {" | ".join(head)} |',
    '|---' * (len(head) + 1) + '|',
  ]
  seeds = _SEEDS.value
  lines = [
    f'{os.cpu_count()} cores, {platform.machine()}, jax {jax.__version__}, '
    f'commit {commit or "none"}, seeds 0..{seeds - 1}',
    '',
    *paper_table(large),
    '',
    *titles,
    *sound_table('ML-100K', small, seeds),
    *sound_table('ML-1M', large, seeds),
    *sound_table("ML-100K, the paper's start", small, seeds, init='unit'),
  ]
  print('\n'.join(lines))


if __name__ == '__main__':
  app.run(main)
