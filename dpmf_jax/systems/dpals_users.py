"""What each user works out alone: a bias and a vector, from own ratings.

In sweeps these enter sums that are released, so they must be the same bits
whoever else is there: a user's normal equations are exact integers
(`normal.lattice_equations`), and they are solved by operations on single
numbers, never by a batched routine whose rounding may depend on the batch.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import least_shift
from dpmf_jax.kernels import normal
from dpmf_jax.kernels.slices import take
from dpmf_jax.mechanisms.clipping import SLACK
from dpmf_jax.rows import Rows

Columns = list[jax.Array]  # one array [U] for each coordinate


def exact_fit(
  rows: Rows,
  mean: jax.Array,
  vector: jax.Array,
  *,
  quarter: jax.Array,
  center: jax.Array,
  max_norm: float,
  max_label: float,
  vector_ridge: jax.Array,
  bias_ridge: jax.Array,
) -> tuple[Columns, jax.Array]:
  """Each user's vector, by coordinate, and bias [U]: a ridge regression.

  Args:
    rows: the ratings by user.
    mean: [I] of items, less the center.
    vector: [I, D] of items.
    quarter: the unit of ratings; vectors are in it, too.
    center: what ratings are counted from.
    max_norm: bound on the norm of an item's vector, in quarters.
    max_label: bound on a rating less the item's mean, in quarters.
    vector_ridge, bias_ridge: penalties, for ratings in quarters.

  Privacy: a function of the user's own ratings and of the items, which are
  public. Sums are exact; the rest is elementwise.
  """
  ones = jnp.ones_like(mean)[:, None]
  factors = jnp.concatenate([vector / quarter, ones], axis=1)  # [I, D + 1]
  # Padding is left out by the kernel, whatever its label.
  label = (rows.value - center - take(mean, rows.column)) / quarter
  slots = rows.column.shape[-1]
  counts = normal.lattice_equations(
    rows,
    factors,
    label,
    clip_norm=1.05 * math.hypot(1.0, max_norm),
    label_bound=max_label,
    shift=least_shift(factors.shape[0], slots),
  )
  rank = vector.shape[1]
  entry = iter(counts.matrix.T.astype(jnp.float32) * counts.matrix_spacing)
  matrix = [[next(entry) for _ in range(a, rank + 1)] for a in range(rank + 1)]
  right = counts.vector.T.astype(jnp.float32) * counts.vector_spacing
  for a in range(rank + 1):
    ridge = bias_ridge if a == rank else vector_ridge
    matrix[a][0] = matrix[a][0] + ridge
  solution = columns_solution(matrix, list(right))
  return solution[:-1], solution[-1] * quarter


def columns_solution(matrix: list[Columns], right: Columns) -> Columns:
  """x with A x = right for every user, by L D L^T, in elementwise operations.

  Args:
    matrix: upper triangle of A by rows: matrix[a][b - a] is [U].
    right: [U] for each coordinate.

  A pivot below 1e-6, which a ridge excludes but for rounding, counts as 1e-6.
  """
  size = len(right)
  lower: list[Columns] = [[] for _ in range(size)]
  pivots: Columns = []
  for a in range(size):
    pivot = matrix[a][0]
    for k in range(a):
      pivot = pivot - lower[a][k] * lower[a][k] * pivots[k]
    pivots.append(jnp.maximum(pivot, 1e-6))
    for b in range(a + 1, size):
      value = matrix[a][b - a]
      for k in range(a):
        value = value - lower[a][k] * lower[b][k] * pivots[k]
      lower[b].append(value / pivots[a])
  forward: Columns = []
  for a in range(size):
    value = right[a]
    for k in range(a):
      value = value - lower[a][k] * forward[k]
    forward.append(value)
  solution: Columns = [jnp.zeros_like(right[0])] * size
  for a in reversed(range(size)):
    value = forward[a] / pivots[a]
    for b in range(a + 1, size):
      value = value - lower[b][a] * solution[b]
    solution[a] = value
  return solution


def clipped(columns: Columns, norm: jax.Array, share: jax.Array) -> Columns:
  """`columns` clipped to `norm`, then scaled so that `norm` becomes `share`.

  Privacy: the norm of a user's result is at most `share`, also in float32. A
  vector that is not finite counts as 0.
  """
  square = jnp.zeros(())
  for column in columns:
    square = square + column * column
  length = jnp.sqrt(square)
  room = norm * (1 - SLACK)
  scale = jnp.where(length > room, room / length, 1.0) * (share / norm)
  return [
    jnp.where(jnp.isfinite(length), column * scale, 0.0) for column in columns
  ]
