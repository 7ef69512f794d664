"""Normal equations: float sums, exact sums, and how far a rating moves them."""

import dataclasses
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import rows as layouts
from dpmf_jax.accounting.rounding import PRODUCT_BITS, least_shift
from dpmf_jax.accounting.sensitivity import equation_sensitivities
from dpmf_jax.kernels import normal, slices
from dpmf_jax.mechanisms import noise
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import device_mesh, put_replicated, put_rows

CLIP, BOUND, MEAN = 0.7, 1.3, 3.0  # the bound is below some labels
RANK = 5


def by_item(ratings, values=None, mesh=None, **layout):
  """`ratings` by item on the device, with other values where given."""
  value = ratings.value if values is None else values
  built = layouts.rows(
    ratings.item,
    ratings.user,
    np.asarray(value, np.float32),
    ratings.num_items,
    ratings.num_users,
    chunk_multiple=1 if mesh is None else mesh.size,
    **layout,
  )
  return put_rows(built, mesh)


def user_factors(ratings, rank=RANK, seed=0, size=0.5):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(ratings.num_users, rank)) * size
  return jnp.asarray(rows, jnp.float32)


def oracle(ratings, factors, weights=None):
  """A and b, one rating at a time in float64."""
  rank = factors.shape[1]
  matrix = np.zeros((ratings.num_items, rank, rank))
  vector = np.zeros((ratings.num_items, rank))
  weights = np.ones(len(ratings)) if weights is None else weights
  factors = np.asarray(factors, np.float64)
  columns = ratings.user, ratings.item, ratings.value, weights
  for u, i, r, w in zip(*columns, strict=True):
    matrix[i] += w * np.outer(factors[u], factors[u])
    vector[i] += w * (r - MEAN) * factors[u]
  return matrix, vector


def lattice_oracle(ratings, factors, weights=None):
  """The integer sums, one rating at a time in Python integers."""
  rank = factors.shape[1]
  matrix = np.zeros((ratings.num_items, rank, rank), np.int64)
  vector = np.zeros((ratings.num_items, rank), np.int64)
  weights = np.ones(len(ratings)) if weights is None else weights
  room = 512 * (1 - 1e-5) - math.sqrt(rank) / 2
  counts = np.asarray(factors, np.float64) / CLIP * 512
  length = np.linalg.norm(counts, axis=1, keepdims=True)
  # The slack of `clip_rows`.
  slack = 1e-5 + (1.01 * rank + 16) * 2**-25
  counts = np.round(counts * np.minimum(1, room * (1 - slack) / length))
  columns = ratings.user, ratings.item, ratings.value, weights
  for u, i, r, w in zip(*columns, strict=True):
    y = int(np.round(np.clip(r - MEAN, -BOUND, BOUND) / BOUND * 512))
    w = math.floor(min(max(w, 0), 1) * 2**14)
    left = np.trunc(w * counts[u] / 2**14).astype(np.int64)
    matrix[i] += np.outer(left, counts[u].astype(np.int64))
    vector[i] += left * y
  upper = np.triu_indices(rank)
  return matrix[:, upper[0], upper[1]], vector


@jax.jit
def float_equations(rows, factors, weight=None):
  return normal.equations(rows, factors, rows.value - MEAN, weight)


def lattice(rows, factors, weight, bounds, shift):
  clip_norm, label_bound = bounds
  return normal.lattice_equations(
    rows,
    factors,
    rows.value - MEAN,
    weight,
    clip_norm=clip_norm,
    label_bound=label_bound,
    shift=shift,
  )


compiled = jax.jit(lattice, static_argnums=4)


def counts(rows, factors, weight=None, *, bounds=(CLIP, BOUND), shift=0):
  return compiled(rows, factors, weight, bounds, shift)


def moved(first, second):
  """[R] norms of the differences of A (symmetric) and of b, in their units."""
  matrix = normal.symmetric(np.asarray(first.matrix) - second.matrix)
  vector = np.asarray(first.vector, np.int64) - np.asarray(second.vector)
  matrix = np.asarray(matrix, np.float64).reshape(len(vector), -1)
  return (
    np.linalg.norm(matrix, axis=1) * float(first.matrix_spacing),
    np.linalg.norm(vector, axis=1) * float(first.vector_spacing),
  )


def some_weights(ratings, seed=3):
  weights = np.random.default_rng(seed).uniform(0, 1, len(ratings))
  weights[::5] = 1.0
  return weights.astype(np.float32)


