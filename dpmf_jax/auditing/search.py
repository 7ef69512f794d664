"""A search for neighbours and settings that are worse than the library's.

Random cases for the first third of the time, then changes to the best few:
another rating, another place of the one that changes, another setting. No
gradients: a case is worth the bound that a quick audit of it gives. What
comes out is measured again with runs of its own, since the best of many
quick audits is best by luck, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from dpmf_jax.auditing.distinguishing import Measurement, measure
from dpmf_jax.auditing.found import Record
from dpmf_jax.auditing.pairs import Pair, Row, neighbours
from dpmf_jax.auditing.sampling import sampler, tiny_data
from dpmf_jax.plans.spec import Case, Start
from dpmf_jax.systems import made

_SHAPES = ((2, 1), (4, 1), (3, 2))  # users, items
_LEVELS = 5  # ratings, from the lowest to the highest
_ELITE = 6
_QUICK_RUNS = 6_000
_QUICK_CONFIDENCE = 0.8
_STARTS: tuple[Start, ...] = ('random', 'known')


class Candidate(NamedTuple):
  """A case as the search changes it."""

  levels: np.ndarray  # [U, I] int, -1 for no rating
  target: tuple[int, int]
  other: int  # level of the target in the second data set; -1 if it is gone
  settings: Mapping[str, float]
  start: Start
  start_seed: int


def search(
  key: jax.Array,
  name: str,
  variant: str,
  case: Case,
  *,
  seconds: float,
  mesh: Mesh | None = None,
  progress: Callable[[float, float], object] = lambda seconds, best: None,
) -> Record:
  """The worst case found within `seconds`.

  Args:
    key: of all choices and runs; consumed.
    name, variant: of the system.
    case: settings to start from, and the ranges to vary them in.
    seconds: to search for; the candidate at hand is finished.
    mesh: devices that share the runs.
    progress: called with the seconds so far and the best bound.
  """
  choice_key, run_key = jax.random.split(key)
  rng = np.random.default_rng(np.asarray(jax.random.key_data(choice_key)))
  relation = made(name, variant, **case.settings).guarantee.relation
  began, elite, number = time.monotonic(), [], 0
  while True:
    spent = time.monotonic() - began
    if elite:
      progress(spent, elite[0][0])
    if elite and spent > seconds:
      break
    if spent < seconds / 3 or len(elite) < 2:
      candidate = _random(rng, relation, case)
    else:
      candidate = _mutated(rng, relation, case, elite)
    record = _record(candidate, name, variant, case, f'case {number}')
    number += 1
    if record is None:
      continue
    measured = quick_bound(
      jax.random.fold_in(run_key, number), record, mesh=mesh
    )
    # The Gaussian bound orders those that the other cannot tell apart.
    worth = measured.epsilon + 1e-3 * measured.gaussian
    elite.append((worth, candidate, record))
    elite = sorted(elite, key=lambda entry: -entry[0])[:_ELITE]
  _, _, record = elite[0]
  return record


def quick_bound(
  key: jax.Array, record: Record, *, mesh: Mesh | None = None
) -> Measurement:
  """A measurement to compare cases by; its confidence is low."""
  first, second = record.pair.first, record.pair.second
  sample = sampler(
    made(record.system, record.variant, **record.settings),
    tiny_data(first, second),
    start=record.start,
    start_key=jax.random.key(record.start_seed),
    view=record.settings.get('view'),
    mesh=mesh,
  )
  return measure(
    sample,
    key,
    runs=_QUICK_RUNS,
    delta=record.settings.get('delta', 1e-5),
    confidence=_QUICK_CONFIDENCE,
  )


def _random(rng: np.random.Generator, relation: str, case: Case) -> Candidate:
  users, items = _SHAPES[rng.integers(len(_SHAPES))]
  levels = rng.integers(-1, _LEVELS, (users, items))
  settings = {
    name: _between(rng, bounds, case.settings.get(name, bounds[0]))
    for name, bounds in case.ranges.items()
  }
  start = _STARTS[rng.integers(len(_STARTS))], int(rng.integers(2**31))
  return _with_target(rng, relation, levels, settings, start)


def _mutated(
  rng: np.random.Generator, relation: str, case: Case, elite: list
) -> Candidate:
  parent: Candidate = elite[rng.integers(len(elite))][1]
  levels = parent.levels.copy()
  settings = dict(parent.settings)
  start = parent.start, parent.start_seed
  for _ in range(rng.integers(1, 4)):
    match rng.integers(4):
      case 0:
        start = _STARTS[rng.integers(len(_STARTS))], int(rng.integers(2**31))
      case 1 if settings:
        name = list(settings)[rng.integers(len(settings))]
        low, high = case.ranges[name]
        near = settings[name] * math.exp(rng.normal(0, 0.7))
        value = min(max(near, low), high)
        settings[name] = (
          round(value) if isinstance(settings[name], int) else value
        )
      case _:
        cell = tuple(rng.integers(levels.shape))
        levels[cell] = rng.integers(-1, _LEVELS)
  if rng.random() < 0.7 and levels[parent.target] >= 0:
    kept = {'levels': levels, 'settings': settings}
    return parent._replace(**kept, start=start[0], start_seed=start[1])
  return _with_target(rng, relation, levels, settings, start)


def _with_target(rng, relation, levels, settings, start) -> Candidate:
  """The candidate with some rating as the one that changes."""
  user, item = rng.integers(levels.shape)
  target = int(user), int(item)
  levels[target] = max(levels[target], rng.integers(_LEVELS))
  other = -1 if relation == 'add_remove' else int(rng.integers(_LEVELS))
  return Candidate(levels, target, other, settings, *start)


def _between(rng: np.random.Generator, bounds, like) -> float:
  low, high = bounds
  value = float(np.exp(rng.uniform(math.log(low), math.log(high))))
  return round(value) if isinstance(like, int) else value


def _record(
  candidate: Candidate, name: str, variant: str, case: Case, label: str
) -> Record | None:
  """The candidate as a case; None if it is none."""
  low, high = case.settings['scale']
  values = np.linspace(low, high, _LEVELS)

  def rows(levels: np.ndarray) -> list[Row]:
    return [
      (int(user), int(item), float(values[levels[user, item]]))
      for user, item in np.argwhere(levels >= 0)
    ]

  changed = candidate.levels.copy()
  changed[candidate.target] = candidate.other
  first, second = rows(candidate.levels), rows(changed)
  if not first or not second or first == second:
    return None
  tables = neighbours(first, second, (low, high))
  settings: dict[str, Any] = {**case.settings, **candidate.settings}
  start = candidate.start, candidate.start_seed
  return Record(name, variant, settings, *start, Pair(label, *tables))
