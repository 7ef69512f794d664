"""Lists of a model: the best items of users, reasons, and similar items."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.ratings.ids import used_ids
from dpmf_jax.serving.models import (
  Ids,
  Model,
  check_model,
  indices,
  known_users,
  seen_matrix,
)
from dpmf_jax.serving.reasons import labels, own_parts
from dpmf_jax.serving.scoring import top_products
from dpmf_jax.types import Sum

# An item with this many times the mean number of ratings counts half, in lists
# of models of ratings. Chosen on MovieLens-100K; see docs/results.md.
_HALF_NUMBER = 4.0
# What a quarter of the scale more counts beside a ranking, in standard
# deviations of a user's scores in that. Chosen on MovieLens-100K, too.
_QUARTER = 0.5
ONE_ORDER = (
  'this model has a single number for each item (rank 0, or factors that are '
  'all zero): all users get the same list, or nearly, but for what they rated'
)


class Reason(NamedTuple):
  """An item of the user's own, and what it adds to a score."""

  item: Any
  part: float
  title: str | None


class Recommendation(NamedTuple):
  """An item for a user; `score` is what the list is ordered by."""

  user: Any
  item: Any
  score: float
  rank: int
  title: str | None
  why: tuple[Reason, ...] = ()


class Similar(NamedTuple):
  """An item that is like another one: `score` is a cosine."""

  item: Any
  similar: Any
  score: float
  rank: int
  title: str | None  # of `similar`


class Listing(NamedTuple):
  """What lists are ordered by: floor + share_i (prediction - floor)."""

  share: np.ndarray  # [I] in (0, 1], 1 for the item with the most ratings
  floor: float


def listing(
  number: np.ndarray | None, scale: tuple[float, float]
) -> Listing | None:
  """How predictions are shrunk for lists; None, not at all, without numbers.

  The fewer people rated an item, the closer to a quarter of the scale below its
  lowest rating: what is known of four people's favourite is not that everybody
  should see it.

  Privacy: of numbers that are released, and of the scale.
  """
  if number is None:
    return None
  low, high = scale
  known = np.maximum(number.astype(np.float64), 1e-6)
  share = known / (known + _HALF_NUMBER * known.mean())
  return Listing(share / share.max(), low - (high - low) / 4)


def list_factors(
  user: np.ndarray,
  item: np.ndarray,
  offset: float,
  how: Listing | None,
) -> tuple[np.ndarray, np.ndarray, float]:
  """(user, item, offset) whose predictions are what lists are ordered by."""
  if how is None:
    return user, item, offset
  ones = np.ones_like(user[:, :1])
  base = (offset - how.floor) * how.share
  rows = np.concatenate([item * how.share[:, None], base[:, None]], axis=1)
  user = np.concatenate([user, ones], axis=1)
  return user, rows.astype(np.float32), how.floor


def one_order(item_factors: np.ndarray) -> bool:
  """Whether a single number of each item is all that orders lists.

  Then all users get the same order but for what they have seen, or nearly the
  same, where a model of ratings lets users give that number another weight.
  """
  varied = np.ptp(item_factors, axis=0) > 0
  return int(varied.sum()) <= 1


def predict(model: Model, users: Ids, items: Ids) -> Any:
  """Predicted ratings of items by users, by original ids, in the scale.

  Both are an id or an array of them, of shapes that broadcast: one user and
  many items, as many users as items, or users[:, None] and items.

  Privacy: post-processes the model; see `Model.covered`.
  """
  check_model(model)
  user = known_users(model)[indices('user', model.user_ids, users)]
  item = model.item_factors[indices('item', model.item_ids, items)]
  try:
    found = (user * item).sum(axis=-1) + np.float32(model.offset)
  except ValueError:
    raise ValueError(
      f'users of shape {user.shape[:-1]} and items of shape '
      f'{item.shape[:-1]} do not broadcast'
    ) from None
  return _in_scale(model, found)


def _in_scale(model: Model, scores: np.ndarray) -> np.ndarray:
  """Scores as ratings can be; those of a ranking have no scale."""
  if model.clicks or isinstance(model.fit, Sum):
    return scores
  low, high = map(np.float32, model.scale)
  return np.clip(scores, low, high)