def assert_same(first, second):
  jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize(
  ('rank', 'weighted'), [(1, True), (5, False), (33, True), (128, True)]
)
def test_float_sums_are_those_of_the_oracle(small_ratings, rank, weighted):
  factors = user_factors(small_ratings, rank)
  weights = some_weights(small_ratings) if weighted else None
  # A caller's weights: the values of a second layout.
  weight = by_item(small_ratings, weights).value if weighted else None
  found = float_equations(by_item(small_ratings), factors, weight)
  want = oracle(small_ratings, factors, weights)
  for a, b in zip(found, want, strict=True):
    assert a.shape == b.shape
    assert a.dtype == jnp.float32
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  assert_same(found[0], found[0].swapaxes(1, 2))


@pytest.mark.parametrize(
  ('rank', 'weighted'), [(1, True), (5, False), (33, True), (128, True)]
)
def test_exact_sums_are_those_of_the_oracle(small_ratings, rank, weighted):
  # In float32 and float64, none of these factors is between two counts.
  factors = user_factors(small_ratings, rank, size=1 / math.sqrt(rank))
  weights = some_weights(small_ratings) if weighted else None
  weight = by_item(small_ratings, weights).value if weighted else None
  found = counts(by_item(small_ratings), factors, weight)
  want = lattice_oracle(small_ratings, factors, weights)
  for a, b in zip(found[:2], want, strict=True):
    assert a.dtype == jnp.int32
    np.testing.assert_array_equal(a, b)
  np.testing.assert_allclose(found.matrix_spacing, (CLIP / 512) ** 2, rtol=1e-6)
  np.testing.assert_allclose(
    found.vector_spacing, CLIP * BOUND / 512**2, rtol=1e-6
  )


def test_exact_sums_are_close_to_float_sums(small_ratings):
  factors = user_factors(small_ratings, size=0.2)  # few are clipped
  rows = by_item(small_ratings)
  weight = by_item(small_ratings, some_weights(small_ratings)).value
  found = counts(rows, factors, weight, bounds=(1.0, 2.0))
  matrix, vector = float_equations(rows, factors, weight)
  length = np.bincount(small_ratings.item, minlength=40)[:, None]
  # A factor is rounded by up to 2^-10, a label by 2^-9, w p by 2^-9 more.
  error = np.abs(found.vector * found.vector_spacing - vector)
  assert (error <= 0.005 * length).all()
  found = np.asarray(normal.symmetric(found.matrix)) * found.matrix_spacing
  assert (np.abs(found - matrix).max(axis=2) <= 0.003 * length).all()
  assert np.abs(matrix).max() > 0.5


def cases(ratings, factors):
  """Places of ratings that are special in one way or another."""
  per_item = np.bincount(ratings.item)[ratings.item]
  per_user = np.bincount(ratings.user)[ratings.user]
  length = np.linalg.norm(factors, axis=1)[ratings.user]
  return {
    'popular': per_item.argmax(),
    'only of an item': np.flatnonzero(per_item == 1)[0],
    'only of a user': np.flatnonzero(per_user == 1)[0],
    'lowest': ratings.value.argmin(),
    'highest': ratings.value.argmax(),
    'longest factor': length.argmax(),
    'shortest factor': length.argmin(),
    'factor not finite': np.flatnonzero(~np.isfinite(length))[0],
  }


@pytest.fixture(scope='module')
def special(small_ratings):
  """Ratings with an item and a user of one rating, and extreme factors."""
  lonely = [59, 60], [40, 3], [5.0, 1.0]
  ratings = from_arrays(
    np.append(small_ratings.user, lonely[0]),
    np.append(small_ratings.item, lonely[1]),
    np.append(small_ratings.value, lonely[2]),
    scale=(1, 5),
  )
  factors = np.array(user_factors(ratings))
  factors[0] *= 1e12
  factors[1] = 0.0
  factors[2, 0] = np.nan
  return ratings, jnp.asarray(factors)


