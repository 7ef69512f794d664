"""Runs what a figure needs that is not in its CSV yet."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce import counts, data, measures, table
from benchmarks.reproduce.cases import Case, Figure
from dpmf_jax import accounting, plans
from dpmf_jax.types import Guarantee

# Pure epsilons are stated at a delta that pays for the ends of noise.
_PURE_DELTA = 1e-12
# What attacks found about claims, and where that is told.
ATTACKS = {
  ('gaussian_mf', 'paper'): '>= 8.5 where 0.33 is claimed, on a data set built '
  'for it (docs/privacy/gaussian_mf.md)',
  ('objective_pmf', 'paper'): '>= 5.9 where 1 is claimed, on few users '
  '(docs/privacy/objective_pmf.md)',
  ('personalized_pmf', 'paper'): '>= 6.4 where 1 is claimed, on few users '
  '(docs/privacy/objective_pmf.md)',
  ('untrusted_pmf', 'paper'): '>= 5.9 where 1 is claimed, seen by the '
  'recommender (docs/privacy/untrusted_pmf.md)',
  ('sdmf', 'paper'): 'values tell rated items with AUC 0.99 '
  '(docs/privacy/sdcf.md)',
  ('sdfm', 'paper'): 'as sdmf (docs/privacy/sdcf.md)',
}


class Sets:
  """Data sets that are loaded when they are needed, and their splits."""

  def __init__(
    self,
    source: data.Source,
    *,
    quick: bool,
    only: Sequence[str] = (),
    most_runs: int | None = None,
    mesh: Any = None,
  ):
    self.source, self.quick, self.most_runs = source, quick, most_runs
    self._only, self._mesh = only, mesh
    self.splits = functools.lru_cache(maxsize=2)(self._splits)

  def _splits(self, name: str, kept: data.Filter) -> data.Splits:
    return data.Splits(data.dataset(name, self.source, kept), self._mesh)

  def all_of(self, figure: Figure) -> tuple[str, ...]:
    """The names of the data sets that a figure has."""
    if self.source.ratings is not None:
      return ('given',)
    return ('synthetic',) if self.quick else figure.data

  def of(self, figure: Figure) -> tuple[str, ...]:
    """Those of them that are asked for."""
    names = self.all_of(figure)
    return tuple(n for n in names if not self._only or n in self._only)


def config_of(case: Case, ratings: Any, source: data.Source) -> Any:
  """The settings of a case as a config of its system."""
  settings = dict(case.settings)
  if settings.pop('attributes', None):
    settings['attributes'] = counts.attributes_of(ratings, source)
  return plans.config_of(
    case.system, case.variant, scale=ratings.scale, **settings
  )


def epsilons(guarantee: Guarantee, delta: float) -> dict[str, float]:
  """The epsilon that is claimed, or the one that is proved."""
  if guarantee.event is None:
    return {}
  if guarantee.status == 'claimed':
    value = accounting.epsilon(guarantee, delta)
    return {'claimed_epsilon': value, 'delta': delta}
  delta = max(delta, _PURE_DELTA)
  value = accounting.epsilon(guarantee, delta)
  return {'proved_epsilon': value, 'delta': delta}


def _numbers(
  case: Case, splits: data.Splits, source: data.Source
) -> tuple[list[measures.Numbers], dict[str, float]]:
  """What each run of a case gave, and what is stated of its privacy."""
  ratings = splits.dataset.ratings
  if not case.system:
    measure = getattr(counts, case.measure)
    return [measure(splits.dataset, **case.options)], {}
  config = config_of(case, ratings, source)
  measure = getattr(measures, case.measure)
  runs = []
  for number in range(case.runs):
    part = splits.part(case.split, number, data.frozen(case.fractions))
    runs.append(measure(case.system, config, part, number, **case.options))
  stated = {}
  if case.form != 'not private':
    guarantee = plans.SPECS[case.system].plan(config).guarantee
    stated = epsilons(guarantee, config.delta)
    if measures.OVERALL in runs[0]:  # for as many steps as it took
      overall = [run[measures.OVERALL] for run in runs]
      stated['claimed_epsilon'] = float(np.mean(np.array(overall, float)))
  return runs, stated


def rows_of(
  case: Case, splits: data.Splits, source: data.Source
) -> list[table.Row]:
  """The rows of a case, but for the columns that its figure fills in."""
  runs, stated = _numbers(case, splits, source)
  claimed = 'claimed_epsilon' in stated
  same = identity(case, splits.dataset) | {
    'note': splits.dataset.said,
    'commit': table.commit(),
    'attack': ATTACKS.get((case.system, case.variant), '') if claimed else '',
    **{
      name: table.text(stated.get(name))
      for name in ('claimed_epsilon', 'proved_epsilon', 'delta')
    },
  }
  made = []
  for (metric, x), values in measures.means(runs).items():
    spread = None
    if len(values) > 1:
      spread = float(np.std(values, ddof=1) / len(values) ** 0.5)
    made.append(
      same
      | {
        'metric': metric,
        'x': table.text(None if x is None else float(x)),
        'mean': table.text(float(np.mean(values))),
        'standard_error': table.text(spread),
      }
    )
  return made


def identity(case: Case, dataset: data.Dataset) -> table.Row:
  """What the rows of a case are found again by."""
  ratings = dataset.ratings
  what = 'folds' if case.split == 'tenfold' else 'seeds'
  last = f'..{case.runs - 1}' if case.runs > 1 else ''
  return {
    'data': dataset.name,
    'ratings': f'{len(ratings)} of {ratings.num_users} users for '
    f'{ratings.num_items} items',
    'settings': case.key(),
    'seeds': f'{what} 0{last}' if case.system else '',
  }


def run(
  figure: Figure,
  folder: Path,
  sets: Sets,
  tick: Callable[[str], None] = lambda text: None,
) -> list[table.Row]:
  """All rows of a figure; those that are missing are run, and written.

  The CSV is written after each case, whole. What is there already, in this
  figure's CSV or another's in the folder, is not run again. Of the curves of a
  case there are those that the figure shows.
  """
  path = folder / f'{figure.name}.csv'
  path.parent.mkdir(parents=True, exist_ok=True)
  before = table.read(path)
  known, rows, seen = table.finished(folder), [], set()
  for name, case in cases_of(figure, sets):
    splits = sets.splits(name, figure.kept)
    key = table.key_of(identity(case, splits.dataset))
    found = known.get(key, [])
    if not _suffices(found, case, figure):
      found = rows_of(case, splits, sets.source)
    known[key] = found
    seen.add(key)
    rows += [
      table.shown_as(
        row,
        case.x,
        figure=figure.name,
        curve=case.curve,
        form=case.form,
        published=table.text(case.published.get(row['metric'])),
      )
      for row in found
      if not table.has_own_x(row['metric'])
      or row['metric'] in figure.shown(case.curve)
    ]
    # What an earlier run finished after this point is kept until it is reached.
    later = [row for row in before if table.key_of(row) not in seen]
    table.write(path, [*rows, *later])
    tick(f'{figure.name}, {name}: {case.curve}')
  others = set(sets.all_of(figure)) - set(sets.of(figure))
  rows += [row for row in before if row['data'] in others]
  table.write(path, rows)
  return rows


def _suffices(found: list[table.Row], case: Case, figure: Figure) -> bool:
  """Whether rows that were found have the curves that the figure shows.

  Another figure with the same case may show its last point alone.
  """
  curves = measures.CURVES.get(case.measure, ())
  wanted = figure.shown(case.curve).intersection(curves)
  if case.options.get('every', 1) is None:  # it has no curve
    wanted = set()
  return bool(found) and (
    not wanted or any(row['metric'] in wanted for row in found)
  )


def cases_of(figure: Figure, sets: Sets) -> Iterator[tuple[str, Case]]:
  """(data set, case) in the order in which they are run."""
  for name in sets.of(figure):
    for case in figure.cases('quick' if sets.quick else name):
      most = case.runs if sets.most_runs is None else sets.most_runs
      yield name, dataclasses.replace(case, runs=min(case.runs, most))
