"""The parties of a deployment: nodes, the third party and the recommender.

Each is a function from a message to an answer, or for the recommender the loop
that asks; what they say is in `protocols`. The recommender carries envelopes
between nodes and the third party, and cannot open them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from dpmf_jax.federated import (
  checks,
  envelopes,
  folders,
  gradients_protocol,
  sdmf_protocol,
  sums_protocol,
)
from dpmf_jax.federated.asking import (
  Exchange,
  Network,
  TooFewNodesError,
  gathered,
)
from dpmf_jax.federated.checks import Arrays, RejectedError
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.keys import run_keys
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import AGGREGATOR, RECOMMENDER, Plan
from dpmf_jax.federated.protocols import Host, Protocol, Question, Step, Triples
from dpmf_jax.mechanisms.secure_sum import Aggregate, BrokenRoundError

PROTOCOLS = {
  ('sdmf', 'paper'): sdmf_protocol.PROTOCOL,
  ('untrusted_pmf', 'sound'): sums_protocol.PROTOCOL,
  ('untrusted_pmf', 'paper'): gradients_protocol.PROTOCOL,
}


def protocol_of(plan: Plan) -> Protocol:
  return PROTOCOLS[plan.system, plan.config.variant]


def node(
  plan: Plan,
  number: int,
  folder: str | Path,
  ratings: Triples,
  journal: Journal,
  *,
  seed: int | None,
) -> Callable[[bytes], bytes]:
  """(question) -> answer of one node, whose state is in `folder`.

  Args:
    plan: of the run.
    number: of this node in the plan.
    folder: of its own, which nobody else can read.
    ratings: (user, item, value); users are counted from this node's first.
    journal: of this node.
    seed: FOR EXPERIMENTS: that of the simulator. None draws a key from the
      operating system once, and keeps it in the folder. Shares of noise never
      come from it.
  """
  protocol, here = protocol_of(plan), plan.nodes[number]
  steps, tries = protocol.schedule(plan), protocol.tries(plan)
  host = Host(plan, number, protocol.prepare(plan, here, ratings))
  private = envelopes.planned_key(folder, here.key) if protocol.seals else b''

  def question(data: bytes) -> Message:
    turn = min(checks.parsed(data).round // tries, len(steps) - 1)
    step = steps[turn]
    return checks.opened(data, plan, step.asks, RECOMMENDER, step.asked, number)

  def answer(message: Message, state: Leaves) -> tuple[bytes, Leaves]:
    round, last = message.round, int(state['round']) // tries
    turn = round // tries
    if protocol.seals and turn > last + 1:
      raise RejectedError(f'turn {turn} comes before those that are missing')
    step = steps[turn]
    asked = Question(message.arrays, round, new=turn > last)
    arrays, state = step.answer(host, asked, state)
    if step.answers == Kind.SEALED:
      return envelopes.sealed_report(
        plan, number, private, round, arrays
      ), state
    return checks.run_message(plan, step.answers, round, number, *arrays), state

  return folders.answering(
    plan,
    number,
    folder,
    journal,
    start=lambda: protocol.start_node(host, run_keys(seed)),
    rounds=len(steps) * tries,
    together=1,
    question=question,
    answer=answer,
  )


def aggregator(
  plan: Plan, folder: str | Path, journal: Journal
) -> Callable[[bytes], bytes]:
  """(envelopes of a round) -> the sum of what is in them, or a refusal.

  Privacy: one sum for each turn, ever: it is saved before it is sent, and
  whoever asks again gets the same bytes. A second sum, over other users, would
  tell the difference.
  """
  private = envelopes.planned_key(folder, plan.aggregator_key)
  protocol = protocol_of(plan)
  steps, tries = protocol.schedule(plan), protocol.tries(plan)

  def question(data: bytes) -> Message:
    shapes = 'senders uint32[*]', 'sizes uint32[*]', 'envelopes uint8[*]'
    message = checks.opened(data, plan, Kind.SEALED, RECOMMENDER, shapes)
    senders, sizes, content = message.arrays
    if not len(senders):
      raise RejectedError('no envelopes')
    if len(senders) != len(sizes) or sizes.astype(int).sum() != len(content):
      raise RejectedError('wrong shape: envelopes and sizes differ')
    if max(senders) >= len(plan.nodes) or len({*senders}) != len(senders):
      raise RejectedError('not a node, or one twice')
    return message

  def opened(step: Step, message: Message) -> dict[int, Arrays]:
    """What is in those envelopes that are as they must be, by sender."""
    found, round = {}, message.round
    senders, sizes, content = message.arrays
    parts = np.split(content, np.cumsum(sizes.astype(int))[:-1])
    for sender, part in zip(map(int, senders), parts, strict=True):
      try:
        arrays = envelopes.opened_report(
          plan, round, sender, part.tobytes(), private
        )
        checks.check_arrays(arrays, plan, step.answered, sender)
        step.check(plan, sender, arrays)
        found[sender] = arrays
      except RejectedError as error:
        who = checks.party_name(sender)
        journal.log('rejected', round=round, who=who, why=str(error))
    return found

  def answer(message: Message, state: Leaves) -> tuple[bytes, Leaves]:
    step, round = steps[message.round // tries], message.round
    if step.add is None:
      raise RejectedError('a turn in which nothing is added up')
    try:
      total, state = step.add(plan, opened(step, message), round, state)
    except BrokenRoundError as error:
      raise RejectedError(str(error)) from None
    arrived = np.array(total.arrived, np.uint32)
    return checks.run_message(
      plan, Kind.AGGREGATE, round, AGGREGATOR, arrived, total.values
    ), state

  return folders.answering(
    plan,
    AGGREGATOR,
    folder,
    journal,
    start=dict,
    rounds=len(steps) * tries,
    together=tries,
    question=question,
    answer=answer,
  )


def recommender(
  plan: Plan,
  folder: str | Path,
  exchange: Exchange,
  journal: Journal,
  *,
  seed: int | None,
) -> np.ndarray:
  """Item factors [I, D] after all turns; goes on where it was.

  Args:
    plan: of the run.
    folder: of its own.
    exchange: the network.
    journal: where all of it is put down.
    seed: FOR EXPERIMENTS: that of the simulator.

  Raises:
    TooFewNodesError: where a turn could not be done.
  """
  protocol = protocol_of(plan)
  steps, tries = protocol.schedule(plan), protocol.tries(plan)
  state = folders.saved(folder, plan)
  if state is None:
    zero = {'turn': np.int32(0), 'attempt': np.int32(0)}
    state = {**protocol.start_recommender(plan, run_keys(seed)), **zero}
    folders.save(folder, plan, state)
  journal.log('began', turn=int(state['turn']), turns=len(steps))
  while (turn := int(state['turn'])) < len(steps):
    if int(state.get('stopped', 0)):
      break
    step, attempt = steps[turn], int(state['attempt'])
    if attempt >= tries:
      raise TooFewNodesError(f'no sum in turn {turn}')
    round = turn * tries + attempt
    try:
      network = Network(plan, exchange, journal)
      asked = step.question(plan, state)
      found = _found(network, step, asked, round)
      state, said = step.apply(plan, state, found)
    except (TooFewNodesError, BrokenRoundError) as error:
      if not protocol.seals:
        raise
      journal.log('round broken', round=round, why=str(error))
      state = {**state, 'attempt': np.int32(attempt + 1)}
      folders.save(folder, plan, state)
      continue
    done = {'turn': np.int32(turn + 1), 'attempt': np.int32(0)}
    state = {**state, **done}
    folders.save(folder, plan, state)
    if said is not None:
      number = steps[:turn].count(step)
      journal.log('round done', **{'round': number, **said})
  journal.log('finished', turns=int(state['turn']))
  return state['item']


def _found(
  network: Network, step: Step, asked: Mapping[int, Arrays], round: int
) -> dict[int, Message] | Aggregate:
  """What nodes answer in a round, or the third party's sum of it."""
  plan, sealed = network.plan, step.answers == Kind.SEALED
  questions = {
    number: checks.run_message(plan, step.asks, round, RECOMMENDER, *arrays)
    for number, arrays in asked.items()
  }
  shapes = ('envelope uint8[*]',) if sealed else step.answered

  def check(peer: int, data: bytes) -> Message:
    message = checks.opened(data, plan, step.answers, peer, shapes, peer)
    if not sealed:
      step.check(plan, peer, message.arrays)
    return message

  every = protocol_of(plan).seals and not sealed
  least = len(plan.nodes) if every else plan.least
  answers = gathered(network, questions, check, round, least)
  if not sealed:
    return answers
  found = {who: message.arrays[0] for who, message in answers.items()}
  return _carried_sum(network, step.total, found, round)


def _carried_sum(
  network: Network, shape: str, found: Mapping[int, np.ndarray], round: int
) -> Aggregate:
  """The third party's sum of what is in nodes' envelopes."""
  plan = network.plan
  question = checks.run_message(
    plan,
    Kind.SEALED,
    round,
    RECOMMENDER,
    np.array([*found], np.uint32),
    np.array([len(envelope) for envelope in found.values()], np.uint32),
    np.concatenate([*found.values()]),
  )
  made: list[Aggregate] = []

  def check(peer: int, data: bytes) -> Message:
    shapes = 'arrived uint32[*]', shape
    message = checks.opened(data, plan, Kind.AGGREGATE, peer, shapes)
    arrived, values = message.arrays
    if (arrived >= plan.num_users).any():
      raise RejectedError('an unknown user')
    if message.round // plan.attempts != round // plan.attempts:
      raise RejectedError(f'of round {message.round}: late or replayed')
    # The turn's one sum may be of an earlier attempt, whose answer was lost.
    made.append(Aggregate(message.round, tuple(map(int, arrived)), values))
    return message._replace(round=round)

  gathered(network, {AGGREGATOR: question}, check, round, least=1)
  return made[0]
