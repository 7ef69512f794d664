"""Which messages count: checks of what arrives, before anything is done.

A message counts once, from whom it was asked for, in the round in which it was
asked for, if all of its arrays are as they must be. Whatever else arrives is
`RejectedError`, and says why; the text holds no values from the message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmf_jax.federated import messages
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import AGGREGATOR, RECOMMENDER, Plan


class RejectedError(ValueError):
  """A message that does not count."""


class RefusedError(RejectedError):
  """An answer that says that there will be none in this round."""


class Shape(NamedTuple):
  """What one array of a message must be; None is any length."""

  name: str
  dtype: str
  axes: tuple[int | None, ...]


def opened(
  data: bytes, plan: Plan, *, kind: Kind, sender: int, shapes: list[Shape]
) -> Message:
  """The message in `data` without the run, whatever its round.

  Raises:
    RejectedError: where it is broken, of another run, from another sender, of
      another kind, or where an array has another type or shape, or is not
      finite.
  """
  try:
    message = messages.from_bytes(data)
  except ValueError as error:
    raise RejectedError(f'broken: {error}') from None
  arrays = message.arrays
  if not arrays or not np.array_equal(arrays[0], plan.run_words):
    raise RejectedError('of another run')
  if message.sender != sender:
    raise RejectedError(f'says that it is from {name(message.sender)}')
  if message.kind == Kind.REFUSED and kind != Kind.REFUSED:
    raise RefusedError(f'refused: {refusal(message)}')
  if message.kind != kind:
    raise RejectedError(f'is {message.kind.name}, not {kind.name}')
  if len(arrays) != len(shapes) + 1:
    raise RejectedError(f'has {len(arrays) - 1} arrays, not {len(shapes)}')
  for shape, array in zip(shapes, arrays[1:], strict=True):
    fits = len(shape.axes) == array.ndim and all(
      want in (None, have)
      for want, have in zip(shape.axes, array.shape, strict=True)
    )
    if not fits or array.dtype != np.dtype(shape.dtype):
      raise RejectedError(
        f'wrong shape: {shape.name} is {array.dtype}{list(array.shape)}, not '
        f'{shape.dtype}{list(shape.axes)}'
      )
    if array.dtype.kind == 'f' and not np.isfinite(array).all():
      raise RejectedError(f'{shape.name} is not finite')
  return message._replace(arrays=arrays[1:])


def round_of(data: bytes) -> int:
  """The round that a message says it is of."""
  try:
    return messages.from_bytes(data).round
  except ValueError as error:
    raise RejectedError(f'broken: {error}') from None


def in_round(message: Message, round: int) -> Message:
  """The message, if it is of that round."""
  if message.round != round:
    raise RejectedError(f'of round {message.round}: late or replayed')
  return message


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


def name(sender: int) -> str:
  """A sender as a log calls it."""
  return {RECOMMENDER: 'recommender', AGGREGATOR: 'aggregator'}.get(
    sender, f'node {sender}'
  )
