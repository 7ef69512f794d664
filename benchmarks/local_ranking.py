"""Lists without a trusted curator, beside SD-BPRMF and popularity.

  python -m benchmarks.local_ranking --data_dir=DIR --json=local_ranking.json

Two tasks, seeds 3, 4, 5 (--seeds) for splits and noise; 0, 1 and 2 are those
that settings were chosen on. AUC is that of the paper: one rating of each user
is left out, and compared with all items that the user did not rate. NDCG@10 is
that of `benchmarks.ranking`: 80/20 splits, relevant are held-out ratings in the
upper part of the scale. Popularity counts training ratings and is not private;
that of the answers (rank 0) is beside each row. SD-BPRMF is as published, with
the signs of gradients from the true bits, which say what the bits hide, or from
the perturbed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from absl import flags

from benchmarks.splits import Splits, split_datasets, write
from dpmf_jax import plans
from dpmf_jax.commands import cli
from dpmf_jax.evaluation.popular import popularity, relevant_from
from dpmf_jax.evaluation.ranking import ranking_metrics
from dpmf_jax.ratings.splits import hold_out_per_user
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import Release

_EPSILONS = flags.DEFINE_list('epsilons', ['1', '4', '8'], 'Of a record.')
_PAPER = flags.DEFINE_bool('paper', True, 'Whether to run SD-BPRMF, too.')

_CLAIMED = {'ml-100k': 0.880}  # AUC of SD-BPRMF, in the paper
Trained = Callable[[Ratings, int], Release]  # of training ratings and a seed


def main(argv: Sequence[str]) -> int:
  del argv
  figures: dict[str, dict[str, Any]] = {}
  for name, ratings, splits in split_datasets():
    rows = figures[name] = {}
    for label, trained in rows_of():
      row = rows[label] = measured(ratings, splits, trained)
      text = '  '.join(
        f'{metric} {np.mean(values):.4f} (+-{np.ptp(values) / 2:.4f})'
        for metric, values in row.items()
      )
      tqdm.tqdm.write(f'{name}  {label:44}  {text}')
      write(figures)
    if name in _CLAIMED:
      tqdm.tqdm.write(f'{name}  SD-BPRMF, claimed: auc {_CLAIMED[name]:.3f}')
  return 0


def rows_of() -> Iterator[tuple[str, Trained]]:
  """(label, how a model is made)."""
  yield 'popularity, not private', lambda train, seed: popularity(train)
  for epsilon in map(float, _EPSILONS.value):
    label = f'one record, epsilon {epsilon:g}'
    settings = {'epsilon': epsilon}
    yield label, model_of('local_ranking', 'sound', **settings)
    rank_0 = model_of('local_ranking', 'sound', **settings, rank=0)
    yield f'{label}, popularity of the answers', rank_0
  for sign in ('true', 'perturbed') if _PAPER.value else ():
    label = f'SD-BPRMF, sign from {sign} bits, eps_I 4'
    yield (
      label,
      model_of('sdbpr', 'paper', epsilon_instant=4.0, gradient_sign=sign),
    )


def model_of(name: str, variant: str, **settings: Any) -> Trained:
  """Both sides of a model of that system, by training ratings and seed."""

  def trained(train: Ratings, seed: int) -> Release:
    config = plans.config_of(name, variant, scale=train.scale, **settings)
    system, data = build(name, config), training_data(train)
    state = fit(system, jax.random.key(seed), data)
    return jax.device_get(system.model(state, data))

  return trained


def measured(
  ratings: Ratings, splits: Splits, trained: Trained
) -> dict[str, list[float]]:
  """AUC and NDCG@10, a number for each seed."""
  liked = relevant_from(ratings)
  found: dict[str, list[float]] = {'auc': [], 'ndcg@10': []}
  for seed, split in tqdm.tqdm(splits.items(), leave=False):
    for metric, (train, test), threshold in (
      ('auc', hold_out_per_user(ratings, 1, seed=seed), None),
      ('ndcg@10', split, liked),
    ):
      model = trained(train, seed)
      row = ranking_metrics(model, train, test, 10, threshold=threshold)
      found[metric].append(row[metric])
  return found


if __name__ == '__main__':
  cli.run(main)
