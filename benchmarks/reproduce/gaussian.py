"""The figures of Mugdho and Imtiaz: Gaussian-mechanism MF."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.reproduce.cases import Axis, Case, Figure, Form
from benchmarks.reproduce.measures import (
  BY_STEP,
  HELD_OUT,
  MILLISECONDS,
  OVERALL,
  PART,
  PROCESSOR,
  TRAINING,
)

PER_STEP = (0.15, 0.2, 0.3, 0.5, 0.9)
# Overall epsilon and training RMSE read off figure 4, ML-1M, by eps_i.
READ_OFF = {
  0.15: (8.0, 0.838),
  0.2: (13.0, 0.807),
  0.3: (23.0, 0.765),
  0.5: (63.0, 0.724),
}
_NOT_PRIVATE_READ_OFF = 0.697
_DATA = ('ml-100k', 'anime', 'netflix', 'ml-1m')
_MOST = {'quick': 75}  # steps
_RUNS = {'ml-1m': 1, 'quick': 1}
_RANKS = {'anime': (5, 20, 80), 'netflix': (5, 20, 80), 'quick': (5, 20)}
_STEP_SIZES = {'quick': (0.002, 0.005)}
EPS_I = 'eps_i, the epsilon of a step'
RANK = 'n, the number of factors'
STEP_SIZE = 'mu, the step size'


def trained(data: str, per_step: float | None, **fields: Any) -> Case:
  """Algorithm 1 until it converges, with that eps_i or without noise."""
  settings = {
    'epsilon_per_step': per_step or PER_STEP[-1],
    'delta': 1e-5,
    'rank': fields.pop('rank', 20),
    'step_size': fields.pop('step_size', 0.005 if data == 'quick' else 0.0005),
    'steps': _MOST.get(data, 2500),
  }
  return Case(
    curve='not private' if per_step is None else f'eps_i {per_step:g}',
    form='not private' if per_step is None else 'published',
    measure='converged',
    system='gaussian_mf',
    settings=settings,
    runs=fields.pop('runs', _RUNS.get(data, 3)),
    options={'least_fall': 1e-3, 'noise': per_step is not None},
    **fields,
  )


def sound(data: str, epsilon: float, x: float | None, **settings: Any) -> Case:
  """What is proved at that epsilon, with the library's settings."""
  if data == 'quick':
    settings = {'steps': 20, **settings}
  return Case(
    curve=f'sound, epsilon {epsilon:g}' if x is None else 'sound',
    form='sound',
    measure='errors',
    system='gaussian_mf',
    variant='sound',
    settings={
      'relation': 'replace',
      'epsilon': epsilon,
      'delta': 1e-5,
      **settings,
    },
    x=x,
    runs=_RUNS.get(data, 3),
  )


def by_epsilon(data: str) -> list[Case]:
  """All eps_i, in one curve for each form."""
  name = lambda case: {'published': 'as published'}.get(case.form, case.curve)
  return [
    dataclasses.replace(case, curve=name(case)) for case in all_epsilons(data)
  ]


def all_epsilons(data: str) -> list[Case]:
  """All eps_i on all ratings, as published, and with a fifth held out."""
  made = []
  for e in (0.15, 0.5) if data == 'quick' else PER_STEP:
    known = {}
    if data == 'ml-1m' and e in READ_OFF:
      known = {OVERALL: READ_OFF[e][0], TRAINING: READ_OFF[e][1]}
    made.append(trained(data, e, x=e, split='all', published=known))
    made.append(trained(data, e, x=e))
    if e in READ_OFF:
      made.append(sound(data, READ_OFF[e][0], e))
  known = {TRAINING: _NOT_PRIVATE_READ_OFF} if data == 'ml-1m' else {}
  made.append(trained(data, None, split='all', published=known))
  return [*made, trained(data, None)]


def iterations(data: str) -> list[Case]:
  """The same runs, by their steps."""
  made = [each for each in all_epsilons(data) if each.form != 'sound']
  return [*made, sound(data, READ_OFF[0.3][0], None)]


def by_rank(data: str) -> list[Case]:
  made = []
  for n in _RANKS.get(data, (5, 20, 80, 320)):
    made += _some_epsilons(data, x=n, rank=n)
    made.append(sound(data, READ_OFF[0.3][0], n, rank=n))
  return made


