"""The figures of Zhang et al.: personalised privacy, PDP-PMF and DP-PMF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.reproduce.cases import Axis, Case, Figure
from benchmarks.reproduce.measures import CDF, HELD_OUT
from dpmf_jax import accounting
from dpmf_jax.ratings.specification import asked_by_fractions

Noise = Literal['once', 'every_step']

_DATA = ('ml-100k', 'netflix', 'ml-1m')
_FOLDS = {'ml-100k': 10, 'netflix': 3, 'ml-1m': 2, 'quick': 1}
# k1, the reading that learns; and k2.
_STEPS = {'ml-1m': (450, 50), 'quick': (15, 15)}
_HIGHEST = 1.0  # epsilon of liberal ratings
# (f_c, f_l) of tables 2 and 3; f_m = .37.
SETS = {1: 0.54, 2: 0.37, 3: 0.20}
# Of table 4.
FIFTH = {'conservative': 0.6, 'moderate': 0.35, 'middle': 0.4}
_SAID = {'once': 'noise once', 'every_step': 'noise in every step'}


def threshold(fractions: Mapping[str, float]) -> float:
  """t, the mean of the specification, which no rating has a part in."""
  asked = asked_by_fractions(**fractions)
  return accounting.personal_threshold(
    asked.epsilon, 'mean', asked.share, method='sampling'
  )


def _case(data: str, **fields: Any) -> Case:
  return Case(
    measure='cdf', split='tenfold', runs=_FOLDS.get(data, 3), **fields
  )


def published(
  data: str,
  fractions: Mapping[str, float],
  x: float | None,
  *,
  curve: str = 'PDP-PMF',
  noise: Noise = 'once',
  t: float | None = None,
) -> Case:
  """PDP-PMF, the sample and then both stages."""
  first, second = _STEPS.get(data, (50, 50))
  return _case(
    data,
    curve=f'{curve}, {_SAID[noise]}',
    form='published',
    system='personalized_pmf',
    settings={
      'epsilon': threshold(fractions) if t is None else t,
      'noise': noise,
      'pmf_steps': first,
      'noise_steps': second,
    },
    fractions=fractions,
    x=x,
  )


def uniform(data: str, noise: Noise | None) -> Case:
  """DP-PMF at the least epsilon, for all ratings; or its sound form."""
  first, second = _STEPS.get(data, (50, 50))
  given: dict[str, Any] = {'epsilon': 0.1}
  if noise is not None:
    given |= {'noise': noise, 'pmf_steps': first, 'noise_steps': second}
  return _case(
    data,
    curve='sound, 0.1 for all' if noise is None else f'DP-PMF, {_SAID[noise]}',
    form='sound' if noise is None else 'published',
    system='objective_pmf',
    variant='sound' if noise is None else 'paper',
    settings=_with_delta(given) if noise is None else given,
  )


def weights(data: str, fractions: Mapping[str, float], x: float | None) -> Case:
  """The sound form: ratings weighted by their epsilons, none left out."""
  return _sound(data, fractions, x, epsilon=_HIGHEST, method='weights')


def sampled(data: str, fractions: Mapping[str, float], t: float) -> Case:
  """The sound form of sampling at a threshold."""
  return _sound(data, fractions, t, epsilon=t, method='sampling')


def _sound(
  data: str, fractions: Mapping[str, float], x: float | None, **given: Any
) -> Case:
  return _case(
    data,
    curve=f'sound, {given["method"]}',
    form='sound',
    system='personalized_pmf',
    variant='sound',
    settings=_with_delta(given),
    fractions=fractions,
    x=x,
  )


def _with_delta(settings: dict[str, Any]) -> dict[str, Any]:
  """Pure, but for the ends of noise that is drawn in floats."""
  return settings | {'delta': 1e-12}


def _levels(data: str) -> list[Case]:
  return [
    uniform(data, 'once'),
    uniform(data, 'every_step'),
    uniform(data, None),
  ]


def by_conservative(data: str) -> list[Case]:
  quick = data == 'quick'
  made = _levels(data)
  for f_c in (0.1, 0.6) if quick else (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
    given = {'conservative': f_c}
    made += [
      published(data, given, f_c),
      published(data, given, f_c, noise='every_step'),
      weights(data, given, f_c),
    ]
  return made


def error_curves(data: str) -> list[Case]:
  made = _levels(data)
  for number, f_c in SETS.items():
    given = {'conservative': f_c}
    made.append(published(data, given, None, curve=f'PDP-PMF{number}'))
  given = {'conservative': SETS[1]}
  made.append(
    published(data, given, None, curve='PDP-PMF1', noise='every_step')
  )
  return [*made, weights(data, given, None)]


def by_middle(data: str) -> list[Case]:
  made = _levels(data)
  for middle in (0.2, 0.8) if data == 'quick' else (0.1, 0.3, 0.5, 0.7, 0.9):
    for number, f_c in SETS.items():
      given = {'conservative': f_c, 'middle': middle}
      made.append(published(data, given, middle, curve=f'PDP-PMF{number}'))
    given = {'conservative': SETS[1], 'middle': middle}
    made += [
      published(data, given, middle, curve='PDP-PMF1', noise='every_step'),
      weights(data, given, middle),
    ]
  return made


def by_threshold(data: str) -> list[Case]:
  """Runs by t, and some of them again for their curves of errors."""
  made = []
  quick = data == 'quick'
  for t in (0.4, 1.0) if quick else [round(0.1 * k, 1) for k in range(1, 11)]:
    made += [
      published(data, FIFTH, t, t=t),
      published(data, FIFTH, t, t=t, noise='every_step'),
      sampled(data, FIFTH, t),
    ]
  for t in (1.0,) if quick else (0.6, 0.7, 0.8, 1.0):
    made.append(published(data, FIFTH, None, t=t, curve=f't = {t:g}'))
  return made


def tables(data: str) -> list[Case]:
  """The parameter sets as they are run: t, and how many ratings are kept."""
  del data
  sets = {
    f'table 1, f_c {f:g}': {'conservative': f}
    for f in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
  }
  for number, f_c in SETS.items():
    sets[f'table 2, PDP-PMF{number}'] = {'conservative': f_c}
  for number, f_c in SETS.items():
    for middle in (0.1, 0.5, 0.9):
      label = f'table 3, PDP-PMF{number}, eps_m {middle:g}'
      sets[label] = {'conservative': f_c, 'middle': middle}
  sets['table 4'] = FIFTH
  return [
    Case(
      curve=label,
      form='published',
      measure='sampling',
      options={'fractions': dict(fractions), 't': threshold(fractions)},
    )
    for label, fractions in sets.items()
  ]


_RMSE = 'held-out RMSE, in points of the scale'
_WITHIN = 'share of held-out ratings within that error'
_ERROR = 'absolute error of a prediction'


def _figure(name, published, says, cases, axes, data=_DATA) -> Figure:
  return Figure(f'pdp/{name}', published, says, data, cases, axes)


FIGURES = (
  _figure(
    'fig2',
    'figure 2, table 1',
    'error grows about linearly in f_c; about 1.0 on ML-1M and Netflix; far '
    'below DP-PMF',
    by_conservative,
    (Axis(HELD_OUT, 'f_c, the share of conservative ratings', _RMSE),),
  ),
  _figure(
    'fig3',
    'figure 3, table 2',
    'on ML-1M and Netflix the three overlap, CDF(1) about 70%',
    error_curves,
    (Axis(CDF, _ERROR, _WITHIN),),
  ),
  _figure(
    'fig4',
    'figure 4, table 3',
    'falls about linearly in eps_m; limits in [.94, .97] on ML-1M and Netflix; '
    'third nearly flat',
    by_middle,
    (Axis(HELD_OUT, 'eps_m, the smallest epsilon of moderate ratings', _RMSE),),
  ),
  _figure(
    'fig5',
    'figures 5a, 5b, table 4',
    'best t about .70; flat above .4; .70 against 1.0 differ by 2.2 points',
    by_threshold,
    (
      Axis(CDF, _ERROR, _WITHIN, only=('t = ',)),
      *(
        Axis(
          f'CDF({x:g})',
          't, the threshold of sampling',
          f'share within an error of {x:g}',
          only=('PDP', 'sound'),
        )
        for x in (1.0, 1.5, 2.0)
      ),
    ),
    data=('ml-100k',),
  ),
  _figure(
    'tables',
    'tables 1 to 4',
    '',
    tables,
    (
      Axis('t', 't, the mean epsilon', '', kind='bars'),
      Axis('kept', 'share of ratings that sampling keeps', '', kind='bars'),
    ),
    data=('ml-100k',),
  ),
)
