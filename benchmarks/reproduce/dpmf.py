"""The figures of Hua, Xia and Zhong: trusted and untrusted recommenders."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.cases import Axis, Case, Figure
from benchmarks.reproduce.measures import CDF, HELD_OUT, INCREASE

_DATA = ('ml-100k', 'netflix-100')
_EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)
_RUNS = {'quick': 1, 'netflix-100': 1}
NO_NOISE = 1e6  # an epsilon
_RANK, _ROUNDS = 20, 50


def _trusted(data: str, epsilon: float) -> dict[str, Any]:
  """Both stages with Hua et al.'s objective."""
  steps = 15 if data == 'quick' else 50
  return {
    'objective': 'hua',
    'relation': 'replace',
    'epsilon': epsilon,
    'pmf_steps': steps,
    'noise_steps': steps,
  }


def _untrusted(data: str, epsilon: float, attendance: str) -> dict[str, Any]:
  rounds = 15 if data == 'quick' else _ROUNDS
  return {'epsilon': epsilon, 'attendance': attendance, 'rounds': rounds}


def _sound(epsilon: float) -> dict[str, Any]:
  return {'relation': 'replace', 'epsilon': epsilon, 'delta': 1e-12}


def _case(data: str, **fields: Any) -> Case:
  return Case(runs=_RUNS.get(data, 3), **fields)


def error_curves(data: str) -> list[Case]:
  few = (0.1, 1.0) if data == 'quick' else (0.1, 0.5, 1.0, 4.0)
  trusted = {'system': 'objective_pmf', 'measure': 'cdf'}
  made = [
    _case(
      data,
      curve='PMF',
      form='not private',
      settings=_trusted(data, NO_NOISE),
      **trusted,
    )
  ]
  for e in few:
    made.append(
      _case(
        data,
        curve=f'DPMF, epsilon {e:g}',
        form='published',
        settings=_trusted(data, e),
        **trusted,
      )
    )
  for e in (0.1, 1.0):
    made.append(
      _case(
        data,
        curve=f'sound, epsilon {e:g}',
        form='sound',
        variant='sound',
        settings=_sound(e),
        **trusted,
      )
    )
  return made


def increases(data: str) -> list[Case]:
  """Each form over PMF as its own scenario has it, without noise."""
  trusted = 'objective_pmf', _trusted(data, NO_NOISE)
  static = 'untrusted_pmf', _untrusted(data, NO_NOISE, 'static')
  made = []
  for e in (0.1, 1.0) if data == 'quick' else _EPSILONS:
    for curve, variant, (system, plain), settings in (
      ('trusted', 'paper', trusted, _trusted(data, e)),
      ('static users', 'paper', static, _untrusted(data, e, 'static')),
      ('dynamic users', 'paper', static, _untrusted(data, e, 'dynamic')),
      ('sound, trusted', 'sound', trusted, _sound(e)),
      ('sound, untrusted', 'sound', static, _sound(e)),
    ):
      made.append(
        _case(
          data,
          curve=curve,
          form='published' if variant == 'paper' else 'sound',
          measure='increase',
          system=system,
          variant=variant,
          settings=settings,
          options={'baseline': system, 'settings': plain},
          x=e,
        )
      )
  return made


def overheads(data: str) -> list[Case]:
  rank = 4 if data == 'quick' else _RANK
  return [
    Case(
      curve=f'{said}, {counted}',
      form='sound' if attendance == 'sound' else 'published',
      measure='overhead',
      options={
        'attendance': attendance,
        'counted': counted,
        'rank': rank,
        'rounds': _ROUNDS,
        'measured_rounds': 3,
      },
    )
    for attendance, said in (
      ('static', 'static users'),
      ('dynamic', 'dynamic users'),
      ('sound', 'one round'),
    )
    for counted in ('formula', 'messages')
  ]


_NO_NUMBERS = 'notes of the paper, no numbers'
_EPSILON = 'epsilon (claimed; proved where sound)'

FIGURES = (
  Figure(
    'dpmf/cdf',
    _NO_NUMBERS,
    '',
    _DATA,
    error_curves,
    (
      Axis(
        CDF,
        'absolute error of a prediction',
        'share of held-out ratings within that error',
      ),
    ),
  ),
  Figure(
    'dpmf/increase',
    _NO_NUMBERS,
    '',
    _DATA,
    increases,
    (
      Axis(INCREASE, _EPSILON, 'increase of the mean error', log_x=True),
      Axis(HELD_OUT, _EPSILON, 'held-out RMSE', log_x=True),
    ),
  ),
  Figure(
    'dpmf/overhead',
    _NO_NUMBERS,
    '',
    ('ml-100k',),
    overheads,
    tuple(
      Axis(metric, f'{metric}, of one user', '', kind='bars')
      for metric in (
        'bytes sent in a round',
        'bytes received in a round',
        'bytes of the third party in a round',
        'bytes in all',
      )
    ),
  ),
)