def by_step_size(data: str) -> list[Case]:
  made = []
  for mu in _STEP_SIZES.get(data, (0.0001, 0.0002, 0.0005, 0.001)):
    made += _some_epsilons(data, x=mu, step_size=mu)
  return [*made, sound(data, READ_OFF[0.3][0], None)]


def _some_epsilons(data: str, **settings: Any) -> list[Case]:
  """One run each at some epsilons, and without privacy."""
  some = (0.3,) if data == 'quick' else (0.15, 0.3, 0.5, 0.9)
  return [trained(data, e, **settings, runs=1) for e in (*some, None)]


def times(data: str) -> list[Case]:
  """Milliseconds of a step of both variants, by rank."""
  # The paper takes the mean of 300; two cores take minutes for 15 of them.
  most = {'quick': 5, 'ml-1m': 30}.get(data, 300)
  made = []
  ways: tuple[tuple[str, Form, dict[str, Any]], ...] = (
    ('paper', 'published', {'epsilon_per_step': 0.3}),
    ('sound', 'sound', {'relation': 'replace', 'epsilon': 23.0}),
  )
  for n in (5, 20) if data == 'quick' else (5, 20, 80, 320):
    for variant, form, settings in ways:
      steps = min(most, 300 if n <= 20 else 4800 // n)
      given = {'delta': 1e-5, 'rank': n, 'steps': steps, **settings}
      made.append(
        Case(
          curve=form,
          form=form,
          measure='milliseconds',
          system='gaussian_mf',
          variant=variant,
          settings=given,
          x=n,
          split='all',
        )
      )
  return made


_ON = {
  TRAINING: 'RMSE on all ratings, trained on',
  PART: 'RMSE on the 80% trained on',
  HELD_OUT: 'RMSE on the 20% held out',
  OVERALL: 'overall epsilon, as claimed',
}


def _axes(x_label: str, *metrics: str, log_x: bool = False) -> tuple[Axis, ...]:
  return tuple(
    Axis(metric, x_label, _ON[metric], log_x=log_x) for metric in metrics
  )


def _figure(name, published, says, cases, axes) -> Figure:
  return Figure(
    f'gaussian/{name}', published, says, _DATA, cases, axes, kept='active'
  )


_RULE = 'until training RMSE falls by less than 0.001 in 100'

FIGURES = (
  _figure(
    'iterations',
    'figures 1, 2, 3',
    'nearer to not private as eps_i grows; from .5 on hardly better',
    iterations,
    tuple(
      Axis(metric, f'steps ({_RULE})', _ON[metric.split(' by ')[0]])
      for metric in BY_STEP
    ),
  ),
  _figure(
    'epsilon',
    'figures 4, 5, 6',
    'the trade-off is best near eps_i = .4',
    by_epsilon,
    _axes(EPS_I, TRAINING, HELD_OUT, OVERALL),
  ),
  _figure(
    'rank-rmse',
    'figures 7, 8, 9',
    'not private goes to about 0; private ones level off',
    by_rank,
    _axes(RANK, PART, HELD_OUT, log_x=True),
  ),
  _figure(
    'rank-epsilon',
    'figures 10, 11, 12',
    'flat for eps_i <= .5; a peak and slight decline above',
    by_rank,
    _axes(RANK, OVERALL, log_x=True),
  ),
  _figure(
    'rank-both',
    'figures 13, 14, 15',
    '',
    by_rank,
    _axes(RANK, PART, OVERALL, log_x=True),
  ),
  _figure(
    'rank-time',
    'figures 16, 17, 18',
    'several times longer at 320 than at 20',
    times,
    (
      Axis(PROCESSOR, RANK, 'ms of a step, of the processor', log_x=True),
      Axis(MILLISECONDS, RANK, 'ms of a step, by the clock', log_x=True),
    ),
  ),
  _figure(
    'step-rmse',
    'figures 19, 20, 21',
    'larger mu, larger error',
    by_step_size,
    _axes(STEP_SIZE, PART, HELD_OUT, log_x=True),
  ),
  _figure(
    'step-epsilon',
    'figures 22, 23, 24',
    'larger mu, smaller epsilon, as there are fewer steps',
    by_step_size,
    _axes(STEP_SIZE, OVERALL, log_x=True),
  ),
  _figure(
    'step-both',
    'figures 25, 26, 27',
    '',
    by_step_size,
    _axes(STEP_SIZE, PART, OVERALL, log_x=True),
  ),
)
