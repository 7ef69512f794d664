"""Masks of reports: the recommender sends seeds, the third party has none.

A user's mask in a round comes from a seed that the user's node and the
recommender know. The third party adds up masked words and passes on the sum.
"""

from __future__ import annotations

import numpy as np

from dpmf_jax.federated.checks import Arrays
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.plan import Plan
from dpmf_jax.mechanisms import secure_sum


def new_seeds(num_users: int) -> np.ndarray:
  """A seed for each user, uint8 [U, 32]."""
  seeds = b''.join(secure_sum.new_seed() for _ in range(num_users))
  return np.frombuffer(seeds, np.uint8).reshape(num_users, -1)


# The seeds that a node is sent.
SEEDS = f'seeds uint8[n,{secure_sum.SEED_BYTES}]'


def seeded(plan: Plan, state: Leaves, *more: Arrays) -> dict[int, Arrays]:
  """Questions with the seeds of each node's users, and more for each node."""
  parts = more or [()] * len(plan.nodes)
  return {
    number: (state['seeds'][node.users], *part)
    for number, (node, part) in enumerate(zip(plan.nodes, parts, strict=True))
  }


def mask(
  seed: np.ndarray, shape: tuple[int, ...], round: int, user: int
) -> np.ndarray:
  """A user's mask in a round: ChaCha20's nonce has both."""
  return secure_sum.seed_mask(seed.tobytes(), shape, round=round, sender=user)


def masked_words(
  counts: np.ndarray, share: np.ndarray, mask: np.ndarray
) -> np.ndarray:
  """What is reported: own integers plus share of noise plus mask, mod 2^32.

  Args:
    counts: own integers: `sums_protocol.own_sums` for all items (sound), or
      `untrusted.rounds.gradient_counts` for own items (paper).
    share: of noise, integers of the same shape.
    mask: uint32, uniform, used once.
  """
  total = np.asarray(counts, np.int64) + np.asarray(share, np.int64)
  return secure_sum.masked(secure_sum.on_ring(total), mask)
