"""Seconds of one sweep of `als` beside those of other libraries.

  pip install '.[bench]'
  OPENBLAS_NUM_THREADS=1 python -m benchmarks.als --data_dir=DIR

All ratings of ML-1M, two CPU devices for ours and two threads for others, which
take three conjugate gradient iterations in each sweep, as ours do. What is
minimized is the same for all: as others' penalties do not grow with ratings,
ours do not either here, and without ratings (implicit) an interaction is one.
Rounds go over all contenders, so that ratios within a round hold on a machine
whose speed changes. cmfrec has no way to run one sweep: its seconds are the
difference between fits of few and of more. Objectives are after SWEEPS sweeps,
over those of the same sweeps with exact solutions (ours, by Cholesky's method),
and from the same start but for cmfrec, which has its own. For implicit feedback
its conjugate gradients end elsewhere, however many sweeps there are.

It ends with code 1 where the fastest of the others is faster, or ends lower
by more than TOLERANCE, unless with --quick.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import tqdm
from absl import flags

from benchmarks import splits
from dpmf_jax import training
from dpmf_jax.commands import cli
from dpmf_jax.plans.als import ALSConfig
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, device_mesh, put_replicated, training_data
from dpmf_jax.systems import als
from dpmf_jax.types import Factors

_ROUNDS = flags.DEFINE_integer('rounds', 12, 'Over all contenders.', 1)
_RANKS = flags.DEFINE_list('ranks', ['32', '64'], 'Which.')
_EXACT = flags.DEFINE_bool('exact', False, "Also times Cholesky's method.")
_QUICK = flags.DEFINE_bool('quick', False, 'Small, made-up: a smoke test.')

THREADS = 2
SWEEPS = 6
TIMED = 2  # sweeps in one call of ours
TOLERANCE = 1e-3
PAUSE = 0.02  # seconds, for the last contender's threads to go to sleep
RIDGE = {'explicit': 10.0, 'implicit': 20.0}
ALPHA = 3.0
OURS, EXACT = 'ours', 'ours, Cholesky'


class Contender(NamedTuple):
  seconds: Callable[[], float]  # of one sweep
  ended: Callable[[], float]  # objective after SWEEPS sweeps


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', THREADS)
  # Others have one ridge for all rows.
  als._ridge = lambda rows, hyper: jnp.full(rows.num_rows, hyper.ridge)
  ratings = _ratings()
  data = training_data(ratings, mesh=device_mesh())
  met, figures = True, {}
  cells = [(feedback, int(rank)) for feedback in RIDGE for rank in _RANKS.value]
  for feedback, rank in tqdm.tqdm(cells):
    made = contenders(feedback, rank, ratings, data)
    ended = {name: each.ended() for name, each in made.items()}
    timed = {
      name: each.seconds
      for name, each in made.items()
      if name != EXACT or _EXACT.value
    }
    seconds = interleaved(timed, _ROUNDS.value)
    fastest = min(
      (name for name in timed if not name.startswith(OURS)),
      key=lambda name: statistics.median(seconds[name]),
    )
    figures[f'{feedback}, rank {rank}'] = {'seconds': seconds, 'ended': ended}
    splits.write(figures)
    tqdm.tqdm.write(
      '\n'.join(table(f'{feedback}, rank {rank}', seconds, ended, fastest))
    )
    ratio = statistics.median(ratios(seconds, OURS, fastest))
    met &= ratio <= 1 and ended[OURS] <= ended[fastest] * (1 + TOLERANCE)
  load = os.getloadavg()
  print(f'load {load[0]:.1f} to {load[1]:.1f}, jax {jax.__version__}')
  print('PASS' if met else 'FAIL', ' ours / the fastest of the others: <= 1')
  return 0 if met or _QUICK.value else 1


def _ratings() -> Ratings:
  if _QUICK.value:
    return synthetic(num_users=300, num_items=200, num_ratings=9_000, seed=1)
  return catalog.load('ml-1m', data_dir=splits.data_dir(), quiet=True)


def interleaved(
  runs: dict[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
  """What every run returns in every round, after a round that is left out."""
  found: dict[str, list[float]] = {name: [] for name in runs}
  for number in range(rounds + 1):
    for name, run in runs.items():
      time.sleep(PAUSE)
      seconds = run()
      if number:
        found[name].append(seconds)
  return found


def ratios(
  seconds: dict[str, list[float]], one: str, other: str
) -> list[float]:
  pairs = zip(seconds[one], seconds[other], strict=True)
  return [a / b for a, b in pairs]


def table(
  title: str,
  seconds: dict[str, list[float]],
  ended: dict[str, float],
  base: str,
) -> Iterator[str]:
  """In Markdown; ratios within rounds, with quartiles of them."""
  yield f'\n| {title} | s, median | s, least | over {base} | objective |'
  yield '|---|---|---|---|---|'
  for name, each in seconds.items():
    low, middle, high = np.percentile(ratios(seconds, name, base), (25, 50, 75))
    yield (
      f'| {name} | {statistics.median(each):.3f} | {min(each):.3f} '
      f'| {middle:.2f} ({low:.2f} to {high:.2f}) '
      f'| {ended[name] / ended[EXACT]:.4f} |'
    )


def contenders(
  feedback: str, rank: int, ratings: Ratings, data: Data
) -> dict[str, Contender]:
  config = ALSConfig(
    scale=ratings.scale,
    feedback=feedback,  # pyright: ignore
    rank=rank,
    ridge=RIDGE[feedback],
    bias_ridge=RIDGE[feedback],
    alpha=ALPHA,
    least_weight=1.0,
  )
  exact = dataclasses.replace(config, solver='cholesky')
  found = {OURS: ours(config, ratings, data)}
  if feedback == 'implicit':
    start = als.als(config).init(jax.random.key(0), data).factors
    found['implicit'] = implicit(rank, ratings, start)
  found['cmfrec'] = cmfrec(feedback, rank, ratings)
  return found | {EXACT: ours(exact, ratings, data)}


def squared(*sides: Any) -> float:
  return sum(float(np.sum(np.square(side, dtype=np.float64))) for side in sides)


def explicit_objective(
  ratings: Ratings, user: Any, item: Any, user_bias: Any, item_bias: Any
) -> float:
  at = ratings.user, ratings.item
  score = ratings.value.mean() + user_bias[at[0]] + item_bias[at[1]]
  score = score + np.einsum('nd,nd->n', user[at[0]], item[at[1]])
  penalty = squared(user, item, user_bias, item_bias)
  return squared(score - ratings.value) + RIDGE['explicit'] * penalty


def implicit_objective(ratings: Ratings, user: Any, item: Any) -> float:
  """Hu, Koren and Volinsky (2008), eq. (3), for interactions of one."""
  user, item = (np.asarray(side, np.float64) for side in (user, item))
  score = np.einsum('nd,nd->n', user[ratings.user], item[ratings.item])
  everywhere = float(np.sum((user.T @ user) * (item.T @ item)))
  known = (1 + ALPHA) * squared(1 - score) - squared(score)
  return everywhere + known + RIDGE['implicit'] * squared(user, item)


def ours(config: ALSConfig, ratings: Ratings, data: Data) -> Contender:
  system, key = als.als(config), jax.random.key(0)
  start = put_replicated(system.init(key, data), data.by_user.mesh)

  def after(sweeps: int):
    state = training._block(system.step, key, start, data, 0, sweeps)
    return jax.block_until_ready(state)

  def seconds() -> float:
    began = time.perf_counter()
    after(TIMED)
    return (time.perf_counter() - began) / TIMED

  def ended() -> float:
    user, item = map(np.asarray, after(SWEEPS).factors)
    if config.feedback == 'implicit':
      return implicit_objective(ratings, user, item)
    vectors, biases = (user[:, :-2], item[:, :-2]), (user[:, -2], item[:, -1])
    return explicit_objective(ratings, *vectors, *biases)

  return Contender(seconds, ended)


def _matrix(ratings: Ratings, values: Any) -> scipy.sparse.coo_matrix:
  shape = ratings.num_users, ratings.num_items
  return scipy.sparse.coo_matrix(
    (values, (ratings.user, ratings.item)), shape, dtype=np.float32
  )


def implicit(rank: int, ratings: Ratings, start: Factors) -> Contender:
  from implicit.cpu import als as peer  # pyright: ignore

  confidence = _matrix(ratings, np.full(len(ratings.value), 1 + ALPHA))
  by_user = confidence.tocsr()
  by_item = confidence.T.tocsr()
  model = peer.AlternatingLeastSquares(factors=rank)

  def after(sweeps: int) -> Factors:
    user, item = (np.array(side) for side in start)
    for _ in range(sweeps):
      for rows, own, other in ((by_user, user, item), (by_item, item, user)):
        model.solver(rows, own, other, RIDGE['implicit'], num_threads=THREADS)
    return Factors(user, item)

  def seconds() -> float:
    began = time.perf_counter()
    after(TIMED)
    return (time.perf_counter() - began) / TIMED

  return Contender(seconds, lambda: implicit_objective(ratings, *after(SWEEPS)))


def cmfrec(feedback: str, rank: int, ratings: Ratings) -> Contender:
  from cmfrec import CMF, CMF_implicit  # pyright: ignore

  settings = {
    'k': rank,
    'lambda_': RIDGE[feedback],
    'nthreads': THREADS,
    'use_cg': True,
    'finalize_chol': False,
    'random_state': 0,
    'verbose': False,
  }
  given = ratings.value
  if feedback == 'implicit':
    settings['alpha'], given = ALPHA, np.ones_like(ratings.value)
  matrix = _matrix(ratings, given)

  def after(sweeps: int) -> Any:
    kind = CMF_implicit if feedback == 'implicit' else CMF
    return kind(niter=sweeps, **settings).fit(matrix)

  def seconds() -> float:
    times = []
    for sweeps in (1, 1 + TIMED * 2):
      began = time.perf_counter()
      after(sweeps)
      times.append(time.perf_counter() - began)
    return (times[1] - times[0]) / (TIMED * 2)

  def ended() -> float:
    model = after(SWEEPS)
    if feedback == 'implicit':
      return implicit_objective(ratings, model.A_, model.B_)
    biases = model.user_bias_, model.item_bias_
    return explicit_objective(ratings, model.A_, model.B_, *biases)

  return Contender(seconds, ended)


if __name__ == '__main__':
  cli.run(main)
