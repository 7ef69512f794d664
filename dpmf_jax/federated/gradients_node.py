"""A node of the untrusted recommender as published: rounds of gradients.

Reference: Hua, Xia and Zhong (2015), scenarios 2 (static users) and 3 (dynamic
users). Turns of messages (see `carried`, and `Plan.schedule`):

  ratings    the node says which items its users rated
  scales     it is told H and the number of raters of each item, and draws its
             users' shares of noise, once
  shares     dynamic users: seeds come, and masked shares go to the third party
             in a box, once
  online     dynamic users: it draws and says who of its users is online
  gradients  item factors and seeds come, and masked gradients go to the third
             party in a box, with the share of noise, or with dynamic users
             the piece that came, while users move their vectors at home

Whoever is offline reports on no items, and does not move.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.federated import carried, folders, intake, untrusted_protocol
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.intake import RejectedError, Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import RECOMMENDER, Plan, Turn
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.clipping import clip_rows
from dpmf_jax.rows import Rows, put_rows, rows
from dpmf_jax.runs import random_key
from dpmf_jax.systems import pmf
from dpmf_jax.systems.untrusted import rounds as untrusted_rounds


def question_shapes(
  plan: Plan, size: int
) -> dict[Turn, tuple[Kind, list[Shape]]]:
  """What a node of that many users is asked in a turn."""
  shape = (plan.num_items, plan.config.rank)
  scales = Shape('scales', 'float32', shape)
  raters = Shape('raters', 'uint32', shape[:1])
  seeds = Shape('seeds', 'uint8', (size, secure_sum.SEED_BYTES))
  served = [seeds, Shape('items', 'float32', shape)]
  if plan.config.users == 'dynamic':
    served.append(Shape('pieces', 'uint32', (None, shape[1])))
  return {
    'ratings': (Kind.SETUP, []),
    'scales': (Kind.SHARE, [scales, raters]),
    'shares': (Kind.SEEDED, [seeds]),
    'online': (Kind.SETUP, []),
    'gradients': (Kind.SEEDED, served),
  }


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
    seed: FOR EXPERIMENTS: that of the simulator, for its start and for who is
      online. Shares of noise never come from it.

  Privacy: as the paper claims, which does not hold (docs/privacy.md): both
  other parties learn who rated what, and with dynamic users who is online.
  Gradients of a turn are computed once, and so are shares of noise and who is
  online; only masks are new where a turn is done again.
  """
  here = plan.nodes[number]
  order = np.lexsort((ratings[1], ratings[0]))
  user, item, value = (part[order] for part in ratings)
  own = put_rows(rows(user, item, value, here.size))
  each = np.bincount(user, minlength=here.size).astype(np.uint32)
  rated = item.astype(np.uint32)
  private = carried.party_key(folder, here.key)
  hyper = untrusted_rounds.hyper_of(plan.config, plan.num_users)
  shapes, schedule = question_shapes(plan, here.size), plan.schedule

  def question(data: bytes) -> Message:
    turn = intake.round_of(data) // plan.attempts
    kind, expected = shapes[schedule[min(turn, len(schedule) - 1)]]
    return intake.opened(
      data, plan, kind=kind, sender=RECOMMENDER, shapes=expected
    )

  def answer(message: Message, state: Leaves) -> tuple[bytes, Leaves]:
    round, turn = message.round, message.round // plan.attempts
    if turn > int(state['turn']) + 1:
      raise RejectedError(f'turn {turn} comes before those that are missing')
    new = turn > int(state['turn'])
    state = {**state, 'turn': np.int32(turn)}
    step, told = schedule[turn], ()
    if step == 'ratings':
      told = (each, rated)
    elif step == 'scales' and new:
      scales, raters = message.arrays
      state |= _shares(scales, raters, state, item, hyper)
    elif step == 'online':
      if new:
        past = schedule[:turn].count('online')
        state |= _online(plan, number, past, state, hyper)
      told = (state['online'],)
    if step not in ('shares', 'gradients'):
      return intake.run_message(plan, message.kind, round, number, *told), state
    # All users until some are said to be offline.
    sent = each * state['online'].astype(np.uint32)
    there = np.repeat(state['online'], each).astype(bool)
    counts, noise = np.zeros_like(state['share']), state['share'][there]
    if step == 'gradients':
      if plan.config.users == 'dynamic':
        noise = message.arrays[2]
        if len(noise) != there.sum():
          raise RejectedError('wrong shape: pieces are not for those online')
      if new:
        ratings = (user, item, value)
        state |= _moved(message.arrays[1], state, ratings, own, hyper)
      counts = state['counts']
    masks = [
      carried.mask(seed, (count, plan.config.rank), round, int(who))
      for seed, count, who in zip(
        message.arrays[0], sent, here.users, strict=True
      )
    ]
    report = untrusted_protocol.client_report(
      counts[there],
      noise,
      np.concatenate(masks),
      round=round,
      sender=number,
    )
    return carried.boxed_report(
      plan, number, private, round, sent, rated[there], report.values
    ), state

  return folders.answering(
    plan,
    number,
    folder,
    journal,
    start=lambda: _start(plan, number, random_key(seed), len(value)),
    rounds=plan.turns * plan.attempts,
    question=question,
    answer=answer,
  )


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
  init_key, steps_key = jax.random.split(fit_key)
  user_key, _ = jax.random.split(init_key)
  every = pmf.start_users(user_key, plan.num_users, config.rank)
  nothing = np.zeros((count, config.rank), np.int32)
  return {
    'factors': np.asarray(every[here.users]),
    'counts': nothing,
    'share': nothing,
    'online': np.ones(here.size, np.uint8),
    'key': np.asarray(jax.random.key_data(steps_key)),
    'turn': np.int32(-1),
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


def _online(
  plan: Plan,
  number: int,
  past: int,
  state: Leaves,
  hyper: untrusted_rounds.Hyper,
) -> Leaves:
  """Who is online in a round after `past`; with a seed as in `rounds_step`."""
  steps_key = jax.random.wrap_key_data(jnp.asarray(state['key']))
  _, key, _ = jax.random.split(jax.random.fold_in(steps_key, past), 3)
  every = jax.random.bernoulli(key, hyper.online, (plan.num_users,))
  own = np.asarray(every)[plan.nodes[number].users]
  return {'online': own.astype(np.uint8)}


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
  online = jnp.asarray(state['online'], bool)
  factors, optimizer, counts = _step(
    factors, optimizer, jnp.asarray(items), online, ratings, own, hyper
  )
  return {
    'factors': np.asarray(factors),
    'counts': np.asarray(counts),
    **optimizer_leaves(optimizer),
  }


@jax.jit
def _step(factors, optimizer, items, online, ratings, own, hyper):
  """(users' vectors, optimizer, counts [n, D]) after a round."""
  user, item, value = ratings
  counts = untrusted_rounds.gradient_counts(
    factors[user], items[item], value, hyper
  )
  gradient = untrusted_rounds.user_gradient(own, factors, items, hyper)
  updates, after = pmf.MOMENTUM.update(gradient, optimizer, factors)
  moved: Any = optax.apply_updates(factors, updates)
  moved = clip_rows(moved, 1.0)
  # Neither vector nor momentum of who is offline changes.
  kept = lambda new, old: (
    jnp.where(online[:, None], new, old) if new.shape == factors.shape else new
  )
  after = jax.tree.map(kept, after, optimizer)
  return kept(moved, factors), after, counts
