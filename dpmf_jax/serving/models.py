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

from dpmf_jax import certificates, files
from dpmf_jax.ratings.checks import check_scale
from dpmf_jax.ratings.ids import id_texts, places
from dpmf_jax.ratings.table import Ratings, check_ratings
from dpmf_jax.serving.checking import check_leaves, check_seen, checked_ids
from dpmf_jax.types import Counted, Fit, Release, Sum

# The user ids, where a guarantee keeps them secret.
USERS = 'private/users.json'
# Of systems that always have them.
_BIASES = {'power_mf': (0, 1), 'dpals': (-3, -2, -1), 'moments': (-2, -1)}


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
