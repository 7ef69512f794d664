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

from absl import flags

_PLAN = flags.DEFINE_string('plan', None, "The run's plan.", required=True)
_ROLE = flags.DEFINE_enum(
  'role', 'node', ['node', 'aggregator'], 'Which party this is.'
)
_NUMBER = flags.DEFINE_integer('number', 0, 'Which node of the plan this is.')
_RATINGS = flags.DEFINE_string('ratings', None, "The node's own ratings file.")
_USER_IDS = flags.DEFINE_string(
  'user_ids', None, "JSON list of the node's user ids, in the plan's order."
)
_STATE = flags.DEFINE_string(
  'state', None, 'Folder of this party alone.', required=True
)
_SOCKET = flags.DEFINE_string(
  'socket', None, 'Unix socket to listen on.', required=True
)
_SEED = flags.DEFINE_integer(
  'seed',
  None,
  'FOR EXPERIMENTS: a fixed seed, with which the noise can be removed. '
  'Without it the key comes from the operating system.',
)
_TRANSCRIPT = flags.DEFINE_bool(
  'transcript', False, 'Keep all messages, in --state.'
)


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

  if _ROLE.value == 'aggregator':
    return parties.aggregator(plan, _STATE.value, journal)
  number = _NUMBER.value
  if not 0 <= number < len(plan.nodes):
    raise ValueError(f'--number={number} must be below {len(plan.nodes)}')
  if _RATINGS.value is None or _USER_IDS.value is None:
    raise ValueError('--ratings and --user_ids are missing')
  ratings = own_ratings(plan, number, _RATINGS.value, _USER_IDS.value)
  return parties.node(
    plan, number, _STATE.value, ratings, journal, seed=_SEED.value
  )


def main(argv) -> None:
  del argv
  from dpmf_jax.federated import sockets
  from dpmf_jax.federated.journal import journal
  from dpmf_jax.federated.plan import read_plan

  folder = Path(_STATE.value)
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  book = journal(folder, transcript=_TRANSCRIPT.value)
  book.log('started', process=os.getpid())
  sockets.serve(_SOCKET.value, handler(read_plan(_PLAN.value), book))
