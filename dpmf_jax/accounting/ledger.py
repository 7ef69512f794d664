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

import contextlib
import dataclasses
import errno
import json
import math
import os
import uuid
import warnings
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from dpmf_jax import accounting
from dpmf_jax.accounting import events, filters, gaussian
from dpmf_jax.accounting.encoding import decode as decode
from dpmf_jax.accounting.encoding import encode as encode
from dpmf_jax.types import Guarantee, Relation, Unit

SCHEMA = 'dpmf_jax-ledger-2'
# It needed no budget, and what it refused was no filter.
_OLD_SCHEMA = 'dpmf_jax-ledger-1'

Budget: TypeAlias = float | Literal['unlimited']
UNLIMITED: Literal['unlimited'] = 'unlimited'
NOT_VALID = 'not valid if later runs were chosen after seeing earlier ones'


class BudgetExceeded(ValueError):  # noqa: N818
  """A run would spend more than is left; nothing is spent."""


class Header(NamedTuple):
  """The first line: what the ledger is about."""

  schema: str
  dataset: str
  digest: str  # of the ratings at the first use, '' where unknown
  unit: Unit
  relation: Relation
  budget_epsilon: Budget  # unlimited: spending is recorded, never refused
  delta: float  # of the budget, and of every epsilon in the ledger
  created: str


class Entry(NamedTuple):
  """One release."""

  id: str
  time: str
  system: str
  variant: str
  status: str  # 'proved': nothing else can be added up
  event: events.Event
  epsilon: float  # of this event alone
  delta: float
  unit: Unit
  relation: Relation
  digest: str  # of the ratings, '' where unknown
  what: str  # where the release was written


def spend(
  path: str | os.PathLike[str],
  event: events.Event,
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
  encoded = encode(_proved(event))
  budget = UNLIMITED if budget_epsilon is None else budget_epsilon
  opened = _checked_header(
    Header(SCHEMA, dataset, digest, unit, relation, budget, delta, _now())
  )
  delta = opened.delta
  alone = _epsilon(opened, [event])
  if not math.isfinite(alone):
    raise ValueError(f'{event!r} has no finite epsilon: it is not private')
  with _locked(path, write=True) as handle:
    ledger, old = _read(handle, path)
    if ledger is None:
      if budget_epsilon is None:
        raise ValueError(
          f'{path} is new: say with budget_epsilon how much all releases may '
          f'cost together, or {UNLIMITED!r} (its total is then {NOT_VALID})'
        )
      ledger = opened
      _append(handle, path, opened._asdict())
    _check_same(path, ledger, opened, old)
    if budget_epsilon is not None:
      _check_budget(path, ledger, opened)
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
    spent = _events(old)
    budget = ledger.budget_epsilon
    if budget != UNLIMITED:
      together = _counted(ledger, [*spent, event])
      if math.isinf(together):
        raise BudgetExceeded(
          f'{path} has {_releases(len(old))}, and with this run the ends of '
          'noise that is drawn in floats cost more than '
          f'{filters.ENDS_SHARE:g} of delta {_plain(delta)}; use a larger '
          'delta, in '
          'a ledger of its own'
        )
      if together > budget:
        before = _counted(ledger, spent)
        more = ', counted for runs that may be chosen after seeing others'
        raise BudgetExceeded(
          f'{path} has {_releases(len(old))} of epsilon {_shown(before)}, this '
          f'run is {_shown(alone)}, and together they are {_shown(together)}'
          f'{more if together > before + alone else ""}: more than the budget '
          f'of {_plain(budget)} (all at delta {_plain(delta)}); '
          + _what_fits(spent, budget, delta)
        )
    entry = Entry(
      id=entry_id or str(uuid.uuid4()),
      time=_now(),
      system=system,
      variant=variant,
      status='proved',
      event=event,
      epsilon=alone,
      delta=delta,
      unit=unit,
      relation=relation,
      digest=digest,
      what=what,
    )
    if dry_run:
      return entry
    _append(handle, path, {**entry._asdict(), 'event': encoded})
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
  adaptive, holds = _adaptive(ledger, old)
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
    'counted_epsilon': _counted(ledger, _events(old)),
    'adaptive_epsilon': adaptive,
    'holds': holds,
  }