def recommend(
  model: Model,
  users: Ids | None = None,
  k: int = 10,
  *,
  filter_seen: bool = True,
  why: int = 0,
  blend: Model | None = None,
) -> list[Recommendation]:
  """The k best items for each user (all users for None), with original ids.

  `pandas.DataFrame(recommend(...))` is a table with named columns. Scores say
  what comes first: predicted ratings, shrunk where few people rated an item
  (`listing`) and not cut off at the ends of the scale, or those of a ranking,
  which have no scale. `predict` has predicted ratings.

  With `why`, each has up to that many `Reason`s: the user's own items that add
  most to its score.

  `blend` is a model of a ranking of the same users and items: lists are then
  ordered by its scores, in standard deviations of the user's, and half of one
  for a quarter of the scale that a rating is predicted to be higher.

  Privacy: scores post-process the release, or both releases, whose epsilons add
  up if they are of the same ratings. Leaving out seen items reveals
  them to the reader, who should be the user; reasons are the user's own
  ratings, and are for that user alone.
  """
  check_model(model)
  if isinstance(why, bool) or not isinstance(why, int | np.integer) or why < 0:
    raise ValueError(f'why={why!r} must be an integer of at least 0')
  if why and blend is not None:
    raise ValueError('why is known of one model alone, without blend')
  index = _listable('user', model.user_ids, users)
  items, scores = top_items(
    model, index, k, filter_seen=filter_seen, blend=blend
  )
  reasons = repeat((), int((items >= 0).sum()))
  if why:
    reasons = [*_reasons(model, index, items, why)]
  found = _listed(model, model.user_ids[index], items, scores, reasons)
  return _made(Recommendation, found)


