"""The settings of local ranking, and what they are worth."""

from __future__ import annotations

import functools
from typing import Any

from dpmf_jax import accounting
from dpmf_jax.accounting import records
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.ranking_mf import MAX_RANK
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Relation

CATEGORIES = 2  # nothing, or something


@declare.config
class LocalRankingConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Delta is where the certificate states epsilon, which is pure.

  Attributes:
    rank: Number of factors at most; those that do not stand out of the noise
      are shrunk to nothing. 0 is popularity alone.
    least_weight: What an interaction with the lowest rating counts, at home,
      in the user's own row; more for higher ones, up to 1. 1 where ratings
      mean nothing, as for clicks.
    liked_from: Part of the scale from which on an interaction counts 1.
  """

  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon(
    above=None, minimum=1e-4, maximum=records.MAX_EPSILON
  )
  delta: float = declare.pure_delta(default=0.0)
  rank: int = declare.setting(default=32, minimum=0, maximum=MAX_RANK)
  least_weight: float = declare.setting(default=0.1, minimum=0.01, maximum=1)
  liked_from: float = declare.setting(default=0.75, minimum=1e-3, maximum=1)


def traffic(
  config: LocalRankingConfig, *, num_items: int, **_: int
) -> dict[str, float]:
  """Bytes that one client sends and gets, without framing or encryption.

  Up: a bit for every item. Down: popularity, factors and weight of all items
  in float32.
  """
  down = 4 * num_items * (config.rank + 2)
  return {'bytes_up': float(-(-num_items // 8)), 'bytes_down': float(down)}


_ASSUMPTIONS = (
  assumptions.PUBLIC_SETTINGS,
  assumptions.PUBLIC_IDS,
  'A record is one (user, item) cell: there is a rating, or there is none. '
  'What the rating is, is not sent.',
  *assumptions.ANSWERS,
  'Each user sums up what is released of the items they interacted with, and '
  'keeps it: it is not covered.',
)


@functools.lru_cache
def plan(config: LocalRankingConfig) -> Plan:
  """How many of 2^32 coins answer with the opposite of the truth."""
  lie = records.lie_coins(config.epsilon, CATEGORIES)
  truth = 1 - lie / records.COINS
  guarantee = Guarantee(
    status='proved',
    unit='rating',
    relation=config.relation,
    event=accounting.RandomizedResponse(
      # Both are bounds; the second is the coins' own.
      min(config.epsilon, records.true_epsilon(lie, CATEGORIES)),
      categories=CATEGORIES,
    ),
    adversary=assumptions.ANSWERS_ADVERSARY,
    released=('answers of all clients', 'item factors', 'offset', 'id lists'),
    secret=('ratings', 'user factors', 'random keys of clients'),
    assumptions=_ASSUMPTIONS,
    mechanism='one permanent randomized response for each (user, item) cell, '
    f'there or not, that tells the truth with chance {truth:.6g}; all the rest '
    'is computed from the answers',
  )
  return Plan(guarantee=guarantee, steps=1, noise={'answers': lie})


_CASE: dict[str, Any] = {
  'scale': (1.0, 5.0),
  'delta': 0.0,
  'relation': 'add_remove',
}

SPEC = Spec(
  name='local_ranking',
  task='ranking',
  help='Lists of items without a trusted curator: randomized response for each '
  'record, there or not.',
  config=LocalRankingConfig,
  plan=plan,
  variants={'sound': {'relation': 'add_remove'}},
  cases={
    'sound': (
      # The server sees the answers themselves. Without factors the release is
      # made of few numbers, which a discriminant can learn.
      Case({**_CASE, 'epsilon': 1.0, 'rank': 0}, 'known', view='transcript'),
      Case({**_CASE, 'epsilon': 4.0, 'rank': 1}, 'known', view='transcript'),
      Case({**_CASE, 'epsilon': 1.0, 'rank': 0}, 'known'),
    )
  },
  traffic=traffic,
)
