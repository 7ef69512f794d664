"""Recommendations from a released model, with the ids people know.

A model folder is what `dpmf train` writes: `model.safetensors`, `ids.json`,
`certificate.json` and, for the curator only, `private/`. What is published of
it, without `private/`, is enough to fold new users in and to compare items.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dpmf_jax import files
from dpmf_jax.ratings.ids import id_texts, places
from dpmf_jax.ratings.table import Ratings, check_ratings, check_scale
from dpmf_jax.serving.checking import check_leaves, check_seen, checked_ids
from dpmf_jax.serving.scoring import dense_rows, top_products
from dpmf_jax.types import Counted, Fit, Release, Sum

# The user ids, where a guarantee keeps them secret.
USERS = 'private/users.json'


class Model(NamedTuple):
  """A released model with original ids, on the host."""

  user_factors: np.ndarray | None  # [U, D]; None where they are not known
  item_factors: np.ndarray  # [I, D]
  offset: float
  scale: tuple[float, float]
  user_ids: np.ndarray  # [U] str or int64
  item_ids: np.ndarray  # [I] str or int64
  titles: dict[str, str]
  seen: scipy.sparse.csr_array | None  # [U, I], of the training ratings
  covered: bool  # whether the certificate covers all that is used here
  items_released: bool = True  # or taken from private/
  fit: Fit | Sum | None = None  # of new users; None where it is not known
  bias_columns: tuple[int, ...] = ()  # of factors, known to be biases

  def __repr__(self) -> str:
    low, high = self.scale
    rank = self.item_factors.shape[1]
    return (
      f'Model({len(self.user_ids)} users, {len(self.item_ids)} items, '
      f'{rank} factors, scale {low:g}..{high:g})'
    )


class Recommendation(NamedTuple):
  user: Any
  item: Any
  score: float
  rank: int
  title: str | None


class Similar(NamedTuple):
  """An item that is like another one: `score` is a cosine."""

  item: Any
  similar: Any
  score: float
  rank: int
  title: str | None  # of `similar`


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


def model_from_release(
  release: Release,
  train: Ratings,
  *,
  fit: Fit | Sum | None = None,
  whole: Release | None = None,
  bias_columns: tuple[int, ...] = (),
) -> Model:
  """A model to serve from, straight after training.

  Args:
    release: what is released, and no more.
    train: the ratings that it was trained on.
    fit: how new users are folded in; by default as the release says, or as
      the released users are spread.
    whole: both sides, for the curator alone; the release by default.
    bias_columns: of factors, known to be biases.
  """
  check_ratings(train, 'train')
  whole = whole or release
  user, item = whole.factors
  if item is None:
    raise ValueError('the release has no item factors to recommend from')
  fit = fit or release.fit
  if fit is None and release.factors.user is not None:
    fit = fit_of_released_users(np.asarray(release.factors.user))
  if user is not None:  # without those who might be there
    user = np.asarray(user)[: len(train.user_ids)]
  shape = (len(train.user_ids), train.num_items)
  missing = lambda mine, theirs: mine is not None and theirs is None
  return Model(
    user_factors=user,
    item_factors=np.asarray(item),
    offset=float(whole.offset),
    scale=train.scale,
    user_ids=train.user_ids,
    item_ids=train.item_ids,
    titles=dict(train.titles),
    seen=seen_matrix(train.user, train.item, shape),
    covered=not any(map(missing, whole.factors, release.factors)),
    items_released=release.factors.item is not None,
    fit=fit,
    bias_columns=bias_columns,
  )


def fit_of_released_users(user: np.ndarray) -> Fit:
  """The fit around the mean of released user factors [U, D].

  Columns vary as they do among those users, around ratings with a variance of
  1. A column that all users have in common, such as the 1 that meets an item's
  bias, is held.
  """
  user = user.astype(np.float64)
  with np.errstate(divide='ignore'):
    ridge = 1 / np.where(np.ptp(user, axis=0) == 0, 0, user.var(axis=0))
  return Fit(user.mean(axis=0), ridge)


def load_model(folder: str | Path) -> Model:
  """The model in `folder`; ValueError names what is missing or broken.

  The certificate may be missing where there is no private/: the scale is in
  ids.json, too.
  """
  folder = Path(folder)
  needed = ['model.safetensors', 'ids.json']
  if (folder / 'private').is_dir():
    needed.append('certificate.json')  # it is written when a run is finished
  for name in needed:
    if not (folder / name).is_file():
      raise ValueError(
        f'{folder / name} is missing: {folder} must be the folder of a '
        'finished run'
      )
  released, _ = files.load_leaves(folder / 'model.safetensors')
  ids = files.read_json(folder / 'ids.json')
  if 'users' not in ids and (folder / USERS).is_file():
    ids |= files.read_json(folder / USERS)
  ids = checked_ids(ids, folder / 'ids.json')
  proof = folder / 'certificate.json'
  certificate = files.read_json(proof) if proof.is_file() else {}
  leaves = released
  secret = folder / 'private' / 'unreleased.safetensors'
  if secret.is_file():
    leaves = files.load_leaves(secret)[0] | released
  check_leaves(leaves, folder / 'model.safetensors')
  user, item = (leaves.get(f'factors/{side}') for side in ('user', 'item'))
  if item is None:
    raise ValueError(
      f'{folder / "model.safetensors"} has no item factors (this system does '
      f'not release them) and {secret} is not there'
    )
  if user is not None and 'users' not in ids:
    raise ValueError(
      f'{folder / "ids.json"} has no user ids (this system keeps them secret) '
      f'and {folder / USERS} is not there'
    )
  user_ids = ids.get('users', [])
  shape = (len(user_ids), len(ids['items']))
  sizes = (len(user_ids) if user is None else len(user), len(item))
  if sizes != shape:
    raise ValueError(
      f'{folder / "ids.json"} lists {shape} users and items, but the model '
      f'has {sizes}'
    )
  fit = None
  if 'fit/weight' in released:
    counted = Counted(*(released[f'fit/counted/{n}'] for n in Counted._fields))
    fit = Sum(released['fit/prior'], released['fit/weight'], counted)
  elif 'fit/prior' in released:
    fit = Fit(released['fit/prior'], released['fit/ridge'])
  elif 'factors/user' in released:
    fit = fit_of_released_users(released['factors/user'])
  return Model(
    user_factors=user,
    item_factors=item,
    offset=float(leaves['offset']),
    scale=_scale(ids, certificate, folder),
    user_ids=np.asarray(user_ids),
    item_ids=ids['items'],
    titles=ids.get('titles', {}),
    seen=_load_seen(folder / 'private' / 'seen.safetensors', shape),
    covered=leaves.keys() == released.keys(),
    items_released='factors/item' in released,
    fit=fit,
    bias_columns=bias_columns(certificate),
  )


def bias_columns(certificate) -> tuple[int, ...]:
  """Those that `gaussian_mf.initial_factors` makes, where it was used."""
  init = _parameters(certificate).get('init')
  biased = certificate.get('system') == 'gaussian_mf' and init == 'bias'
  return (0, 1) if biased else ()


def _scale(ids, certificate, folder: Path) -> tuple[float, float]:
  scale = ids.get('scale') or _parameters(certificate).get('scale')
  if scale is None:
    raise ValueError(
      f'neither ids.json nor certificate.json in {folder} has the scale of '
      'the ratings'
    )
  try:
    return check_scale(scale)
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from None


def _parameters(certificate) -> dict[str, Any]:
  found = certificate.get('parameters')
  return found if isinstance(found, dict) else {}


def _load_seen(path: Path, shape) -> scipy.sparse.csr_array | None:
  if not path.is_file():
    return None
  leaves, _ = files.load_leaves(path)
  check_seen(leaves, path, shape)
  return seen_matrix(leaves['user'], leaves['item'], shape)


def seen_matrix(user, item, shape) -> scipy.sparse.csr_array:
  """A [U, I] matrix with an entry for every rated pair."""
  ones = np.ones(len(user), np.int8)
  return scipy.sparse.csr_array((ones, (user, item)), shape=shape)


def check_model(model: Any) -> None:
  """Raises ValueError that says how to get a Model of what is none."""
  if isinstance(model, Model):
    return
  kind = type(model).__name__
  how = ''
  if isinstance(getattr(model, 'model', None), Model):
    how = f': use the `model` of the {kind}'
  elif isinstance(model, Release):
    how = ': dpmf_jax.model_from_release(release, ratings) makes one'
  elif isinstance(model, str | Path):
    how = ': dpmf_jax.load_model(folder) reads one'
  raise ValueError(f'model of type {kind} must be a Model{how}')


def known_users(model: Model) -> np.ndarray:
  """The user factors [U, D]; ValueError where they are not known."""
  if model.user_factors is None:
    raise ValueError(
      'the user factors are not known here: this system does not release '
      'them; fold users in by their own ratings, fold_in(model, ratings)'
    )
  return model.user_factors


def top_items(
  model: Model, users: np.ndarray, k: int, *, filter_seen: bool = True
) -> tuple[np.ndarray, np.ndarray]:
  """Item indices [B, k] and scores [B, k] for the user indices `users` [B].

  Best first, ties by item index. Where a user has fewer than k items left,
  the rest is index -1 with score -inf.
  """
  user = known_users(model)
  seen = model.seen
  if filter_seen and seen is None:
    raise ValueError(
      'which items were seen is not known here (private/seen.safetensors is '
      'missing); pass filter_seen=False to recommend from all items'
    )

  def excluded(start: int, stop: int, size: int) -> np.ndarray:
    if not filter_seen or seen is None:
      return np.zeros((size, len(model.item_ids)), bool)
    return dense_rows(seen, users[start:stop], size)

  chosen, raw = top_products(user[users], model.item_factors, k, excluded)
  # Ordered by the unclipped score: clipping would make the best items tie.
  scores = _in_scale(model, raw + np.float32(model.offset))
  return chosen, np.where(chosen >= 0, scores, -np.inf)


# What people know users and items by: an id, or several.
Ids = str | int | Sequence[str] | Sequence[int] | np.ndarray


def indices(role: str, ids: np.ndarray, wanted: Ids) -> np.ndarray:
  """Indices of original ids, in the shape of `wanted`."""
  texts = id_texts(wanted, role)
  place = places(ids, texts.reshape(-1))
  if (place < 0).any():
    such = f' such as {ids[0].item()!r}' if len(ids) else ''
    raise ValueError(
      f'{role} {str(texts.flat[int((place < 0).argmax())])!r} is not in the '
      f'model, which has {len(ids)} {role}s{such}'
    )
  return place.reshape(texts.shape)


def _listable(role: str, ids: np.ndarray, wanted: Ids | None) -> np.ndarray:
  """The indices [B] of those to make lists for, all of them for None."""
  if wanted is None:
    return np.arange(len(ids))
  return indices(role, ids, wanted).reshape(-1)


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
  if isinstance(model.fit, Sum):
    return scores
  low, high = map(np.float32, model.scale)
  return np.clip(scores, low, high)


def recommend(
  model: Model,
  users: Ids | None = None,
  k: int = 10,
  *,
  filter_seen: bool = True,
) -> list[Recommendation]:
  """The k best items for each user (all users for None), with original ids.

  `pandas.DataFrame(recommend(...))` is a table with named columns.

  Privacy: scores post-process the release. Leaving out seen items reveals
  them to the reader, who should be the user.
  """
  check_model(model)
  index = _listable('user', model.user_ids, users)
  items, scores = top_items(model, index, k, filter_seen=filter_seen)
  found = _listed(model, model.user_ids[index], items, scores)
  return list(map(Recommendation._make, found))


def similar_items(
  model: Model, items: Ids | None = None, k: int = 10
) -> list[Similar]:
  """The k items whose factors have the largest cosines with each of `items`.

  Columns of biases do not count: where all items have the same number, where
  all users have, `model.bias_columns`, and the popularity of a ranking. An item
  that is zero elsewhere is like no other (0).

  Privacy: post-processes the item factors.
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
  vectors = model.item_factors[:, ~fixed].astype(np.float64)
  if vectors.shape[1] < 2:
    raise ValueError(
      'the items of this model have at most one number each besides biases, '
      'so that all cosines would be 1 or -1; use a model with more factors'
    )
  norms = np.linalg.norm(vectors, axis=1, keepdims=True)
  vectors = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)

  def excluded(start: int, stop: int, size: int) -> np.ndarray:
    itself = np.zeros((size, len(vectors)), bool)
    itself[np.arange(stop - start), index[start:stop]] = True
    return itself

  chosen, scores = top_products(vectors[index], vectors, k, excluded)
  found = _listed(model, model.item_ids[index], chosen, scores)
  return list(map(Similar._make, found))


def _listed(model: Model, labels, items: np.ndarray, scores: np.ndarray):
  """(label, item id, score, rank, title) for every item that there is."""
  row, rank = np.nonzero(items >= 0)
  names = model.item_ids[items[row, rank]].tolist()
  titles = map(model.titles.get, map(str, names))
  ranks = (rank + 1).tolist()
  found = scores[row, rank].astype(float).tolist()
  return zip(labels[row].tolist(), names, found, ranks, titles, strict=True)
