"""How sums are kept exact and noise is rounded: numbers that proofs lean on.

Sums that get noise are of integers, and noise is rounded to their lattice. How
many bits numbers have, how much noise fits and how far float32 can be off is
said here, once, for the kernels and for the plans that pay for it.
"""

from __future__ import annotations

import math

import numpy as np

# Draws come with a uniform integer of so many bits.
DITHER_BITS = 16
# A dither is at most this part of the noise: 2^-6 of it, in bits.
_BELOW = 6
# The largest noise, over the spacing of its lattice; the dither then has
# DITHER_BITS bits.
MAX_STD = 2.0 ** (DITHER_BITS + _BELOW)

# A product of two integers that are summed has so many bits.
PRODUCT_BITS = 18
# A slice of so many products stays below 2^24, exact in float32.
MAX_SLOTS = 2 ** (24 - PRODUCT_BITS)
# Residuals are rounded to 2^-8 of their bound where sums have to be exact.
RESIDUAL_BITS = 8
# A rating's weight in normal equations: times a factor, exact in float32.
WEIGHT_BITS = 14
# An item's weight in `kernels.user_sums` is at most this.
MAX_ITEM_WEIGHT = 4.0
# Sums of users' terms stay below 2^30, which leaves room for noise.
_SUM_BITS = 30

# Labels of `kernels.moments` are integers of at most 2^LABEL_BITS in size, and
# residuals twice that: so many squares of them have a sum of at most 2^30.
LABEL_BITS = 9
MAX_TABLE_ITEMS = 2 ** (30 - 2 * (LABEL_BITS + 1))

# Labels of `kernels.huber` are integers of at most 2^HUBER_BITS in size.
HUBER_BITS = 18
# Relative errors of float32 that decide on which side of the minimum a place
# is: those of `slope * q`, of the sum with `push` and of the sum of residuals.
HUBER_ERROR = 2.0**-20


def rounded_up(value: float | np.ndarray) -> np.ndarray:
  """`value` as float32, never smaller: rounding must not remove noise."""
  rounded = np.asarray(value, np.float32)
  # In float64: in float32 they would be equal.
  less = rounded.astype(np.float64) < value
  return np.where(less, np.nextafter(rounded, np.float32('inf')), rounded)


def dither_bits(std: float, spacing: float) -> int:
  """How many bits of dither noise needs on a lattice of that spacing."""
  return max(0, min(DITHER_BITS, math.frexp(std / spacing)[1] - 1 - _BELOW))


def least_shift(longest: int, slots: int) -> int:
  """The smallest shift for rows of up to `longest` ratings: sums <= 2^30."""
  shift = max(0, (longest - 1).bit_length() - (30 - PRODUCT_BITS))
  if slots > MAX_SLOTS or (-(-longest // slots) + 1) << shift >= 2**31:
    raise ValueError(f'{longest} ratings in slices of {slots} overflow int32')
  return shift


def shift_rounding(shift: int) -> float:
  """What dropping `shift` bits can add to one sum's move, over a term of 1."""
  # Spacings are float32, which the slack in ||p|| covers for one term only.
  return 1.000001 * 2.0 ** (shift - PRODUCT_BITS) if shift else 0.0


def user_term_bound(
  label_bound: float, count_scale: float, vector_bound: float
) -> float:
  """The largest size of one number of one term of `kernels.user_sums`."""
  largest = max(count_scale, label_bound * max(1.0, vector_bound))
  return MAX_ITEM_WEIGHT * largest


def smallest_spacing(num_users: int, largest: float) -> float:
  """The finest lattice on which sums of `num_users` terms fit: a power of 2."""
  bits = _SUM_BITS - (num_users - 1).bit_length()
  return math.ldexp(1.0, math.frexp(largest)[1] - bits)
