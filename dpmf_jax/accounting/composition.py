"""What several releases are worth together, by the tightest rule that holds.

Gaussian releases compose exactly. For everything else more than one bound is
valid, and the smallest of valid bounds is one, too:

  basic    the pure epsilons add up, plus the exact epsilon of what is Gaussian
           (a sample as if all of it had been used)
  optimal  pure releases, all taken to have the largest epsilon; exact for
           binary randomized responses with one epsilon
  exact    for a single Laplace release
  renyi_canonne, renyi_mironov
           the sum of the Renyi curves at the best order, by both conversions;
           the second is the larger one, and in `bounds` alone
  pld      privacy loss distributions, where delta is not tiny

Where events are chosen by what was released before (`Either`), two of these
hold: 'basic', with an equal part of delta for each choice and for all that is
Gaussian, and Renyi's.

Reference: Dwork and Roth (2014), Theorem 3.16, for 'basic'; the modules
`response`, `laplace`, `rdp` and `pld` for the others.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dpmf_jax.accounting import (
  gaussian,
  laplace,
  pld,
  rdp,
  response,
  subsampled,
)
from dpmf_jax.accounting.events import (
  Composed,
  Either,
  Event,
  Gaussian,
  L2Laplace,
  Laplace,
  ProvedEvent,
  Pure,
  PureEvent,
  RandomizedResponse,
  SubsampledGaussian,
  checked_delta,
  checked_epsilon,
  delta_left,
  exact_noise,
  leaves,
  pure_epsilon,
  uncovered,
)

_ULP = sys.float_info.epsilon
# More than this many binomial terms would not fit in memory.
_OPTIMAL_COUNT_LIMIT = 4 * 10**6
# Beyond this epsilon rounding errors are larger than what there is to gain.
_OPTIMAL_EPSILON_LIMIT = 1e12
# Beyond this one a grid of losses would not fit into memory, and nobody needs
# its digits.
_PLD_EPSILON_LIMIT = 1e5
# Where a grid of losses is made for; any delta of the usual kind would do.
_USUAL_DELTA = 1e-6


def compose(*parts: Event) -> Composed:
  """The event of all of them together; each may depend on the earlier ones.

  >>> both = compose(Gaussian(20.0, count=100), Laplace(10.0))
  >>> round(epsilon(both, 1e-6), 3)
  2.297

  Raises:
    ValueError: for a claim, which cannot be part of a proof, and for two kinds
      of sampling, which hold for different relations.
  """
  composed = Composed(parts)
  merged(composed)
  return composed


def curve_of(event: Event) -> rdp.Curve:
  """The Renyi curve of all the releases of a proved event, rounded up.

  It takes an order, or an array of them. What the ends of noise cost is not in
  it; `renyi_epsilon` counts that, too.

  >>> curve = curve_of(SubsampledGaussian(1.0, 0.01, count=100))
  >>> curve([2.0, 8.0, 32.0]).round(4).tolist()
  [0.0172, 0.0894, 1124.6276]
  """
  return rdp.compose(*map(_curve, merged(event)))


def merged(event: Event) -> tuple[ProvedEvent, ...]:
  """The releases of an event in a few parts, equal ones counted together.

  They are of exact noise: what its ends cost is left out.
  """
  counts: dict[ProvedEvent, int] = {}
  for leaf in leaves(event):
    one = exact_noise(replace(leaf, count=1))
    assert isinstance(one, ProvedEvent)
    counts[one] = counts.get(one, 0) + leaf.count
  kinds = {
    leaf.sampling for leaf in counts if isinstance(leaf, SubsampledGaussian)
  }
  if len(kinds) > 1:
    raise ValueError(
      "sampling must be the same in all the events, got 'poisson' and "
      "'without_replacement': they hold for different relations"
    )
  return tuple(replace(one, count=count) for one, count in counts.items())


def gaussian_mu(event: Event) -> float:
  """The mu for which a Gaussian event, or several composed, is mu-GDP.

  >>> round(gaussian_mu(compose(Gaussian(20.0, 300), Gaussian(10.0, 25))), 6)
  1.0
  """
  parts = leaves(event)
  for part in parts:
    if not isinstance(part, Gaussian):
      raise ValueError(f'event must be proved to be Gaussian, got {part!r}')
  return _mu(tuple(parts))


def epsilon_bounds(event: Event, delta: float) -> dict[str, float]:
  """Every valid epsilon at `delta`, by the name of its rule."""
  events, delta = merged(event), delta_left(event, delta)
  if not events and delta == 0:
    return {'exact': 0.0}
  if any(isinstance(event, Either) for event in events):
    return _chosen_epsilon_bounds(events, delta)
  if _all_gaussian(events):
    return {'exact': gaussian.epsilon_of(_mu(events), delta)}
  pure, rest = _split(events)
  if delta == 0:
    if rest:
      raise ValueError(
        'delta must be in (0, 1), got 0.0: with Gaussian noise no epsilon has '
        'delta = 0'
      )
    return {'basic': _pure_sum(pure)}
  delta = checked_delta(delta)
  bounds = _epsilon_bounds_without_pld(events, delta)
  if _has_distribution(events) and _near(events) <= _PLD_EPSILON_LIMIT:
    bounds['pld'] = pld.epsilon_of(events, delta, _grid(events))
  return bounds


def delta_bounds(event: Event, epsilon: float) -> dict[str, float]:
  """Every valid delta at `epsilon`, by the name of its rule."""
  exact, lost = _delta_bounds(event, epsilon), uncovered(event)
  if lost == 0:
    return exact
  # Rounded up by more than `delta_left` rounds down.
  return {
    rule: min((value + lost) * (1 + 4 * _ULP), 1.0)
    for rule, value in exact.items()
  }


def _delta_bounds(event: Event, epsilon: float) -> dict[str, float]:
  """The same for exact noise."""
  events, epsilon = merged(event), checked_epsilon(epsilon)
  if any(isinstance(event, Either) for event in events):
    return _chosen_delta_bounds(events, epsilon)
  if _all_gaussian(events):
    return {'exact': gaussian.delta_of(_mu(events), epsilon)}
  pure, rest = _split(events)
  spent = _pure_sum(pure)
  bounds = {'basic': 1.0}
  if epsilon >= spent:
    # Rounded down, so that delta is not.
    left = max((epsilon - spent) * (1 - _ULP), 0.0)
    bounds['basic'] = gaussian.delta_of(_mu(rest), left) if rest else 0.0
  worst = None if rest else _worst(pure)
  if worst is not None and spent <= _OPTIMAL_EPSILON_LIMIT:
    bounds['optimal'] = response.kov_delta(*worst, epsilon)
  if isinstance(one := _single(events), Laplace):
    bounds['exact'] = laplace.delta_of_one(one, epsilon)
  bounds['renyi_canonne'] = rdp.delta_canonne(
    rdp.compose(*map(_curve, events)), epsilon
  )
  tight = _has_distribution(events) and _near(events) <= _PLD_EPSILON_LIMIT
  if tight and min(bounds.values()) > 0:
    bounds['pld'] = pld.delta_of(events, epsilon, _grid(events))
  return bounds


def _epsilon_bounds_without_pld(
  events: tuple[ProvedEvent, ...], delta: float
) -> dict[str, float]:
  pure, rest = _split(events)
  unsampled = gaussian.epsilon_of(_mu(rest), delta) if rest else 0.0
  bounds = {'basic': (_pure_sum(pure) + unsampled) * (1 + _ULP)}
  if not rest:
    bounds['basic'] = _pure_sum(pure)
    worst = _worst(pure)
    if worst is not None and bounds['basic'] <= _OPTIMAL_EPSILON_LIMIT:
      bounds['optimal'] = response.kov_epsilon(*worst, delta)
  if isinstance(one := _single(events), Laplace):
    bounds['exact'] = laplace.epsilon_of_one(one, delta)
  curve = rdp.compose(*map(_curve, events))
  bounds['renyi_canonne'] = rdp.epsilon_canonne(curve, delta).epsilon
  return bounds


def _chosen_epsilon_bounds(
  events: tuple[ProvedEvent, ...], delta: float
) -> dict[str, float]:
  """`epsilon_bounds` where some events are chosen, of exact noise.

  Privacy: basic composition takes an epsilon and a delta of each part that are
  fixed in advance: those of a choice are the largest epsilon of what there is
  to choose from, at its part of delta.
  """
  chosen, (pure, rest) = _chosen(events), _split(_unchosen(events))
  if rest and delta == 0:
    checked_delta(delta)
  parts = sum(event.count for event in chosen) + bool(rest)
  part = delta / parts * (1 - _ULP) if parts > 1 else delta
  spent = [
    event.count * max(_least(epsilon_bounds(one, part)) for one in event.events)
    for event in chosen
  ]
  if rest:
    spent.append(gaussian.epsilon_of(_mu(rest), part))
  total = math.fsum([_pure_sum(pure), *spent]) * (1 + 2 * _ULP)
  if delta == 0:
    return {'basic': total}
  curve = rdp.compose(*map(_curve, events))
  renyi = rdp.epsilon_canonne(curve, checked_delta(delta)).epsilon
  return {'basic': total, 'renyi_canonne': renyi}


def _chosen_delta_bounds(
  events: tuple[ProvedEvent, ...], epsilon: float
) -> dict[str, float]:
  """`_delta_bounds` where some are chosen; 'basic' for one choice alone."""
  chosen, (pure, rest) = _chosen(events), _split(_unchosen(events))
  bounds = {}
  left = (epsilon - _pure_sum(pure) * (1 + _ULP)) * (1 - 4 * _ULP)
  if left >= 0 and not rest and len(chosen) == 1 == chosen[0].count:
    bounds['basic'] = max(
      _least(_delta_bounds(one, left)) for one in chosen[0].events
    )
  curve = rdp.compose(*map(_curve, events))
  bounds['renyi_canonne'] = rdp.delta_canonne(curve, epsilon)
  return bounds


def _least(bounds: dict[str, float]) -> float:
  """The smallest that is proved: the margin of 'pld' is measured."""
  return min(bound for rule, bound in bounds.items() if rule != 'pld')


def _chosen(events: tuple[ProvedEvent, ...]) -> tuple[Either, ...]:
  return tuple(event for event in events if isinstance(event, Either))


def _unchosen(events: tuple[ProvedEvent, ...]) -> tuple[ProvedEvent, ...]:
  return tuple(event for event in events if not isinstance(event, Either))


@lru_cache(maxsize=8)
def _near(events: tuple[ProvedEvent, ...]) -> float:
  """An epsilon that the events are about, for choosing a grid."""
  return min(_epsilon_bounds_without_pld(events, _USUAL_DELTA).values())


def _grid(events: tuple[ProvedEvent, ...]) -> float:
  # It must not depend on the question: epsilon and delta would then be read
  # off two curves, and going there and back could lose some epsilon.
  return pld.grid_of(events, _near(events))


def _has_distribution(events: tuple[ProvedEvent, ...]) -> bool:
  """Whether a loss distribution exists and could improve on the other rules."""
  if any(
    isinstance(event, SubsampledGaussian) and event.sampling != 'poisson'
    for event in events
  ):
    return False
  one = _single(events)
  if isinstance(one, Laplace):
    return False
  responses = all(
    isinstance(event, Pure)
    or (isinstance(event, RandomizedResponse) and event.categories == 2)
    for event in events
  )
  same = len({getattr(event, 'epsilon', None) for event in events}) == 1
  return not (responses and same)


@lru_cache(maxsize=32)  # a curve of samples keeps its values
def _curve(event: ProvedEvent) -> rdp.Curve:
  if isinstance(event, Gaussian):
    curve = rdp.gaussian(event.noise_multiplier, event.count)
    return lambda order: curve(order) * (1 + 4 * _ULP)
  if isinstance(event, SubsampledGaussian):
    return subsampled.rdp(event)
  if isinstance(event, Laplace | L2Laplace):
    return laplace.rdp(event)
  if isinstance(event, Either):
    curves, count = [curve_of(one) for one in event.events], event.count
    return lambda order: (
      count * np.max([curve(order) for curve in curves], axis=0) * (1 + _ULP)
    )
  return response.rdp(event)


def _split(
  events: tuple[ProvedEvent, ...],
) -> tuple[tuple[PureEvent, ...], tuple[Gaussian | SubsampledGaussian, ...]]:
  pure, rest = [], []
  for event in events:
    if isinstance(event, Gaussian | SubsampledGaussian):
      rest.append(event)
    else:
      assert isinstance(event, PureEvent)
      pure.append(event)
  return tuple(pure), tuple(rest)


def _all_gaussian(events: tuple[ProvedEvent, ...]) -> bool:
  return all(isinstance(event, Gaussian) for event in events)


def _single(events: tuple[ProvedEvent, ...]) -> ProvedEvent | None:
  return events[0] if len(events) == 1 and events[0].count == 1 else None


def _pure_sum(pure: tuple[PureEvent, ...]) -> float:
  """The sum of the epsilons, rounded up unless it is a single one."""
  total = math.fsum(event.count * pure_epsilon(event) for event in pure)
  return total if len(pure) == 1 == pure[0].count else total * (1 + 2 * _ULP)


def _worst(pure: tuple[PureEvent, ...]) -> tuple[float, int] | None:
  """(the largest epsilon, the number of releases), if not too many."""
  count = sum(event.count for event in pure)
  if count > _OPTIMAL_COUNT_LIMIT:
    return None
  return max(map(pure_epsilon, pure)), count


def _mu(parts: tuple[ProvedEvent, ...]) -> float:
  """The mu of Gaussian parts, and of samples as if all had been used."""
  mus = []
  for part in parts:
    assert isinstance(part, Gaussian | SubsampledGaussian)
    mus.append(_up(math.sqrt(part.count) / part.noise_multiplier))
  return _up(gaussian.compose(mus))


def _up(value: float) -> float:
  # Covers one square root and one division, or one hypot.
  return value * (1 + 2 * math.ulp(1.0))
