"""Asking nodes in a round: again where nothing came, and never counting twice.

The rules. A node is asked up to `attempts` times, with the same bytes. What
arrives counts if `checks` lets it through, and only the first time; what is
late, replayed, doubled or wrong is put down and left out; who refuses is not
asked again. After the last attempt the round goes on without those who are
missing, as if their users were offline, or stops the run where fewer than
`least` nodes are left. A node that gets the same question again gives the same
answer again, bit by bit (see `folders.answering`), so that asking twice costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dpmf_jax.federated.checks import RefusedError, RejectedError, party_name
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Message
from dpmf_jax.federated.plan import Plan

# ({peer: bytes}, seconds) -> what arrived in that time, with who the network
# says it is from. It may hold late answers to earlier questions.
Exchange = Callable[[Mapping[int, bytes], float], Iterable[tuple[int, bytes]]]


class Network(NamedTuple):
  """What the recommender asks through, and puts down."""

  plan: Plan
  exchange: Exchange
  journal: Journal


class TooFewNodesError(RuntimeError):
  """A run that cannot go on."""


def gathered(
  network: Network,
  questions: Mapping[int, bytes],
  check: Callable[[int, bytes], Message],
  round: int,
  least: int,
) -> dict[int, Message]:
  """The answers of a round that count, by who gave them, in their order.

  Args:
    network: through which to ask.
    questions: for each peer.
    check: (peer, bytes) -> Message, or `RejectedError`.
    round: its number.
    least: how many answers are needed.

  Raises:
    TooFewNodesError: where there are fewer.
  """
  plan, exchange, journal = network
  counted: dict[int, Message] = {}
  refused: set[int] = set()
  for attempt in range(1, plan.attempts + 1):
    over = counted.keys() | refused
    missing = {k: v for k, v in questions.items() if k not in over}
    if not missing:
      break
    if attempt > 1:
      who = [party_name(peer) for peer in sorted(missing)]
      journal.log('asked again', round=round, attempt=attempt, who=who)
    for peer, data in missing.items():
      journal.keep('sent', peer, data)
    for peer, data in exchange(missing, plan.seconds):
      journal.keep('received', peer, data)
      try:
        if peer not in questions:
          raise RejectedError('nobody asked')
        message = check(peer, data)
        if message.round != round:
          raise RejectedError(f'of round {message.round}: late or replayed')
        if peer in counted:
          raise RejectedError('doubled: it has been counted already')
      except RejectedError as error:
        who = party_name(peer)
        journal.log('rejected', round=round, who=who, why=str(error))
        if isinstance(error, RefusedError):
          refused.add(peer)
        continue
      counted[peer] = message
  left_out = sorted(questions.keys() - counted.keys())
  if left_out:
    journal.log('left out', round=round, who=[*map(party_name, left_out)])
  if len(counted) < least:
    why = f'{len(counted)} answers in round {round}, and {least} are needed'
    journal.log('stopped', round=round, why=why)
    raise TooFewNodesError(why)
  return dict(sorted(counted.items()))
