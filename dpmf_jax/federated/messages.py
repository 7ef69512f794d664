"""Messages between parties as bytes: a short header and plain arrays.

Layout, little-endian: magic 'DPMF', version u8, kind u8, number of arrays u8,
0, round u32, sender u32; then for each array its type u8, number of axes u8,
its shape (u32 each) and its values. Nothing in it is code, and whatever does
not fit is an error that says where.
"""

from __future__ import annotations

import enum
import math
import struct
from typing import NamedTuple

import numpy as np

_MAGIC, _VERSION = b'DPMF', 1
_HEADER = struct.Struct('<4sBBBBII')
_TYPES = ('<u4', '<f4', '|u1')
_MAX_AXES = 4


class Kind(enum.IntEnum):
  """What a message is; all but those under a seal begin with the run [16]."""

  SETUP = 1  # asks and answers before a round: who rated what, who is online
  SEEDED = 3  # recommender to node: seeds of masks, item factors, and pieces
  REPORT = 4  # node to third party, under a seal: users' masked words
  AGGREGATE = 5  # third party to recommender: users, sum of masked words
  SHARE = 7  # recommender to node: scales of noise [I, D], raters [I]; and back
  PUBLIC = 8  # recommender to node: what every client is sent in a round
  REPORTS = 9  # node to recommender: what its clients report
  SEALED = 10  # what only the third party can open
  REFUSED = 11  # instead of an answer: why not, as text


class Message(NamedTuple):
  kind: Kind
  round: int
  sender: int
  arrays: tuple[np.ndarray, ...]  # uint32, float32 or uint8


def to_bytes(message: Message) -> bytes:
  """The message as bytes."""
  head = (_MAGIC, _VERSION, int(message.kind), len(message.arrays), 0)
  parts = [_HEADER.pack(*head, message.round, message.sender)]
  for array in message.arrays:
    array = np.asarray(array)
    code = array.dtype.newbyteorder('<').str
    if code not in _TYPES or array.ndim > _MAX_AXES:
      raise ValueError(f'{array.dtype} of {array.ndim} axes is not sent')
    parts.append(struct.pack('<BB', _TYPES.index(code), array.ndim))
    parts.append(struct.pack(f'<{array.ndim}I', *array.shape))
    parts.append(np.ascontiguousarray(array, code).tobytes())
  return b''.join(parts)


def from_bytes(data: bytes) -> Message:
  """The message in `data`; ValueError where it is none, or broken."""
  if len(data) < _HEADER.size:
    raise ValueError(f'a message has at least {_HEADER.size} bytes')
  magic, version, kind, count, rest, round_, sender = _HEADER.unpack_from(data)
  if (magic, version, rest) != (_MAGIC, _VERSION, 0):
    raise ValueError(f'not a message of version {_VERSION}')
  if kind not in list(Kind):
    raise ValueError(f'no message has kind {kind}')
  place, arrays = _HEADER.size, []
  for _ in range(count):
    array, place = _array(data, place)
    arrays.append(array)
  if place != len(data):
    raise ValueError(f'{len(data) - place} bytes follow the message')
  return Message(Kind(kind), round_, sender, tuple(arrays))


def _array(data: bytes, place: int) -> tuple[np.ndarray, int]:
  """The array at `place`, and where the next begins."""
  if len(data) < place + 2:
    raise ValueError(f'the message ends at byte {len(data)}, in an array')
  code, axes = data[place], data[place + 1]
  start = place + 2 + 4 * axes
  if code >= len(_TYPES) or axes > _MAX_AXES or len(data) < start:
    raise ValueError(f'no array at byte {place}')
  shape = struct.unpack_from(f'<{axes}I', data, place + 2)
  dtype = np.dtype(_TYPES[code])
  end = start + dtype.itemsize * math.prod(shape)
  if len(data) < end:
    raise ValueError(f'an array of shape {shape} at byte {place} is cut off')
  array = np.frombuffer(data[start:end], dtype).reshape(shape)
  return array.astype(dtype.newbyteorder('=')), end
