"""The accountant: how private a mechanism is, without JAX.

  epsilon(guarantee, delta)   the epsilon of what a system ran and released
  delta(guarantee, epsilon)   the same curve read the other way
  calibrate_noise_multiplier(epsilon=..., delta=..., count=...)

Proved numbers are upper bounds, rounded up. What a paper says is computed by
functions called `claimed_*` from events called `Claimed*`, and the two are
never added up.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from dpmf_jax.accounting import gaussian, rdp
from dpmf_jax.accounting.claims import (
  claimed_gaussian_mf,
  claimed_gaussian_mf_delta,
  claimed_gaussian_mf_epsilon_per_step,
  claimed_gaussian_mf_noise_multiplier,
  claimed_gaussian_mf_order,
)
from dpmf_jax.accounting.events import (
  ClaimedGaussianMF,
  Composed,
  Event,
  Gaussian,
  after,
  checked_count,
  count_of,
  joint_noise_multiplier,
)
from dpmf_jax.accounting.sensitivity import (
  lattice_unit,
  rating_gradient_sensitivity,
  split_noise_multiplier,
)
from dpmf_jax.types import Guarantee

__all__ = [
  'ClaimedGaussianMF',
  'Composed',
  'Event',
  'Gaussian',
  'after',
  'calibrate_noise_multiplier',
  'claimed_gaussian_mf',
  'claimed_gaussian_mf_delta',
  'claimed_gaussian_mf_epsilon_per_step',
  'claimed_gaussian_mf_noise_multiplier',
  'claimed_gaussian_mf_order',
  'count_of',
  'delta',
  'epsilon',
  'gaussian',
  'gaussian_mu',
  'joint_noise_multiplier',
  'lattice_unit',
  'rating_gradient_sensitivity',
  'rdp',
  'split_noise_multiplier',
]

Accountable: TypeAlias = Guarantee | Event


def epsilon(guarantee_or_event: Accountable, delta: float) -> float:
  """The epsilon at `delta`: exact if proved, the paper's formula if claimed.

  Raises:
    ValueError: for a guarantee with status 'none', which has no epsilon.
  """
  event = _event_of(guarantee_or_event)
  # A new kind of event gets its branch here and in `delta`.
  if isinstance(event, ClaimedGaussianMF):
    return claimed_gaussian_mf(
      steps=event.count,
      epsilon_per_step=event.epsilon_per_step,
      delta_per_step=event.delta_per_step,
      delta=delta,
    )
  return gaussian.epsilon_of(gaussian_mu(event), delta)


def delta(guarantee_or_event: Accountable, epsilon: float) -> float:
  """The delta at `epsilon`: exact if proved, the paper's formula if claimed."""
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedGaussianMF):
    return claimed_gaussian_mf_delta(
      steps=event.count,
      epsilon_per_step=event.epsilon_per_step,
      delta_per_step=event.delta_per_step,
      epsilon=epsilon,
    )
  return gaussian.delta_of(gaussian_mu(event), epsilon)


def gaussian_mu(event: Event) -> float:
  """The mu for which a Gaussian event, or several composed, is mu-GDP."""
  if isinstance(event, Gaussian):
    return _up(math.sqrt(event.count) / event.noise_multiplier)
  if isinstance(event, Composed):
    return _up(gaussian.compose(gaussian_mu(part) for part in event.events))
  if isinstance(event, ClaimedGaussianMF):
    raise ValueError(
      f'event must be proved to be Gaussian, got {event!r}: a claim cannot be '
      'part of a proof'
    )
  raise ValueError(f'event must be an Event or a Guarantee, got {event!r}')


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


# `epsilon` and `delta` are also the names of arguments.
_epsilon = epsilon


def _event_of(guarantee_or_event: Accountable) -> Event:
  if not isinstance(guarantee_or_event, Guarantee):
    return guarantee_or_event
  event = guarantee_or_event.event
  if guarantee_or_event.status == 'none' or event is None:
    raise ValueError('not private: there is no epsilon')
  claimed = isinstance(event, ClaimedGaussianMF)
  if claimed != (guarantee_or_event.status == 'claimed'):
    raise ValueError(
      f'status must fit the event, got {guarantee_or_event.status!r} with '
      f'{event!r}'
    )
  return event


def _up(value: float) -> float:
  # Covers one square root and one division, or one hypot.
  return value * (1 + 2 * math.ulp(1.0))
