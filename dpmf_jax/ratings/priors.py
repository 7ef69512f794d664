"""What public ratings say of items, for private ones to start from.

Of ratings, in quarters of the scale's width from its middle,

  r = m_i + <x_u, q_i> + error,   x_u ~ N(0, 1),   (m_i, q_i) ~ N(t, S),

fitted by variational Bayes (Lim and Teh 2007; the prior of items has a full
covariance, and vectors of users are whitened in every round). Of who did what,
EASE (Steck 2019): of the inverse P of the regularised Gram matrix of items the
partial correlations -P_ij / (d_i d_j), d_i^2 = P_ii, by their leading
eigenvectors. Scores of items that a user has not seen need no diagonal.

Nothing here is private: it is computed from ratings that anyone may see.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from dpmf_jax import files
from dpmf_jax.ratings import matching
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.table import Ratings

_KIND = 'dpmf_jax public prior 1'
RANK = 16
LIST_RANK = 64
_ROUNDS = 30
# The most items that have factors of lists: their Gram matrix is dense.
_MOST_LISTED = 4096
# Of the Gram matrix, over the mean of its diagonal.
_LIST_RIDGE = 3.0
# An interaction with the lowest rating counts this, from this part of the
# scale on 1; as in `ranking_mf`.
_LEAST, _LIKED = 0.1, 0.75


class Prior(NamedTuple):
  """What is known of items from public ratings.

  Attributes:
    name: of the public data set.
    digest: SHA-256 of its ratings, in hexadecimal.
    item_ids: [J] as text.
    titles: [J], '' where there is none.
    mean: [J] of items, in quarters from the middle of the scale.
    variance: [J] of what is known of these means.
    factor: [J, D]; vectors of users vary by 1 in each direction.
    typical: [1 + D] mean of (mean, factor) over items.
    spread: [1 + D, 1 + D] their covariance.
    error: [] variance of a rating around all that.
    popularity: [J] of what was done with an item, interactions as they count.
    listed: [J, L] factors of lists.
    list_scale: [J] d, positive.

  The first six of ratings are of no columns where there were clicks.
  """

  name: str
  digest: str
  item_ids: tuple[str, ...]
  titles: tuple[str, ...]
  mean: np.ndarray
  variance: np.ndarray
  factor: np.ndarray
  typical: np.ndarray
  spread: np.ndarray
  error: np.ndarray
  popularity: np.ndarray
  listed: np.ndarray
  list_scale: np.ndarray

  @property
  def has_ratings(self) -> bool:
    return self.factor.shape[1] > 0


_ARRAYS = Prior._fields[4:]


class Matched(NamedTuple):
  """A prior in the order of a data set's items; what is not matched is 0.

  Attributes:
    prior: what it is of.
    place: [I] of items in the prior, -1 where they are not in it.
    by: what they were matched by.
  """

  prior: Prior
  place: np.ndarray
  by: matching.By

  def taken(self, name: str) -> np.ndarray:
    """[I, ...] float32 of the prior's array of that name."""
    found = getattr(self.prior, name)[np.maximum(self.place, 0)]
    known = (self.place >= 0).reshape(-1, *[1] * (found.ndim - 1))
    return np.where(known, found, 0.0).astype(np.float32)

  @property
  def stated(self) -> str:
    """What a certificate says of it."""
    return f'{self.prior.name}, sha256 {self.prior.digest}'

  def __str__(self) -> str:
    """What was matched, of items alone: of ratings it would tell."""
    known, size = int((self.place >= 0).sum()), len(self.place)
    weight = self.prior.popularity
    used = weight[np.unique(self.place[self.place >= 0])].sum() / weight.sum()
    return (
      f'public ratings {self.prior.name}: {known} of {size} items matched by '
      f'{self.by}, {used:.0%} of the public interactions'
    )


def public_prior(given: Any, **options: Any) -> Prior:
  """The prior of public ratings: a `Prior`, a file of one, or ratings.

  Args:
    given: `Prior`; a path to what `save_prior` wrote; or what `train` takes as
      ratings, such as `Ratings`, a path or the name of a data set.
    **options: of `ratings_of`, for files: `scale` and `max_count`.
  """
  if isinstance(given, Prior):
    return given
  if isinstance(given, str | os.PathLike):
    path = pathlib.Path(given)
    if path.suffix == '.safetensors':
      return load_prior(path)
  return prior_of(ratings_of(given, **options))


