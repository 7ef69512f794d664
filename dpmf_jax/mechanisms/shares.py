"""Shares of integer noise whose sum is two-sided geometric, exactly.

The noise. With a = 1 - 2^-B, P(X = x) = (1 - a)/(1 + a) a^|x|: the Laplace
distribution of the integers. It is the difference of two geometric variables,
P(G = g) = (1 - a) a^g. A geometric variable is the sum of m variables with the
negative binomial (Polya) law of shape 1/m: their generating functions are
((1 - a)/(1 - a z))^(1/m). So each of m parties draws a difference of two such
variables, and the sum of all is X. On the ring of integers modulo 2^32 that is
still so, since reduction there commutes with sums.

Why not Gamma differences, which add up to Laplace noise on the reals: they
would be floats, and neither their sampler nor their rounding is exact.

Privacy: a statistic of integers that moves by at most M in L1 norm, with
independent noise X on each coordinate, is M ln(1/a)-DP, because a^|x| moves by
at most a factor of 1/a for a move of 1. `accounting.shares.largest_move` is the
largest M for an epsilon: data are scaled to the noise instead of noise to the
data, so that all probabilities are rational and can be drawn without rounding.
Colluders know their own shares; parties that drop out add none. With shapes
1/(k - c), the k - c others still add up to X, and shares beyond that are
independent of everything: post-processing.
"""

from __future__ import annotations

import fractions
import functools
import math
import secrets
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.accounting.shares import MAX_SHARE_BITS

# Jumps of 2^(B + _LONG) and more have a cell of their own; digits end there.
_LONG = 6


def variance(bits: int) -> float:
  """Of X: 2 a / (1 - a)^2."""
  return 2 * (1 - 2.0**-bits) * 4.0**bits


def reach(bits: int) -> int:
  """A bound on |X| that fails with a chance of at most 2 exp(-64)."""
  return 2 ** (bits + _LONG)


def polya_shares(
  size: int,
  parties: int,
  bits: int,
  below: Callable[[int], int] = secrets.randbelow,
) -> np.ndarray:
  """One party's shares, int64 [size]; those of `parties` add up to X.

  Args:
    size: how many coordinates.
    parties: m, the number of shares that make X: k - c.
    bits: B.
    below: n -> a uniform integer in 0 .. n - 1; the operating system's.

  The law of shape r = 1/m, exactly: the logarithm of its generating function
  is r sum_i (z^i - 1) a^i / i, so that it is the sum over i >= 1 of i times a
  Poisson variable of mean r a^i / i. These are thinned from Poisson variables
  of mean r, one for each of these cells:
    b < B + 6: candidates i uniform in 2^b .. 2^(b+1) - 1, which is a rate of
      r 2^-b >= r / i each; kept with chance 2^b / i times a^i;
    the last, L = 2^(B+6): kept with chance 2^-6, then i = L + G with G
      geometric, a rate of r 2^-6 (1 - a) a^(i-L) = (r / L) a^(i-L); kept with
      chance L / i times a^L.
  All cells of all coordinates and both signs have the same mean, so their sum
  is one Poisson variable whose points fall into cells uniformly. Chances are
  rational, and coins of chance a^i are flipped with as many digits of a^i as
  it takes. No float is involved.
  """
  if size < 0 or parties < 1 or not 1 <= bits <= MAX_SHARE_BITS:
    raise ValueError(f'{size=}, {parties=}, {bits=}: must be >= 0, >= 1, 1..20')
  shares = np.zeros(size, np.int64)
  cells = bits + _LONG + 1
  for _ in range(_poisson(2 * size * cells, parties, below)):
    jump = _jump(below(cells), bits, below)
    place = below(2 * size)
    shares[place >> 1] += -jump if place & 1 else jump
  return shares


