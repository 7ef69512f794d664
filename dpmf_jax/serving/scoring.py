"""Products of rows with all items, a block of rows at a time.

Every block of a call has the same shape, so that it is compiled once, and no
more than a block of scores [B, I] is ever held.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

# Scores that are on the device at a time, and the most rows they are of.
_SCORES = 2**22
_ROWS = 1024
# Rows that lists are made for at a time, however few are asked for.
_LISTED = 128


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


# By a program of one shape, whichever rows are asked for: see Privacy.
@functools.partial(jax.jit, static_argnames=('k',))
def _best(rows, item, excluded, k):
  """The k largest products [B, k] and where; ties by item index.

  Privacy: a row's products are summed column by column, number by number, by a
  program of one shape, and so have the same bits whichever rows are asked for
  with it. Those of a matrix product may depend on the place of a row in it.
  """

  def add(scores, column):
    return scores + column[0][:, None] * column[1][None], None

  none = jnp.zeros((len(rows), len(item)))
  scores, _ = jax.lax.scan(add, none, (rows.T, item.T), unroll=8)
  return jax.lax.top_k(jnp.where(excluded, -jnp.inf, scores), k)


def top_products(
  rows: np.ndarray,
  item: np.ndarray,
  k: int,
  excluded: Callable[[int, int, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Item indices [B, k] and products [B, k] with `rows` [B, D], best first.

  `excluded` gives the items that do not count, [size, I] for the rows from
  start to stop and none after them. Where fewer than k items are left, the
  rest is index -1 with product -inf.
  """
  if isinstance(k, bool) or not isinstance(k, int | np.integer):
    raise ValueError(f'k={k!r} must be an integer')
  if k < 1:
    raise ValueError(f'k={k} must be at least 1')
  width = min(k, len(item))
  chosen = np.full((len(rows), k), -1, np.int64)
  found = np.full((len(rows), k), -np.inf, np.float32)
  size = block_size(_LISTED, len(item))  # no matter how many rows: see _best
  for start in range(0, len(rows), size):
    stop = min(start + size, len(rows))
    block = np.pad(rows[start:stop], ((0, size - stop + start), (0, 0)))
    best = _best(block, item, excluded(start, stop, size), width)
    scores, places = (np.asarray(part)[: stop - start] for part in best)
    found[start:stop, :width] = scores
    chosen[start:stop, :width] = np.where(np.isfinite(scores), places, -1)
  return chosen, found
