"""The data sets of the papers, as far as they are at hand, and their splits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jax.sharding import Mesh

from dpmf_jax.ratings import catalog, formats
from dpmf_jax.ratings.ids import used_ids
from dpmf_jax.ratings.specification import from_fractions
from dpmf_jax.ratings.splits import hold_out_per_user, random_split, uniforms
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import DataError, Ratings
from dpmf_jax.rows import SLICES, SLOTS, Data, Rows, put_rows, rows

Kind = Literal['all', '80/20', 'tenfold', 'one out']
Filter = Literal['active', 'ten', 'none']
FOLDS = 10
# A part of the dense slice of Netflix, whose density is then that of the
# papers' own slices, more or less.
_PART = 0.1


class Dataset(NamedTuple):
  """Ratings, and what to say of them in every row."""

  name: str
  ratings: Ratings
  said: str


class Split(NamedTuple):
  """What is trained on and what is held out; None where nothing is."""

  train: Ratings
  test: Ratings | None
  data: Data
  held_out: Rows | None


class Source(NamedTuple):
  """Where data sets are looked for, or the one file that is used for all."""

  data_dir: str | None = None
  ratings: str | None = None
  scale: tuple[float, float] | None = None


def dataset(name: str, source: Source, kept: Filter = 'none') -> Dataset:
  """A data set by the name that figures have for it.

  Args:
    name: of the catalog; 'netflix' and 'anime' for the papers' slices of these,
      'netflix-100' for few movies of many users; 'synthetic', which is made up;
      or 'given', the file of `source`.
    source: where to look.
    kept: which users and items of a full file a paper keeps.
  """
  if name == 'given':
    assert source.ratings is not None
    ratings = formats.read(source.ratings, scale=source.scale or (1, 5))
    said = f'{Path(source.ratings).name}{_SAID[kept]}'
    return Dataset(name, _filtered(ratings, kept), said)
  if name == 'synthetic':
    ratings = synthetic(
      num_users=150, num_items=90, num_ratings=3500, rank=3, seed=1
    )
    return Dataset(name, ratings, 'synthetic ratings, which are made up')
  load = functools.partial(catalog.load, data_dir=source.data_dir, quiet=True)
  if name == 'anime':
    ratings = load('anime-slice')
    said = 'part of the Anime ratings, smaller than in the paper'
    if kept == 'active':
      ratings = _filtered(ratings, kept)
    return Dataset(name, ratings, said + _SAID[kept])
  if name == 'netflix-100':
    said = 'part of the Netflix ratings: 91 movies, fewer users than the paper'
    return Dataset(name, load('netflix-slice'), said)
  if name == 'netflix':
    folder = catalog.fetch(
      'netflix-slice', data_dir=source.data_dir, quiet=True
    )
    path = folder / 'netflix_dense_1200x1200.txt'
    ratings = formats.read(
      path, scale=(1, 5), format='dense', missing='0', name=name
    )
    drawn = ratings.take(uniforms(ratings, 0) < _PART)
    said = f'a tenth, drawn at random, of {path.name}: not the slice of a paper'
    return Dataset(name, drawn, said)
  return Dataset(name, load(name), 'the whole data set')


_SAID = {
  'active': '; users with more than 200 and fewer than 2,500 ratings, items '
  'with more than 100',
  'ten': '; users and items with more than 10 ratings',
  'none': '',
}


def _filtered(ratings: Ratings, kept: Filter) -> Ratings:
  """What a paper keeps of a full file."""
  if kept == 'none':
    return ratings
  if kept == 'ten':
    return active_slice(ratings, 10, len(ratings) + 1, 10)
  return active_slice(ratings)


def active_slice(
  ratings: Ratings,
  min_user: int = 200,
  max_user: int = 2500,
  min_item: int = 100,
) -> Ratings:
  """Returns the ratings of active users and popular items, indexed anew.

  Keeps users with more than `min_user` and fewer than `max_user` ratings,
  then, among what they rated, items with more than `min_item`. One pass: a
  user may end below `min_user` because items went. The order is ours, the
  Gaussian paper does not give one.

  Privacy: who and what is kept depends on all the ratings, so one rating
  more or less can bring in or drop a whole user or item. Guarantees hold for
  the slice as the data set: the slicing is public preprocessing, not covered.
  """
  per_user = np.bincount(ratings.user, minlength=ratings.num_users)
  keep_user = (per_user > min_user) & (per_user < max_user)
  keep = keep_user[ratings.user]
  per_item = np.bincount(ratings.item[keep], minlength=ratings.num_items)
  keep &= (per_item > min_item)[ratings.item]
  if not keep.any():
    raise DataError(
      f'{ratings.name}: no user has more than {min_user} and fewer than '
      f'{max_user} ratings on items with more than {min_item}; widen the slice'
    )
  part = ratings.take(keep)
  users = used_ids(part.user_ids, part.user)
  items = used_ids(part.item_ids, part.item)
  return dataclasses.replace(
    part,
    user=users[1],
    item=items[1],
    user_ids=users[0],
    item_ids=items[0],
    public=frozenset(),
    unique=True,
  )


class Splits:
  """The splits of a data set, laid out for devices with one shape for all.

  What is compiled depends on shapes: all parts are padded to the size of the
  whole, so that folds and seeds share one program.
  """

  def __init__(self, dataset: Dataset, mesh: Mesh | None = None):
    self.dataset, self._mesh = dataset, mesh
    ratings = dataset.ratings
    sides = (
      (ratings.user, ratings.num_users),
      (ratings.item, ratings.num_items),
    )
    self._chunks = [_chunks(index, size, mesh) for index, size in sides]
    self.part = functools.lru_cache(maxsize=4)(self._part)

  def _part(
    self, kind: Kind, number: int, fractions: frozenset | None
  ) -> Split:
    """Split or fold `number`; `fractions` give ratings an epsilon each."""
    ratings = self.dataset.ratings
    if fractions is not None:
      ratings = from_fractions(ratings, seed=number, **dict(fractions))
    train, test = _sides(ratings, kind, number)
    data = Data(self._rows(train, 'user'), self._rows(train, 'item'))
    return Split(
      train, test, data, None if test is None else self._rows(test, 'user')
    )

  def _rows(self, part: Ratings, side: Literal['user', 'item']) -> Rows:
    index, sizes = (part.user, part.item), (part.num_users, part.num_items)
    if side == 'item':
      index, sizes = index[::-1], sizes[::-1]
    laid = rows(
      index[0],
      index[1],
      part.value,
      *sizes,
      side=side,
      scale=part.scale,
      epsilon=part.epsilon,
      chunk_multiple=1 if self._mesh is None else self._mesh.size,
      least_chunks=self._chunks[side == 'item'],
    )
    return put_rows(laid, self._mesh)


def _chunks(index: np.ndarray, size: int, mesh: Mesh | None) -> int:
  """How many chunks a device needs for all ratings, and so for any part."""
  slices = int((-(-np.bincount(index, minlength=size) // SLOTS)).sum())
  return max(2, -(-slices // (SLICES * (1 if mesh is None else mesh.size))))


def _sides(
  ratings: Ratings, kind: Kind, number: int
) -> tuple[Ratings, Ratings | None]:
  if kind == 'all':
    return ratings, None
  if kind == 'one out':
    return hold_out_per_user(ratings, 1, seed=number)
  if kind == '80/20':
    return random_split(ratings, 0.2, seed=number)
  fold = (FOLDS * uniforms(ratings, 0)).astype(int) == number
  if fold.all() or not fold.any():
    raise DataError(f'{ratings.name}: fold {number} of {FOLDS} would be empty')
  return ratings.take(~fold), ratings.take(fold)


def frozen(fractions: Mapping[str, float] | None) -> frozenset | None:
  """The same, as a key."""
  return None if fractions is None else frozenset(fractions.items())
