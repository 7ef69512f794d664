"""`compare`: systems by epsilons by seeds on the same ratings, in one table.

Noise, epsilons and keys are no part of what is compiled, and all training sides
are laid out in one shape: a system is compiled once, unless its rank depends on
epsilon, as that of `auto` does.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from dpmf_jax import files
from dpmf_jax.evaluation import comparison, metrics, popular, ranking
from dpmf_jax.evaluation.comparison import Comparison
from dpmf_jax.plans.settings import no_guarantee
from dpmf_jax.plans.spec import Task
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, Rows, device_mesh, needed_chunks, training_data
from dpmf_jax.runs import folders
from dpmf_jax.runs.cells import (
  Cell,
  Part,
  Split,
  as_json,
  digest,
  held_out_share,
  kept,
  protocol,
)
from dpmf_jax.runs.choosing import Chosen
from dpmf_jax.runs.entries import Entry, entries_of
from dpmf_jax.training import fit
from dpmf_jax.types import Release

_FIGURES = ('ndcg', 'recall', 'map', 'mrr', 'auc')
_NOT_PRIVATE = no_guarantee('add_remove', ())


def compare(
  ratings: Any,
  *,
  systems: Sequence[str] = ('auto', 'auto:unit=user'),
  epsilons: Sequence[float] = (0.5, 1, 2, 5, 10),
  seeds: int = 3,
  delta: float | None = None,
  task: Task | None = None,
  split: Split = 'random',
  test_fraction: float | None = None,
  folds: int | None = None,
  ranking_k: int = 10,
  ranking_threshold: float | None = None,
  scale: tuple[float, float] | None = None,
  max_count: int | None = None,
  output: str | Path | None = None,
  overwrite: bool = False,
  devices: int | None = None,
  progress: bool = True,
) -> Comparison:
  """How accurate systems are at each epsilon, on held-out ratings.

    found = dpmf_jax.compare('ml-100k', systems=['auto', 'gaussian_mf:paper'])
    print(found)
    found.plot('accuracy.png')

  Beside them are what predicts means, or lists what is popular, and a model
  without privacy: als, or ease for lists, unless `systems` has one.

  Args:
    ratings: what `train` takes.
    systems: names, as 'NAME:VARIANT:SETTING=VALUE': 'power_mf:rank=4',
      'gaussian_mf:paper', 'auto:unit=user'. What follows the name may be left
      out. Those without an epsilon run once for each seed.
    epsilons: of the runs of all others.
    seeds: how many; every seed has its own split and its own noise, the same
      for all systems and epsilons.
    delta: of guarantees; 1e-6 by default.
    task: 'rating' measures errors of ratings, the default where there are any;
      'ranking' what lists are worth.
    split: what is held out: 'random' ratings, the 'last' one of each user, by
      timestamps, or 'one' of each user at random.
    test_fraction: part of the ratings held out at random; 0.2 by default.
    folds: if given, random ratings are held out in so many parts, one after
      the other, and there is a run for each part and seed.
    ranking_k: the length of lists.
    ranking_threshold: the least rating that counts as relevant in them; by
      default those in the upper third of the scale.
    scale, max_count: see `train`.
    output: a folder for the table, a picture, and cells.jsonl with a line for
      each run. What is there for the same ratings, settings and versions is
      not run again, so that a comparison that was killed goes on.
    overwrite: forget the runs that are there.
    devices: how many to use; all by default.
    progress: whether to show a bar with the time that is left.

  Privacy: none; `comparison.NOTE` is above every table. Errors on held-out
  ratings are not private, and of runs with the same key nothing may be
  published: without their noise they are the same.
  """
  table = ratings_of(ratings, scale=scale, max_count=max_count)
  table = dataclasses.replace(table, epsilon=None, unique=True)
  wanted = task or ('ranking' if table.clicks else 'rating')
  if wanted not in ('rating', 'ranking'):
    raise ValueError(f"task={task!r} must be 'rating' or 'ranking'")
  if not isinstance(overwrite, bool):
    raise ValueError(f'overwrite={overwrite!r} must be True or False')
  epsilons = _epsilons(epsilons)
  share = held_out_share(split, test_fraction, folds)
  _check_counts(seeds=seeds, ranking_k=ranking_k)
  entries = entries_of(systems, epsilons, delta, wanted, table)
  measured = Measured(table, wanted, ranking_k, ranking_threshold)
  parts = [
    Part(split, share, folds, seed, number)
    for seed in range(seeds)
    for number in range(folds or 1)
  ]
  identity = {
    'ratings': digest(table),
    'task': wanted,
    'ranking': [ranking_k, measured.threshold],
    'versions': folders.versioned(),
  }
  cells = [
    Cell(part, entry, files.sha256(as_json([identity, part, entry.identity])))
    for part in parts
    for entry in entries
  ]
  with kept(output, overwrite) as (known, keep):
    missing = [cell for cell in cells if cell.key not in known]
    bar = tqdm(
      total=len(cells),
      initial=len(cells) - len(missing),
      unit='run',
      desc='comparing',
      disable=not progress or None,
    )
    with bar:
      for cell, found in _found(table, missing, measured, devices, bar):
        known[cell.key] = found
        keep(cell, found)
    result = Comparison(
      rows=_rows(entries, cells, known),
      metrics=measured.names,
      name=table.name,
      protocol=protocol(split, share, folds, seeds),
    )
    if output is not None:
      result.write(Path(output))
  return result


@dataclasses.dataclass(frozen=True)
class Measured:
  """What is measured of a model."""

  ratings: Ratings
  task: Task
  k: int
  least: float | None

  @functools.cached_property
  def threshold(self) -> float | None:
    if self.least is None and self.task == 'ranking':
      return popular.relevant_from(self.ratings)
    return self.least

  @property
  def names(self) -> tuple[str, ...]:
    """Of the figures; the first is the one that people look at."""
    if self.task == 'rating':
      return ('rmse',)
    lists = (f'{name}@{self.k}' for name in _FIGURES[:2])
    return (*lists, *_FIGURES[2:])

  def __call__(
    self, model: Release, train: Ratings, test: Ratings, rows: Rows
  ) -> dict[str, float | None]:
    leaves = jax.tree.leaves(model._replace(fit=None))
    if not all(np.isfinite(leaf).all() for leaf in leaves):
      return dict.fromkeys(self.names)  # it diverged
    if self.task == 'rating':
      error = float(metrics.release_rmse(model, rows, train.scale))
      # Products of finite factors may have none.
      return {'rmse': error if np.isfinite(error) else None}
    return self._of_lists(jax.device_get(model), train, test)

  def baselines(
    self, train: Ratings, test: Ratings
  ) -> dict[str, dict[str, float | None]]:
    """The same of predictors that learn nothing of users' tastes."""
    if self.task == 'ranking':
      model = popular.popularity(train)
      return {'popularity': self._of_lists(model, train, test)}
    found = metrics.baselines(train, test)
    return {
      name.replace('_', ' '): {'rmse': value} for name, value in found.items()
    }

  def _of_lists(
    self, model: Release, train: Ratings, test: Ratings
  ) -> dict[str, float | None]:
    found = ranking.ranking_metrics(
      model, train, test, self.k, threshold=self.threshold
    )
    if not found['relevant']:
      raise ValueError(
        f'ranking_threshold={self.threshold} leaves no held-out rating that is '
        'relevant: use a smaller one, or hold out more'
      )
    return {name: found[name] for name in self.names}


