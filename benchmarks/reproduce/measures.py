"""What is measured of a run: one function for each kind of experiment.

Each returns numbers by metric. A metric 'NAME by STEPS' has a number for each
of many x, {x: number}; the others have one.

Nothing here is compiled again for another epsilon, seed or fold: noise is no
part of a program, and all splits of a data set have the same shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.reproduce.data import Split
from dpmf_jax import accounting, plans
from dpmf_jax.evaluation import metrics, popular, ranking
from dpmf_jax.systems import build
from dpmf_jax.training import Progress, fit
from dpmf_jax.types import Release

Numbers = dict[str, float | dict[float, float]]

# On all ratings, as in the paper; on the part that is not held out; and on what
# is.
TRAINING, HELD_OUT = 'training RMSE', 'held-out RMSE'
PART = 'RMSE of the training part'
MEAN_ERROR, INCREASE = 'mean absolute error', 'increase over PMF'
CDF, OVERALL, STEPS = 'CDF by error', 'overall epsilon', 'steps'
AUC = 'AUC by round'
MILLISECONDS, PROCESSOR = 'ms per step', 'processor ms per step'
ROUNDS = 'held-out RMSE by round'
BY_STEP = f'{TRAINING} by step', f'{HELD_OUT} by step'
# What gives many points, by the names of the functions below.
CURVES = {
  'converged': BY_STEP,
  'cdf': (CDF,),
  'rounds': (ROUNDS,),
  'auc': (AUC,),
}
# Steps between two looks at the training error, and over which it has to fall.
LOOK, WINDOW = 25, 100


def _errors(release: Release, split: Split, scale) -> dict[str, float]:
  """RMSE on what was trained on, and on what was held out."""
  trained = metrics.rmse(release, split.data.by_user, scale)
  if split.held_out is None:
    return {TRAINING: trained}
  return {PART: trained, HELD_OUT: metrics.rmse(release, split.held_out, scale)}


def errors(name: str, config: Any, split: Split, seed: int) -> Numbers:
  """RMSE of a model that is trained as long as its settings say."""
  system = build(name, config)
  state = fit(system, jax.random.key(seed), split.data)
  return {**_errors(system.model(state, split.data), split, config.scale)}


def cdf(name: str, config: Any, split: Split, seed: int) -> Numbers:
  """RMSE, mean error, and the share of held-out ratings within each error."""
  system, scale = build(name, config), config.scale
  state = fit(system, jax.random.key(seed), split.data)
  model = system.model(state, split.data)
  grid = metrics.error_grid(scale)
  assert split.held_out is not None
  shares = metrics.error_cdf(split.held_out, model, grid, scale)
  found = dict(zip(grid.tolist(), shares.tolist(), strict=True))
  at = {f'CDF({x:g})': found[x] for x in (1.0, 1.5, 2.0)}
  return {
    **_errors(model, split, scale),
    MEAN_ERROR: mean_error(model, split, scale),
    **at,
    CDF: found,
  }


def mean_error(model: Release, split: Split, scale) -> float:
  """Mean absolute error on the held-out ratings."""
  user, item = (np.asarray(side) for side in model.factors)
  test = split.test
  assert test is not None
  predicted = np.sum(user[test.user] * item[test.item], axis=1)
  predicted = np.clip(float(model.offset) + predicted, *scale)
  return float(np.abs(predicted - test.value).mean())


def increase(
  name: str,
  config: Any,
  split: Split,
  seed: int,
  *,
  baseline: str,
  settings: Mapping[str, Any],
) -> Numbers:
  """By how much the mean error is above that of PMF on the same split.

  PMF is system `baseline` as published with `settings` that leave no noise.
  """
  plain = plans.config_of(baseline, 'paper', scale=config.scale, **settings)
  found = []
  for case in ((name, config), (baseline, plain)):
    system = build(*case)
    state = fit(system, jax.random.key(seed), split.data)
    found.append(system.model(state, split.data))
  own, without = (mean_error(model, split, config.scale) for model in found)
  return {
    INCREASE: own - without,
    MEAN_ERROR: own,
    **_errors(found[0], split, config.scale),
  }


def converged(
  name: str,
  config: Any,
  split: Split,
  seed: int,
  *,
  least_fall: float,
  noise: bool = True,
) -> Numbers:
  """Errors once training has converged, and how many steps that took.

  The paper does not say when it stops. Here it is when the training error has
  fallen by less than `least_fall` in 100 steps, or after config.steps. That
  looks at the ratings, which the claimed epsilon ignores. Without `noise` the
  steps are the same, and there is none in them.
  """
  system = build(name, config)
  if not noise:
    system = system._replace(init=_without_noise(system.init))
  # As in the paper, predictions are not clipped.
  look = lambda state: _errors(system.model(state, split.data), split, None)
  key = jax.random.key(seed)
  curves: dict[str, dict[float, float]] = {}
  done, state, now = 0, None, {}
  while done < config.steps:
    upto = min(done + LOOK, config.steps)
    part = system._replace(steps=upto)
    start = None if state is None else (done, state)
    state = fit(part, jax.random.clone(key), split.data, start=start)
    done, now = upto, look(state)
    for metric, value in now.items():
      curves.setdefault(f'{metric} by step', {})[done] = value
    past = curves[f'{TRAINING if split.held_out is None else PART} by step']
    if past.get(done - WINDOW, np.inf) - past[done] < least_fall:
      break
  numbers: Numbers = {**now, STEPS: float(done)}
  for metric, points in curves.items():  # as many as a picture needs
    numbers[metric] = {
      step: value
      for step, value in points.items()
      if step % WINDOW == 0 or step == done
    }
  return numbers | ({OVERALL: overall(config, done)} if noise else {})


def _without_noise(init: Callable[..., Any]) -> Callable[..., Any]:
  """The same start of `gaussian_mf`, with noise of standard deviation 0."""

  def start(key: jax.Array, data: Any) -> Any:
    state = init(key, data)
    none = jax.tree.map(lambda std: 0 * std, state.hyper.noise)
    return state._replace(hyper=state.hyper._replace(noise=none))

  return start


def overall(config: Any, steps: int) -> float:
  """The epsilon that the paper claims after so many steps."""
  event = accounting.ClaimedGaussianMF(
    config.epsilon_per_step, config.delta_per_step, steps
  )
  return accounting.epsilon(event, config.delta)


def rounds(
  name: str, config: Any, split: Split, seed: int, *, every: int
) -> Numbers:
  """Held-out RMSE after every so many rounds, and after the last."""
  rows = split.held_out
  assert rows is not None
  error = lambda model: metrics.rmse(model, rows, config.scale)
  last, found = _by_round(error, name, config, split, seed, every)
  return {HELD_OUT: last, ROUNDS: found}


def auc(
  name: str, config: Any, split: Split, seed: int, *, every: int | None
) -> Numbers:
  """AUC of one left-out item of each user, over the whole catalogue.

  After every so many rounds; at the end alone where that is None.
  """
  area = lambda model: _auc(model, split)
  last, found = _by_round(area, name, config, split, seed, every)
  return {'AUC': last} if every is None else {'AUC': last, AUC: found}


def _by_round(
  measure: Callable[[Release], float],
  name: str,
  config: Any,
  split: Split,
  seed: int,
  every: int | None,
) -> tuple[float, dict[float, float]]:
  """What is measured after the last round, and after every so many."""
  found: dict[float, float] = {}
  system = build(name, config)

  def look(progress: Progress) -> None:
    if progress.step:
      found[progress.step] = measure(system.model(progress.state, split.data))

  key = jax.random.key(seed)
  fit(system, key, split.data, report_every=every, callbacks=[look])
  return found[system.steps], found


def _auc(model: Release, split: Split) -> float:
  assert split.test is not None
  model = jax.device_get(model)
  return ranking.ranking_metrics(model, split.train, split.test)['auc']


def popularity_auc(name: str, config: Any, split: Split, seed: int) -> Numbers:
  """The same of counting, which is not private and learns nothing."""
  del name, config, seed
  return {'AUC': _auc(popular.popularity(split.train), split)}


def milliseconds(name: str, config: Any, split: Split, seed: int) -> Numbers:
  """Milliseconds of a step, mean of config.steps after as many to warm up.

  Those of the processor, of all its cores, do not count what waits for others.
  """
  system, key = build(name, config), jax.random.key(seed)
  state = fit(system, jax.random.clone(key), split.data)
  jax.block_until_ready(state)
  began = time.perf_counter(), time.process_time()
  state = fit(system, key, split.data, start=(0, state))
  jax.block_until_ready(state)
  wall, processor = time.perf_counter(), time.process_time()
  per_step = 1000 / config.steps
  return {
    MILLISECONDS: per_step * (wall - began[0]),
    PROCESSOR: per_step * (processor - began[1]),
  }


def means(runs: list[Numbers]) -> dict[tuple[str, float | None], list[float]]:
  """The numbers of all runs by metric and x; of curves where all have a x."""
  found: dict[tuple[str, float | None], list[float]] = {}
  for run in runs:
    for metric, value in run.items():
      points: Mapping[float | None, float] = (
        {**value} if isinstance(value, dict) else {None: value}
      )
      for x, number in points.items():
        found.setdefault((metric, x), []).append(number)
  return {at: each for at, each in found.items() if len(each) == len(runs)}