def prior_of(
  ratings: Ratings, *, rank: int = RANK, list_rank: int = LIST_RANK
) -> Prior:
  """What these ratings, which are public, say of their items.

  Args:
    ratings: or clicks, which say nothing of ratings.
    rank: number of factors of ratings.
    list_rank: number of factors of lists.
  """
  if len(ratings) == 0:
    raise ValueError(f'{ratings.name}: there are no public ratings')
  names = tuple(map(str, ratings.item_ids.tolist()))
  rank = 0 if ratings.clicks else min(rank, max(1, min(_shape(ratings)) - 1))
  ids = json.dumps([ratings.user_ids.tolist(), ratings.item_ids.tolist()])
  return Prior(
    ratings.name,
    files.sha256(ids.encode(), ratings.user, ratings.item, ratings.value),
    names,
    tuple(str(ratings.titles.get(name) or '') for name in names),
    **(_rated(ratings, rank) if rank else _unrated(ratings.num_items)),
    **_listed(ratings, list_rank),
  )


def save_prior(prior: Prior, path: str | os.PathLike[str]) -> None:
  """Writes a prior to a safetensors file, for `public_prior` to read."""
  path = pathlib.Path(path)
  if path.suffix != '.safetensors':
    raise ValueError(f'{path}: the file of a prior ends in .safetensors')
  texts = {
    'kind': _KIND,
    'name': prior.name,
    'digest': prior.digest,
    'items': json.dumps([prior.item_ids, prior.titles], ensure_ascii=False),
  }
  arrays = {name: getattr(prior, name) for name in _ARRAYS}
  files.save_tree(path, arrays, metadata=texts)


def load_prior(path: str | os.PathLike[str]) -> Prior:
  """The prior that `save_prior` wrote; ValueError names a broken file."""
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path}: no such file of a public prior; check the path')
  arrays, texts = files.load_leaves(path)
  if texts.get('kind') != _KIND or arrays.keys() != set(_ARRAYS):
    raise ValueError(
      f'{path} is not a public prior: save_prior writes one, as does train '
      'with save_prior'
    )
  ids, titles = files.parsed_json(texts.get('items', '[]'), str(path), list)
  prior = Prior(
    texts['name'], texts['digest'], tuple(ids), tuple(titles), **arrays
  )
  _check(prior, path)
  return prior


def matched(prior: Prior, ratings: Ratings) -> Matched:
  """The prior for the items of `ratings`, of which it sees ids and titles.

  Privacy: item ids and titles are public; no rating is looked at.
  """
  place, by = matching.same_items(
    cast(Sequence[Any], ratings.item_ids),
    ratings.titles,
    prior.item_ids,
    prior.titles,
  )
  if not (place >= 0).any():
    raise ValueError(
      f'public_ratings={prior.name}: none of the {ratings.num_items} items of '
      f'{ratings.name} is in it, by {by}; give ratings of the same items, or '
      'titles for both'
    )
  return Matched(prior, place, by)


def _check(prior: Prior, path: pathlib.Path) -> None:
  items, rank = len(prior.item_ids), prior.factor.shape[-1]
  shapes = {
    'factor': (items, rank),
    'typical': (1 + rank,),
    'spread': (1 + rank, 1 + rank),
    'error': (),
    'listed': (items, prior.listed.shape[-1]),
  }
  for name in _ARRAYS:
    array = getattr(prior, name)
    wanted = shapes.get(name, (items,))
    if array.shape != wanted or not np.isfinite(array).all():
      raise ValueError(
        f'{path}, leaf {name}: must be finite and {list(wanted)}, is '
        f'{list(array.shape)}'
      )
  if len(prior.titles) != items or not (prior.list_scale > 0).all():
    raise ValueError(f'{path}: has {items} items, and other numbers of parts')


def _shape(ratings: Ratings) -> tuple[int, int]:
  return ratings.num_users, ratings.num_items


def _outer(rows: np.ndarray) -> np.ndarray:
  return (rows[:, :, None] * rows[:, None]).reshape(len(rows), -1)


def _unrated(items: int) -> Mapping[str, np.ndarray]:
  none = np.zeros(items, np.float32)
  return {
    'mean': none,
    'variance': none,
    'factor': none[:, None][:, :0],
    'typical': np.zeros(1, np.float32),
    'spread': np.zeros((1, 1), np.float32),
    'error': np.ones((), np.float32),
  }


