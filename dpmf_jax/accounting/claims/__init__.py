"""What the papers say their algorithms guarantee, by the papers' formulas.

A claim is no proof: it is computed to reproduce the papers' figures, and to be
set against what an audit measures.
"""

from __future__ import annotations

import math

from dpmf_jax.accounting.claims import gaussian_mf
from dpmf_jax.accounting.events import (
  ClaimedEvent,
  ClaimedPure,
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
  a = gaussian_mf.slope(event)
  return a + 2 * math.sqrt(-a * math.log(checked_delta(delta)))  # eq. (9)


def claimed_delta(event: ClaimedEvent, epsilon: float) -> float:
  """The delta that the paper of the event claims at `epsilon`."""
  epsilon = checked_epsilon(epsilon)
  if isinstance(event, ClaimedPure):
    # Below it the claim says nothing.
    return 1.0 if epsilon < event.epsilon * event.count else 0.0
  a = gaussian_mf.slope(event)
  return math.exp(-(max(epsilon - a, 0.0) ** 2) / (4 * a)) if a else 0.0
