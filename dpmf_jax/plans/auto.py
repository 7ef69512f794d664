"""Which system to run, and how, from public facts alone."""

from __future__ import annotations

import math
from typing import Any

from dpmf_jax.accounting import gaussian
from dpmf_jax.accounting.events import checked_number
from dpmf_jax.plans import moments, power_mf, user_levels
from dpmf_jax.types import Unit

# Chosen on MovieLens-100K and 1M; see docs/results.md.
_MIN_SIGNAL = 14.0
_SIGNAL_PER_FACTOR = 6.0
_MANY_ROUNDS = 24.0
_RANKS = 3, 16
# Part of epsilon that ratings are counted with, where there may be factors. The
# noise of the count is then a few percent of what decides, 5 (U + I), or less.
_NUMBER_SHARE = 0.002
# Part of epsilon that users' levels are asked for with, where item means alone
# are released, and the least of epsilon and of its product with U for which the
# answer stands out of the noise.
_LEVEL_SHARE, _LEVEL_EPSILON, _LEVEL_USERS = 0.02, 0.1, 3500.0
# Below this, vectors cost the items' means more than they bring. Between the
# two ways MovieLens-100K has 25 to 35, MovieLens-1M 30 to 45.
_VECTORS_FROM = 33.0
_EACH = 40.0
MAX_RANK = 8
# From which on pairs of items are worth their noise, by what is protected;
# Jester has 0.69 at epsilon 0.1, where they are. And mu U must be so large, or
# means of items are better off with all of the budget where ratings are few.
_PAIRS_FROM: dict[Unit, float] = {'user': 0.6, 'rating': 0.5}
_USERS_FROM = 400.0
# Where mu is below this, by user, means have as much of the budget as pairs.
_LITTLE, _MORE_FOR_MEANS = 0.1, 0.5


def rank_for(mu: float, num_users: int, num_items: int) -> int:
  """How many factors noise of mu-GDP leaves to be learned; 0 is means only.

  What users say together grows with their number, noise in a direction of all
  items with the square root of theirs: mu U / sqrt(I) decides. The numbers
  in the rule were found on MovieLens, which is public.
  """
  if min(num_users, num_items) < 1 or not mu > 0:
    raise ValueError(
      f'mu={mu}, num_users={num_users} and num_items={num_items} must be > 0'
    )
  strength = mu * num_users / math.sqrt(num_items)
  if strength < _VECTORS_FROM:
    return 0
  return int(min(max(round(strength / _EACH), 2), MAX_RANK))


def pays_for_pairs(
  unit: Unit, mu: float, num_users: int, num_items: int
) -> bool:
  """Whether noise of mu-GDP on a sum for each pair of items is little enough.

  Users' products have a trace of U in all, U / I for an item, and noise has
  eigenvalues of about sqrt(I) / mu: mu U / I^1.5 decides. With one item there
  are no pairs.
  """
  strength = mu * num_users
  return (
    num_items > 1
    and strength >= _USERS_FROM
    and strength / num_items**1.5 >= _PAIRS_FROM[unit]
  )


def _shares(unit: Unit, mu: float) -> list[dict[str, Any]]:
  """`means_share` of `moments`, what is tried first and by default.

  With little budget, pairs are lost in noise if users have few ratings each,
  and how many they have is private.
  """
  if unit == 'user' and mu < _LITTLE:
    return [{'means_share': _MORE_FOR_MEANS}, {}]
  return [{}]


def signal(
  *, num_users: int, num_items: int, epsilon: float, delta: float
) -> float:
  """mu (U I)^(1/4), how far factors stand out from their noise.

  mu is that of the Gaussian mechanism that has (epsilon, delta): noise is
  proportional to 1/mu. The singular values of residuals grow with the number
  of ratings per row, which is private where ratings may come and go; tables
  with more cells have more, and (U I)^(1/4) stands for that.
  """
  return gaussian.mu_of(epsilon, delta) * (num_users * num_items) ** 0.25


