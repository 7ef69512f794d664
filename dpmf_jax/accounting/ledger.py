"""The ledger: what all releases about one data set have cost together.

  spend(where, event, budget_epsilon=3, delta=1e-6, ...)   before noise is drawn
  set_budget(where, 5, reason='...')      another budget, which is put down
  total(where), entries(where), header(where)   for a look at it
  statement(where), summary(where)   what all of them cost, and when that holds
  report(where)   that and all rows
  import_lines(path, where)   what an earlier version wrote

`where` is the path of a SQLite file, or postgresql://user@host/database for
people on several hosts, for whom a file on a shared drive would not do. There
is one ledger in a file or database. It only ever grows, and is the curator's
own (a file has mode 0600): it names data sets and holds hashes of ratings.
Passwords belong into ~/.pgpass or PGPASSWORD; where a URL has one, it is in no
message.

What holds whatever happens, since `spend` returns only after its row is on
the disk, and noise is drawn only after `spend` has returned:
- A crash can only over-count. A row without a run costs budget; a run without
  a row cannot be.
- Two processes never spend the same rest: reading, deciding and writing are
  one serialisable transaction (`ledger_database`).
- A run that is started again with the same `entry_id` is charged once. The id
  must be kept next to the key of the noise and go wherever that goes: the
  same key draws the same noise, so there is one release (see `runs`).
- Rows are a chain: what was altered, removed or moved is named, and nothing is
  spent until the curator has looked (`ledger_rows` says what goes unnoticed).

Privacy: the total is `accounting.epsilon` of all events composed. It holds if
the settings of no run, and whether there is one, depended on the releases of
earlier ones. Where they may have, the budget holds, which is why the first use
has to name one: it is fixed before anything is released, and runs are refused
by a rule for which that is proved (`accounting.filters`), and which is in the
first row. A budget that is lowered later refuses more, and the first one holds.
If it is raised, or there is none, nothing is stated for such runs.
"""

from __future__ import annotations

import math
import os
import uuid
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpmf_jax.accounting import ledger_lines
from dpmf_jax.accounting.encoding import encode
from dpmf_jax.accounting.events import Event, leaves
from dpmf_jax.accounting.ledger_costs import (
  NOT_VALID,
  check_fits,
  epsilon_of,
  rule_of,
  statement_of,
  summary_of,
)
from dpmf_jax.accounting.ledger_costs import BudgetExceeded as BudgetExceeded
from dpmf_jax.accounting.ledger_rows import (
  UNLIMITED,
  Book,
  Budget,
  Change,
  Entry,
  Header,
  Record,
  Row,
  book_of,
  checked_budget,
  checked_header,
  rows_after,
)
from dpmf_jax.types import Guarantee, Relation, Unit

Where = str | os.PathLike[str]


