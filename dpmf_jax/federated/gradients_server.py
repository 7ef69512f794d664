"""The recommender of rounds of gradients, as published: knows who rated what.

Reference: Hua, Xia and Zhong (2015), scenarios 2 and 3 (static and dynamic
users); turns as in `gradients_node`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.federated import carried, folders, intake, untrusted_protocol
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.gradients_node import (
  optimizer_leaves,
  optimizer_of,
  optimizer_start,
)
from dpmf_jax.federated.intake import RejectedError, Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import RECOMMENDER, Plan
from dpmf_jax.federated.rounds import Exchange, TooFewNodesError, gathered
from dpmf_jax.mechanisms.secure_sum import Aggregate, BrokenRoundError
from dpmf_jax.runs import random_key
from dpmf_jax.systems import pmf
from dpmf_jax.systems.untrusted import rounds as untrusted_rounds


def recommender(
  plan: Plan,
  folder: str | Path,
  exchange: Exchange,
  journal: Journal,
  *,
  seed: int | None,
) -> np.ndarray:
  """Item factors [I, D] after all rounds; goes on where it was.

  Every turn needs every node. One that is broken is done again under another
  number, with new masks: up to the plan's attempts.

  Raises:
    TooFewNodesError: where a turn could not be summed.
  """
  state = folders.saved(folder, plan)
  if state is None:
    state = _start(plan, random_key(seed))
    folders.save(folder, plan, state)
  journal.log('began', round=int(state['turn']), rounds=plan.turns)
  schedule = plan.schedule
  while (turn := int(state['turn'])) < len(schedule):
    round = turn * plan.attempts + int(state['attempt'])
    if int(state['attempt']) >= plan.attempts:
      raise TooFewNodesError(f'no sum in turn {turn}')
    try:
      after = _TURNS[schedule[turn]]
      state = after(plan, exchange, journal, state, round)
    except (TooFewNodesError, BrokenRoundError) as error:
      journal.log('round broken', round=round, why=str(error))
      state = {**state, 'attempt': np.int32(int(state['attempt']) + 1)}
      folders.save(folder, plan, state)
      continue
    state |= {'turn': np.int32(turn + 1), 'attempt': np.int32(0)}
    folders.save(folder, plan, state)
    if schedule[turn] == 'gradients':
      done = schedule[:turn].count('gradients')
      journal.log('round done', round=done)
  journal.log('finished', rounds=plan.config.rounds)
  return state['item']


def _start(plan: Plan, key: jax.Array) -> Leaves:
  """The state before the first turn; keys are used as the simulator does."""
  config = plan.config
  fit_key, _ = jax.random.split(key)
  init_key, _ = jax.random.split(fit_key)
  _, item_key = jax.random.split(init_key)
  item = pmf.start_items(item_key, plan.num_items, config.rank)
  # H, by which the recommender knows the size of everybody's noise.
  scales = jax.random.exponential(random_key(None), item.shape)
  return {
    'item': np.asarray(item),
    'scales': np.asarray(scales),
    'seeds': carried.new_seeds(plan.num_users),
    'counts': np.zeros(plan.num_users, np.uint32),
    'rated': np.zeros(0, np.uint32),
    'online': np.ones(plan.num_users, np.uint8),
    'turn': np.int32(0),
    'attempt': np.int32(0),
  }


def _answers(
  plan: Plan,
  exchange: Exchange,
  journal: Journal,
  questions: Mapping[int, bytes],
  check: Callable[[int, bytes], Message],
  round: int,
) -> list[Message]:
  """The answers of all nodes, in order."""
  found = gathered(
    exchange,
    questions,
    check,
    plan,
    journal,
    round=round,
    least=len(plan.nodes),
  )
  return [found[number] for number in range(len(plan.nodes))]


def _told_ratings(plan, exchange, journal, state, round) -> Leaves:
  """The state once all nodes have said who rated what."""
  question = intake.run_message(plan, Kind.SETUP, round, RECOMMENDER)

  def check(peer: int, data: bytes) -> Message:
    shapes = [
      Shape('counts', 'uint32', (plan.nodes[peer].size,)),
      Shape('items', 'uint32', (None,)),
    ]
    message = intake.opened(
      data, plan, kind=Kind.SETUP, sender=peer, shapes=shapes
    )
    counts, items = message.arrays
    if counts.astype(int).sum() != len(items):
      raise RejectedError('wrong shape: items and counts differ')
    if (items >= plan.num_items).any():
      raise RejectedError('an unknown item')
    owner = np.repeat(np.arange(len(counts)), counts)
    if ((np.diff(items.astype(int)) <= 0) & (np.diff(owner) == 0)).any():
      raise RejectedError('an item twice, or items that are not in order')
    return message

  questions = dict.fromkeys(range(len(plan.nodes)), question)
  told = _answers(plan, exchange, journal, questions, check, round)
  rated = np.concatenate([message.arrays[1] for message in told])
  hyper = untrusted_rounds.hyper_of(plan.config, plan.num_users)
  begun = optimizer_start(jnp.asarray(state['item']), hyper, len(rated))
  counts = np.concatenate([message.arrays[0] for message in told])
  return {**state, 'counts': counts, 'rated': rated, **begun}


def _told_scales(plan, exchange, journal, state, round) -> Leaves:
  """The state, once all nodes have drawn their users' shares of noise."""
  raters = np.bincount(state['rated'], minlength=plan.num_items)
  question = intake.run_message(
    plan,
    Kind.SHARE,
    round,
    RECOMMENDER,
    state['scales'],
    raters.astype(np.uint32),
  )

  def check(peer: int, data: bytes) -> Message:
    return intake.opened(data, plan, kind=Kind.SHARE, sender=peer, shapes=[])

  questions = dict.fromkeys(range(len(plan.nodes)), question)
  _answers(plan, exchange, journal, questions, check, round)
  return state


