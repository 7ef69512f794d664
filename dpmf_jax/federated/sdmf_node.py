"""A node of SDMF: hosts users, whose ratings and factors stay in its folder.

It runs `sdmf.client_report` for each of its users, message by message
(`sdcf_messages`). With the simulator's key what it sends is what the simulator
adds up: users have the keys that they have there, by their numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.federated import folders, intake
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.intake import Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import RECOMMENDER, Plan
from dpmf_jax.mechanisms import response
from dpmf_jax.plans.sdcf import epsilons
from dpmf_jax.rows import Rows, put_rows, rows
from dpmf_jax.runs import random_key
from dpmf_jax.systems import sdmf
from dpmf_jax.systems.sdcf import messages as sdcf_messages
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.systems.sdcf.client_blocks import client_blocks
from dpmf_jax.types import Factors

# Traced settings, in this order, in the message of a round.
SCALARS = (
  'step_size',
  'start_step_size',
  'decay',
  'likelihood',
  'epsilon_value',
  'tolerance',
)


def public_shapes(plan: Plan) -> list[Shape]:
  """What the recommender tells nodes in a round."""
  rank = plan.config.rank
  return [
    Shape('items', 'float32', (plan.num_items, rank)),
    Shape('settings', 'float32', (len(SCALARS),)),
    Shape('ridges', 'float32', (2, rank)),
  ]


def public_of(message: Message) -> sdcf.Public:
  """The message of a round as clients get it."""
  item, scalars, ridges = (jnp.asarray(x) for x in message.arrays)
  values = dict(zip(SCALARS, scalars, strict=True))
  return sdcf.Public(
    item=item,
    step_size=values['step_size'],
    langevin=sgld.Langevin(
      step_size=values['start_step_size'],
      decay=values['decay'],
      likelihood=values['likelihood'],
      user_ridge=ridges[0],
      item_ridge=ridges[1],
    ),
    epsilon_value=values['epsilon_value'],
    tolerance=values['tolerance'],
  )


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
    seed: FOR EXPERIMENTS: that of the simulator. None draws a key from the
      operating system once, and keeps it in the folder.

  Privacy: permanent bits are drawn once, before anything is sent, and kept; a
  round is answered once (`folders.answer_once`), and rounds past the config's
  steps are refused.
  """
  config, here = plan.config, plan.nodes[number]
  own = put_rows(rows(*ratings, here.size))
  run = _reports(response.capacity(config.sent, plan.num_items))
  blocks = client_blocks(own, plan.num_items)
  rules = sdcf.rules_of(config)

  def question(data: bytes) -> Message:
    return intake.opened(
      data,
      plan,
      kind=Kind.PUBLIC,
      sender=RECOMMENDER,
      shapes=public_shapes(plan),
    )

  def answer(message: Message, state: Leaves) -> tuple[bytes, Leaves]:
    steps_key = jax.random.wrap_key_data(jnp.asarray(state['key']))
    clients, reports, online = run(
      jax.random.fold_in(steps_key, message.round),
      client_of(state),
      own,
      blocks,
      public_of(message),
      rules,
      jnp.int32(here.first),
    )
    online = np.asarray(online)
    item = np.asarray(reports.item)[online]  # [n, M]
    used = item < plan.num_items
    reply = intake.run_message(
      plan,
      Kind.REPORTS,
      message.round,
      number,
      here.users[online],
      used.sum(axis=1).astype(np.uint32),
      item[used].astype(np.uint32),
      np.asarray(reports.gradient)[online][used],
      np.asarray(reports.converged)[online].astype(np.uint8),
    )
    return reply, {**state, **_leaves(clients)}

  return folders.answering(
    plan,
    number,
    folder,
    journal,
    start=lambda: _start(plan, number, own, random_key(seed)),
    rounds=config.steps,
    question=question,
    answer=answer,
  )


def client_of(state: Leaves) -> sdcf.Client:
  """The clients in a saved state."""
  kept = {name: jnp.asarray(state[f'kept/{name}']) for name in _KEPT}
  return sdcf.Client(jnp.asarray(state['factors']), sdcf.Kept(**kept))


_KEPT = sdcf.Kept._fields


def _leaves(clients: sdcf.Client) -> Leaves:
  kept = {f'kept/{k}': np.asarray(v) for k, v in clients.kept._asdict().items()}
  return {'factors': np.asarray(clients.factors), **kept}


def _start(plan: Plan, number: int, own: Rows, key: jax.Array) -> Leaves:
  """The state before the first round; keys are used as `sdmf.sdmf` does."""
  config, here, num_items = plan.config, plan.nodes[number], plan.num_items
  fit_key, _ = jax.random.split(key)
  init_key, steps_key = jax.random.split(fit_key)
  factor_key, bits_key, _ = jax.random.split(init_key, 3)
  user_key, _ = jax.random.split(factor_key)
  every = jax.random.uniform(user_key, (plan.num_users, config.rank))
  factors = sgld.INIT_SIZE * every[here.users]
  permanent, instant = epsilons(config)
  coins, _ = sdcf.coins_of(
    own,
    num_items,
    epsilon_permanent=permanent,
    epsilon_instant=instant,
    sent=config.sent,
  )
  kept = sdcf.kept_by_clients(
    bits_key,
    own,
    client_blocks(own, num_items),
    num_items,
    coins,
    first=here.first,
  )
  return {
    **_leaves(sdcf.Client(factors, kept)),
    'key': np.asarray(jax.random.key_data(steps_key)),
  }


@functools.cache
def _reports(capacity: int):
  """(clients, their messages, who is online) of a round, compiled."""
  report = functools.partial(sdmf.client_report, capacity=capacity)

  @jax.jit
  def run(key, clients, own, blocks, public, rules, first):
    return sdcf_messages.all_reports(
      key, report, clients, own, blocks, public, rules, first=first
    )

  return run


def factors_of(parts: list[Leaves], item: np.ndarray) -> Factors:
  """Factors of all users, from the folders of all nodes, in order."""
  user = np.concatenate([part['factors'] for part in parts])
  return Factors(jnp.asarray(user), jnp.asarray(item))
