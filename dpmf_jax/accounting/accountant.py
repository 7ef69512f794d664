"""What a guarantee, or an event, is worth: the epsilon and the delta of it."""

from __future__ import annotations

from typing import TypeAlias

from dpmf_jax.accounting import claims, composition, events
from dpmf_jax.accounting.events import (
  ClaimedEvent,
  Event,
  SubsampledGaussian,
  leaves,
)
from dpmf_jax.types import Guarantee

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
    return claims.claimed_epsilon(event, delta)
  return min(composition.epsilon_bounds(event, delta).values())


def delta(guarantee_or_event: Accountable, epsilon: float) -> float:
  """The delta at `epsilon`: proved and rounded up, or the paper's formula."""
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return claims.claimed_delta(event, epsilon)
  return min(composition.delta_bounds(event, epsilon).values())


def bounds(guarantee_or_event: Accountable, delta: float) -> dict[str, float]:
  """Every valid epsilon at `delta`, by rule; `epsilon` is the smallest.

  The rules are those of `accounting.composition`, and 'claimed' for a claim.
  """
  event = _event_of(guarantee_or_event)
  if isinstance(event, ClaimedEvent):
    return {'claimed': claims.claimed_epsilon(event, delta)}
  return composition.epsilon_bounds(event, delta)


def uncovered(guarantee_or_event: Accountable) -> float:
  """The least delta at which an epsilon is stated; 0 for a claim or nothing."""
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
