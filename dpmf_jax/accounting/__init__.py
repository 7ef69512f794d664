"""The accountant: how private a mechanism is, without JAX.

  epsilon(guarantee, delta)   the epsilon of what a system ran and released
  delta(guarantee, epsilon)   the same curve read the other way
  bounds(guarantee, delta)    every valid epsilon, by the rule it comes from
  calibrate(make, epsilon=..., delta=..., low=..., high=...)
  calibrate_noise_multiplier(epsilon=..., delta=..., count=...)
  drawn_gaussian(uncovered, epsilon=..., delta=..., count=...)

Proved numbers are upper bounds, rounded up. What a paper says is computed by
functions called `claimed_*` from events called `Claimed*`, and the two are
never added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from dpmf_jax.accounting import (
  composition,
  events,
  gaussian,
  pld,
  rdp,
  response,
)
from dpmf_jax.accounting.calibration import calibrate_by, calibrate_to
from dpmf_jax.accounting.claims import (
  claimed_delta,
  claimed_epsilon,
  claimed_gaussian_mf,
  claimed_gaussian_mf_delta,
  claimed_gaussian_mf_epsilon_per_step,
  claimed_gaussian_mf_noise_multiplier,
  claimed_gaussian_mf_order,
)
from dpmf_jax.accounting.claims_pdp import (
  claimed_hua_share_scale,
  claimed_objective_scale,
  claimed_pdp_probabilities,
  claimed_pdp_threshold,
)
from dpmf_jax.accounting.claims_sdcf import (
  claimed_sdcf_bound,
  claimed_sdcf_clipped_response,
  claimed_sdcf_epsilon_instant,
  claimed_sdcf_epsilon_permanent,
  claimed_sdcf_epsilon_value,
  claimed_sdcf_flip,
  claimed_sdcf_rates,
  claimed_sdcf_response,
  claimed_sdcf_unsolved,
)
from dpmf_jax.accounting.composition import curve_of, gaussian_mu
from dpmf_jax.accounting.events import (
  ClaimedEvent,
  ClaimedGaussianMF,
  ClaimedPure,
  Composed,
  Event,
  Gaussian,
  L2Laplace,
  Laplace,
  Pure,
  RandomizedResponse,
  SubsampledGaussian,
  after,
  checked_count,
  checked_multiplier,
  count_of,
  delta_left,
  joint_noise_multiplier,
  leaves,
)
from dpmf_jax.accounting.local import (
  local_gaussian,
  local_langevin,
  share_shape,
  share_variance,
)
from dpmf_jax.accounting.personalized import (
  gaussian_weights,
  laplace_weights,
  personal_threshold,
  proved_sdcf_bits,
  record_epsilons,
  sampled_epsilon,
)
from dpmf_jax.accounting.sensitivity import (
  lattice_unit,
  rating_gradient_sensitivity,
  split_noise_multiplier,
)
from dpmf_jax.accounting.shares import share_loss
from dpmf_jax.types import Guarantee

__all__ = [
  'ClaimedEvent',
  'ClaimedGaussianMF',
  'ClaimedPure',
  'Composed',
  'Event',
  'Gaussian',
  'L2Laplace',
  'Laplace',
  'Pure',
  'RandomizedResponse',
  'SubsampledGaussian',
  'after',
  'bounds',
  'calibrate',
  'calibrate_noise_multiplier',
  'claimed_gaussian_mf',
  'claimed_gaussian_mf_delta',
  'claimed_gaussian_mf_epsilon_per_step',
  'claimed_gaussian_mf_noise_multiplier',
  'claimed_gaussian_mf_order',
  'claimed_hua_share_scale',
  'claimed_objective_scale',
  'claimed_pdp_probabilities',
  'claimed_pdp_threshold',
  'claimed_sdcf_bound',
  'claimed_sdcf_clipped_response',
  'claimed_sdcf_epsilon_instant',
  'claimed_sdcf_epsilon_permanent',
  'claimed_sdcf_epsilon_value',
  'claimed_sdcf_flip',
  'claimed_sdcf_rates',
  'claimed_sdcf_response',
  'claimed_sdcf_unsolved',
  'count_of',
  'curve_of',
  'delta',
  'delta_left',
  'drawn_gaussian',
  'epsilon',
  'gaussian',
  'gaussian_mu',
  'gaussian_weights',
  'joint_noise_multiplier',
  'laplace_weights',
  'lattice_unit',
  'local_gaussian',
  'local_langevin',
  'personal_threshold',
  'pld',
  'proved_sdcf_bits',
  'rating_gradient_sensitivity',
  'rdp',
  'record_epsilons',
  'response',
  'sampled_epsilon',
  'share_loss',
  'share_shape',
  'share_variance',
  'split_noise_multiplier',
  'uncovered',
]

Accountable: TypeAlias = Guarantee | Event


def epsilon(guarantee_or_event: Accountable, delta: float) -> float:
  """The epsilon at `delta`: proved and rounded up, or the paper's formula.

  Exact for Gaussian releases, for a single Laplace release and for binary
  randomized responses of one epsilon; for anything else the smallest of the
  valid `bounds`. Pure events may be asked for delta = 0.

  Raises:
    ValueError: for a guarantee with status 'none', which has no epsilon, and
      for a delta below what the ends of the noise leave `uncovered`.
  """
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return claimed_epsilon(event, delta)
  return min(composition.epsilon_bounds(event, delta).values())


def delta(guarantee_or_event: Accountable, epsilon: float) -> float:
  """The delta at `epsilon`: proved and rounded up, or the paper's formula."""
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return claimed_delta(event, epsilon)
  return min(composition.delta_bounds(event, epsilon).values())


