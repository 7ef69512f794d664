"""What a guarantee, or an event, is worth: the epsilon and the delta of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np

from dpmf_jax.accounting import claims, composition, events, rdp
from dpmf_jax.accounting.arrays import elementwise
from dpmf_jax.accounting.events import (
  ClaimedEvent,
  Event,
  SubsampledGaussian,
  leaves,
)
from dpmf_jax.types import Guarantee

Accountable: TypeAlias = Guarantee | Event
Numbers: TypeAlias = Sequence[float] | np.ndarray


@overload
def epsilon(guarantee_or_event: Accountable, delta: float) -> float: ...
@overload
def epsilon(guarantee_or_event: Accountable, delta: Numbers) -> np.ndarray: ...
def epsilon(guarantee_or_event: Accountable, delta: Any) -> Any:
  """The epsilon at `delta`: proved and rounded up, or the paper's formula.

  Exact for Gaussian releases, for a single Laplace release and for binary
  randomized responses of one epsilon; for anything else the smallest of the
  valid `bounds`. Pure events may be asked for delta = 0. An array of deltas
  gives an array.

  >>> event = Gaussian(noise_multiplier=20.0, count=100)
  >>> epsilon(event, [1e-5, 1e-6, 1e-7]).round(4).tolist()
  [1.9931, 2.2541, 2.4903]

  Raises:
    ValueError: for a guarantee with status 'none', which has no epsilon, and
      for a delta below what the ends of the noise leave `uncovered`.
  """
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return elementwise(lambda d: claims.claimed_epsilon(event, d), delta)
  smallest = lambda d: min(composition.epsilon_bounds(event, d).values())
  return elementwise(smallest, delta)


@overload
def delta(guarantee_or_event: Accountable, epsilon: float) -> float: ...
@overload
def delta(guarantee_or_event: Accountable, epsilon: Numbers) -> np.ndarray: ...
def delta(guarantee_or_event: Accountable, epsilon: Any) -> Any:
  """The delta at `epsilon`: proved and rounded up, or the paper's formula.

  An array of epsilons gives an array.

  >>> event = Gaussian(noise_multiplier=20.0, count=100)
  >>> [float(f'{each:.3g}') for each in delta(event, [1.0, 2.0, 3.0])]
  [0.00683, 9.44e-06, 3.4e-10]
  """
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return elementwise(lambda e: claims.claimed_delta(event, e), epsilon)
  smallest = lambda e: min(composition.delta_bounds(event, e).values())
  return elementwise(smallest, epsilon)


def bounds(guarantee_or_event: Accountable, delta: float) -> dict[str, float]:
  """Every valid epsilon at `delta`, by rule; `epsilon` is the smallest.

  The rules are those of `accounting.composition`, and 'claimed' for a claim.

  >>> found = bounds(Gaussian(noise_multiplier=20.0, count=100), 1e-6)
  >>> {rule: round(value, 4) for rule, value in found.items()}
  {'exact': 2.2541, 'renyi_canonne': 2.4191, 'renyi_mironov': 2.7533}
  """
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return {'claimed': claims.claimed_epsilon(event, delta)}
  found = composition.epsilon_bounds(event, delta)
  if events.delta_left(event, delta) > 0:
    for name in ('canonne', 'mironov'):
      converted = renyi_epsilon(event, delta, name)
      found.setdefault(f'renyi_{name}', converted.epsilon)
  return found


def renyi_epsilon(
  guarantee_or_event: Accountable,
  delta: Any,
  conversion: rdp.Conversion = 'canonne',
  order: float | None = None,
) -> rdp.Converted:
  """(epsilon, order): what the Renyi curve of an event is worth at `delta`.

  Args:
    guarantee_or_event: what is not a claim.
    delta: a number, or an array of them, for which both are arrays.
    conversion: 'mironov' (2017) or 'canonne' (Canonne, Kamath and Steinke
      2020).
    order: the best one if None.

  `epsilon` is never larger: it is the smallest of all valid `bounds`.

  >>> event = SubsampledGaussian(1.0, sampling_rate=0.01, count=1000)
  >>> found, order = renyi_epsilon(event, 1e-6, 'mironov')
  >>> round(found, 4), round(order, 2)
  (2.8664, 8.06)
  """
  if conversion not in rdp.CONVERSIONS:
    names = ' or '.join(map(repr, rdp.CONVERSIONS))
    raise ValueError(f'conversion={conversion!r} must be {names}')
  event = _event_of(guarantee_or_event)
  curve = composition.curve_of(event)
  return elementwise(
    lambda d: rdp.CONVERSIONS[conversion](
      curve, events.delta_left(event, d), order
    ),
    delta,
  )


def uncovered(guarantee_or_event: Accountable) -> float:
  """The least delta at which an epsilon is stated; 0 for a claim or nothing.

  >>> uncovered(compose(Gaussian(20.0, 10, uncovered=1e-10), Laplace(2.0)))
  1e-10
  """
  event = guarantee_or_event
  if isinstance(event, Guarantee):
    event = event.event if event.status != 'none' else None
  if event is None or isinstance(event, ClaimedEvent):
    return 0.0
  return events.uncovered(event)


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
    check_relation(event, guarantee_or_event.relation)
  return event


def check_relation(event: Event, relation: str) -> None:
  """Raises ValueError where a part of the event holds for another relation."""
  for part in leaves(event):
    if not isinstance(part, SubsampledGaussian):
      continue
    needed = 'add_remove' if part.sampling == 'poisson' else 'replace'
    if relation != needed:
      raise ValueError(
        f'relation must be {needed!r} for {part.sampling} sampling, got '
        f'{relation!r}'
      )
