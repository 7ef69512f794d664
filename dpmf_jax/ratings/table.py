"""The ratings table: indices for the maths, original ids for the people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sized
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dpmf_jax.ratings import checks, repeats
from dpmf_jax.ratings.columns import choose
from dpmf_jax.ratings.ids import DataError as DataError
from dpmf_jax.ratings.ids import Where, factorize, places, used_ids


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ratings:
  """Ratings of users for items, checked when made and read-only after.

  Privacy: the id lists and the scale are public facts. A system treats them
  as the fixed domain in which neighbouring data sets differ by a rating, so
  the scale is always given, never taken from the data.

  Attributes:
    user: [N] int32, index into `user_ids`.
    item: [N] int32, index into `item_ids`.
    value: [N] float32, inside `scale`.
    user_ids: the original ids: int64 if every one is a canonical integer
      ('7', not '007'), else str.
    item_ids: the same for items.
    scale: smallest and largest rating that can be given; of clicks 0 and the
      most that a count counts.
    clicks: whether there are no ratings: a value is how often the user did
      something with the item, at least 1.
    titles: item id (as str) -> title; may be empty.
    timestamp: [N] int64 or float64 seconds, or None.
    epsilon: [N] float64, positive: the epsilon that each rating is to have in
      a personalised system, a public fact; or None. See `specification`.
    name: what to call the data in messages and files.
    public: which of 'users' and 'items' have a list of ids that was made
      without looking at the ratings; see `with_public_ids`.
    most_users: a public bound on the number of users, or None.

  `unique` says that no (user, item) pair occurs twice, where that was checked
  before.
  """

  user: np.ndarray
  item: np.ndarray
  value: np.ndarray
  user_ids: np.ndarray
  item_ids: np.ndarray
  scale: tuple[float, float]
  clicks: bool = False
  titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
  timestamp: np.ndarray | None = None
  epsilon: np.ndarray | None = None
  name: str = 'ratings'
  public: frozenset[str] = frozenset()
  most_users: int | None = None
  unique: dataclasses.InitVar[bool] = False

  def __post_init__(self, unique: bool):
    put = lambda name, array: object.__setattr__(self, name, _frozen(array))
    put('user', _indices('user', self.user, self.user_ids))
    put('item', _indices('item', self.item, self.item_ids))
    put('value', np.asarray(self.value, np.float32))
    put('user_ids', np.asarray(self.user_ids))
    put('item_ids', np.asarray(self.item_ids))
    object.__setattr__(self, 'scale', checks.check_scale(self.scale))
    if self.timestamp is not None:
      put(
        'timestamp',
        checks.seconds(self.timestamp, lambda row: f'{self.name}, row {row}'),
      )
    if self.epsilon is not None:
      put('epsilon', checks.epsilons(self.epsilon, self.name))
    _check(self)
    if not unique:
      _check_unique(self)

  @property
  def num_users(self) -> int:
    """How many users there may be: the public bound, or as many as listed."""
    return self.most_users or len(self.user_ids)

  @property
  def num_items(self) -> int:
    return len(self.item_ids)

  def __len__(self) -> int:
    return len(self.value)

  def __repr__(self) -> str:
    low, high = self.scale
    what = f'ratings, scale {low:g}..{high:g}'
    if self.clicks:
      what = 'clicks' if high == 1 else f'clicks, counted up to {high:g}'
    return (
      f'Ratings({self.name!r}: {self.num_users} users, {self.num_items} items, '
      f'{len(self)} {what})'
    )

  def take(self, index: np.ndarray) -> Ratings:
    """Returns the ratings at `index` (numbers or mask); id lists unchanged."""
    part = lambda array: None if array is None else array[index]
    return dataclasses.replace(
      self,
      user=self.user[index],
      item=self.item[index],
      value=self.value[index],
      timestamp=part(self.timestamp),
      epsilon=part(self.epsilon),
      unique=index.dtype == bool,
    )

  def columns(self) -> dict[str, np.ndarray]:
    """Returns user, item, rating[, timestamp][, epsilon], with original ids.

    Clicks have a count in place of the rating, unless all count the same.
    """
    columns = {
      'user': self.user_ids[self.user],
      'item': self.item_ids[self.item],
    }
    if not self.clicks or self.scale[1] > 1:
      columns['count' if self.clicks else 'rating'] = self.value
    for name in ('timestamp', 'epsilon'):
      if (values := getattr(self, name)) is not None:
        columns[name] = values
    return columns

  def to_dataframe(self) -> Any:
    """Returns a pandas DataFrame of `columns`."""
    try:
      import pandas as pd
    except ImportError as error:
      raise DataError(
        "a DataFrame needs pandas: pip install 'dpmf_jax[pandas]'"
      ) from error
    return pd.DataFrame(self.columns())

  def to_csr(self) -> scipy.sparse.csr_array:
    """Returns [U, I] float32, with an entry for every rating, zeros too."""
    shape = len(self.user_ids), self.num_items
    return scipy.sparse.csr_array((self.value, (self.user, self.item)), shape)


def check_ratings(ratings: Any, role: str = 'ratings') -> None:
  """Raises ValueError that says how to get Ratings of what is none."""
  if not isinstance(ratings, Ratings):
    raise ValueError(
      f'{role} of type {type(ratings).__name__} must be Ratings, which '
      'dpmf_jax.load, read, from_dataframe, from_csr and from_arrays make'
    )


def from_arrays(
  users: Any,
  items: Any,
  values: Any = None,
  *,
  scale: tuple[float, float] | None = None,
  max_count: int | None = None,
  timestamps: Any = None,
  titles: Mapping[str, str] | None = None,
  duplicates: repeats.Duplicates = 'last',
  name: str = 'ratings',
) -> Ratings:
  """Returns the Ratings of equally long columns of ids and values.

  Args:
    users, items: ids; the lists of them are sorted.
    values: ratings; counts, if `max_count` is given; or None for clicks, which
      True stands for, too.
    scale: smallest and largest rating that can be given, a public fact.
    max_count: says that values are counts, of which so many count at most, a
      public fact; 1 makes all interactions alike. A count of 0 is none.
    timestamps: numbers of seconds, or datetimes.
    titles: item id -> title.
    duplicates: what to keep of the ratings of a (user, item) pair: 'last',
      'first' or 'mean', with a warning, or 'error'. Clicks are added up.
    name: what to call the data.
  """
  columns = {'users': users, 'items': items, 'values': values}
  if timestamps is not None:
    columns['timestamps'] = timestamps
  if values is None:
    del columns['values']
  for key, column in columns.items():
    if not isinstance(column, Sized):
      raise DataError(f'{name}: {key}={column!r} must be a list or an array')
  lengths = {key: len(column) for key, column in columns.items()}
  if len(set(lengths.values())) > 1:
    raise DataError(f'{name}: columns differ in length: {lengths}')
  if not lengths['users']:
    raise DataError(f'{name}: there are no ratings')
  if not isinstance(titles, Mapping | None):
    raise DataError(f'{name}: titles={titles!r} must map item ids to titles')
  where = lambda row: f'{name}, row {row}'
  table = Columns(
    factorize(users, 'user', where),
    factorize(items, 'item', where),
    None if values is None else checks.numbers(values, name),
    not (values is None or checks.are_truths(values, scale, name)),
    timestamps,
    where,
  )
  return assemble(
    table,
    scale=scale,
    max_count=max_count,
    titles=titles,
    duplicates=duplicates,
    name=name,
  )


def with_public_ids(
  ratings: Ratings,
  *,
  users: Any = None,
  items: Any = None,
  num_users: int | None = None,
) -> Ratings:
  """Returns the same ratings, in lists that do not tell who has any.

  Args:
    ratings: whose own lists, of the ids that occur, are replaced.
    users: all ids that a user may have, rated or not, or None.
    items: all ids that an item may have, or None.
    num_users: for systems that protect whole users, and keep the list of them
      secret: as many users as there may be, in place of `users`.

  Privacy: lists and number must be made without looking at the ratings. Then
  what a system releases of them, and its settings, are the same for
  neighbouring data sets. A rating outside of the lists is an error, which
  itself tells of it.
  """
  if users is not None and num_users is not None:
    raise DataError('give users or num_users, not both')
  changed: dict[str, Any] = {}
  for role, given in (('user', users), ('item', items)):
    if given is None:
      continue
    ids, index = factorize(given, role, lambda row: f'public ids, row {row}')
    if len(ids) != len(index):
      twice = ids[np.bincount(index).argmax()]
      raise DataError(f'the public list of {role}s has {twice} more than once')
    own = getattr(ratings, f'{role}_ids')
    place = places(ids, own)
    rated = np.unique(getattr(ratings, role))
    if (row := checks.first_of(place[rated] < 0)) is not None:
      raise DataError(
        f'{ratings.name}: {role} {own[rated[row]]} is not in the public list '
        f'of {len(ids)} {role}s; add it, or remove its ratings'
      )
    changed |= {role: place[getattr(ratings, role)], f'{role}_ids': ids}
  listed = {f'{role}s' for role in ('user', 'item') if role in changed}
  if num_users is not None:
    if isinstance(num_users, bool) or not isinstance(
      num_users, int | np.integer
    ):
      raise DataError(f'num_users={num_users!r} must be an integer')
    if num_users < len(ratings.user_ids):
      raise DataError(
        f'num_users={num_users} is below the number of users in '
        f'{ratings.name}, {len(ratings.user_ids)}; give a bound that holds'
      )
    changed['most_users'] = int(num_users)
  return dataclasses.replace(
    ratings, **changed, public=ratings.public | listed, unique=True
  )


def from_dataframe(
  df: Any,
  *,
  scale: tuple[float, float] | None = None,
  max_count: int | None = None,
  columns: Mapping[str, str] | None = None,
  titles: Mapping[str, str] | None = None,
  duplicates: repeats.Duplicates = 'last',
  name: str = 'dataframe',
) -> Ratings:
  """Returns the Ratings of a pandas DataFrame.

  `columns` names those of 'user', 'item', 'rating', 'timestamp' and 'count'
  which have names that are not known for it, such as userId or movie_id; see
  `columns`. Without a rating there are clicks. The rest is as in `from_arrays`.
  """
  found = choose([str(column) for column in df], columns or {}, True, name)
  column = lambda role: (
    df.iloc[:, found[role]].to_numpy() if role in found else None
  )
  rated = 'rating' in found
  return from_arrays(
    column('user'),
    column('item'),
    column('rating' if rated else 'count'),
    scale=scale if rated else None,
    max_count=max_count if rated else checks.limit_of_clicks(max_count),
    timestamps=column('timestamp'),
    titles=titles,
    duplicates=duplicates,
    name=name,
  )


def from_csr(
  matrix: Any,
  *,
  scale: tuple[float, float] | None = None,
  max_count: int | None = None,
  user_ids: Any = None,
  item_ids: Any = None,
  titles: Mapping[str, str] | None = None,
  name: str = 'matrix',
) -> Ratings:
  """Returns the stored entries of a sparse [U, I] matrix as Ratings.

  Rows and columns keep their place; ids default to 0..U-1 and 0..I-1. Entries
  are ratings; or counts, with `max_count`; or clicks, if they are True. See
  `from_arrays`.
  """
  entries = scipy.sparse.coo_array(matrix)
  shape: Any = entries.shape  # SciPy types it as optional
  num_users, num_items = shape
  if checks.are_truths(entries.data, scale, name):
    max_count = checks.limit_of_clicks(max_count)
  scale, clicks = checks.kind_of(scale, max_count)
  if clicks:
    where = lambda row: f'{name}, entry {row}'
    checks.check_values(entries.data, None, where)
    entries = scipy.sparse.coo_array(scipy.sparse.csr_array(entries))
    there = entries.data > 0
    coords = [index[there] for index in entries.coords]
    value = np.clip(entries.data[there].astype(np.float64), 1, scale[1])
  else:
    coords, value = entries.coords, entries.data
  ids = lambda given, size: np.arange(size) if given is None else given
  return Ratings(
    user=coords[0],
    item=coords[1],
    value=value,
    user_ids=_id_list(ids(user_ids, num_users), num_users, 'user_ids', name),
    item_ids=_id_list(ids(item_ids, num_items), num_items, 'item_ids', name),
    scale=scale,
    clicks=clicks,
    titles=titles or {},
    name=name,
  )


class Columns(NamedTuple):
  """Who did what, as a file or a caller says it.

  With a `max_count`, or if nobody `rated`, the values are counts.
  """

  users: tuple[np.ndarray, np.ndarray]  # sorted ids, [N] index
  items: tuple[np.ndarray, np.ndarray]
  value: np.ndarray | None  # [N], ratings or counts; all 1 if None
  rated: bool
  timestamp: Any  # [N] or None
  where: Where
  named: bool = False  # whether a header says that these are ratings


def assemble(
  table: Columns,
  *,
  scale: tuple[float, float] | None,
  max_count: int | None,
  titles: Mapping[str, str] | None,
  duplicates: repeats.Duplicates,
  name: str,
) -> Ratings:
  """Returns the Ratings of a table; its `where` locates errors."""
  users, items, value, rated, timestamp, where, _ = table
  if duplicates not in repeats.DUPLICATES:
    raise DataError(
      f'duplicates={duplicates!r} is not one of {", ".join(repeats.DUPLICATES)}'
    )
  if value is None:
    value = np.ones(len(users[1]))
  if not len(value):
    raise DataError(f'{name}: there are no ratings')
  if not rated:
    scale, max_count = None, checks.limit_of_clicks(max_count)
  scale, clicks = checks.kind_of(scale, max_count)
  checks.check_values(value, None if clicks else scale, where)
  (user_ids, user), (item_ids, item) = users, items
  if timestamp is not None:
    timestamp = checks.seconds(timestamp, where)
  pairs = user, item, len(user_ids), len(item_ids)
  if clicks:
    if duplicates == 'error':
      repeats.resolved(pairs, value, duplicates, where)
    keep, value, timestamp = repeats.added_up(pairs, value, timestamp)
    value = np.clip(value, 1, scale[1])
    if not len(value):
      raise DataError(
        f'{where(0)}: count 0, as everywhere: nobody did anything'
      )
  else:
    keep, value = repeats.resolved(pairs, value, duplicates, where)
    timestamp = None if timestamp is None else timestamp[keep]
  users, items = used_ids(user_ids, user[keep]), used_ids(item_ids, item[keep])
  return Ratings(
    user=users[1],
    item=items[1],
    value=value,
    user_ids=users[0],
    item_ids=items[0],
    scale=scale,
    clicks=clicks,
    titles=titles or {},
    timestamp=timestamp,
    name=name,
    unique=True,
  )


def _frozen(array: np.ndarray) -> np.ndarray:
  array = array.view()  # so that the caller's own array stays writable
  array.flags.writeable = False
  return array


def _indices(role: str, index: Any, ids: Any) -> np.ndarray:
  index, size = np.asarray(index), len(ids)
  if index.dtype.kind not in 'iu':
    raise DataError(f'{role}: indices have type {index.dtype}, not integer')
  row = checks.first_of((index < 0) | (index >= size))
  if row is not None:
    raise DataError(f'{role}[{row}] = {index[row]} is not in 0..{size - 1}')
  return index.astype(np.int32, copy=False)


def _check(ratings: Ratings) -> None:
  name, count = ratings.name, len(ratings.value)
  for field in ('user', 'item', 'value', 'timestamp', 'epsilon'):
    array = getattr(ratings, field)
    if array is not None and array.shape != (count,):
      raise DataError(f'{name}: {field} has shape {array.shape}, not [{count}]')
  if not count:
    raise DataError(f'{name}: there are no ratings')
  for field in ('user_ids', 'item_ids'):
    ids = getattr(ratings, field)
    if ids.ndim != 1 or (ids.dtype != np.int64 and ids.dtype.kind != 'U'):
      raise DataError(f'{name}: {field} is {ids.dtype}, not int64 or str')
    if len(np.unique(ids)) != len(ids):
      raise DataError(f'{name}: {field} holds an id more than once')
  # Rounding to float32 is monotone, so a rating inside the scale stays there.
  low, high = np.float32(ratings.scale[0]), np.float32(ratings.scale[1])
  if ratings.clicks and (low != 0 or (ratings.value < 1).any()):
    raise DataError(
      f'{name}: clicks must have a scale from 0, and counts of at least 1'
    )
  outside = ~((ratings.value >= low) & (ratings.value <= high))
  if (row := checks.first_of(outside)) is not None:
    raise DataError(
      f'{name}, row {row}: rating {ratings.value[row]:g} is outside the scale '
      f'{low:g}..{high:g}; correct it or pass the right scale'
    )


def _check_unique(ratings: Ratings) -> None:
  sizes = len(ratings.user_ids), len(ratings.item_ids)
  order, new = repeats.grouped(ratings.user, ratings.item, *sizes)
  if not new.all():
    row = int(order[~new].min())
    raise DataError(
      f'{ratings.name}, row {row}: user '
      f'{ratings.user_ids[ratings.user[row]]} rates '
      f'item {ratings.item_ids[ratings.item[row]]} again; keep one rating'
    )


def _id_list(ids: Any, size: int, field: str, name: str) -> np.ndarray:
  ids = np.asarray(ids)
  if len(ids) != size:
    raise DataError(f'{name}: {field} has {len(ids)} ids for {size} places')
  kept, index = factorize(ids, field, lambda row: f'{name}, {field}[{row}]')
  return kept[index]
