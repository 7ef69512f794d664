"""What metrics.json has of a run.

Privacy: computed from ratings without noise, for the curator alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from dpmf_jax.evaluation import metrics, popular, ranking
from dpmf_jax.ratings.priors import Matched
from dpmf_jax.ratings.specification import AskedEpsilons, summary
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, Rows, training_data
from dpmf_jax.runs.choosing import Chosen
from dpmf_jax.runs.recording import Recorder
from dpmf_jax.systems.public import public_columns_used
from dpmf_jax.types import Release

# The length of lists, where none is asked for.
_LISTED = 10
# What a certificate says of noise that popularity is to have, too.
_BUDGET = ('system', 'unit', 'epsilon', 'delta')


def facts(
  chosen: Chosen, recorder: Recorder, train: Ratings, test: Ratings | None
) -> dict[str, Any]:
  """Of the run itself."""
  found = {
    'note': 'computed from the ratings without noise: not covered by the '
    'certificate, for the curator only',
    'system': chosen.name,
    'variant': chosen.variant,
    'task': chosen.task,
    'steps': chosen.system.steps,
    'num_train': len(train),
    'num_test': 0 if test is None else len(test),
    'curve': recorder.curve,
  }
  own = chosen.system.personal
  if own and train.epsilon is not None:
    found['accounted_epsilons'] = _spread(own.accounted(train.epsilon))
  if chosen.spec and chosen.spec.traffic:
    # Bytes of the mean client in a round.
    found['communication'] = chosen.spec.traffic(
      chosen.config,
      num_users=train.num_users,
      num_items=train.num_items,
      num_ratings=len(train),
    )
  return found


def matched(public: Matched, train: Ratings, model: Release) -> dict[str, Any]:
  """How much public ratings have to do with those that were trained on."""
  return {
    'items': float(np.mean(public.place >= 0)),
    'ratings': float(np.mean(public.place[train.item] >= 0)),
    'by': public.by,
    'used': public_columns_used(model, public),
  }


def accuracy(
  recorder: Recorder,
  rows: Rows,
  test_rows: Rows | None,
  train: Ratings,
  test: Ratings | None,
) -> dict[str, Any]:
  """Of errors of predicted ratings."""
  curve, scale = recorder.curve, train.scale
  errors = metrics.error_grid(scale)
  shares = {
    part: metrics.error_cdf(each, recorder.model, errors, scale).tolist()
    for part, each in (('train', rows), ('test', test_rows))
    if each is not None
  }
  return {
    'train_rmse': curve[-1]['train_rmse'],
    'test_rmse': curve[-1].get('test_rmse'),
    'baselines': {} if test is None else metrics.baselines(train, test),
    'error_cdf': {'errors': errors.tolist(), **shares},
  }


def lists(
  recorder: Recorder,
  certificate: dict[str, Any],
  train: Ratings,
  test: Ratings,
  data: Data | None,
  cutoffs: Sequence[int],
  threshold: float | None,
  *,
  progress: bool,
) -> dict[str, Any]:
  """Of lists, beside those of popularity.

  `data` are the training ratings where this process has them all on devices.
  """
  measured = functools.partial(
    ranking.ranking_metrics,
    train=train,
    test=test,
    k=cutoffs or (_LISTED,),
    threshold=threshold,
  )
  beside = {'popularity': popular.popularity(train)}
  if certificate['epsilon']:
    budget = {name: certificate[name] for name in _BUDGET}
    data = training_data(train) if data is None else data
    noisy = popular.noisy_popularity(train, data, **budget)
    if noisy is not None:
      beside['noisy popularity, same budget'] = noisy
  own = {'this model': jax.device_get(recorder.model)}
  shown = tqdm(
    (own | beside).items(),
    desc='measuring lists',
    unit='model',
    leave=False,
    disable=not progress or None,
  )
  found = {name: measured(model) for name, model in shown}
  return found.pop('this model') | {
    'threshold': threshold,
    'baselines': found,
  }


def _spread(epsilons: np.ndarray) -> dict[str, Any]:
  """Of the epsilons that training ratings have."""
  values, counts = np.unique(epsilons, return_counts=True)
  share = counts / counts.sum()
  return summary(AskedEpsilons(values, share, 'the training ratings'))
