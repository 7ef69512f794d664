"""The recommender of rounds of gradients, as published: knows who rated what.

Reference: Hua, Xia and Zhong (2015), scenario 2 (static users); turns as in
`gradients_node`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.federated import carried, folders, intake
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.gradients_node import (
  SETUP_TURNS,
  optimizer_leaves,
  optimizer_of,
  optimizer_start,
)
from dpmf_jax.federated.intake import RejectedError, Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.plan import RECOMMENDER, Plan
from dpmf_jax.federated.rounds import Exchange, TooFewNodesError, gathered
from dpmf_jax.mechanisms.secure_sum import BrokenRoundError
from dpmf_jax.messages import Kind, Message
from dpmf_jax.runs import random_key
from dpmf_jax.systems import pmf, untrusted_protocol, untrusted_rounds


def recommender(
  plan: Plan,
  folder: str | Path,
  exchange: Exchange,
  journal: Journal,
  *,
  seed: int | None,
) -> np.ndarray:
  """Item factors [I, D] after all rounds; goes on where it was.

  Every turn needs every user. One that is broken is done again under another
  number, with new masks: up to the plan's attempts.

  Raises:
    TooFewNodesError: where a turn could not be summed.
  """
  state = folders.saved(folder, plan)
  if state is None:
    state = _start(plan, random_key(seed))
    folders.save(folder, plan, state)
  journal.log('began', round=int(state['turn']), rounds=plan.turns)
  while (turn := int(state['turn'])) < plan.turns:
    round = turn * plan.attempts + int(state['attempt'])
    if int(state['attempt']) >= plan.attempts:
      raise TooFewNodesError(f'no sum in turn {turn}')
    try:
      if turn == 0:
        state = _told_ratings(plan, exchange, journal, state, round)
      elif turn == 1:
        state = _told_scales(plan, exchange, journal, state, round)
      else:
        state = _moved(plan, exchange, journal, state, round)
    except (TooFewNodesError, BrokenRoundError) as error:
      journal.log('round broken', round=round, why=str(error))
      state = {**state, 'attempt': np.int32(int(state['attempt']) + 1)}
      folders.save(folder, plan, state)
      continue
    state |= {'turn': np.int32(turn + 1), 'attempt': np.int32(0)}
    folders.save(folder, plan, state)
    if turn >= SETUP_TURNS:
      journal.log('round done', round=turn - SETUP_TURNS)
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


def _moved(plan, exchange, journal, state, round) -> Leaves:
  """The state after a round of gradients."""
  questions = {
    number: intake.run_message(
      plan,
      Kind.SEEDED,
      round,
      RECOMMENDER,
      state['item'],
      state['seeds'][node.users],
    )
    for number, node in enumerate(plan.nodes)
  }
  shape = state['item'].shape
  total = carried.carried_sum(
    plan, exchange, journal, questions, round=round, shape=shape
  )
  ends = np.cumsum(state['counts'].astype(int))[:-1]
  rated = dict(enumerate(np.split(state['rated'], ends)))
  masks = {
    user: carried.mask(
      state['seeds'][user], (len(items), shape[1]), total.round, user
    )
    for user, items in rated.items()
  }
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
