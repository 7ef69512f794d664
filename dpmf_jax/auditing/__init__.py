"""The auditor: attacks what systems state, and says what it measured.

  audit(system, key=key, runs=200_000)     one's own, or one of the library
  audit('gaussian_mf', key=key, epsilon=2)
  audit_canaries(key, 'gaussian_mf', 'sound', ratings, settings, ...)

A finding sets a statistical lower bound on epsilon against the epsilon that
a guarantee states. A bound above it refutes the statement; a bound below it
is no proof, only an attack that failed. Proofs are in docs/privacy/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from dpmf_jax import accounting, plans
from dpmf_jax.accounting.events import leaves
from dpmf_jax.auditing import canaries, found
from dpmf_jax.auditing.distinguishing import (
  CONFIDENCE,
  RUNS,
  Bound,
  Measurement,
  measure,
)
from dpmf_jax.auditing.pairs import Pair, check_pair, library_pairs
from dpmf_jax.auditing.results import Audit, Finding
from dpmf_jax.auditing.sampling import sampler, tiny_data
from dpmf_jax.keys import random_key
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.settings import settings_of
from dpmf_jax.plans.spec import Case, Start
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems import made
from dpmf_jax.training import fit
from dpmf_jax.types import Guarantee, System

__all__ = [
  'Audit',
  'Finding',
  'Target',
  'audit',
  'audit_canaries',
  'cases',
  'findings',
  'found_target',
  'measure',
  'targets',
]

# For a system without a guarantee, which has no delta of its own.
_DELTA = 1e-5
_SCALE = 1.0, 5.0
_QUICK_RUNS = 20_000


class Target(NamedTuple):
  """A system at tiny settings on a pair of data sets: what is attacked."""

  name: str  # of the system
  variant: str
  system: System
  pair: Pair
  start: Start
  delta: float
  start_seed: int | None = None  # drawn by the audit where it is None
  own_epsilon: float | None = None  # of each rating, where that is stated
  view: str | None = None  # of `System.views`, where the release is not it


def audit(
  system: System | str,
  *,
  key: jax.Array | int | None = None,
  runs: int = _QUICK_RUNS,
  confidence: float = CONFIDENCE,
  variant: str | None = None,
  start: Start | None = None,
  view: str | None = None,
  mesh: Mesh | None = None,
  progress: Callable[[int, int], object] = lambda done, total: None,
  **settings: Any,
) -> Audit:
  """What attacks on a system measured, beside what it states.

    result = dpmf_jax.audit(my_system)
    print(result)  # the statement, the lower bound, and which attack it was
    assert not result.refuted

  The whole system is run `runs` times on each of two neighbouring data sets of
  a few ratings, which differ in what the guarantee is about: in one rating or
  in one user, by its value or by being there. Five such pairs are tried.

  Args:
    system: one's own, or the name of one that is in the library or registered.
    key: of all runs, consumed; a number is a seed, and None draws one from the
      operating system.
    runs: on each data set. A lower bound cannot be much above log(runs / 10).
    confidence: that all the lower bounds hold together.
    variant: of a system by name; the first, which is the sound one if any.
    start: of one's own system. 'random', the default, is what is run. 'known'
      is stronger, and fair where the initial state may be published: it must
      not hold noise that protects ratings. Systems by name have their own.
    view: of one's own system, the one of `System.views` that is attacked; what
      is released if None.
    mesh: devices that share the runs.
    progress: called with the runs done so far and with their number in all.
    **settings: of a system by name, over those that the library attacks it
      with. One's own has `delta`, 1e-5 by default, and `scale`, that of the
      system or else (1, 5).

  Privacy: no ratings are needed. A bound above what is stated refutes it; one
  below it is no proof. What is called proved by a system that is given as an
  object is 'stated' here, since nothing says which code it runs.
  """
  if isinstance(system, str):
    if system not in SPECS:
      raise ValueError(f'system={system!r} must be one of {", ".join(SPECS)}')
    if start is not None or view is not None:
      raise ValueError(
        f'start={start!r} and view={view!r} are for a System: what is tried of '
        f'{system!r} says that itself'
      )
    chosen = variant or next(iter(SPECS[system].variants))
    attacked = list(targets(system, chosen, **settings))
  elif isinstance(system, System):
    if variant is not None or not settings.keys() <= {'delta', 'scale'}:
      raise ValueError(
        f'variant={variant!r} and {sorted(settings)} must not be given with a '
        'System, which has its settings; delta and scale may'
      )
    attacked = list(_own_targets(system, start or 'random', view, **settings))
  else:
    raise ValueError(f'system={system!r} must be a System or the name of one')
  done, total = 0, 2 * runs * len(attacked)

  def count(more: int) -> None:
    nonlocal done
    done += more
    progress(done, total)

  found = findings(
    key if isinstance(key, jax.Array) else random_key(key),
    attacked,
    runs=runs,
    # Each has its share of the doubt.
    confidence=1 - (1 - confidence) / len(attacked),
    mesh=mesh,
    progress=count,
  )
  return Audit(tuple(found), confidence)


def targets(name: str, variant: str, **settings: Any) -> Iterator[Target]:
  """What there is to attack: every case of a variant on every pair.

  Pairs that a search found are tried on all variants of the system, so that
  what broke one is known not to break another. `settings` go over those of the
  cases; what was found has settings of its own.
  """
  for case in cases(name, variant, **settings):
    system = made(name, variant, **case.settings)
    unit, relation = system.guarantee.unit, system.guarantee.relation
    scale = case.settings.get('scale', _SCALE)
    for pair in library_pairs(unit, relation, scale):
      yield _target(name, variant, system, pair, case)
  for record in () if settings else found.records():
    target = found_target(record, variant) if record.system == name else None
    if target is not None:
      yield target


def cases(name: str, variant: str, **settings: Any) -> list[Case]:
  """Settings that a variant is attacked with, `settings` over them."""
  spec = SPECS[name]
  if variant not in spec.variants:
    raise ValueError(
      f'variant={variant!r} of {name} must be {" or ".join(spec.variants)}'
    )
  known = {each.name for each in settings_of(spec.config)}
  usual = {'scale': _SCALE, 'epsilon': 1.0, 'delta': _DELTA}
  usual = {each: value for each, value in usual.items() if each in known}
  tried: list[Case] = []
  for case in spec.cases.get(variant) or (Case(usual, 'random'),):
    case = case._replace(settings={**case.settings, **settings})
    if case not in tried:
      tried.append(case)
  return tried


def _own_targets(
  system: System,
  start: Start,
  view: str | None,
  *,
  delta: float = _DELTA,
  scale: tuple[float, float] | None = None,
) -> Iterator[Target]:
  """Every pair for a system that is there as an object."""
  system = system._replace(guarantee=plans.as_stated(system.guarantee))
  guarantee = system.guarantee
  delta = max(delta, accounting.uncovered(guarantee))
  own = None
  if system.personal is not None:
    own = accounting.epsilon(guarantee, delta)
  case = Case({'delta': delta}, start, own_epsilon=own, view=view)
  scale = scale or system.scale or _SCALE
  for pair in library_pairs(guarantee.unit, guarantee.relation, scale):
    yield _target('own system', '-', system, pair, case)


def found_target(record: found.Record, variant: str) -> Target | None:
  """A case that was found, for a variant; None where that makes no sense."""
  settings = found.settings_for(record, variant)
  if settings is None:
    return None
  system = made(record.system, variant, **settings)
  case = Case(settings, record.start)
  target = _target(record.system, variant, system, record.pair, case)
  return target._replace(start_seed=record.start_seed)


def _target(
  name: str, variant: str, system: System, pair: Pair, case: Case
) -> Target:
  delta = _delta(system, case.settings)
  if case.own_epsilon is not None:
    tables = (with_epsilon(ratings, case.own_epsilon) for ratings in pair[1:])
    pair = Pair(pair.name, *tables)
  view = case.view or case.settings.get('view')
  return Target(
    name,
    variant,
    system,
    pair,
    case.start,
    delta,
    own_epsilon=case.own_epsilon,
    view=view,
  )


def _delta(system: System, settings: Mapping[str, Any]) -> float:
  """At which a guarantee is stated: 0 is for the least there is."""
  return settings.get('delta', _DELTA) or accounting.uncovered(system.guarantee)


def findings(
  key: jax.Array,
  attacked: Iterable[Target],
  *,
  runs: int = RUNS,
  confidence: float = CONFIDENCE,
  mesh: Mesh | None = None,
  progress: Callable[[int], object] = lambda runs: None,
) -> Iterator[Finding]:
  """A finding for each of `attacked`, as it is made.

  Args:
    key: consumed.
    attacked: see `targets`.
    runs: of the whole mechanism on each of the two data sets.
    confidence: in each finding's lower bound.
    mesh: devices that share the runs.
    progress: called with the number of runs just done.

  A pair that differs in another unit, or by another relation, than the
  guarantee speaks of is a ValueError: it could not refute it.
  """
  for number, target in enumerate(attacked):
    guarantee = target.system.guarantee
    check_pair(target.pair, guarantee.unit, guarantee.relation)
    start_key, run_key = jax.random.split(jax.random.fold_in(key, number))
    if target.start_seed is not None:
      start_key = jax.random.key(target.start_seed)
    sample = sampler(
      target.system,
      tiny_data(target.pair.first, target.pair.second),
      start=target.start,
      start_key=start_key,
      view=target.view,
      mesh=mesh,
    )
    measured = measure(
      sample,
      run_key,
      runs=runs,
      delta=target.delta,
      confidence=confidence,
      progress=progress,
    )
    yield _finding(target, measured)


def audit_canaries(
  key: jax.Array,
  name: str,
  variant: str,
  ratings: Ratings,
  settings: Mapping[str, Any],
  *,
  number: int,
  seed: int,
  confidence: float = CONFIDENCE,
  mesh: Mesh | None = None,
) -> Finding:
  """A finding from one run on `ratings` with `number` canaries in it.

  Args:
    key: of the run; consumed.
    name, variant: of the system.
    ratings: of real size; `settings` must have their scale.
    settings: of the config, besides those of the variant.
    number: of canaries.
    seed: of their coins, which the attack does not get.
    confidence: in the lower bound.
    mesh: devices to train on.
  """
  system = made(name, variant, **settings)
  guarantee, delta = system.guarantee, _delta(system, settings)
  planted = canaries.insert(
    ratings,
    number,
    unit=guarantee.unit,
    relation=guarantee.relation,
    seed=seed,
  )
  data = training_data(planted.ratings, mesh=mesh)
  fit_key, _ = jax.random.split(key)
  states = []
  state = fit(
    system, fit_key, data, callbacks=[lambda r: states.append(r.state)]
  )
  score = canaries.scores(
    system.model(states[0], data),
    system.release(state, data),
    planted,
  )
  bound = canaries.one_run_bound(
    score, planted.coin, delta=delta, confidence=confidence
  )
  measured = Measurement(
    (Bound('canaries', bound.epsilon, bound.gaussian),), 1, delta, confidence
  )
  pair = Pair(f'{number} canaries in {ratings.name}', ratings, planted.ratings)
  return _finding(Target(name, variant, system, pair, 'known', delta), measured)


def _finding(target: Target, measured: Measurement) -> Finding:
  """`measured` set against what the target's guarantee states."""
  guarantee = target.system.guarantee
  stated, verdict = None, 'nothing stated'
  best = max(measured.bounds, key=lambda bound: bound.epsilon)
  lower, rule = best.epsilon, 'binomial'
  if _states_gaussian(guarantee) and measured.gaussian > lower:
    best = max(measured.bounds, key=lambda bound: bound.gaussian)
    lower, rule = best.gaussian, 'gaussian'
  if guarantee.status != 'none':
    stated = accounting.epsilon(guarantee, measured.delta)
    if target.own_epsilon is not None:
      stated = min(stated, target.own_epsilon)
    verdict = 'refuted' if lower > stated else 'not refuted'
  return Finding(
    system=target.name,
    variant=target.variant,
    status=guarantee.status,
    unit=guarantee.unit,
    relation=guarantee.relation,
    pair=target.pair.name,
    start=target.start,
    steps=target.system.steps,
    stated=stated,
    delta=measured.delta,
    lower_bound=lower,
    rule=rule,
    statistic=best.statistic,
    runs=measured.runs,
    confidence=measured.confidence,
    verdict=verdict,
  )


def _states_gaussian(guarantee: Guarantee) -> bool:
  """Whether the statement is about a Gaussian trade-off curve."""
  if guarantee.status not in ('proved', 'stated') or not guarantee.event:
    return False
  return all(
    isinstance(part, accounting.Gaussian) for part in leaves(guarantee.event)
  )
