"""Products of rows with all items, a block of rows at a time, on the host.

No more than a few blocks of scores [B, I] are ever held.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.sparse

# Scores that are held at a time, and the most rows they are of.
_SCORES = 2**22
_ROWS = 1024
# Items that are multiplied at a time, and how many products OpenBLAS sums up in
# one thread: more than one each, where every core has a block, is slower.
_GROUP = 128
_PRODUCTS = 2**18
_LEAST_ROWS = 16


def block_size(num_rows: int, num_items: int) -> int:
  """Rows to score at a time: bounds memory to a block of scores."""
  most = max(1, min(_ROWS, _SCORES // max(num_items, 1)))
  # A power of two, so that few sizes are ever compiled.
  return min(1 << (num_rows - 1).bit_length(), most)


def dense_rows(
  matrix: scipy.sparse.csr_array, rows: np.ndarray, size: int
) -> np.ndarray:
  """[size, I] bool of the entries in `rows`, and no entries after them."""
  found = matrix[rows].toarray().astype(bool)
  return np.pad(found, ((0, size - len(rows)), (0, 0)))


def whole_numbers(
  rows: np.ndarray, item: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Rows [B, D] and items [I, D] in whole numbers, and exponents [B].

  Products of both times 2^exponent are those of what was given, to 2^-21 or
  better of the largest that the row could have (for D up to 1,000).

  Privacy: they are whole numbers below 2^53, which float64 adds exactly, in
  whatever order: a row's products have the same bits whichever rows are asked
  for with it, and wherever it stands among them.
  """
  bits = (52 - max(item.shape[1] - 1, 1).bit_length()) // 2
  # |x| < 2^exponent.
  column = np.frexp(np.abs(item).max(axis=0, initial=0.0))[1]
  item = np.rint(np.ldexp(item.astype(np.float64), bits - column))
  rows = np.ldexp(rows.astype(np.float64), column)
  row = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1]
  rows = np.rint(np.ldexp(rows, (bits - row)[:, None]))
  return rows, item, row - 2 * bits


def top_products(
  rows: np.ndarray,
  item: np.ndarray,
  k: int,
  excluded: scipy.sparse.csr_array | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Item indices [B, k] and products [B, k] with `rows` [B, D], best first.

  Ties go to the smaller index. `excluded` [B, I] has an entry for every item
  that does not count. Where fewer than k items are left, the rest is index -1
  with product -inf.

  Privacy: see `whole_numbers`.
  """
  if isinstance(k, bool) or not isinstance(k, int | np.integer):
    raise ValueError(f'k={k!r} must be an integer')
  if k < 1:
    raise ValueError(f'k={k} must be at least 1')
  for name, factors in (('users', rows), ('items', item)):
    if not np.isfinite(factors).all():
      raise ValueError(f'the {name} have factors that are not finite')
  length, width = item.shape
  whole, items, exponent = whole_numbers(rows, item)
  groups = max(1, -(-length // _GROUP))
  table = np.zeros((groups * _GROUP, width))
  table[:length] = items
  table = table.reshape(groups, _GROUP, width).transpose(0, 2, 1).copy()
  size = max(_LEAST_ROWS, _PRODUCTS // (_GROUP * max(width, 1)))
  size = max(1, min(size, _SCORES // (groups * _GROUP)))
  chosen = np.full((len(rows), k), -1, np.int64)
  found = np.full((len(rows), k), -np.inf)

  def block(start: int) -> None:
    scores = whole[start : start + size][None] @ table  # [groups, B, _GROUP]
    scores[-1, :, length - (groups - 1) * _GROUP :] = -np.inf
    if excluded is not None:
      ends = excluded.indptr[start : start + size + 1]
      out = excluded.indices[ends[0] : ends[-1]]
      row = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
      scores[out // _GROUP, row, out % _GROUP] = -np.inf
    row, place, index, score = _best(scores, k)
    chosen[start + row, place] = index
    found[start + row, place] = score

  with ThreadPoolExecutor(os.cpu_count()) as pool:
    list(pool.map(block, range(0, len(rows), size)))
  found = np.ldexp(found, exponent[:, None])
  return chosen, found.astype(np.float32)


def _best(scores: np.ndarray, k: int) -> tuple[np.ndarray, ...]:
  """(row, place, item, score) of the k best of each row, as columns.

  Item g * _GROUP + j of row b is scores[g, b, j]. Only what is not below the
  k-th largest is sorted or, for a small k, below the k-th largest of the maxima
  over g, which are of different items: it is not larger.
  """
  _, size, width = scores.shape
  some = scores.max(axis=0)
  if k > width // 4:
    some = scores.transpose(1, 0, 2).reshape(size, -1)
  least = np.full(size, -np.inf)
  if (rest := some.shape[1] - k) > 0:
    least = np.partition(some, rest, axis=1)[:, rest]
  flat = np.flatnonzero(scores >= least[:, None])
  score = scores.reshape(-1)[flat]
  left = score > -np.inf
  flat, score = flat[left], score[left]
  group, row, number = np.unravel_index(flat, scores.shape)
  index = group * width + number
  order = np.lexsort((index, -score, row))
  row, index, score = row[order], index[order], score[order]
  place = np.arange(len(row)) - np.searchsorted(row, row)
  kept = place < k
  return row[kept], place[kept], index[kept], score[kept]
