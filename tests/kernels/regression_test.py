"""The fit of each row to its own ratings, against a slow oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax.kernels import regression
from dpmf_jax.rows import device_mesh, put_rows
from dpmf_jax.rows import rows as slices_of

_fit = jax.jit(regression.ridge_fit)


def oracle(row, column, value, start, factors, offset, ridge):
  """One row after the other, in double precision."""
  found = start.astype(np.float64)
  free = np.isfinite(ridge)
  for number in range(len(start)):
    own = row == number
    q = factors[column[own]].astype(np.float64)
    rest = value[own] - offset - q @ start[number]
    q = q[:, free]
    matrix = q.T @ q + np.diag(ridge[free])
    found[number, free] += np.linalg.solve(matrix, q.T @ rest)
  return found


def drawn(rng, *, num_rows, num_columns, rank, chance):
  row, column = np.nonzero(rng.random((num_rows, num_columns)) < chance)
  value = rng.integers(1, 6, row.size).astype(np.float32)
  factors = rng.normal(size=(num_columns, rank)).astype(np.float32)
  start = rng.normal(size=(num_rows, rank)).astype(np.float32)
  return row, column, value, start, factors


def fitted(drawn, offset, ridge, *, devices=1, slots=32, slices=8):
  row, column, value, start, factors = drawn
  mesh = device_mesh(devices)
  laid = slices_of(
    row,
    column,
    value,
    len(start),
    len(factors),
    slots=slots,
    slices=slices,
    chunk_multiple=devices,
  )
  return np.asarray(
    _fit(
      put_rows(laid, mesh),
      jnp.asarray(start),
      jnp.asarray(factors),
      offset=offset,
      ridge=jnp.asarray(ridge, jnp.float32),
    )
  )


@pytest.mark.parametrize('rank', [1, 2, 9, 40])
def test_it_is_the_ridge_regression_around_the_start(rank):
  rng = np.random.default_rng(rank)
  table = drawn(rng, num_rows=150, num_columns=90, rank=rank, chance=0.3)
  ridge = rng.uniform(0.5, 8, rank)
  if rank > 2:
    ridge[1] = np.inf  # held as it is
  found = fitted(table, 3.1, ridge)
  wanted = oracle(*table, 3.1, ridge)
  np.testing.assert_allclose(found, wanted, atol=3e-4)
  held = ~np.isfinite(ridge)
  np.testing.assert_array_equal(found[:, held], table[3][:, held])


def test_a_row_without_ratings_stays_where_it_started():
  table = drawn(
    np.random.default_rng(0), num_rows=9, num_columns=40, rank=3, chance=0.5
  )
  row, *rest = table
  keep = row != 4
  some = (row[keep], *(part[keep] for part in rest[:2]), *rest[2:])
  found = fitted(some, 3.0, np.ones(3))
  np.testing.assert_array_equal(found[4], table[3][4])


@pytest.mark.parametrize('size', [1e-6, 1e-2, 1e3])
def test_neither_small_nor_large_factors_lose_precision(size):
  """Columns of very different sizes, as those of means and of vectors are."""
  rng = np.random.default_rng(5)
  table = drawn(rng, num_rows=20, num_columns=60, rank=3, chance=0.5)
  *rest, start, factors = table
  scale = np.array([1, size, 1])
  table = (*rest, start / scale, factors * scale)
  ridge = 2 * scale**2
  table = tuple(np.float32(x) if x.ndim == 2 else x for x in table)
  found = fitted(table, 3.0, ridge) * scale
  wanted = oracle(*table, 3.0, ridge) * scale
  np.testing.assert_allclose(found, wanted, atol=2e-4)


@pytest.mark.parametrize(('times', 'most'), [(10, 2e-4), (100, 2e-3)])
def test_an_item_that_nobody_rated_hardly_matters(times, most):
  rng = np.random.default_rng(8)
  table = drawn(rng, num_rows=60, num_columns=400, rank=10, chance=0.2)
  table[-1][0] *= times
  keep = table[1] != 0
  table = *(part[keep] for part in table[:3]), *table[3:]
  found = fitted(table, 3.0, np.ones(10))
  wanted = oracle(*table, 3.0, np.ones(10))
  error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(
    wanted, axis=1
  )
  assert error.max() < most


def test_sums_of_long_rows_are_not_biased():
  """Of a million ratings a millionth is lost, and not a part of each slice."""
  count = 1_000_000
  rng = np.random.default_rng(9)
  factors = rng.normal(size=(count, 1)).astype(np.float32)
  value = (3 + factors[:, 0] * 0.1).astype(np.float32)
  table = np.zeros(count, int), np.arange(count), value
  table = *table, np.zeros((1, 1), np.float32), factors
  found = fitted(table, 3.0, np.ones(1), slices=64)
  np.testing.assert_allclose(found, 0.1, atol=2e-5)


def test_rows_of_any_length_are_summed_without_overflow():
  """The longest would pass 2^31 if no bits were dropped."""
  rng = np.random.default_rng(6)
  count = 300_000
  row = np.r_[np.zeros(count, int), np.full(200, 1), [2]]
  column = np.r_[np.arange(count), np.arange(200), [0]]
  value = np.where(rng.random(row.size) < 0.5, 5, 4).astype(np.float32)
  factors = rng.choice([-1.0, 1.0], (count, 2)).astype(np.float32)
  factors[:, 1] = 1
  table = row, column, value, np.zeros((3, 2), np.float32), factors
  found = fitted(table, 0.0, np.ones(2), slices=64)
  wanted = oracle(*table, 0.0, np.ones(2))
  np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.slow
def test_bits_do_not_depend_on_layout_devices_or_other_rows():
  rng = np.random.default_rng(7)
  table = drawn(rng, num_rows=300, num_columns=120, rank=5, chance=0.4)
  first = fitted(table, 3.0, np.full(5, 2.0))
  for devices, slices in ((1, 64), (2, 8), (4, 16)):
    again = fitted(table, 3.0, np.full(5, 2.0), devices=devices, slices=slices)
    np.testing.assert_array_equal(again, first)
  # Rows alone, and the last ones first.
  row, column, value, start, factors = table
  for chosen in ([17], [3, 250], list(range(299, 99, -1))):
    place = np.full(300, -1)
    place[chosen] = np.arange(len(chosen))
    keep = place[row] >= 0
    part = place[row[keep]], column[keep], value[keep], start[chosen], factors
    found = fitted(part, 3.0, np.full(5, 2.0))
    np.testing.assert_array_equal(found, first[chosen])


@pytest.mark.parametrize('rank', [1, 7])
def test_float64_has_the_same_bits(rank):
  """Also of long rows, of which bits are dropped, and of the largest sums."""
  rng = np.random.default_rng(rank)
  table = drawn(rng, num_rows=40, num_columns=900, rank=rank, chance=0.5)
  table[-1][:, 0] = rng.choice([-3.0, 3.0], 900)
  for slots in (32, 64):
    first = fitted(table, 3.1, np.full(rank, 2.0), slots=slots)
    with jax.enable_x64(True):
      again = fitted(table, 3.1, np.full(rank, 2.0), slots=slots)
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, first)


def test_slices_that_would_overflow_are_refused():
  table = drawn(
    np.random.default_rng(0), num_rows=3, num_columns=200, rank=1, chance=0.9
  )
  with pytest.raises(ValueError, match='128 ratings overflow'):
    fitted(table, 3.0, np.ones(1), slots=128)