def summary(path: str | os.PathLike[str]) -> str:
  """One line: how much the releases took of the budget, and what holds."""
  ledger, old = _look(path)
  budget, (_, holds) = ledger.budget_epsilon, _adaptive(ledger, old)
  of = '' if budget == UNLIMITED else f' of {_plain(budget)}'
  return (
    f'ledger: {_releases(len(old))}, epsilon '
    f'{_shown(_counted(ledger, _events(old)))}{of} spent at delta '
    f'{_plain(ledger.delta)}; {holds}'
  )


def proved_event(guarantee: Guarantee) -> events.Event:
  """The event of a guarantee, if it is proved: only that can be added up."""
  if guarantee.event is None or guarantee.status == 'none':
    raise ValueError(
      'a ledger takes no run without a guarantee: its epsilon is infinite'
    )
  if guarantee.status != 'proved':
    raise ValueError(
      'a ledger takes no run whose epsilon is only claimed: a claim cannot be '
      'added to a proof'
    )
  return _proved(guarantee.event)


def _epsilon(
  ledger: Header, parts: Iterable[events.Event], delta: float | None = None
) -> float:
  """The epsilon of all events together by the accountant's best rule."""
  parts = tuple(parts)
  if not parts:
    return 0.0
  # Composing may round up. One event alone keeps its own epsilon, so that a
  # run that was calibrated to the whole budget fits into it.
  event = parts[0] if len(parts) == 1 else events.Composed(parts)
  statement = Guarantee(  # and not the event: some hold for one relation only
    status='proved',
    unit=ledger.unit,
    relation=ledger.relation,
    adversary='',
    released=(),
    secret=(),
    assumptions=(),
    mechanism='',
    event=event,
  )
  return accounting.epsilon(statement, ledger.delta if delta is None else delta)


def _counted(ledger: Header, parts: list[events.Event]) -> float:
  """The epsilon that the budget counts, or the total where there is none."""
  budget = ledger.budget_epsilon
  # A first run is chosen before anything is released: its own epsilon holds.
  if budget == UNLIMITED or len(parts) <= 1:
    return _epsilon(ledger, parts)
  return filters.counted(parts, budget=budget, delta=ledger.delta)


def _adaptive(ledger: Header, old: list[Entry]) -> tuple[float | None, str]:
  """(epsilon, words) for runs that are chosen after seeing earlier ones."""
  budget = ledger.budget_epsilon
  if budget == UNLIMITED:
    return None, f'no budget: {NOT_VALID}'
  if ledger.schema != SCHEMA:
    return None, f'begun by an earlier version: {NOT_VALID}'
  if _counted(ledger, _events(old)) > budget:
    return None, f'more than its budget, line 1 was changed: {NOT_VALID}'
  return budget, (
    'if later runs are chosen after seeing earlier ones, what holds is the '
    f'budget, epsilon {_plain(budget)} at delta {_plain(ledger.delta)}'
  )


def _events(old: list[Entry]) -> list[events.Event]:
  return [entry.event for entry in old]


def _proved(event: events.Event) -> events.Event:
  """`event`, or an error if it is or has within it a paper's claim."""

  def claims(value: Any) -> bool:
    if not dataclasses.is_dataclass(value):
      return isinstance(value, tuple) and any(map(claims, value))
    if isinstance(value, events.ClaimedEvent):
      return True
    return any(map(claims, vars(value).values()))

  if claims(event):
    raise ValueError(f'a claim cannot be added to a proof: {event!r}')
  return event


def _checked_header(ledger: Header) -> Header:
  """The header with Python numbers, or an error."""
  for name, kind in (('unit', Unit), ('relation', Relation)):
    if getattr(ledger, name) not in get_args(kind):
      raise ValueError(
        f'{name} must be one of {get_args(kind)}, got {getattr(ledger, name)!r}'
      )
  budget = ledger.budget_epsilon
  if budget != UNLIMITED:
    budget = events.checked_epsilon(budget, 'budget_epsilon')
  return ledger._replace(
    budget_epsilon=budget, delta=events.checked_delta(ledger.delta)
  )


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


def _check_budget(path: Path, ledger: Header, run: Header) -> None:
  """Raises ValueError where the run has another budget than the ledger."""
  if run.budget_epsilon != ledger.budget_epsilon:
    raise ValueError(
      f'{path} was begun with budget_epsilon={ledger.budget_epsilon!r}, this '
      f'run has {run.budget_epsilon!r}: leave it out; a budget that is changed '
      'after a release holds for nothing'
    )


