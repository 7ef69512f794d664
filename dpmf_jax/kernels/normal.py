"""Normal equations over `Rows`: A = sum w p p^T and b = sum w y p per row.

p are the other side's factors, y labels, w weights. Sums of integers are for
private mechanisms; see `lattice.py`. A factor is counted in clip_norm / 2^9, a
label in label_bound / 2^9. Shapes: R rows, T = D (D + 1) / 2 for a triangle.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpmf_jax.accounting.rounding import (
  PRODUCT_BITS,
  WEIGHT_BITS,
  least_shift,
)
from dpmf_jax.kernels.dense import one_at_a_time
from dpmf_jax.kernels.slices import Chunk, exact_sums, pad_rank, sum_over_slices
from dpmf_jax.mechanisms.clipping import SLACK, clip_rows
from dpmf_jax.rows import Rows

_BITS = PRODUCT_BITS // 2  # of factors and of labels
_BLOCK = 32  # rows of A summed at a time: fewer are slow, more take memory


class Counts(NamedTuple):
  matrix: Array  # [R, T] int32, the upper triangle of A, row by row
  vector: Array  # [R, D] int32
  matrix_spacing: Array  # [] matrix * matrix_spacing is about A
  vector_spacing: Array  # []


def equations(
  rows: Rows, factors: Array, label: Array, weight: Array | None = None
) -> tuple[Array, Array]:
  """A [R, D, D] and b [R, D] in float32; no privacy is promised.

  Args:
    rows: the ratings in the orientation of the rows to be solved for.
    factors: [num_columns, D] of the other side.
    label: [C, S, L] as `rows.value`, such as rows.value - mean.
    weight: the same: the `value` of a second `Rows`, built from weights in
      place of ratings, or computed from `rows.column` and `rows.row`.
  """
  matrix, vector = _sums(rows, factors, label, weight)
  return symmetric(matrix), vector


def lattice_equations(
  rows: Rows,
  factors: Array,
  label: Array,
  weight: Array | None = None,
  *,
  clip_norm: Array | float,
  label_bound: Array | float,
  shift: int = 0,
) -> Counts:
  """The sums of `equations` as integers, from clipped and rounded terms.

  Factors p are clipped to norm clip_norm (a row that is not finite is zero)
  and labels y to +-label_bound, then rounded; weights w are clipped to [0, 1]
  and rounded down to 2^-14. Summed are l_a p_b for a <= b, and l y, with
  l = w p rounded towards zero. `shift` (least_shift to 18) bits are dropped.

  Privacy: factors and weights must be the same for neighbours, and a label a
  function of its own rating. A rating then adds its term to one row and moves
  no other term: float32 and int32 hold every sum exactly, in whatever order.
  """
  least = least_shift(factors.shape[0], rows.column.shape[-1])
  if not least <= shift <= PRODUCT_BITS:
    raise ValueError(f'shift must be in {least}..{PRODUCT_BITS}, got {shift}')
  spacing = jnp.asarray(clip_norm, jnp.float32) * 2.0**-_BITS
  label_spacing = jnp.asarray(label_bound, jnp.float32) * 2.0**-_BITS
  # Rounding can add sqrt(D)/2 to the norm of a row of counts; the error of a
  # norm is left to clip_rows.
  room = 2.0**_BITS * (1 - SLACK) - factors.shape[1] ** 0.5 / 2
  count = jnp.round(clip_rows(factors / spacing, room))
  label = jnp.clip(label / label_spacing, -(2**_BITS), 2**_BITS)
  label = jnp.where(jnp.isnan(label), 0.0, jnp.round(label))
  if weight is not None:
    weight = jnp.where(weight > 0, jnp.minimum(weight, 1.0), 0.0)  # no NaN
    weight = jnp.floor(weight * 2.0**WEIGHT_BITS) * 2.0**-WEIGHT_BITS
  matrix, vector = _sums(rows, count, label, weight, shift)
  scale = 2.0**shift * spacing
  return Counts(matrix, vector, scale * spacing, scale * label_spacing)


def _sums(rows: Rows, factors, label, weight, shift: int | None = None):
  """The upper triangle [R, T] and the vector [R, D]; int32 with a shift."""
  chex.assert_rank(factors, 2)
  weight = jnp.ones_like(label) if weight is None else weight
  chex.assert_equal_shape([rows.value, label, weight])
  used = jnp.arange(label.shape[-1])[None, None] < rows.length[..., None]
  # Labels and weights take the rating's place, to be cut into chunks with it.
  pair = jnp.where(used[..., None], jnp.stack([label, weight], axis=-1), 0.0)
  rows = dataclasses.replace(rows, value=pair)
  longest, rank = factors.shape
  triangle, vector = [], []
  for start in range(0, rank, _BLOCK):
    size, width = min(_BLOCK, rank - start), rank - start

    def slice_sums(chunk: Chunk, n=size, d=width):
      value, p = chunk.value, chunk.column[..., :d]
      left = value[..., 1:] * p[..., :n]  # [S, L, n]
      left = left if shift is None else jnp.trunc(left)
      right = jnp.concatenate([p, value[..., :1]], axis=-1)  # [S, L, d + 1]
      sums = jnp.einsum('sla,slb->sab', left, right, precision='highest')
      return sums.reshape(len(value), -1)

    columns = pad_rank(factors[:, start:])
    if shift is None:
      sums = sum_over_slices(slice_sums, rows, columns, ())
    else:
      sums = exact_sums(
        slice_sums, rows, columns, (), shift=shift, longest=longest
      )
    places = np.arange(size * (width + 1)).reshape(size, width + 1)
    triangle.append(sums[:, places[np.triu_indices(size, 0, width)]])
    vector.append(sums[:, places[:, width]])
  return jnp.concatenate(triangle, axis=1), jnp.concatenate(vector, axis=1)


def symmetric(triangle: Array) -> Array:
  """The matrices [..., D, D] of upper triangles [..., T]."""
  rank = math.isqrt(2 * triangle.shape[-1])
  a, b = np.sort(np.indices((rank, rank)), axis=0)
  return triangle[..., a * (2 * rank - a - 1) // 2 + b]


def solve(matrix: Array, vector: Array, ridge: Array | float) -> Array:
  """x [R, D] with (matrix [R, D, D] + ridge I) x = vector, by Cholesky.

  `ridge` is [] or [R]. Floor the eigenvalues of a noisy matrix first, or x is
  NaN where matrix + ridge I is not positive definite.
  """
  chex.assert_shape(matrix, (*vector.shape, vector.shape[1]))
  if isinstance(ridge, int | float) and not ridge > 0:
    raise ValueError(f'ridge must be > 0, got {ridge!r}')
  ridge = jnp.broadcast_to(ridge, vector.shape[:1])[:, None, None]
  matrix = matrix + ridge * jnp.eye(vector.shape[1], dtype=matrix.dtype)[None]
  one = lambda a, b: jax.scipy.linalg.solve(a, b, assume_a='pos')
  return jax.vmap(one_at_a_time(one))(matrix, vector)
