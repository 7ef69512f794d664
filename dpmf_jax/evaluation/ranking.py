"""Ranking metrics over the whole catalogue, for one block of users at a time.

A user's list is every item that they did not rate in training, best score
first. Held-out items are relevant or not; how much they were liked beyond that
does not count. Of a block of users the device holds scores [B, I] and counts,
for each relevant item, the irrelevant ones that score more or the same: work is
I for each held-out rating, besides scoring, and nothing is sorted. The rest is
done on the host, in float64, from those counts.

Ties: irrelevant items come before relevant ones of the same score, so that a
model which scores everything alike is not credited with luck, and so that
metrics do not depend on the order of items. Only in AUC a tie counts half, as
its definition has it: there such a model has 1/2. Lists, of which is counted
what they show and how they differ, are those that are served, where a tie goes
to the item that comes first.

Privacy: nothing here is private. A metric of private ratings is for the
curator's eyes; it is not covered by any certificate.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.kernels.slices import take
from dpmf_jax.ratings.table import Ratings, check_ratings
from dpmf_jax.serving.models import Model, seen_matrix
from dpmf_jax.serving.recommendations import list_factors, listing
from dpmf_jax.serving.scoring import block_size, dense_rows, top_products
from dpmf_jax.types import Release

_PAIRS = 64  # held-out ratings whose users' scores are compared at a time
_HALF = 2**16  # where the second of two counts begins in a uint32
SLICES = ('head', 'middle', 'tail')


class _Pairs(NamedTuple):
  """Relevant pairs in the order of users, and what stands before them."""

  user: np.ndarray  # [N]
  item: np.ndarray  # [N]
  score: np.ndarray  # [N]
  above: np.ndarray  # [N] irrelevant items of the user with larger scores
  tied: np.ndarray  # [N] and with the same score
  irrelevant: np.ndarray  # [N] and in all


def ranking_metrics(
  model: Release | Model,
  train: Ratings,
  test: Ratings,
  k: int | Sequence[int] = (10,),
  *,
  threshold: float | None = None,
) -> dict[str, Any]:
  """Recall@k, NDCG@k, MAP, MRR and AUC, means over users, as JSON values.

  For a user with n relevant items at the ranks r_1 < ... < r_n:
  recall@k is the share of them with r <= k; ndcg@k the sum of 1 / log2(r + 1)
  over those, divided by its value at ranks 1, 2, ..., min(n, k); the average
  precision, of which 'map' is the mean, the mean of m / r_m; 'mrr' has 1 / r_1;
  'auc' the mean share of irrelevant items that score less, ties half.
  Of the lists of all users, 'items_shown@k' is how many items are in any, and
  'lists_differ@k' what part of a list another user's has not, on average.

  Args:
    model: both sides' factors, in the order of `train`'s and `test`'s ids. What
      is ranked are lists: where few people rated an item, predictions are
      shrunk as in `serving.recommendations.recommend`.
    train: its items are left out of a user's list.
    test: held-out ratings; of a pair that is in `train`, too, there is nothing
      to recommend, and it is left out.
    k: one or more lengths of lists.
    threshold: ratings of `test` from here on are relevant, others are like
      items without a rating; None takes all of them as relevant.

  Returns:
    The metrics, 'users' (who have relevant items), 'users_left_out' (the
    others), 'relevant' (how many pairs) and 'slices': the same metrics with
    only the 'head', 'middle' or 'tail' items as relevant, by `popularity`.
    Ranks are still those among all items, and users without relevant items in
    a slice are left out of it. Metrics that have no user are None; 'auc'
    leaves out users for whom no item is irrelevant.
  """
  cutoffs = (k,) if isinstance(k, int) else tuple(k)
  if not cutoffs or min(cutoffs) < 1:
    raise ValueError(f'k={k!r} must be numbers of at least 1')
  check_ratings(train, 'train')
  check_ratings(test, 'test')
  user, item = _factors(model, train, test)
  pairs = _pairs(user, item, train, test, threshold)
  users = len(np.unique(pairs.user))
  every = np.ones(len(pairs.user), bool)
  place = popularity(train)
  sliced = {}
  for number, name in enumerate(SLICES):
    items = int((place == number).sum())
    chosen = place[pairs.item] == number
    sliced[name] = {'items': items} | _means(pairs, chosen, cutoffs)
  return _means(pairs, every, cutoffs) | {
    **_variety(user, item, train, cutoffs),
    'users_left_out': len(test.user_ids) - users,
    'slices': sliced,
  }


def _variety(
  user: np.ndarray, item: np.ndarray, train: Ratings, cutoffs: Sequence[int]
) -> dict[str, Any]:
  """How many items lists show, and how far those of two users differ."""
  shape = (len(train.user_ids), train.num_items)
  seen = seen_matrix(train.user, train.item, shape)
  listed, _ = top_products(user[: shape[0]], item, max(cutoffs), seen)
  found: dict[str, Any] = {}
  for k in cutoffs:
    part = listed[:, :k]
    count = np.bincount(part[part >= 0], minlength=shape[1])
    # Pairs of users who both have an item, of pairs of lists' places.
    most = (shape[0] - 1) * int(count.sum())
    same = int((count * (count - 1)).sum())
    found[f'items_shown@{k}'] = int((count > 0).sum())
    found[f'lists_differ@{k}'] = 1 - same / most if most else None
  return found


def text(metrics: dict[str, Any]) -> str:
  """A table: the model, and popularity beside it, by each measure."""
  columns = {'this model': metrics, **metrics.get('baselines', {})}
  names = [name.split(',')[0] for name in columns]
  cutoffs = [key[5:] for key in metrics if key.startswith('ndcg@')]
  kinds = {'ndcg': 'NDCG', 'recall': 'Recall', 'items_shown': 'items shown'}
  kinds['lists_differ'] = 'lists differ'
  rows = {
    f'{said}@{k}': [each[f'{kind}@{k}'] for each in columns.values()]
    for kind, said in kinds.items()
    for k in cutoffs
  }
  for kind in ('map', 'mrr', 'auc'):
    rows[kind.upper()] = [each[kind] for each in columns.values()]
  for part in SLICES:
    sliced = [each['slices'][part] for each in columns.values()]
    for k in cutoffs[:1]:
      said = f'NDCG@{k}, {part} ({sliced[0]["items"]} items)'
      rows[said] = [each[f'ndcg@{k}'] for each in sliced]
  head = f'{metrics["users"]} users, {metrics["relevant"]} relevant'
  table = {head: names} | {
    said: [_figure(value) for value in values] for said, values in rows.items()
  }
  first, widths = max(map(len, table)), [max(len(n), 8) for n in names]
  lines = [
    f'  {said:{first}}'
    + ''.join(
      f'  {cell:>{width}}' for cell, width in zip(cells, widths, strict=True)
    )
    for said, cells in table.items()
  ]
  noisy = 'noisy popularity has the same budget' if len(names) > 2 else ''
  notes = [
    'popularity is not private',
    noisy,
    "items shown: how many are in anybody's list",
    "lists differ: by the part of a list that another user's has not",
  ]
  note = '; '.join(filter(None, notes))
  lines.append(textwrap.indent(textwrap.fill(note, 78), '  '))
  return '\n'.join(lines)


def _figure(value: float | None) -> str:
  if value is None:
    return '-'
  return f'{value:.4f}' if isinstance(value, float) else f'{value}'


def popularity(train: Ratings) -> np.ndarray:
  """[I] 0 for the head, 1 for the middle, 2 for the tail of the items.

  An item is in the head if those with more training ratings have less than a
  third of all ratings together, in the tail if they have two thirds or more.
  Equally popular items are together.
  """
  counts = np.bincount(train.item, minlength=train.num_items)
  _, index = np.unique(counts, return_inverse=True)
  mass = np.bincount(index, counts)  # of all items with that many ratings
  more = mass[::-1].cumsum()[::-1] - mass
  return np.minimum(3 * more[index] // len(train), 2).astype(np.int64)


def _factors(
  model: Release | Model, train: Ratings, test: Ratings
) -> tuple[np.ndarray, np.ndarray]:
  """Both sides' factors for lists, checked against the ratings."""
  if isinstance(model, Model):
    user, item = model.user_factors, model.item_factors
  elif isinstance(model, Release):
    user, item = model.factors
  else:
    raise ValueError(
      f'model of type {type(model).__name__} must be a Model or a Release'
    )
  for name, side in (('user', user), ('item', item)):
    if side is None:
      raise ValueError(f'the model has no {name} factors to rank with')
    if not np.isfinite(side).all():
      raise ValueError(f'{name} factors are not all finite')
    lists = [getattr(ratings, f'{name}_ids') for ratings in (train, test)]
    size = getattr(train, f'num_{name}s')  # more users than listed may be there
    if not np.array_equal(*lists) or len(side) != size:
      raise ValueError(
        f'model, train and test must have the same {name}s: there are '
        f'{len(side)}, {len(lists[0])} and {len(lists[1])}'
      )
  user, item = np.asarray(user, np.float32), np.asarray(item, np.float32)
  number = None if model.number is None else np.asarray(model.number)
  how = listing(number, train.scale)
  user, item, _ = list_factors(user, item, float(model.offset), how)
  return user, item


