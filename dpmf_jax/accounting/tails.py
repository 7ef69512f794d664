"""The ends of noise that is drawn in floats, and what they cost in delta.

A curve is about exact noise. Draws of `mechanisms.noise` and of
`mechanisms.laplace` are near that up to a radius, and end not far beyond it.
What a record can tell by it is bounded here, for `uncovered` of an event.
"""

from __future__ import annotations

import math

# Up to this radius the values that `mechanisms.noise` draws are closer together
# than the dither, or the lattice; the 64 bits of the largest radii, k 2^-64
# with k < 32, are beyond.
REACH = 9.0
# Up to here the bits of `mechanisms.laplace` have no gaps.
LAPLACE_REACH = 50.0
# No draw of it is larger, in size; e^-67.3 is 2^-97.
LAPLACE_END = 68.0
# A draw x of it is within this times 1 + |x| of one that is Laplace, up to
# LAPLACE_REACH.
LAPLACE_ERROR = 2.0**-20
# The largest delta that the ends of draws may leave uncovered. The delta that
# is stated pays for it.
UNCOVERED = 1e-9
# A pair that is moved by less than this many standard deviations counts as if
# it were moved by as many; see `uncovered_jointly`.
_MIN_MOVE = 0.12


def beyond(radius: float) -> float:
  """A bound on the chance that the radius of a pair is `radius` or more.

  For a Gaussian pair it is exp(-radius^2 / 2). Ours has 64 random bits for it,
  which can add 2^-65 to that, a hundredth of it at REACH, and the rounding of
  float32, less than 1e-4 of it.
  """
  return 1.02 * math.exp(-(radius**2) / 2)


def uncovered(noise_multiplier: float, num_draws: int) -> float:
  """A delta for what float32 draws cannot do: reach beyond REACH.

  Args:
    noise_multiplier: the noise over how far a record moves all that gets a
      draw in a step, since both draws of a pair may be moved.
    num_draws: how many draws the record moves, in all steps.

  Privacy: draws come in pairs, and a pair is taken as Gaussian where its
  radius, both as it is and moved by the record, is below REACH. The record
  moves one draw of a pair or both, and so at most `num_draws` pairs, each by
  at most 1/m, the length of its whole move. A radius that is not below REACH
  before and after that is at least REACH - 1/m, so that the chances of all
  these pairs sum to at most `num_draws` times `beyond` of that. What is
  (epsilon, delta) for exact Gaussians is (epsilon, delta + the sum) for ours.
  """
  room = max(0.0, REACH - 1 / noise_multiplier)
  return num_draws * beyond(room)


def uncovered_jointly(noise_multiplier: float, num_draws: int) -> float:
  """`uncovered` for one release where a record moves many draws a little.

  Args:
    noise_multiplier: the noise over how far a record moves all draws together.
    num_draws: how many draws it moves.

  Privacy: as above a pair that is moved by s costs f(s), f(s) = beyond(R - s)
  with R = REACH, and there are at most n = `num_draws` of them. Each draw is
  in one pair, so that the squares of the pairs' s add up to that of the whole
  move, at most x = 1/m^2. As a function of s^2, f is convex from s = 0.12 to
  7, as (R - s)^2 s >= R there, so it is below the chord f(0.12) + (s^2/x)
  f(sqrt(x)); below 0.12 it is at most f(0.12). The sum over all pairs is at
  most n f(0.12) + f(sqrt(x)).
  """
  most = 1 / noise_multiplier
  if most > 7:
    return num_draws * beyond(0.0)
  return num_draws * beyond(REACH - _MIN_MOVE) + beyond(REACH - most)


def max_draws(lost: float) -> int:
  """As many draws as `uncovered_jointly` has where it is at most `lost`."""
  return math.ceil(lost / beyond(REACH - _MIN_MOVE))


def max_laplace_epsilon() -> float:
  """The largest epsilon for which `laplace_uncovered` is at most UNCOVERED."""
  return math.log(UNCOVERED / laplace_uncovered(0.0)) - 1e-12


def laplace_uncovered(epsilon: float) -> float:
  """A delta for the ends of two draws of `mechanisms.laplace`.

  Privacy: a record that moves a draw by less than epsilon has both below
  R = LAPLACE_REACH, as they are and moved, but for a chance of 4 e^(epsilon -
  R).
  """
  return 4 * math.exp(epsilon - LAPLACE_REACH)


def max_l2_laplace_epsilon(dimension: int, lost: float = UNCOVERED) -> float:
  """The same for one draw of `laplace.l2_laplace` in that many dimensions.

  With `lost` in place of UNCOVERED; minus infinity where there is none.
  """
  most = 2 * lost / l2_laplace_uncovered(0.0, dimension) - 1
  return math.log(most) - 1e-3 if most > 0 else -math.inf


def l2_laplace_uncovered(epsilon: float, dimension: int) -> float:
  """A delta for the ends of one draw of `laplace.l2_laplace`.

  Privacy: the 2 D + 1 normal draws that it is made of are in at most as many
  pairs. But for a chance p = (2 D + 1) `beyond`(R), R = REACH,
  all these have radii below R, for either neighbour, which costs a delta of at
  most (1 + e^epsilon) p besides epsilon.
  """
  chance = (2 * dimension + 1) * beyond(REACH)
  return (1 + math.exp(epsilon)) * chance
