"""How many factors to learn under user-level noise, by public facts."""

from __future__ import annotations

import math

# Below this, vectors cost the items' means more than they bring. Between the
# two ways MovieLens-100K has 25 to 35, MovieLens-1M 30 to 45.
_VECTORS_FROM = 33.0
_EACH = 40.0
MOST_RANK = 8


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
  return int(min(max(round(strength / _EACH), 2), MOST_RANK))
