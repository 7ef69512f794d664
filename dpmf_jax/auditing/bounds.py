"""Lower bounds on epsilon from how often an event occurs on two data sets.

An event E of the output is chosen on one set of runs and counted on another.
With confidence 1 - significance, and P, P' its probabilities on neighbours:

  P(E) <= e^epsilon P'(E) + delta  for every (epsilon, delta) that holds, so
  epsilon >= log((lower(P) - delta) / upper(P'))       no assumption
  mu >= Phi^-1(lower(P)) - Phi^-1(upper(P'))            if mu-GDP is claimed

with exact binomial (Clopper-Pearson) limits. The second refutes a claim that
is about a Gaussian trade-off curve; it is an estimate for any other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.special
from jax_privacy import auditing

_GRID = 400


class Event(NamedTuple):
  """A set of outputs: those whose score is on one side of a threshold."""

  threshold: float
  above: bool  # score > threshold, else score <= threshold
  likely: int  # the data set, 0 or 1, on which it is to be more probable

  def occurs(self, scores: np.ndarray) -> np.ndarray:
    return (scores > self.threshold) == self.above


class Limits(NamedTuple):
  """Confidence limits: of P on the likely side, of P' on the other."""

  lower: np.ndarray
  upper: np.ndarray


def binomial_lower(successes, runs, significance: float) -> np.ndarray:
  """Clopper-Pearson lower limit of a probability, one-sided."""
  successes = np.asarray(successes, np.float64)
  runs = np.asarray(runs, np.float64)
  with np.errstate(invalid='ignore'):
    limit = scipy.special.betaincinv(
      successes, runs - successes + 1, significance
    )
  return np.where(successes > 0, limit, 0.0)


def binomial_upper(successes, runs, significance: float) -> np.ndarray:
  """Clopper-Pearson upper limit of a probability, one-sided."""
  return 1.0 - binomial_lower(np.subtract(runs, successes), runs, significance)


def epsilon_bound(limits: Limits, delta: float) -> np.ndarray:
  """The largest epsilon that `limits` refute at `delta`, at least 0."""
  with np.errstate(divide='ignore', invalid='ignore'):
    bound = np.log(limits.lower - delta) - np.log(limits.upper)
  return np.where(limits.lower > delta, np.maximum(bound, 0.0), 0.0)


def mu_bound(limits: Limits) -> np.ndarray:
  """The largest mu of Gaussian DP that `limits` refute, at least 0."""
  with np.errstate(invalid='ignore'):
    mu = scipy.special.ndtri(limits.lower) - scipy.special.ndtri(limits.upper)
  return np.where(limits.lower > limits.upper, mu, 0.0)


def limits_of(
  event: Event, scores: tuple[np.ndarray, np.ndarray], significance: float
) -> Limits:
  """The limits of `event`, both true with probability 1 - significance."""
  counts = [event.occurs(s).sum() for s in scores]
  return _limits(counts, scores, event.likely, significance)


def _limits(counts, scores, likely: int, significance: float) -> Limits:
  other = 1 - likely
  return Limits(
    binomial_lower(counts[likely], scores[likely].size, significance / 2),
    binomial_upper(counts[other], scores[other].size, significance / 2),
  )


def best_event(
  scores: tuple[np.ndarray, np.ndarray],
  significance: float,
  delta: float | None,
) -> Event:
  """The event whose bound on these scores is largest; for other runs.

  Args:
    scores: of the runs on either data set.
    significance: as it will be evaluated with.
    delta: of the bound on epsilon; None for the bound on mu.
  """
  pooled = np.concatenate(scores)
  # Quantiles that reach into both tails, where rare but telling events are.
  tail = np.geomspace(1 / pooled.size, 0.5, _GRID // 2)
  levels = np.concatenate([tail, 1 - tail])
  thresholds = np.unique(np.quantile(pooled, levels, method='lower'))
  below = [np.searchsorted(np.sort(s), thresholds, 'right') for s in scores]
  best, found = -1.0, Event(float(thresholds[0]), True, 1)
  for above in (True, False):
    counts = [
      s.size - b if above else b for s, b in zip(scores, below, strict=True)
    ]
    for likely in (0, 1):
      limits = _limits(counts, scores, likely, significance)
      bound = (
        mu_bound(limits) if delta is None else epsilon_bound(limits, delta)
      )
      place = int(np.argmax(bound))
      if bound[place] > best:
        best = float(bound[place])
        found = Event(float(thresholds[place]), above, likely)
  return found


def gaussian_epsilon(
  event: Event,
  scores: tuple[np.ndarray, np.ndarray],
  significance: float,
  delta: float,
) -> float:
  """The epsilon at `delta` of the largest mu that the event refutes.

  Through `jax_privacy.auditing.CanaryScoreAuditor`, with care: version 2.0.0
  takes the absolute value of a mu that comes from two upper limits, and so
  reports epsilons above 5 for scores that are pure noise. A mu is asked for
  only where the limits are apart, so that its sign is known. It divides the
  significance by three, for the two trivial thresholds.
  """
  # The auditor's own correction is undone by nobody: it costs little.
  apart = limits_of(event, scores, significance / 3)
  if not apart.lower > apart.upper:
    return 0.0
  hits = [event.occurs(s).astype(np.int8) for s in scores]
  auditor = auditing.CanaryScoreAuditor(
    hits[event.likely], hits[1 - event.likely]
  )
  try:
    return float(auditor.epsilon_from_gdp(significance, delta))
  except ValueError:
    return 0.0  # its logarithms fail by rounding where mu is below 1e-3
