"""`compare`: systems by epsilons by seeds on the same ratings, in one table.

Noise, epsilons and keys are no part of what is compiled, and all training sides
are laid out in one shape: a system is compiled once, unless its rank depends on
epsilon, as that of `auto` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from dpmf_jax import files, plans
from dpmf_jax.evaluation import comparison, metrics, popular, ranking
from dpmf_jax.evaluation.comparison import Comparison
from dpmf_jax.keys import random_key
from dpmf_jax.plans import selection
from dpmf_jax.plans.settings import no_guarantee, settings_of
from dpmf_jax.plans.spec import Task
from dpmf_jax.ratings import splits
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, Rows, device_mesh, needed_chunks, training_data
from dpmf_jax.runs import choosing, folders
from dpmf_jax.runs.choosing import Chosen
from dpmf_jax.training import fit
from dpmf_jax.types import Release

Split = Literal['random', 'last', 'one']
CELLS = 'cells.jsonl'
# Where there are more items, equations of all pairs of them take long.
_EASE_ITEMS = 5_000
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
  wanted = task or ('ranking' if table.clicks else 'rating')
  epsilons = _epsilons(epsilons)
  share = _share(split, test_fraction, folds)
  _check_counts(seeds=seeds, ranking_k=ranking_k)
  entries = _entries(systems, epsilons, delta, wanted, table)
  measured = Measured(table, wanted, ranking_k, ranking_threshold)
  parts = [
    Part(split, share, folds, seed, number)
    for seed in range(seeds)
    for number in range(folds or 1)
  ]
  identity = {
    'ratings': _digest(table),
    'task': wanted,
    'ranking': [ranking_k, measured.threshold],
    'versions': folders.versioned(),
  }
  cells = [
    Cell(part, entry, files.sha256(_json([identity, part, entry.identity])))
    for part in parts
    for entry in entries
  ]
  with _kept(output, overwrite) as (known, keep):
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
      protocol=_protocol(split, share, folds, seeds),
    )
    if output is not None:
      result.write(Path(output))
  return result


class Part(NamedTuple):
  """What is held out in a run, and the seed of its noise."""

  split: Split
  share: float | None
  folds: int | None
  seed: int
  number: int

  def sides(self, ratings: Ratings) -> tuple[Ratings, Ratings]:
    """(train, test)."""
    seed = self.seed
    if self.folds:
      return splits.fold(ratings, self.number, folds=self.folds, seed=seed)
    if self.split == 'last':
      return splits.hold_out_last(ratings, seed=seed)
    if self.split == 'one':
      return splits.hold_out_per_user(ratings, 1, seed=seed)
    assert self.share is not None
    return splits.random_split(ratings, self.share, seed=seed)

  def key(self) -> jax.Array:
    """As in `train` with that seed; each fold has its own."""
    key, _ = jax.random.split(random_key(self.seed))
    return jax.random.fold_in(key, self.number) if self.folds else key


class Entry(NamedTuple):
  """What stands in a row, or several: a system at an epsilon, or baselines.

  Attributes:
    label: of the row.
    epsilon: that was asked for; None where there is none.
    chosen: what to run; None for baselines.
  """

  label: str
  epsilon: float | None
  chosen: Chosen | None

  @property
  def identity(self) -> list[Any]:
    if self.chosen is None:
      return [self.label]
    chosen = self.chosen
    return [self.label, chosen.name, chosen.variant, repr(chosen.config)]


class Cell(NamedTuple):
  """A run, and what tells whether it is done."""

  part: Part
  entry: Entry
  key: str


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
      return {'rmse': float(metrics.release_rmse(model, rows, train.scale))}
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


def _entries(
  systems: Sequence[str],
  epsilons: Sequence[float],
  delta: float | None,
  task: Task,
  table: Ratings,
) -> list[Entry]:
  """What is run; ValueError where any of it cannot be."""
  if isinstance(systems, str) or not systems:
    raise ValueError(
      f"systems={systems!r} must be a list, such as ['auto', 'power_mf']"
    )
  if twice := [each for each in systems if [*systems].count(each) > 1]:
    raise ValueError(
      f'systems={",".join(systems)} has {twice[0]!r} twice: leave one out'
    )
  found = []
  for text in systems:
    found += _of_system(text, epsilons, delta, task, table)
  if all(entry.epsilon is not None for entry in found):
    found += _of_system(_not_private(task, table), epsilons, None, task, table)
  return [*found, Entry('baselines', None, None)]


def _not_private(task: Task, table: Ratings) -> str:
  if task == 'rating':
    return 'als'
  return 'ease' if table.num_items <= _EASE_ITEMS else 'als:feedback=implicit'


def _of_system(
  text: str,
  epsilons: Sequence[float],
  delta: float | None,
  task: Task,
  table: Ratings,
) -> list[Entry]:
  """The entries of one of `systems`, one for each epsilon if it has any."""
  try:
    name, variant, given = _parsed(text)
    run_as = selection.run_as(name, variant)
    spec = None if name == 'auto' else selection.spec_of(run_as)
    if spec and spec.personalized:
      raise ValueError(
        'it needs an epsilon for each rating; use train, or objective_pmf here'
      )
    plain = spec and (
      'epsilon' not in selection.fields(spec) or variant == 'none'
    )
    return [
      Entry(
        text,
        epsilon,
        _chosen(name, variant, given, epsilon, delta, task, table),
      )
      for epsilon in ([None] if plain else epsilons)
    ]
  except ValueError as error:
    raise ValueError(f'systems={text} cannot be run: {error}') from None


def _chosen(
  name: str,
  variant: str | None,
  given: dict[str, Any],
  epsilon: float | None,
  delta: float | None,
  task: Task,
  table: Ratings,
) -> Chosen:
  wanted = task if name == 'auto' else None
  spec = plans.SPECS.get(selection.run_as(name, variant))
  if spec and 'delta' not in selection.fields(spec):
    delta = None
  found = choosing.chosen(
    name,
    {'epsilon': epsilon, **given},
    wanted,
    variant,
    delta,
    None,
    None,
    dataclasses.replace(table, epsilon=None, unique=True),
    None,
  )
  if found.task == 'ranking' and task == 'rating':
    raise ValueError(
      'it makes lists, and predicts no ratings: use task=ranking, or leave it '
      'out'
    )
  return found


def _parsed(text: str) -> tuple[str, str | None, dict[str, Any]]:
  """(name, variant, settings) of 'NAME:VARIANT:SETTING=VALUE'."""
  name, *rest = str(text).split(':')
  variant, given = None, {}
  for word in rest:
    setting, equals, value = word.partition('=')
    if not equals and variant is None and word in plans.VARIANTS:
      variant = word
    elif equals and setting not in (*given, 'epsilon', 'delta', 'scale'):
      given[setting] = _value(name, variant, setting, value)
    else:
      raise ValueError(
        f'{word!r} must be a variant ({", ".join(plans.VARIANTS)}) or '
        'SETTING=VALUE, each once; epsilons and delta are arguments'
      )
  return name, variant, given


def _value(name: str, variant: str | None, setting: str, value: str) -> Any:
  """The value of a setting as its system declares it."""
  known = plans.SPECS.values()
  if name != 'auto':
    known = [selection.spec_of(selection.run_as(name, variant))]
  declared = (each for spec in known for each in settings_of(spec.config))
  kinds = {each.kind for each in declared if each.name == setting}
  convert: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: {'true': True, 'false': False}.__getitem__,
    str: str,
  }
  if not kinds:
    return value  # what is wrong with it is said where it is used
  try:
    return convert[kinds.pop()](value)
  except (ValueError, KeyError):
    raise ValueError(f'{setting}={value} is not a value of it') from None


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


def _share(
  split: str, fraction: float | None, folds: int | None
) -> float | None:
  """The part that is held out at random; None where something else is."""
  if split not in ('random', 'last', 'one'):
    raise ValueError(f"split={split!r} must be 'random', 'last' or 'one'")
  if folds is not None:
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
      raise ValueError(f'folds={folds!r} must be an integer from 2')
    if split != 'random':
      raise ValueError(
        f"folds={folds} is for split='random': 'last' and 'one' hold out one "
        'rating of each user'
      )
  if fraction is None:
    return None if folds or split != 'random' else 0.2
  if folds or split != 'random':
    raise ValueError(
      f"test_fraction={fraction} is for split='random' without folds: leave it "
      'out'
    )
  if not 0 < fraction < 1:
    raise ValueError(f'test_fraction={fraction} must be in (0, 1)')
  return fraction


def _check_counts(**counts: Any) -> None:
  for name, count in counts.items():
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
      raise ValueError(f'{name}={count!r} must be an integer from 1')


def _protocol(
  split: Split, share: float | None, folds: int | None, seeds: int
) -> str:
  times = f'{seeds} seed{"s" * (seeds > 1)}'
  if folds:
    return f'{folds} folds and {times}'
  held_out = {
    'random': f'{share or 0:.0%} of ratings held out at random',
    'last': 'the last rating of each user held out',
    'one': 'one random rating of each user held out',
  }
  return f'{held_out[split]}, {times}'


def _digest(ratings: Ratings) -> str:
  """A hash of all that a split and a run depend on."""
  sha = hashlib.sha256(folders.digest(ratings).encode())
  lists = (ratings.user_ids.astype(str), ratings.item_ids.astype(str))
  sha.update(_json([each.tolist() for each in lists]))
  sha.update(_json([ratings.scale, ratings.clicks, ratings.most_users]))
  if ratings.timestamp is not None:
    sha.update(np.ascontiguousarray(ratings.timestamp).tobytes())
  return sha.hexdigest()


def _json(value: Any) -> bytes:
  return json.dumps(value).encode()


@contextlib.contextmanager
def _kept(
  output: str | Path | None, overwrite: bool
) -> Iterator[tuple[dict[str, Any], Callable[[Cell, Any], None]]]:
  """Yields the runs of before by their keys, and what keeps another one."""
  if output is None:
    yield {}, lambda cell, found: None
    return
  folder = files.checked_path(output, 'output')
  path = folder / CELLS
  if folder.exists() and not folder.is_dir():
    raise ValueError(f'output={folder} is a file, not a folder')
  if folder.is_dir() and any(folder.iterdir()) and not path.exists():
    raise ValueError(
      f'output={folder} holds other files; choose an empty or new folder'
    )
  folder.mkdir(parents=True, exist_ok=True, mode=0o700)
  with folders.locked(folder, f'output={folder}'):
    for left in files.partial_files(path):
      left.unlink()
    lines = [] if overwrite or not path.exists() else _lines(path)

    def keep(cell: Cell, found: dict[str, Any]) -> None:
      label, epsilon, _ = cell.entry
      facts = {'key': cell.key, 'system': label, 'epsilon': epsilon}
      lines.append(facts | cell.part._asdict() | found)
      text = ''.join(json.dumps(line) + '\n' for line in lines)
      files.write_bytes(path, text.encode(), mode=0o600)

    yield {line['key']: line for line in lines}, keep


def _lines(path: Path) -> list[dict[str, Any]]:
  found = []
  for number, text in enumerate(path.read_text().splitlines(), 1):
    where = f'{path}, line {number}'
    line = files.parsed_json(text, where)
    if not {'key', 'found', 'seconds'} <= line.keys():
      raise ValueError(f'{where}: is no run; pass overwrite=True to begin anew')
    found.append(line)
  return found
