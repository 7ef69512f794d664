"""Accuracy and seconds of this library and of others, side by side.

  pip install '.[bench]'
  python -m benchmarks.peers --data_dir=DIR --json=peers.json --figure=peers.png

Ratings: held-out RMSE, clipped to the scale. Lists: NDCG@10 over the whole
catalogue, relevant are held-out ratings in the upper third of the scale. 80/20
splits with seeds 3, 4, 5 (--seeds), the same for everybody, and two threads.
Ours protect one rating at delta 1e-6, or nothing. Others have the settings that
they come with, but for factors, ridge and alpha of implicit ALS; for lists a
training rating is an interaction that counts as much as it is of the best.

Every fit is a process of its own, one after the other; seconds are those of the
fit on the clock, from a table in memory to a model, with all that is compiled.
Ours compile in the first round and keep their programs for the others, so that
the first round stands apart. Those that are not installed are left out, and the
last line names them.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
import tqdm
from absl import flags

from benchmarks import splits
from dpmf_jax.commands import cli
from dpmf_jax.evaluation import metrics
from dpmf_jax.evaluation.popular import popularity, relevant_from
from dpmf_jax.evaluation.ranking import ranking_metrics
from dpmf_jax.plans.auto import recommended
from dpmf_jax.plans.ranking_mf import RankingMFConfig, resolved
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import made
from dpmf_jax.systems.ranking_mf import ranking_mf
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Release, System

_ONLY = flags.DEFINE_list('only', None, 'Contenders, such as cmfrec; else all.')
_FIGURE = flags.DEFINE_string('figure', None, 'PNG of accuracy and seconds.')
_CELL = flags.DEFINE_string(
  'cell', None, 'Of the processes it starts: task|contender|data set|seed.'
)

THREADS = 2
# Of others' implicit ALS: the best of a dozen on split 0 of ML-100K, where what
# they come with has 0.24 instead of 0.38.
RANK, RIDGE, ALPHA = 32, 20.0, 3.0
DELTA = 1e-6
METRIC = {'ratings': 'RMSE', 'lists': 'NDCG@10'}

# (train, seed) -> (users, items) -> scores of as many pairs, or a model.
Predicted = Callable[[np.ndarray, np.ndarray], np.ndarray]
Fitted = Callable[[Ratings, int], Release | Predicted]


class Contender(NamedTuple):
  fitted: Fitted
  package: str | None = None  # None: this library
  epsilon: float | None = None


def main(argv: Sequence[str]) -> int:
  del argv
  if _CELL.value:
    task, name, dataset, seed = _CELL.value.split('|')
    print(json.dumps(measured(task, name, dataset, int(seed))))
    return 0
  figures: dict[str, dict[str, list[dict[str, float]]]] = {}
  chosen, missing = _chosen()
  cells = [
    (dataset, seed, *which)
    for dataset in flags.FLAGS.datasets
    for seed in splits.seeds()
    for which in chosen
  ]
  with tempfile.TemporaryDirectory(prefix='dpmf-peers-') as programs:
    for dataset, seed, task, name in tqdm.tqdm(cells):
      found = _in_a_process(programs, task, name, dataset, str(seed))
      rows = figures.setdefault(f'{dataset}, {task}', {})
      rows.setdefault(name, []).append(found)
      splits.write(figures)
  for title, rows in figures.items():
    print('\n'.join(table(title, rows)), end='\n\n')
  if _FIGURE.value:
    draw(_FIGURE.value, figures)
  if missing:
    names = ', '.join(sorted(missing))
    print(f"left out: {names}; pip install '.[bench]' has them")
  return 0


def _chosen() -> tuple[list[tuple[str, str]], set[str]]:
  """(task, name) of those that are installed, and packages that are not."""
  asked, missing = [], set()
  for task, contenders in CONTENDERS.items():
    for name, (_, package, _) in contenders.items():
      if _ONLY.value and name not in _ONLY.value:
        continue
      if package and not importlib.util.find_spec(package):
        missing.add(package)
      else:
        asked.append((task, name))
  if not asked:
    raise ValueError(f'--only={",".join(_ONLY.value or [])} names none of them')
  return asked, missing


def _in_a_process(programs: str, *cell: str) -> dict[str, float]:
  """What `measured` prints in a process of its own."""
  command = [
    sys.executable,
    '-m',
    'benchmarks.peers',
    f'--cell={"|".join(cell)}',
  ]
  if splits.data_dir():
    command.append(f'--data_dir={splits.data_dir()}')
  # implicit has threads of its own, and asks for one of OpenBLAS.
  threads = {'OMP_NUM_THREADS': str(THREADS), 'OPENBLAS_NUM_THREADS': '1'}
  done = subprocess.run(
    command,
    env=os.environ | threads | {'JAX_COMPILATION_CACHE_DIR': programs},
    stdout=subprocess.PIPE,
    text=True,
  )
  if done.returncode:
    raise ValueError(f'{" ".join(cell)} ended with code {done.returncode}')
  return json.loads(done.stdout.splitlines()[-1])


def measured(task: str, name: str, dataset: str, seed: int) -> dict[str, float]:
  """Accuracy and seconds of one fit."""
  jax.config.update('jax_num_cpu_devices', THREADS)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  ratings = catalog.load(dataset, data_dir=splits.data_dir(), quiet=True)
  train, test = random_split(ratings, 0.2, seed=seed)
  began, worked = time.perf_counter(), time.process_time()
  model = CONTENDERS[task][name].fitted(train, seed)
  seconds = time.perf_counter() - began
  busy = time.process_time() - worked
  if task == 'lists':
    assert isinstance(model, Release)
    found = ranking_metrics(
      model, train, test, 10, threshold=relevant_from(train)
    )['ndcg@10']
  elif isinstance(model, Release):
    found = metrics.rmse(model, training_data(test).by_user, train.scale)
  else:
    scores = np.clip(model(test.user, test.item), *train.scale)
    found = np.sqrt(np.mean((scores - test.value) ** 2))
  return {'found': float(found), 'seconds': seconds, 'processor': busy}


def ours(system: System, train: Ratings, seed: int) -> Release:
  data = training_data(train, mesh=device_mesh())
  state = fit(system, jax.random.key(seed), data)
  return jax.device_get(jax.jit(system.model)(state, data))


def auto(epsilon: float) -> Fitted:
  def fitted(train: Ratings, seed: int) -> Release:
    name, settings = recommended(
      'rating',
      num_users=train.num_users,
      num_items=train.num_items,
      epsilon=epsilon,
      delta=DELTA,
    )
    budget = {'epsilon': epsilon, 'delta': DELTA}
    system = made(name, 'sound', scale=train.scale, **settings, **budget)
    return ours(system, train, seed)

  return fitted


def lists(epsilon: float) -> Fitted:
  def fitted(train: Ratings, seed: int) -> Release:
    config = RankingMFConfig(
      unit='rating',
      relation='add_remove',
      scale=train.scale,
      epsilon=epsilon,
      delta=DELTA,
    )
    config = resolved(config, train.num_users, train.num_items)
    return ours(ranking_mf(config), train, seed)

  return fitted


def not_private(name: str, **settings: Any) -> Fitted:
  return lambda train, seed: ours(
    made(name, 'none', scale=train.scale, **settings), train, seed
  )


def _matrix(train: Ratings, values: np.ndarray) -> scipy.sparse.coo_matrix:
  shape = train.num_users, train.num_items
  return scipy.sparse.coo_matrix((values, (train.user, train.item)), shape)


def _clicks(train: Ratings) -> scipy.sparse.coo_matrix:
  """An interaction counts as much as its rating is of the best."""
  return _matrix(train, (train.value / train.scale[1]).astype(np.float32))


def cmfrec(train: Ratings, seed: int, **settings: Any) -> Predicted:
  from cmfrec import CMF  # pyright: ignore

  model = CMF(nthreads=THREADS, random_state=seed, verbose=False, **settings)
  return model.fit(_matrix(train, train.value)).predict


def cmfrec_lists(train: Ratings, seed: int) -> Release:
  from cmfrec import CMF_implicit  # pyright: ignore

  own = {'k': RANK, 'lambda_': RIDGE, 'alpha': ALPHA}
  model = CMF_implicit(
    nthreads=THREADS, random_state=seed, verbose=False, **own
  )
  model.fit(_clicks(train))
  return Release(Factors(model.A_, model.B_), np.float32(0))


def surprise(train: Ratings, seed: int) -> Predicted:
  from surprise import SVD, Dataset, Reader  # pyright: ignore

  pairs = zip(train.user, train.item, train.value, strict=True)
  # What its readers make of a file: (user, item, rating, time).
  raw = [(user, item, float(value), None) for user, item, value in pairs]
  table = Dataset(Reader(rating_scale=train.scale))
  model = SVD(random_state=seed).fit(table.construct_trainset(raw))
  return lambda users, items: np.array(
    [
      model.predict(user, item).est
      for user, item in zip(users, items, strict=True)
    ]
  )


def lenskit(train: Ratings, seed: int) -> Predicted:
  import pandas as pd
  from lenskit.als import BiasedMFScorer  # pyright: ignore
  from lenskit.data import from_interactions_df  # pyright: ignore
  from lenskit.training import TrainingOptions  # pyright: ignore

  del seed  # as it comes
  # Its ids are our numbers of rows and columns.
  columns = {
    'user_id': train.user,
    'item_id': train.item,
    'rating': train.value,
  }
  model = BiasedMFScorer()
  model.train(from_interactions_df(pd.DataFrame(columns)), TrainingOptions())
  return _lenskit_scores(model)


def _lenskit_scores(model: Any) -> Predicted:
  from lenskit.data import ItemList  # pyright: ignore

  def scores(users: np.ndarray, items: np.ndarray) -> np.ndarray:
    found = np.empty(len(users), np.float32)
    order = np.argsort(users, kind='stable')
    starts = np.flatnonzero(np.diff(users[order], prepend=-1))
    for mine in np.split(order, starts[1:]):
      query = int(users[mine[0]])
      found[mine] = model(query, ItemList(item_ids=items[mine])).scores()
    return np.nan_to_num(found, nan=float(np.nanmean(found)))

  return scores


def implicit_als(train: Ratings, seed: int) -> Release:
  from implicit.als import AlternatingLeastSquares  # pyright: ignore

  own = {'factors': RANK, 'regularization': RIDGE, 'alpha': ALPHA}
  return _of_implicit(AlternatingLeastSquares, train, seed, **own)


def implicit_bpr(train: Ratings, seed: int) -> Release:
  from implicit.bpr import BayesianPersonalizedRanking  # pyright: ignore

  return _of_implicit(BayesianPersonalizedRanking, train, seed)


def _of_implicit(kind: Any, train: Ratings, seed: int, **own: Any) -> Release:
  model = kind(use_gpu=False, num_threads=THREADS, random_state=seed, **own)
  model.fit(_clicks(train).tocsr(), show_progress=False)
  return Release(Factors(model.user_factors, model.item_factors), np.float32(0))


CONTENDERS: dict[str, dict[str, Contender]] = {
  'ratings': {
    'ours, epsilon 1': Contender(auto(1.0), epsilon=1.0),
    'ours, epsilon 5': Contender(auto(5.0), epsilon=5.0),
    'ours, als': Contender(not_private('als')),
    'ours, als, 4 sweeps': Contender(not_private('als', steps=4)),
    'cmfrec': Contender(cmfrec, 'cmfrec'),
    # The first to have an RMSE of 0.874 on ML-1M, of ridges of 10 to 50.
    'cmfrec, ridge 20, 3 sweeps': Contender(
      functools.partial(cmfrec, lambda_=20.0, niter=3), 'cmfrec'
    ),
    'surprise SVD': Contender(surprise, 'surprise'),
    'lenskit': Contender(lenskit, 'lenskit'),
  },
  'lists': {
    'ours, epsilon 1': Contender(lists(1.0), epsilon=1.0),
    'ours, epsilon 5': Contender(lists(5.0), epsilon=5.0),
    'ours, ease': Contender(not_private('ease')),
    'ours, als': Contender(not_private('als', feedback='implicit')),
    'implicit ALS': Contender(implicit_als, 'implicit'),
    'implicit BPR': Contender(implicit_bpr, 'implicit'),
    'cmfrec': Contender(cmfrec_lists, 'cmfrec'),
    'popularity': Contender(lambda train, seed: popularity(train)),
  },
}


def table(title: str, rows: dict[str, list[dict[str, float]]]) -> Iterator[str]:
  """In Markdown, with means over seeds and half of their range."""
  metric = METRIC[title.split(', ')[-1]]
  yield f'| {title} | {metric} | s | s, first | s of the processor |'
  yield '|---|---|---|---|---|'
  for name, cells in rows.items():
    found, seconds, busy = (
      np.array([cell[what] for cell in cells])
      for what in ('found', 'seconds', 'processor')
    )
    yield (
      f'| {name} | {found.mean():.4f} ± {np.ptp(found) / 2:.4f} '
      f'| {np.median(seconds):.2f} ({seconds.min():.2f} to '
      f'{seconds.max():.2f}) | {seconds[0]:.2f} | {np.median(busy):.2f} |'
    )


def draw(path: str, figures: dict[str, Any]) -> None:
  """Writes the picture: accuracy against seconds, privacy as colour."""
  from matplotlib.figure import Figure
  from matplotlib.ticker import LogLocator

  colours = {1.0: '#0072B2', 5.0: '#56B4E9', None: '#D55E00'}
  picture = Figure(figsize=(9, 3.6 * -(-len(figures) // 2)))
  picture.set_layout_engine('constrained')
  every = np.atleast_1d(picture.subplots(-(-len(figures) // 2), 2)).reshape(-1)
  for axes, (title, rows) in zip(every, figures.items(), strict=False):
    task = title.split(', ')[-1]
    for name, cells in rows.items():
      x = np.median([cell['seconds'] for cell in cells])
      y = np.mean([cell['found'] for cell in cells])
      if name == 'popularity':  # in no time
        axes.axhline(y, color='#888888', linestyle=(0, (5, 3)), label=name)
        axes.legend(fontsize=8)
        continue
      contender = CONTENDERS[task][name]
      mark = 'o' if name.startswith('ours') else 's'
      axes.plot(x, y, mark, color=colours[contender.epsilon])
      axes.annotate(
        name, (x, y), xytext=(5, 3), textcoords='offset points', fontsize=8
      )
    axes.set_xscale('log')
    axes.margins(x=0.45, y=0.12)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter('{x:g}')
    axes.xaxis.set_minor_formatter('')
    axes.grid(alpha=0.25)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel('seconds of a fit, two threads')
    better = 'lower' if task == 'ratings' else 'higher'
    axes.set_ylabel(f'{METRIC[task]} ({better} is better)')
  for axes in every[len(figures) :]:
    axes.remove()
  picture.suptitle(
    'blue: one rating is protected (epsilon 1 dark, 5 light); orange: no '
    'privacy; circles: this library',
    fontsize=9,
  )
  picture.savefig(path, dpi=120)


if __name__ == '__main__':
  cli.run(main)
