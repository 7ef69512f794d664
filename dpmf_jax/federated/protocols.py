"""What parties of each system ask, answer and make of it: one table.

A protocol is a schedule of steps, one for each turn. In a turn the recommender
puts a question to every node; their answers go to it, or under a seal to the
third party, which passes on their sum. `parties` runs them, whichever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.federated.checks import Arrays
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.keys import RunKeys
from dpmf_jax.federated.messages import Kind
from dpmf_jax.federated.plan import Node, Plan
from dpmf_jax.mechanisms.secure_sum import Aggregate

Triples = tuple[np.ndarray, np.ndarray, np.ndarray]  # user, item, value
Answer = tuple[Arrays, Leaves]  # and the state after it
Sum = tuple[Aggregate, Leaves]
Reports = Mapping[int, Arrays]  # by node


class Question(NamedTuple):
  """What a node is asked; not `new` where it has answered the turn before.

  What it draws and computes is of the turn; only masks are of the round.
  """

  arrays: Arrays
  round: int
  new: bool


class Host(NamedTuple):
  """A node as its protocol knows it."""

  plan: Plan
  number: int
  data: Any  # what `Protocol.prepare` made of its ratings

  @property
  def node(self) -> Node:
    return self.plan.nodes[self.number]


class Step(NamedTuple):
  """One turn: what is asked, what is answered and what becomes of it.

  Attributes:
    asks: the kind of a question.
    asked: shapes of its arrays, as `checks.check_arrays` reads them.
    question: (plan, recommender's state) -> arrays for each node.
    answers: the kind of an answer; SEALED is for the third party alone.
    answered: shapes of its arrays, unsealed.
    answer: (host, question, state) -> (arrays, state) of a node.
    check: (plan, number, arrays) -> None, or RejectedError.
    apply: (plan, state, answers or their sum) -> (recommender's state, what to
      say of it in the journal, or None for a turn that is no round).
    add: (plan, reports, round, state) -> (their sum, third party's state), or
      BrokenRoundError or RejectedError; of sealed answers.
    total: the shape of that sum.
  """

  answer: Callable[[Host, Question, Leaves], Answer]
  apply: Callable[..., tuple[Leaves, dict[str, int] | None]]
  asks: Kind = Kind.SETUP
  asked: tuple[str, ...] = ()
  question: Callable[[Plan, Leaves], Reports] = lambda plan, state: to_all(plan)
  answers: Kind = Kind.SETUP
  answered: tuple[str, ...] = ()
  check: Callable[[Plan, int, Arrays], None] = lambda plan, number, arrays: None
  add: Callable[[Plan, Reports, int, Leaves], Sum] | None = None
  total: str = ''


class Protocol(NamedTuple):
  """A system's or a variant's protocol.

  Attributes:
    seals: whether there is a third party. Then every turn needs every node,
      and one that is broken is done again under another number.
    schedule: (plan) -> a step for each turn.
    prepare: (plan, node, ratings) -> what a node makes of its ratings once.
    start_node: (host, keys) -> its state before the first turn.
    start_recommender: (plan, keys) -> likewise; all end with 'item' [I, D].
  """

  seals: bool
  schedule: Callable[[Plan], tuple[Step, ...]]
  prepare: Callable[[Plan, Node, Triples], Any]
  start_node: Callable[[Host, RunKeys], Leaves]
  start_recommender: Callable[[Plan, RunKeys], Leaves]

  def tries(self, plan: Plan) -> int:
    """Under how many numbers of rounds a turn may be done."""
    return plan.attempts if self.seals else 1


def to_all(plan: Plan, *arrays: Any) -> dict[int, Arrays]:
  """The same question for every node."""
  return dict.fromkeys(range(len(plan.nodes)), arrays)
