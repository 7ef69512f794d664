"""The ledger: what all releases about one data set have cost together.

  spend(path, event, budget_epsilon=3, delta=1e-6, ...)   before noise is drawn
  total(path), entries(path), header(path)   for a look at it
  statement(path), summary(path)   what all of them cost, and when that holds

A file of JSON lines that only ever grows. The first line says whose ledger it
is (data set, unit, relation, budget); each further line is one release. It is
the curator's own (0600): it names data sets and holds hashes of ratings.

What holds whatever happens, since `spend` returns only after its line is on
the disk, and noise is drawn only after `spend` has returned:
- A crash can only over-count. A line without a run costs budget; a run
  without a line cannot be.
- Two processes never spend the same rest: reading, deciding and appending
  happen under one exclusive lock, which the system frees if its holder dies.
- A run that is started again with the same `entry_id` is charged once. The id
  must be kept next to the key of the noise and go wherever that goes: the
  same key draws the same noise, so there is one release (see `runs.py`).

A last line that is cut off stops everything until the curator has looked. If
a process was killed inside `spend`, its run never began, and the line may be
deleted. But a copy of a ledger that was cut short looks the same, and there
the line may be of a run that was released; only the curator knows which.

Privacy: the total is `accounting.epsilon` of all events composed. It holds if
the settings of no run, and whether there is one, depended on the releases of
earlier ones. Where they may have, the budget holds, which is why the first use
has to name one: it is fixed before anything is released, and runs are refused
by a rule for which that is proved (`accounting.filters`). Without a budget
nothing is stated for such runs.
"""

from __future__ import annotations

import math
import os
import uuid
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Any

from dpmf_jax.accounting import accountant, composition, filters, gaussian
from dpmf_jax.accounting.encoding import encode
from dpmf_jax.accounting.events import Composed, Event, leaves
from dpmf_jax.accounting.ledger_file import (
  SCHEMA,
  UNLIMITED,
  Budget,
  Entry,
  Header,
  append_line,
  checked_header,
  locked,
  read,
)
from dpmf_jax.types import Guarantee, Relation, Unit

NOT_VALID = 'not valid if later runs were chosen after seeing earlier ones'


class BudgetExceeded(ValueError):  # noqa: N818
  """A run would spend more than is left; nothing is spent."""


def spend(
  path: str | os.PathLike[str],
  event: Event,
  *,
  delta: float,
  unit: Unit,
  relation: Relation,
  dataset: str,
  budget_epsilon: Budget | None = None,
  digest: str = '',
  system: str = '',
  variant: str = '',
  what: str = '',
  entry_id: str | None = None,
  dry_run: bool = False,
) -> Entry:
  """The entry of a release that may now be made, written and on the disk.

  Call it before the first noise is drawn, and draw none if it raises.

  Args:
    path: the ledger; made at its first use, with the budget given then.
    event: all that the release will do, to the last step.
    delta: of the budget, the same for all entries.
    unit, relation: see `types.Guarantee`; the same for all entries.
    dataset: its name.
    budget_epsilon: the most that all releases together may cost, needed at
      the first use; None takes what the ledger says. With 'unlimited' nothing
      is refused, and the total does not hold for runs that are chosen after
      seeing earlier ones.
    digest: a hash of the ratings. Ratings may change while the people stay
      the same, so another digest only warns; another digest under another
      name is an error.
    system, variant, what: for the reader of the ledger.
    entry_id: if the ledger has an entry with this id already, that one is
      returned and nothing is added.
    dry_run: only say whether it would fit; the release may not be made.

  Raises:
    BudgetExceeded: with the arithmetic in one line; nothing is spent.
    ValueError: for an event without a proved cost, another's ledger, another
      budget than the ledger's, or none at the first use.
  """
  path = Path(path)
  leaves(event)  # or an error: only what is proved can be added up
  encoded = encode(event)
  budget = UNLIMITED if budget_epsilon is None else budget_epsilon
  opened = checked_header(
    Header(SCHEMA, dataset, digest, unit, relation, budget, delta, _now())
  )
  alone = _epsilon(opened, [event])
  if not math.isfinite(alone):
    raise ValueError(f'{event!r} has no finite epsilon: it is not private')
  with locked(path, write=True) as handle:
    ledger, old = read(handle, path)
    if ledger is None:
      if budget_epsilon is None:
        raise ValueError(
          f'{path} is new: say with budget_epsilon how much all releases may '
          f'cost together, or {UNLIMITED!r} (its total is then {NOT_VALID})'
        )
      ledger = opened
      append_line(handle, path, opened._asdict())
    _check_same(path, ledger, opened, old)
    if budget_epsilon not in (None, ledger.budget_epsilon):
      raise ValueError(
        f'{path} was begun with budget_epsilon={ledger.budget_epsilon!r}, this '
        f'run has {opened.budget_epsilon!r}: leave it out; a budget that is '
        'changed after a release holds for nothing'
      )
    for entry in old:
      if entry.id == entry_id:
        if entry.event != event:
          raise ValueError(f'{path}: {entry_id} is the id of {entry.event!r}')
        if digest != entry.digest:
          # The same noise on other ratings would show their difference.
          raise ValueError(
            f'{path}: {entry_id} is the id of a release about other ratings'
          )
        return entry
    _check_fits(path, ledger, _events(old), event, alone)
    entry = Entry(
      id=entry_id or str(uuid.uuid4()),
      time=_now(),
      system=system,
      variant=variant,
      status='proved',
      event=event,
      epsilon=alone,
      delta=opened.delta,
      unit=unit,
      relation=relation,
      digest=digest,
      what=what,
    )
    if dry_run:
      return entry
    append_line(handle, path, {**entry._asdict(), 'event': encoded})
  known = {entry.digest for entry in old} - {''}
  if digest and known and digest not in known:
    warnings.warn(
      f'{path}: the ratings differ from those of earlier entries; they are '
      'counted together, as the same people may be in both',
      stacklevel=2,
    )
  if ledger.budget_epsilon == UNLIMITED:
    warnings.warn(
      f'{path} has no budget: its total is {NOT_VALID}', stacklevel=2
    )
  return entry


