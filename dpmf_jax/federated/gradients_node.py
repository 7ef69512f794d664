"""A node of the untrusted recommender as published: rounds of gradients.

Reference: Hua, Xia and Zhong (2015), scenario 2 (static users). Turns of
messages (see `carried`): 0, the node says which items its users rated; 1, it is
told H and the number of raters of each item, and draws its users' shares of
noise, once; from 2 on, item factors and seeds come, and masked gradients go to
the third party in a box, while users move their vectors at home.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.data.rows import Rows, rows
from dpmf_jax.federated import carried, folders, intake
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.intake import RejectedError, Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.plan import RECOMMENDER, Plan
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.clipping import clip_rows
from dpmf_jax.messages import Kind, Message
from dpmf_jax.runs import random_key
from dpmf_jax.sharding import put_rows
from dpmf_jax.systems import pmf, untrusted_protocol, untrusted_rounds

# Turns before the first gradients.
SETUP_TURNS = 2


def question_shapes(plan: Plan, size: int) -> list[tuple[Kind, list[Shape]]]:
  """What a node of that many users is asked in turns 0, 1 and 2, 3, ..."""
  shape = (plan.num_items, plan.config.rank)
  return [
    (Kind.SETUP, []),
    (
      Kind.SHARE,
      [
        Shape('scales', 'float32', shape),
        Shape('raters', 'uint32', shape[:1]),
      ],
    ),
    (
      Kind.SEEDED,
      [
        Shape('items', 'float32', shape),
        Shape('seeds', 'uint8', (size, secure_sum.SEED_BYTES)),
      ],
    ),
  ]


def node(
  plan: Plan,
  number: int,
  folder: str | Path,
  ratings: tuple[np.ndarray, np.ndarray, np.ndarray],
  journal: Journal,
  *,
  seed: int | None,
) -> Callable[[bytes], bytes]:
  """(question) -> answer of one node, whose state is in `folder`.

  Args:
    plan: of the run.
    number: of this node in the plan.
    folder: of its own, which nobody else can read.
    ratings: (user, item, value); users are counted from this node's first.
    journal: of this node.
    seed: FOR EXPERIMENTS: that of the simulator, for its start. Shares of noise
      never come from it.

  Privacy: as the paper claims, which does not hold (docs/privacy.md): both
  other parties learn who rated what. Gradients of a turn are computed once,
  and so are shares of noise; only masks are new where a turn is done again.
  """
  here = plan.nodes[number]
  order = np.lexsort((ratings[1], ratings[0]))
  user, item, value = (part[order] for part in ratings)
  own = put_rows(rows(user, item, value, here.size))
  each = np.bincount(user, minlength=here.size).astype(np.uint32)
  rated = item.astype(np.uint32)
  private = carried.party_key(folder, here.key)
  hyper = untrusted_rounds.hyper_of(plan.config, plan.num_users)
  state = folders.saved(folder, plan)
  if state is None:
    state = _start(plan, number, random_key(seed), len(value))
    folders.save(folder, plan, state)
    journal.log('began', users=here.size)
  else:
    journal.log('went on', last=int(state['round']))
  shapes = question_shapes(plan, here.size)

  def question(data: bytes) -> Message:
    turn = intake.round_of(data) // plan.attempts
    kind, expected = shapes[min(turn, SETUP_TURNS)]
    return intake.opened(
      data, plan, kind=kind, sender=RECOMMENDER, shapes=expected
    )

  def answer(message: Message, state: Leaves) -> tuple[bytes, Leaves]:
    round, turn = message.round, message.round // plan.attempts
    if turn > int(state['turn']) + 1:
      raise RejectedError(f'turn {turn} comes before those that are missing')
    new = turn > int(state['turn'])
    state = {**state, 'turn': np.int32(turn)}
    if turn < SETUP_TURNS:
      if new and turn == 1:
        scales, raters = message.arrays
        state |= _shares(scales, raters, state, item, hyper)
      told = (each, rated) if turn == 0 else ()
      return intake.run_message(plan, message.kind, round, number, *told), state
    if new:
      state |= _moved(message.arrays[0], state, (user, item, value), own, hyper)
    masks = [
      carried.mask(seed, (count, plan.config.rank), round, int(who))
      for seed, count, who in zip(
        message.arrays[1], each, here.users, strict=True
      )
    ]
    report = untrusted_protocol.client_report(
      state['counts'],
      state['share'],
      np.concatenate(masks),
      round=round,
      sender=number,
    )
    return carried.boxed_report(
      plan, number, private, round, each, rated, report.values
    ), state

  current: list[Leaves] = [state]

  def handle(data: bytes) -> bytes:
    reply, current[0] = folders.answer_once(
      data,
      plan,
      current[0],
      journal,
      sender=number,
      rounds=plan.turns * plan.attempts,
      question=question,
      answer=answer,
      folder=folder,
    )
    return reply

  return handle


def optimizer_of(saved: Leaves, factors: jax.Array) -> Any:
  """The optimizer's state that was saved with one side's factors."""
  empty = pmf.MOMENTUM.init(factors)
  count = len(jax.tree.leaves(empty))
  leaves = [jnp.asarray(saved[f'optimizer/{i}']) for i in range(count)]
  return jax.tree.unflatten(jax.tree.structure(empty), leaves)


def optimizer_leaves(optimizer: Any) -> Leaves:
  """What to save of it."""
  leaves = enumerate(jax.tree.leaves(optimizer))
  return {f'optimizer/{i}': np.asarray(leaf) for i, leaf in leaves}


def optimizer_start(
  factors: jax.Array, hyper: untrusted_rounds.Hyper, num_ratings: int
) -> Leaves:
  """The optimizer's state before the first round, to be saved."""
  optimizer: Any = pmf.MOMENTUM.init(factors)
  rate = hyper.step_size / jnp.float32(max(num_ratings, 1))
  rates = optimizer.hyperparams | {'learning_rate': rate}
  return optimizer_leaves(optimizer._replace(hyperparams=rates))