def spend(
  where: Where,
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
    where: the ledger; begun at its first use, with the budget given then.
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
      budget than the ledger's, none at the first use, or a ledger that is not
      as it was written.
    OSError: where the database cannot be read or written.
  """
  leaves(event)  # or an error: only what is proved can be added up
  opened = checked_header(
    Header(
      id=str(uuid.uuid4()),
      time=_now(),
      dataset=dataset,
      digest=digest,
      unit=unit,
      relation=relation,
      budget_epsilon=UNLIMITED if budget_epsilon is None else budget_epsilon,
      delta=delta,
      rule=None,
    )
  )
  entry = Entry(
    id=entry_id or str(uuid.uuid4()),
    time=opened.time,
    system=system,
    variant=variant,
    event=event,
    digest=digest,
    what=what,
    delta=opened.delta,
  )
  if not math.isfinite(epsilon_of(opened, [event])):
    raise ValueError(f'{event!r} has no finite epsilon: it is not private')
  name = _name(where)

  def decide(rows: list[Row]) -> tuple[tuple[Book, Entry], list[Row]]:
    """(the ledger so far, the entry), and rows to add."""
    if not rows:
      if budget_epsilon is None:
        raise ValueError(
          f'{name} is new: say with budget_epsilon how much all releases may '
          f'cost together, or {UNLIMITED!r} (its total is then {NOT_VALID})'
        )
      book = Book(opened, (), ())
      check_fits(name, book, event)
      begun = opened._replace(rule=rule_of(book, [event]))
      return (book, entry), rows_after(None, [begun, entry])
    book = _book(name, rows)
    _check_same(name, book, opened)
    for old in (book.header, *book.later):
      if old.id == entry_id:
        return (book, _paid(name, old, event, digest)), []
    if budget_epsilon is not None and opened.budget_epsilon != book.budget:
      raise ValueError(
        f'{name} has budget_epsilon={book.budget!r}, this run has '
        f'{opened.budget_epsilon!r}: leave it out; dpmf account --set_budget '
        'changes it, with a reason'
      )
    check_fits(name, book, event)
    return (book, entry), rows_after(rows[-1], [entry])

  if dry_run:
    try:
      rows = _database().look(where)
    except FileNotFoundError:
      rows = []
    return decide(rows)[0][1]
  book, entry = _database().change(where, decide)
  known = {old.digest for old in book.entries} - {''}
  if digest and known and digest not in known:
    warnings.warn(
      f'{name}: the ratings differ from those of earlier entries; they are '
      'counted together, as the same people may be in both',
      stacklevel=2,
    )
  if book.budget == UNLIMITED:
    warnings.warn(
      f'{name} has no budget: its total is {NOT_VALID}', stacklevel=2
    )
  return entry


def set_budget(where: Where, budget_epsilon: Budget, *, reason: str) -> Change:
  """The row that says from here on another budget is meant, and why.

  A lower one refuses more runs; what is stated stays the first. With a higher
  one nothing is stated any more for runs that are chosen after seeing others.
  """
  reason = ' '.join(reason.split())
  if not reason:
    raise ValueError(f'reason={reason!r} must say why the budget is changed')
  change = Change(
    str(uuid.uuid4()), _now(), checked_budget(budget_epsilon), reason
  )
  name = _name(where)

  def decide(rows: list[Row]) -> tuple[Change, list[Row]]:
    if _book(name, rows).budget == change.budget_epsilon:
      raise ValueError(
        f'{name} has budget_epsilon={change.budget_epsilon!r} already'
      )
    return change, rows_after(rows[-1], [change])

  return _database().change(where, decide)


def import_lines(path: Where, where: Where) -> Book:
  """A new ledger with all that a file of an earlier version holds.

  It is written whole or not at all, and the file is then renamed to
  `*.imported`, so that nobody goes on with it. No run may be using it.
  """
  path, name = Path(path), _name(where)
  records = ledger_lines.records(path)

  def decide(rows: list[Row]) -> tuple[Book, list[Row]]:
    if rows:
      raise ValueError(f'{name} is a ledger already: import into a new one')
    made = rows_after(None, records)
    return _book(name, made), made

  book = _database().change(where, decide)
  os.replace(path, path.with_name(f'{path.name}.imported'))
  return book


def header(where: Where) -> Header:
  """What the ledger is about."""
  return _look(where).header


def entries(where: Where) -> list[Entry]:
  """All releases in the ledger, oldest first."""
  return _look(where).entries


def total(where: Where, delta: float | None = None) -> float:
  """The epsilon of all releases together, at the budget's delta by default.

  It is not valid if later runs were chosen after seeing earlier ones; see
  `statement` for what is.
  """
  book = _look(where)
  return epsilon_of(book.header, book.events, delta)


def statement(where: Where) -> dict[str, Any]:
  """What all releases cost together, and when that holds, for JSON.

  `epsilon` is the `total`, with its `caveat`. `adaptive_epsilon` has none and
  is for all releases so far and to come: the budget, or None where there is no
  proof. `counted_epsilon` is what is compared with the budget, `left_epsilon`
  that of Gaussian noise which would still fit. `head` is the last row's hash.
  """
  return statement_of(_look(where))


def report(where: Where, *, head: str | None = None) -> dict[str, Any]:
  """The `statement` and all rows, for JSON.

  Args:
    where: the ledger.
    head: a hash that was its `head` once. ValueError where no row has it: its
      last rows were cut off, or all of it was written anew.
  """
  book = _look(where)
  if head is not None and head not in book.hashes:
    raise ValueError(
      f'{_name(where)} has no row with the hash {head}: rows were cut off at '
      'its end, or all were written anew; put back a copy that has it'
    )
  rows = []
  for number, record in enumerate((book.header, *book.later), 1):
    values = {'number': number, 'hash': book.hashes[number - 1]}
    values |= record._asdict()
    if isinstance(record, Entry):
      values |= {'event': encode(record.event), 'epsilon': record.epsilon}
    if isinstance(record, Header):
      values['rule'] = record.rule and record.rule._asdict()
    rows.append(values)
  return {'ledger': _name(where)} | statement_of(book) | {'rows': rows}


def summary(where: Where) -> str:
  """One line: how much the releases took of the budget, and what holds."""
  return summary_of(_look(where))


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


def _check_same(name: str, book: Book, run: Header) -> None:
  """Raises ValueError where the ledger is not the one for this run."""
  ledger = book.header
  known = {ledger.digest, *(entry.digest for entry in book.entries)} - {''}
  if run.dataset != ledger.dataset and run.digest not in known:
    raise ValueError(
      f'{name} is the ledger of {ledger.dataset!r}, this run is on '
      f'{run.dataset!r} with other ratings: use a ledger of its own, or if the '
      'same people are in both, keep the name'
    )
  for fact in ('unit', 'relation', 'delta'):
    theirs, ours = getattr(ledger, fact), getattr(run, fact)
    if theirs != ours:
      raise ValueError(
        f'{name} counts with {fact}={theirs!r}, this run has {ours!r}: the two '
        'cannot be added up'
      )


def _paid(name: str, old: Record, event: Event, digest: str) -> Entry:
  """The row with a run's id, if it stands for the same release."""
  if not isinstance(old, Entry) or old.event != event:
    what = old.event if isinstance(old, Entry) else type(old).__name__
    raise ValueError(f'{name}: {old.id} is the id of {what!r}')
  if old.digest != digest:
    # The same noise on other ratings would show their difference.
    raise ValueError(
      f'{name}: {old.id} is the id of a release about other ratings'
    )
  return old


def _look(where: Where) -> Book:
  return _book(_name(where), _database().look(where))


def _book(name: str, rows: list[Row]) -> Book:
  if not rows:
    raise ValueError(f'{name} is empty: not a ledger yet')
  try:
    return book_of(rows)
  except ValueError as error:
    raise ValueError(
      f'{name}, {error}; put back a copy that is whole'
    ) from None


def _name(where: Where) -> str:
  return _database().name_of(where)


def _database() -> Any:
  """The module that talks to databases, whose import takes a while."""
  from dpmf_jax.accounting import ledger_database

  return ledger_database


def _now() -> str:
  return datetime.now(UTC).isoformat(timespec='seconds')
