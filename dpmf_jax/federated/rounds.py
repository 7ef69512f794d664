"""Asking nodes in a round: again where nothing came, and never counting twice.

The rules. A node is asked up to `attempts` times, with the same bytes. What
arrives counts if `intake` lets it through, and only the first time; what is
late, replayed, doubled or wrong is put down and left out; who refuses is not
asked again. After the last attempt the round goes on without those who are
missing, as if their users were offline, or stops the run where fewer than
`least` nodes are left. A node that gets the same question again gives the same
answer again, bit by bit (see `folders.answer_once`), so that asking twice
costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dpmf_jax.federated.intake import (
  RefusedError,
  RejectedError,
  in_round,
  name,
)
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Message
from dpmf_jax.federated.plan import Plan

# ({peer: bytes}, seconds) -> what arrived in that time, with who the network
# says it is from. It may hold late answers to earlier questions.
Exchange = Callable[[Mapping[int, bytes], float], Iterable[tuple[int, bytes]]]


class TooFewNodesError(RuntimeError):
  """A run that cannot go on."""


def gathered(
  exchange: Exchange,
  questions: Mapping[int, bytes],
  check: Callable[[int, bytes], Message],
  plan: Plan,
  journal: Journal,
  *,
  round: int,
  least: int | None = None,
) -> dict[int, Message]:
  """The answers of a round that count, by who gave them.

  Args:
    exchange: the network.
    questions: for each peer.
    check: (peer, bytes) -> Message, or `RejectedError`.
    plan: of the run.
    journal: where all of it is put down.
    round: its number.
    least: how many answers are needed; the plan's by default.

  Raises:
    TooFewNodesError: where there are fewer.
  """
  counted: dict[int, Message] = {}
  refused: set[int] = set()
  for attempt in range(1, plan.attempts + 1):
    over = counted.keys() | refused
    missing = {k: v for k, v in questions.items() if k not in over}
    if not missing:
      break
    if attempt > 1:
      who = [name(peer) for peer in sorted(missing)]
      journal.log('asked again', round=round, attempt=attempt, who=who)
    for peer, data in missing.items():
      journal.keep('sent', peer, data)
    for peer, data in exchange(missing, plan.seconds):
      journal.keep('received', peer, data)
      try:
        if peer not in questions:
          raise RejectedError('nobody asked')
        message = in_round(check(peer, data), round)
        if peer in counted:
          raise RejectedError('doubled: it has been counted already')
      except RejectedError as error:
        journal.log('rejected', round=round, who=name(peer), why=str(error))
        if isinstance(error, RefusedError):
          refused.add(peer)
        continue
      counted[peer] = message
  left_out = [name(peer) for peer in sorted(questions.keys() - counted.keys())]
  if left_out:
    journal.log('left out', round=round, who=left_out)
  least = plan.least if least is None else least
  if len(counted) < least:
    why = f'{len(counted)} answers in round {round}, and {least} are needed'
    journal.log('stopped', round=round, why=why)
    raise TooFewNodesError(why)
  return counted
