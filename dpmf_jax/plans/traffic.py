"""Bytes between clients and server, for systems that have both."""

from __future__ import annotations

from dpmf_jax.plans.sdmf import SDCFSettings


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
