"""All parties of a deployment in one process, for trials and notebooks.

They say the same to one another as over a network, and keep the same folders.
What is not here is what keeps them apart: whoever runs this sees everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from dpmf_jax.federated import parties
from dpmf_jax.federated.asking import Exchange
from dpmf_jax.federated.journal import journal
from dpmf_jax.federated.plan import AGGREGATOR, Plan
from dpmf_jax.federated.preparation import node_ratings
from dpmf_jax.federated.statement import write_published
from dpmf_jax.ratings.table import Ratings

Party = Callable[[bytes], bytes]  # a question -> its answer


def run(
  folder: Path,
  train: Ratings,
  plan: Plan,
  *,
  silent: Collection[int] = (),
  transcript: bool = False,
  seed: int | None = None,
) -> np.ndarray:
  """Item factors [I, D] after all rounds; recommender/state/model has them.

  Args:
    folder: that `preparation.prepared` wrote, with a folder for each party.
    train: ratings of all users.
    plan: that `prepared` returned.
    silent: numbers of nodes that never answer.
    transcript: whether each party keeps all its messages.
    seed: FOR EXPERIMENTS: that of the simulator.

  Raises:
    TooFewNodesError: where the run could not go on without those.
  """
  answering = _parties(folder, train, plan, transcript, seed)
  there = {k: party for k, party in answering.items() if k not in silent}
  state = folder / 'recommender' / 'state'
  book = journal(state, transcript=transcript)
  item = parties.recommender(plan, state, exchange(there), book, seed=seed)
  write_published(state / 'model', plan, item)
  return item


def exchange(there: Mapping[int, Party]) -> Exchange:
  """An `Exchange` that calls parties; those that are not there are silent."""
  return lambda questions, seconds: [
    (who, there[who](data)) for who, data in questions.items() if who in there
  ]


def _parties(
  folder: Path, train: Ratings, plan: Plan, transcript: bool, seed: int | None
) -> dict[int, Party]:
  """Nodes and, where reports are sealed, the third party, by their numbers."""
  made: dict[int, Party] = {}
  for number, node in enumerate(plan.nodes):
    state = folder / f'node-{number}' / 'state'
    book = journal(state, transcript=transcript)
    own = node_ratings(train, node)
    made[number] = parties.node(plan, number, state, own, book, seed=seed)
  if parties.protocol_of(plan).seals:
    state = folder / 'aggregator' / 'state'
    book = journal(state, transcript=transcript)
    made[AGGREGATOR] = parties.aggregator(plan, state, book)
  return made