def header(path: str | os.PathLike[str]) -> Header:
  """What the ledger is about."""
  return _look(path)[0]


def entries(path: str | os.PathLike[str]) -> list[Entry]:
  """All releases in the ledger, oldest first."""
  return _look(path)[1]


def total(path: str | os.PathLike[str], delta: float | None = None) -> float:
  """The epsilon of all releases together, at the budget's delta by default.

  It is not valid if later runs were chosen after seeing earlier ones; see
  `statement` for what is.
  """
  ledger, old = _look(path)
  return _epsilon(ledger, _events(old), delta)


def statement(path: str | os.PathLike[str]) -> dict[str, Any]:
  """What all releases cost together, and when that holds, for JSON.

  `epsilon` is the `total`, with its `caveat`. `adaptive_epsilon` has none and
  is for all releases so far and to come: the budget, or None where there is no
  proof. `counted_epsilon` is what is compared with the budget.
  """
  ledger, old = _look(path)
  counted = _counted(ledger, _events(old))
  adaptive, holds = _adaptive(ledger, counted)
  return {
    'dataset': ledger.dataset,
    'unit': ledger.unit,
    'relation': ledger.relation,
    'releases': len(old),
    'status': 'proved',
    'delta': ledger.delta,
    'epsilon': _epsilon(ledger, _events(old)),
    'caveat': NOT_VALID,
    'budget_epsilon': ledger.budget_epsilon,
    'counted_epsilon': counted,
    'adaptive_epsilon': adaptive,
    'holds': holds,
  }


def summary(path: str | os.PathLike[str]) -> str:
  """One line: how much the releases took of the budget, and what holds."""
  ledger, old = _look(path)
  budget, counted = ledger.budget_epsilon, _counted(ledger, _events(old))
  of = '' if budget == UNLIMITED else f' of {_plain(budget)}'
  return (
    f'ledger: {_releases(len(old))}, epsilon {_shown(counted)}{of} spent at '
    f'delta {_plain(ledger.delta)}; {_adaptive(ledger, counted)[1]}'
  )


def proved_event(guarantee: Guarantee) -> Event:
  """The event of a guarantee, if it is proved: only that can be added up."""
  if guarantee.event is None or guarantee.status == 'none':
    raise ValueError(
      'a ledger takes no run without a guarantee: its epsilon is infinite'
    )
  if guarantee.status != 'proved':
    raise ValueError(
      f'a ledger takes no run whose epsilon is only {guarantee.status}: a '
      'claim cannot be added to a proof'
    )
  leaves(guarantee.event)
  return guarantee.event


def _epsilon(
  ledger: Header, parts: Iterable[Event], delta: float | None = None
) -> float:
  """The epsilon of all events together by the accountant's best rule."""
  parts = tuple(parts)
  if not parts:
    return 0.0
  # Composing may round up. One event alone keeps its own epsilon, so that a
  # run that was calibrated to the whole budget fits into it.
  event = parts[0] if len(parts) == 1 else Composed(parts)
  accountant.check_relation(event, ledger.relation)
  return accountant.epsilon(event, ledger.delta if delta is None else delta)


def _counted(ledger: Header, parts: list[Event]) -> float:
  """The epsilon that the budget counts, or the total where there is none."""
  budget = ledger.budget_epsilon
  # A first run is chosen before anything is released: its own epsilon holds.
  if budget == UNLIMITED or len(parts) <= 1:
    return _epsilon(ledger, parts)
  return filters.counted(parts, budget=budget, delta=ledger.delta)


