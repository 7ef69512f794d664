"""Proved forms of personal privacy: weights, sampling, and permanent bits.

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

from dpmf_jax.accounting import composition, gaussian
from dpmf_jax.accounting.claims_pdp import (
  claimed_pdp_probabilities,
  claimed_pdp_threshold,
)
from dpmf_jax.accounting.claims_sdcf import (
  claimed_sdcf_epsilon_permanent,
)
from dpmf_jax.accounting.events import (
  Composed,
  Event,
  Gaussian,
  L2Laplace,
  Laplace,
  Pure,
  checked_count,
  checked_epsilon,
)

_NOISE = 0.3  # c of `personal_threshold`


def laplace_weights(
  epsilons: ArrayLike, largest: float | None = None
) -> np.ndarray:
  """eps_ij / eps_max, the weights for Laplace and L2-Laplace noise.

  `largest` is the epsilon that the noise is made for, by default the largest
  of `epsilons`; records that would allow more have weight 1. Rounded down.

  Privacy: (w Delta)/b = w eps_max = eps_ij, for one release. Over several,
  weights multiply every one of them, and a record's pure epsilon with them.
  """
  epsilons, largest = _checked(epsilons, largest)
  return np.minimum(epsilons / largest * (1 - 4e-16), 1.0)


def gaussian_weights(
  epsilons: ArrayLike, delta: float, largest: float | None = None
) -> np.ndarray:
  """mu(eps_ij) / mu(eps_max) at one delta, the weights for Gaussian noise.

  Privacy: a record with weight w sees w mu-GDP, for any number of releases
  that are mu-GDP together, and mu(eps) is the largest that is (eps, delta)-DP.
  """
  epsilons, largest = _checked(epsilons, largest)
  top = gaussian.mu_of(largest, delta)
  values, where = np.unique(epsilons, return_inverse=True)
  mus = np.array([gaussian.mu_of(value, delta) for value in values])
  weights = np.minimum(mus / top * (1 - 4e-16), 1.0)
  return weights[where].reshape(epsilons.shape)


def record_epsilons(
  weights: ArrayLike, event: Event, delta: float
) -> np.ndarray:
  """The epsilon of each record at `delta` if weights are put on the data.

  `event` is what is run, with its multipliers for weight 1.

  Raises:
    ValueError: for events that are not additive noise on a weighted statistic.
  """
  weights = np.asarray(weights, np.float64)
  if not np.all((weights >= 0) & (weights <= 1)):
    raise ValueError('weights must be in [0, 1]')
  values, where = np.unique(weights, return_inverse=True)
  epsilons = np.array([_epsilon(value, event, delta) for value in values])
  return epsilons[where].reshape(weights.shape)


def sampled_epsilon(probabilities: ArrayLike, epsilon: float) -> np.ndarray:
  """log(1 + pi (e^t - 1)): a record's epsilon if it is used with chance pi.

  `epsilon` is t, of one pure mechanism that runs on the sample. Rounded up.

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

  Privacy: t is public, so `epsilons` and `shares` must be: a rule for all cells
  or a list of users, not what the rated cells have.
  """
  if rule != 'best':
    return claimed_pdp_threshold(epsilons, rule, shares)
  epsilons, largest = _checked(epsilons, None)

  def error(t: float) -> float:
    if method == 'weights':
      used = laplace_weights(epsilons, t)
      square = np.average(used**2, weights=shares)
    else:
      used = claimed_pdp_probabilities(epsilons, t)
      square = np.average(used, weights=shares)
    mean = np.average(used, weights=shares)
    return float((square + _NOISE / t**2) / mean**2)

  # Below the least, all is used and more t is less noise; above the largest,
  # less is used and t E[u] does not grow.
  grid = np.geomspace(epsilons.min(), largest, 501).clip(max=largest)
  return min(reversed(grid.tolist()), key=error)


def proved_sdcf_bits(
  *, flip: float, num_rated: int, num_changed: int | None = None
) -> Pure:
  """What the bits of an SDCF client reveal over any number of rounds.

  Args:
    flip: f of the permanent response.
    num_rated: h, the number of rated items; it must be public.
    num_changed: how many of the h rated items are others in a neighbour: h,
      the whole profile and the paper's unit, if None; 1 for one rating.

  Returns:
    A pure event. With num_changed = h it has the paper's eps_P.

  Privacy: B' is drawn once, each bit by a randomized response with
  ln((1 - f/2)/(f/2)), and two profiles with h ones that differ in n of them
  differ in 2 n bits. Which items are sent, in all rounds together, is drawn
  from B' and public numbers only, so it is post-processing. f, p and q depend
  on h: the proof is for profiles with the same h, or a public h in its place.
  It says nothing of the values sent along, which B' does not determine.
  """
  num_rated = checked_count('num_rated', num_rated)
  changed = num_rated
  if num_changed is not None:
    changed = checked_count('num_changed', num_changed)
  if not 0 <= changed <= num_rated:
    raise ValueError(
      f'num_changed must be in [0, num_rated = {num_rated}], got {changed!r}'
    )
  whole = float(claimed_sdcf_epsilon_permanent(flip, num_rated))
  return Pure(whole * changed / num_rated * (1 + 1e-15))


def _epsilon(weight: float, event: Event, delta: float) -> float:
  if weight == 0:
    return 0.0
  lighter = _lighter(float(weight), event)
  return min(composition.epsilon_bounds(lighter, delta).values())


def _lighter(weight: float, event: Event) -> Event:
  """The event as a record with that weight sees it."""
  if weight == 1:
    return event
  if isinstance(event, Composed):
    return Composed(tuple(_lighter(weight, part) for part in event.events))
  multiplier = getattr(event, 'noise_multiplier', 1.0) / weight
  # The division may have rounded up; less noise is the safe side.
  multiplier = min(multiplier * (1 - 4e-16), 1e100)
  if isinstance(event, Gaussian):
    return Gaussian(multiplier, event.count, event.uncovered)
  if isinstance(event, Laplace):
    return Laplace(multiplier, event.count)
  if isinstance(event, L2Laplace):
    return L2Laplace(multiplier, event.count, event.dimension, event.uncovered)
  raise ValueError(
    'event must be Gaussian, Laplace or L2Laplace for weights to scale it, '
    f'got {event!r}'
  )


def _checked(
  epsilons: ArrayLike, largest: float | None
) -> tuple[np.ndarray, float]:
  epsilons = np.asarray(epsilons, np.float64)
  if epsilons.size == 0 or not np.all((epsilons > 0) & np.isfinite(epsilons)):
    raise ValueError('epsilons must be > 0 and finite, and not empty')
  largest = float(epsilons.max()) if largest is None else largest
  if checked_epsilon(largest, 'largest') == 0:
    raise ValueError('largest must be > 0, got 0.0')
  return epsilons, largest
