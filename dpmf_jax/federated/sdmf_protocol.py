"""SDMF between nodes and a recommender, which sums what nodes report.

Reference: Jiang, Li and Lin (2019), Algorithms 1 and 2. A node runs
`sdmf.client_report` for each of its users, message by message
(`sdcf.messages`). With the simulator's key what it sends is what the simulator
adds up: users have the keys that they have there, by their numbers.

Privacy: permanent bits are drawn once, before anything is sent, and kept; a
round is answered once (`folders.answering`), and rounds past the config's
steps are refused.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.federated import checks, folders, protocols
from dpmf_jax.federated.checks import Arrays, RejectedError
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.keys import RunKeys
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import Node, Plan
from dpmf_jax.keys import key_words, words_key
from dpmf_jax.mechanisms import response
from dpmf_jax.rows import Rows, put_rows, rows
from dpmf_jax.systems import sdmf
from dpmf_jax.systems.sdcf import messages as sdcf_messages
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf import sgld, starting
from dpmf_jax.systems.sdcf.client_blocks import Blocks, client_blocks
from dpmf_jax.systems.sdcf.types import Client, Memory, Public, Server, Total


def _capacity(plan: Plan) -> int:
  return response.capacity(plan.config.sent, plan.num_items)


def _prepare(
  plan: Plan, node: Node, ratings: protocols.Triples
) -> tuple[Rows, Blocks]:
  own = put_rows(rows(*ratings, node.size, plan.num_items, side='user'))
  return own, client_blocks(own, plan.num_items)


def _start_node(host: protocols.Host, keys: RunKeys) -> Leaves:
  """The state before the first round."""
  plan, config, own = host.plan, host.plan.config, host.data[0]
  begin = sgld.start_keys(keys.init)
  sizes = plan.num_users, plan.num_items
  every = sgld.uniform_factors(begin.factors, sizes, config)
  memory, _ = starting.start_memory(
    begin.bits, own, host.data[1], config, plan.num_items, first=host.node.first
  )
  client = Client(every.user[host.node.users], memory)
  return {**_client_leaves(client), 'key': key_words(keys.steps)}


def _client_leaves(clients: Client) -> Leaves:
  memory = folders.tree_leaves('memory', clients.memory)
  return {'factors': np.asarray(clients.factors), **memory}


def _start_recommender(plan: Plan, keys: RunKeys) -> Leaves:
  config, begin = plan.config, sgld.start_keys(keys.init)
  if jax.tree.leaves(sgld.optimizer_of(config).init(jnp.zeros(1))):
    raise ValueError('optimizers with a state of their own are not deployed')
  sizes = plan.num_users, plan.num_items
  item = sgld.uniform_factors(begin.factors, sizes, config).item
  nobody: None = None  # the number of ratings is a setting here
  langevin = sgld.langevin(begin.ridges, config, nobody)  # pyright: ignore
  return {
    'item': np.asarray(item),
    'stopped': np.int32(0),
    'converged': np.zeros(plan.num_users, bool),
    'active': np.zeros(plan.num_users, bool),
    'langevin': np.array(langevin[:3], np.float32),
    'ridges': np.stack([langevin.user_ridge, langevin.item_ridge]),
  }


def _question(plan: Plan, state: Leaves) -> dict[int, Arrays]:
  """What all nodes are sent in a round; `public_of` reads it."""
  config, ridges = plan.config, state['ridges']
  langevin = sgld.Langevin(*map(jnp.float32, state['langevin']), *ridges)
  now = _step_size(langevin, jnp.asarray(state['turn']))
  own = config.epsilon_value, config.tolerance
  settings = np.array([now, *state['langevin'], *own], np.float32)
  return protocols.to_all(plan, state['item'], settings, ridges)


@jax.jit  # as in the simulator: single operations might round otherwise
def _step_size(langevin: sgld.Langevin, round: jax.Array) -> jax.Array:
  return jnp.asarray(sgld.schedule(langevin)(round))


def public_of(arrays: Arrays) -> Public:
  """The question of a round as clients get it."""
  item, settings, ridges = map(jnp.asarray, arrays)
  now, begin, decay, likelihood, epsilon_value, tolerance = settings
  return Public(
    item=item,
    step_size=now,
    langevin=sgld.Langevin(begin, decay, likelihood, *ridges),
    epsilon_value=epsilon_value,
    tolerance=tolerance,
  )


def _answer(
  host: protocols.Host, asked: protocols.Question, state: Leaves
) -> protocols.Answer:
  """What those who are online report, one user after the other."""
  like = Memory(*[jnp.zeros(0)] * len(Memory._fields))
  memory = folders.saved_tree(state, 'memory', like)
  clients, uploads, online = _uploads(
    jax.random.fold_in(words_key(state['key']), asked.round),
    Client(jnp.asarray(state['factors']), memory),
    *host.data,
    public_of(asked.arrays),
    starting.rules_of(host.plan.config),
    jnp.int32(host.node.first),
    capacity=_capacity(host.plan),
  )
  online = np.asarray(online)
  item = np.asarray(uploads.item)[online]  # [n, M]
  used = item < host.plan.num_items
  report = (
    host.node.users[online],
    used.sum(axis=1).astype(np.uint32),
    item[used].astype(np.uint32),
    np.asarray(uploads.gradient)[online][used],
    np.asarray(uploads.converged)[online].astype(np.uint8),
  )
  return report, {**state, **_client_leaves(clients)}


@functools.partial(jax.jit, static_argnames='capacity')  # most of a node's work
def _uploads(key, clients, own, blocks, public, rules, first, *, capacity):
  """(clients, their messages, who is online) of a round."""
  report = functools.partial(sdmf.client_report, capacity=capacity)
  return sdcf_messages.all_reports(
    key, report, clients, own, blocks, public, rules, first=first
  )


def _check(plan: Plan, number: int, arrays: Arrays) -> None:
  """Returns nothing; RejectedError where a node's report is none."""
  users, counts, items, gradients, converged = arrays
  node = plan.nodes[number]
  known = (users >= node.first) & (users < node.first + node.size)
  if not known.all() or (np.diff(users.astype(np.int64)) <= 0).any():
    raise RejectedError('an unknown user, or one twice')
  if not len(users) == len(counts) == len(converged):
    raise RejectedError(
      'wrong shape: users, counts and converged differ in length'
    )
  if len(items) != len(gradients):
    raise RejectedError('wrong shape: items and gradients differ')
  if (counts > _capacity(plan)).any():
    raise RejectedError('more items than a message has room for')
  checks.check_items(items, counts, plan)
  if (converged > 1).any():
    raise RejectedError('a bit that is none')


