"""The files of a trial's parties; no flags, so that tests can import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import files
from dpmf_jax.data.writing import write
from dpmf_jax.federated import boxes
from dpmf_jax.federated.carried import KEY_FILE
from dpmf_jax.federated.plan import Node, Plan, new_run, write_plan


def node_sizes(num_users: int, nodes: int) -> list[int]:
  """Users of each node, as equal as can be."""
  if nodes > num_users:
    raise ValueError(
      f'--nodes={nodes} are too many for {num_users} users: at most one each'
    )
  return [
    num_users * (i + 1) // nodes - num_users * i // nodes for i in range(nodes)
  ]


def prepared(
  folder: Path,
  train,
  *,
  system: str,
  nodes: int,
  settings: dict[str, Any],
  attempts: int,
  seconds: float,
):
  """The plan, with the files of each node written."""
  sums = system == 'untrusted_pmf'
  folders = [folder / f'node-{i}' for i in range(nodes)]
  for party in [*folders, folder / 'aggregator', folder / 'recommender']:
    (party / 'state').mkdir(mode=0o700, parents=True)
  key = lambda party: boxes.public_key(
    boxes.own_key(party / 'state' / KEY_FILE)
  )
  made, first = [], 0
  sizes = node_sizes(train.num_users, nodes)
  for part, count in zip(folders, sizes, strict=True):
    there = (train.user >= first) & (train.user < first + count)
    write(train.take(np.flatnonzero(there)), part / 'ratings.csv')
    users = [str(user) for user in train.user_ids[first : first + count]]
    files.write_json(part / 'users.json', users, mode=0o600)
    (part / 'ratings.csv').chmod(0o600)
    made.append(Node(first, count, key(part) if sums else ''))
    first += count
  if not sums:
    # The number of ratings is public: the paper's claim has it so, too.
    settings = {
      'sent': len(train) / train.num_users,
      'likelihood_scale': float(len(train)),
      **settings,
    }
  plan = Plan(
    run=new_run(),
    system=system,  # pyright: ignore[reportArgumentType]
    settings={'scale': list(train.scale), **settings},
    item_ids=tuple(str(item) for item in train.item_ids),
    nodes=tuple(made),
    aggregator_key=key(folder / 'aggregator') if sums else '',
    attempts=attempts,
    seconds=seconds,
  )
  write_plan(folder / 'plan.json', plan)
  return plan
