"""What noise made of shares is worth, also where some are missing or known.

`mechanisms.shares` draws the shares. A coordinate's noise is a difference of
two negative binomial variables with ratio a = 1 - 2^-B, whose shape s is the
number of shares that are there and unknown, over the number m that makes the
two-sided geometric noise of the guarantee: s = 1 is that noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dpmf_jax.accounting.events import checked_count

# Terms beyond 20 2^B add less than a^(2 * 20 2^B) < exp(-40) of a sum.
_SCALES = 20
MAX_SHARE_BITS = 20


def move_epsilon(move: int, bits: int) -> float:
  """M ln(1/a), rounded up: the epsilon of integers that move by M."""
  return math.nextafter(-math.log1p(-(2.0**-bits)) * move, math.inf) * (
    1 + 1e-15
  )


def largest_move(epsilon: float, bits: int) -> int:
  """The largest M with `move_epsilon(M, bits)` <= epsilon, up to 2^32."""
  if not 1 <= bits <= MAX_SHARE_BITS:
    raise ValueError(f'{bits=} must be in 1..{MAX_SHARE_BITS}')
  # Beyond, floats have no digits left to count down in, and sums no room.
  most = min(math.floor(epsilon / -math.log1p(-(2.0**-bits))) + 1, 2**32)
  while most > 0 and move_epsilon(most, bits) > epsilon:
    most -= 1
  return most


def share_loss(
  moves: Iterable[int], *, bits: int, unknown: int, needed: int
) -> float:
  """The largest privacy loss where integers move under noise made of shares.

  sup over x of ln P(noise = x) - ln P(noise = x - moves), up to the rounding of
  floats.

  Args:
    moves: by how much a neighbour moves each coordinate, an integer.
    bits: B.
    unknown: how many shares are in the sum and not known to who looks at it.
    needed: m, the number of shares that add up to two-sided geometric noise.

  Returns:
    The sum of the moves times ln(1/a) where `unknown` >= `needed`, more with
    fewer, and infinity with none.

  Privacy: the sup is taken, not bounded. With w the law of a negative binomial
  variable of shape s <= 1, w(g + 1) / w(g) = a (g + s) / (g + 1) is below 1 and
  does not fall with g: w falls and is log-convex. So does, and is, their
  difference's law f(x) = sum_g w(g) w(g + x) for x >= 0, as a sum of such
  functions. Hence f(x) / f(x + t) is largest at x = 0: for x >= 0 by
  convexity, and between -t and 0, where f(-x) <= f(0) and f(t + x) >= f(t).
  Coordinates are independent, so that each takes its own largest ratio. With
  s > 1 there is independent noise on top of the geometric one, whose ratio
  a^-t is met in the tail.
  """
  moves = [abs(int(move)) for move in moves]
  checked_count('unknown', unknown)
  if min(checked_count('bits', bits), checked_count('needed', needed)) < 1:
    raise ValueError(f'{bits=} and {needed=} must be at least 1')
  if unknown >= needed or not any(moves):
    return -math.log1p(-(2.0**-bits)) * sum(moves)
  if not unknown:
    return math.inf
  terms = _SCALES * 2**bits
  law = _negative_binomial(unknown / needed, bits, terms + max(moves))
  chance = lambda move: float(law[:terms] @ law[move : move + terms])
  return sum(math.log(chance(0) / chance(move)) for move in moves)


def _negative_binomial(shape: float, bits: int, size: int) -> np.ndarray:
  """w(0 .. size - 1) of that shape, over w(0)."""
  g = np.arange(1, size)
  steps = np.log1p((shape - 1) / g) + math.log1p(-(2.0**-bits))
  return np.exp(np.concatenate([[0.0], np.cumsum(steps)]))
