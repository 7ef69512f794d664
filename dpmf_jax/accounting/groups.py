"""What is left for several units that change at once: groups.

Ten ratings of one person, or a rating that is taken out and put back with
another value, are a group of ten and of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from dpmf_jax.accounting import accountant
from dpmf_jax.accounting.events import (
  Composed,
  DrawnEvent,
  Either,
  Event,
  Gaussian,
  ProvedEvent,
  Pure,
  SubsampledGaussian,
  leaves,
  pure_epsilon,
)
from dpmf_jax.accounting.tails import uncovered_jointly
from dpmf_jax.types import Guarantee, Tails


def group(guarantee: Guarantee, delta: float, size: int) -> tuple[float, float]:
  """The (epsilon, delta) of `size` units at once, rounded up.

  Exact for Gaussian noise, k units have k mu, and k epsilon for what is pure,
  both at the same delta; where the tails of the noise end too early for a
  group, at a larger one. Where none of this is known, for a sample or a claim,
  it is what follows from (epsilon, delta) alone, and delta may be 1.

  Reference: Dong, Roth and Su (2022), Theorem 2.14; Vadhan (2017), Lemma 2.2.

  Privacy: k units move what a release is about k times as far as one, so that
  Gaussian noise has a k-th of its multiplier, whichever units they are; for
  any pure release the ratios of k neighbours multiply. Releases then compose
  as they do for one. Delta also pays for the end of the tails, of as many draws
  as k units move.
  """
  event = guarantee.event
  if guarantee.status in ('proved', 'stated') and event is not None:
    lost = _lost(guarantee, size)
    larger = grouped(event, size) if lost <= 0.25 else None
    if larger is not None:
      delta = max(delta, 2 * lost)
      return accountant.epsilon(larger, delta - lost), delta
  return of_any(accountant.epsilon(guarantee, delta), delta, size)


def grouped(event: Event, size: int) -> Event | None:
  """What a proved event is for `size` units at once; None where unknown."""
  parts = [_grouped(leaf, size) for leaf in leaves(event)]
  known = tuple(part for part in parts if part is not None)
  if len(known) < len(parts):
    return None
  # One event alone is not rounded up for being composed.
  return known[0] if len(known) == 1 else Composed(known)


def of_any(epsilon: float, delta: float, size: int) -> tuple[float, float]:
  """What any (epsilon, delta) gives `size` units: size epsilon, and delta
  times 1 + e^epsilon + ... + e^((size - 1) epsilon), at most 1."""
  total = _times(epsilon, size)
  if delta == 0:
    return total, 0.0
  log_sum = math.log(size)
  if epsilon > 0:
    tail = math.expm1(-size * epsilon) / math.expm1(-epsilon)
    log_sum = (size - 1) * epsilon + math.log(tail)
  # The margin is far above what the logarithms round off.
  log_chance = math.log(delta) + log_sum * (1 + 1e-12) + 1e-9
  return total, math.exp(min(log_chance, 0.0))


def _grouped(leaf: ProvedEvent, size: int) -> ProvedEvent | None:
  if isinstance(leaf, SubsampledGaussian):
    return None
  if isinstance(leaf, Either):
    # Of what was released before, of which a choice is made, nothing changes.
    branches = [grouped(branch, size) for branch in leaf.events]
    known = tuple(branch for branch in branches if branch is not None)
    return Either(known, leaf.count) if len(known) == len(branches) else None
  if isinstance(leaf, Gaussian):
    multiplier = math.nextafter(leaf.noise_multiplier / size, 0.0)
    return Gaussian(multiplier, leaf.count)
  return Pure(_times(pure_epsilon(leaf), size), leaf.count)


def _times(epsilon: float, size: int) -> float:
  """The product, rounded up only where it is not exact."""
  total = size * epsilon
  if math.isfinite(total) and Fraction(total) < size * Fraction(epsilon):
    total = math.nextafter(total, math.inf)
  return total


def _lost(guarantee: Guarantee, size: int) -> float:
  """A delta for the ends of the noise; infinity where it is not known.

  Privacy: all releases of a pure part are (epsilon, uncovered)-DP together,
  of which `of_any` is what a group has. Of events to choose from it is the
  largest.
  """
  assert guarantee.event is not None
  return _lost_of(leaves(guarantee.event), guarantee.tails, size)


def _lost_of(
  parts: Sequence[ProvedEvent], tails: Tails | None, size: int
) -> float:
  lost = 0.0
  for part in parts:
    if isinstance(part, Either):
      each = [_lost_of(leaves(one), tails, size) for one in part.events]
      lost += part.count * max(each)
    elif isinstance(part, DrawnEvent) and not isinstance(part, Gaussian):
      total = _times(pure_epsilon(part), part.count)
      lost += of_any(total, part.uncovered, size)[1]
  if not any(isinstance(part, Gaussian) for part in parts):
    return lost
  return lost + tails_of_group(tails, size) if tails else math.inf


def tails_of_group(tails: Tails, size: int) -> float:
  """A delta for draws that do not reach far enough, for `size` units.

  Privacy: k units move k times as many draws as one, at most, and all of a
  step's together k times as far; `uncovered_jointly` bounds a step.
  """
  return tails.steps * uncovered_jointly(
    tails.noise_multiplier / size, size * tails.draws
  )
