"""Recommendations from a released model, with the ids people know.

A model folder is what `dpmf train` writes: `model.safetensors`, `ids.json`,
`certificate.json` and, for the curator only, `private/`. What is published of
it, without `private/`, is enough to fold new users in and to compare items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dpmf_jax import certificates, files
from dpmf_jax.ratings.ids import id_texts, places
from dpmf_jax.ratings.table import Ratings, check_ratings, check_scale
from dpmf_jax.serving.checking import check_leaves, check_seen, checked_ids
from dpmf_jax.serving.reasons import labels, own_parts
from dpmf_jax.serving.scoring import top_products
from dpmf_jax.types import Counted, Fit, Release, Sum

# The user ids, where a guarantee keeps them secret.
USERS = 'private/users.json'
# An item with this many times the mean number of ratings counts half, in lists
# of models of ratings. Chosen on MovieLens-100K; see docs/results.md.
_HALF_NUMBER = 4.0
# What a quarter of the scale more counts beside a ranking, in standard
# deviations of a user's scores in that. Chosen on MovieLens-100K, too.
_QUARTER = 0.5
# Of systems that always have them.
_BIASES = {'power_mf': (0, 1), 'dpals': (-3, -2, -1), 'moments': (-2, -1)}
ONE_ORDER = (
  'this model has a single number for each item (rank 0, or factors that are '
  'all zero): all users get the same list, or nearly, but for what they rated'
)


class Model(NamedTuple):
  """A released model with original ids, on the host."""

  user_factors: np.ndarray | None  # [U, D]; None where they are not known
  item_factors: np.ndarray  # [I, D]
  offset: float
  scale: tuple[float, float]
  user_ids: np.ndarray  # [U] str or int64
  item_ids: np.ndarray  # [I] str or int64
  titles: dict[str, str]
  seen: scipy.sparse.csr_array | None  # [U, I], the training ratings
  covered: bool  # whether the certificate covers all that is used here
  items_released: bool = True  # or taken from private/
  fit: Fit | Sum | None = None  # of new users; None where it is not known
  bias_columns: tuple[int, ...] = ()  # of factors, known to be biases
  number: np.ndarray | None = None  # [I] of ratings, about; None if not known
  clicks: bool = False  # whether it was trained on these, and not on ratings

  def __repr__(self) -> str:
    low, high = self.scale
    rank = self.item_factors.shape[1]
    what = 'clicks' if self.clicks else f'scale {low:g}..{high:g}'
    return (
      f'Model({len(self.user_ids)} users, {len(self.item_ids)} items, '
      f'{rank} factors, {what})'
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


def ids_json(ratings: Ratings) -> dict[str, Any]:
  """The content of ids.json: original ids in index order, and titles."""
  return {
    'users': ratings.user_ids.tolist(),
    'items': ratings.item_ids.tolist(),
    'titles': dict(ratings.titles),
    'scale': list(ratings.scale),
    **({'clicks': True} if ratings.clicks else {}),
  }


def seen_leaves(ratings: Ratings) -> dict[str, np.ndarray]:
  """Who rated what and how, for private/seen.safetensors."""
  return {'user': ratings.user, 'item': ratings.item, 'value': ratings.value}


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
    seen=seen_matrix(train.user, train.item, shape, train.value),
    covered=not any(map(missing, whole.factors, release.factors)),
    items_released=release.factors.item is not None,
    fit=fit,
    bias_columns=bias_columns,
    number=None if whole.number is None else np.asarray(whole.number),
    clicks=train.clicks,
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
  ids.json, too. One that is there is checked (`certificates.read`).
  """
  folder = files.checked_path(folder, 'folder')
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
  certificate = certificates.read(proof) if proof.is_file() else {}
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
    fit=_released_fit(released),
    bias_columns=bias_columns(certificate),
    number=released.get('number'),
    clicks=ids.get('clicks', False),
  )


def _released_fit(released: dict[str, np.ndarray]) -> Fit | Sum | None:
  """How new users are fitted, by the leaves of a model."""
  if 'fit/weight' in released:
    counted = Counted(*(released[f'fit/counted/{n}'] for n in Counted._fields))
    return Sum(released['fit/prior'], released['fit/weight'], counted)
  if 'fit/prior' in released:
    return Fit(released['fit/prior'], released['fit/ridge'])
  if 'factors/user' in released:
    return fit_of_released_users(released['factors/user'])
  return None


def bias_columns(certificate) -> tuple[int, ...]:
  """Those of items' means and popularity, and what meets users' biases."""
  system = certificate.get('system')
  if system == 'gaussian_mf':
    init = certificate.get('parameters', {}).get('init')
    return (0, 1) if init == 'bias' else ()
  found = certificate.get('parameters', {})
  if system == 'power_mf' and 'public_ratings' in found:
    first = -2 - found['rank']  # what is public stands before its own columns
    return first, first + 1
  return _BIASES.get(str(system), ())


def _scale(ids, certificate, folder: Path) -> tuple[float, float]:
  scale = ids.get('scale') or certificate.get('parameters', {}).get('scale')
  if scale is None:
    raise ValueError(
      f'neither ids.json nor certificate.json in {folder} has the scale of '
      'the ratings'
    )
  try:
    return check_scale(scale)
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from None


def _load_seen(path: Path, shape) -> scipy.sparse.csr_array | None:
  if not path.is_file():
    return None
  leaves, _ = files.load_leaves(path)
  check_seen(leaves, path, shape)
  return seen_matrix(leaves['user'], leaves['item'], shape, leaves.get('value'))


def seen_matrix(user, item, shape, value=None) -> scipy.sparse.csr_array:
  """A [U, I] matrix with an entry for every rated pair: its rating, or 1."""
  if value is None:
    value = np.ones(len(user), np.int8)
  return scipy.sparse.csr_array((value, (user, item)), shape=shape)


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
    reasons = _reasons(model, index, items, why)
  found = _listed(model, model.user_ids[index], items, scores, reasons)
  return list(map(Recommendation._make, found))


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
  return list(map(Similar._make, found))


def _listed(
  model: Model, labels, items: np.ndarray, scores: np.ndarray, *more
) -> Iterator[tuple[Any, ...]]:
  """(label, item id, score, rank, title, *more) for every item there is."""
  row, rank = np.nonzero(items >= 0)
  names = model.item_ids[items[row, rank]].tolist()
  titles = map(model.titles.get, map(str, names))
  ranks = (rank + 1).tolist()
  found = scores[row, rank].astype(float).tolist()
  columns = (labels[row].tolist(), names, found, ranks, titles, *more)
  return zip(*columns, strict=True)