@pytest.mark.parametrize('shift', [0, 9])
@pytest.mark.parametrize('weighted', [False, True])
def test_a_rating_moves_its_row_by_at_most_the_bound(special, weighted, shift):
  ratings, factors = special
  weights = some_weights(ratings) if weighted else np.ones(len(ratings))
  omega = 1.7

  def sums(ratings, weights):
    weight = by_item(ratings, weights).value
    return counts(by_item(ratings), factors, weight, shift=shift)

  whole = sums(ratings, weights)
  largest = np.zeros(2)
  for name, place in cases(ratings, np.asarray(factors)).items():
    bound = equation_sensitivities(
      rank=RANK,
      clip_norm=CLIP,
      label_bound=BOUND,
      weight=float(weights[place]),
      matrix_scale=omega,
      shift=shift,
    )
    others = np.arange(ratings.num_items) != ratings.item[place]
    kept = np.arange(len(ratings)) != place
    rest = dataclasses.replace(
      ratings,
      user=ratings.user[kept],
      item=ratings.item[kept],
      value=ratings.value[kept],
    )
    matrix, vector = moved(whole, sums(rest, weights[kept]))
    assert not matrix[others].any(), name
    assert not vector[others].any(), name
    assert matrix.max() <= bound.matrix, name
    assert vector.max() <= bound.vector, name
    assert math.hypot(omega * matrix.max(), vector.max()) <= bound.pair, name
    if weights[place] == 1:
      largest = np.maximum(
        largest, [matrix.max() / bound.matrix, vector.max() / bound.vector]
      )
    for value in (1.0, 3.0, 5.0):
      other = ratings.value.copy()
      other[place] = value
      changed = sums(dataclasses.replace(ratings, value=other), weights)
      matrix, vector = moved(whole, changed)
      assert not matrix.any(), name
      assert not vector[others].any(), name
      assert vector.max() <= bound.relabeled, name
  if shift == 0 and not weighted:
    # The bounds are not loose, either: sqrt(D)/2 is 0.2% of 512.
    assert (largest > 0.99).all()
    assert (largest <= 1).all()


@pytest.mark.parametrize('rank', [1, 5, 128])
def test_the_sharpest_rating_comes_close_to_every_bound(rank):
  # One rating with a label and a factor beyond their bounds.
  ratings = from_arrays([0], [0], [5.0], scale=(1, 5))
  found = counts(by_item(ratings), jnp.full((1, rank), 10.0))
  zero = jax.tree.map(jnp.zeros_like, found)
  matrix, vector = moved(found, zero)
  bound = equation_sensitivities(rank=rank, clip_norm=CLIP, label_bound=BOUND)
  assert 0.97 * bound.matrix < matrix[0] <= bound.matrix
  assert 0.97 * bound.vector < vector[0] <= bound.vector
  assert math.hypot(matrix[0], vector[0]) <= bound.pair


@pytest.mark.parametrize('rank', [1, 7, 128])
def test_terms_never_exceed_the_bounds(rank):
  # An item for every user, so that every row is one term.
  users = 400
  rng = np.random.default_rng(rank)
  ratings = from_arrays(
    np.arange(users),
    np.arange(users),
    rng.uniform(1, 5, users),
    scale=(1, 5),
  )
  sizes = np.exp(rng.normal(size=(users, 1)) * 4)
  factors = jnp.asarray(rng.normal(size=(users, rank)) * sizes, jnp.float32)
  weights = rng.uniform(0, 1.2, users).astype(np.float32)
  weight = by_item(ratings, weights).value
  found = counts(by_item(ratings), factors, weight)
  matrix, vector = moved(found, jax.tree.map(jnp.zeros_like, found))
  limit = np.minimum(weights.astype(np.float64), 1)
  assert (matrix <= limit * CLIP**2).all()
  assert (vector <= limit * CLIP * BOUND).all()


def test_a_long_row_moves_by_one_term_exactly():
  # 20,000 ratings: sums of up to 2^32 products' units, which are split.
  users, shift = 20_000, least_shift(20_000, 32)
  assert shift == 3
  value = np.where(np.arange(users) % 3 == 0, 1.0, 5.0)
  ratings = from_arrays(
    np.arange(users), np.zeros(users, int), value, scale=(1, 5)
  )
  factors = jnp.zeros((users, 2)).at[:, 1].set(-5.0)
  whole = counts(by_item(ratings), factors, shift=shift)
  assert np.abs(whole.matrix).max() > 2**29
  one = from_arrays([0], [0], ratings.value[:1], scale=(1, 5))
  alone = counts(by_item(one), factors[:1])
  rounded = lambda n: np.floor(np.asarray(alone.matrix) * (n / 8) + 0.5)
  np.testing.assert_array_equal(whole.matrix, rounded(20_000))
  for gone in (0, 12_345, 19_999):
    rest = by_item(ratings.take(np.arange(users) != gone))
    other = counts(rest, factors, shift=shift)
    np.testing.assert_array_equal(other.matrix, rounded(19_999))
    assert (np.abs(whole.vector - other.vector) <= 2**18 / 8 + 1).all()


@pytest.mark.parametrize('users', [8191, 8192, 12_000, 16_383])
def test_the_largest_terms_of_a_row_do_not_wrap(users):
  ratings = from_arrays(
    np.arange(users), np.zeros(users, int), np.full(users, 5.0), scale=(1, 5)
  )
  factors = jnp.full((users, 1), 9.0)
  found = counts(by_item(ratings), factors, shift=3)
  one = from_arrays([0], [0], ratings.value[:1], scale=(1, 5))
  alone = counts(by_item(one), factors[:1])
  most = int(alone.matrix[0, 0])
  assert most > 2**18 * 0.99
  assert int(found.matrix[0, 0]) == (users * most + 4) // 8


