"""The auditor: attacks what the library states, and says what it measured.

  audit(key, targets('gaussian_mf', 'sound'), runs=200_000)   findings
  audit_canaries(key, 'gaussian_mf', 'sound', ratings, settings, ...)

A finding sets a statistical lower bound on epsilon against the epsilon that
a guarantee states. A bound above it refutes the statement; a bound below it
is no proof, only an attack that failed. Proofs are in docs/privacy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from dpmf_jax import accounting
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
from dpmf_jax.auditing.sampling import sampler, tiny_data
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.spec import Case, Start
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems import made
from dpmf_jax.training import fit
from dpmf_jax.types import Guarantee, System

__all__ = [
  'Finding',
  'Target',
  'audit',
  'audit_canaries',
  'found_target',
  'measure',
  'targets',
]

# For a system without a guarantee, which has no delta of its own.
_DELTA = 1e-5


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


class Finding(NamedTuple):
  """What was measured, beside what is stated."""

  system: str
  variant: str
  status: str  # of the guarantee; see `types.Guarantee`
  unit: str
  relation: str
  pair: str
  start: str
  steps: int
  stated: float | None  # epsilon at delta, claimed or proved
  delta: float
  lower_bound: float
  rule: str  # binomial, or gaussian if a Gaussian curve is stated
  statistic: str  # that gave it
  runs: int  # on each data set
  confidence: float
  verdict: str  # refuted, not refuted, or nothing stated

  @property
  def refuted(self) -> bool:
    return self.verdict == 'refuted'


def targets(name: str, variant: str) -> Iterator[Target]:
  """What there is to attack: every case of a variant on every pair.

  Pairs that a search found are tried on all variants of the system, so that
  what broke one is known not to break another.
  """
  for case in SPECS[name].cases[variant]:
    system = made(name, variant, **case.settings)
    unit, relation = system.guarantee.unit, system.guarantee.relation
    for pair in library_pairs(unit, relation, case.settings['scale']):
      yield _target(name, variant, system, pair, case)
  for record in found.records():
    target = found_target(record, variant) if record.system == name else None
    if target is not None:
      yield target


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


def audit(
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
