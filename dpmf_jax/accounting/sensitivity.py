"""How far one rating can move what is released, and how to share the noise.

These are the numbers that a proof leans on. A system asks for them here and
never types them in again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dpmf_jax.accounting.events import (
  checked_multiplier,
  checked_number,
)
from dpmf_jax.accounting.rounding import RESIDUAL_BITS, shift_rounding

# Noise is drawn larger than it is accounted for by this factor: more than
# float32 rounds off of scales and spacings.
ROUNDED_UP = 1 + 1e-6


def rating_gradient_sensitivity(
  *,
  relation: str,
  rating_range: float,
  clip_norm: float,
  residual_bound: float | None = None,
  rank: int = 1,
  lattice_bits: int | None = None,
) -> float:
  """The L2 sensitivity of either side's gradient sum to a single rating.

  The user gradient is G_u = sum_i e_ui clip(q_i) over the rated items, with
  ||clip(q)|| <= clip_norm and residual e = <p_u, q_i> - r, itself clipped to
  [-residual_bound, residual_bound] if a bound is given. The item gradient is
  the same sum with the sides exchanged, so both have this sensitivity.

  Reference: Mugdho and Imtiaz (2023), eq. (6), for 'replace' without a bound.

  Args:
    relation: 'replace' or 'add_remove'; there is no default on purpose.
    rating_range: rating_max - rating_min. Every rating must lie in the range.
    clip_norm: the largest norm of a factor row in the sum, C.
    residual_bound: where |e| is clipped; None does not clip.
    rank: D, the number of coordinates of a term.
    lattice_bits: where e is rounded to multiples of
      residual_bound / 2^RESIDUAL_BITS, and every coordinate of the exact sum
      to multiples of `lattice_spacing`; None for no rounding.

  Privacy: one rating (u, i) is in one term of the sum, e clip(q_i).
    replace: e moves by at most rating_range, as <p, q> does not change, and a
      clipped e by at most 2 residual_bound also: min of the two, times C.
    add_remove: the term comes or goes, |e| ||clip(q_i)|| <= residual_bound C.
    Rounding e: two values that are x apart are at most x and one multiple
      apart when rounded; residual_bound is a multiple, so it still bounds e.
    Rounding the sum: each of D coordinates moves by at most one spacing more.
    It is needed that p, q and any term outside the sum (say lam p_u) are the
    same for both neighbours: public, or released with noise before; and that
    the sum is not divided by a count of ratings.
  """
  rating_range = _positive('rating_range', rating_range)
  clip_norm = _positive('clip_norm', clip_norm)
  if residual_bound is not None and residual_bound != math.inf:
    bound = _positive('residual_bound', residual_bound)
  else:
    bound = math.inf
  rounding = spacing = 0.0
  if lattice_bits is not None:
    if bound == math.inf:
      raise ValueError('lattice_bits needs a finite residual_bound')
    step = lattice_spacing(bound, clip_norm, lattice_bits)
    rounding = math.sqrt(_positive('rank', rank)) * step
    spacing = bound * 2.0**-RESIDUAL_BITS
  if relation == 'replace':
    return min(rating_range + spacing, 2 * bound) * clip_norm + rounding
  if relation == 'add_remove':
    if bound == math.inf:
      raise ValueError(
        'residual_bound must be finite for relation add_remove, got '
        f'{residual_bound!r}: a rating that comes or goes takes its whole '
        'residual with it, and nothing else bounds that'
      )
    return bound * clip_norm + rounding
  raise ValueError(
    f"relation must be 'replace' or 'add_remove', got {relation!r}"
  )


def lattice_spacing(
  residual_bound: float, clip_norm: float, lattice_bits: int
) -> float:
  """What the coordinates of a gradient are rounded to multiples of."""
  return residual_bound * clip_norm * 2.0**-lattice_bits


class Sensitivities(NamedTuple):
  matrix: float
  vector: float
  pair: float  # of (matrix_scale * A, b)
  relabeled: float  # of b, where a rating only changes its value


def equation_sensitivities(
  *,
  rank: int,
  clip_norm: float,
  label_bound: float,
  weight: float = 1.0,
  matrix_scale: float = 1.0,
  shift: int = 0,
) -> Sensitivities:
  """L2 bounds on what a rating of at most `weight` adds to A and b.

  Privacy: of `normal.lattice_equations` times its spacings. A's norm is that of
  the symmetric matrix, with entries off the diagonal twice: noise on the
  triangle may be sqrt(1/2) as large there. As |l_a| <= w |p_a|, A's term is at
  most w ||p||^2 and b's w ||p|| |y|; after rounding ||p|| <= (1 - 1e-5)
  clip_norm, |y| <= label_bound. A changed value moves y by 2 label_bound, and
  not A. A shift moves D^2 entries of A and D of b by up to one spacing more.
  """
  if not 0 < weight <= 1 or min(rank, clip_norm, label_bound) <= 0:
    got = f'{rank=}, {clip_norm=}, {label_bound=}, {weight=}'
    raise ValueError(f'all must be > 0 and weight <= 1, got {got}')
  added = shift_rounding(shift)
  matrix = clip_norm**2 * (weight + rank * added)
  vector = clip_norm * label_bound * (weight + rank**0.5 * added)
  pair = math.hypot(matrix_scale * matrix, vector)
  relabeled = vector + clip_norm * label_bound * weight
  return Sensitivities(matrix, vector, pair, relabeled)


def interaction_sensitivity(full_profile: float) -> float:
  """How far one interaction moves its user's term y z^T of a ranking, in L2.

  A user's row is r >= 0, with one entry of at most 1 for each interaction, and
  n = ||r||. With N = `full_profile`, y = r / max(n, sqrt(N)), and z = q /
  max(n, ||q||), q = sum of r_i e_i with public ||e_i|| <= 1.

  Privacy: sqrt(2 / N), which no smaller number would do for. One interaction
  more, r_i = t, turns n into n' = sqrt(n^2 + t^2). Its own row of the term,
  which was 0, is at most t / sqrt(N), and all other rows together move by about
  as much where nothing is clipped; where something is, one of the two is
  shorter for what the other is longer. docs/privacy/ranking_mf.md, item 3, has
  the proof that their squares never sum to more than 2 t^2 / N.
  """
  full_profile = checked_number('full_profile', full_profile)
  if not full_profile >= 1:
    raise ValueError(f'full_profile={full_profile!r} must be at least 1')
  return (2 / full_profile) ** 0.5


def split_noise_multiplier(
  noise_multiplier: float, user_share: float
) -> tuple[float, float]:
  """The (user, item) multipliers that jointly have `noise_multiplier`.

  `user_share` of the step's mu^2 = 1/noise_multiplier^2 is spent on the user
  gradient and the rest on the item gradient; 0.5 gives both the same noise.
  1 / sqrt(sum of 1/m^2) of the two is ROUNDED_UP times the input.
  """
  noise_multiplier = checked_multiplier(noise_multiplier)
  user_share = checked_number('user_share', user_share)
  if not 0 < user_share < 1:
    raise ValueError(
      f'user_share must be in (0, 1), got {user_share!r}: the side with '
      'nothing left to spend would need infinite noise'
    )
  more = noise_multiplier * ROUNDED_UP
  return more / math.sqrt(user_share), more / math.sqrt(1 - user_share)


def _positive(name: str, value: float) -> float:
  value = checked_number(name, value)
  if value <= 0:
    raise ValueError(f'{name} must be > 0, got {value!r}')
  return value