def _above_and_tied(rows: jax.Array, score: jax.Array):
  """How many in `rows` [P, I] are larger than, and equal to, `score` [P, 1]."""
  # Gathered once, and one sum for both counts: two to four times as fast.
  rows = jax.lax.optimization_barrier(rows)
  counts = jnp.zeros((2, len(rows)), jnp.int32)
  for start in range(0, rows.shape[1], _HALF - 1):
    part = rows[:, start : start + _HALF - 1]
    count = jnp.where(part > score, _HALF, part == score).astype(jnp.uint32)
    both = count.sum(axis=1, dtype=jnp.uint32)
    pair = jnp.stack([both // _HALF, both % _HALF])
    counts = counts + pair.astype(jnp.int32)
  return counts


@jax.jit  # One program for all blocks of users.
def _counts(user, item, excluded, row, column, chunks):
  """Scores [N] of pairs, and numbers of items that are above and tied.

  Pairs are (row of `user` [B, D], column); `excluded` [B, I] items do not
  count. Only the first `chunks` * 64 pairs are looked at.
  """
  scores = jnp.matmul(user, item.T, precision='highest')
  others = jnp.where(excluded, -jnp.inf, scores)

  def body(number, found):
    part = lambda array: jax.lax.dynamic_slice(
      array, (number * _PAIRS,), (_PAIRS,)
    )
    rows, columns = part(row), part(column)
    score = scores[rows, columns]
    above, tied = _above_and_tied(take(others, rows), score[:, None])
    return tuple(
      jax.lax.dynamic_update_slice(whole, new, (number * _PAIRS,))
      for whole, new in zip(found, (score, above, tied), strict=True)
    )

  empty = jnp.zeros(row.shape, jnp.int32)
  start = (jnp.zeros(row.shape), empty, empty)
  return jax.lax.fori_loop(0, chunks, body, start)


def _pairs(user, item, train, test, threshold) -> _Pairs:
  """The relevant pairs, counted block by block."""
  shape = (len(user), len(item))
  keep = np.ones(len(test), bool)
  if threshold is not None:
    keep = test.value >= threshold
  flat = lambda part: part.user.astype(np.int64) * shape[1] + part.item
  trained = np.sort(flat(train))
  place = np.searchsorted(trained, flat(test))
  keep &= trained[np.minimum(place, len(trained) - 1)] != flat(test)
  if not keep.any():
    nothing = np.zeros(0, np.int64)
    return _Pairs(*(nothing for _ in _Pairs._fields))
  rows, columns = test.user[keep], test.item[keep]
  order = np.lexsort((columns, rows))
  rows, columns = rows[order], columns[order]
  seen = seen_matrix(train.user, train.item, shape)
  excluded = seen + seen_matrix(rows, columns, shape)
  users, index = np.unique(rows, return_inverse=True)
  size = block_size(len(users), shape[1])
  ends = np.searchsorted(index, np.arange(0, len(users) + size, size))
  most = -(-int(np.diff(ends).max()) // _PAIRS) * _PAIRS
  found = []
  for number, (start, stop) in enumerate(itertools.pairwise(ends)):
    block = users[number * size : (number + 1) * size]
    padded = np.zeros((2, most), np.int32)
    padded[:, : stop - start] = (
      index[start:stop] - number * size,
      columns[start:stop],
    )
    counted = _counts(
      np.pad(user[block], ((0, size - len(block)), (0, 0))),
      item,
      dense_rows(excluded, block, size),
      *padded,
      -(-(stop - start) // _PAIRS),
    )
    found.append([np.asarray(part)[: stop - start] for part in counted])
  score, above, tied = map(np.concatenate, zip(*found, strict=True))
  irrelevant = shape[1] - np.diff(excluded.indptr)[rows]
  return _Pairs(rows, columns, score, above, tied, irrelevant)


def _means(
  pairs: _Pairs, chosen: np.ndarray, cutoffs: Sequence[int]
) -> dict[str, Any]:
  """The metrics with the `chosen` pairs as the relevant ones."""
  names = [f'{name}@{k}' for k in cutoffs for name in ('recall', 'ndcg')]
  if not chosen.any():
    empty = dict.fromkeys([*names, 'map', 'mrr', 'auc'])
    return {'users': 0, 'relevant': 0, **empty}
  # Pairs that are not chosen come first among ties, as what is irrelevant.
  order = np.lexsort((chosen, -pairs.score, pairs.user))
  place = _place(pairs.user[order])
  order, place = order[chosen[order]], place[chosen[order]]
  _, user, counts = np.unique(
    pairs.user[order], return_inverse=True, return_counts=True
  )
  above, tied = pairs.above[order], pairs.tied[order]
  rank = place + above + tied
  nth = _place(user)
  per_user = lambda value: np.bincount(user, value)
  gain = 1 / np.log2(np.arange(2, counts.max() + 2))  # at ranks 1, 2, ...
  ideal = np.concatenate([[0.0], gain.cumsum()])
  metrics: dict[str, Any] = {}
  for k in cutoffs:
    hit = rank <= k
    metrics[f'recall@{k}'] = per_user(hit) / counts
    won = per_user(hit / np.log2(rank + 1.0))
    metrics[f'ndcg@{k}'] = won / ideal[np.minimum(counts, k)]
  metrics['map'] = per_user(nth / rank) / counts
  metrics['mrr'] = per_user(np.where(nth == 1, 1 / rank, 0.0))
  total = pairs.irrelevant[order]
  share = (total - above - tied / 2) / np.maximum(total, 1)
  some = per_user(total > 0) > 0
  metrics['auc'] = (per_user(share) / counts)[some]
  return {'users': len(counts), 'relevant': len(order)} | {
    name: float(values.mean()) if len(values) else None
    for name, values in metrics.items()
  }


def _place(user: np.ndarray) -> np.ndarray:
  """1, 2, ... within each run of equal users."""
  position = np.arange(len(user))
  first = np.concatenate([[True], user[1:] != user[:-1]])
  return position - np.maximum.accumulate(np.where(first, position, 0)) + 1
