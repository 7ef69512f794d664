"""Fuzz targets of ledgers and signatures."""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import sqlite3
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from dpmf_jax.accounting import encoding, events, ledger, ledger_lines
from dpmf_jax.accounting import ledger_database as database
from dpmf_jax.accounting import ledger_rows as rows_of
from dpmf_jax.certificates import signatures
from tests.mutations import (
  VALUES,
  Target,
  changed_bytes,
  changed_json,
  file_target,
)

_FACTS: dict[str, Any] = {
  'delta': 1e-6, 'unit': 'rating', 'relation': 'add_remove', 'dataset': 'd',
}  # fmt: skip
# Those whose sum is known at once; other events are a target of their own.
_EVENTS = (
  events.Gaussian(9.0, 3),
  events.Gaussian(20.0),
  events.Gaussian(30.0),
)


def targets(folder: pathlib.Path) -> Iterator[tuple[str, Target]]:
  """Of databases, rows and old lines of ledgers, and of signatures."""
  path = folder / 'book.db'
  for number, event in enumerate(_EVENTS):
    ledger.spend(
      path, event, budget_epsilon=3 if not number else None, **_FACTS
    )
  ledger.set_budget(path, 2, reason='less')
  good = [path.read_bytes()]
  yield 'ledger, as bytes', file_target('book.db', good, _spent)
  rows = database.look(path)
  yield 'ledger, as rows', Target([rows], _written, True, _changed_rows)
  yield (
    'ledger, as lines',
    file_target('old.ledger', [_lines()], ledger_lines.records, _changed_lines),
  )
  yield from _signature_targets(folder)


def _spent(path: pathlib.Path) -> None:
  """Looks at a ledger, and spends."""
  for rest in path.parent.glob('book.db-*'):
    rest.unlink()
  ledger.report(path)
  ledger.spend(path, events.Gaussian(99.0), **_FACTS)


def _written(rows: list[tuple[Any, ...]], folder: pathlib.Path) -> None:
  """Looks at a ledger with any values in its rows."""
  path = folder / 'book.db'
  path.unlink(missing_ok=True)
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute('PRAGMA synchronous = OFF')
    names = ', '.join(rows_of.Row._fields)
    connection.execute(f'CREATE TABLE dpmf_ledger ({names})')
    connection.executemany('INSERT INTO dpmf_ledger VALUES (?,?,?,?,?)', rows)
    connection.commit()
  ledger.report(path)
  ledger.spend(path, events.Gaussian(99.0), dry_run=True, **_FACTS)


def _changed_rows(
  rng: random.Random, rows: list[rows_of.Row]
) -> list[tuple[Any, ...]]:
  """Rows with other contents and, mostly, the hashes of these."""
  found = list(rows)
  place = rng.randrange(len(found))
  row = found[place]
  if rng.random() < 0.2:
    simple = [v for v in VALUES if isinstance(v, str | int | float | None)]
    simple = [v for v in simple if not isinstance(v, int) or abs(v) < 2**63]
    name = rng.choice(row._fields)
    found[place] = row._replace(**{name: rng.choice(simple)})
    return [*map(tuple, found)]
  content = changed_json(rng, row.content.encode()).decode('utf-8', 'replace')
  found[place] = row._replace(content=content)
  if rng.random() < 0.1:
    found.pop(rng.randrange(len(found)))
  previous = ''
  for number, row in enumerate(found, 1):
    sha = rows_of._hash(previous, row.id, row.content)
    found[number - 1] = rows_of.Row(number, row.id, row.content, previous, sha)
    previous = sha
  return [*map(tuple, found)]


def _lines() -> bytes:
  """As an earlier version wrote them."""
  header = _FACTS | {
    'schema': 'dpmf_jax-ledger-2', 'created': '2026-01-01', 'digest': 'a',
    'budget_epsilon': 3.0,
  }  # fmt: skip
  lines = [header]
  for number, event in enumerate(_EVENTS[:2]):
    entry = rows_of.Entry(
      str(number), '2026-01-02', 'mf', 'sound', event, 'a', 'w', 1e-6
    )
    lines.append(
      entry._asdict()
      | {'event': encoding.encode(event), 'epsilon': entry.epsilon}
      | {'status': 'proved', 'unit': 'rating', 'relation': 'add_remove'}
    )
  return b''.join(json.dumps(line).encode() + b'\n' for line in lines)


def _changed_lines(rng: random.Random, data: bytes) -> bytes:
  if rng.random() < 0.3:
    return changed_bytes(rng, data)
  lines = data.splitlines()
  place = rng.randrange(len(lines))
  lines[place] = changed_json(rng, lines[place])
  return b'\n'.join(lines) + b'\n'


def _signature_targets(folder: pathlib.Path) -> Iterator[tuple[str, Target]]:
  key = ed25519.Ed25519PrivateKey.generate()
  private = key.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
  )
  public = key.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
  )
  content = b'{"status": "proved"}'
  (folder / 'certificate.json').write_bytes(content)
  (folder / 'key.pem').write_bytes(private)
  signed = signatures.sign(folder, folder / 'key.pem').read_bytes()
  whole = {
    'certificate.json': content, 'key.pem': private, 'public.pem': public,
    signatures.SIGNATURE: signed,
  }  # fmt: skip

  def read(path: pathlib.Path) -> None:
    for name, content in whole.items():
      if name != path.name:
        (path.parent / name).write_bytes(content)
    if path.name == 'key.pem':
      signatures.sign(path.parent, path)
    else:
      signatures.verify(path.parent, path.parent / 'public.pem')

  for name, content in whole.items():
    yield f'signatures, {name}', file_target(name, [content], read)
