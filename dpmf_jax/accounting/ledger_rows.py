"""What the rows of a ledger hold, and the chain that they are.

The first row says whose ledger it is, each further one is a release or another
budget. `hash` is the SHA-256 of the JSON list [previous, id, content] and
`previous` the hash of the row before, so that a row cannot be altered, removed
or moved, and none put between others, without all hashes after it changing.

What a chain cannot show: that its last rows were cut off, or that whoever owns
the database wrote all of it anew. Both change the hash of the last row, which
can be noted elsewhere (`ledger.report` looks for it).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import (
  Any,
  Literal,
  NamedTuple,
  TypeAlias,
  cast,
  get_args,
  get_type_hints,
)

from dpmf_jax.accounting import accountant, events, filters
from dpmf_jax.accounting.encoding import decode, encode
from dpmf_jax.types import Relation, Unit

_SCHEMA = 'dpmf_jax-ledger-3'

Budget: TypeAlias = float | Literal['unlimited']
UNLIMITED: Literal['unlimited'] = 'unlimited'
_hints = functools.cache(get_type_hints)


class Row(NamedTuple):
  """A row as it is in the database."""

  number: int  # from 1
  id: str
  content: str  # JSON
  previous: str  # '' in the first row
  hash: str


class Header(NamedTuple):
  """The first row: what the ledger is about."""

  id: str
  time: str
  dataset: str
  digest: str  # of the ratings at the first use, '' where unknown
  unit: Unit
  relation: Relation
  budget_epsilon: Budget  # unlimited: spending is recorded, never refused
  delta: float  # of the budget, and of every epsilon in the ledger
  rule: filters.Rule | None  # that the budget holds by; None: it does not
  imported: str = ''  # SHA-256 of the file of lines that it was


class Entry(NamedTuple):
  """One release."""

  id: str
  time: str
  system: str
  variant: str
  event: events.Event
  digest: str  # of the ratings, '' where unknown
  what: str  # where the release was written
  delta: float  # the ledger's

  @property
  def epsilon(self) -> float:
    """Of this event alone: computed, so that nobody can alter it."""
    return accountant.epsilon(self.event, self.delta)


class Change(NamedTuple):
  """Another budget, from here on."""

  id: str
  time: str
  budget_epsilon: Budget
  reason: str


Record: TypeAlias = Header | Entry | Change
_KINDS: dict[Any, str] = {Header: 'begun', Entry: 'release', Change: 'budget'}


class Book(NamedTuple):
  """All that is in a ledger."""

  header: Header
  later: tuple[Entry | Change, ...]
  hashes: tuple[str, ...]  # of all rows, the header's first

  @property
  def entries(self) -> list[Entry]:
    return [each for each in self.later if isinstance(each, Entry)]

  @property
  def events(self) -> list[events.Event]:
    return [entry.event for entry in self.entries]

  @property
  def changes(self) -> list[Change]:
    return [each for each in self.later if isinstance(each, Change)]

  @property
  def budget(self) -> Budget:
    return [self.header, *self.changes][-1].budget_epsilon


def rows_after(last: Row | None, records: Sequence[Record]) -> list[Row]:
  """The records as rows that go on with the chain."""
  rows = [] if last is None else [last]
  for record in records:
    number, previous = (rows[-1].number, rows[-1].hash) if rows else (0, '')
    content = _content(record)
    sha = _hash(previous, record.id, content)
    rows.append(Row(number + 1, record.id, content, previous, sha))
  return rows if last is None else rows[1:]


def book_of(rows: Sequence[Row]) -> Book:
  """What rows hold; ValueError names the first that is not as written."""
  records = []
  previous = Row(0, '', '', '', '')
  ids = set()
  for row in rows:
    number = previous.number + 1
    try:
      if row.number != number:
        raise ValueError('missing: it was removed')
      if row.previous != previous.hash:
        raise ValueError(
          f'does not follow row {previous.number}: one of them was altered, '
          'moved or put in'
        )
      if row.hash != _hash(row.previous, row.id, row.content):
        raise ValueError('altered: its hash is not that of what it says')
      if row.id in ids:
        raise ValueError(f'a second one with the id {row.id}')
      records.append(_record(row, records[0] if records else None))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
      raise ValueError(f'row {number}: {error}') from None
    ids.add(row.id)
    previous = row
  header, *later = records
  return Book(header, tuple(later), tuple(row.hash for row in rows))


def checked_header(header: Header) -> Header:
  """The header with Python numbers, or an error."""
  for name, kind in (('unit', Unit), ('relation', Relation)):
    if getattr(header, name) not in get_args(kind):
      raise ValueError(
        f'{name} must be one of {get_args(kind)}, got {getattr(header, name)!r}'
      )
  return header._replace(
    budget_epsilon=checked_budget(header.budget_epsilon),
    delta=events.checked_delta(header.delta),
    rule=header.rule and filters.checked(header.rule),
  )


def checked_budget(budget: Any) -> Budget:
  """'unlimited', or the number as a Python float, or an error."""
  if budget == UNLIMITED:
    return UNLIMITED
  return events.checked_epsilon(cast(Any, budget), 'budget_epsilon')


def fields(kind: Any, values: Any) -> dict[str, Any]:
  """The fields of a tuple type out of a JSON object, with words as words."""
  if not isinstance(values, dict):
    raise ValueError(f'must be a JSON object, got {values!r}')
  for name, meant in _hints(kind).items():
    if name not in values:
      raise ValueError(f'{name} is missing')
    if meant is str and not isinstance(values[name], str):
      raise ValueError(f'{name} must be a string, got {values[name]!r}')
  return {name: values[name] for name in kind._fields}


def _content(record: Record) -> str:
  """The record without its id as JSON: names in order, no spaces, ASCII."""
  values = record._asdict() | {'kind': _KINDS[type(record)]}
  del values['id']
  if isinstance(record, Entry):
    values['event'] = encode(record.event)
  if isinstance(record, Header):
    values['schema'] = _SCHEMA
    values['rule'] = record.rule and record.rule._asdict()
  return json.dumps(
    values, sort_keys=True, separators=(',', ':'), allow_nan=False
  )


def _hash(previous: str, key: str, content: str) -> str:
  joined = json.dumps([previous, key, content])
  return hashlib.sha256(joined.encode()).hexdigest()


def _record(row: Row, header: Header | None) -> Record:
  values = json.loads(row.content)
  if not isinstance(values, dict):
    raise ValueError(f'must be a JSON object, got {values!r}')
  values['id'] = row.id
  kind = values.get('kind')
  if header is None:
    if values.get('schema') != _SCHEMA:
      raise ValueError(
        f'schema must be {_SCHEMA!r}, got {values.get("schema")!r}'
      )
    found = Header(**fields(Header, values))
    if found.rule is not None:
      rule = filters.Rule(**fields(filters.Rule, found.rule))
      found = found._replace(rule=rule)
    return checked_header(found)
  if kind == _KINDS[Change]:
    change = Change(**fields(Change, values))
    return change._replace(budget_epsilon=checked_budget(change.budget_epsilon))
  if kind == _KINDS[Entry]:
    return entry_of(values, header)
  raise ValueError(f"kind must be 'release' or 'budget', got {kind!r}")


def entry_of(values: dict[str, Any], header: Header) -> Entry:
  """The entry of JSON values, if it may be in the ledger."""
  entry = Entry(**fields(Entry, values))
  entry = entry._replace(event=decode(entry.event))
  accountant.check_relation(entry.event, header.relation)  # of proved parts
  if entry.delta != header.delta:
    raise ValueError(f'delta must be {header.delta!r}, got {entry.delta!r}')
  # Where the ends of noise leave nothing of delta, pure noise alone has one.
  if not events.delta_left(entry.event, header.delta) > 0:
    accountant.epsilon(entry.event, header.delta)
  return entry