def _adaptive(ledger: Header, counted: float) -> tuple[float | None, str]:
  """(epsilon, words) for runs that are chosen after seeing earlier ones."""
  budget = ledger.budget_epsilon
  if budget == UNLIMITED:
    return None, f'no budget: {NOT_VALID}'
  if ledger.schema != SCHEMA:
    return None, f'begun by an earlier version: {NOT_VALID}'
  if counted > budget:
    return None, f'more than its budget, line 1 was changed: {NOT_VALID}'
  return budget, (
    'if later runs are chosen after seeing earlier ones, what holds is the '
    f'budget, epsilon {_plain(budget)} at delta {_plain(ledger.delta)}'
  )


def _events(old: list[Entry]) -> list[Event]:
  return [entry.event for entry in old]


def _check_same(
  path: Path, ledger: Header, run: Header, old: list[Entry]
) -> None:
  """Raises ValueError where the ledger is not the one for this run."""
  known = {ledger.digest, *(entry.digest for entry in old)} - {''}
  if run.dataset != ledger.dataset and run.digest not in known:
    raise ValueError(
      f'{path} is the ledger of {ledger.dataset!r}, this run is on '
      f'{run.dataset!r} with other ratings: use a ledger of its own, or if the '
      'same people are in both, keep the name'
    )
  for name in ('unit', 'relation', 'delta'):
    theirs, ours = getattr(ledger, name), getattr(run, name)
    if theirs != ours:
      raise ValueError(
        f'{path} counts with {name}={theirs!r}, this run has {ours!r}: the two '
        'cannot be added up'
      )


def _check_fits(
  path: Path, ledger: Header, spent: list[Event], event: Event, alone: float
) -> None:
  """Raises BudgetExceeded where the budget does not have room for the event."""
  budget, delta = ledger.budget_epsilon, ledger.delta
  if budget == UNLIMITED:
    return
  together = _counted(ledger, [*spent, event])
  if together <= budget:
    return
  if math.isinf(together):
    raise BudgetExceeded(
      f'{path} has {_releases(len(spent))}, and with this run the ends of '
      'noise that is drawn in floats cost more than '
      f'{filters.ENDS_SHARE:g} of delta {_plain(delta)}; use a larger delta, '
      'in a ledger of its own'
    )
  before = _counted(ledger, spent)
  more = ', counted for runs that may be chosen after seeing others'
  raise BudgetExceeded(
    f'{path} has {_releases(len(spent))} of epsilon {_shown(before)}, this '
    f'run is {_shown(alone)}, and together they are {_shown(together)}'
    f'{more if together > before + alone else ""}: more than the budget '
    f'of {_plain(budget)} (all at delta {_plain(delta)}); '
    + _what_fits(spent, budget, delta)
  )


def _what_fits(spent: list[Event], budget: float, delta: float) -> str:
  """How much a further run could spend, where that is cheap to say."""
  try:
    used = composition.gaussian_mu(Composed(tuple(spent)))
  except ValueError:  # other mechanisms than Gaussian noise
    return 'use more noise'
  whole = gaussian.mu_of(budget, filters.MAIN_SHARE * delta)
  left = math.sqrt(max(whole**2 - used**2, 0.0))
  # Less than this, and rounding would decide whether it fits.
  fits = gaussian.epsilon_of(left, delta) if left > 1e-4 * whole else 0
  if fits == 0:
    return 'nothing is left'
  shown = _shown(fits * (1 - 1e-7), down=True)
  return f'Gaussian noise with epsilon {shown} would still fit'


def _look(path: str | os.PathLike[str]) -> tuple[Header, list[Entry]]:
  path = Path(path)
  with locked(path, write=False) as handle:
    ledger, old = read(handle, path)
  if ledger is None:
    raise ValueError(f'{path} is empty: not a ledger yet')
  return ledger, old


def _releases(count: int) -> str:
  return f'{count} release{"" if count == 1 else "s"}'


def _shown(epsilon: float, *, down: bool = False) -> str:
  """Four digits of an epsilon, rounded to the safe side."""
  rounding = ROUND_FLOOR if down else ROUND_CEILING
  # Nine digits first, or 1 + 1e-16 would be shown as 1.001.
  context = Context(prec=4, rounding=rounding)
  return f'{float(context.create_decimal(f"{epsilon:.9g}")):g}'


def _plain(number: float) -> str:
  """All digits of what was asked for: fewer might say less than holds."""
  return str(number).removesuffix('.0')


def _now() -> str:
  return datetime.now(UTC).isoformat(timespec='seconds')
