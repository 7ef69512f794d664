"""What the papers say their algorithms guarantee, by the papers' formulas.

Everything here is called `claimed_*`. A claim is no proof: it is computed to
reproduce the papers' figures, and to be set against what an audit measures.
"""

from __future__ import annotations

import math

from dpmf_jax.accounting.events import (
  ClaimedEvent,
  ClaimedGaussianMF,
  ClaimedPure,
  checked_count,
  checked_delta,
  checked_epsilon,
  checked_number,
)


def claimed_epsilon(event: ClaimedEvent, delta: float) -> float:
  """The epsilon that the paper of the event claims at `delta`."""
  if isinstance(event, ClaimedPure):
    if checked_number('delta', delta) != 0:
      checked_delta(delta)
    return event.epsilon * event.count
  return claimed_gaussian_mf(
    steps=event.count,
    epsilon_per_step=event.epsilon_per_step,
    delta_per_step=event.delta_per_step,
    delta=delta,
  )


def claimed_delta(event: ClaimedEvent, epsilon: float) -> float:
  """The delta that the paper of the event claims at `epsilon`."""
  if isinstance(event, ClaimedPure):
    below = checked_epsilon(epsilon) < event.epsilon * event.count
    return 1.0 if below else 0.0  # below it the claim says nothing
  return claimed_gaussian_mf_delta(
    steps=event.count,
    epsilon_per_step=event.epsilon_per_step,
    delta_per_step=event.delta_per_step,
    epsilon=epsilon,
  )


def claimed_gaussian_mf(
  *, steps: int, epsilon_per_step: float, delta_per_step: float, delta: float
) -> float:
  """The overall epsilon that the paper claims for its user factors.

  Reference: Mugdho and Imtiaz (2023), Theorem 2 and eq. (9):
  eps_opt = a + 2 sqrt(a log(1/delta_r)), a = J eps_i^2 / (4 log(1.25/delta)),
  here with delta_r = delta and the paper's delta = delta_per_step.

  Privacy: does not hold for Algorithm 1. The item factors are updated from
  the ratings without noise and enter the next user gradient, which the
  composition over noised user gradients does not cover.
  """
  a = _a(steps, epsilon_per_step, delta_per_step)
  return a + 2 * math.sqrt(-a * math.log(checked_delta(delta)))  # eq. (9)


def claimed_gaussian_mf_order(
  *, steps: int, epsilon_per_step: float, delta_per_step: float, delta: float
) -> float:
  """The Renyi order alpha* at which eq. (9) is reached.

  Reference: Mugdho and Imtiaz (2023), eq. (8).
  """
  a = _a(steps, epsilon_per_step, delta_per_step)
  if a == 0:
    raise ValueError(f'steps must be >= 1, got {steps}: no order is the best')
  return 1 + math.sqrt(-math.log(checked_delta(delta)) / a)  # eq. (8)


def claimed_gaussian_mf_delta(
  *, steps: int, epsilon_per_step: float, delta_per_step: float, epsilon: float
) -> float:
  """The delta at which eq. (9) gives `epsilon`; 1 where no delta < 1 does."""
  a = _a(steps, epsilon_per_step, delta_per_step)
  epsilon = checked_epsilon(epsilon)
  if a == 0:
    return 0.0
  return math.exp(-(max(epsilon - a, 0.0) ** 2) / (4 * a))


def claimed_gaussian_mf_noise_multiplier(
  epsilon_per_step: float, delta_per_step: float
) -> float:
  """The paper's noise over its sensitivity, sqrt(2 log(1.25/delta)) / eps_i.

  Reference: Mugdho and Imtiaz (2023), Theorem 1 (the classical Gaussian
  mechanism, proved for eps_i < 1 only) and Algorithm 1, line 6.
  """
  event = ClaimedGaussianMF(epsilon_per_step, delta_per_step, 1)
  return (
    math.sqrt(2 * math.log(1.25 / event.delta_per_step))
    / event.epsilon_per_step
  )


def claimed_gaussian_mf_epsilon_per_step(
  *, epsilon: float, steps: int, delta_per_step: float, delta: float
) -> float:
  """The eps_i for which eq. (9) gives `epsilon`: its inverse in closed form.

  With L = log(1/delta), eq. (9) is (sqrt(a) + sqrt(L))^2 - L, so that
  sqrt(a) = sqrt(L + epsilon) - sqrt(L).
  """
  epsilon, root = (
    checked_epsilon(epsilon),
    math.sqrt(-math.log(checked_delta(delta))),
  )
  if epsilon == 0:
    raise ValueError('epsilon must be > 0, got 0.0')
  if checked_count('steps', steps) == 0:
    raise ValueError('steps must be >= 1, got 0')
  sqrt_a = epsilon / (math.hypot(root, math.sqrt(epsilon)) + root)
  per_step = (
    2
    * sqrt_a
    * math.sqrt(
      math.log(1.25 / checked_delta(delta_per_step, 'delta_per_step')) / steps
    )
  )
  if per_step >= 1:
    raise ValueError(
      f'epsilon must be lower for {steps} steps, got {epsilon!r}: it needs '
      f'epsilon_per_step = {per_step:.4g}, and the paper allows (0, 1)'
    )
  return per_step


def _a(steps: int, epsilon_per_step: float, delta_per_step: float) -> float:
  """J eps_i^2 / (4 log(1.25/delta)): J RDP steps of that noise, over alpha."""
  event = ClaimedGaussianMF(epsilon_per_step, delta_per_step, steps)
  log_term = math.log(1.25 / event.delta_per_step)
  return event.count * event.epsilon_per_step**2 / (4 * log_term)
