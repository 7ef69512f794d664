"""Ledgers of earlier versions: files of JSON lines, to be imported."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from dpmf_jax.accounting import filters
from dpmf_jax.accounting.events import checked_number
from dpmf_jax.accounting.ledger_rows import (
  UNLIMITED,
  Entry,
  Header,
  Record,
  checked_header,
  entry_of,
  fields,
)

# The first needed no budget, and what it refused was no filter.
_SCHEMAS = 'dpmf_jax-ledger-1', 'dpmf_jax-ledger-2'


def records(path: Path) -> list[Record]:
  """What the file holds; ValueError names the line that is wrong.

  Epsilons are computed from events, and a line that says another is refused,
  as is one with another delta than the ledger's.
  """
  content = path.read_bytes()
  found: list[Any] = []
  ids, schema = set(), None
  lines = content.removesuffix(b'\n').split(b'\n')
  for number, line in enumerate(lines, 1):
    try:
      values = _values(line, cut=number == len(lines) and content[-1:] != b'\n')
      if not found:
        found.append(_header(values, content))
        schema = values['schema']
        continue
      entry = _entry(values, found[0])
      if entry.id in ids:
        raise ValueError(f'a second one with the id {entry.id}')
      ids.add(entry.id)
      found.append(entry)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
      raise ValueError(f'{path}, line {number}: {error}') from None
  if len(found) == 1:
    raise ValueError(f'{path} has no releases: begin a ledger of its own')
  header, first = found[:2]
  if header.budget_epsilon != UNLIMITED and schema == _SCHEMAS[-1]:
    rule = filters.rule(
      first.event, budget=header.budget_epsilon, delta=header.delta
    )
    found[0] = header._replace(rule=rule)
  return found


def _values(line: bytes, *, cut: bool) -> Any:
  try:
    return json.loads(line)
  except ValueError:
    why = 'not JSON'
  if cut:
    why = (
      'the last line is cut off. If a run was killed while writing it, '
      'that run drew no noise: delete the line. If this is a copy, get a '
      'whole one'
    )
  raise ValueError(why)


def _header(values: Any, content: bytes) -> Header:
  schema = values.get('schema') if isinstance(values, dict) else None
  if schema not in _SCHEMAS:
    raise ValueError(f'schema must be one of {_SCHEMAS}, got {schema!r}')
  sha = hashlib.sha256(content).hexdigest()
  values |= {'time': values.get('created', ''), 'rule': None}
  values |= {'id': sha, 'imported': sha}
  if values.get('budget_epsilon', '') is None:
    values['budget_epsilon'] = UNLIMITED
  return checked_header(Header(**fields(Header, values)))


def _entry(values: Any, header: Header) -> Entry:
  entry = entry_of(values, header)
  wanted = {
    'status': 'proved',
    'unit': header.unit,
    'relation': header.relation,
  }
  for name, value in wanted.items():
    if values.get(name) != value:
      raise ValueError(f'{name} must be {value!r}, got {values.get(name)!r}')
  said = checked_number('epsilon', values.get('epsilon'))
  # Another version may have had a bound that is a little better or worse.
  if not math.isclose(said, entry.epsilon, rel_tol=0.01):
    raise ValueError(
      f'epsilon={said!r} is not that of its event, {entry.epsilon:.6g}: the '
      'line was altered'
    )
  return entry
