"""NDCG@10 of private lists, beside popularity and what they are to reach.

  python -m benchmarks.ranking --data_dir=DIR --json=ranking.json

80/20 splits and noise with seeds 3, 4, 5 (--seeds): 0, 1 and 2 are those that
settings were chosen on. A list has the items that a user has no training
rating of; relevant are held-out ratings in the upper third of the scale (4 and
5 of 5); NDCG@10 is over the whole catalogue, the mean over users with relevant
items. One interaction is protected at delta 1e-6, or one user at delta 1e-5.
Beside each row is noisy popularity at the same budget (rank 0). Popularity
counts training ratings; it, `ease` and `als` are not private.

Two lines after each data set say whether lists are anywhere below noisy
popularity by more than noise, and whether more epsilon is anywhere worse. If
so, the exit code is 1; targets that are missed are only printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from absl import flags

from benchmarks.splits import split_datasets, write
from dpmf_jax.commands import cli
from dpmf_jax.evaluation.popular import popularity, relevant_from
from dpmf_jax.evaluation.ranking import ranking_metrics
from dpmf_jax.plans.ranking_mf import RankingMFConfig, resolved
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems import made
from dpmf_jax.systems.ranking_mf import ranking_mf
from dpmf_jax.training import fit
from dpmf_jax.types import Release, Unit

_BASELINES = flags.DEFINE_bool(
  'baselines', True, 'Whether to fit models that are not private, too.'
)

DELTA: dict[Unit, float] = {'rating': 1e-6, 'user': 1e-5}
# What to reach, by data set, unit and epsilon.
TARGETS: dict[str, dict[Unit, dict[float, float]]] = {
  'ml-100k': {
    'rating': {0.1: 0.175, 1.0: 0.292, 5.0: 0.358},
    'user': {1.0: 0.245, 5.0: 0.312, 20.0: 0.360},
  },
  'ml-1m': {
    'rating': {0.1: 0.228, 1.0: 0.337, 5.0: 0.369},
    'user': {1.0: 0.285, 5.0: 0.345, 20.0: 0.362},
  },
}
# For other data sets.
_EPSILONS: dict[Unit, tuple[float, ...]] = {
  'rating': (0.1, 1.0, 5.0),
  'user': (1.0, 5.0, 20.0),
}
# What the best model that is not private is to reach.
_NOT_PRIVATE = {'ml-100k': 0.39, 'ml-1m': 0.385}
_DATASETS = [
  'ml-100k', 'ml-1m', 'netflix-slice', 'anime-slice', 'jester-1',
  'synthetic-small', 'synthetic-100k',
]  # fmt: skip
# What means of seeds may be below others by.
_LESS = 0.003


def main(argv: Sequence[str]) -> int:
  del argv
  figures: dict[str, dict[str, Any]] = {}
  violated = False
  flags.FLAGS.set_default('datasets', _DATASETS)  # where none are given
  for name, _, splits in split_datasets():
    rows = figures[name] = {}
    for label, values, target in rows_of(name, splits):
      rows[label] = {'ndcg@10': values, 'target': target}
      tqdm.tqdm.write(line(name, label, values, target))
      write(figures)
    for statement, found in verdicts(
      {label: row['ndcg@10'] for label, row in rows.items()}
    ).items():
      violated |= bool(found)
      said = f'VIOLATED: {"; ".join(found)}' if found else 'holds'
      tqdm.tqdm.write(f'{name}  {statement}: {said}')
  return int(violated)


def verdicts(rows: dict[str, list[float]]) -> dict[str, list[str]]:
  """What must hold -> the rows for which it does not."""
  below, worse = [], []
  for unit in DELTA:
    before = None
    for label, values in rows.items():
      noisy = rows.get(_noisy(label))
      if not label.startswith(f'one {unit},') or noisy is None:
        continue
      more = np.subtract(values, noisy)
      noise = (
        2 * np.std(more, ddof=1) / len(more) ** 0.5 if more[1:].size else 0
      )
      if np.mean(more) < -(_LESS + noise):
        below.append(f'{label} by {-np.mean(more):.4f}')
      mean = float(np.mean(values))
      if before is not None and mean < before - _LESS:
        worse.append(f'{label} by {before - mean:.4f}')
      before = mean
  return {
    'never below noisy popularity by more than noise': below,
    f'more epsilon is never worse by more than {_LESS}': worse,
  }


def rows_of(
  name: str, splits: dict[int, tuple[Ratings, Ratings]]
) -> Iterator[tuple[str, list[float], float | None]]:
  """(label, NDCG@10 of each split, target or None)."""
  pairs = splits.values()
  scored = lambda model: [
    ndcg(model(train), train, test) for train, test in pairs
  ]
  yield 'popularity, not private', scored(popularity), None
  if _BASELINES.value:
    target = _NOT_PRIVATE.get(name)
    yield 'ease, not private', scored(baseline('ease')), target
    implicit = baseline('als', feedback='implicit')
    yield 'als implicit, not private', scored(implicit), None
  for unit, delta in DELTA.items():
    targets = TARGETS.get(name, {}).get(unit, {})
    for epsilon in targets or _EPSILONS[unit]:
      for rank in (None, 0):
        values = [
          ndcg(trained(train, seed, unit, epsilon, delta, rank), train, test)
          for seed, (train, test) in tqdm.tqdm(splits.items(), leave=False)
        ]
        label = f'one {unit}, epsilon {epsilon:g}'
        if rank is None:
          yield label, values, targets.get(epsilon)
        else:
          yield _noisy(label), values, None


def _noisy(label: str) -> str:
  """The label of noisy popularity beside `label`."""
  return f'{label}, noisy popularity'


def line(
  name: str, label: str, values: list[float], target: float | None
) -> str:
  """A row of the table."""
  said = (
    f'{name}  {label:44}  {np.mean(values):.4f}  (+-{np.ptp(values) / 2:.4f})'
  )
  if target is not None:
    said += f'  target {target:.3f}'
    said += '' if np.mean(values) >= target else ' MISSED'
  return said


def trained(
  train: Ratings,
  seed: int,
  unit: Unit,
  epsilon: float,
  delta: float,
  rank: int | None,
) -> Release:
  """Both sides of a private model."""
  config = RankingMFConfig(
    unit=unit,
    relation='add_remove',
    scale=train.scale,
    epsilon=epsilon,
    delta=delta,
    rank=rank,
  )
  system = ranking_mf(resolved(config, train.num_users, train.num_items))
  data = training_data(train)
  return system.model(fit(system, jax.random.key(seed), data), data)


def baseline(name: str, **settings: Any) -> Callable[[Ratings], Release]:
  """train -> both sides of a system that is not private."""

  def model(train: Ratings) -> Release:
    system = made(name, 'none', scale=train.scale, **settings)
    data = training_data(train)
    return system.model(fit(system, jax.random.key(0), data), data)

  return model


def ndcg(model: Release, train: Ratings, test: Ratings) -> float:
  found = ranking_metrics(
    model, train, test, 10, threshold=relevant_from(train)
  )
  return found['ndcg@10']


if __name__ == '__main__':
  cli.run(main)
