"""The third party: opens boxes, adds up masked reports, passes on sums.

One for each turn, ever: the sum is saved before it is sent, and whoever asks
again gets the same bytes. A second sum, over other users, would tell the
difference. The sound form has one turn, the published one as many as rounds;
with dynamic users one more before them, for the noise, which it hides from the
recommender with an alpha that stays in its folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpmf_jax.federated import (
  boxes,
  carried,
  folders,
  intake,
  untrusted_protocol,
)
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.intake import RejectedError, Shape, name
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import AGGREGATOR, RECOMMENDER, Plan
from dpmf_jax.federated.sums_node import width
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.secure_sum import Aggregate, BrokenRoundError, Report


def aggregator(
  plan: Plan, folder: str | Path, journal: Journal
) -> Callable[[bytes], bytes]:
  """(boxes of a round) -> their sum, or a refusal."""
  folder = Path(folder)
  private = carried.party_key(folder, plan.aggregator_key)

  def question(data: bytes) -> Message:
    shapes = [
      Shape('senders', 'uint32', (None,)),
      Shape('sizes', 'uint32', (None,)),
      Shape('boxes', 'uint8', (None,)),
    ]
    message = intake.opened(
      data, plan, kind=Kind.SEALED, sender=RECOMMENDER, shapes=shapes
    )
    senders, sizes, content = message.arrays
    if not len(senders):
      raise RejectedError('no boxes')
    if len(senders) != len(sizes) or sizes.astype(int).sum() != len(content):
      raise RejectedError('wrong shape: boxes and sizes differ')
    return message

  def total(message: Message, kept: Leaves) -> tuple[bytes, Leaves]:
    """(the sum to pass on, what to keep for later turns)."""
    senders, sizes, content = message.arrays
    round, opened = message.round, []
    parts = np.split(content, np.cumsum(sizes.astype(int))[:-1])
    for sender, box in zip(map(int, senders), parts, strict=True):
      try:
        report = carried.opened_report(
          plan, round, sender, box.tobytes(), private
        )
        opened.append(_CHECKS[plan.config.variant](plan, report))
      except (RejectedError, boxes.BrokenBoxError) as error:
        journal.log('rejected', round=round, who=name(sender), why=str(error))
    try:
      if plan.sums:
        made = _sound_sum(plan, round, opened)
      else:
        made, kept = _published_sum(plan, round, opened, kept)
    except BrokenRoundError as error:
      raise RejectedError(str(error)) from None
    arrived = np.array(made.arrived, np.uint32)
    reply = intake.run_message(
      plan, Kind.AGGREGATE, round, AGGREGATOR, arrived, made.values
    )
    return reply, kept

  def handle(data: bytes) -> bytes:
    journal.keep('received', RECOMMENDER, data)
    state = folders.saved(folder, plan)
    try:
      message = question(data)
      turn = message.round // plan.attempts
      last = -1 if state is None else int(state['round']) // plan.attempts
      if state is not None and turn == last:
        journal.log('passed on again', round=int(state['round']))
        reply = state['answer'].tobytes()
      elif turn < last or turn >= plan.turns:
        raise RejectedError(
          f'turn {turn}: the last was {last}, and {plan.turns} are allowed'
        )
      else:
        kept = {k: v for k, v in (state or {}).items() if k == 'alpha'}
        reply, kept = total(message, kept)
        kept |= {
          'answer': np.frombuffer(reply, np.uint8),
          'round': np.int32(message.round),
        }
        folders.save(folder, plan, kept)
        journal.log('passed on', round=message.round)
    except RejectedError as error:
      journal.log('refused', why=str(error))
      reply = intake.refused(plan, 0, AGGREGATOR, str(error))
    journal.keep('sent', RECOMMENDER, reply)
    return reply

  return handle


def _sound_report(plan: Plan, message: Message) -> Message:
  """The reports of a node's users on all items, or RejectedError."""
  node, arrays = plan.nodes[message.sender], message.arrays
  expected = (node.size, plan.num_items, width())
  if (
    len(arrays) != 2
    or not np.array_equal(arrays[0], node.users)
    or arrays[1].shape != expected
    or arrays[1].dtype != np.uint32
  ):
    raise RejectedError('wrong shape, or other users')
  return message


def _sound_sum(plan: Plan, round: int, opened: list[Message]) -> Aggregate:
  reports = [
    Report(round, int(user), words)
    for message in opened
    for user, words in zip(*message.arrays, strict=True)
  ]
  users = range(plan.num_users)
  return untrusted_protocol.aggregate(
    reports, plan.config, round=round, users=users
  )


def _published_report(plan: Plan, message: Message) -> Message:
  """The reports of a node's users on their own items, or RejectedError."""
  node, arrays = plan.nodes[message.sender], message.arrays
  if (
    len(arrays) != 3
    or any(array.dtype != np.uint32 for array in arrays)
    or arrays[0].shape != (node.size,)
    or arrays[1].shape != (arrays[0].astype(int).sum(),)
    or arrays[2].shape != (len(arrays[1]), plan.config.rank)
  ):
    raise RejectedError('wrong shape, or other users')
  if (arrays[1] >= plan.num_items).any():
    raise RejectedError('an unknown item')
  return message


def _published_sum(
  plan: Plan, round: int, opened: list[Message], kept: Leaves
) -> tuple[Aggregate, Leaves]:
  """(the sum of a turn, what is kept after it): with dynamic users, alpha.

  Users who are offline report on no items.
  """
  step = plan.schedule[round // plan.attempts]
  dynamic = plan.config.users == 'dynamic'
  if step not in ('shares', 'gradients'):
    raise RejectedError('a turn in which nothing is added up')
  if dynamic and ('alpha' in kept) != (step == 'gradients'):
    raise RejectedError('noise is collected once, and before all rounds')
  reports, rated = [], {}
  for message in opened:
    counts, items, words = message.arrays
    ends = np.cumsum(counts.astype(int))[:-1]
    users = plan.nodes[message.sender].users
    parts = zip(
      users, np.split(items, ends), np.split(words, ends), strict=True
    )
    for user, own, values in parts:
      rated[int(user)] = own
      reports.append(Report(round, int(user), values))
  total = secure_sum.aggregate(
    reports,
    round=round,
    expected=range(plan.num_users),
    rows=rated,
    num_rows=plan.num_items,
  )
  if step == 'shares':
    total, alpha = untrusted_protocol.hidden_noise(total)
    return total, {'alpha': alpha}
  if dynamic:
    total = untrusted_protocol.without_alpha(total, kept['alpha'], rated)
  return total, kept


_CHECKS = {'sound': _sound_report, 'paper': _published_report}
