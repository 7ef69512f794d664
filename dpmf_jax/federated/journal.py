"""What happened in a run, as JSON lines, and all messages, if asked for."""

from __future__ import annotations

import json
import os
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dpmf_jax import files
from dpmf_jax.federated import messages

Log = Callable[..., None]
_RECORD = struct.Struct('<BIQ')


class Journal(NamedTuple):
  """Where a party puts down what happens.

  Attributes:
    log: (event, **fields) -> None: appends a line.
    keep: (direction, peer, data) -> None: counts a message's bytes, and keeps
      it where a transcript is wanted. Direction is 'sent' or 'received'.
  """

  log: Log
  keep: Callable[[str, int, bytes], None]


def journal(folder: str | Path, *, transcript: bool = False) -> Journal:
  """A journal in `folder`: log.jsonl, bytes.jsonl and transcript.bin."""
  folder = Path(folder)

  def append(name: str, content: bytes) -> None:
    # One write, so that lines of two threads do not mix.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    handle = os.open(folder / name, flags, 0o600)
    try:
      os.write(handle, content)
    finally:
      os.close(handle)

  def line(name: str, fields: dict[str, Any]) -> None:
    append(name, (json.dumps(fields, allow_nan=False) + '\n').encode())

  def log(event: str, **fields: Any) -> None:
    line('log.jsonl', {'time': round(time.time(), 3), 'event': event, **fields})

  def keep(direction: str, peer: int, data: bytes) -> None:
    try:
      kind = messages.from_bytes(data).kind.name
    except ValueError:
      kind = 'BROKEN'
    line(
      'bytes.jsonl',
      {'direction': direction, 'peer': peer, 'kind': kind, 'bytes': len(data)},
    )
    if transcript:
      head = _RECORD.pack(direction == 'sent', peer, len(data))
      append('transcript.bin', head + data)

  return Journal(log, keep)


def read_log(folder: str | Path) -> list[dict[str, Any]]:
  """The lines of a log."""
  path = Path(folder) / 'log.jsonl'
  return [
    files.parsed_json(line, f'{path}, line {number}')
    for number, line in enumerate(path.read_bytes().splitlines(), start=1)
  ]


def bytes_table(folder: str | Path) -> list[dict[str, Any]]:
  """Messages and bytes by direction and kind, as serialised."""
  found: dict[tuple[str, str], list[int]] = defaultdict(list)
  text = (Path(folder) / 'bytes.jsonl').read_text(encoding='utf-8')
  for row in map(json.loads, text.splitlines()):
    found[row['direction'], row['kind']].append(row['bytes'])
  return [
    {
      'direction': direction,
      'kind': kind,
      'messages': len(sizes),
      'bytes': sum(sizes),
    }
    for (direction, kind), sizes in sorted(found.items())
  ]


def read_transcript(folder: str | Path) -> Iterator[tuple[str, int, bytes]]:
  """(direction, peer, bytes) of every message that was kept."""
  path = Path(folder) / 'transcript.bin'
  content = path.read_bytes()
  place = 0
  while place < len(content):
    whole = len(content) >= place + _RECORD.size
    sent, peer, size = (
      _RECORD.unpack_from(content, place) if whole else (0, 0, 0)
    )
    if not whole or len(content) < place + _RECORD.size + size:
      raise ValueError(f'{path}: is cut off in the message at byte {place}')
    place += _RECORD.size
    yield ('sent' if sent else 'received'), peer, content[place : place + size]
    place += size
