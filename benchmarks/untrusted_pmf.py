"""Accuracy and messages of the untrusted recommender.

  python -m benchmarks.untrusted_pmf --data_dir=DIR --json=untrusted_pmf.json

80/20 splits with seeds 0, 1, .. (--seeds). 'PMF' is the paper's variant with an
epsilon so large that there is no noise. Bytes are those of serialised messages
of a user with the mean number of ratings, at rank 20.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from dpmf_jax.commands import cli
from dpmf_jax.evaluation import metrics
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.untrusted_pmf import communication
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import training_data
from dpmf_jax.systems import build
from dpmf_jax.training import fit

_SEEDS = flags.DEFINE_integer('seeds', 1, 'Seeds 0 .. this - 1.', 1)
_DATASETS = flags.DEFINE_list('datasets', ['ml-100k'], 'Which.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

EPSILONS = (0.1, 1.0, 4.0)
_RANK = 20


def main(argv: Sequence[str]) -> int:
  del argv
  figures: dict[str, Any] = {}
  for name in _DATASETS.value:
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    figures[name] = {'bytes': sent_bytes(ratings), 'rmse': {}}
    for label, size in figures[name]['bytes'].items():
      print(f'{name:8} {label:40} {size}', flush=True)
    for label, system, variant, settings in runs(ratings.num_users):
      errors = [
        held_out(ratings, seed, system, variant, settings)
        for seed in range(_SEEDS.value)
      ]
      rmse, absolute = np.mean(errors, axis=0)
      print(
        f'{name:8} {label:40} RMSE {rmse:.4f} mean |error| {absolute:.4f}',
        flush=True,
      )
      figures[name]['rmse'][label] = errors
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 0


def runs(num_users: int) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
  """What to compare: label, system, variant, settings."""
  ours = 'untrusted_pmf'
  yield 'PMF (paper without noise)', ours, 'paper', {'epsilon': 1e6}
  for epsilon in EPSILONS:
    given = {'epsilon': epsilon}
    yield f'paper, static, {epsilon:g} (claimed)', ours, 'paper', given
    yield (
      f'paper, dynamic, half online, {epsilon:g} (claimed)',
      ours,
      'paper',
      {**given, 'attendance': 'dynamic', 'online': 0.5},
    )
    yield f'sound, {epsilon:g} (proved)', ours, 'sound', given
    yield (
      f'sound, a tenth collude, {epsilon:g} (proved)',
      ours,
      'sound',
      {**given, 'colluders': num_users // 10},
    )
    yield f'objective_pmf sound, {epsilon:g}', 'objective_pmf', 'sound', given


def held_out(
  ratings, seed: int, name: str, variant: str, settings: dict[str, Any]
) -> tuple[float, float]:
  """RMSE and mean absolute error on the held-out part."""
  train, test = random_split(ratings, 0.2, seed=seed)
  entry = SPECS[name]
  preset = {**entry.variants[variant], **settings}
  system = build(name, entry.config(scale=ratings.scale, **preset))
  data = training_data(train)
  state = fit(system, jax.random.key(seed), data)
  model = jax.device_get(system.model(state, data))
  user, item = model.factors
  predicted = model.offset + np.sum(user[test.user] * item[test.item], axis=1)
  error = np.clip(predicted, *ratings.scale) - test.value
  rmse = metrics.rmse(model, test)
  return rmse, float(np.abs(error).mean())


def sent_bytes(ratings) -> dict[str, float]:
  """Bytes up and down of the mean user in a round."""
  made = {}
  for label, variant, masks, settings in (
    ('paper, static', 'paper', 'sent', {}),
    ('paper, dynamic', 'paper', 'sent', {'attendance': 'dynamic'}),
    ('paper, static, seeds', 'paper', 'seed', {}),
    ('sound, masks sent', 'sound', 'sent', {}),
    ('sound, seeds', 'sound', 'seed', {}),
  ):
    entry = SPECS['untrusted_pmf']
    preset = {**entry.variants[variant], 'rank': _RANK, **settings}
    config = entry.config(scale=ratings.scale, epsilon=1.0, **preset)
    sizes = communication(
      config,
      num_items=ratings.num_items,
      ratings_per_user=len(ratings) / ratings.num_users,
      masks=masks,
    )
    made |= {f'{label}: {part}': size for part, size in sizes.items()}
  return made


if __name__ == '__main__':
  cli.run(main)
