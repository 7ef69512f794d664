"""The answers of dpmf account, as functions of plain arguments.

Each takes `steps`, the overall `delta`, and what was `given` as the amount of
noise: the name of a flag, such as 'epsilon' or 'noise_multiplier', and its
`value`. Errors speak of flags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from dpmf_jax import accounting
from dpmf_jax.plans.selection import Selected

SAME_NOISE = 'same_noise_if_only_the_noised_gradient_leaked'


class Answer(NamedTuple):
  """What is printed, and what the noise that it is about did.

  For a claim, `event` is what the same noise would do, were it all there is.
  `spent` says what the first so many steps of it do.
  """

  values: dict[str, Any]
  event: accounting.Event
  spent: Callable[[int], Any]
  claim: accounting.ClaimedGaussianMF | None = None


def planned(chosen: Selected, delta: float) -> Answer:
  """What the plan of a system states."""
  plan = chosen.spec.plan(chosen.config)
  stated = plan.guarantee
  if stated.event is None:
    raise ValueError(
      f'--system={chosen.name} --variant={chosen.variant} is not private: '
      'there is nothing to account for'
    )
  event = stated.event
  # A delta of 0 stands for the least there is.
  delta = delta or accounting.uncovered(stated)
  values = {
    'system': chosen.name,
    'variant': chosen.variant,
    'status': stated.status,
    'epsilon': accounting.epsilon(stated, delta),
    'delta': delta,
    'steps': plan.steps,
    'sigma': next(iter(_flat(plan.noise)), None),
    'noise': dict(plan.noise),
    'sensitivity': dict(plan.sensitivity),
    'unit': stated.unit,
    'relation': stated.relation,
    'mechanism': stated.mechanism,
  }
  if isinstance(event, accounting.ClaimedGaussianMF):
    return _claimed_gaussian_mf(values, event, delta)
  if isinstance(event, accounting.Gaussian):
    values |= {
      'noise_multiplier': event.noise_multiplier,
      'mu': accounting.gaussian_mu(event),
    }
  if stated.status != 'claimed':
    values['uncovered'] = accounting.uncovered(stated)
  return Answer(values, event, plan.spent)


def _flat(noise: Mapping[str, Any]) -> Iterator[float]:
  for value in noise.values():
    yield from value if isinstance(value, Sequence) else (value,)


def _claimed_gaussian_mf(
  values: dict[str, Any], claim: accounting.ClaimedGaussianMF, delta: float
) -> Answer:
  """Besides what the paper claims, what its noise would be worth."""
  per_step = {
    'epsilon_per_step': claim.epsilon_per_step,
    'delta_per_step': claim.delta_per_step,
  }
  multiplier = accounting.claimed_gaussian_mf_noise_multiplier(
    *per_step.values()
  )
  event = accounting.Gaussian(multiplier, claim.count)
  values |= {
    'order': accounting.claimed_gaussian_mf_order(
      steps=claim.count, delta=delta, **per_step
    ),
    **per_step,
    'noise_multiplier': multiplier,
    # The paper's item gradient has no noise, so none of these covers it.
    SAME_NOISE: accounting.bounds(event, delta),
  }
  return Answer(values, event, partial(accounting.prefix, event), claim)


def gaussian(
  steps: int, delta: float, given: str, value: float, *, relation: str | None
) -> Answer:
  """What is proved for Gaussian noise on something of L2 sensitivity one."""
  if given == 'epsilon':
    value = accounting.calibrate_noise_multiplier(
      epsilon=value, delta=delta, count=steps
    )
  noise = {'sigma': value, 'noise_multiplier': value, 'sensitivity': 1.0}
  return _plain(accounting.Gaussian(value, steps), delta, relation, noise)


def subsampled_gaussian(
  steps: int,
  delta: float,
  given: str,
  value: float,
  *,
  relation: str | None,
  sampling_rate: float,
  sampling: Literal['poisson', 'without_replacement'],
) -> Answer:
  """What is proved for Gaussian noise on fresh random samples."""
  needed = 'add_remove' if sampling == 'poisson' else 'replace'
  if relation not in (None, needed):
    raise ValueError(
      f'--relation must be {needed} for --sampling={sampling}, got {relation}'
    )
  make = lambda noise: accounting.SubsampledGaussian(
    noise, sampling_rate, steps, sampling
  )
  if given == 'epsilon':
    unsampled = accounting.calibrate_noise_multiplier(
      epsilon=_positive(value), delta=delta, count=steps
    )
    # Below this the accountant gets slow, and nobody would call it noise.
    value = _calibrated(
      make, value, delta, enough=unsampled, factor=0.5, least=0.02
    )
  noise = {
    'sigma': value,
    'noise_multiplier': value,
    'sensitivity': 1.0,
    'sampling_rate': sampling_rate,
    'sampling': sampling,
  }
  return _plain(make(value), delta, needed, noise)


def laplace(
  steps: int, delta: float, given: str, value: float, *, relation: str | None
) -> Answer:
  """What is proved for Laplace noise on something of L1 sensitivity one."""
  make = lambda noise: accounting.Laplace(noise, steps)
  if given == 'epsilon':
    enough = steps / _positive(value)
    value = _calibrated(make, value, delta, enough=enough, factor=0.5)
  elif given == 'epsilon_per_release':
    value = 1 / _positive(value, given)
  event = make(value)
  noise = {
    'sigma': math.sqrt(2) * value,
    'noise_multiplier': value,
    'sensitivity': 1.0,
    'epsilon_per_release': 1 / value,
  }
  return _plain(event, delta, relation, noise)


def randomized_response(
  steps: int, delta: float, given: str, value: float, *, categories: int
) -> Answer:
  """What is proved for fresh randomized responses about one record."""
  make = lambda each: accounting.RandomizedResponse(each, steps, categories)
  if given == 'epsilon':
    enough = _positive(value) / steps
    value = _calibrated(make, value, delta, enough=enough, factor=2.0)
  noise = {
    'sigma': None,
    'epsilon_per_release': value,
    'categories': categories,
    'unit': 'one answer',
  }
  return _plain(make(value), delta, 'replace', noise)


def _plain(
  event: accounting.Event,
  delta: float,
  relation: str | None,
  noise: dict[str, Any],
) -> Answer:
  """The answer for a plain mechanism: the smallest of all valid bounds."""
  bounds = accounting.bounds(event, delta)
  rule = min(bounds, key=lambda name: bounds[name])
  # A plain mechanism is as private as its sensitivity is right: what one
  # record is, and how neighbours differ, went into that. And as its noise is:
  # where that is drawn in floats, its ends cost a delta besides.
  meant = 'as in the sensitivity'
  values = {
    'status': 'proved',
    'epsilon': bounds[rule],
    'delta': delta,
    'steps': accounting.count_of(event),
    'unit': meant,
    'relation': relation or meant,
    'noise': 'exact',
  }
  values |= noise | {'rule': rule, 'bounds': bounds}
  return Answer(values, event, partial(accounting.prefix, event))


def _calibrated(
  make: Callable[[float], accounting.Event],
  epsilon: float,
  delta: float,
  *,
  enough: float,
  factor: float,
  least: float = 0.0,
) -> float:
  """The parameter that spends `epsilon`, from one that spends less."""
  good = enough * 1.01 if factor < 1 else enough / 1.01
  for _ in range(60):
    bad = good * factor
    if bad < least:
      break
    if accounting.epsilon(make(bad), delta) > epsilon:
      low, high = sorted((good, bad))
      return accounting.calibrate(
        make, epsilon=epsilon, delta=delta, low=low, high=high
      )
    good = bad
  raise ValueError(
    f'--epsilon={epsilon} holds at --delta={delta} with next to no noise; ask '
    'for a smaller one'
  )


def _positive(value: float, name: str = 'epsilon') -> float:
  if not 0 < value < math.inf:
    raise ValueError(f'--{name} must be > 0 and finite, got {value}')
  return value