def _rated(state: Leaves) -> dict[int, np.ndarray]:
  """Items of each user; none of those who are offline."""
  ends = np.cumsum(state['counts'].astype(int))[:-1]
  parts = np.split(state['rated'], ends)
  both = enumerate(zip(parts, state['online'], strict=True))
  return {user: part if online else part[:0] for user, (part, online) in both}


def _sum_and_masks(
  plan: Plan,
  exchange: Exchange,
  journal: Journal,
  state: Leaves,
  round: int,
  served: Mapping[int, tuple[np.ndarray, ...]],
) -> tuple[Aggregate, dict[int, np.ndarray]]:
  """The third party's sum, and the masks of all users that are in it.

  `served` is what each node is sent with the seeds of its users.
  """
  questions = {
    number: intake.run_message(
      plan,
      Kind.SEEDED,
      round,
      RECOMMENDER,
      state['seeds'][plan.nodes[number].users],
      *arrays,
    )
    for number, arrays in served.items()
  }
  shape = state['item'].shape
  total = carried.carried_sum(
    plan, exchange, journal, questions, round=round, shape=shape
  )
  masks = {
    user: carried.mask(
      state['seeds'][user], (len(items), shape[1]), total.round, user
    )
    for user, items in _rated(state).items()
  }
  return total, masks


def _told_shares(plan, exchange, journal, state, round) -> Leaves:
  """The state with tau-hat, all users' shares under the third party's alpha."""
  served = dict.fromkeys(range(len(plan.nodes)), ())
  total, betas = _sum_and_masks(plan, exchange, journal, state, round, served)
  noise = untrusted_protocol.held_noise(
    total, betas, _rated(state), round=total.round
  )
  return {**state, 'noise': noise}


def _told_online(plan, exchange, journal, state, round) -> Leaves:
  """The state once all nodes have said who is online, and pieces are dealt.

  They are saved before they are sent: nodes that got different ones, from a
  recommender that was killed in between, would not add up to the noise.
  """
  question = intake.run_message(plan, Kind.SETUP, round, RECOMMENDER)

  def check(peer: int, data: bytes) -> Message:
    shapes = [Shape('online', 'uint8', (plan.nodes[peer].size,))]
    message = intake.opened(
      data, plan, kind=Kind.SETUP, sender=peer, shapes=shapes
    )
    if (message.arrays[0] > 1).any():
      raise RejectedError('neither online nor offline')
    return message

  questions = dict.fromkeys(range(len(plan.nodes)), question)
  told = _answers(plan, exchange, journal, questions, check, round)
  online = np.concatenate([message.arrays[0] for message in told])
  state = {**state, 'online': online}
  dealt = untrusted_protocol.dealt_pieces(state['noise'], _rated(state))
  return {**state, 'pieces': np.concatenate([*dealt.values()])}


def _moved(plan, exchange, journal, state, round) -> Leaves:
  """The state after a round of gradients."""
  rated = _rated(state)
  served = dict.fromkeys(range(len(plan.nodes)), (state['item'],))
  if plan.config.users == 'dynamic':
    sizes = [
      sum(len(rated[int(user)]) for user in node.users) for node in plan.nodes
    ]
    parts = np.split(state['pieces'], np.cumsum(sizes)[:-1])
    served = {k: (state['item'], part) for k, part in enumerate(parts)}
  total, masks = _sum_and_masks(plan, exchange, journal, state, round, served)
  hyper = untrusted_rounds.hyper_of(plan.config, plan.num_users)
  gradient = untrusted_protocol.gradient_apply(
    total, masks, rated, state['item'], hyper, round=total.round
  )
  item = jnp.asarray(state['item'])
  updates, optimizer = pmf.MOMENTUM.update(
    jnp.asarray(gradient), optimizer_of(state, item), item
  )
  moved = optax.apply_updates(item, updates)
  return {**state, 'item': np.asarray(moved), **optimizer_leaves(optimizer)}


_TURNS = {
  'ratings': _told_ratings,
  'scales': _told_scales,
  'shares': _told_shares,
  'online': _told_online,
  'gradients': _moved,
}
