"""Good input, changed a little: what fuzzers read."""

from __future__ import annotations

import copy
import json
import math
import pathlib
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

# Bytes that parsers trip over.
TOKENS = (
  b'', b'\0', b'\r', b'\n', b'\r\n', b'"', b'""', b'\\', b',', b';', b'::',
  b':', b'\t', b'|', b' ', b'-', b'+', b'.', b'e', b'0', b'1', b'-1', b'007',
  b'1e9', b'1e309', b'1e200', b'nan', b'inf', b'-inf', b'NULL', b'null',
  b'true', b'{', b'}', b'[', b']', b'9' * 25, b'9' * 5000, b'[' * 3000,
  b'{"a":' * 500,
  b'\xff', b'\xfe\xff', b'\xef\xbb\xbf', b'\xc3', b'\xed\xa0\x80', b'\\ud800',
  '\u2028'.encode(), '\u0663'.encode(), b'x' * 300, b'A' * 140_000, b'PAR1',
  b'\x1f\x8b', b'user', b'item', b'rating', b'epsilon', b'18446744073709551616',
  b'\x7f\xff\xff\xff', b'\xff\xff\xff\xff', b'\0\0\0\0\0\0\0\0',
)  # fmt: skip
VALUES = (
  None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5,
  1e-300, 1e300, math.nan, math.inf, -math.inf, '', 'x', '7', 'nan', [], [1],
  [[1]], [None], {}, {'a': 1}, (1.0, 5.0), [5, 1], [1, 5], 'sound', 'user',
)  # fmt: skip


class Target(NamedTuple):
  """Something that reads.

  Attributes:
    good: inputs that are read without an error.
    read: of one that was changed; the path is a folder of its own.
    named: whether errors name the file, which is in that folder.
    changed: (random, input) -> another one.
  """

  good: list[Any]
  read: Callable[[Any, pathlib.Path], Any]
  named: bool = True
  changed: Callable[[random.Random, Any], Any] | None = None


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
  """`data` after one to four changes."""
  content = bytearray(data)
  for _ in range(rng.randint(1, 4)):
    size = len(content)
    start = rng.randint(0, size)
    stop = min(size, start + rng.choice((0, 1, 1, 2, 4, 16, 64)))
    kind = rng.randrange(8)
    if kind == 0 and size:
      content[start % size] ^= 1 << rng.randrange(8)
    elif kind == 1 and size:
      content[start % size] = rng.randrange(256)
    elif kind == 2:
      del content[start:stop]
    elif kind == 3:
      content[start:start] = content[start:stop] * rng.choice((1, 2, 50))
    elif kind == 4:
      content = content[:start] if rng.random() < 0.5 else content[start:]
    elif kind == 5:
      other = rng.randint(0, size)
      content[start:stop] = content[other : other + stop - start]
    else:
      content[start:stop] = rng.choice(TOKENS)
  return bytes(content)


def places(value: Any) -> list[tuple[Any, Any]]:
  """(container, key) of everything in a JSON value."""
  found, stack = [], [value]
  while stack:
    each = stack.pop()
    keys = each if isinstance(each, dict) else range(len(each))
    for key in keys:
      found.append((each, key))
      if isinstance(each[key], dict | list):
        stack.append(each[key])
  return found


def changed_json(rng: random.Random, data: bytes) -> bytes:
  """JSON with other values in places, or other bytes."""
  if rng.random() < 0.4:
    return changed_bytes(rng, data)
  value = json.loads(data)
  for _ in range(rng.randint(1, 3)):
    found = places(value)
    if not found:
      break
    container, key = rng.choice(found)
    other = rng.choice(found)
    kind = rng.randrange(4)
    if kind == 0:
      container.pop(key)
    elif kind == 1:
      container[key] = copy.deepcopy(other[0][other[1]])
    else:
      container[key] = copy.deepcopy(rng.choice(VALUES))
  return json.dumps(value).encode()


def changed_leaves(rng: random.Random, data: bytes) -> bytes:
  """A safetensors file with other arrays, another header or other bytes."""
  if rng.random() < 0.4:
    return changed_bytes(rng, data)
  (size,) = struct.unpack('<Q', data[:8])
  header = changed_json(rng, data[8 : 8 + size])
  body = data[8 + size :]
  if rng.random() < 0.5:
    leaves = safetensors.numpy.load(data)
    name = rng.choice(sorted(leaves))
    shape = tuple(rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(4)))
    kind = rng.choice((np.float32, np.int32, np.float64, np.uint8, bool))
    leaves[name] = np.full(shape, rng.choice((0, 1, -1, 7)), float).astype(kind)
    if rng.random() < 0.3:
      leaves[rng.choice(sorted(leaves))].fill(0)
    if rng.random() < 0.3:
      leaves.pop(rng.choice(sorted(leaves)))
    keep = json.loads(data[8 : 8 + size]).get('__metadata__')
    return safetensors.numpy.save(leaves, metadata=keep)
  return struct.pack('<Q', len(header)) + header + body


def file_target(
  name: str,
  good: list[bytes],
  read: Callable[[pathlib.Path], Any],
  changed: Callable[[random.Random, bytes], bytes] = changed_bytes,
) -> Target:
  """Of a reader of one file, called `name`."""

  def write_and_read(data: bytes, folder: pathlib.Path) -> Any:
    path = folder / name
    path.write_bytes(data)
    return read(path)

  return Target(good, write_and_read, True, changed)