@pytest.mark.slow
def test_sums_do_not_depend_on_layout_devices_or_splitting(
  small_ratings, monkeypatch
):
  factors = user_factors(small_ratings, 40)
  weights = some_weights(small_ratings)

  def sums(mesh=None, **layout):
    return counts(
      by_item(small_ratings, mesh=mesh, **layout),
      put_replicated(factors, mesh),
      by_item(small_ratings, weights, mesh, **layout).value,
      shift=2,
    )

  first = sums()
  exact = counts(
    by_item(small_ratings), factors, by_item(small_ratings, weights).value
  )
  for a, b in zip(first[:2], exact[:2], strict=True):
    np.testing.assert_array_equal(a, np.floor(np.asarray(b) / 4 + 0.5))
  assert_same(first, sums(slots=4, slices=2))
  assert_same(first, sums(slots=64))
  assert_same(first, sums(mesh=device_mesh(2), slices=4))
  monkeypatch.setattr(slices, 'NARROW', 1)
  # Traced anew, to see the change.
  anew = jax.jit(lambda *args: lattice(*args), static_argnums=4)
  monkeypatch.setitem(globals(), 'compiled', anew)
  assert_same(first, sums())
  assert_same(first, sums(mesh=device_mesh(2), slices=4))


def test_float_sums_run_on_two_devices(small_ratings):
  mesh = device_mesh(2)
  factors = user_factors(small_ratings)
  one = float_equations(by_item(small_ratings), factors)
  two = float_equations(
    by_item(small_ratings, mesh=mesh, slices=4), put_replicated(factors, mesh)
  )
  for a, b in zip(one, two, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_padding_changes_nothing(small_ratings):
  plain = layouts.rows(
    small_ratings.item, small_ratings.user, small_ratings.value, 40, 60
  )
  # Whole chunks of padding, and slots past the end of a slice that are full.
  more = layouts.rows(
    small_ratings.item,
    small_ratings.user,
    small_ratings.value,
    40,
    60,
    chunk_multiple=8,
  )
  assert len(more.column) > len(plain.column)
  unused = np.arange(32) >= more.length[..., None]
  more.column[unused] = 7
  more.value[unused] = 5.0
  weight = np.where(unused, np.nan, 1.0).astype(np.float32)
  factors = user_factors(small_ratings)
  plain, more = put_rows(plain), put_rows(more)
  assert_same(counts(plain, factors), counts(more, factors, weight))
  assert_same(
    float_equations(plain, factors), float_equations(more, factors, weight)
  )


def test_weights_outside_their_range_count_as_its_ends(small_ratings):
  rows, factors = by_item(small_ratings), user_factors(small_ratings)
  weights = some_weights(small_ratings)
  weights[:4] = [np.nan, -1.0, 0.0, 7.0]
  clipped = weights.copy()
  clipped[:4] = [0.0, 0.0, 0.0, 1.0]
  first, second = (
    counts(rows, factors, by_item(small_ratings, w).value)
    for w in (weights, clipped)
  )
  assert_same(first, second)


@pytest.mark.slow
def test_many_keys_share_the_data_under_vmap_and_jit(small_ratings):
  rows = by_item(small_ratings)
  labels = rows.value - MEAN

  def run(key, rows):
    start, noised = jax.random.split(key)
    factors = 0.3 * jax.random.normal(start, (60, RANK))
    found = normal.lattice_equations(
      rows, factors, labels, clip_norm=CLIP, label_bound=BOUND
    )
    (draws,) = noise.draws(noised, [found.vector.shape])
    own = noise.LatticeNoise(
      jnp.float32(0.1), found.vector_spacing, jnp.int32(3)
    )
    vector = own.add(found.vector, draws)
    matrix = normal.symmetric(found.matrix) * found.matrix_spacing
    return found, normal.solve(matrix, vector, 1.0)

  keys = lambda: jax.random.split(jax.random.key(0), 3)
  together = jax.jit(jax.vmap(run, in_axes=(0, None)))(keys(), rows)
  for place in range(3):
    alone = jax.jit(run)(keys()[place], rows)
    part = jax.tree.map(lambda x, n=place: x[n], together)
    assert_same(part[0], alone[0])
    np.testing.assert_allclose(part[1], alone[1], rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(
  ('rank', 'ridge'), [(1, 0.5), (6, np.linspace(0.1, 2, 40)), (128, 0.5)]
)
def test_solve_is_ridge_regression(small_ratings, rank, ridge):
  factors = user_factors(small_ratings, rank)
  weights = some_weights(small_ratings)
  matrix, vector = float_equations(
    by_item(small_ratings), factors, by_item(small_ratings, weights).value
  )
  given = ridge if isinstance(ridge, float) else jnp.asarray(ridge, jnp.float32)
  found = jax.jit(normal.solve)(matrix, vector, given)
  assert found.dtype == jnp.float32
  matrix, vector = oracle(small_ratings, factors, weights)
  ridge = np.broadcast_to(ridge, 40)
  for i in range(40):
    want = np.linalg.solve(matrix[i] + ridge[i] * np.eye(rank), vector[i])
    np.testing.assert_allclose(found[i], want, rtol=2e-3, atol=2e-4)


def test_solve_does_not_hang_on_two_devices():
  # Batches in LAPACK did, for two devices on two cores (jaxlib 0.10.2).
  code = (
    'import jax; jax.config.update("jax_num_cpu_devices", 2);'
    'import jax.numpy as jnp;'
    'from dpmf_jax.kernels.normal import solve;'
    'from dpmf_jax.rows import device_mesh, put_replicated;'
    'a, b = jnp.tile(jnp.eye(50), (2000, 1, 1)), jnp.ones((2000, 50));'
    'a, b = put_replicated((a, b), device_mesh(2));'
    'run = jax.jit(solve);'
    'assert all(abs(run(a, b, 1.0) - 0.5).max() < 1e-6 for _ in range(9))'
  )
  subprocess.run([sys.executable, '-c', code], check=True, env=os.environ)


def test_wrong_shapes_and_numbers_are_refused(small_ratings):
  rows, factors = by_item(small_ratings), user_factors(small_ratings)
  matrix, vector = float_equations(rows, factors)
  for ridge in (0.0, -1.0, math.nan):
    with pytest.raises(ValueError, match='ridge must be > 0'):
      normal.solve(matrix, vector, ridge)
  with pytest.raises(AssertionError):
    normal.solve(matrix[:-1], vector, 1.0)
  with pytest.raises(AssertionError):
    normal.solve(matrix[..., :-1], vector, 1.0)
  with pytest.raises(AssertionError):
    float_equations(rows, factors, rows.value[..., :-1])
  with pytest.raises(AssertionError):
    float_equations(rows, factors[:, 0])
  with pytest.raises(ValueError, match='slices of 128 overflow'):
    counts(by_item(small_ratings, slots=128), factors)
  with pytest.raises(ValueError, match=r'shift must be in 0\.\.18, got 19'):
    counts(rows, factors, shift=19)
  with pytest.raises(ValueError, match=r'shift must be in 2\.\.18, got 1'):
    counts(rows, jnp.zeros((8193, 2)), shift=1)
  for wrong in ({'weight': 0.0}, {'weight': 1.1}, {'rank': 0}):
    numbers = {'rank': 2, 'clip_norm': 1.0, 'label_bound': 1.0} | wrong
    with pytest.raises(ValueError, match=f'{next(iter(wrong))}='):
      equation_sensitivities(**numbers)


def test_shifts_keep_sums_in_range():
  assert least_shift(1, 32) == least_shift(4096, 32) == 0
  assert least_shift(4097, 32) == 1
  assert least_shift(480_189, 32) == 7  # Netflix
  for longest in (4096, 6040, 480_189, 2**23):
    shift = least_shift(longest, 32)
    assert longest * 2 ** (PRODUCT_BITS - shift) <= 2**30
  with pytest.raises(ValueError, match='overflow int32'):
    least_shift(2**26, 32)


def test_sensitivities_grow_with_weight_shift_and_scale():
  numbers = {'rank': 20, 'clip_norm': 2.0, 'label_bound': 3.0}
  plain = equation_sensitivities(**numbers)
  assert plain == (4.0, 6.0, math.hypot(4.0, 6.0), 12.0)
  half = equation_sensitivities(**numbers, weight=0.5)
  np.testing.assert_allclose(half, np.array(plain) / 2)
  rounded = equation_sensitivities(**numbers, shift=8)
  rough = 2.0**-10 * np.array([4 * 20, 6 * math.sqrt(20)])
  np.testing.assert_allclose(rounded[:2], plain[:2] + rough, rtol=1e-6)
  assert rounded.relabeled < 2 * rounded.vector
  scaled = equation_sensitivities(**numbers, matrix_scale=3.0)
  assert scaled.pair == math.hypot(12.0, 6.0)
