"""The same steps of gradient descent in several ways, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numba
import numpy as np
import scipy.sparse

from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, put_replicated
from dpmf_jax.types import Factors

RANK = 20
STEPS = 4  # in one run
OFFSET = 3.5
STEP_SIZE = 1e-4
REFERENCE = 'SciPy, float64'
NUMBA = 'numba, 2 threads'
VIEWS = 'numba, row views'

Run = Callable[[], Factors]  # the factors after STEPS steps, computed


def start_factors(num_users: int, num_items: int) -> Factors:
  rng = np.random.default_rng(0)
  draw = lambda rows: np.float32(rng.normal(0, RANK**-0.5, (rows, RANK)))
  return Factors(draw(num_users), draw(num_items))


def peers(ratings: Ratings, one: Data, two: Data) -> dict[str, Run]:
  """The contenders, and the reference for `check`."""
  start = start_factors(ratings.num_users, ratings.num_items)
  return {
    'ours, 1 device': ours_run(start, one),
    'ours, 2 devices': ours_run(start, two),
    'dense mask': dense_run(start, ratings),
    'COO segment_sum': coo_run(start, ratings),
    'SciPy CSR': scipy_run(start, ratings, np.float32),
    NUMBA: numba_run(start, ratings),
    VIEWS: numba_run(start, ratings, _numba_side_views),
    REFERENCE: scipy_run(start, ratings, np.float64),
  }


def descend(factors: Factors, gradient: Factors) -> Factors:
  return jax.tree.map(lambda f, g: f - STEP_SIZE * g, factors, gradient)


def jax_run(gradient: Callable, factors: Factors, *data: Any) -> Run:
  """STEPS steps in one jit, as `fit` runs them."""

  @jax.jit
  def steps(factors, data, length):
    body = lambda _, f: descend(f, gradient(f, *data))
    return jax.lax.fori_loop(0, length, body, factors)

  return lambda: jax.block_until_ready(steps(factors, data, STEPS))


def ours_run(start: Factors, data: Data) -> Run:
  def gradient(factors, data):
    return gradients(data, factors, offset=OFFSET)

  factors = jax.device_put(start)
  return jax_run(gradient, put_replicated(factors, data.by_user.mesh), data)


def dense_run(start: Factors, ratings: Ratings) -> Run:
  def gradient(factors, value, mask):
    e = mask * (OFFSET + factors.user @ factors.item.T - value)
    return Factors(e @ factors.item, e.T @ factors.user)

  value, mask = np.zeros((2, ratings.num_users, ratings.num_items), np.float32)
  value[ratings.user, ratings.item] = ratings.value
  mask[ratings.user, ratings.item] = 1
  return jax_run(gradient, *jax.device_put((start, value, mask)))


def coo_run(start: Factors, ratings: Ratings) -> Run:
  def gradient(factors, user, item, value):
    p, q = factors.user[user], factors.item[item]
    e = (OFFSET + (p * q).sum(axis=-1) - value)[:, None]
    return Factors(
      jax.ops.segment_sum(e * q, user, ratings.num_users),
      jax.ops.segment_sum(e * p, item, ratings.num_items),
    )

  arrays = (ratings.user, ratings.item, ratings.value)
  return jax_run(gradient, *jax.device_put((start, *arrays)))


def _to_csr(ratings: Ratings) -> scipy.sparse.csr_array:
  """The [U, I] float32 matrix; a rating of 0 is a stored entry."""
  shape = (ratings.num_users, ratings.num_items)
  coords = (ratings.user, ratings.item)
  return scipy.sparse.csr_array((ratings.value, coords), shape=shape)


def scipy_run(start: Factors, ratings: Ratings, dtype: type) -> Run:
  value: Any = _to_csr(ratings).astype(dtype)
  user = np.repeat(np.arange(ratings.num_users), np.diff(value.indptr))

  def gradient(factors):
    p, q = factors.user[user], factors.item[value.indices]
    e = value.copy()
    e.data = dtype(OFFSET) + np.einsum('nd,nd->n', p, q) - value.data
    return Factors(e @ factors.item, e.T @ factors.user)

  def run():
    factors = Factors(*(np.asarray(side, dtype) for side in start))
    for _ in range(STEPS):
      factors = descend(factors, gradient(factors))
    return factors

  return run


@numba.njit(parallel=True, fastmath=True)
def _numba_side(first, column, value, row_factors, column_factors, offset, out):
  """Writes the gradient of the rows, which are in CSR, into `out`."""
  # Elements, not views of rows: Numba counts references to a view, and that
  # takes twice the time of all the rest.
  for row in numba.prange(len(first) - 1):
    for d in range(RANK):
      out[row, d] = 0
    for n in range(first[row], first[row + 1]):
      c = column[n]
      e = offset - value[n]
      for d in range(RANK):
        e += row_factors[row, d] * column_factors[c, d]
      for d in range(RANK):
        out[row, d] += e * column_factors[c, d]


@numba.njit(parallel=True, fastmath=True)
def _numba_side_views(
  first, column, value, row_factors, column_factors, offset, out
):
  """The same as one would first write it, with NumPy's view of a row."""
  for row in numba.prange(len(first) - 1):
    p = row_factors[row]
    total = np.zeros_like(p)
    for n in range(first[row], first[row + 1]):
      q = column_factors[column[n]]
      e = offset - value[n]
      for d in range(RANK):
        e += p[d] * q[d]
      for d in range(RANK):
        total[d] += e * q[d]
    out[row] = total


def numba_run(
  start: Factors, ratings: Ratings, kernel: Callable = _numba_side
) -> Run:
  by_user = _to_csr(ratings)
  by_item = by_user.T.tocsr()
  offset = np.float32(OFFSET)

  def gradient(factors):
    out = Factors(*(np.empty_like(side) for side in factors))
    for rows, row_factors, column_factors, side in (
      (by_user, factors.user, factors.item, out.user),
      (by_item, factors.item, factors.user, out.item),
    ):
      csr = (rows.indptr, rows.indices, rows.data)
      kernel(*csr, row_factors, column_factors, offset, side)
    return out

  def run():
    factors = start
    for _ in range(STEPS):
      factors = descend(factors, gradient(factors))
    return factors

  return run
