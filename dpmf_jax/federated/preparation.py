"""A plan for ratings that are in one place, and the files of its parties.

For trials: in a deployment nobody has all the ratings.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import files
from dpmf_jax.federated import envelopes
from dpmf_jax.federated.plan import Node, Plan, new_run, write_plan
from dpmf_jax.federated.protocols import Triples
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.ratings.writing import write


def node_sizes(num_users: int, nodes: int) -> list[int]:
  """Users of each node, as equal as can be."""
  if nodes > num_users:
    raise ValueError(
      f'nodes={nodes} must be at most the {num_users} users: one each'
    )
  return [
    num_users * (i + 1) // nodes - num_users * i // nodes for i in range(nodes)
  ]


def planned(
  train: Ratings,
  *,
  system: str,
  nodes: int,
  settings: dict[str, Any],
  attempts: int = 5,
  seconds: float = 60.0,
) -> Plan:
  """The plan without keys, for users split among nodes; nothing is written.

  Args:
    train: whose id lists and scale are public.
    system: 'sdmf' or 'untrusted_pmf'.
    nodes: how many.
    settings: of the system, besides its scale.
    attempts, seconds: see `Plan`.
  """
  sizes = node_sizes(train.num_users, nodes)
  firsts = np.cumsum([0, *sizes])[:-1].tolist()
  if system != 'untrusted_pmf':
    # The number of ratings is public: the paper's claim has it so, too.
    settings = {
      'sent': len(train) / train.num_users,
      'likelihood_scale': float(len(train)),
      **settings,
    }
  return Plan(
    run=new_run(),
    system=system,  # pyright: ignore[reportArgumentType]
    settings={'scale': list(train.scale), **settings},
    item_ids=tuple(str(item) for item in train.item_ids),
    nodes=tuple(Node(*node) for node in zip(firsts, sizes, strict=True)),
    attempts=attempts,
    seconds=seconds,
  )


def node_ratings(train: Ratings, node: Node) -> Triples:
  """(user, item, value) of a node's users, counted from its first."""
  there = (train.user >= node.first) & (train.user < node.first + node.size)
  part = train.take(np.flatnonzero(there))
  return part.user - node.first, part.item, part.value


def prepared(folder: Path, train: Ratings, plan: Plan) -> Plan:
  """The plan with its parties' keys, and the files of each party written."""
  folders = [folder / f'node-{i}' for i in range(len(plan.nodes))]
  for party in [*folders, folder / 'aggregator', folder / 'recommender']:
    (party / 'state').mkdir(mode=0o700, parents=True)
  for part, node in zip(folders, plan.nodes, strict=True):
    end = node.first + node.size
    there = (train.user >= node.first) & (train.user < end)
    write(train.take(np.flatnonzero(there)), part / 'ratings.csv')
    users = [str(user) for user in train.user_ids[node.first : end]]
    files.write_json(part / 'users.json', users, mode=0o600)
    (part / 'ratings.csv').chmod(0o600)
  if plan.system == 'untrusted_pmf':
    key = lambda party: envelopes.public_key(envelopes.own_key(party / 'state'))
    plan = dataclasses.replace(
      plan,
      nodes=tuple(
        node._replace(key=key(part))
        for node, part in zip(plan.nodes, folders, strict=True)
      ),
      aggregator_key=key(folder / 'aggregator'),
    )
  write_plan(folder / 'plan.json', plan)
  return plan
