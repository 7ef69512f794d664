"""A node of the untrusted recommender's sums: one masked report per user.

The recommender sends a seed for each user, whose mask both know; the report
goes to the third party alone, in a box that the recommender carries and cannot
open. Shares of noise are drawn once and kept: a round that is done again has
new masks over the same words, so that no second noise can be averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dpmf_jax.federated import carried, folders, intake, untrusted_protocol
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.intake import Shape
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import RECOMMENDER, Plan
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.systems.untrusted import sums as untrusted_sums

RANK = 1  # a constant feature for each user: items have a mean each


def width(rank: int = RANK) -> int:
  """W, numbers in an item's sum."""
  return rank * (rank + 3) // 2


def node(
  plan: Plan,
  number: int,
  folder: str | Path,
  ratings: tuple[np.ndarray, np.ndarray, np.ndarray],
  journal: Journal,
) -> Callable[[bytes], bytes]:
  """(question) -> answer of one node, whose state is in `folder`.

  Args:
    plan: of the run; every attempt at the sum is a round of it.
    number: of this node in the plan.
    folder: of its own, which nobody else can read.
    ratings: (user, item, value); users are counted from this node's first.
    journal: of this node.

  Privacy: as `untrusted_pmf` states it; the words under the mask are the same
  in all rounds, and a round is answered once.
  """
  config, here = plan.config, plan.nodes[number]
  private = carried.party_key(folder, here.key)
  counts = own_sums(plan, here.size, ratings)  # [n, I, W]

  def question(data: bytes) -> Message:
    return intake.opened(
      data,
      plan,
      kind=Kind.SEEDED,
      sender=RECOMMENDER,
      shapes=[Shape('seeds', 'uint8', (here.size, secure_sum.SEED_BYTES))],
    )

  def answer(message: Message, state: Leaves) -> tuple[bytes, Leaves]:
    round = message.round
    words = np.stack(
      [
        untrusted_protocol.client_report(
          counts[place],
          state['share'][place],
          mask(message.arrays[0][place], plan, round, int(user)),
          round=round,
          sender=int(user),
        ).values
        for place, user in enumerate(here.users)
      ]
    )
    reply = carried.boxed_report(
      plan, number, private, round, here.users, words
    )
    return reply, state

  return folders.answering(
    plan,
    number,
    folder,
    journal,
    start=lambda: {
      'share': np.stack(
        [
          untrusted_protocol.client_share(
            config, plan.num_users, plan.num_items, RANK
          )
          for _ in range(here.size)
        ]
      ),
    },
    rounds=plan.turns * plan.attempts,
    question=question,
    answer=answer,
  )


def mask(seed: np.ndarray, plan: Plan, round: int, user: int) -> np.ndarray:
  """A user's mask [I, W] in a round, from the seed that two parties know."""
  return carried.mask(seed, (plan.num_items, width()), round, user)


def own_sums(
  plan: Plan, count: int, ratings: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> np.ndarray:
  """What each of the users adds, [n, I, W] int32, without noise."""
  hyper = untrusted_sums.hyper_of(plan.config, plan.num_users)
  feature = untrusted_sums.feature_counts(np.ones((1, RANK)))
  user, item, value = ratings
  # Of all users at once, as `untrusted_sums.user_sums` has it for one.
  terms = untrusted_sums.rating_terms(
    jnp.asarray(np.repeat(feature, len(value), axis=0)),
    jnp.asarray(value, jnp.float32),
    hyper,
  )
  sums = np.zeros((count, plan.num_items, width()), np.int32)
  np.add.at(sums, (user, item), np.asarray(terms))
  return sums
