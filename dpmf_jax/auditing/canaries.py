"""Auditing in one run: many canaries in a data set of real size.

Reference: Steinke, Nasr and Jagielski (2023), Privacy Auditing with One (1)
Training Run, Theorem 5.2; Mahloujifar, Melis and Chaudhuri (2024), Auditing
f-Differential Privacy in One Run, for guarantees that are Gaussian.

Each canary is a unit of the guarantee, put in or left out by a coin of its
own ('add_remove'), or given the highest or the lowest value ('replace'). From
the release of a single run the attacker guesses the coins that it is surest
of; more right guesses than an epsilon allows refute it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jax_privacy import auditing

from dpmf_jax.ratings.table import Ratings
from dpmf_jax.types import Relation, Release, Unit

# Parts of the canaries that are guessed; fixed before the run, and each has
# its share of the significance.
_GUESSED = (0.05, 0.2, 1.0)
_ITEMS_OF_USER = 5


class Canaries(NamedTuple):
  """Canaries in a data set.

  Attributes:
    ratings: the data with the canaries whose coin says so.
    user, item: [M], [M, K] indices of each canary's ratings: K items of one
      user, all of them new, so that nothing else moves their factors.
    coin: [M] bool, whether it was put in (or given the highest value).
  """

  ratings: Ratings
  user: np.ndarray
  item: np.ndarray
  coin: np.ndarray


def insert(
  ratings: Ratings,
  number: int,
  *,
  unit: Unit,
  relation: Relation,
  seed: int,
) -> Canaries:
  """`ratings` with `number` canaries, about half of them put in.

  All users and items of canaries are in the id lists, whatever the coins say:
  the lists are public. Ids are numbers: the data is for audits only.
  """
  if number < 1:
    raise ValueError(f'number={number} of canaries must be at least 1')
  coin = np.random.default_rng(seed).integers(2, size=number) == 1
  each = 1 if unit == 'rating' else _ITEMS_OF_USER
  user = np.arange(number)
  item = np.arange(number * each).reshape(number, each)
  low, high = ratings.scale
  value = np.where(coin[:, None] | (relation == 'add_remove'), high, low)
  value = np.broadcast_to(value, item.shape)
  kept = np.repeat(coin | (relation == 'replace'), each)
  table = Ratings(
    user=np.concatenate([ratings.user, ratings.num_users + user.repeat(each)]),
    item=np.concatenate([ratings.item, ratings.num_items + item.ravel()]),
    value=np.concatenate([ratings.value, value.ravel()]),
    user_ids=np.arange(ratings.num_users + number),
    item_ids=np.arange(ratings.num_items + item.size),
    scale=ratings.scale,
    name=f'{ratings.name} with {number} canaries',
  )
  return Canaries(
    table.take(np.concatenate([np.ones(len(ratings), bool), kept])),
    ratings.num_users + user,
    ratings.num_items + item,
    coin,
  )


def scores(start: Release, end: Release, canaries: Canaries) -> np.ndarray:
  """How much each canary [M] seems to be in, from what is released.

  The start is known: it does not depend on ratings. A rating above the
  prediction moves the user along the item's factors and the item along the
  user's; the sum of both moves is the score.
  """
  total = np.zeros(len(canaries.coin))
  p, q = (np.asarray(side, np.float64) for side in start.factors)
  user = canaries.user[:, None]  # [M, 1]
  if end.factors.user is not None:
    moved = np.asarray(end.factors.user, np.float64) - p
    total += np.einsum('mkd,mkd->m', moved[user], q[canaries.item])
  if end.factors.item is not None:
    moved = np.asarray(end.factors.item, np.float64) - q
    total += np.einsum('mkd,mkd->m', moved[canaries.item], p[user])
  return total


class OneRun(NamedTuple):
  """Lower bounds on epsilon from one run, together of `confidence`."""

  epsilon: float
  gaussian: float  # if a Gaussian trade-off curve is claimed
  guesses: int  # behind `epsilon`
  right: int
  canaries: int
  confidence: float


def one_run_bound(
  score: np.ndarray, coin: np.ndarray, *, delta: float, confidence: float
) -> OneRun:
  """What the guesses that `score` [M] leads to prove about epsilon.

  The surest canaries are guessed: in if the score is above the median, else
  out. Only how many guesses there are and how many are right enters the
  theorem, so right ones go to the auditor as its 'in' and wrong ones as its
  'out' canaries, with how sure they were as their score.
  """
  center = np.median(score)
  right = (score > center) == coin
  order = np.argsort(-np.abs(score - center), kind='stable')
  sureness = np.empty(len(score))
  sureness[order] = np.arange(len(score), 0, -1.0)
  share = (1 - confidence) / (2 * len(_GUESSED))
  best = OneRun(0.0, 0.0, 0, 0, len(coin), confidence)
  if right.all() or not right.any():
    # The auditor needs both kinds; one is worth less than it may be.
    right = right.copy()
    right[order[-1]] = not right[order[-1]]
  auditor = auditing.CanaryScoreAuditor(sureness[right], sureness[~right])
  for part in _GUESSED:
    guesses = max(1, round(part * len(score)))
    threshold = auditing.Explicit(float(len(score) - guesses + 1))
    epsilon = float(
      auditor.epsilon_one_run(share, delta, threshold_strategy=threshold)
    )
    gaussian = float(
      auditor.epsilon_one_run_fdp(share, delta, threshold_strategy=threshold)
    )
    if epsilon >= best.epsilon:
      hits = int(right[order[:guesses]].sum())
      best = best._replace(epsilon=epsilon, guesses=guesses, right=hits)
    best = best._replace(gaussian=max(best.gaussian, gaussian))
  return best
