"""Ratings among processes: each reads its part files, and has its own users.

A user belongs to one process, by a hash of the id. What is sent are arrays, and
nothing in them is run. How bytes get from one process to another is not known
here: `runs/processes.py` does that.

Privacy: what is sent are the ratings.
"""

from __future__ import annotations

import dataclasses
import io
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.ratings.ids import join_ids
from dpmf_jax.ratings.splits import hashed_ids
from dpmf_jax.ratings.table import Ratings

_COLUMNS = ('user', 'item', 'value', 'timestamp')


class Among(NamedTuple):
  """The place of a process among those that read ratings together.

  Attributes:
    number: of this process, from 0.
    total: how many there are.
    exchanged: bytes for each of them -> what each of them has for this one.
  """

  number: int
  total: int
  exchanged: Callable[[Sequence[bytes]], list[bytes]]

  def parts(self, parts: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """The part files of this process; they are in the order of processes."""
    first, last = (
      len(parts) * k // self.total for k in (self.number, self.number + 1)
    )
    return list(parts[first:last])


def owners(user_ids: np.ndarray, count: int) -> np.ndarray:
  """[U], the number of the process that each user belongs to."""
  hashes = hashed_ids(user_ids, np.zeros(1, np.uint64))
  return (hashes % np.uint64(count)).astype(np.int32)


def packed(arrays: Mapping[str, np.ndarray], text: str = '') -> bytes:
  """Arrays and a text as bytes."""
  buffer = io.BytesIO()
  letters = np.frombuffer(text.encode(), np.uint8)
  named: dict[str, Any] = {'text': letters, **arrays}
  np.savez(buffer, **named)
  return buffer.getvalue()


def unpacked(content: bytes) -> tuple[dict[str, np.ndarray], str]:
  """What was `packed`."""
  with np.load(io.BytesIO(content), allow_pickle=False) as found:
    arrays = {name: found[name] for name in found}
  return arrays, arrays.pop('text').tobytes().decode()


def with_same_ids(ratings: Ratings, among: Among) -> Ratings:
  """The same ratings, with the ids of all processes in both lists."""
  ids = {name: getattr(ratings, name) for name in ('user_ids', 'item_ids')}
  found = among.exchanged([packed(ids)] * among.total)
  lists = [unpacked(content)[0] for content in found]
  changed: dict[str, Any] = {}
  for role in ('user', 'item'):
    name = f'{role}_ids'
    every, place = join_ids(
      [(own[name], np.arange(len(own[name]))) for own in lists]
    )
    start = sum(len(own[name]) for own in lists[: among.number])
    place = place[start : start + len(ids[name])]
    changed |= {name: every, role: place[getattr(ratings, role)]}
  return dataclasses.replace(ratings, **changed, unique=True)


def columns(ratings: Ratings) -> dict[str, np.ndarray]:
  """The numbers of ratings, with indices in place of ids."""
  found = {name: getattr(ratings, name) for name in _COLUMNS}
  return {name: column for name, column in found.items() if column is not None}


def with_columns(
  ratings: Ratings, parts: Iterable[tuple[dict[str, np.ndarray], str]]
) -> Ratings:
  """Ratings with the numbers of several parts, and the same lists of ids."""
  found = [arrays for arrays, _ in parts]
  joined = {
    name: np.concatenate([arrays[name] for arrays in found])
    for name in columns(ratings)
  }
  return dataclasses.replace(ratings, **joined, unique=True)
