"""What the parties send one another, as pure functions on messages.

Sound, one round; the masks of a user are known to the user and the
recommender, and so are seeds in their place:

  user          client_report(sums of own ratings, own share, mask) -> Report
  third party   aggregate(reports) -> Aggregate, or BrokenRoundError
  recommender   server_apply(aggregate, masks) -> item vectors

As published, a round of gradients: `gradient_report`, `secure_sum.aggregate`
and `gradient_apply`; with dynamic users the noise is collected before the first
(`collected_noise`) and dealt out in every round (`dealt_pieces`). Shares come
from `client_share`, masks from `secure_sum`. The simulators in
`untrusted_sums` and `untrusted_rounds` compute the same sums from the same
terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from dpmf_jax.federated import messages
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.mechanisms import secure_sum, shares
from dpmf_jax.mechanisms.secure_sum import Aggregate, Report
from dpmf_jax.plans.untrusted_pmf import UntrustedPMFConfig
from dpmf_jax.systems.untrusted import rounds as untrusted_rounds
from dpmf_jax.systems.untrusted import sums as untrusted_sums


def client_report(
  counts: np.ndarray,
  share: np.ndarray,
  mask: np.ndarray,
  *,
  round: int,
  sender: int,
) -> Report:
  """What a user sends: own integers plus share of noise plus mask, mod 2^32.

  Args:
    counts: own integers: `untrusted_sums.user_sums` for all items (sound), or
      `untrusted_rounds.gradient_counts` for own items (paper).
    share: of noise, integers of the same shape.
    mask: uint32, uniform, used once.
    round, sender: which report it is.
  """
  words = secure_sum.on_ring(
    np.asarray(counts, np.int64) + np.asarray(share, np.int64)
  )
  return Report(round, sender, secure_sum.masked(words, mask))


def client_share(
  config: UntrustedPMFConfig, num_users: int, num_items: int, rank: int = 1
) -> np.ndarray:
  """One user's share of noise [I, W] from the operating system (sound).

  Privacy: exact; those of any num_users - colluders - dropouts users add up to
  the two-sided geometric noise of the guarantee.
  """
  width = rank * (rank + 3) // 2
  share = np.zeros((num_items, width), np.int64)
  noised = untrusted_sums.noised_columns(rank, config.relation)
  block = share[:, noised]
  drawn = shares.polya_shares(
    block.size, num_users - config.unneeded, config.noise_bits
  )
  block[...] = drawn.reshape(block.shape)
  return share


def aggregate(
  reports: Iterable[Report],
  config: UntrustedPMFConfig,
  *,
  round: int,
  users: Iterable[int],
) -> Aggregate:
  """The third party's sum of a sound round, once enough users are in it.

  Privacy: shares are made to do without those of `colluders` and `dropouts`
  users; with more reports missing nothing is passed on (BrokenRoundError).
  """
  users = list(users)
  least = len(users) - config.dropouts
  return secure_sum.aggregate(reports, round=round, expected=users, least=least)


def server_apply(
  total: Aggregate,
  masks: Mapping[int, np.ndarray],
  hyper: untrusted_sums.Hyper,
  *,
  round: int,
) -> np.ndarray:
  """The recommender's item vectors [I, D] from a sound round."""
  sums = secure_sum.unmasked(total, masks, round=round)
  return np.asarray(untrusted_sums.item_vectors(jnp.asarray(sums), hyper))


# As published.


def gradient_report(
  vector: ArrayLike,
  items: ArrayLike,
  values: ArrayLike,
  share: np.ndarray,
  mask: np.ndarray,
  hyper: untrusted_rounds.Hyper,
  *,
  round: int,
  sender: int,
) -> Report:
  """A user's report of a round of gradients.

  Args:
    vector: [D] own.
    items: [n, D] factors as served, of own items.
    values: [n] own ratings.
    share: [n, D] integers: own share of noise (static), or the piece that was
      dealt out for this round (dynamic).
    mask: [n, D] uint32.
    hyper: settings.
    round, sender: which report it is.
  """
  items = jnp.asarray(items, jnp.float32)
  user = jnp.broadcast_to(jnp.asarray(vector, jnp.float32), items.shape)
  values = jnp.asarray(values, jnp.float32)
  counts = untrusted_rounds.gradient_counts(user, items, values, hyper)
  return client_report(
    np.asarray(counts), share, mask, round=round, sender=sender
  )


def gradient_apply(
  total: Aggregate,
  masks: Mapping[int, np.ndarray],
  rated: Mapping[int, np.ndarray],
  items: ArrayLike,
  hyper: untrusted_rounds.Hyper,
  *,
  round: int,
) -> np.ndarray:
  """The gradient [I, D] that the recommender makes of a round's sum.

  Args:
    total: from the third party; with dynamic users without its alpha.
    masks: [n, D] of each user.
    rated: [n] items of each user, which the recommender knows.
    items: [I, D] factors as served.
    hyper: settings.
    round: its number.
  """
  sums = secure_sum.unmasked(total, masks, round=round, rows=rated)
  return np.asarray(
    untrusted_rounds.server_gradient(
      jnp.asarray(sums), jnp.asarray(items, jnp.float32), hyper
    )
  )


