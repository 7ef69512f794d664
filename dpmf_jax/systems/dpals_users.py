"""What each user works out alone: a bias and a vector, from own ratings.

In sweeps these enter sums that are released, so they must be the same bits
whoever else is there: a user's normal equations are exact integers
(`normal.lattice_equations`), and they are solved by operations on single
numbers, never by a batched routine whose rounding may depend on the batch. So
are votes (`dpals_votes`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import least_shift
from dpmf_jax.kernels import normal, user_sums
from dpmf_jax.kernels.regression import in_blocks
from dpmf_jax.kernels.slices import take
from dpmf_jax.mechanisms.clipping import SLACK
from dpmf_jax.rows import Rows

# What a user knows of the size of their errors before they look.
_PRIOR_RATINGS = 3.0
_ERROR = 0.7  # quarters^2


class Equations(NamedTuple):
  """Each user's normal equations of their ratings on columns of items."""

  matrix: jax.Array  # [U, K, K]
  right: jax.Array  # [U, K]
  square: jax.Array  # [U], at least the sum of squared labels


def exact_equations(
  rows: Rows,
  factors: jax.Array,
  mean: jax.Array,
  *,
  quarter: jax.Array,
  center: jax.Array,
  max_norm: float,
  max_label: float,
) -> Equations:
  """Equations of ratings less their items' means, in quarters, on `factors`.

  Args:
    rows: the ratings by user.
    factors: [I, K] of items; the first column is 1, for the user's bias.
    mean: [I] of items, less the center.
    quarter: the unit of ratings.
    center: what ratings are counted from.
    max_norm: bound on the norm of an item's factors.
    max_label: bound on a rating less the item's mean, in quarters.

  Privacy: a function of the user's own ratings and of the items, which are
  public. Sums are exact.
  """
  # Padding is left out by the kernel, whatever its label.
  label = (rows.value - center - take(mean, rows.column)) / quarter
  slots = rows.column.shape[-1]
  counts = normal.lattice_equations(
    rows,
    factors,
    label,
    clip_norm=1.05 * max_norm,
    label_bound=max_label,
    shift=least_shift(factors.shape[0], slots),
  )
  matrix = normal.symmetric(counts.matrix.astype(jnp.float32))
  right = counts.vector.astype(jnp.float32) * counts.vector_spacing
  ones = jnp.ones_like(mean)
  bound = max_label * quarter
  square = user_sums.squared_norms(
    rows,
    jnp.full(rows.num_rows, center),
    user_sums.Public(mean, ones, bound, jnp.zeros_like(bound)),
    len(mean),
  )
  return Equations(
    matrix * counts.matrix_spacing, right, square / jnp.square(quarter)
  )


def fitted(
  equations: Equations, ridge: jax.Array, alternatives: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Ridge regressions, and how likely ratings are under alternatives.

  Args:
    equations: of the users.
    ridge: [J], of a regression on the first J columns.
    alternatives: [G, K] ridges of all columns.

  Returns:
    Coefficients [U, J] with `ridge`, and [U, G], see `evidence`.

  Privacy: of each user's own equations, number by number.
  """

  def of_some(own: Equations) -> jax.Array:
    size = len(ridge)
    first = own._replace(
      matrix=own.matrix[:, :size, :size], right=own.right[:, :size]
    )
    found, _ = _eliminated(first, ridge)
    odds = jax.vmap(lambda each: evidence(own, each), out_axes=1)(alternatives)
    return jnp.concatenate([found, odds], axis=1)

  both = in_blocks(lambda *own: of_some(Equations(*own)), equations)
  return both[:, : len(ridge)], both[:, len(ridge) :]


def evidence(equations: Equations, ridge: jax.Array) -> jax.Array:
  """How likely each user's ratings are, [U] logarithms, up to a constant.

  Coefficients are N(0, s^2 / ridge) and errors N(0, s^2), where s^2 is unknown
  to the user: 1/s^2 has a Gamma prior of `_PRIOR_RATINGS` ratings that are
  `_ERROR` quarters^2 off.
  """
  found, pivots = _eliminated(equations, ridge)
  left, size = equations.square, jnp.zeros_like(equations.square)
  # One after the other: a sum may be grouped in another way elsewhere.
  for k in range(len(ridge)):
    left = left - equations.right[:, k] * found[:, k]
    size = size + jnp.log(pivots[:, k] / ridge[k])
  left = jnp.maximum(left, 0.0) + _PRIOR_RATINGS * _ERROR
  number = equations.matrix[:, 0, 0] + _PRIOR_RATINGS
  return -0.5 * (number * jnp.log(left) + size)


def _eliminated(
  equations: Equations, ridge: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """x [U, K] with (matrix + ridge) x = right, by Gauss and Jordan, and pivots.

  A pivot below 1e-6, which a ridge excludes but for rounding, counts as 1e-6.
  """
  matrix, right, _ = equations
  matrix = matrix + jnp.diag(ridge)[None]

  def without(k, carry):
    rows, pivots = carry
    pivot = jnp.maximum(rows[:, k, k], 1e-6)
    line = rows[:, k] / pivot[:, None]
    rest = rows - rows[:, :, k, None] * line[:, None]
    return rest.at[:, k].set(line), pivots.at[:, k].set(pivot)

  rows = jnp.concatenate([matrix, right[:, :, None]], axis=2)
  start = rows, jnp.ones_like(right)
  rows, pivots = jax.lax.fori_loop(0, right.shape[1], without, start)
  return rows[:, :, -1], pivots


def clipped(vector: jax.Array, norm: jax.Array, share: jax.Array) -> jax.Array:
  """`vector` [U, D] clipped to `norm`, then scaled: `norm` becomes `share`.

  Privacy: the norm of a user's result is at most `share`, also in float32. A
  vector that is not finite counts as 0.
  """
  square = jnp.zeros(len(vector))
  for k in range(vector.shape[1]):
    square = square + vector[:, k] * vector[:, k]
  length = jnp.sqrt(square)
  room = norm * (1 - SLACK)
  scale = jnp.where(length > room, room / length, 1.0) * (share / norm)
  there = jnp.isfinite(length)[:, None]
  return jnp.where(there, vector * scale[:, None], 0.0)