def top_items(
  model: Model,
  users: np.ndarray,
  k: int,
  *,
  filter_seen: bool = True,
  blend: Model | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Item indices [B, k] and scores [B, k] for the user indices `users` [B].

  Best first, ties by item index. Where a user has fewer than k items left,
  the rest is index -1 with score -inf. Scores are not cut off at the ends of
  the scale, where the best items would tie. `blend` is as in `recommend`.
  """
  user = known_users(model)
  seen = model.seen
  if filter_seen and seen is None:
    raise ValueError(
      'which items were seen is not known here (private/seen.safetensors is '
      'missing); pass filter_seen=False to recommend from all items'
    )
  if blend is not None:
    rows, item, offset = _blended(model, users, blend)
  else:
    how = listing(model.number, model.scale)
    rows, item, offset = list_factors(
      user[users], model.item_factors, model.offset, how
    )
  excluded = seen[users] if filter_seen and seen is not None else None
  chosen, raw = top_products(rows, item, k, excluded)
  return chosen, raw + np.float32(offset)


def _blended(
  model: Model, users: np.ndarray, ranking: Model
) -> tuple[np.ndarray, np.ndarray, float]:
  """(user, item, offset) that order by a ranking and by predictions."""
  check_model(ranking)
  if isinstance(model.fit, Sum) or not isinstance(ranking.fit, Sum):
    raise ValueError(
      'blend must be a model of a ranking, and the model one of ratings'
    )
  if not np.array_equal(model.item_ids, ranking.item_ids):
    raise ValueError('blend has other items than the model')
  place = indices('user', ranking.user_ids, model.user_ids[users])
  own, item = known_users(ranking)[place], ranking.item_factors
  centred = item - item.mean(axis=0, dtype=np.float64)
  variance = np.einsum('ua,ab,ub->u', own, centred.T @ centred / len(item), own)
  own = own / np.sqrt(np.maximum(variance, 1e-30))[:, None]
  quarter = (model.scale[1] - model.scale[0]) / 4
  rated = known_users(model)[users] * (_QUARTER / quarter)
  rows = np.concatenate([rated, own], axis=1)
  return rows, np.concatenate([model.item_factors, item], axis=1), 0.0


def _reasons(
  model: Model, users: np.ndarray, items: np.ndarray, most: int
) -> Iterator[tuple[Reason, ...]]:
  """Those of each item in `items` [B, k] that there is, in order."""
  seen, how = model.seen, listing(model.number, model.scale)
  if model.fit is None or seen is None or seen.dtype.kind != 'f':
    raise ValueError(
      'why needs the ratings of the users and how users are fitted to items, '
      'which are not known here; fold users in by their own ratings, '
      'fold_in(model, ratings)'
    )
  names, label = model.item_ids.tolist(), labels(seen.data, model.fit)
  for user, row in zip(users.tolist(), items, strict=True):
    chosen = row[row >= 0]
    mine = slice(*seen.indptr[user : user + 2])
    own = seen.indices[mine]
    parts = own_parts(
      chosen,
      own,
      label[mine],
      item=model.item_factors,
      offset=model.offset,
      fit=model.fit,
      row=known_users(model)[user],
    )
    if how is not None:
      parts = parts * how.share[chosen][:, None]
    for part in parts:
      best = np.lexsort((own, -part))[:most]
      yield tuple(
        Reason(name := names[own[j]], float(part[j]), _title(model, name))
        for j in best[part[best] > 0]
      )


def _title(model: Model, name: Any) -> str | None:
  return model.titles.get(str(name))


def similar_items(
  model: Model, items: Ids | None = None, k: int = 10
) -> list[Similar]:
  """The k items whose factors have the largest cosines with each of `items`.

  Columns of biases do not count: where all items have the same number, where
  all users have, `model.bias_columns`, and the popularity of a ranking. An item
  that is zero elsewhere, of which a model has learned nothing, is like no
  other: it is in no list, and has none. Cosines are shrunk, as lists are, for
  items that few people rated, where the model says how many did.

  Privacy: post-processes the item factors and the released numbers.
  """
  check_model(model)
  index = _listable('item', model.item_ids, items)
  same = lambda rows: np.ptp(rows, axis=0) == 0
  fixed = same(model.item_factors)
  # Released ones: what is in private/ must not show.
  if model.covered and model.user_factors is not None:
    fixed |= same(model.user_factors) & (len(model.user_factors) > 1)
  fixed[list(model.bias_columns)] = True
  if isinstance(model.fit, Sum):
    fixed[0] = True  # popularity
  elif model.fit is not None:
    fixed |= np.isinf(np.asarray(model.fit.ridge))  # as all users have them
  vectors = model.item_factors[:, ~fixed].astype(np.float64)
  if vectors.shape[1] < 2:
    raise ValueError(
      'the items of this model have at most one number each besides biases, '
      'so that all cosines would be 1 or -1; use a model with more factors'
    )
  norms = np.linalg.norm(vectors, axis=1)
  known = np.flatnonzero(norms > 0)
  index = index[norms[index] > 0]
  vectors = (vectors[known] / norms[known][:, None]).astype(np.float32)
  place = np.searchsorted(known, index)
  itself = (np.arange(len(index)), place, (len(index), len(known)))
  wanted = vectors[place]
  if how := listing(model.number, model.scale):
    vectors = vectors * how.share[known, None].astype(np.float32)
  chosen, scores = top_products(wanted, vectors, k, seen_matrix(*itself))
  chosen = np.where(chosen >= 0, np.append(known, 0)[chosen], -1)
  found = _listed(model, model.item_ids[index], chosen, scores)
  return _made(Similar, found)


def _listable(role: str, ids: np.ndarray, wanted: Ids | None) -> np.ndarray:
  """The indices [B] of those to make lists for, all of them for None."""
  if wanted is None:
    return np.arange(len(ids))
  return indices(role, ids, wanted).reshape(-1)


def _listed(
  model: Model, labels, items: np.ndarray, scores: np.ndarray, *more
) -> Iterator[tuple[Any, ...]]:
  """(label, item id, score, rank, title, *more) for every item there is."""
  row, rank = np.nonzero(items >= 0)
  # An item in many lists is one object, and has its title looked up once.
  used, place = used_ids(model.item_ids, items[row, rank])
  names = np.array(used.tolist(), object)
  titles = np.array([_title(model, name) for name in names], object)
  found = labels[row], names[place], scores[row, rank], rank + 1, titles[place]
  return zip(*(column.tolist() for column in found), *more, strict=True)


def _made(kind: type, found: Iterator[tuple[Any, ...]]) -> list[Any]:
  """All of them as `kind`.

  Python's collector waits meanwhile: for so many new tuples it would go through
  all that is in memory, which takes longer than to make them.
  """
  enabled = gc.isenabled()
  gc.disable()
  try:
    return [*map(partial(tuple.__new__, kind), found)]
  finally:
    if enabled:
      gc.enable()
