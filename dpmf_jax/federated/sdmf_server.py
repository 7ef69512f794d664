"""The recommender of SDMF: keeps item factors, and sums what nodes report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.federated import folders, intake
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.intake import RejectedError, Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import RECOMMENDER, Plan
from dpmf_jax.federated.rounds import Exchange, gathered
from dpmf_jax.federated.sdmf_node import SCALARS
from dpmf_jax.mechanisms import response
from dpmf_jax.plans.sdcf import Average
from dpmf_jax.runs import random_key
from dpmf_jax.systems.sdcf import messages as sdcf_messages
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf import sgld


def recommender(
  plan: Plan,
  folder: str | Path,
  exchange: Exchange,
  journal: Journal,
  *,
  seed: int | None,
  after_round: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
  """Item factors [I, D] after all rounds; goes on where it was.

  Args:
    plan: of the run.
    folder: of its own.
    exchange: the network.
    journal: where all of it is put down.
    seed: FOR EXPERIMENTS: that of the simulator.
    after_round: called with the number of rounds done.
  """
  config = plan.config
  state = folders.saved(folder, plan)
  if state is None:
    state = _start(plan, random_key(seed))
    folders.save(folder, plan, state)
  check = functools.partial(checked_report, plan)
  optimizer = sgld.optimizer_of(config)
  if jax.tree.leaves(optimizer.init(jnp.zeros(1))):
    raise ValueError('optimizers with a state of their own are not deployed')
  journal.log('began', round=int(state['round']), rounds=config.steps)
  while int(state['round']) < config.steps and int(state['stopped']) == 0:
    round = int(state['round'])
    question = _question(plan, state)
    asked = dict.fromkeys(range(len(plan.nodes)), question)
    answers = gathered(exchange, asked, check, plan, journal, round=round)
    state = applied(plan, state, answers.values())
    folders.save(folder, plan, state)
    users = sum(len(message.arrays[0]) for message in answers.values())
    journal.log('round done', round=round, nodes=len(answers), users=users)
    after_round(round + 1)
  journal.log('finished', rounds=int(state['round']))
  return state['item']


def checked_report(plan: Plan, peer: int, data: bytes) -> Message:
  """A node's message of a round, or RejectedError."""
  shapes = [
    Shape('users', 'uint32', (None,)),
    Shape('counts', 'uint32', (None,)),
    Shape('items', 'uint32', (None,)),
    Shape('gradients', 'float32', (None, plan.config.rank)),
    Shape('converged', 'uint8', (None,)),
  ]
  message = intake.opened(
    data, plan, kind=Kind.REPORTS, sender=peer, shapes=shapes
  )
  users, counts, items, gradients, converged = message.arrays
  node = plan.nodes[peer]
  known = (users >= node.first) & (users < node.first + node.size)
  if not known.all() or (np.diff(users.astype(np.int64)) <= 0).any():
    raise RejectedError('an unknown user, or one twice')
  if not len(users) == len(counts) == len(converged):
    raise RejectedError(
      'wrong shape: users, counts and converged differ in length'
    )
  total = int(counts.astype(np.int64).sum())
  if not len(items) == len(gradients) == total:
    raise RejectedError('wrong shape: items, gradients and counts differ')
  if (counts > _capacity(plan)).any():
    raise RejectedError('more items than a message has room for')
  if (items >= plan.num_items).any():
    raise RejectedError('an unknown item')
  owner = np.repeat(np.arange(len(users)), counts)
  twice = (np.diff(items.astype(np.int64)) <= 0) & (np.diff(owner) == 0)
  if twice.any():
    raise RejectedError('an item twice, or items that are not in order')
  if (converged > 1).any():
    raise RejectedError('a bit that is none')
  return message