def _apply(
  plan: Plan, state: Leaves, answers: dict[int, Message]
) -> tuple[Leaves, dict[str, int]]:
  """The state after a round with these answers."""
  shape = plan.num_items, plan.config.rank
  total = Total(np.zeros(shape, np.float32), np.zeros(shape[0], np.float32))
  converged, active = state['converged'].copy(), state['active'].copy()
  # By user, as the simulator adds them up.
  for message in answers.values():
    users, _, items, gradients, bits = message.arrays
    np.add.at(total.gradient, items, gradients)
    np.add.at(total.received, items, 1)
    converged[users], active[users] = bits.astype(bool), True
  server = _server(
    state['item'],
    state['turn'],
    state['stopped'],
    total,
    converged,
    active,
    starting.rules_of(plan.config),
    optimizer=sgld.optimizer_of(plan.config),
    average=plan.config.average,
  )
  moved = {
    'item': np.asarray(server.item),
    'stopped': np.asarray(server.stopped),
    'converged': converged,
    'active': active,
  }
  senders = sum(len(message.arrays[0]) for message in answers.values())
  return {**state, **moved}, {'nodes': len(answers), 'users': senders}


# Compiled, as in the simulator: single operations might round otherwise.
@functools.partial(jax.jit, static_argnames=('optimizer', 'average'))
def _server(
  item, round, stopped, total, converged, active, rules, *, optimizer, average
):
  """The server after a round in which it received `total`."""
  return sdcf.server_apply(
    Server(item, optimizer.init(item), round, stopped),
    total,
    converged,
    active,
    rules,
    optimizer=optimizer,
    average=average,
  )


_ROUND = protocols.Step(
  asks=Kind.PUBLIC,
  asked=('items float32[I,D]', 'settings float32[6]', 'ridges float32[2,D]'),
  question=_question,
  answers=Kind.REPORTS,
  answered=(
    'users uint32[*]',
    'counts uint32[*]',
    'items uint32[*]',
    'gradients float32[*,D]',
    'converged uint8[*]',
  ),
  answer=_answer,
  check=_check,
  apply=_apply,
)
PROTOCOL = protocols.Protocol(
  seals=False,
  schedule=lambda plan: (_ROUND,) * plan.config.steps,
  prepare=_prepare,
  start_node=_start_node,
  start_recommender=_start_recommender,
)
