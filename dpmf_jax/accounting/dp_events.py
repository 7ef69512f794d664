"""Events as those of dp-accounting and back, for a second opinion.

  ours                  dp_accounting
  Gaussian              GaussianDpEvent
  Laplace               LaplaceDpEvent
  RandomizedResponse    RandomizedResponseDpEvent
  SubsampledGaussian    PoissonSampledDpEvent of a GaussianDpEvent, or
                        SampledWithoutReplacementDpEvent of one
  Composed              ComposedDpEvent; of nothing, NoOpDpEvent

`count` is a SelfComposedDpEvent there, but for responses, which are repeated in
a ComposedDpEvent: its PLD accountant forgets the count of these.

The noise multipliers of an event here are for the sensitivity under the
relation that it is about. Accountants there must not count that again: they are
to be made with `NeighboringRelation.ADD_OR_REMOVE_ONE`, which changes no noise,
also where values are replaced here. Responses and samples of fixed size need
REPLACE_ONE, so what mixes these with noise has no relation there.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpmf_jax.accounting.events import (
  Composed,
  DrawnEvent,
  Event,
  Gaussian,
  Laplace,
  ProvedEvent,
  RandomizedResponse,
  SubsampledGaussian,
  leaves,
)

if TYPE_CHECKING:
  from dp_accounting import DpEvent
else:
  DpEvent = Any

# Sizes of data sets in which a sample of fixed size is looked for.
_LARGEST_SIZE = 10**9


def to_dp_event(event: Event) -> DpEvent:
  """The event as one of dp-accounting.

  >>> to_dp_event(Gaussian(20.0, count=100))
  SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=20.0), count=100)
  >>> to_dp_event(exact_noise(Gaussian(20.0, uncovered=1e-10)))
  GaussianDpEvent(noise_multiplier=20.0)

  Raises:
    ValueError: for what has no counterpart there: claims, `Pure`, `L2Laplace`,
      `Either`, and noise whose ends cost a delta.
  """
  import dp_accounting  # here, as it is slow to import

  if isinstance(event, Composed):
    parts = [to_dp_event(part) for part in event.events]
    composed = dp_accounting.ComposedDpEvent(parts)
    return composed if parts else dp_accounting.NoOpDpEvent()
  leaves(event)  # raises for a claim, which is no part of a proof
  if isinstance(event, DrawnEvent) and event.uncovered:
    raise ValueError(
      f'event={event!r} has an uncovered delta, for which dp-accounting has no '
      'event: convert exact_noise(event) and ask for epsilon at '
      'delta_left(event, delta)'
    )
  one = _one_release(event)
  if event.count == 1:
    return one
  if isinstance(event, RandomizedResponse):
    return dp_accounting.ComposedDpEvent([one] * event.count)
  return dp_accounting.SelfComposedDpEvent(one, event.count)


def _one_release(event: Any) -> DpEvent:
  import dp_accounting

  if isinstance(event, Gaussian):
    return dp_accounting.GaussianDpEvent(event.noise_multiplier)
  if isinstance(event, Laplace):
    return dp_accounting.LaplaceDpEvent(event.noise_multiplier)
  if isinstance(event, RandomizedResponse):
    # The chance that a response is drawn evenly from all categories, rounded
    # down: near 1 the last digit is much of a small epsilon.
    even = event.categories / (math.expm1(event.epsilon) + event.categories)
    even *= 1 - 4e-16 if event.epsilon else 1
    return dp_accounting.RandomizedResponseDpEvent(even, event.categories)
  if isinstance(event, SubsampledGaussian):
    noise = dp_accounting.GaussianDpEvent(event.noise_multiplier)
    if event.sampling == 'poisson':
      return dp_accounting.PoissonSampledDpEvent(event.sampling_rate, noise)
    size, total = _sizes(event.sampling_rate)
    return dp_accounting.SampledWithoutReplacementDpEvent(total, size, noise)
  raise ValueError(
    f'event={event!r} has no counterpart in dp-accounting, which has Gaussian, '
    'Laplace, RandomizedResponse and SubsampledGaussian'
  )


def _sizes(rate: float) -> tuple[int, int]:
  """(sample, data set) of that rate, as floats divide."""
  for part in (Fraction(rate).limit_denominator(_LARGEST_SIZE), Fraction(rate)):
    if part.numerator / part.denominator == rate:
      break
  return part.numerator, part.denominator


def from_dp_event(event: DpEvent) -> Event:
  """An event of dp-accounting as ours; equal ones in a row are counted.

  Responses may have an epsilon that is a rounding error larger than the one
  that they were made for.

  >>> from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
  >>> from_dp_event(SelfComposedDpEvent(GaussianDpEvent(20.0), 100))
  Gaussian(noise_multiplier=20.0, count=100, uncovered=0.0)

  Raises:
    ValueError: for what has no counterpart here.
  """
  import dp_accounting

  if isinstance(event, dp_accounting.NoOpDpEvent):
    return Composed(())
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return _repeated(from_dp_event(event.event), event.count)
  if isinstance(event, dp_accounting.ComposedDpEvent):
    parts = [from_dp_event(part) for part in event.events]
    together = [
      _repeated(part, len(list(equal)))
      for part, equal in itertools.groupby(parts)
    ]
    alone = len(parts) > 1 == len(together)
    return together[0] if alone else Composed(tuple(together))
  if isinstance(event, dp_accounting.GaussianDpEvent):
    return Gaussian(event.noise_multiplier)
  if isinstance(event, dp_accounting.LaplaceDpEvent):
    return Laplace(event.noise_multiplier)
  if isinstance(event, dp_accounting.RandomizedResponseDpEvent):
    return _response(event.noise_parameter, event.num_buckets)
  sampled = getattr(event, 'event', None)
  if isinstance(sampled, dp_accounting.GaussianDpEvent):
    noise = sampled.noise_multiplier
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
      return SubsampledGaussian(noise, event.sampling_probability)
    if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
      rate = event.sample_size / event.source_dataset_size
      return SubsampledGaussian(noise, rate, 1, 'without_replacement')
  raise ValueError(f'event={event!r} of dp-accounting has no counterpart here')


def _response(even: float, categories: int) -> RandomizedResponse:
  """By the chance of an even draw; rounded up."""
  if not 0 < even <= 1:
    raise ValueError(
      f'noise_parameter={even!r} must be in (0, 1]: responses that never lie '
      'are not private'
    )
  epsilon = math.log1p(categories * (1 - even) / even)
  return RandomizedResponse(epsilon * (1 + 1e-15), 1, categories)


def _repeated(event: Event, times: int) -> Event:
  """What happened `times` times; order is nothing to an accountant."""
  if times == 1:
    return event
  if isinstance(event, Composed):
    return Composed(tuple(_repeated(part, times) for part in event.events))
  assert isinstance(event, ProvedEvent)
  return replace(event, count=event.count * times)
