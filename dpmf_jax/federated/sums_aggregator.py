"""The third party: opens boxes, adds up masked reports, passes on one sum.

One for a run, ever: the sum is saved before it is sent, and whoever asks again
gets the same bytes. A second sum, over other users, would tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpmf_jax import messages
from dpmf_jax.federated import boxes, folders, intake
from dpmf_jax.federated.intake import RejectedError, Shape, name
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.plan import AGGREGATOR, RECOMMENDER, Plan
from dpmf_jax.federated.sums_node import KEY_FILE, width
from dpmf_jax.mechanisms.secure_sum import BrokenRoundError, Report
from dpmf_jax.messages import Kind
from dpmf_jax.systems import untrusted_protocol


def aggregator(
  plan: Plan, folder: str | Path, journal: Journal
) -> Callable[[bytes], bytes]:
  """(boxes of a round) -> their sum, or a refusal."""
  folder = Path(folder)
  private = boxes.own_key(folder / KEY_FILE)
  if boxes.public_key(private) != plan.aggregator_key:
    raise ValueError(f"{folder / KEY_FILE} is not the plan's aggregator key")

  def total(data: bytes) -> tuple[int, bytes]:
    message = intake.opened(
      data,
      plan,
      kind=Kind.SEALED,
      sender=RECOMMENDER,
      shapes=[
        Shape('senders', 'uint32', (None,)),
        Shape('sizes', 'uint32', (None,)),
        Shape('boxes', 'uint8', (None,)),
      ],
    )
    senders, sizes, content = message.arrays
    ends = np.cumsum(sizes.astype(np.int64))
    whole = int(ends[-1]) if len(ends) else 0
    if len(senders) != len(sizes) or whole != len(content):
      raise RejectedError('wrong shape: boxes and sizes differ')
    reports: list[Report] = []
    for sender, box in zip(senders, np.split(content, ends[:-1]), strict=True):
      try:
        reports += _reports(plan, message.round, int(sender), box, private)
      except (RejectedError, boxes.BrokenBoxError) as error:
        who = name(int(sender))
        journal.log('rejected', round=message.round, who=who, why=str(error))
    try:
      made = untrusted_protocol.aggregate(
        reports,
        plan.config,
        round=message.round,
        users=range(plan.num_users),
      )
    except BrokenRoundError as error:
      raise RejectedError(str(error)) from None
    return message.round, intake.run_message(
      plan,
      Kind.AGGREGATE,
      message.round,
      AGGREGATOR,
      np.array(made.arrived, np.uint32),
      made.values,
    )

  def handle(data: bytes) -> bytes:
    journal.keep('received', RECOMMENDER, data)
    state = folders.saved(folder, plan)
    try:
      if state is not None:
        journal.log('passed on again', round=int(state['round']))
        reply = state['answer'].tobytes()
      else:
        round, reply = total(data)
        kept = np.frombuffer(reply, np.uint8)
        folders.save(folder, plan, {'answer': kept, 'round': np.int32(round)})
        journal.log('passed on', round=round)
    except RejectedError as error:
      journal.log('refused', why=str(error))
      reply = intake.refused(plan, 0, AGGREGATOR, str(error))
    journal.keep('sent', RECOMMENDER, reply)
    return reply

  return handle


def _reports(
  plan: Plan, round: int, sender: int, box: np.ndarray, private: bytes
) -> list[Report]:
  """The reports of a node's users, or RejectedError, or BrokenBoxError."""
  if sender >= len(plan.nodes):
    raise RejectedError('not a node')
  node = plan.nodes[sender]
  data = boxes.unsealed(
    box.tobytes(),
    private,
    node.key,
    run=plan.run,
    round=round,
    sender=sender,
  )
  try:
    message = messages.from_bytes(data)
  except ValueError as error:
    raise RejectedError(f'broken: {error}') from None
  expected = (node.size, plan.num_items, width())
  if (
    (message.kind, message.round, message.sender)
    != (Kind.REPORT, round, sender)
    or len(message.arrays) != 2
    or not np.array_equal(message.arrays[0], node.users)
    or message.arrays[1].shape != expected
    or message.arrays[1].dtype != np.uint32
  ):
    raise RejectedError('wrong shape, or other users')
  return [
    Report(round, int(user), words)
    for user, words in zip(*message.arrays, strict=True)
  ]
