"""Attacks on the values that SDMF clients send, which no bit protects.

  seen = transcript(SDMFConfig(...), ratings, users, key=0)
  found = findings(seen, levels=(1, 2, 3, 4, 5))

In every round t a client sends, for the items that its perturbed bits select,
a gradient whose part that is not public is e p_u: p_u is the client's vector,
and e the true residual <p_u, q_i> - r of a rated item, or one drawn anew from
a normal distribution for an item that is not rated. A server that knows q, the
step size and the ridge can subtract what is public and scale the rest. It then
sees `sent` = e p_u + noise, [T, I, D], and does not need to know any rating:

- all rows of a round are multiples of one vector: that is p_u's direction;
- residuals of rated items hardly move between rounds, made-up ones do, or are
  near 0 where eps_g is large: a rated item's mean stands out from its spread;
- with p_u and e, a rating is <p_u, q_i> - e.

Reference: Jiang, Li and Lin, SDCF, sections on SDMF; the truth enters here
only to say how well the attack did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from dpmf_jax.keys import random_key
from dpmf_jax.plans.sdmf import SDMFConfig
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems import sdmf
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf.client_blocks import Profile

# Lengths of p_u that are tried, on a logarithmic grid.
_LENGTHS = np.geomspace(0.05, 20.0, 241)


class Curve(NamedTuple):
  """A receiver operating characteristic."""

  false_positive: np.ndarray  # ascending, from 0 to 1
  true_positive: np.ndarray
  area: float


class Transcript(NamedTuple):
  """What a server has seen of C clients in T rounds, and beside it the truth.

  Attributes:
    item: [T, C, M] the items that were sent; I in slots that are not used.
    sent: [T, C, M, D] of each of these e p_u + noise.
    items: [T, I, D] q, which the server knows.
    user: [T, C, D] p_u, which it does not.
    rating: [C, I], which it does not know either; NaN where there is none.
  """

  item: np.ndarray
  sent: np.ndarray
  items: np.ndarray
  user: np.ndarray
  rating: np.ndarray

  def of(self, client: int) -> tuple[np.ndarray, np.ndarray]:
    """What one client sent, by item [T, I, D], and whether it did [T, I]."""
    item, upload = self.item[:, client], self.sent[:, client]
    rounds, num_items, rank = self.items.shape
    round, slot = np.nonzero(item < num_items)
    at = round, item[round, slot]
    sent = np.zeros((rounds, num_items, rank), np.float32)
    seen = np.zeros((rounds, num_items), bool)
    sent[at], seen[at] = upload[round, slot], True
    return sent, seen


class Findings(NamedTuple):
  """What the server found out about one client.

  Attributes:
    rated: how well it tells rated from unrated items, among items seen twice.
    bits: how well it would by how often an item was sent, values aside.
    cosine: of p_u's recovered direction, median over rounds, sign aside.
    flagged: [I] bool, the items that it takes to be rated.
    ratings: [I] its ratings of these; NaN elsewhere.
    score: [I] that it goes by, see `steadiness`; NaN if seen less than twice.
    residual: [T, I] e times the length of p_u, sign aside; NaN if not sent.
    recovered: part of the rated items it has seen twice whose rating it has
      exactly (to the nearest level), flagged ones only.
  """

  rated: Curve
  bits: Curve
  cosine: float
  flagged: np.ndarray
  ratings: np.ndarray
  score: np.ndarray
  residual: np.ndarray
  recovered: float


def transcript(
  config: SDMFConfig,
  ratings: Ratings,
  users: Sequence[int] | np.ndarray,
  *,
  key: int,
  skip: int | None = None,
  progress: Callable[[range], Iterable[int]] = lambda rounds: rounds,
) -> Transcript:
  """What the server of SDMF sees of some clients while it trains on `ratings`.

  Args:
    config: of SDMF as published.
    ratings: of all clients.
    users: [C] those whose messages are kept, as rows of the ratings.
    key: a seed, for experiments.
    skip: how many rounds go by before messages are kept, since residuals move
      in the first; by default a third of all.
    progress: wraps the range of rounds, such as tqdm.tqdm.

  Privacy: none. It holds ratings.
  """
  users = np.asarray(users)
  truth = _profiles(ratings, users)
  messages = _messages(config, ratings, users, truth)
  data, system = training_data(ratings), sdmf.sdmf(config)
  step = jax.jit(system.step)
  init_key, run_key = jax.random.split(random_key(key))
  state, parts = system.init(init_key, data), []
  for number in progress(range(config.steps)):
    step_key, sent_key = jax.random.split(jax.random.fold_in(run_key, number))
    if number >= (config.steps // 3 if skip is None else skip):
      parts.append(jax.device_get(messages(sent_key, state)))
    state = step(step_key, state, data)
  item, sent, items, user = map(np.stack, zip(*parts, strict=True))
  return Transcript(item, sent, items, user, truth)


def _profiles(ratings: Ratings, users: np.ndarray) -> np.ndarray:
  """Ratings [C, I] of some users; NaN where there are none."""
  found = np.full((len(users), ratings.num_items), np.nan)
  for row, user in enumerate(users):
    own = ratings.user == user
    found[row, ratings.item[own]] = ratings.value[own]
  return found


def _messages(config: SDMFConfig, ratings: Ratings, users, truth) -> Callable:
  """(key, state) -> item, sent, items and user of the next round.

  The server knows the items, the step size and the ridge, and takes them off.
  """
  data = training_data(ratings)
  capacity = sdcf.message_capacity(data.by_user, ratings.num_items, config.sent)
  report = functools.partial(sdmf.client_report, capacity=capacity)
  own = Profile(
    value=jnp.asarray(np.nan_to_num(truth), jnp.float32),
    rated=jnp.asarray(~np.isnan(truth)),
  )

  @jax.jit
  def messages(key, state):
    public = sdcf.public_of(state)
    clients = jax.tree.map(lambda x: x[users], sdcf.clients_of(state))
    keys = jax.random.split(key, len(users))
    upload = jax.vmap(report, (0, 0, 0, None))(keys, clients, own, public)[1]
    q, ridge = public.item, public.langevin.item_ridge  # [I, D], [D]
    drift = upload.gradient / public.step_size
    drift -= q[jnp.minimum(upload.item, len(q) - 1)] * ridge[None, None]
    return upload.item, drift / public.langevin.likelihood, q, clients.factors

  return messages


def findings(seen: Transcript, *, levels: Sequence[float]) -> list[Findings]:
  """What the server finds out about each client; ratings are of `levels`."""
  return [
    attack(
      *seen.of(client),
      seen.items,
      levels=levels,
      rating=rating,
      user=seen.user[:, client],
    )
    for client, rating in enumerate(seen.rating)
  ]


def attack(
  sent: ArrayLike,
  seen: ArrayLike,
  items: ArrayLike,
  *,
  levels: Sequence[float],
  rating: ArrayLike,
  user: ArrayLike,
) -> Findings:
  """What the transcript of one client gives away, beside the truth.

  Args:
    sent: [T, I, D] e p_u + noise; ignored where it was not sent.
    seen: [T, I] bool, what was sent.
    items: [T, I, D] q of each round, or [I, D] where it does not move.
    levels: ratings that there can be, ascending.
    rating: [I] the truth, NaN where there is none.
    user: [T, D] the true p_u, or [D] where it does not move.
  """
  sent, seen = np.asarray(sent, np.float64), np.asarray(seen, bool)
  rounds, num_items, rank = sent.shape
  items = np.broadcast_to(np.asarray(items, np.float64), sent.shape)
  user = np.broadcast_to(np.asarray(user, np.float64), (rounds, rank))
  rating = np.asarray(rating, np.float64)
  if seen.shape != (rounds, num_items) or rating.shape != (num_items,):
    raise ValueError(
      f'sent {sent.shape}, seen {seen.shape} and rating {rating.shape} must '
      'have the same rounds and items'
    )
  direction = directions(sent, seen)
  residual = np.einsum('tid,td->ti', sent, direction)
  score = steadiness(residual, seen)
  known = ~np.isnan(score)
  truth = ~np.isnan(rating)
  flagged = known & (np.nan_to_num(score) > _cut(score[known]))
  guessed = guessed_ratings(
    residual, seen & flagged, direction, items, levels=levels
  )
  right = flagged & truth & (_nearest(guessed, levels) == rating)
  length = np.linalg.norm(user, axis=1)
  cosine = np.abs(np.einsum('td,td->t', direction, user)) / length
  return Findings(
    rated=roc(score[known], truth[known]),
    bits=roc(seen.sum(axis=0)[known], truth[known]),
    cosine=float(np.median(cosine)),
    flagged=flagged,
    ratings=np.where(flagged, guessed, np.nan),
    score=score,
    residual=np.where(seen, residual, np.nan),
    recovered=float(right.sum() / max((truth & known).sum(), 1)),
  )


def directions(sent: np.ndarray, seen: np.ndarray) -> np.ndarray:
  """Unit vectors [T, D] along which the rows of each round lie.

  The first right singular vector; signs are those of the round before.
  """
  found = []
  for rows, kept in zip(sent, seen, strict=True):
    rows = np.where(kept[:, None], rows, 0.0)
    _, vectors = np.linalg.eigh(rows.T @ rows)
    top = vectors[:, -1]
    if found and top @ found[-1] < 0:
      top = -top
    found.append(top)
  return np.stack(found)


def steadiness(residual: np.ndarray, seen: np.ndarray) -> np.ndarray:
  """log(mean^2 / variance) over rounds [I]; NaN if seen less than twice."""
  count = seen.sum(axis=0)
  enough = np.maximum(count, 2)
  mean = np.where(seen, residual, 0.0).sum(axis=0) / np.maximum(count, 1)
  square = np.where(seen, np.square(residual - mean), 0.0).sum(axis=0)
  found = np.log(np.square(mean) + 1e-30) - np.log(
    square / (enough - 1) + 1e-30
  )
  return np.where(count >= 2, found, np.nan)


def _cut(values: np.ndarray) -> float:
  """Where two groups of values part: the split with the least spread inside.

  Reference: Otsu (1979).
  """
  ordered = np.sort(values)
  size = len(ordered)
  if size < 2:
    return np.inf
  count = np.arange(1, size)
  below = np.cumsum(ordered)[:-1] / count
  above = (ordered.sum() - np.cumsum(ordered)[:-1]) / (size - count)
  between = count * (size - count) * np.square(above - below)
  place = int(np.argmax(between))
  return float((ordered[place] + ordered[place + 1]) / 2)


def guessed_ratings(
  residual: np.ndarray,
  seen: np.ndarray,
  direction: np.ndarray,
  items: np.ndarray,
  *,
  levels: Sequence[float],
) -> np.ndarray:
  """Ratings [I] that fit the residuals best; NaN where nothing was seen.

  The length of p_u and its sign are not in a direction: those are taken with
  which ratings come out nearest to `levels`, in each round on its own. Then
  they are averaged over rounds.
  """
  if not seen.any():
    return np.full(seen.shape[1], np.nan)
  signed = np.concatenate([_LENGTHS, -_LENGTHS])
  along = np.einsum('tid,td->ti', items, direction)
  total = np.zeros(seen.shape[1])
  for t in range(len(seen)):
    kept = seen[t]
    # [lengths, items seen]: <p, q> - e with p = a direction, e = residual / a
    tried = (
      signed[:, None] * along[t, kept] - residual[t, kept] / (signed[:, None])
    )
    miss = np.square(tried - _nearest(tried, levels)).sum(axis=1)
    total[kept] += tried[np.argmin(miss)]
  count = seen.sum(axis=0)
  return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _nearest(values: np.ndarray, levels: Sequence[float]) -> np.ndarray:
  """The nearest of ascending `levels`; NaN stays NaN."""
  steps = np.asarray(levels, np.float64)
  middle = (steps[1:] + steps[:-1]) / 2
  found = steps[np.searchsorted(middle, np.nan_to_num(values))]
  return np.where(np.isnan(values), np.nan, found)


def roc(score: ArrayLike, truth: ArrayLike) -> Curve:
  """The curve of 'score is at least c' for all c; ties are one step."""
  score, truth = np.asarray(score, np.float64), np.asarray(truth, bool)
  if truth.all() or not truth.any():
    raise ValueError('truth must have both kinds')
  order = np.argsort(-score, kind='stable')
  last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
  hits = np.cumsum(truth[order])[last]
  misses = 1 + last - hits
  true_positive = np.append(0.0, hits / truth.sum())
  false_positive = np.append(0.0, misses / (~truth).sum())
  area = float(np.trapezoid(true_positive, false_positive))
  return Curve(false_positive, true_positive, area)
