"""What PDP-PMF and DPMF compute: sampling, and the scale of their noise.

These are formulas from the papers. Sampling is proved only in front of a
mechanism that is private for add/remove (`personalized.sampled_epsilon`), and
the papers' own mechanism is not.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dpmf_jax.accounting.events import (
  checked_count,
  checked_number,
  checked_positive,
)
from dpmf_jax.types import Relation


def claimed_pdp_threshold(
  epsilons: ArrayLike,
  threshold: Literal['mean', 'max'] | float,
  shares: np.ndarray | None = None,
) -> float:
  """t of the sample mechanism: the mean or the largest eps_ij, or a number.

  The specification must be public: for all cells, or as a rule that does not
  look at the ratings. A mean over the rated cells only would leak them.
  `shares` say how often each of `epsilons` is asked for; all alike if None.
  `personal_threshold` has one rule more.
  """
  epsilons = checked_epsilons(epsilons)
  if threshold == 'mean':
    return float(np.average(epsilons, weights=shares))
  if threshold == 'max':
    return float(epsilons.max())
  if isinstance(threshold, str):
    raise ValueError(
      f"threshold must be 'mean', 'max' or a number, got {threshold!r}"
    )
  return checked_positive('threshold', threshold)


def claimed_pdp_probabilities(
  epsilons: ArrayLike, threshold: Literal['mean', 'max'] | float
) -> np.ndarray:
  """pi(eps_ij, t), the chance of each record to be used at all.

  It is (e^eps_ij - 1)/(e^t - 1) where t > eps_ij, and 1 elsewhere.

  Reference: Zhang et al. (2019), Definition 5 and Algorithm 1, line 5, after
  Jorgensen, Yu and Cormode (2015).
  """
  epsilons = checked_epsilons(epsilons)
  t = claimed_pdp_threshold(epsilons, threshold)
  # Divided by e^t, above and below: nothing overflows.
  below = np.minimum(epsilons, t)
  return np.exp(below - t) * np.expm1(-below) / math.expm1(-t)


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


def checked_epsilons(epsilons: ArrayLike) -> np.ndarray:
  """`epsilons` in float64, or an error if one is not positive and finite."""
  epsilons = np.asarray(epsilons, np.float64)
  if epsilons.size == 0:
    raise ValueError('epsilons must not be empty')
  if not np.all((epsilons > 0) & np.isfinite(epsilons)):
    raise ValueError(
      f'epsilons must be > 0 and finite, got {float(epsilons.min())!r}'
    )
  return epsilons