def recommended(
  unit: Unit,
  *,
  num_users: int,
  num_items: int,
  epsilon: float,
  delta: float,
  items_known: bool = False,
  in_ledger: bool = False,
) -> tuple[str, dict[str, Any]]:
  """(system, settings of its config) for these facts.

  Where there are few items and many users (`pays_for_pairs`), and delta is
  above 0, it is `moments`, by user with half of the budget for means where mu
  is below 0.1 and there is noise for that. Else unit 'rating' (relation
  'add_remove') is `power_mf`: factors where `signal` is at least 14, one for
  every 6 of it, 3 to 16 of them, in 6 rounds below 24 and in 8 from there; and
  item means alone below 14, or where delta is 0 or there are fewer items than a
  user must have ratings of. With factors it counts ratings first, if it is not
  in a ledger, and releases item means alone where there are too few
  (`number_share`); factors are then also tried where whole users would have
  some. Where means alone may be all, epsilon is at least 0.1 and epsilon U
  at least 3,500, it asks for users' levels (`level_share`; not with factors in
  a ledger, nor of more users or items than int32 has room for). Unit 'user' is
  `dpals`, with a rank by `auto.rank_for`.

  Args:
    unit: what is protected.
    num_users, num_items: lengths of the id lists, which are public.
    epsilon, delta: of the guarantee.
    items_known: whether public ratings or features of items are given, which
      `moments` does not take.
    in_ledger: whether other runs are counted with this one. Then it does not
      count ratings: of what may be either of two, fewer fit into a budget than
      of Gaussian noise.

  The scale of ratings has no part in it, as settings are in quarters of it,
  nor has their number, which is private: a run pays for what it asks of it.

  Privacy: a function of public facts. U and I are the lengths of the id lists,
  which every certificate declares public; no rating is looked at.
  """
  if min(num_users, num_items) < 1:
    raise ValueError(
      f'num_users={num_users!r} and num_items={num_items!r} must be at least 1'
    )
  delta = checked_number('delta', delta)
  if unit not in ('rating', 'user'):
    raise ValueError(f"unit={unit!r} must be 'rating' or 'user'")
  if unit == 'user' and not delta > 0:
    raise ValueError(f'unit user needs a delta above 0, got {delta}')
  facts: dict[str, Any] = {'num_users': num_users, 'num_items': num_items}
  budget: dict[str, Any] = {'epsilon': epsilon, 'delta': delta}
  mu = gaussian.mu_of(epsilon, delta) if delta > 0 else 0.0
  if not items_known and pays_for_pairs(unit, mu, **facts):
    for share in _shares(unit, mu):
      if moments.runs(unit, **facts, **budget, **share):
        return 'moments', {'unit': unit, 'relation': 'add_remove', **share}
  if unit == 'user':
    rank = rank_for(mu, **facts)
    return 'dpals', {'relation': 'add_remove', 'rank': rank}
  rank, rounds = 0, 1
  if delta > 0 and num_items >= power_mf.MIN_OWN:
    strength = signal(**facts, **budget)
    # What would do for whole users does for ratings, of which there may be more
    # than most tables of that size have: a run that counts them finds out.
    counted = not in_ledger and rank_for(mu, **facts) > 0
    if strength >= _MIN_SIGNAL or counted:
      lowest, highest = _RANKS
      rank = math.floor(strength / _SIGNAL_PER_FACTOR + 0.5)
      rank = min(max(rank, lowest), highest)
      rounds = 6 if strength < _MANY_ROUNDS else 8
  number_share = _NUMBER_SHARE if rank and not in_ledger else 0.0
  levels = (
    (not rank or number_share > 0)
    and epsilon >= _LEVEL_EPSILON
    and epsilon * num_users >= _LEVEL_USERS
    and num_users <= user_levels.MAX_USERS
    and num_items <= user_levels.MAX_ITEMS
  )
  return 'power_mf', {
    'relation': 'add_remove',
    'rank': rank,
    'rounds': rounds,
    'number_share': number_share,
    'level_share': _LEVEL_SHARE if levels else 0.0,
  }