def _jump(cell: int, bits: int, below: Callable[[int], int]) -> int:
  """What a candidate of that cell adds: 0 if it is not kept."""
  last = bits + _LONG
  if cell < last:
    jump = 2**cell + below(2**cell)
    kept = below(jump) < 2**cell and _power_coin(jump, bits, below)
    return jump if kept else 0
  if below(2**_LONG) or not _power_coin(2**last, bits, below):
    return 0
  jump = 2**last
  while below(2**bits):  # geometric: goes on with chance a
    jump += 1
  return jump if below(jump) < 2**last else 0


def _poisson(top: int, bottom: int, below: Callable[[int], int]) -> int:
  """A Poisson variable of mean top / bottom, exactly."""
  # n of mean 1, each point kept with chance top / (bottom n).
  n = -(-top // bottom)
  return sum(
    below(bottom * n) < top
    for _ in range(n)
    for _ in range(_poisson_one(below))
  )


def _poisson_one(below: Callable[[int], int]) -> int:
  """A Poisson variable of mean 1, exactly.

  n is proposed with chance 2^-(n+1), and kept with 2^(n-1) / n!, at most 1.
  """
  while True:
    n = 0
    while below(2):
      n += 1
    if below(2 * math.factorial(n)) < 2**n:
      return n


def _power_coin(power: int, bits: int, below: Callable[[int], int]) -> bool:
  """Whether a coin of chance a^power falls: exactly.

  A uniform number is compared with a^power digit by digit, 64 at a time.
  """
  digits, drawn = 64, below(2**64)
  while True:
    low, high = _power_bounds(power, bits, digits)
    if drawn < low:
      return True
    if drawn >= high:
      return False
    digits, drawn = digits + 64, (drawn << 64) + below(2**64)


@functools.lru_cache(maxsize=4096)
def _power_bounds(power: int, bits: int, digits: int) -> tuple[int, int]:
  """Integers with low <= a^power 2^digits <= high, close to one another."""
  places = digits + 32
  low = high = 2**places
  base = (2**bits - 1) << (places - bits)
  square_low = square_high = base
  while power:
    if power & 1:
      low = low * square_low >> places
      high = -(-high * square_high >> places)
    power >>= 1
    square_low = square_low * square_low >> places
    square_high = -(-square_high * square_high >> places)
  return low >> 32, -(-high >> 32)


def two_sided_geometric(
  key: jax.Array, shape: tuple[int, ...], bits: int
) -> jax.Array:
  """X as int32 from a JAX key, for simulators and trusted curators.

  The binary digits of a geometric variable are independent, digit j being 1
  with chance 1/(1 + a^-(2^j)), because a^g is a product over its digits. They
  are drawn from 64 random bits each, up to j = B + 5.

  Privacy: each digit's chance is right to 2^-65, and with a chance of at most
  exp(-64) a variable has further digits. So the law of X is within 1e-17 of
  the exact one in total variation, for each coordinate.
  """
  digits = bits + _LONG
  words = jax.random.bits(key, (2, 2, digits, *shape), 'uint32')
  ones = (1,) * len(shape)
  high, low = (
    part.reshape(1, digits, *ones) for part in _digit_thresholds(bits)
  )
  less = (words[0] < high) | ((words[0] == high) & (words[1] < low))
  values = jnp.left_shift(jnp.int32(1), jnp.arange(digits, dtype=jnp.int32))
  values = values.reshape(1, digits, *ones)
  both = jnp.where(less, values, 0).sum(axis=1, dtype=jnp.int32)
  return both[0] - both[1]


@functools.cache
def _digit_thresholds(bits: int) -> tuple[np.ndarray, np.ndarray]:
  """2^64 times the chance of each digit, nearest, as high and low words."""
  high, low = [], []
  for digit in range(bits + _LONG):
    small, large = _power_bounds(2**digit, bits, 128)
    power = fractions.Fraction(small + large, 2**129)
    chance = round(power / (1 + power) * 2**64)
    high.append(chance >> 32)
    low.append(chance & 0xFFFFFFFF)
  return np.array(high, np.uint32), np.array(low, np.uint32)
