"""Integer noise of an exact law, made of coins, for a single count.

A number G of J binary digits, digit j a coin that is 1 with probability
n_j / 2^64, is geometric where n_j / (2^64 - n_j) = e^(-epsilon 2^j). Here the
n_j are integers, so this holds nearly, and what is promised is computed from
them without rounding. The noise is the difference of two such numbers.

Privacy: with P the law of G and M = 2^J - 1, the largest,

  P(g) / P(g + 1) = (2^64 - n_t) / n_t * product of n_j / (2^64 - n_j), j < t

where t is the number of ones that g ends in: there are J such ratios, and the
n_j are chosen one after the other such that all of them are between e^-epsilon
and e^epsilon. The noise Z has P(Z = z) = sum over g of P(g + |z|) P(g). For
z >= 0 it differs from e^epsilon P(Z = z + 1) termwise: P(g + z) <= e^epsilon
P(g + z + 1), but for g + z = M, which is at most P(M) P(M - z). For z < 0
P(Z = z) <= e^epsilon P(Z = z + 1) without exception. So a count that moves by 1
is (epsilon, P(M))-DP: the sum of what is left over is at most P(M).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import NamedTuple

from dpmf_jax.accounting.events import checked_positive

# Of a coin.
WORD_BITS = 64
# With these the noise is below 2^22, and counts up to 2^30 fit int32 with it.
MAX_DIGITS = 22
# epsilon 2^J is at least this, and less than twice as much: the noise ends with
# a chance of about e^-32 at most, where the last coin still has 18 bits.
_REACH = 32.0
# The least epsilon of a count for which there are digits enough.
LEAST = _REACH / 2**MAX_DIGITS


class Law(NamedTuple):
  """Coins of `mechanisms.geometric`, and what they are worth.

  Attributes:
    coins: digit j is 1 with probability coins[j] / 2^64; MAX_DIGITS of them.
    epsilon: for a count that a record moves by 1.
    uncovered: the delta that the ends of the noise cost besides.
  """

  coins: tuple[int, ...]
  epsilon: float
  uncovered: float


@functools.lru_cache
def law(epsilon: float) -> Law:
  """The noise for a count that a record moves by 1.

  >>> found = law(0.01)
  >>> sum(coin > 0 for coin in found.coins), f'{found.uncovered:.0e}'
  (12, '2e-20')

  Raises:
    ValueError: for an epsilon whose noise has more digits than there are, or
      above 1, where a count needs no such care.
  """
  epsilon = checked_positive('epsilon', epsilon)
  digits = max(0, math.ceil(math.log2(_REACH / epsilon)))
  if digits > MAX_DIGITS or epsilon > 1:
    raise ValueError(
      f'epsilon={epsilon!r} of a count must be in [{LEAST:.3g}, 1]'
    )
  whole, most = 2**WORD_BITS, _less_than_exp(epsilon)
  coins, odds, last = [], Fraction(1), Fraction(1)
  for _ in range(digits):
    # The smallest coin for which (whole - coin) / coin * odds <= most.
    coin = math.ceil(whole * odds / (most + odds))
    ratio = Fraction(whole - coin, coin) * odds
    if not 1 <= ratio * most <= most * most:
      raise ValueError(f'epsilon={epsilon!r} is too small for {whole} outcomes')
    coins.append(coin)
    odds *= Fraction(coin, whole - coin)
    last *= Fraction(coin, whole)
  padded = (*coins, *[0] * (MAX_DIGITS - digits))
  return Law(padded, epsilon, math.nextafter(float(last), 1.0))


def _less_than_exp(x: float) -> Fraction:
  """A fraction just below e^x, for x in (0, 1]: terms of its series."""
  exact, term, total = Fraction(x), Fraction(1), Fraction(1)
  for n in range(1, 24):
    term *= exact / n
    total += term
  return total
