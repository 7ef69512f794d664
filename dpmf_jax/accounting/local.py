"""Proved forms without a trusted curator: local noise, and shares of noise.

Local releases: a client adds Gaussian noise to what it sends in every round.
Shares: every client adds a little, and only the sum of a secure aggregation is
seen, which then has the noise of a trusted curator.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dpmf_jax.accounting.events import (
  Composed,
  Gaussian,
  checked_count,
  checked_number,
)


def local_gaussian(
  *, deviations: ArrayLike, sensitivities: ArrayLike
) -> Composed:
  """The event of one release per round with its own noise and sensitivity.

  `accounting.epsilon` composes it exactly, and `accounting.after` cuts it.

  Args:
    deviations: standard deviation of the noise per coordinate, by round.
    sensitivities: how far (L2) a neighbour moves that round's message, or one
      number for all rounds.

  Privacy: round t may depend on all that was sent before, but its sensitivity
  must hold whatever that was: clip what is sent. Rounds compose as
  mu^2 = sum_t (sensitivity_t / deviation_t)^2, without slack.
  """
  deviations = np.asarray(deviations, np.float64)
  sensitivities = np.asarray(sensitivities, np.float64)
  deviations, sensitivities = np.broadcast_arrays(deviations, sensitivities)
  if deviations.ndim != 1:
    raise ValueError(
      f'deviations must have one axis, the rounds, got {deviations.shape}'
    )
  for name, values in (
    ('deviations', deviations),
    ('sensitivities', sensitivities),
  ):
    if not np.all((values > 0) & np.isfinite(values)):
      raise ValueError(f'{name} must be > 0 and finite')
  # Rounded down, which is the safe side.
  multipliers = deviations / sensitivities * (1 - 4e-16)
  return Composed(tuple(Gaussian(multiplier) for multiplier in multipliers))


def local_langevin(
  *, step_size: float, decay: float, rounds: int, sensitivity: float
) -> Composed:
  """The event of stochastic gradient Langevin messages with a decaying step.

  Round t sends eta_t g + N(0, eta_t I) with eta_t = step_size / t^decay, as
  SDCF does with decay = 0.6. The noise shrinks by less than the gradient, so
  the noise multiplier sqrt(eta_t) / (eta_t sensitivity) grows.

  Args:
    step_size: eta at the first round.
    decay: the power of t.
    rounds: T.
    sensitivity: of g, with every scaling that is inside of it (S in the
      literature, the number of ratings), and clipped to hold.
  """
  for name, value in (('step_size', step_size), ('sensitivity', sensitivity)):
    if checked_number(name, value) <= 0:
      raise ValueError(f'{name} must be > 0, got {value!r}')
  decay = checked_number('decay', decay)
  t = np.arange(1, checked_count('rounds', rounds) + 1, dtype=np.float64)
  steps = step_size / t**decay
  return local_gaussian(
    deviations=np.sqrt(steps), sensitivities=steps * sensitivity
  )


def share_shape(num_parties: int, num_colluders: int = 0) -> float:
  """The shape of the gamma variables whose differences are shares of Laplace.

  Each of k parties adds Gamma(shape, b) - Gamma(shape, b), scale b, to what it
  puts into the secure sum; shape = 1/(k - c) against c colluders.

  Reference: Kotz, Kozubowski and Podgorski (2001), Proposition 2.4.1; Goryczka
  and Xiong (2017).

  Privacy: Gamma(s, b) variables add up in s, and Laplace(b) is a difference
  of two Gamma(1, b). Colluders know their shares and take them off the sum;
  the k - c honest ones still add up to Laplace(b), so that the sum is
  sensitivity/b-DP in L1. The more of the k are honest, the more noise there
  is, and it is Laplace(b) plus something independent: post-processing. A party
  that drops out adds nothing and must be counted among the c. It takes a
  secure sum that shows nothing else, and never a partial one.
  """
  parties = checked_count('num_parties', num_parties)
  colluders = checked_count('num_colluders', num_colluders)
  if colluders >= parties:
    raise ValueError(
      f'num_colluders must be below num_parties = {parties}, got {colluders}: '
      'nobody is left to add noise'
    )
  # Rounded up: a larger shape is more noise.
  return math.nextafter(1 / (parties - colluders), math.inf)


def share_variance(
  scale: float, num_parties: int, num_colluders: int = 0
) -> float:
  """The variance of the noise in the sum if nobody colludes after all.

  2 scale^2 k/(k - c), against 2 scale^2 of a trusted curator.
  """
  scale = checked_number('scale', scale)
  if scale <= 0:
    raise ValueError(f'scale must be > 0, got {scale!r}')
  return 2 * scale**2 * num_parties * share_shape(num_parties, num_colluders)