def _found(
  table: Ratings,
  cells: Sequence[Cell],
  measured: Measured,
  devices: int | None,
  bar: tqdm,
) -> Iterator[tuple[Cell, dict[str, Any]]]:
  """The cells with what was found, one after the other."""
  parts = list(dict.fromkeys(cell.part for cell in cells))
  mesh = device_mesh(devices)
  sizes = [
    [needed_chunks(side, mesh) for side in part.sides(table)] for part in parts
  ]
  least = [
    tuple(np.max(each, axis=0).tolist()) for each in zip(*sizes, strict=True)
  ]
  for part in parts:
    train, test = part.sides(table)
    data, held_out = (
      training_data(side, mesh=mesh, least_chunks=chunks)
      for side, chunks in zip((train, test), least, strict=True)
    )
    for cell in cells:
      if cell.part != part:
        continue
      entry, began = cell.entry, time.monotonic()
      at = '' if entry.epsilon is None else f', epsilon {entry.epsilon:g}'
      bar.set_postfix_str(f'{entry.label}{at}')
      if entry.chosen is None:
        found = measured.baselines(train, test)
      else:
        model = _trained(entry.chosen, part.key(), data)
        found = {entry.label: measured(model, train, test, held_out.by_user)}
      bar.update()
      seconds = round(time.monotonic() - began, 3)
      yield cell, {'found': found, 'seconds': seconds}


def _trained(chosen: Chosen, key: jax.Array, data: Data) -> Release:
  state = fit(chosen.system, key, data)
  return chosen.system.model(state, data)


def _rows(
  entries: Sequence[Entry], cells: Sequence[Cell], known: dict[str, Any]
) -> list[dict[str, Any]]:
  """The rows of the table, those of baselines last."""
  rows = []
  for place, entry in enumerate(entries):
    runs = [known[cell.key] for cell in cells[place :: len(entries)]]
    chosen = entry.chosen
    seconds = round(sum(run['seconds'] for run in runs), 3)
    for label in runs[0]['found']:
      found = [run['found'][label] for run in runs]
      guarantee = chosen.system.guarantee if chosen else _NOT_PRIVATE
      rows.append(
        {
          'system': label,
          'runs_as': f'{chosen.name}:{chosen.variant}'
          if chosen
          else 'baseline',
          'epsilon': entry.epsilon,
          **comparison.promised(guarantee, chosen and chosen.delta),
          **comparison.summary(found),
          'seconds': seconds,
        }
      )
  return rows


def _epsilons(given: Any) -> list[float]:
  several = isinstance(given, Iterable) and not isinstance(given, str)
  found: list[Any] = list(given) if several else []
  numbers = [e for e in found if isinstance(e, int | float | np.number)]
  good = len({*numbers}) == len(found) and all(0 < e < np.inf for e in numbers)
  if not (found and good):
    raise ValueError(
      f'epsilons={given!r} must be several positive numbers, such as [1, 2]'
    )
  return [float(epsilon) for epsilon in numbers]


def _check_counts(**counts: Any) -> None:
  for name, count in counts.items():
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
      raise ValueError(f'{name}={count!r} must be an integer from 1')