def _start(plan: Plan, number: int, key: jax.Array, count: int) -> Leaves:
  """The state before the first turn; keys are used as the simulator does."""
  config, here = plan.config, plan.nodes[number]
  fit_key, _ = jax.random.split(key)
  init_key, _ = jax.random.split(fit_key)
  user_key, _ = jax.random.split(init_key)
  every = pmf.start_users(user_key, plan.num_users, config.rank)
  nothing = np.zeros((count, config.rank), np.int32)
  return {
    'factors': np.asarray(every[here.users]),
    'counts': nothing,
    'share': nothing,
    'turn': np.int32(-1),
    'round': np.int32(-1),
    'answer': np.zeros(0, np.uint8),
  }


def _shares(
  scales: np.ndarray,
  raters: np.ndarray,
  state: Leaves,
  item: np.ndarray,
  hyper: untrusted_rounds.Hyper,
) -> Leaves:
  """Users' shares of noise, drawn from the operating system's entropy."""
  drawn = jax.random.normal(random_key(None), state['share'].shape)
  share = untrusted_rounds.share_counts(
    drawn,
    jnp.asarray(scales[item]),
    jnp.asarray(raters[item], jnp.float32),
    hyper,
  )
  factors = jnp.asarray(state['factors'])
  begun = optimizer_start(factors, hyper, int(raters.sum()))
  return {'share': np.asarray(share), **begun}


def _moved(
  items: np.ndarray,
  state: Leaves,
  ratings: tuple[np.ndarray, np.ndarray, np.ndarray],
  own: Rows,
  hyper: untrusted_rounds.Hyper,
) -> Leaves:
  """Gradients for the items, and users' vectors after their own step."""
  factors = jnp.asarray(state['factors'])
  optimizer = optimizer_of(state, factors)
  factors, optimizer, counts = _step(
    factors, optimizer, jnp.asarray(items), ratings, own, hyper
  )
  return {
    'factors': np.asarray(factors),
    'counts': np.asarray(counts),
    **optimizer_leaves(optimizer),
  }


@jax.jit
def _step(factors, optimizer, items, ratings, own, hyper):
  """(users' vectors, optimizer, counts [n, D]) after a round."""
  user, item, value = ratings
  counts = untrusted_rounds.gradient_counts(
    factors[user], items[item], value, hyper
  )
  gradient = untrusted_rounds.user_gradient(own, factors, items, hyper)
  updates, optimizer = pmf.MOMENTUM.update(gradient, optimizer, factors)
  moved: Any = optax.apply_updates(factors, updates)
  return clip_rows(moved, 1.0), optimizer, counts
