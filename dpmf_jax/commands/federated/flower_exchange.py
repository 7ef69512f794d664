"""Rounds over Flower: questions to nodes through its SuperLink, and back.

Flower gives a node another number whenever it is started, so that nodes are
asked which party of the plan they are; the last to say so is asked from then
on. Who may connect at all is up to the SuperLink (`--enable-supernode-auth`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from dpmf_jax.federated.asking import Exchange
from dpmf_jax.federated.checks import party_name
from dpmf_jax.federated.journal import Journal

_POLL = 0.2  # seconds between two looks for answers
_LOOK = 2.0  # and for nodes
_AGAIN = 3.0  # before a node that failed is asked once more; grows with each


def _field(message: Message, field: str) -> Any:
  return message.content.config_records['dpmf'][field]


def flower_exchange(grid: Grid, journal: Journal) -> Exchange:
  """An `Exchange` through the grid."""
  places: dict[int, int] = {}  # party -> Flower's node
  greeted: set[int] = set()
  greetings: set[str] = set()
  # message -> (party, node, question), and when it was sent
  pending: dict[str, tuple[int, int, bytes]] = {}
  times: dict[str, float] = {}
  looked = [-_LOOK]

  def look() -> None:
    """Greets nodes that are new."""
    if time.monotonic() - looked[0] < _LOOK:
      return
    looked[0] = time.monotonic()
    new = set(grid.get_node_ids()) - greeted
    hello = RecordDict({'dpmf': ConfigRecord({'hello': 1})})
    asked = [Message(hello, node, MessageType.QUERY) for node in sorted(new)]
    if asked:
      greetings.update(found for found in grid.push_messages(asked) if found)
      greeted.update(new)

  def arrived() -> Iterable[tuple[int, int, bytes, Message]]:
    """(party, node, question, answer); greetings are dealt with here."""
    waiting = [*greetings, *pending]
    for message in grid.pull_messages(waiting) if waiting else ():
      question = message.metadata.reply_to_message_id
      if question in pending:
        yield *pending.pop(question), message
        continue
      greetings.discard(question)
      node = message.metadata.src_node_id
      if message.has_error():
        greeted.discard(node)  # to be greeted again
        continue
      party = int(_field(message, 'number'))
      event = 'came back' if party in places else 'connected'
      journal.log(event, who=party_name(party))
      places[party] = node

  def under_way(party: int, data: bytes, seconds: float) -> int | None:
    """The node that may still answer an earlier attempt, if any.

    Asking it at every attempt would fill a queue, and never would leave a
    question that got lost unanswered: after n times it waits n attempts long.
    """
    same = [
      (times[sent], node)
      for sent, (who, node, asked) in pending.items()
      if (who, asked) == (party, data)
    ]
    last, node = max(same, default=(0.0, -1))
    waited = time.monotonic() - last
    return node if same and waited < seconds * len(same) else None

  def exchange(
    questions: Mapping[int, bytes], seconds: float
  ) -> Iterable[tuple[int, bytes]]:
    end = time.monotonic() + seconds
    # party -> the node that was asked
    sent = {
      party: node
      for party, data in questions.items()
      if (node := under_way(party, data, seconds)) is not None
    }
    not_before: dict[int, float] = {}
    failed: Counter[int] = Counter()
    answered: set[int] = set()
    while time.monotonic() < end and answered < questions.keys():
      look()
      now = time.monotonic()
      for party, data in questions.items():
        node = places.get(party)
        ready = now >= not_before.get(party, 0.0)
        if party in answered or node in (None, sent.get(party)) or not ready:
          continue
        assert node is not None
        content = RecordDict({'dpmf': ConfigRecord({'data': data})})
        (pushed,) = grid.push_messages(
          [Message(content, node, MessageType.TRAIN)]
        )
        if pushed:
          pending[pushed] = (party, node, data)
          times[pushed] = time.monotonic()
          sent[party] = node
      for party, node, data, message in arrived():
        if message.has_error():
          why = f'Flower error {message.error.code}'
          journal.log('no answer', who=party_name(party), why=why)
          if sent.get(party) == node:  # not one that was since replaced
            del sent[party]
            failed[party] += 1
            not_before[party] = time.monotonic() + _AGAIN * failed[party]
          continue
        if questions.get(party) == data:
          answered.add(party)
        yield party, _field(message, 'data')
      time.sleep(_POLL)

  return exchange
