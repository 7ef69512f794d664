"""Runs a node, or the aggregator: what holds ratings, factors and secrets.

  dpmf federated.worker --plan=plan.json --number=0 \\
    --ratings=my_ratings.csv --user_ids=my_users.json --state=DIR \\
    --socket=/run/dpmf/0.sock
  dpmf federated.worker --plan=plan.json --role=aggregator \\
    --state=DIR --socket=/run/dpmf/aggregator.sock

It answers whoever can open the socket, one question after the other, and
needs no network itself. The folder --state is its own (keep it private): a
worker that is killed goes on from there when it is started again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from dpmf_jax.commands import declaring


class _Declared:
  """Which party this is, and what it has.

  Attributes:
    plan: The run's plan.
    role: Which party this is.
    number: Which node of the plan this is.
    ratings: The node's own ratings file.
    user_ids: JSON list of the node's user ids, in the plan's order.
    state: Folder of this party alone.
    socket: Unix socket to listen on.
    seed: FOR EXPERIMENTS: a fixed seed, with which the noise can be removed.
      Without it the key comes from the operating system.
    transcript: Keep all messages, in --state.
  """

  plan: str
  role: Literal['node', 'aggregator'] = 'node'
  number: int = 0
  ratings: str | None = None
  user_ids: str | None = None
  state: str
  socket: str
  seed: int | None = None
  transcript: bool = False


_FLAGS = declaring.define(_Declared)


def own_ratings(plan, number: int, path: str, users_path: str):
  """(user, item, value) in the plan's numbering, from the node's own files."""
  import numpy as np

  from dpmf_jax import files
  from dpmf_jax.ratings import formats

  ratings = formats.read(path, scale=plan.config.scale)
  if ratings.clicks:
    raise ValueError(f'{path} has clicks, where the plan is about ratings')
  users = {str(u): i for i, u in enumerate(files.read_json(users_path, list))}
  items = {name: i for i, name in enumerate(plan.item_ids)}
  if len(users) != plan.nodes[number].size:
    raise ValueError(
      f'{users_path} has {len(users)} users, the plan '
      f'{plan.nodes[number].size} for node {number}'
    )
  try:
    user = np.array([users[str(u)] for u in ratings.user_ids], np.int32)
    item = np.array([items[str(i)] for i in ratings.item_ids], np.int32)
  except KeyError as error:
    raise ValueError(f'{path}: {error} is not in the plan') from None
  return user[ratings.user], item[ratings.item], ratings.value


def handler(plan, journal):
  """(question) -> answer of the party that the flags name."""
  from dpmf_jax.federated import parties

  if _FLAGS.role == 'aggregator':
    return parties.aggregator(plan, _FLAGS.state, journal)
  number = _FLAGS.number
  if not 0 <= number < len(plan.nodes):
    raise ValueError(f'--number={number} must be below {len(plan.nodes)}')
  if _FLAGS.ratings is None or _FLAGS.user_ids is None:
    raise ValueError('--ratings and --user_ids are missing')
  ratings = own_ratings(plan, number, _FLAGS.ratings, _FLAGS.user_ids)
  return parties.node(
    plan, number, _FLAGS.state, ratings, journal, seed=_FLAGS.seed
  )


def main(argv) -> None:
  del argv
  from dpmf_jax.federated import sockets
  from dpmf_jax.federated.journal import journal
  from dpmf_jax.federated.plan import read_plan

  folder = Path(_FLAGS.state)
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  book = journal(folder, transcript=_FLAGS.transcript)
  book.log('started', process=os.getpid())
  sockets.serve(_FLAGS.socket, handler(read_plan(_FLAGS.plan), book))