def _what_fits(spent: list[events.Event], budget: float, delta: float) -> str:
  """How much a further run could spend, where that is cheap to say."""
  try:
    used = accounting.gaussian_mu(events.Composed(tuple(spent)))
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
  with _locked(path, write=False) as handle:
    ledger, old = _read(handle, path)
  if ledger is None:
    raise ValueError(f'{path} is empty: not a ledger yet')
  return ledger, old


@contextlib.contextmanager
def _locked(path: Path, *, write: bool) -> Iterator[int]:
  """Yields a descriptor of the file while no other process may write to it."""
  try:
    import fcntl
  except ImportError:
    raise ValueError(
      'a ledger needs file locks (fcntl), which this platform does not have'
    ) from None
  flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if write else os.O_RDONLY
  while True:
    handle = os.open(path, flags, 0o600)
    try:
      try:
        fcntl.flock(handle, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
      except OSError as error:
        reason = f'cannot be locked ({error.strerror})'
        raise OSError(error.errno, reason, str(path)) from None
      # Whoever edited the ledger while we waited may have put a new file in
      # its place, and what is appended to the old one would be lost.
      if _is_at(handle, path):
        try:
          yield handle
        finally:
          # Closing would not do if a forked child still has the descriptor.
          fcntl.flock(handle, fcntl.LOCK_UN)
        return
    finally:
      os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
  try:
    return os.path.samestat(os.fstat(handle), os.stat(path))
  except FileNotFoundError:
    return False


def _append(handle: int, path: Path, values: dict[str, Any]) -> None:
  """Writes one line and returns when it is on the disk."""
  size = os.fstat(handle).st_size
  line = (json.dumps(values, allow_nan=False) + '\n').encode('ascii')
  if size and os.pread(handle, 1, size - 1) != b'\n':
    line = b'\n' + line  # an editor left the last line open
  if os.write(handle, line) != len(line):  # in one call, under O_APPEND
    os.ftruncate(handle, size)
    raise OSError(errno.ENOSPC, 'no room for another line', str(path))
  os.fsync(handle)
  folder = os.open(path.parent, os.O_RDONLY)
  try:
    os.fsync(folder)  # the name of a new file
  finally:
    os.close(folder)


def _read(handle: int, path: Path) -> tuple[Header | None, list[Entry]]:
  """All lines; ValueError names the file and line that is wrong."""
  with open(handle, 'rb', closefd=False) as file:
    content = file.read()
  ledger, old = None, []
  whole = content.endswith(b'\n')
  lines = content.removesuffix(b'\n').split(b'\n') if content else []
  for number, line in enumerate(lines, 1):
    try:
      try:
        values = json.loads(line.decode())
      except ValueError:
        if whole or number < len(lines):
          raise ValueError('not JSON') from None
        raise ValueError(
          'the last line is cut off. If a run was killed while writing it, '
          'that run drew no noise: delete the line. If this is a copy, get a '
          'whole one'
        ) from None
      if ledger is None:
        ledger = _parse_header(values)
      else:
        old.append(_parse_entry(values, ledger))
    except ValueError as error:
      raise ValueError(f'{path}, line {number}: {error}') from None
  return ledger, old


def _parse_header(values: Any) -> Header:
  found = values.get('schema') if isinstance(values, dict) else None
  if found not in (SCHEMA, _OLD_SCHEMA):
    raise ValueError(f'schema must be {SCHEMA!r}, got {found!r}')
  ledger = Header(**_fields(Header, values))
  if found == _OLD_SCHEMA and ledger.budget_epsilon is None:
    ledger = ledger._replace(budget_epsilon=UNLIMITED)
  return _checked_header(ledger)


def _parse_entry(values: Any, ledger: Header) -> Entry:
  entry = Entry(**_fields(Entry, values))
  found = entry.status, entry.unit, entry.relation
  wanted = 'proved', ledger.unit, ledger.relation
  if found != wanted:
    raise ValueError(f'status, unit, relation must be {wanted}, got {found}')
  return entry._replace(event=_proved(decode(entry.event)))


def _fields(kind: Any, values: Any) -> dict[str, Any]:
  """The fields of a tuple type out of a JSON object; others are ignored."""
  if not isinstance(values, dict):
    raise ValueError(f'must be a JSON object, got {values!r}')
  missing = [name for name in kind._fields if name not in values]
  if missing:
    raise ValueError(f'{missing[0]} is missing')
  return {name: values[name] for name in kind._fields}


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
