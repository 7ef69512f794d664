"""Reports that the recommender carries to the third party and cannot read.

The recommender sends a seed for each user, whose mask both know; the masked
reports go to the third party in a box, and it passes on their sum. An attempt
at a sum is a round of messages; `plan.attempts` of them are one turn, for which
there is one sum at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dpmf_jax.federated import boxes, intake, messages
from dpmf_jax.federated.intake import RejectedError, Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import AGGREGATOR, RECOMMENDER, Plan
from dpmf_jax.federated.rounds import Exchange, gathered
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.secure_sum import Aggregate

KEY_FILE = 'box.key'


def party_key(folder: str | Path, public: str) -> bytes:
  """The private key in a party's folder; ValueError if not the plan's."""
  path = Path(folder) / KEY_FILE
  private = boxes.own_key(path)
  if boxes.public_key(private) != public:
    raise ValueError(f'{path} is not the key that the plan has for this party')
  return private


def new_seeds(num_users: int) -> np.ndarray:
  """A seed for each user, uint8 [U, 32]."""
  seeds = b''.join(secure_sum.new_seed() for _ in range(num_users))
  return np.frombuffer(seeds, np.uint8).reshape(num_users, -1)


def mask(
  seed: np.ndarray, shape: tuple[int, ...], round: int, user: int
) -> np.ndarray:
  """A user's mask in a round: ChaCha20's nonce has both."""
  return secure_sum.seed_mask(seed.tobytes(), shape, round=round, sender=user)


def boxed_report(
  plan: Plan, number: int, private: bytes, round: int, *arrays: np.ndarray
) -> bytes:
  """A node's message with masked reports, which the third party can open."""
  box = boxes.sealed(
    messages.to_bytes(Message(Kind.REPORT, round, number, arrays)),
    private,
    plan.aggregator_key,
    run=plan.run,
    round=round,
    sender=number,
  )
  content = np.frombuffer(box, np.uint8)
  return intake.run_message(plan, Kind.SEALED, round, number, content)


def opened_report(
  plan: Plan, round: int, sender: int, box: bytes, private: bytes
) -> Message:
  """What a node put into a box for the third party, or an error."""
  if sender >= len(plan.nodes):
    raise RejectedError('not a node')
  data = boxes.unsealed(
    box,
    private,
    plan.nodes[sender].key,
    run=plan.run,
    round=round,
    sender=sender,
  )
  try:
    message = messages.from_bytes(data)
  except ValueError as error:
    raise RejectedError(f'broken: {error}') from None
  if message[:3] != (Kind.REPORT, round, sender):
    raise RejectedError('not the report of this round')
  return message


def carried_sum(
  plan: Plan,
  exchange: Exchange,
  journal: Journal,
  questions: Mapping[int, bytes],
  *,
  round: int,
  shape: tuple[int, ...],
) -> Aggregate:
  """The third party's sum [shape] of what nodes answer in a round.

  Raises:
    TooFewNodesError: where it gives none.
  """
  sealed = gathered(
    exchange,
    questions,
    lambda peer, data: intake.opened(
      data,
      plan,
      kind=Kind.SEALED,
      sender=peer,
      shapes=[Shape('box', 'uint8', (None,))],
    ),
    plan,
    journal,
    round=round,
  )
  content = [sealed[number].arrays[0] for number in sorted(sealed)]
  question = intake.run_message(
    plan,
    Kind.SEALED,
    round,
    RECOMMENDER,
    np.array(sorted(sealed), np.uint32),
    np.array([len(box) for box in content], np.uint32),
    np.concatenate(content),
  )
  found: list[Message] = []

  def check(peer: int, data: bytes) -> Message:
    del peer
    shapes = [
      Shape('arrived', 'uint32', (None,)),
      Shape('sum', 'uint32', shape),
    ]
    message = intake.opened(
      data, plan, kind=Kind.AGGREGATE, sender=AGGREGATOR, shapes=shapes
    )
    if (message.arrays[0] >= plan.num_users).any():
      raise RejectedError('an unknown user')
    if message.round // plan.attempts != round // plan.attempts:
      raise RejectedError(f'of round {message.round}: late or replayed')
    # The turn's one sum may be of an earlier attempt, whose answer was lost.
    found.append(message)
    return message._replace(round=round)

  gathered(
    exchange,
    {AGGREGATOR: question},
    check,
    plan,
    journal,
    round=round,
    least=1,
  )
  arrived, values = found[0].arrays
  users = tuple(int(user) for user in arrived)
  return Aggregate(found[0].round, users, values)
