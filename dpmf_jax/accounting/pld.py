"""Privacy loss distributions of mixed events, by way of dp-accounting.

The privacy loss of each release is put on a grid of losses so that the result
dominates the true one, and releases compose by convolution. Grid and tails are
pessimistic: the epsilon is an upper bound, too high by a discretisation that
`grid_of` keeps near 1e-4 of the result.

dp-accounting does this in double precision by Fourier transforms, and does not
account for their rounding. So a margin is taken off delta first, and below
`smallest_delta` no number is given at all.

Not used: its accountants. They ignore `count` for randomized response, and the
factor 2 of replace-one for Gaussians (both pinned in the tests).

Reference: Koskela, Jalko and Honkela (2020); Doroshenko, Ghazi, Kamath, Kumar
and Manurangsi (2022).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dpmf_jax.accounting.events import (
  Gaussian,
  Laplace,
  ProvedEvent,
  PureEvent,
  RandomizedResponse,
  SubsampledGaussian,
  pure_epsilon,
)

if TYPE_CHECKING:
  from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
  )

  Distribution: TypeAlias = PrivacyLossDistribution

# What rounding may do to delta: once, per composed release, and relative to it
# per release. Measured against exact curves, up to 10^5 releases: 1e-15, 4e-17
# and 2e-14, so that some deltas came out negative.
_MARGIN, _MARGIN_PER_RELEASE, _RELATIVE = 1e-13, 1e-15, 1e-13
# Much finer grids than 1e-6 would have differences of rounding errors on them.
_FINEST, _COARSEST = 1e-6, 0.1


def margin_of(events: tuple[ProvedEvent, ...]) -> tuple[float, float]:
  """What a delta may be off by rounding: (at any delta, relative to it)."""
  count = sum(event.count for event in events)
  return _MARGIN + _MARGIN_PER_RELEASE * count, _RELATIVE * (10 + count)


def smallest_delta(events: tuple[ProvedEvent, ...]) -> float:
  """The delta below which these distributions are not used."""
  return 100 * margin_of(events)[0]


def grid_of(events: tuple[ProvedEvent, ...], epsilon: float) -> float:
  """The distance of the losses on the grid, for results around `epsilon`.

  Rounding one loss adds at most a grid step to it but is right on average, so
  k releases are off by some sqrt(k) steps.
  """
  count = sum(event.count for event in events)
  grid = epsilon / max(20_000, 100 * math.sqrt(count))
  return min(max(grid, _FINEST), _COARSEST)


@lru_cache(maxsize=8)
def distribution(events: tuple[ProvedEvent, ...], grid: float) -> Distribution:
  """The privacy loss distribution of all the events together.

  Raises:
    ValueError: for sampling without replacement, which has none here.
  """
  from dp_accounting.pld import privacy_loss_distribution as library

  composed = library.identity(value_discretization_interval=grid)
  mu = math.hypot(
    *(
      math.sqrt(event.count) / event.noise_multiplier
      for event in events
      if isinstance(event, Gaussian)
    )
  )
  if mu > 0:  # exactly one Gaussian, whatever their number
    composed = composed.compose(
      library.from_gaussian_mechanism(
        (1 - 1e-15) / mu, value_discretization_interval=grid
      )
    )
  for event in events:
    if not isinstance(event, Gaussian):
      one = _one_release(library, event, grid)
      # The library's tails go by the number of compositions, at 1e-15 in all.
      many = one.self_compose(event.count) if event.count > 1 else one
      composed = composed.compose(many)
  return composed


def epsilon_of(
  events: tuple[ProvedEvent, ...], delta: float, grid: float
) -> float:
  """The epsilon at `delta`, rounded up; inf below `smallest_delta`."""
  if delta < smallest_delta(events):
    return math.inf
  loss = distribution(events, grid)
  margin, relative = margin_of(events)
  target = (delta - margin) / (1 + relative)
  epsilon = float(loss.get_epsilon_for_delta(target))
  # The library's inverse is off by rounding, to either side.
  step = math.ulp(1.0 + epsilon)
  while (
    math.isfinite(epsilon)
    and float(np.max(loss.get_delta_for_epsilon(epsilon))) > target
  ):
    epsilon, step = epsilon + step, 2 * step
  return epsilon


def delta_of(
  events: tuple[ProvedEvent, ...], epsilon: float, grid: float
) -> float:
  """The delta at `epsilon`, rounded up; 1 where it is below smallest_delta."""
  loss = distribution(events, grid)
  margin, relative = margin_of(events)
  delta = float(np.max(loss.get_delta_for_epsilon(epsilon)))
  delta = delta * (1 + relative) + margin
  return min(delta, 1.0) if delta >= smallest_delta(events) else 1.0


def _one_release(library, event: ProvedEvent, grid: float) -> Distribution:
  if isinstance(event, SubsampledGaussian):
    if event.sampling != 'poisson':
      raise ValueError(
        f"sampling must be 'poisson' for a loss distribution, got {event!r}"
      )
    return library.from_gaussian_mechanism(
      event.noise_multiplier,
      sampling_prob=event.sampling_rate,
      value_discretization_interval=grid,
    )
  if isinstance(event, Laplace):
    return library.from_laplace_mechanism(
      event.noise_multiplier, value_discretization_interval=grid
    )
  assert isinstance(event, PureEvent)
  # Every other pure event: three losses at most, eps, 0 and -eps.
  epsilon, categories = pure_epsilon(event), 2
  if isinstance(event, RandomizedResponse):
    categories = event.categories
  return library.PrivacyLossDistribution.create_from_rounded_probability(
    _rounded_response(epsilon, categories, grid), 0.0, grid
  )


def _rounded_response(
  epsilon: float, categories: int, grid: float
) -> dict[int, float]:
  """Loss (in grid steps) -> probability of it, rounded to the safe side.

  The loss eps is split over the two grid points next to it so that both its
  probability and e^-eps times that, the probability under the neighbour, are
  kept; that dominates and does not drift (Doroshenko et al. (2022)).
  """
  keep = 1 / (1 + (categories - 1) * math.exp(-epsilon))
  other = keep * math.exp(-epsilon)
  masses: dict[int, float] = {}
  for loss, mass in ((epsilon, keep), (-epsilon, other)):
    below = math.floor(loss / grid)
    # mass (1, e^-loss) = low (1, e^-below) + high (1, e^-above).
    share = -math.expm1(below * grid - loss) / -math.expm1(-grid)
    share = min(max(share, 0.0), 1.0)
    for point, part in ((below, 1 - share), (below + 1, share)):
      masses[point] = masses.get(point, 0.0) + mass * part
  if categories > 2:
    masses[0] = masses.get(0, 0.0) + (categories - 2) * other
  return {point: mass for point, mass in masses.items() if mass > 0}
