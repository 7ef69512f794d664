"""The figures of Jiang, Li and Lin: SDMF, SD-BPRMF and SD-FM."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.cases import Axis, Case, Figure, Form
from benchmarks.reproduce.measures import AUC, HELD_OUT, ROUNDS

EPSILONS = (4.0, 1.0, 0.25, 0.0625)
_RUNS = {'ml-100k': 3, 'ml-1m': 1, 'quick': 1}  # the paper has 30 and 10
_SIZES = {
  'ml-100k': (943, 1682, 100_000),
  'ml-1m': (6040, 3900, 1_000_209),
  'netflix': (10_000, 5000, 573_595),
}
# The paper does not say where the other epsilon is held.
_HELD = 4.0


def _rounds(data: str) -> dict[str, Any]:
  return {'steps': 6, 'rank': 4} if data == 'quick' else {'steps': 100}


def _case(data: str, curve: str, form: Form, **fields: Any) -> Case:
  return Case(
    curve=curve,
    form=form,
    measure=fields.pop('measure', 'rounds'),
    runs=_RUNS.get(data, 2),
    options=fields.pop('options', {'every': 3 if data == 'quick' else 5}),
    **fields,
  )


def sdmf(data: str, curve: str, value: float, instant: float) -> Case:
  """SDMF as published; a value of 0 is alpha = inf."""
  settings = {'epsilon_value': value, 'epsilon_instant': instant}
  return _case(
    data,
    curve,
    'published',
    system='sdmf',
    settings=settings | _rounds(data),
  )


def langevin(data: str, epsilon: float | None) -> Case:
  """MF by Langevin dynamics, on ratings with noise or as they are."""
  settings = {} if epsilon is None else {'epsilon': epsilon}
  return _case(
    data,
    'not private' if epsilon is None else f'ISGLD, eps {epsilon:g}',
    'not private' if epsilon is None else 'published',
    system='langevin',
    variant='none' if epsilon is None else 'paper',
    settings=settings | _rounds(data),
  )


def local(data: str, epsilon: float) -> Case:
  """The sound form: each record is randomised once, at the client."""
  return _case(
    data,
    f'sound (local MF), record epsilon {epsilon:g}',
    'sound',
    measure='errors',
    options={},
    system='local_mf',
    variant='sound',
    settings={'epsilon': epsilon},
  )


def learning_curves(data: str) -> list[Case]:
  quick = data == 'quick'
  few = (4.0,) if quick else EPSILONS
  return [
    langevin(data, None),
    langevin(data, 4.0),
    langevin(data, 2.0),
    *(sdmf(data, f'eps_g {e:g}', e, _HELD) for e in few),
    sdmf(data, 'alpha = inf', 0.0, _HELD),
    *(sdmf(data, f'eps_I {e:g}', _HELD, e) for e in few),
    # Other levels of answers are other programs.
    *(local(data, e) for e in ((4.0,) if quick else (1.0, 4.0))),
  ]


def ranking(data: str) -> list[Case]:
  """SD-BPRMF by both readings of its signs, one item of each user held out."""
  quick = data == 'quick'
  settings = {'steps': 6, 'rank': 4} if quick else {'steps': 100}
  every = {'every': 3 if quick else 20}
  made = [
    _case(
      data,
      'not private',
      'not private',
      measure='auc',
      options=every,
      system='sdbpr',
      variant='none',
      settings=settings,
      split='one out',
    ),
    _case(
      data,
      'popularity',
      'not private',
      measure='popularity_auc',
      options={},
      system='sdbpr',
      variant='none',
      split='one out',
    ),
  ]
  for sign in ('true', 'perturbed'):
    for e in (4.0,) if quick or sign == 'perturbed' else EPSILONS:
      made.append(
        _case(
          data,
          f'signs of {sign} bits, eps_I {e:g}',
          'published',
          measure='auc',
          options=every,
          system='sdbpr',
          settings={**settings, 'epsilon_instant': e, 'gradient_sign': sign},
          split='one out',
        )
      )
  for e in (1.0, 4.0):
    made.append(
      _case(
        data,
        f'sound (local ranking), record epsilon {e:g}',
        'sound',
        measure='auc',
        options={'every': None},
        system='local_ranking',
        variant='sound',
        settings={'epsilon': e},
        split='one out',
      )
    )
  return made


def sizes(data: str) -> list[Case]:
  known = zip(('users', 'items', 'ratings'), _SIZES.get(data, ()), strict=False)
  return [
    Case(
      curve='as run',
      form='published',
      measure='sizes',
      published=dict(known),
    )
  ]


def machines(data: str) -> list[Case]:
  """SD-FM with attributes and without, and its factors alone: SDMF."""
  made = []
  for label, settings in (
    ('SD-FM, attributes', {'attributes': True}),
    ('SD-FM, linear weights', {}),
    ('SDMF (factors alone)', {'side_step': 0.0}),
  ):
    private = {'epsilon_value': 4.0, 'epsilon_instant': 4.0}
    ways: tuple[tuple[str, Form, dict[str, Any]], ...] = (
      ('none', 'not private', {}),
      ('paper', 'published', private),
    )
    for variant, form, given in ways:
      made.append(
        _case(
          data,
          f'{label}, {form}',
          form,
          system='sdfm',
          variant=variant,
          settings={**_rounds(data), **settings, **given},
        )
      )
  return [*made, local(data, 4.0)]


_BASE = ('not private', 'ISGLD', 'sound')
_OF_ROUNDS = ('rounds', 'held-out RMSE, in points of the scale')
_SAYS = (
  'eps_I hardly matters; eps_g = 4 is close to not private; alpha = inf is '
  "about ISGLD at 4; ISGLD's two curves are further apart than all of SDMF's"
)


def _curves(name: str, published: str, data: str) -> Figure:
  return Figure(
    f'sdcf/{name}',
    published,
    _SAYS,
    (data,),
    learning_curves,
    (
      Axis(ROUNDS, *_OF_ROUNDS, only=('eps_g', 'alpha', *_BASE)),
      Axis(ROUNDS, *_OF_ROUNDS, only=('eps_I', *_BASE)),
    ),
    kept='ten',
  )


_DATA = ('ml-100k', 'netflix', 'ml-1m')

FIGURES = (
  _curves('fig5', 'figures 5a, 5b', 'ml-100k'),
  _curves('fig6', 'figures 6a, 6b', 'ml-1m'),
  _curves('fig7', 'figures 7a, 7b', 'netflix'),
  Figure(
    'sdcf/fig8',
    'figures 8a, 8b, 8c',
    'AUC lost: .03 (ML-100K), .07 (ML-1M), .05 (Netflix)',
    _DATA,
    ranking,
    (Axis(AUC, 'rounds', 'AUC of one left-out item of each user'),),
    kept='ten',
  ),
  Figure(
    'sdcf/table2',
    'table 2',
    '',
    _DATA,
    sizes,
    tuple(
      Axis(what, f'number of {what}', '', kind='bars')
      for what in ('users', 'items', 'ratings')
    ),
    kept='ten',
  ),
  Figure(
    'sdcf/fm',
    'section 5',
    '',
    ('ml-100k',),
    machines,
    (Axis(HELD_OUT, _OF_ROUNDS[1], '', kind='bars'),),
    kept='ten',
  ),
)