def bounds(guarantee_or_event: Accountable, delta: float) -> dict[str, float]:
  """Every valid epsilon at `delta`, by rule; `epsilon` is the smallest.

  The rules are those of `accounting.composition`, and 'claimed' for a claim.
  """
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return {'claimed': epsilon(event, delta)}
  return composition.epsilon_bounds(event, delta)


def uncovered(guarantee_or_event: Accountable) -> float:
  """The least delta at which an epsilon is stated; 0 for a claim or nothing."""
  event = guarantee_or_event
  if isinstance(event, Guarantee):
    event = event.event if event.status == 'proved' else None
  if event is None or isinstance(event, ClaimedEvent):
    return 0.0
  return events.uncovered(event)


def calibrate(
  make: Callable[[float], Event],
  *,
  epsilon: float,
  delta: float,
  low: float,
  high: float,
  integer: bool = False,
) -> float:
  """The parameter for which `make(parameter)` spends `epsilon`, never more.

    calibrate(lambda noise: Gaussian(noise, 100), epsilon=1.0, delta=1e-6,
              low=0.1, high=1e4)
    calibrate(lambda steps: Laplace(50.0, int(steps)), epsilon=1.0, delta=1e-6,
              low=1, high=10**6, integer=True)

  It lies within 1e-6 (relative) of a parameter that spends more, or next to
  one if `integer`; `epsilon(make(result), delta)` is at most the target.

  Raises:
    ValueError: if all of [low, high] holds the target, or none of it.
  """
  at = calibrate_to(lambda value, delta: _epsilon(make(value), delta), delta)
  return calibrate_by(at, epsilon=epsilon, low=low, high=high, integer=integer)


def calibrate_noise_multiplier(
  *, epsilon: float, delta: float, count: int = 1
) -> float:
  """The smallest noise multiplier of `count` Gaussian releases, rounded up.

  `epsilon(Gaussian(result, count), delta)` is at most the target as computed,
  not only up to rounding. If the noise is then drawn in single precision, its
  standard deviation must be rounded up there too.
  """
  if checked_count('count', count) == 0:
    raise ValueError('count must be >= 1, got 0: there is nothing to noise')
  multiplier = math.sqrt(count) / gaussian.mu_of(epsilon, delta)
  step = math.ulp(1.0)
  while _epsilon(Gaussian(multiplier, count), delta) > epsilon:
    multiplier *= 1 + step
    step *= 2
  return multiplier


def drawn_gaussian(
  uncovered: Callable[[float], float],
  *,
  delta: float,
  count: int = 1,
  epsilon: float | None = None,
  noise_multiplier: float | None = None,
) -> Gaussian:
  """`count` Gaussian releases of noise that ends, at one of two targets.

  Args:
    uncovered: noise multiplier -> what the ends of all the noise cost, in
      delta; never more for more noise.
    delta: of the guarantee; the ends may cost up to a hundredth of it.
    count: of releases.
    epsilon: of the guarantee, with all that delta has to pay for.
    noise_multiplier: instead of `epsilon`.

  Privacy: the noise is that for `epsilon` at delta less the cost of the ends
  of a little less noise, so `epsilon(result, delta)` is at most the target.

  Raises:
    ValueError: for so little noise that its ends cost more than that.
  """
  multiplier = noise_multiplier
  if epsilon is not None:
    multiplier = calibrate_noise_multiplier(
      epsilon=epsilon, delta=delta, count=count
    )
  if multiplier is None:
    raise ValueError('one of epsilon and noise_multiplier must be given')
  lost = uncovered(checked_multiplier(multiplier))
  if lost > delta / 100:
    raise ValueError(
      f'delta={delta!r} is too small, or the noise too little, for float32: '
      f'its tails end with a chance of {lost:.2g}, and at most a hundredth of '
      'delta pays for that; use a smaller epsilon or a larger delta'
    )
  event = Gaussian(multiplier, count, lost)
  if epsilon is None:
    return event
  more = calibrate_noise_multiplier(
    epsilon=epsilon, delta=delta_left(event, delta), count=count
  )
  return Gaussian(max(multiplier, more), count, lost)


# `epsilon` and `delta` are also the names of arguments.
_epsilon = epsilon


def _event_of(guarantee_or_event: Accountable) -> Event:
  if not isinstance(guarantee_or_event, Guarantee):
    return guarantee_or_event
  event = guarantee_or_event.event
  if guarantee_or_event.status == 'none' or event is None:
    raise ValueError('not private: there is no epsilon')
  claimed = isinstance(event, ClaimedEvent)
  if claimed != (guarantee_or_event.status == 'claimed'):
    raise ValueError(
      f'status must fit the event, got {guarantee_or_event.status!r} with '
      f'{event!r}'
    )
  if not claimed:
    _check_relation(event, guarantee_or_event.relation)
  return event


def _check_relation(event: Event, relation: str) -> None:
  for part in leaves(event):
    if not isinstance(part, SubsampledGaussian):
      continue
    needed = 'add_remove' if part.sampling == 'poisson' else 'replace'
    if relation != needed:
      raise ValueError(
        f'relation must be {needed!r} for {part.sampling} sampling, got '
        f'{relation!r}'
      )
