"""Exact sums: what a private mechanism queries."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from any_rows import rows_of_any_size
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax.accounting.rounding import PRODUCT_BITS
from dpmf_jax.kernels import lattice, slices
from dpmf_jax.mechanisms.clipping import SLACK
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import device_mesh, put_replicated, training_data
from dpmf_jax.types import Factors

BITS = 10


def random_factors(ratings, rank=5, seed=0, size=1.5):
  rng = np.random.default_rng(seed)
  sides = (ratings.num_users, rank), (ratings.num_items, rank)
  return Factors(
    *(jnp.asarray(rng.normal(size=s) * size, jnp.float32) for s in sides)
  )


def gradients(
  data, factors, *, bound=1.0, scale=(1.0, 5.0), bits=BITS, **options
):
  """Both sums at offset 0.5, in units of bound / 2^bits (clip norm 1)."""
  return jax.jit(
    lambda data, factors: lattice.gradients(
      data,
      factors,
      clip_norm=jnp.float32(1.0),
      offset=jnp.float32(0.5),
      low=jnp.float32(scale[0]),
      high=jnp.float32(scale[1]),
      residual_bound=jnp.float32(bound),
      shift=jnp.int32(PRODUCT_BITS - bits),
      **options,
    )
  )(data, factors)


@settings(max_examples=40)
@given(rows_of_any_size(most_rank=64), st.floats(1e-3, 1e3))
def test_counts_are_integers_that_never_exceed_the_norm(rows, norm):
  found = lattice.columns(jnp.asarray(rows), jnp.float32(norm))
  count = np.asarray(found.counts, np.float64)
  np.testing.assert_array_equal(count, np.round(count))
  assert (np.linalg.norm(count, axis=1) <= 1024).all()
  # And scale * count is the row to within the rounding of its counts.
  back = count * np.asarray(found.scale, np.float64)[:, None]
  error = np.abs(back - rows) / np.asarray(found.scale)[:, None]
  assert error.max() <= 0.5 + 1e-3


@pytest.mark.parametrize('rank', [1, 4, 15, 16, 63, 64])
def test_counts_leave_room_for_float32_where_all_are_rounded_up(rank):
  """Coordinates alike: rounding adds all that it can to the norm.

  Residuals are off by up to 1e-5 (see `GaussianMFConfig`), which this pays.
  """
  counts = lattice.columns(jnp.ones((1, rank)), jnp.float32(1.0)).counts
  assert np.linalg.norm(np.asarray(counts, float)) <= 1024 * (1 - 1e-5)
  assert np.linalg.norm(np.asarray(counts, float)) > 1024 * (1 - 0.01)


@pytest.mark.parametrize('rank', [335, 1000, 10_000])
def test_counts_of_high_rank_stay_below_the_norm(rank):
  rng = np.random.default_rng(rank)
  rows = rng.normal(size=(8, rank)).astype(np.float32)
  rows[1] = np.sqrt(0.99 * 2.0**-24)  # lost one by one beside the first
  rows[1:3, 0] = 1.0
  rows[3] = 1.0
  # Halves of units, that all round up.
  rows[4] = np.float32(1.5 / 1024)
  found = lattice.columns(jnp.asarray(rows), jnp.float32(1.0))
  length = np.linalg.norm(np.asarray(found.counts, np.float64), axis=1)
  assert (length <= 1024 * (1 - SLACK)).all()
  assert length.max() > 0.9 * 1024


def test_entries_that_are_not_finite_count_as_zero_or_large():
  rows = jnp.array([[jnp.nan, 1.0], [jnp.inf, 1.0], [1e30, 1e30]])
  found = lattice.columns(rows, jnp.float32(1.0))
  assert np.isfinite(found.counts).all()
  assert np.isfinite(found.scale).all()
  assert found.counts[0, 0] == 0
  assert (np.linalg.norm(found.counts, axis=1) <= 1024).all()


@pytest.mark.parametrize('bound', [1.0, 4.0])
def test_sums_are_those_of_the_oracle(small_ratings, bound):
  factors = random_factors(small_ratings, size=0.7)
  found = gradients(training_data(small_ratings), factors, bound=bound)
  want = oracles.gaussian_mf_gradients(
    small_ratings,
    *(np.asarray(f, np.float64) for f in factors),
    clip_norm=1.0,
    offset=0.5,
    residual_bound=bound,
  )
  counts = np.bincount(small_ratings.user), np.bincount(small_ratings.item)
  for a, b, n in zip(found, want, counts, strict=True):
    assert a.dtype == jnp.int32
    error = np.abs(np.asarray(a) * bound * 2.0**-BITS - b).max(axis=1)
    # Factors are rounded at 2^-11, residuals at bound / 2^9.
    assert (error <= bound * 2.0**-BITS + n * 0.01).all()
    assert error.max() < 0.1
    assert np.abs(b).max() > 2


@pytest.mark.slow
@pytest.mark.parametrize('bound', [1.0, 37.3])  # the latter shows single ulps
def test_sums_do_not_depend_on_layout_devices_or_splitting(
  small_ratings, bound, monkeypatch
):
  factors = random_factors(small_ratings)
  data = training_data(small_ratings)
  options = {'bound': bound, 'bits': PRODUCT_BITS}
  first = gradients(data, factors, **options)
  mesh = device_mesh(2)
  others = [
    gradients(
      training_data(small_ratings, slots=4, slices=2), factors, **options
    ),
    gradients(
      training_data(small_ratings, mesh=mesh, slices=4),
      put_replicated(factors, mesh),
      **options,
    ),
  ]
  monkeypatch.setattr(slices, 'NARROW', 1)
  others.append(gradients(data, factors, **options))
  for other in others:
    jax.tree.map(np.testing.assert_array_equal, first, other)


@pytest.mark.parametrize('bits', [4, 10, 18])
def test_dropped_bits_round_the_exact_sum(small_ratings, bits, monkeypatch):
  factors = random_factors(small_ratings)
  data = training_data(small_ratings)
  exact = gradients(data, factors, bits=PRODUCT_BITS)
  shift = 2.0 ** (PRODUCT_BITS - bits)
  for narrow in (1, 10**6):
    monkeypatch.setattr(slices, 'NARROW', narrow)
    found = gradients(data, factors, bits=bits)
    for a, b in zip(found, exact, strict=True):
      np.testing.assert_array_equal(a, np.floor(np.asarray(b) / shift + 0.5))


@pytest.mark.slow
@pytest.mark.parametrize('rank', [1, 3, 4, 20, 33])
def test_a_product_does_not_depend_on_its_slot(rank):
  # One user who rated 200 items that are all alike: every prefix of the
  # ratings must give an exact multiple of one product.
  rng = np.random.default_rng(rank)
  row = jnp.asarray(rng.normal(size=(1, rank)), jnp.float32)
  column = jnp.asarray(rng.normal(size=(1, rank)), jnp.float32)
  factors = Factors(row, jnp.tile(column, (200, 1)))
  everything = from_arrays(
    np.zeros(200, int), np.arange(200), np.full(200, 2.0), scale=(1, 5)
  )
  bits = PRODUCT_BITS
  first = training_data(everything.take(np.arange(1)))
  one = np.asarray(gradients(first, factors, bits=bits).user)
  for count in (2, 31, 32, 33, 64, 65, 200):
    part = training_data(everything.take(np.arange(count)))
    found = gradients(part, factors, bits=bits).user
    np.testing.assert_array_equal(found, count * one)


@pytest.mark.parametrize(
  'devices', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_rating_moves_a_long_row_by_its_own_product(devices):
  # With float32 sums the difference was six times the product that is gone.
  users = 80_000
  value = np.where(np.arange(users) % 3 == 0, 1.0, 5.0)
  ratings = from_arrays(
    np.arange(users), np.zeros(users, int), value, scale=(1, 5)
  )
  rng = np.random.default_rng(0)
  side = jnp.asarray(rng.normal(size=(users, 2)), jnp.float32)
  factors = Factors(side, jnp.asarray(rng.normal(size=(1, 2)), jnp.float32))
  mesh = device_mesh(devices)
  placed = put_replicated(factors, mesh)
  bits = 12
  whole = gradients(training_data(ratings, mesh=mesh), placed, bits=bits).item
  count = np.asarray(lattice.columns(side, jnp.float32(1.0)).counts)
  assert np.abs(whole).max() > 2**20
  for gone in (0, 1, 40_000, 79_999):
    rest = ratings.take(np.arange(users) != gone)
    other = gradients(training_data(rest, mesh=mesh), placed, bits=bits).item
    moved = np.asarray(whole - other)[0] * 2.0 ** (18 - bits)
    # Residuals of this size are clipped: the product is +-2^8 * count.
    alone = gradients(
      training_data(ratings.take(np.array([gone]))), factors, bits=18
    ).item
    assert np.abs(moved - np.asarray(alone)[0]).max() <= 2.0 ** (18 - bits)
    assert np.linalg.norm(alone) <= 2**8 * np.linalg.norm(count[gone]) + 1


@pytest.mark.parametrize('users', [8191, 8192, 12_000, 16_383])
def test_the_largest_products_of_a_row_do_not_wrap(users):
  """Sums of 2^13 and more of them have more than 31 bits."""
  ratings = from_arrays(
    np.arange(users), np.zeros(users, int), np.ones(users), scale=(1, 5)
  )
  factors = Factors(jnp.full((users, 1), 9.0), jnp.full((1, 1), 9.0))
  found = gradients(training_data(ratings), factors, bits=12).item
  count = int(lattice.columns(factors.item, jnp.float32(1)).counts[0, 0])
  assert int(found[0, 0]) == round(users * 256 * count / 64)


def test_ratings_outside_the_scale_count_as_its_ends(small_ratings):
  factors = random_factors(small_ratings)
  data = training_data(small_ratings)
  narrow = gradients(data, factors, bound=9.0, scale=(2.0, 3.0))
  clipped = from_arrays(
    small_ratings.user,
    small_ratings.item,
    np.clip(small_ratings.value, 2, 3),
    scale=(1, 5),
  )
  wide = gradients(training_data(clipped), factors, bound=9.0)
  jax.tree.map(np.testing.assert_array_equal, narrow, wide)


def test_slices_that_could_lose_bits_are_refused(small_ratings):
  data = training_data(small_ratings, slots=128)
  with pytest.raises(AssertionError, match='128'):
    gradients(data, random_factors(small_ratings))
