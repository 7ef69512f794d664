"""Times recommending, folding in and ranking against others, in one run.

  pip install implicit
  python -m benchmarks.serving --data_dir=DIR --json=serving.json

At ML-1M's shape and rank 32, with random factors and, where they are found,
the real ratings: lists of 10 for all 6,040 users without what they rated, the
fit of all users to their own ratings, and ranking metrics of 20% of ratings.
The peers are NumPy as one would write it well, over blocks, and `recommend` of
implicit where it is installed (which gives indices, ours have ids and titles),
and give the same results, which is checked. Contenders are interleaved; first
calls of ours, some of which compile, are timed apart. It ends with code 1 if
all lists take 0.3 seconds or more of the processor, all cores together: more
than they take of anybody's time on a machine with nothing else to do.

With --quality it measures the held-out RMSE of users who are folded into
models of ML-100K that were trained without them. With --lists it measures
NDCG@10 on ML-100K of lists from the models of ratings that `auto` picks, as
they are and as they were without numbers of ratings (splits and noise with
--seeds; `benchmarks.ranking` has the protocol).
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from absl import flags

from dpmf_jax.commands import cli
from dpmf_jax.evaluation import ranking
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.auto import recommended
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import DataError, Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.serving import folding, models, recommendations
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Fit, Release, Unit

_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Rounds over all contenders.', 1)
_QUALITY = flags.DEFINE_bool('quality', False, 'Accuracy of folding in, only.')
_LISTS = flags.DEFINE_bool('lists', False, 'Lists of models of ratings, only.')
_SEEDS = flags.DEFINE_list('seeds', ['3', '4', '5'], 'Of --lists.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

RANK = 32
K = 10
BLOCK = 1024
MOST_SECONDS = 0.3
USERS, ITEMS, RATINGS = 6_040, 3_706, 1_000_209  # of ML-1M
FIT = Fit(np.zeros(RANK), np.full(RANK, 5.0))


def main(argv: Sequence[str]) -> int:
  del argv
  measured = lists if _LISTS.value else quality if _QUALITY.value else speed
  figures = measured()
  for name, value in figures.items():
    print(f'{name:48} {value:.4f}')
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  if measured is not speed:
    return 0
  seconds = figures['recommend: processor']
  print(f'all lists: {seconds:.3f} s of the processor; target {MOST_SECONDS:g}')
  return int(seconds >= MOST_SECONDS)


def _ratings() -> Ratings:
  try:
    return catalog.load('ml-1m', data_dir=_DATA_DIR.value, quiet=True)
  except (DataError, OSError) as error:
    print(f'made-up ratings instead of ML-1M: {error}')
    return synthetic(
      num_users=USERS, num_items=ITEMS, num_ratings=RATINGS, seed=0
    )


def speed() -> dict[str, float]:
  """Median seconds of each contender, and of our first calls."""
  train, test = random_split(_ratings(), 0.2, seed=0)
  rng = np.random.default_rng(0)
  side = lambda size: rng.normal(size=(size, RANK)).astype(np.float32) / 4
  factors = Factors(side(train.num_users), side(train.num_items))
  release = Release(factors, jnp.float32(3.5))
  model = models.model_from_release(release, train, fit=FIT)
  contenders: dict[str, Callable[[], Any]] = {
    'recommend': lambda: recommendations.recommend(model, k=K),
    'recommend: NumPy, argpartition': lambda: numpy_lists(model),
    'fold in': lambda: folding.fold_in(model, train).user_factors,
    'fold in: NumPy, user by user': lambda: numpy_users(train, factors.item),
    'rank': lambda: ranking.ranking_metrics(release, train, test, K),
    'rank: NumPy, sorted': lambda: numpy_recall(release, train, test),
  }
  if importlib.util.find_spec('implicit'):
    contenders['recommend: implicit'] = implicit_lists(model)
  results, seconds = {}, {name: [] for name in contenders}
  for name, run in contenders.items():
    began = time.perf_counter()
    results[name] = run()
    seconds[f'{name}: first call'] = [time.perf_counter() - began]
  _check(results)
  for _ in range(_ROUNDS.value):
    for name, run in contenders.items():
      began, worked = time.perf_counter(), time.process_time()
      run()
      seconds[name].append(time.perf_counter() - began)
      if name.startswith('recommend'):
        busy = seconds.setdefault(f'{name}: processor', [])
        busy.append(time.process_time() - worked)
  for name in contenders:
    ours, _, peer = name.partition(': ')
    if peer:  # within rounds, with quartiles
      ratios = np.divide(seconds[ours], seconds[name])
      low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
      print(f'{ours} / {peer}: {middle:.2f} ({low:.2f} to {high:.2f})')
  peers = ('NumPy', 'implicit')
  return {
    name: float(np.median(times))
    for name, times in seconds.items()
    if 'first' not in name or not any(peer in name for peer in peers)
  }


def _check(results: dict[str, Any]) -> None:
  ours = [(row.user, row.item) for row in results['recommend']]
  for name in ('recommend: NumPy, argpartition', 'recommend: implicit'):
    theirs = results.get(name, ours)
    same = np.mean([a == b for a, b in zip(ours, theirs, strict=True)])
    if same < 0.999:  # scores that round differently may change places
      raise ValueError(f'only {same:.2%} of the lists are those of {name}')
  np.testing.assert_allclose(
    results['fold in'], results['fold in: NumPy, user by user'], atol=2e-3
  )
  np.testing.assert_allclose(
    results['rank'][f'recall@{K}'], results['rank: NumPy, sorted'], atol=1e-4
  )


def numpy_lists(model: models.Model) -> list[tuple[Any, Any]]:
  """(user, item) of the best items, in order."""
  assert model.user_factors is not None
  assert model.seen is not None
  users, items = model.user_ids.tolist(), model.item_ids.tolist()
  found = []
  for start in range(0, len(users), BLOCK):
    block = slice(start, start + BLOCK)
    scores = model.user_factors[block] @ model.item_factors.T
    rows, columns = model.seen[block].nonzero()
    scores[rows, columns] = -np.inf
    best = np.argpartition(-scores, K - 1, axis=1)[:, :K]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    best = np.take_along_axis(best, order, axis=1).tolist()
    for user, row in zip(users[block], best, strict=True):
      found += [(user, items[item]) for item in row]
  return found


def implicit_lists(model: models.Model) -> Callable[[], Any]:
  """Its `recommend` for all users, with the same factors."""
  from implicit.als import AlternatingLeastSquares  # pyright: ignore

  assert model.seen is not None
  assert model.user_factors is not None
  theirs = AlternatingLeastSquares(factors=RANK, use_gpu=False)
  theirs.user_factors = model.user_factors
  theirs.item_factors = model.item_factors
  seen = scipy.sparse.csr_matrix(model.seen)
  everybody = np.arange(len(model.user_ids))
  users, items = np.repeat(model.user_ids, K).tolist(), model.item_ids

  def pairs() -> list[tuple[Any, Any]]:
    chosen, _ = theirs.recommend(everybody, seen, N=K)
    return list(zip(users, items[chosen].reshape(-1).tolist(), strict=True))

  return pairs


def numpy_users(train: Ratings, item: np.ndarray) -> np.ndarray:
  order = np.argsort(train.user, kind='stable')
  ends = np.bincount(train.user, minlength=train.num_users).cumsum()
  labels = train.value - np.float32(3.5)
  rows = np.zeros((train.num_users, RANK), np.float32)
  ridge = np.diag(FIT.ridge).astype(np.float32)
  for user, mine in enumerate(np.split(order, ends[:-1])):
    q = item[train.item[mine]]
    rows[user] = np.linalg.solve(q.T @ q + ridge, q.T @ labels[mine])
  return rows


def numpy_recall(release: Release, train: Ratings, test: Ratings) -> float:
  """Recall@k alone, from sorted scores."""
  user, item = release.factors
  seen = models.seen_matrix(train.user, train.item, (len(user), len(item)))
  held = models.seen_matrix(test.user, test.item, (len(user), len(item)))
  shares = []
  for start in range(0, len(user), BLOCK):
    block = slice(start, start + BLOCK)
    scores = user[block] @ item.T
    rows, columns = seen[block].nonzero()
    scores[rows, columns] = -np.inf
    order = np.argsort(-scores, axis=1)
    relevant = np.take_along_axis(held[block].toarray(), order, axis=1)
    counts = relevant.sum(axis=1, dtype=np.int64)
    hits = relevant[:, :K].sum(axis=1, dtype=np.int64)
    shares.append(hits[counts > 0] / counts[counts > 0])
  return float(np.concatenate(shares).mean())


def lists() -> dict[str, float]:
  """NDCG@10 of models that predict ratings, and of popularity."""
  ratings = catalog.load('ml-100k', data_dir=_DATA_DIR.value, quiet=True)
  found: dict[str, list[float]] = {}
  units: tuple[tuple[Unit, float, float], ...] = (
    ('rating', 0.1, 1e-6),
    ('rating', 2.0, 1e-6),
    ('user', 1.0, 1e-5),
    ('user', 5.0, 1e-5),
  )
  for seed in map(int, _SEEDS.value):
    train, test = random_split(ratings, 0.2, seed=seed)
    popular = 'popularity, not private'
    found.setdefault(popular, []).append(ndcg(popularity(train), train, test))
    for unit, epsilon, delta in units:
      sizes: dict[str, Any] = {
        'num_users': train.num_users,
        'num_items': train.num_items,
      }
      name, settings = recommended(unit, epsilon=epsilon, delta=delta, **sizes)
      config = SPECS[name].config(
        scale=train.scale, epsilon=epsilon, delta=delta, **settings
      )
      system, data = build(name, config), training_data(train)
      state = fit(system, jax.random.key(seed), data)
      model = jax.device_get(system.model(state, data))
      label = f'{name}, one {unit}, epsilon {epsilon:g}'
      for how, one in (
        ('predictions', model._replace(number=None)),
        ('shrunk by numbers', model),
      ):
        value = ndcg(one, train, test)
        found.setdefault(f'{label}: {how}', []).append(value)
  return {name: float(np.mean(values)) for name, values in found.items()}


def ndcg(model: Release, train: Ratings, test: Ratings) -> float:
  return ranking.ranking_metrics(model, train, test, K, threshold=4)[
    f'ndcg@{K}'
  ]


def popularity(train: Ratings) -> Release:
  counts = np.bincount(train.item, minlength=train.num_items)
  ones = np.ones((train.num_users, 1), np.float32)
  return Release(Factors(ones, counts[:, None].astype(np.float32)), 0.0)


def quality() -> dict[str, float]:
  """Held-out RMSE of users that the model was not trained with, and was."""
  ratings = catalog.load('ml-100k', data_dir=_DATA_DIR.value, quiet=True)
  chosen = np.random.default_rng(0).permutation(ratings.num_users)
  new = np.isin(ratings.user, chosen[: ratings.num_users // 5])
  own, held = random_split(ratings.take(new), 0.2, seed=0)
  old, _ = random_split(ratings.take(~new), 0.2, seed=0)
  both = ratings.take(np.isin(_flat(ratings), np.r_[_flat(old), _flat(own)]))
  private = {'variant': 'sound', 'relation': 'add_remove', 'delta': 1e-6}
  cases = {
    'gaussian_mf, epsilon 1': ('gaussian_mf', private | {'epsilon': 1.0}),
    'gaussian_mf, epsilon 5': ('gaussian_mf', private | {'epsilon': 5.0}),
    'objective_pmf, epsilon 1': ('objective_pmf', private | {'epsilon': 1.0}),
    'nonprivate': ('nonprivate', {}),
  }
  figures = {}
  for label, (name, settings) in cases.items():
    config = SPECS[name].config(scale=ratings.scale, **settings)
    system = build(name, config)
    for what, train in (('without them', old), ('with them', both)):
      data = training_data(train)
      state = fit(system, jax.random.key(0), data)
      model = jax.device_get(system.model(state, data))
      user, item = model.factors
      if what == 'without them':
        release = system.release(state, data)
        user = folded(release, train, own)
      figures[f'{label}, trained {what}'] = _rmse(user, item, model, held)
  return figures


def folded(release, train, own) -> np.ndarray:
  """Users' rows from what is released and their own ratings."""
  known = release.fit or models.fit_of_released_users(
    np.asarray(release.factors.user)[np.unique(train.user)]
  )
  model = models.model_from_release(release, train, fit=known)
  return np.asarray(folding.fold_in(model, own).user_factors)


def _flat(ratings: Ratings) -> np.ndarray:
  return ratings.user.astype(np.int64) * ratings.num_items + ratings.item


def _rmse(user, item, model, held: Ratings) -> float:
  scores = float(model.offset) + (user[held.user] * item[held.item]).sum(axis=1)
  error = np.clip(scores, *held.scale) - held.value
  return float(np.sqrt(np.mean(error**2)))


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  cli.run(main)
