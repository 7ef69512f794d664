"""Bytes between clients and server, for systems that have both."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from dpmf_jax.plans.sdmf import SDCFSettings
  from dpmf_jax.plans.untrusted_pmf import UntrustedPMFConfig

_SEED = (1, (32,))


def bytes_per_round(
  *, num_items: int, rank: int, sent: float, shared: int = 0
) -> dict[str, float]:
  """Bytes that a client receives and, on average, sends in a round.

  Down: item factors in float32. Up: for each of the `sent` gradients an item
  number and float32 values, and one byte with the convergence bit. Both ways:
  `shared` float32 weights of no single item.
  """
  return {
    'bytes_down': 4.0 * (num_items * rank + shared),
    'bytes_up': sent * (4.0 + 4.0 * rank) + 4.0 * shared + 1,
  }


def traffic(
  config: SDCFSettings,
  *,
  num_users: int,
  num_items: int,
  num_ratings: int,
  width: int | None = None,
  shared: int = 0,
) -> dict[str, float] | None:
  """`bytes_per_round` of a client that is online; None without clients.

  `width` is that of an item's weights, if it is not the rank.
  """
  if config.variant == 'none':
    return None
  sent = num_ratings / num_users if config.sent is None else config.sent
  return bytes_per_round(
    num_items=num_items, rank=width or config.rank, sent=sent, shared=shared
  )


def message_bytes(*arrays: tuple[int, tuple[int, ...]]) -> int:
  """Bytes of a message with these arrays: (bytes of a value, shape) of each.

  As `federated.messages` writes it.
  """
  return 16 + sum(
    2 + 4 * len(shape) + size * math.prod(shape) for size, shape in arrays
  )


def round_bytes(
  *, rank: int, num_items: int, users: str, masks: str = 'sent'
) -> dict[str, int]:
  """Bytes of one user's messages in a round of gradients, as serialised.

  Args:
    rank: D.
    num_items: how many items the user rated.
    users: 'static' or 'dynamic'.
    masks: 'sent', or 'seed' where a seed is sent in their place.
  """
  words = (4, (num_items, rank))
  pieces = [words] if users == 'dynamic' else []
  up = message_bytes(words)
  down = message_bytes(words, words if masks == 'sent' else _SEED, *pieces)
  return {
    'up': up,
    'down': down,
    'round': up + down,
    'setup_down': message_bytes((4, (num_items,)), words),
  }


def sum_bytes(
  *, num_items: int, rank: int = 1, masks: str = 'seed'
) -> dict[str, int]:
  """Bytes of one user's messages in the sound round, as serialised."""
  words = (4, (num_items, rank * (rank + 3) // 2))
  up = message_bytes(words)
  released = message_bytes((4, (num_items, rank)))
  down = message_bytes(_SEED if masks == 'seed' else words) + released
  return {'up': up, 'down': down, 'round': up + down}


def communication(
  config: UntrustedPMFConfig,
  *,
  num_items: int,
  ratings_per_user: float,
  masks: str | None = None,
) -> dict[str, float]:
  """Bytes up and down of the mean user in a round, for metrics.json.

  Args:
    config: of the system.
    num_items: I, all of which a user reports on (sound).
    ratings_per_user: the mean, of those that a user reports on (paper).
    masks: 'sent' (paper's default) or 'seed' (sound's).
  """
  if config.variant == 'sound':
    return dict(sum_bytes(num_items=num_items, masks=masks or 'seed'))
  # Sizes are linear in the number of ratings.
  few = int(ratings_per_user)
  low, high = (
    round_bytes(
      rank=config.rank,
      num_items=number,
      users=config.users,
      masks=masks or 'sent',
    )
    for number in (few, few + 1)
  )
  part = ratings_per_user - few
  return {k: round(low[k] + part * (high[k] - low[k]), 1) for k in low}