def _rated(ratings: Ratings, rank: int) -> Mapping[str, np.ndarray]:
  """Means and factors of items by variational Bayes, in quarters."""
  low, high = ratings.scale
  value = (np.float64(ratings.value) - (low + high) / 2) / ((high - low) / 4)
  (users, items), k = _shape(ratings), rank + 1
  table = lambda entries: scipy.sparse.csr_matrix(
    (entries, (ratings.user, ratings.item)), shape=(users, items)
  )
  there, rated = table(np.ones_like(value)), table(value)
  of_items, rated_of_items = there.T.tocsr(), rated.T.tocsr()
  number = np.bincount(ratings.item, minlength=items)
  row = np.zeros((items, k))
  row[:, 0] = np.bincount(ratings.item, value, items) / (number + 5)
  row[:, 1] = 0.4
  noise = np.random.default_rng(0).standard_normal((items, rank - 1))
  row[:, 2:] = 0.1 * noise
  about = np.repeat(0.01 * np.eye(k)[None], items, axis=0)
  typical, spread, error = row.mean(axis=0), 0.2 * np.eye(k), 0.8
  used = number > 0
  for _ in range(_ROUNDS):
    q = row[:, 1:]
    moment = _outer(q) + about[:, 1:, 1:].reshape(items, -1)
    matrix = (there @ moment).reshape(users, rank, rank) / error + np.eye(rank)
    right = rated @ q - there @ (q * row[:, :1] + about[:, 0, 1:])
    left = np.linalg.inv(matrix)
    x = np.einsum('uab,ub->ua', left, right / error)
    # Whitened, which all but the prior of users leaves as it is.
    x = x - x.mean(axis=0)
    inverse = np.linalg.inv(
      np.linalg.cholesky(x.T @ x / users + left.mean(axis=0))
    )
    x, left = x @ inverse.T, inverse @ left @ inverse.T
    z = np.concatenate([np.ones((users, 1)), x], axis=1)
    moment = _outer(z).reshape(users, k, k)
    moment[:, 1:, 1:] += left
    total = (of_items @ moment.reshape(users, -1)).reshape(items, k, k)
    right = rated_of_items @ z
    precision = np.linalg.inv(spread)
    about = np.linalg.inv(total / error + precision)
    row = np.einsum('iab,ib->ia', about, right / error + precision @ typical)
    second = _outer(row).reshape(items, k, k) + about
    squares = (value**2).sum() - 2 * (row * right).sum()
    error = (squares + (total * second).sum()) / value.size
    typical = row[used].mean(axis=0)
    apart = row[used] - typical
    spread = (apart.T @ apart + about[used].sum(axis=0)) / used.sum()
    spread = spread + 1e-6 * np.eye(k)
  float32 = lambda array: np.asarray(array, np.float32)
  return {
    'mean': float32(row[:, 0]),
    'variance': float32(about[:, 0, 0]),
    'factor': float32(row[:, 1:]),
    'typical': float32(typical),
    'spread': float32(spread),
    'error': float32(error),
  }


def _listed(ratings: Ratings, rank: int) -> Mapping[str, np.ndarray]:
  """Popularity and factors of lists; zeros for all but the most popular."""
  low, high = ratings.scale
  count = np.ones(len(ratings))
  if not ratings.clicks:
    part = (np.float64(ratings.value) - low) / (high - low)
    count = np.minimum(_LEAST + (1 - _LEAST) * part / _LIKED, 1.0)
  items = ratings.num_items
  popularity = np.bincount(ratings.item, count, items)
  kept = np.argsort(-popularity, kind='stable')[:_MOST_LISTED]
  table = scipy.sparse.csr_matrix(
    (count, (ratings.user, ratings.item)), shape=_shape(ratings)
  )[:, kept]
  gram = np.asarray((table.T @ table).todense())
  ridge = _LIST_RIDGE * np.trace(gram) / len(gram)
  inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
  size = np.sqrt(np.diag(inverse))
  partial = -inverse / size[:, None] / size[None]
  np.fill_diagonal(partial, 0.0)
  value, vector = _leading(partial, min(rank, len(kept)))
  listed = np.zeros((items, len(value)), np.float32)
  listed[kept] = vector * np.sqrt(np.maximum(value, 0.0))
  scale = np.ones(items, np.float32)
  scale[kept] = size * np.sqrt(ridge)
  return {
    'popularity': np.asarray(popularity, np.float32),
    'listed': listed,
    'list_scale': scale,
  }


def _leading(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
  """The largest eigenvalues of a symmetric matrix, and their vectors."""
  if rank >= len(matrix) - 1:
    value, vector = np.linalg.eigh(matrix)
    return value[-rank:], vector[:, -rank:]
  start = np.random.default_rng(0).standard_normal(len(matrix))
  value, vector = scipy.sparse.linalg.eigsh(matrix, rank, which='LA', v0=start)
  return value, vector
