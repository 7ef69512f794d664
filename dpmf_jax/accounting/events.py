"""What a mechanism did, as frozen values that an accountant can read.

An event says how much noise was used, never how much privacy that is worth:
`accounting.epsilon(event, delta)` is the only place that turns one into the
other. What a paper claims has events of its own, `Claimed*`, so that a claimed
number can never come out of, or go into, a proved computation by accident.

A curve is about exact noise. Noise that is drawn in floats ends somewhere, and
what that may cost is a delta of its own, `uncovered`, which goes off the delta
at which an epsilon is stated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar, dataclass_transform

_T = TypeVar('_T')

# Keeps every square and reciprocal of a noise multiplier a normal float.
_SMALLEST_MULTIPLIER = 1e-100


def checked_number(name: str, value: float) -> float:
  """`value` as a Python float, or an error if it is no finite number."""
  if isinstance(value, bool) or not isinstance(value, Real):
    raise ValueError(f'{name} must be a number, got {value!r}')
  value = float(value)
  if not math.isfinite(value):
    raise ValueError(f'{name} must be finite, got {value!r}')
  return value


def checked_count(name: str, value: int, minimum: int = 0) -> int:
  """`value` as a Python int, or an error if it is no count that large."""
  try:
    count = operator.index(value)
  except TypeError:
    count = None
  if count is None or isinstance(value, bool) or count < 0:
    raise ValueError(f'{name} must be an integer >= 0, got {value!r}')
  if count < minimum:
    raise ValueError(f'{name} must be >= {minimum}, got {count}')
  return count


def checked_epsilon(value: float, name: str = 'epsilon') -> float:
  """`value` as a Python float, or an error if it is no epsilon."""
  value = checked_number(name, value)
  if value < 0:
    raise ValueError(f'{name} must be >= 0, got {value!r}')
  return value


def checked_delta(value: float, name: str = 'delta') -> float:
  """`value` as a Python float, or an error if it is no delta in (0, 1)."""
  value = checked_number(name, value)
  if not 0 < value < 1:
    raise ValueError(f'{name} must be in (0, 1), got {value!r}')
  return value


def checked_positive(name: str, value: float) -> float:
  """`value` as a Python float, or an error if it is not above 0."""
  value = checked_number(name, value)
  if value <= 0:
    raise ValueError(f'{name} must be > 0, got {value!r}')
  return value


def checked_multiplier(value: float) -> float:
  """`value` as a Python float, or an error if it is no noise multiplier."""
  value = checked_number('noise_multiplier', value)
  if value == 0:
    raise ValueError(
      'noise_multiplier must be > 0, got 0.0: zero noise is not private'
    )
  if not _SMALLEST_MULTIPLIER <= value <= 1 / _SMALLEST_MULTIPLIER:
    raise ValueError(
      f'noise_multiplier must be in [{_SMALLEST_MULTIPLIER}, '
      f'{1 / _SMALLEST_MULTIPLIER}], got {value!r}'
    )
  return value


def _checked_uncovered(value: float) -> float:
  value = checked_number('uncovered', value)
  if not 0 <= value < 1:
    raise ValueError(f'uncovered must be in [0, 1), got {value!r}')
  return value


def _checked_rate(value: float) -> float:
  rate = checked_number('sampling_rate', value)
  if not 0 < rate <= 1:
    raise ValueError(f'sampling_rate must be in (0, 1], got {rate!r}')
  return rate


def _checked_sampling(value: str) -> str:
  if value not in ('poisson', 'without_replacement'):
    raise ValueError(
      f"sampling must be 'poisson' or 'without_replacement', got {value!r}"
    )
  return value


def _checked_branches(values: Any) -> tuple[Any, ...]:
  branches = tuple(values)
  if not branches:
    raise ValueError('events must hold at least one event, got none')
  for part in (part for branch in branches for part in leaves(branch)):
    if not isinstance(part, Gaussian | PureEvent):
      raise ValueError(
        f'events to choose from must be Gaussian or pure, got {part!r}'
      )
  return branches


_CHECKS: dict[str, Callable[[Any], Any]] = {
  'events': _checked_branches,
  'noise_multiplier': checked_multiplier,
  'epsilon': checked_epsilon,
  'count': lambda value: checked_count('count', value),
  'uncovered': _checked_uncovered,
  'dimension': lambda value: (
    None if value is None else checked_count('dimension', value, 1)
  ),
  'categories': lambda value: checked_count('categories', value, 2),
  'sampling_rate': _checked_rate,
  'sampling': _checked_sampling,
  # eps_i < 1 is a condition of the paper's Theorem 1.
  'epsilon_per_step': lambda value: checked_delta(value, 'epsilon_per_step'),
  'delta_per_step': lambda value: checked_delta(value, 'delta_per_step'),
}


@dataclass_transform(frozen_default=True)
def _event(kind: type[_T]) -> type[_T]:
  """A frozen dataclass whose fields are checked when it is made."""

  def check(event: Any) -> None:
    # A frozen field is set once, when it is made, so that equal events compare
    # equal whether they were given NumPy or Python numbers.
    for field in fields(event):
      value = _CHECKS[field.name](getattr(event, field.name))
      object.__setattr__(event, field.name, value)

  setattr(kind, '__post_init__', check)  # noqa: B010
  return dataclass(frozen=True)(kind)


@_event
class Gaussian:
  """`count` adaptive releases with Gaussian noise, sqrt(count)/multiplier-GDP.

  Reference: Dong, Roth and Su (2022), Theorem 2.7 and Corollary 3.3.

  Attributes:
    noise_multiplier: standard deviation of the noise per coordinate, divided
      by the L2 sensitivity of what is released.
    count: how many such releases; each may depend on the earlier ones.
    uncovered: what the ends of the noise of all of them cost, in delta.
  """

  noise_multiplier: float
  count: int = 1
  uncovered: float = 0.0


@_event
class Laplace:
  """`count` adaptive releases with Laplace noise, each 1/multiplier-DP.

  Reference: Dwork, McSherry, Nissim and Smith (2006).

  Attributes:
    noise_multiplier: scale of the noise per coordinate, divided by the L1
      sensitivity of what is released.
    count: how many such releases; each may depend on the earlier ones.

  Privacy: a vector is never worse than one number moved by the whole L1
  sensitivity. Moving one coordinate after the other is a chain of location
  shifts, and for Laplace noise on the line such a chain is the sum of the
  shifts (group privacy, Dong, Roth and Su (2022), Theorem 2.14).
  """

  noise_multiplier: float
  count: int = 1


@_event
class L2Laplace:
  """`count` adaptive releases with noise of density ~ exp(-||x||/scale).

  The direction is uniform and the norm Gamma(dimension, scale), as objective
  perturbation draws it. Each release is 1/multiplier-DP.

  Reference: Chaudhuri, Monteleoni and Sarwate (2011); Hardt and Talwar (2010).

  Attributes:
    noise_multiplier: scale of the noise, divided by the L2 sensitivity.
    count: how many such releases; each may depend on the earlier ones.
    dimension: of what one record can move, at least. Items that compose in
      parallel count once: it is the rank D and not I D. None is one, where
      the noise is plain Laplace; the privacy only gets better with dimension.
    uncovered: what the ends of the noise of all of them cost, in delta.
  """

  noise_multiplier: float
  count: int = 1
  dimension: int | None = None
  uncovered: float = 0.0


@_event
class Pure:
  """`count` adaptive releases, each `epsilon`-DP with delta = 0.

  All that is used of them is that bound, so that any mechanism will do. Where
  it holds for exact noise only, `uncovered` is what the ends of the noise of
  all of them cost, in delta.
  """

  epsilon: float
  count: int = 1
  uncovered: float = 0.0


@_event
class RandomizedResponse:
  """`count` responses that keep the true one of some categories or lie evenly.

  A response is the truth with probability e^epsilon/(e^epsilon + categories
  - 1), and each other category with 1/(e^epsilon + categories - 1).

  Reference: Warner (1965); Kairouz, Bonawitz and Ramage (2016).

  Attributes:
    epsilon: of each response; one record may change to any other category.
    count: how many fresh responses about the same record. A response that is
      drawn once and kept counts once, however often it is looked at.
    categories: at least 2, and with 2 the same as `Pure`.
  """

  epsilon: float
  count: int = 1
  categories: int = 2


@_event
class SubsampledGaussian:
  """`count` Gaussian releases, each of a fresh and secret random sample.

  Attributes:
    noise_multiplier: standard deviation of the noise per coordinate, divided
      by the L2 sensitivity under the relation below.
    sampling_rate: the chance of a record to be in a sample, in (0, 1].
    count: how many releases; each may depend on the earlier ones.
    sampling: 'poisson' takes every record on its own; it is accounted for
      add/remove only. 'without_replacement' takes a sample of fixed size from
      a data set of public size; it is accounted for replace only. So a
      composition may not hold both, and `epsilon` refuses a guarantee with
      the other relation.

  Privacy: the sample must stay secret, and be drawn anew for every release.
  """

  noise_multiplier: float
  sampling_rate: float
  count: int = 1
  sampling: Literal['poisson', 'without_replacement'] = 'poisson'


@_event
class Either:
  """`count` times one of `events`, chosen by what was released before it.

  What a choice is made by is an event of its own, earlier in a composition:
  nothing else may depend on records.

  Attributes:
    events: those to choose from, Gaussian or pure, or compositions of such.
    count: how many choices; each may depend on all that came before.

  Privacy: once all that was released before is given, it is one of `events`.
  So its delta at any epsilon, and its Renyi divergence at any order, is at most
  the largest of theirs. Rules that need more than that, such as exact curves of
  a composition, do not hold: what is chosen may depend on the loss so far.
  """

  events: tuple[Event, ...]
  count: int = 1


@_event
class ClaimedGaussianMF:
  """`count` steps of Algorithm 1 as its paper accounts for them: a claim.

  The paper adds noise to the user gradient only, and composes over that alone;
  the item factors carry the ratings on without noise. So this is not a
  `Gaussian` event and no proved computation accepts it.

  Reference: Mugdho and Imtiaz (2023), Theorem 2.

  Attributes:
    epsilon_per_step: the paper's eps_i, in (0, 1).
    delta_per_step: the paper's delta, in (0, 1).
    count: the paper's J.
  """

  epsilon_per_step: float
  delta_per_step: float
  count: int


@_event
class ClaimedPure:
  """`count` releases that a paper says are `epsilon`-DP each: a claim.

  Unlike `Pure` it is not known to hold, so no proved computation accepts it.
  The epsilons, with delta = 0, are added up as they are.
  """

  epsilon: float
  count: int = 1


@dataclass(frozen=True)
class Composed:
  """Events that happen one after the other; each may depend on the earlier."""

  events: tuple[Event, ...]

  def __post_init__(self):
    events = tuple(self.events)
    for event in events:
      if not isinstance(event, Event):
        raise ValueError(f'events must hold events, got {event!r}')
    object.__setattr__(self, 'events', events)


PureEvent: TypeAlias = Laplace | L2Laplace | Pure | RandomizedResponse
DrawnEvent: TypeAlias = Gaussian | L2Laplace | Pure
ProvedEvent: TypeAlias = Gaussian | SubsampledGaussian | PureEvent | Either
ClaimedEvent: TypeAlias = ClaimedGaussianMF | ClaimedPure
Event: TypeAlias = ProvedEvent | ClaimedEvent | Composed


def pure_epsilon(event: PureEvent) -> float:
  """The epsilon of a single release of a pure event, rounded up."""
  if isinstance(event, Pure | RandomizedResponse):
    return event.epsilon
  return math.nextafter(1 / event.noise_multiplier, math.inf)


def leaves(event: Event) -> list[ProvedEvent]:
  """The releases of a proved event that happened, without the nesting.

  Raises:
    ValueError: for a claim, which cannot be part of a proof.
  """
  if isinstance(event, Composed):
    return [leaf for part in event.events for leaf in leaves(part)]
  if isinstance(event, ClaimedEvent):
    raise ValueError(
      f'event must be proved, got {event!r}: a claim cannot be part of a proof'
    )
  if not isinstance(event, ProvedEvent):
    got = repr(event)
    if hasattr(event, 'guarantee'):  # a System or a Run
      got = f'a {type(event).__name__}: use its `guarantee`'
    raise ValueError(f'event must be an Event or a Guarantee, got {got}')
  return [event] if event.count else []


def uncovered(event: Event) -> float:
  """The delta that the ends of all the event's noise cost, besides its curve.

  An epsilon is not stated at a smaller one.

  Privacy: of a release with densities p and q on neighbours, and p' and q' if
  noise were exact, all but a mass of `uncovered` of p is at most r p' where
  q >= r q', for some r(output) <= 1. So it is no larger against q than p' is
  against q', whatever comes before and after, and the masses add up.
  """
  return math.fsum(map(_uncovered, leaves(event)))


def _uncovered(part: ProvedEvent) -> float:
  if isinstance(part, Either):
    return part.count * max(map(uncovered, part.events))
  return part.uncovered if isinstance(part, DrawnEvent) else 0.0


def delta_left(event: Event, delta: float) -> float:
  """What is left of `delta` for the curve of exact noise, rounded down.

  >>> event = Gaussian(20.0, count=100, uncovered=1e-7)
  >>> round(delta_left(event, 1e-6), 12)
  9e-07

  Raises:
    ValueError: if the ends of the noise cost more than `delta`.
  """
  delta, lost = checked_number('delta', delta), uncovered(event)
  if delta < lost:
    raise ValueError(
      # Rounded up, so that what is asked for is enough.
      f'delta must be at least {lost * 1.005:.3g}, got {delta!r}: that much '
      'the ends of noise that is drawn in floats leave uncovered'
    )
  return max(delta - lost - math.ulp(delta), 0.0) if lost else delta


def exact_noise(event: Event) -> Event:
  """The event if no noise ended: with nothing `uncovered`.

  At delta it is worth what the exact one is at `delta_left(event, delta)`.

  >>> exact_noise(Gaussian(20.0, count=100, uncovered=1e-10))
  Gaussian(noise_multiplier=20.0, count=100, uncovered=0.0)
  """
  if isinstance(event, Composed):
    return Composed(tuple(map(exact_noise, event.events)))
  if isinstance(event, Either):
    return replace(event, events=tuple(map(exact_noise, event.events)))
  return (
    replace(event, uncovered=0.0) if isinstance(event, DrawnEvent) else event
  )


def count_of(event: Event) -> int:
  """How many releases an event stands for.

  >>> count_of(Composed((Gaussian(20.0, count=100), Laplace(2.0))))
  101
  """
  if isinstance(event, Composed):
    return sum(count_of(part) for part in event.events)
  return event.count


def prefix(event: Event, steps: int) -> Event:
  """The event when only the first `steps` of its releases have happened.

  A prefix of an adaptive composition is one itself, so its privacy may be
  stated while the rest still runs.

  >>> prefix(Composed((Laplace(2.0), Gaussian(20.0, count=100))), 41).events[1]
  Gaussian(noise_multiplier=20.0, count=40, uncovered=0.0)
  """
  steps, total = checked_count('steps', steps), count_of(event)
  if steps > total:
    raise ValueError(
      f'steps must be at most the {total} of the event, got {steps}'
    )
  if not isinstance(event, Composed):
    return replace(event, count=steps)
  parts = []
  for part in event.events:
    taken = min(steps, count_of(part))
    parts.append(prefix(part, taken))
    steps -= taken
  return Composed(tuple(parts))
