"""A party's folder: its state survives it, and a round is answered once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import files
from dpmf_jax.federated import checks
from dpmf_jax.federated.checks import RejectedError
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Message
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


def tree_leaves(name: str, tree: Any) -> Leaves:
  """The leaves of a tree, to be saved under names of their own."""
  leaves = enumerate(jax.tree.leaves(tree))
  return {f'{name}/{place}': np.asarray(leaf) for place, leaf in leaves}


def saved_tree(state: Leaves, name: str, like: Any) -> Any:
  """The tree like another whose leaves were saved under that name."""
  structure = jax.tree.structure(like)
  leaves = [
    jnp.asarray(state[f'{name}/{place}'])
    for place in range(structure.num_leaves)
  ]
  return jax.tree.unflatten(structure, leaves)


def answering(
  plan: Plan,
  sender: int,
  folder: str | Path,
  journal: Journal,
  *,
  start: Callable[[], Leaves],
  rounds: int,
  together: int,
  question: Callable[[bytes], Message],
  answer: Callable[[Message, Leaves], tuple[bytes, Leaves]],
) -> Callable[[bytes], bytes]:
  """(question) -> answer of a party: at most one, ever, for a round.

  An answer is saved together with the state before it is sent, so that a party
  that is killed in between gives the same one when it is asked again.

  Args:
    plan: of the run.
    sender: this party.
    folder: of this party.
    journal: of this party.
    start: the state before the first round, made and saved once.
    rounds: how many rounds may be answered: the budget.
    together: how many rounds in a row have one answer together: the first
      that is given.
    question: bytes -> Message, or RejectedError.
    answer: (message, state) -> (bytes, state), or RejectedError. The state has
      'round', the last one answered or -1.
  """
  state = saved(folder, plan)
  if state is None:
    nothing = {'round': np.int32(-1), 'answer': np.zeros(0, np.uint8)}
    state = {**start(), **nothing}
    save(folder, plan, state)
    journal.log('began')
  else:
    journal.log('went on', last=int(state['round']))
  current: list[Leaves] = [state]

  def reply(message: Message) -> bytes:
    state, round = current[0], message.round
    last = int(state['round'])
    if round // together == last // together:
      journal.log('answered again', round=last)
      return state['answer'].tobytes()
    if round < last:
      raise RejectedError(f'round {round} is over; the last was {last}')
    if round >= rounds:
      raise RejectedError(
        f'round {round} is past the {rounds} that are allowed'
      )
    made, state = answer(message, state)
    kept = np.frombuffer(made, np.uint8)
    current[0] = {**state, 'round': np.int32(round), 'answer': kept}
    save(folder, plan, current[0])
    journal.log('answered', round=round)
    return made

  def handle(data: bytes) -> bytes:
    journal.keep('received', RECOMMENDER, data)
    round = 0
    try:
      message = question(data)
      round = message.round
      made = reply(message)
    except RejectedError as error:
      journal.log('refused', round=round, why=str(error))
      made = checks.refused(plan, round, sender, str(error))
    journal.keep('sent', RECOMMENDER, made)
    return made

  return handle
