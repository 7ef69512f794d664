"""Which messages count: checks of what arrives, before anything is done.

A message counts once, from whom it was asked for, in the round in which it was
asked for, if all of its arrays are as they must be. Whatever else arrives is
`RejectedError`, and says why; the text holds no values from the message.
"""

from __future__ import annotations

import re

import numpy as np

from dpmf_jax.federated import messages
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import AGGREGATOR, RECOMMENDER, Plan

Arrays = tuple[np.ndarray, ...]


class RejectedError(ValueError):
  """A message that does not count."""


class RefusedError(RejectedError):
  """An answer that says that there will be none in this round."""


def parsed(data: bytes) -> Message:
  """The message in `data`; RejectedError where it is none."""
  try:
    return messages.from_bytes(data)
  except ValueError as error:
    raise RejectedError(f'broken: {error}') from None


def opened(
  data: bytes,
  plan: Plan,
  kind: Kind,
  sender: int,
  shapes: tuple[str, ...],
  number: int = 0,
) -> Message:
  """The message in `data` without the run, whatever its round.

  Raises:
    RejectedError: where it is broken, of another run, from another sender, of
      another kind, or where an array is not as `check_arrays` wants it.
  """
  message = parsed(data)
  arrays = message.arrays
  if not arrays or not np.array_equal(arrays[0], plan.run_words):
    raise RejectedError('of another run')
  if message.sender != sender:
    raise RejectedError(f'says that it is from {party_name(message.sender)}')
  if message.kind == Kind.REFUSED:
    raise RefusedError(f'refused: {refusal(message)}')
  if message.kind != kind:
    raise RejectedError(f'is {message.kind.name}, not {kind.name}')
  check_arrays(arrays[1:], plan, shapes, number)
  return message._replace(arrays=arrays[1:])


def check_arrays(
  arrays: Arrays, plan: Plan, shapes: tuple[str, ...], number: int
) -> None:
  """Returns nothing; RejectedError where arrays differ or are not finite.

  Args:
    arrays: of a message.
    plan: of the run.
    shapes: what they must be, such as 'items float32[I,D]', with n for users
      of the node, I items, D factors, or a number, and * for any length.
    number: of the node.
  """
  if len(arrays) != len(shapes):
    raise RejectedError(f'has {len(arrays)} arrays, not {len(shapes)}')
  sizes = {
    'n': plan.nodes[number].size,
    'I': plan.num_items,
    'D': plan.config.rank,
  }
  for shape, array in zip(shapes, arrays, strict=True):
    name, dtype, axes = re.split(r'[ \[]', shape.rstrip(']'))
    wanted = axes.split(',')
    fits = len(wanted) == array.ndim and all(
      want == '*' or have == int(sizes.get(want, want))
      for want, have in zip(wanted, array.shape, strict=True)
    )
    if not fits or array.dtype != dtype:
      raise RejectedError(
        f'wrong shape: {name} is {array.dtype}{list(array.shape)}, not {shape}'
      )
    if array.dtype.kind == 'f' and not np.isfinite(array).all():
      raise RejectedError(f'{name} is not finite')


def check_items(items: np.ndarray, counts: np.ndarray, plan: Plan) -> None:
  """Returns nothing; RejectedError where users' items are not as they must be.

  Args:
    items: of all users, one user after the other, ascending for each.
    counts: how many of them each user has.
    plan: of the run.
  """
  if counts.astype(np.int64).sum() != len(items):
    raise RejectedError('wrong shape: items and counts differ')
  if (items >= plan.num_items).any():
    raise RejectedError('an unknown item')
  owner = np.repeat(np.arange(len(counts)), counts)
  if ((np.diff(items.astype(np.int64)) <= 0) & (np.diff(owner) == 0)).any():
    raise RejectedError('an item twice, or items that are not in order')


def run_message(
  plan: Plan, kind: Kind, round: int, sender: int, *arrays: np.ndarray
) -> bytes:
  """A message of this run as bytes."""
  parts = (plan.run_words, *arrays)
  return messages.to_bytes(Message(kind, round, sender, parts))


def refused(plan: Plan, round: int, sender: int, reason: str) -> bytes:
  """The answer that says why there is none."""
  text = np.frombuffer(reason.encode()[:500] or b'?', np.uint8)
  return run_message(plan, Kind.REFUSED, round, sender, text)


def refusal(message: Message) -> str:
  """The text of a refusal."""
  text = message.arrays[-1].astype(np.uint8).tobytes()[:500]
  return ascii(text.decode('utf-8', 'replace'))


def party_name(sender: int) -> str:
  """A sender as a log calls it."""
  return {RECOMMENDER: 'recommender', AGGREGATOR: 'aggregator'}.get(
    sender, f'node {sender}'
  )