class Collected(NamedTuple):
  """The noise of dynamic users, split between two parties."""

  noise: np.ndarray  # uint32 [I, D] alpha + sum of shares: the recommender's
  alpha: np.ndarray  # uint32 [I, D]: the third party's


def collected_noise(
  share_reports: Iterable[Report],
  betas: Mapping[int, np.ndarray],
  rated: Mapping[int, np.ndarray],
  num_items: int,
) -> Collected:
  """tau-hat of every item, and the alpha that hides it (dynamic users).

  Args:
    share_reports: tau of each user: own share plus beta.
    betas: masks that the recommender sent them.
    rated: items of each user.
    num_items: I.
  """
  total = secure_sum.aggregate(
    share_reports, round=0, expected=rated, rows=rated, num_rows=num_items
  )
  hidden, alpha = hidden_noise(total)
  return Collected(held_noise(hidden, betas, rated, round=0), alpha)


def hidden_noise(total: Aggregate) -> tuple[Aggregate, np.ndarray]:
  """The third party's tau-tilde, the sum of shares plus alpha; and alpha."""
  alpha = secure_sum.one_time_mask(total.values.shape)
  return total._replace(values=total.values + alpha), alpha


def held_noise(
  hidden: Aggregate,
  betas: Mapping[int, np.ndarray],
  rated: Mapping[int, np.ndarray],
  *,
  round: int,
) -> np.ndarray:
  """The recommender's tau-hat, uint32 [I, D]: tau-tilde without the betas."""
  noise = secure_sum.unmasked(hidden, betas, round=round, rows=rated)
  return noise.view(np.uint32)


def without_alpha(
  total: Aggregate, alpha: np.ndarray, rated: Mapping[int, np.ndarray]
) -> Aggregate:
  """The third party's sum of a round with dynamic users, to be passed on.

  Args:
    total: of those who are online.
    alpha: from `hidden_noise`.
    rated: items of those who are online. No noise was dealt out for others.
  """
  reached = np.unique(np.concatenate([*rated.values()]))
  values = total.values.copy()
  values[reached] -= alpha[reached]
  return total._replace(values=values)


def dealt_pieces(
  noise: np.ndarray, rated: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray]:
  """The recommender's pieces [n, D] of tau-hat for those who are online."""
  pieces = secure_sum.row_pieces(noise, np.concatenate([*rated.values()]))
  ends = np.cumsum([len(items) for items in rated.values()])[:-1]
  return dict(zip(rated, np.split(pieces, ends), strict=True))


# Messages.


def report_message(report: Report) -> Message:
  arrays = (report.values,)
  return Message(Kind.REPORT, report.round, report.sender, arrays)


def report_of(message: Message) -> Report:
  if message.kind != Kind.REPORT or len(message.arrays) != 1:
    raise ValueError(f'{message.kind!r} is not a report')
  return Report(message.round, message.sender, message.arrays[0])


def aggregate_message(total: Aggregate) -> Message:
  arrived = np.array(total.arrived, np.uint32)
  return Message(Kind.AGGREGATE, total.round, 0, (arrived, total.values))


def aggregate_of(message: Message) -> Aggregate:
  if message.kind != Kind.AGGREGATE or len(message.arrays) != 2:
    raise ValueError(f'{message.kind!r} is not an aggregate')
  arrived, values = message.arrays
  return Aggregate(message.round, tuple(int(who) for who in arrived), values)


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
  words = np.zeros((num_items, rank), np.uint32)
  arrays: list[np.ndarray] = [words.astype(np.float32)]
  kind = Kind.SERVED if masks == 'sent' else Kind.SEEDED
  arrays.append(words if masks == 'sent' else np.zeros(32, np.uint8))
  if users == 'dynamic':
    arrays.append(words)
  down = messages.to_bytes(Message(kind, 1, 0, tuple(arrays)))
  up = messages.to_bytes(report_message(Report(1, 0, words)))
  first = Message(Kind.SETUP, 0, 0, (words[:, 0], words.astype(np.float32)))
  return {
    'up': len(up),
    'down': len(down),
    'round': len(up) + len(down),
    'setup_down': len(messages.to_bytes(first)),
  }


def sum_bytes(
  *, num_items: int, rank: int = 1, masks: str = 'seed'
) -> dict[str, int]:
  """Bytes of one user's messages in the sound round, as serialised."""
  words = np.zeros((num_items, rank * (rank + 3) // 2), np.uint32)
  up = messages.to_bytes(report_message(Report(1, 0, words)))
  mask = np.zeros(32, np.uint8) if masks == 'seed' else words
  sent = messages.to_bytes(Message(Kind.SEEDED, 1, 0, (mask,)))
  items = np.zeros((num_items, rank), np.float32)
  release = messages.to_bytes(Message(Kind.RELEASE, 1, 0, (items,)))
  down = len(sent) + len(release)
  return {'up': len(up), 'down': down, 'round': len(up) + down}


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
