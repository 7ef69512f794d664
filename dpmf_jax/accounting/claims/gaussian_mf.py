"""What the paper of Gaussian MF claims for its user factors.

  eps_opt = a + 2 sqrt(a log(1/delta_r)), a = J eps_i^2 / (4 log(1.25/delta))

with `delta` for delta_r, and `delta_per_step` for the paper's delta. It does
not hold for Algorithm 1: the item factors are updated from the ratings without
noise and enter the next user gradient, which the composition over noised user
gradients does not cover.

Reference: Mugdho and Imtiaz (2023), Theorem 2 and eq. (9).
"""

from __future__ import annotations

import math

from dpmf_jax.accounting.events import (
  ClaimedGaussianMF,
  checked_count,
  checked_delta,
  checked_positive,
)


def slope(event: ClaimedGaussianMF) -> float:
  """a: the Renyi divergence of J steps of that noise, over the order."""
  log_term = math.log(1.25 / event.delta_per_step)
  return event.count * event.epsilon_per_step**2 / (4 * log_term)


def claimed_gaussian_mf_order(
  *, steps: int, epsilon_per_step: float, delta_per_step: float, delta: float
) -> float:
  """The Renyi order alpha* at which eq. (9) is reached.

  Reference: Mugdho and Imtiaz (2023), eq. (8).
  """
  a = slope(ClaimedGaussianMF(epsilon_per_step, delta_per_step, steps))
  if a == 0:
    raise ValueError(f'steps must be >= 1, got {steps}: no order is the best')
  return 1 + math.sqrt(-math.log(checked_delta(delta)) / a)


def claimed_gaussian_mf_noise_multiplier(
  epsilon_per_step: float, delta_per_step: float
) -> float:
  """The paper's noise over its sensitivity, sqrt(2 log(1.25/delta)) / eps_i.

  Reference: Mugdho and Imtiaz (2023), Theorem 1 (the classical Gaussian
  mechanism, proved for eps_i < 1 only) and Algorithm 1, line 6.
  """
  step = ClaimedGaussianMF(epsilon_per_step, delta_per_step, 1)
  root = math.sqrt(2 * math.log(1.25 / step.delta_per_step))
  return root / step.epsilon_per_step


def claimed_gaussian_mf_epsilon_per_step(
  *, epsilon: float, steps: int, delta_per_step: float, delta: float
) -> float:
  """The eps_i for which eq. (9) gives `epsilon`: its inverse in closed form.

  With L = log(1/delta), eq. (9) is (sqrt(a) + sqrt(L))^2 - L, so that
  sqrt(a) = sqrt(L + epsilon) - sqrt(L).
  """
  epsilon = checked_positive('epsilon', epsilon)
  root = math.sqrt(-math.log(checked_delta(delta)))
  steps = checked_count('steps', steps, 1)
  sqrt_a = epsilon / (math.hypot(root, math.sqrt(epsilon)) + root)
  log_term = math.log(1.25 / checked_delta(delta_per_step, 'delta_per_step'))
  per_step = 2 * sqrt_a * math.sqrt(log_term / steps)
  if per_step >= 1:
    raise ValueError(
      f'epsilon must be lower for {steps} steps, got {epsilon!r}: it needs '
      f'epsilon_per_step = {per_step:.4g}, and the paper allows (0, 1)'
    )
  return per_step
