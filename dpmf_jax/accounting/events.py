"""What a mechanism did, as frozen values that an accountant can read.

An event says how much noise was used, never how much privacy that is worth:
`accounting.epsilon(event, delta)` is the only place that turns one into the
other. The paper's claim has its own event, so that a claimed number can never
come out of, or go into, a proved computation by accident.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from numbers import Real
from typing import TypeAlias

# Keeps every square and reciprocal of a noise multiplier a normal float.
_SMALLEST = 1e-100


@dataclass(frozen=True)
class Gaussian:
  """`count` adaptive releases with Gaussian noise, sqrt(count)/multiplier-GDP.

  Reference: Dong, Roth and Su (2022), Theorem 2.7 and Corollary 3.3.

  Attributes:
    noise_multiplier: standard deviation of the noise per coordinate, divided
      by the L2 sensitivity of what is released.
    count: how many such releases; each may depend on the earlier ones.
  """

  noise_multiplier: float
  count: int = 1

  def __post_init__(self):
    multiplier = checked_multiplier(self.noise_multiplier)
    # A frozen field is set once here, so that equal events compare equal
    # whether they were given NumPy or Python numbers.
    object.__setattr__(self, 'noise_multiplier', multiplier)
    object.__setattr__(self, 'count', checked_count('count', self.count))


@dataclass(frozen=True)
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

  def __post_init__(self):
    for name in ('epsilon_per_step', 'delta_per_step'):
      value = checked_number(name, getattr(self, name))
      if not 0 < value < 1:
        # eps_i < 1 is a condition of the paper's Theorem 1.
        raise ValueError(f'{name} must be in (0, 1), got {value!r}')
      object.__setattr__(self, name, value)
    object.__setattr__(self, 'count', checked_count('count', self.count))


@dataclass(frozen=True)
class Composed:
  """Events that happen one after the other; each may depend on the earlier."""

  events: tuple[Event, ...]

  def __post_init__(self):
    events = tuple(self.events)
    for event in events:
      if not isinstance(event, Gaussian | ClaimedGaussianMF | Composed):
        raise ValueError(f'events must hold events, got {event!r}')
    object.__setattr__(self, 'events', events)


Event: TypeAlias = Gaussian | ClaimedGaussianMF | Composed


def joint_noise_multiplier(*multipliers: float) -> float:
  """The noise multiplier of one release made of several noised blocks.

  Scale every block by its own noise. The blocks of two neighbours then differ
  by at most 1/m_1, 1/m_2, ... in noise of standard deviation one, so all of
  them together by at most sqrt(sum 1/m_k^2).
  """
  if not multipliers:
    raise ValueError('multipliers must not be empty: nothing is released')
  return 1 / math.hypot(*(1 / checked_multiplier(m) for m in multipliers))


def count_of(event: Event) -> int:
  """How many releases an event stands for."""
  if isinstance(event, Composed):
    return sum(count_of(part) for part in event.events)
  return event.count


def after(event: Event, steps: int) -> Event:
  """The event when only the first `steps` of its releases have happened.

  A prefix of an adaptive composition is one itself, so its privacy may be
  stated while the rest still runs.
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
    parts.append(after(part, taken))
    steps -= taken
  return Composed(tuple(parts))


def checked_number(name: str, value: float) -> float:
  """`value` as a Python float, or an error if it is no finite number."""
  if isinstance(value, bool) or not isinstance(value, Real):
    raise ValueError(f'{name} must be a number, got {value!r}')
  value = float(value)
  if not math.isfinite(value):
    raise ValueError(f'{name} must be finite, got {value!r}')
  return value


def checked_count(name: str, value: int) -> int:
  """`value` as a Python int, or an error if it is no count."""
  try:
    count = operator.index(value)
  except TypeError:
    count = None
  if count is None or isinstance(value, bool) or count < 0:
    raise ValueError(f'{name} must be an integer >= 0, got {value!r}')
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


def checked_multiplier(value: float) -> float:
  """`value` as a Python float, or an error if it is no noise multiplier."""
  value = checked_number('noise_multiplier', value)
  if value == 0:
    raise ValueError(
      'noise_multiplier must be > 0, got 0.0: zero noise is not private'
    )
  if not _SMALLEST <= value <= 1 / _SMALLEST:
    raise ValueError(
      f'noise_multiplier must be in [{_SMALLEST}, {1 / _SMALLEST}], got '
      f'{value!r}'
    )
  return value
