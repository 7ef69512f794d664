"""Recommendations from a released model, with the ids people know.

A model folder is what `launch.train` writes: `model.safetensors`, `ids.json`
and, for the curator only, `private/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dpmf_jax import files
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.types import Release

# The user ids, where a guarantee keeps them secret.
USERS = 'private/users.json'
_BLOCK = 1024  # users scored at a time: bounds memory to a block of scores


class Model(NamedTuple):
  """A released model with original ids, on the host."""

  user_factors: np.ndarray  # [U, D]
  item_factors: np.ndarray  # [I, D]
  offset: float
  scale: tuple[float, float]
  user_ids: np.ndarray  # [U] str or int64
  item_ids: np.ndarray  # [I] str or int64
  titles: dict[str, str]
  seen: scipy.sparse.csr_array | None  # [U, I], of the training ratings
  covered: bool  # whether the certificate covers all that is used here


class Recommendation(NamedTuple):
  user: Any
  item: Any
  score: float
  rank: int
  title: str | None


def ids_json(ratings: Ratings) -> dict[str, Any]:
  """The content of ids.json: original ids in index order, and titles."""
  return {
    'users': ratings.user_ids.tolist(),
    'items': ratings.item_ids.tolist(),
    'titles': dict(ratings.titles),
    'scale': list(ratings.scale),
  }


def seen_leaves(ratings: Ratings) -> dict[str, np.ndarray]:
  """Who rated what, for private/seen.safetensors."""
  return {'user': ratings.user, 'item': ratings.item}


def model_from_release(release: Release, train: Ratings) -> Model:
  """A model to serve from, straight after training."""
  shape = (train.num_users, train.num_items)
  return Model(
    user_factors=np.asarray(release.factors.user),
    item_factors=np.asarray(release.factors.item),
    offset=float(release.offset),
    scale=train.scale,
    user_ids=train.user_ids,
    item_ids=train.item_ids,
    titles=dict(train.titles),
    seen=seen_matrix(train.user, train.item, shape),
    covered=True,
  )


def load_model(folder: str | Path) -> Model:
  """The model in `folder`; ValueError names what is missing or broken."""
  folder = Path(folder)
  for name in ('model.safetensors', 'ids.json', 'certificate.json'):
    if not (folder / name).is_file():
      raise ValueError(
        f'{folder / name} is missing: --model must be the --output folder of '
        'a finished launch.train'
      )
  leaves, _ = files.load_leaves(folder / 'model.safetensors')
  ids = files.read_json(folder / 'ids.json')
  if 'users' not in ids:
    if not (folder / USERS).is_file():
      raise ValueError(
        f'{folder / "ids.json"} has no user ids (this system keeps them '
        f'secret) and {folder / USERS} is not there'
      )
    ids |= files.read_json(folder / USERS)
  covered = True
  secret = folder / 'private' / 'unreleased.safetensors'
  if secret.is_file():
    leaves = files.load_leaves(secret)[0] | leaves
    covered = False
  for side in ('user', 'item'):
    if f'factors/{side}' not in leaves:
      raise ValueError(
        f'{folder / "model.safetensors"} has no {side} factors (this system '
        f'does not release them) and {secret} is not there'
      )
  user, item = leaves['factors/user'], leaves['factors/item']
  shape = (len(ids['users']), len(ids['items']))
  if (len(user), len(item)) != shape:
    raise ValueError(
      f'{folder / "ids.json"} lists {shape} users and items, but the model '
      f'has {(len(user), len(item))}'
    )
  return Model(
    user_factors=user,
    item_factors=item,
    offset=float(leaves['offset']),
    scale=tuple(ids['scale']),
    user_ids=np.asarray(ids['users']),
    item_ids=np.asarray(ids['items']),
    titles=ids.get('titles', {}),
    seen=_load_seen(folder / 'private' / 'seen.safetensors', shape),
    covered=covered,
  )


def _load_seen(path: Path, shape) -> scipy.sparse.csr_array | None:
  if not path.is_file():
    return None
  leaves, _ = files.load_leaves(path)
  return seen_matrix(leaves['user'], leaves['item'], shape)


def seen_matrix(user, item, shape) -> scipy.sparse.csr_array:
  """A [U, I] matrix with an entry for every rated pair."""
  ones = np.ones(len(user), np.int8)
  return scipy.sparse.csr_array((ones, (user, item)), shape=shape)


def top_items(
  model: Model, users: np.ndarray, k: int, *, filter_seen: bool = True
) -> tuple[np.ndarray, np.ndarray]:
  """Item indices [B, k] and scores [B, k] for the user indices `users` [B].

  Best first, ties by item index. Where a user has fewer than k items left,
  the rest is index -1 with score -inf.
  """
  if k < 1:
    raise ValueError(f'k={k} must be at least 1')
  seen = model.seen if filter_seen else None
  if filter_seen and seen is None:
    raise ValueError(
      'which items were seen is not known here (private/seen.safetensors is '
      'missing); pass --nofilter_seen to recommend from all items'
    )
  width = min(k, len(model.item_ids))
  chosen = np.full((len(users), k), -1, np.int64)
  scores = np.full((len(users), k), -np.inf, np.float32)
  for start in range(0, len(users), _BLOCK):
    block = users[start : start + _BLOCK]
    raw = model.user_factors[block] @ model.item_factors.T
    if seen is not None:
      rows, columns = seen[block].nonzero()
      raw[rows, columns] = -np.inf
    # Order by the unclipped score: clipping would make the best items tie.
    best = np.argpartition(-raw, width - 1, axis=1)[:, :width]
    best.sort(axis=1)
    found = np.take_along_axis(raw, best, axis=1)
    order = np.argsort(-found, axis=1, kind='stable')
    best = np.take_along_axis(best, order, axis=1)
    found = np.take_along_axis(found, order, axis=1)
    valid = np.isfinite(found)
    found = np.clip(found + model.offset, *model.scale)
    chosen[start : start + _BLOCK, :width] = np.where(valid, best, -1)
    scores[start : start + _BLOCK, :width] = np.where(valid, found, -np.inf)
  return chosen, scores


def user_indices(model: Model, wanted: Sequence[str] | None) -> np.ndarray:
  """Indices of original user ids (given as text), of all users for None."""
  if wanted is None:
    return np.arange(len(model.user_ids))
  place = {str(label): index for index, label in enumerate(model.user_ids)}
  unknown = [user for user in wanted if user not in place]
  if unknown:
    raise ValueError(
      f'user {unknown[0]!r} is not in the model, which has '
      f'{len(place)} users such as {model.user_ids[0]!r}'
    )
  return np.array([place[user] for user in wanted], np.int64)


def recommend(
  model: Model,
  users: Sequence[str] | None = None,
  k: int = 10,
  *,
  filter_seen: bool = True,
) -> list[Recommendation]:
  """The k best items for each user (all users for None), with original ids.

  Privacy: scores post-process the release. Leaving out seen items reveals
  them to the reader, who should be the user.
  """
  index = user_indices(model, users)
  items, scores = top_items(model, index, k, filter_seen=filter_seen)
  user_labels = model.user_ids[index].tolist()
  item_labels = model.item_ids.tolist()
  return [
    Recommendation(
      user=user_labels[row],
      item=item_labels[item],
      score=float(score),
      rank=rank + 1,
      title=model.titles.get(str(item_labels[item])),
    )
    for row in range(len(index))
    for rank, (item, score) in enumerate(
      zip(items[row].tolist(), scores[row].tolist(), strict=True)
    )
    if item >= 0
  ]
