"""A party's folder: its state survives it, and a round is answered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import files
from dpmf_jax.federated import intake
from dpmf_jax.federated.intake import RejectedError
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.plan import RECOMMENDER, Plan

Leaves = dict[str, Any]  # arrays by name
_STATE = 'state.safetensors'


def saved(folder: str | Path, plan: Plan) -> Leaves | None:
  """What was saved last; None before the first time.

  Raises:
    ValueError: where it is of another run, whose answers must not be given
      again in this one.
  """
  path = Path(folder) / _STATE
  if not path.exists():
    return None
  leaves, metadata = files.load_leaves(path)
  if metadata.get('run') != plan.run:
    raise ValueError(f'{path} is of another run; give this one its own folder')
  return leaves


def save(folder: str | Path, plan: Plan, state: Mapping[str, Any]) -> None:
  """Writes a state, whole or not at all, for its owner only."""
  path = Path(folder) / _STATE
  files.save_tree(path, dict(state), metadata={'run': plan.run}, mode=0o600)


def answer_once(
  data: bytes,
  plan: Plan,
  state: Leaves,
  journal: Journal,
  *,
  sender: int,
  rounds: int,
  question: Callable[[bytes], Any],
  answer: Callable[[Any, Leaves], tuple[bytes, Leaves]],
  folder: str | Path,
) -> tuple[bytes, Leaves]:
  """(answer, state after it) of a node: at most one for each round.

  The answer is saved together with the state before it is sent, so that a
  node that is killed in between gives the same one when it is asked again.

  Args:
    data: the question.
    plan: of the run.
    state: with 'round', the last one answered or -1, and 'answer', its bytes.
    journal: of this node.
    sender: this node.
    rounds: how many rounds may be answered: the budget.
    question: bytes -> Message, or RejectedError.
    answer: (message, state) -> (bytes, state).
    folder: of this node.
  """
  journal.keep('received', RECOMMENDER, data)
  round, last = 0, int(state['round'])
  try:
    message = question(data)
    round = message.round
    if round == last:
      journal.log('answered again', round=round)
      reply = state['answer'].tobytes()
    else:
      if round < last:
        raise RejectedError(f'round {round} is over; the last was {last}')
      if not 0 <= round < rounds:
        raise RejectedError(
          f'round {round} is past the {rounds} that are allowed'
        )
      reply, state = answer(message, state)
      state = {
        **state,
        'round': np.int32(round),
        'answer': np.frombuffer(reply, np.uint8),
      }
      save(folder, plan, state)
      journal.log('answered', round=round)
  except RejectedError as error:
    journal.log('refused', round=round, why=str(error))
    reply = intake.refused(plan, round, sender, str(error))
  journal.keep('sent', RECOMMENDER, reply)
  return reply, state


def answering(
  plan: Plan,
  number: int,
  folder: str | Path,
  journal: Journal,
  *,
  start: Callable[[], Leaves],
  rounds: int,
  question: Callable[[bytes], Any],
  answer: Callable[[Any, Leaves], tuple[bytes, Leaves]],
) -> Callable[[bytes], bytes]:
  """(question) -> answer of node `number`: `answer_once`, with its state kept.

  Args:
    start: the state before the first round, made and saved once.
    plan, folder, journal, rounds, question, answer: see `answer_once`.
  """
  state = saved(folder, plan)
  if state is None:
    state = {
      **start(),
      'round': np.int32(-1),
      'answer': np.zeros(0, np.uint8),
    }
    save(folder, plan, state)
    journal.log('began', users=plan.nodes[number].size)
  else:
    journal.log('went on', last=int(state['round']))
  current: list[Leaves] = [state]

  def handle(data: bytes) -> bytes:
    reply, current[0] = answer_once(
      data,
      plan,
      current[0],
      journal,
      sender=number,
      rounds=rounds,
      question=question,
      answer=answer,
      folder=folder,
    )
    return reply

  return handle