def applied(plan: Plan, state: Leaves, answers: Iterable[Message]) -> Leaves:
  """The state after a round with these answers."""
  config, num_items = plan.config, plan.num_items
  users, slots = plan.num_users, _capacity(plan)
  # By user, as the simulator adds them up.
  item = np.full((users, slots), num_items, np.int32)
  gradient = np.zeros((users, slots, config.rank), np.float32)
  converged, active = state['converged'].copy(), state['active'].copy()
  for message in answers:
    sender, counts, items, gradients, bits = message.arrays
    slot = np.concatenate([np.arange(n) for n in counts] or [counts])
    slot = slot.astype(np.int64)
    user = np.repeat(sender, counts)
    item[user, slot] = items
    gradient[user, slot] = gradients
    converged[sender], active[sender] = bits.astype(bool), True
  optimizer = sgld.optimizer_of(config)
  server = _apply(optimizer, config.average)(
    sdcf.Server(
      jnp.asarray(state['item']),
      optimizer.init(jnp.asarray(state['item'])),
      jnp.asarray(state['round']),
      jnp.asarray(state['stopped']),
    ),
    jnp.asarray(item),
    jnp.asarray(gradient),
    _bits(converged, active),
    sdcf.rules_of(config),
  )
  return {
    **state,
    'item': np.asarray(server.item),
    'round': np.asarray(server.round),
    'stopped': np.asarray(server.stopped),
    'converged': converged,
    'active': active,
  }


def _start(plan: Plan, key: jax.Array) -> Leaves:
  """The state before the first round; keys are used as `sdmf.sdmf` does."""
  config = plan.config
  fit_key, _ = jax.random.split(key)
  init_key, _ = jax.random.split(fit_key)
  factor_key, _, ridge_key = jax.random.split(init_key, 3)
  _, item_key = jax.random.split(factor_key)
  item = jax.random.uniform(item_key, (plan.num_items, config.rank))
  nobody: None = None  # the number of ratings is a setting here
  langevin = sgld.langevin(ridge_key, config, nobody)  # pyright: ignore
  return {
    'item': np.asarray(sgld.INIT_SIZE * item),
    'round': np.int32(0),
    'stopped': np.int32(0),
    'converged': np.zeros(plan.num_users, bool),
    'active': np.zeros(plan.num_users, bool),
    'langevin': np.array(langevin[:3], np.float32),
    'ridges': np.stack([langevin.user_ridge, langevin.item_ridge]),
  }


def _question(plan: Plan, state: Leaves) -> bytes:
  """What all nodes are told in a round."""
  config = plan.config
  step_size, decay, likelihood = map(jnp.float32, state['langevin'])
  langevin = sgld.Langevin(step_size, decay, likelihood, *state['ridges'])
  values = {
    'step_size': _step_size(langevin, jnp.asarray(state['round'])),
    'start_step_size': step_size,
    'decay': decay,
    'likelihood': likelihood,
    'epsilon_value': config.epsilon_value,
    'tolerance': config.tolerance,
  }
  scalars = np.array([values[name] for name in SCALARS], np.float32)
  return intake.run_message(
    plan,
    Kind.PUBLIC,
    int(state['round']),
    RECOMMENDER,
    state['item'],
    scalars,
    state['ridges'],
  )


@jax.jit
def _step_size(langevin: sgld.Langevin, round: jax.Array) -> jax.Array:
  return jnp.asarray(sgld.schedule(langevin)(round))


def _capacity(plan: Plan) -> int:
  return response.capacity(plan.config.sent, plan.num_items)


@functools.cache
def _apply(optimizer, average: Average):
  """The server after a round with these messages [U, M, ...], compiled."""

  @jax.jit
  def apply(server, item, gradient, kept, rules):
    reports = sdcf.Report(item, gradient, kept.converged)
    return sdcf.server_apply(
      server,
      sdcf_messages.summed_reports(reports, len(server.item)),
      kept,
      rules,
      optimizer=optimizer,
      average=average,
    )

  return apply


def _bits(converged: np.ndarray, active: np.ndarray) -> sdcf.Kept:
  """What the server knows of the clients: the bits that they sent."""
  nothing = jnp.zeros(0)
  return sdcf.Kept(
    bits=nothing,
    unrated=nothing,
    rated=nothing,
    converged=jnp.asarray(converged),
    unsent=nothing,
    active=jnp.asarray(active),
  )
