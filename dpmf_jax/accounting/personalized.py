"""Proved forms of personal privacy: weights and sampling.

Every record has its own epsilon. The specification of who wants which epsilon
must be public, or set by a rule that does not look at the data.

Weights: a statistic sum_ij w_ij x_ij with noise for the largest epsilon. A
record moves it by at most w_ij times the sensitivity, so that for that record
the noise multiplier is larger by 1/w_ij.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dpmf_jax.accounting.events import checked_epsilon, checked_positive

_NOISE = 0.3  # c of `personal_threshold`


def laplace_weights(epsilons: ArrayLike, largest: float) -> np.ndarray:
  """eps_ij / eps_max, the weights for Laplace and L2-Laplace noise.

  `largest` is the epsilon that the noise is made for; records that would allow
  more have weight 1. Rounded down.

  >>> laplace_weights([0.1, 0.5, 2.0], 1.0).round(3).tolist()
  [0.1, 0.5, 1.0]

  Privacy: (w Delta)/b = w eps_max = eps_ij, for one release. Over several,
  weights multiply every one of them, and a record's pure epsilon with them.
  """
  largest = checked_positive('largest', largest)
  return np.minimum(_checked_epsilons(epsilons) / largest * (1 - 4e-16), 1.0)


def pdp_probabilities(
  epsilons: ArrayLike, threshold: Literal['mean', 'max'] | float
) -> np.ndarray:
  """pi(eps_ij, t), the chance of each record to be used at all.

  It is (e^eps_ij - 1)/(e^t - 1) where t > eps_ij, and 1 elsewhere; t is
  `threshold`, or the mean or the largest of `epsilons`.

  >>> chances = pdp_probabilities([0.1, 0.5, 1.0], 'max')
  >>> chances.round(3).tolist()
  [0.061, 0.378, 1.0]
  >>> sampled_epsilon(chances, 1.0).round(3).tolist()
  [0.1, 0.5, 1.0]

  Reference: Zhang et al. (2019), Definition 5 and Algorithm 1, line 5, after
  Jorgensen, Yu and Cormode (2015).

  Privacy: a record that is used with that chance has its own epsilon, where
  what runs on the sample is t-DP for add/remove; see `sampled_epsilon`. What
  the paper runs on it is not. t is public, so a mean over the records that
  exist would leak them: `epsilons` must be those of all records there may be.
  """
  epsilons = _checked_epsilons(epsilons)
  t = _threshold(epsilons, threshold)
  # Divided by e^t, above and below: nothing overflows.
  below = np.minimum(epsilons, t)
  return np.exp(below - t) * np.expm1(-below) / math.expm1(-t)


def sampled_epsilon(probabilities: ArrayLike, epsilon: float) -> np.ndarray:
  """log(1 + pi (e^t - 1)): a record's epsilon if it is used with chance pi.

  `epsilon` is t, of one pure mechanism that runs on the sample. Rounded up.

  >>> sampled_epsilon([0.0, 0.1, 1.0], 1.0).round(3).tolist()
  [0.0, 0.159, 1.0]

  Reference: Jorgensen, Yu and Cormode (2015), Theorem 1; Zhang et al. (2019),
  Theorem 6.

  Privacy: only for add/remove. With the record, the output is a mixture of
  what it is with it (chance pi) and without, and those two are within e^t;
  without it, it is the second. So the ratio is at most 1 + pi (e^t - 1), and
  at least 1 - pi (1 - e^-t), which is nearer to 1 in log. The mechanism has to
  be t-DP for add/remove on every sample: one for replaced values will not do.
  The sample must stay secret.
  """
  t = checked_epsilon(epsilon)
  chance = np.asarray(probabilities, np.float64)
  if not np.all((chance >= 0) & (chance <= 1)):
    raise ValueError('probabilities must be in [0, 1]')
  if t < 30:
    amplified = np.log1p(chance * math.expm1(t))
  else:
    with np.errstate(divide='ignore'):
      log_chance = np.log(chance)
    amplified = np.logaddexp(
      np.log1p(-np.minimum(chance, 1 - 1e-16)), log_chance + t
    )
    # The sum of a large and a small logarithm cancels.
    amplified = amplified + 1e-15 * np.where(chance > 0, t - log_chance, 0.0)
  return np.minimum(amplified * (1 + 1e-15), t)


def personal_threshold(
  epsilons: ArrayLike,
  rule: Literal['mean', 'max', 'best'] | float,
  shares: np.ndarray | None = None,
  *,
  method: Literal['weights', 'sampling'],
) -> float:
  """t, the epsilon that noise is made for: by a rule, or the number itself.

  Args:
    epsilons: what may be asked for, whether or not anybody who asks for it has
      ratings.
    rule: 'mean' and 'max' of `epsilons`; 'best', see below; or t.
    shares: how often each is asked for; all alike if None.
    method: what gives records less than t.

  'best' is the t at which the mean of some ratings is nearest to the truth on
  average. Let u be what is used of a rating: 0 or 1 if sampled, or its weight.
  Of n ratings with variance s^2, the spread leaves a variance of
  s^2 E[u^2] / (n E[u]^2), and noise with a variance of v at epsilon 1 leaves
  v / (n t E[u])^2. A larger t is less noise, but uses less of the ratings. The
  sum of both is smallest where

      E[u^2] / E[u]^2 + c / (t E[u])^2,  c = v / (n s^2),

  is. v is 3 (1 + L^2) for L2-Laplace noise on a count and a sum of labels up to
  L. On a scale of 1..5 (L = 2) it is 15. With s = 1 and n = 50, an item that a
  few have rated, c = 0.3. These are fixed: no item is looked at. Where noise is
  all that matters (small epsilons) 'best' has the largest t E[u], signal over
  noise. With weights that is E[min(epsilon, t)], and t the largest epsilon.

  >>> personal_threshold([0.1, 0.5, 1.0], 'mean', method='weights')
  0.5333333333333333
  >>> round(personal_threshold([0.1, 0.5, 1.0], 'best', method='weights'), 3)
  1.0

  Privacy: t is public, so `epsilons` and `shares` must be: a rule for all cells
  or a list of users, not what the rated cells have.
  """
  if rule != 'best':
    return _threshold(epsilons, rule, shares)
  epsilons = _checked_epsilons(epsilons)
  largest = epsilons.max()

  def error(t: float) -> float:
    if method == 'weights':
      used = laplace_weights(epsilons, t)
      square = np.average(used**2, weights=shares)
    else:
      used = pdp_probabilities(epsilons, t)
      square = np.average(used, weights=shares)
    mean = np.average(used, weights=shares)
    return float((square + _NOISE / t**2) / mean**2)

  # Below the least, all is used and more t is less noise; above the largest,
  # less is used and t E[u] does not grow.
  grid = np.geomspace(epsilons.min(), largest, 501).clip(max=largest)
  return min(reversed(grid.tolist()), key=error)


def _threshold(
  epsilons: ArrayLike, rule: str | float, shares: np.ndarray | None = None
) -> float:
  """The mean or the largest of `epsilons`, or the number that `rule` is."""
  epsilons = _checked_epsilons(epsilons)
  if rule == 'mean':
    return float(np.average(epsilons, weights=shares))
  if rule == 'max':
    return float(epsilons.max())
  if isinstance(rule, str):
    raise ValueError(
      f"threshold must be 'mean', 'max' or a number, got {rule!r}"
    )
  return checked_positive('threshold', rule)


def _checked_epsilons(epsilons: ArrayLike) -> np.ndarray:
  """`epsilons` in float64, or an error if one is not positive and finite."""
  epsilons = np.asarray(epsilons, np.float64)
  if epsilons.size == 0:
    raise ValueError('epsilons must not be empty')
  if not np.all((epsilons > 0) & np.isfinite(epsilons)):
    raise ValueError(
      f'epsilons must be > 0 and finite, got {float(epsilons.min())!r}'
    )
  return epsilons
