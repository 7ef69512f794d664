"""What DP-PMF, PDP-PMF and DPMF compute: the scale of their noise.

These are formulas from the papers. What PDP-PMF samples by is right, and in
`personalized`.
"""

from __future__ import annotations

import math
from typing import Literal

from dpmf_jax.accounting.events import (
  checked_count,
  checked_number,
  checked_positive,
)
from dpmf_jax.types import Relation


def claimed_objective_scale(
  objective: Literal['zhang', 'hua'],
  epsilon: float,
  *,
  relation: Relation,
  scale: tuple[float, float],
) -> float:
  """The scale b of the noise eta_j in an objective, density ~ exp(-||eta||/b).

  Args:
    objective: 'zhang' has 1/2 in front of the squares and b = Delta/epsilon;
      'hua' has no 1/2 and b = 2 Delta/epsilon.
    epsilon: what the paper claims of the minimiser; t after PDP's sampling.
    relation: 'replace' has Delta = r_max - r_min. 'add_remove' has Delta =
      r_max, as a rating that is not there counts as 0; 'zhang' only.
    scale: (r_min, r_max), the smallest and the largest rating.

  Reference: Zhang et al. (2019), Theorem 4 and the remark on Theorem 6; Hua,
  Xia and Zhong (2015), scenario 1.

  Privacy: a claim about an exact minimiser with public user factors, which the
  papers do not compute. Nor does 'add_remove' hold for that one: a rating that
  goes changes the quadratic term, too.
  """
  if objective not in ('zhang', 'hua'):
    raise ValueError(f"objective must be 'zhang' or 'hua', got {objective!r}")
  if relation not in ('replace', 'add_remove'):
    raise ValueError(
      f"relation must be 'replace' or 'add_remove', got {relation!r}"
    )
  if objective == 'hua' and relation != 'replace':
    raise ValueError(
      f"relation must be 'replace' for objective 'hua', got {relation!r}"
    )
  low, high = (checked_number('scale', bound) for bound in scale)
  if not low < high:
    raise ValueError(f'scale must be r_min < r_max, got {scale!r}')
  if relation == 'add_remove' and low < 0:
    raise ValueError(
      f'scale must not go below 0 for add_remove, got {scale!r}: r_max would '
      'not bound what one rating can change'
    )
  sensitivity = high if relation == 'add_remove' else high - low
  factor = 2 if objective == 'hua' else 1
  return factor * sensitivity / checked_positive('epsilon', epsilon)


def claimed_hua_share_scale(
  *, rating_range: float, rank: int, epsilon: float
) -> float:
  """The scale 2 tau sqrt(D) / epsilon in front of a user's share of noise.

  The share of user s is that times sqrt(2 H) C, with H ~ Exp(1) drawn by the
  recommender for the item and C ~ N(0, 1/k), so that k shares have a Laplace
  sum per coordinate.

  Reference: Hua, Xia and Zhong (2015), scenario 2.

  Privacy: not against the recommender, who knows H and for whom the noise is
  Gaussian of known size. `mechanisms.shares` has shares without that flaw.
  """
  width = checked_positive('rating_range', rating_range)
  rank = checked_count('rank', rank, 1)
  return 2 * width * math.sqrt(rank) / checked_positive('epsilon', epsilon)
