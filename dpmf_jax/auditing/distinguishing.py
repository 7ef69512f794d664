"""The black-box audit: tell two neighbouring data sets apart by the output.

Half of the runs are for learning: a quarter fits the statistics, a quarter
chooses an event for each. The other half is counted, and only it enters the
bound, so that no choice made before can make it too large. Statistics share
the significance (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from dpmf_jax.auditing import bounds
from dpmf_jax.auditing.sampling import Sampler
from dpmf_jax.auditing.statistics import STATISTICS, Score

CONFIDENCE = 0.999
RUNS = 200_000  # on each data set, by default


class Bound(NamedTuple):
  """What one statistic proves.

  Attributes:
    statistic: its name.
    epsilon: at delta, whatever the mechanism is.
    gaussian: epsilon at delta if a Gaussian trade-off curve is claimed.
  """

  statistic: str
  epsilon: float
  gaussian: float


class Measurement(NamedTuple):
  """Lower bounds on epsilon that hold together with `confidence`."""

  bounds: tuple[Bound, ...]
  runs: int  # on each data set
  delta: float
  confidence: float

  @property
  def epsilon(self) -> float:
    return max(bound.epsilon for bound in self.bounds)

  @property
  def gaussian(self) -> float:
    return max(bound.gaussian for bound in self.bounds)


def measure(
  sampler: Sampler,
  key: jax.Array,
  *,
  delta: float,
  runs: int = RUNS,
  confidence: float = CONFIDENCE,
  progress: Callable[[int], object] = lambda runs: None,
) -> Measurement:
  """Lower bounds on the epsilon of what `sampler` runs.

  Args:
    sampler: the mechanism on two neighbours.
    key: of all runs; consumed.
    runs: on each of the two data sets; rounded up to whole batches.
    delta: for which epsilon is bounded.
    confidence: that all the bounds hold.
    progress: called with the number of runs just done.
  """
  if runs < 4 or not 0 <= delta < 1 or not 0.5 < confidence < 1:
    raise ValueError(
      f'runs={runs} must be at least 4, delta={delta} in [0, 1) and '
      f'confidence={confidence} in (0.5, 1)'
    )
  fit_key, choose_key, count_key = jax.random.split(key, 3)

  def outputs(key, runs, scores=None):
    """Outputs of either data set, or their scores [N, statistics]."""
    sides = []
    for side, side_key in enumerate(jax.random.split(key)):
      parts = []
      for number in range(-(-runs // sampler.batch)):
        keys = jax.random.split(
          jax.random.fold_in(side_key, number), sampler.batch
        )
        part = np.asarray(sampler.draw(keys, side))
        # A batch is whole; what is beyond `runs` is not counted.
        part = part[: runs - number * sampler.batch]
        if scores is not None:
          part = np.stack([score(part) for score in scores.values()], axis=1)
        parts.append(part)
        progress(len(part))
      sides.append(np.concatenate(parts))
    return sides

  quarter = max(1, runs // 4)
  first, second = outputs(fit_key, quarter)
  scores: dict[str, Score] = {
    name: fit(first, second, sampler.blocks) for name, fit in STATISTICS.items()
  }
  if sampler.log_ratio is not None:
    scores['likelihood_ratio'] = sampler.log_ratio
  # Each statistic has two bounds, each of them two binomial limits.
  share = (1 - confidence) / (2 * len(scores))
  choosing = outputs(choose_key, quarter, scores)
  counting = outputs(count_key, runs - 2 * quarter, scores)
  found = []
  for place, name in enumerate(scores):
    chosen = choosing[0][:, place], choosing[1][:, place]
    counted = counting[0][:, place], counting[1][:, place]
    event = bounds.best_event(chosen, share, delta)
    limits = bounds.limits_of(event, counted, share)
    gaussian = 0.0
    if delta > 0:
      middle = bounds.best_event(chosen, share, None)
      gaussian = bounds.gaussian_epsilon(middle, counted, share, delta)
    found.append(
      Bound(
        statistic=name,
        epsilon=float(bounds.epsilon_bound(limits, delta)),
        gaussian=gaussian,
      )
    )
  return Measurement(tuple(found), runs, delta, confidence)
