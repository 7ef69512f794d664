"""A ledger as a file of JSON lines: locks, whole lines, and what they hold."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from dpmf_jax.accounting import events
from dpmf_jax.accounting.encoding import decode
from dpmf_jax.types import Relation, Unit

SCHEMA = 'dpmf_jax-ledger-2'
# It needed no budget, and what it refused was no filter.
_OLD_SCHEMA = 'dpmf_jax-ledger-1'

Budget: TypeAlias = float | Literal['unlimited']
UNLIMITED: Literal['unlimited'] = 'unlimited'


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


def checked_header(ledger: Header) -> Header:
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


@contextlib.contextmanager
def locked(path: Path, *, write: bool) -> Iterator[int]:
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


def append_line(handle: int, path: Path, values: dict[str, Any]) -> None:
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


def read(handle: int, path: Path) -> tuple[Header | None, list[Entry]]:
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
  return checked_header(ledger)


def _parse_entry(values: Any, ledger: Header) -> Entry:
  entry = Entry(**_fields(Entry, values))
  found = entry.status, entry.unit, entry.relation
  wanted = 'proved', ledger.unit, ledger.relation
  if found != wanted:
    raise ValueError(f'status, unit, relation must be {wanted}, got {found}')
  event = decode(entry.event)
  events.leaves(event)
  return entry._replace(event=event)


def _fields(kind: Any, values: Any) -> dict[str, Any]:
  """The fields of a tuple type out of a JSON object; others are ignored."""
  if not isinstance(values, dict):
    raise ValueError(f'must be a JSON object, got {values!r}')
  missing = [name for name in kind._fields if name not in values]
  if missing:
    raise ValueError(f'{missing[0]} is missing')
  return {name: values[name] for name in kind._fields}
