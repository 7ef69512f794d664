"""The loop over chunks, against NumPy."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax.kernels import lattice, normal, slices
from dpmf_jax.kernels.gradients import row_gradient
from dpmf_jax.kernels.regression import ridge_fit
from dpmf_jax.kernels.slices import sum_over_slices
from dpmf_jax.mechanisms.response import ones_up_to
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import device_mesh, training_data

LAYOUTS = [
  {'slots': 32, 'slices': 64},
  {'slots': 4, 'slices': 8},
  {'slots': 1, 'slices': 1},
]


@pytest.fixture(scope='module')
def ratings():
  return synthetic(num_users=31, num_items=17, num_ratings=150, seed=2)


def tables(number, rank):
  """Of numbers, of bits, of vectors and of integer matrices."""
  rng = np.random.default_rng(number)
  return {
    'number': rng.integers(-9, 9, number).astype(np.int32),
    'bit': rng.random(number) < 0.5,
    'vector': rng.integers(-9, 9, (number, rank)).astype(np.float32),
    'matrix': rng.integers(-9, 9, (number, 2, 3)).astype(np.int32),
  }


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('rank', [1, 8, 20, 24])
@pytest.mark.parametrize('devices', [1, 2])
def test_sums_are_those_of_numpy(ratings, layout, rank, devices):
  columns, sides = tables(17, rank), tables(31, rank)
  twice = jnp.float32(2)

  def slice_sums(chunk, factor):
    column, side = chunk.column, chunk.row
    weight = jnp.where(column['bit'], chunk.value, factor)
    weight = weight * column['number'] + side['number'][:, None]
    weight = jnp.where(chunk.mask & side['bit'][:, None], weight, 0.0)
    vector = column['vector'] + side['vector'][:, None]
    matrix = (column['matrix'] * side['matrix'][:, None]).sum(axis=(2, 3))
    terms = jnp.concatenate([vector, matrix[..., None]], axis=-1)
    return (weight[..., None] * terms).sum(axis=1)

  mesh = None if devices == 1 else device_mesh(devices)
  rows = training_data(ratings, mesh=mesh, **layout).by_user
  got = jax.jit(sum_over_slices, static_argnums=0)(
    slice_sums, rows, columns, sides, twice
  )

  at_item = {name: table[ratings.item] for name, table in columns.items()}
  at_user = {name: table[ratings.user] for name, table in sides.items()}
  weight = np.where(at_item['bit'], ratings.value, 2.0)
  weight = weight * at_item['number'] + at_user['number']
  weight = weight * at_user['bit']
  matrix = (at_item['matrix'] * at_user['matrix']).sum(axis=(1, 2))
  vector = at_item['vector'] + at_user['vector']
  terms = np.concatenate([vector, matrix[:, None]], axis=1)
  want = np.zeros((31, rank + 1))
  np.add.at(want, ratings.user, weight[:, None] * terms)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def test_only_ratings_are_summed(ratings):
  """Whatever is gathered for padding, and for the spare slice."""
  rows = training_data(ratings, slots=4, slices=8).by_item
  ones = jnp.ones((31, 8))

  def slice_sums(chunk):
    assert chunk.mask.shape == (9, 4)  # a spare slice
    return jnp.where(chunk.mask[..., None], chunk.column, 0).sum(axis=1)

  got = sum_over_slices(slice_sums, rows, ones, ())
  counts = np.bincount(ratings.item, minlength=17)
  np.testing.assert_array_equal(got, np.repeat(counts[:, None], 8, axis=1))


def test_integers_stay_integers_and_batches_are_apart(ratings):
  rows = training_data(ratings).by_user
  table = jnp.arange(3 * 17, dtype=jnp.int32).reshape(3, 17)

  def sums(table):
    count = lambda chunk: jnp.where(chunk.mask, chunk.column, 0).sum(axis=1)
    return sum_over_slices(count, rows, table, ())

  got = jax.vmap(sums)(table)
  assert got.dtype == jnp.int32
  for batch, one in zip(got, table, strict=True):
    np.testing.assert_array_equal(batch, sums(one))


def test_nothing_in_the_loop_is_split_over_threads():
  """What made steps on large factors 40% slower, see docs/design.md."""
  ratings = synthetic(num_users=40, num_items=20_000, num_ratings=3_000, seed=1)
  rows = training_data(ratings).by_user
  factors = [jnp.ones((n, 20)) for n in (40, 20_000)]
  compiled = jax.jit(row_gradient).lower(rows, *factors).compile().as_text()
  gathers = re.findall(r'.*f32\[65,32,3,8\].*fusion\(.*', compiled)
  assert gathers, 'the loop has changed: so must this test'
  assert not [line for line in gathers if 'outer_dimension_part' in line]


def rounds(sums, *args):
  """How often the loop over chunks goes round."""
  loops = [
    each.params['length']
    for each in jax.make_jaxpr(lambda *new: sums(*new))(*args).eqns
    if each.primitive.name == 'scan'
  ]
  (found,) = loops
  return found


def test_chunks_that_would_take_too_much_memory_are_cut(ratings, monkeypatch):
  rows = training_data(ratings, slots=4, slices=64).by_user
  table = jnp.asarray(tables(17, 8)['vector'])

  def sums(table):
    count = lambda chunk: jnp.where(chunk.mask[..., None], chunk.column, 0)
    return sum_over_slices(lambda c: count(c).sum(axis=1), rows, table, ())

  whole, chunks = sums(table), rounds(sums, table)
  assert chunks == len(rows.row)
  slice_bytes = 4 * 8 * (4 + 1)
  monkeypatch.setattr(slices, 'CHUNK_BYTES', 20 * slice_bytes)
  assert rounds(sums, table) == 4 * chunks  # of 16 slices and a spare one
  np.testing.assert_array_equal(whole, sums(table))
  monkeypatch.setattr(slices, 'CHUNK_BYTES', 1)
  assert rounds(sums, table) == 64 * chunks
  np.testing.assert_array_equal(whole, sums(table))


@pytest.mark.slow
@pytest.mark.parametrize('shift', [0, 6])
def test_integers_are_the_same_in_large_chunks(shift):
  """Floats are summed inside slices, integers from slice to slice."""
  made = synthetic(num_users=150, num_items=90, num_ratings=4_000, seed=3)
  user, item = (
    jax.random.normal(jax.random.key(seed), (count, 5))
    for seed, count in enumerate((150, 90))
  )

  def integers(platform):
    rows = training_data(made, platform=platform).by_user
    number = jnp.float32
    gradient = lattice.row_gradient(
      rows,
      *(lattice.columns(side, number(1)) for side in (user, item)),
      offset=number(3),
      low=number(1),
      high=number(5),
      residual_bound=number(2),
      shift=jnp.int32(shift),
    )
    sums = normal.lattice_equations(
      rows, item, rows.value - 3, clip_norm=1.0, label_bound=2.0, shift=shift
    )
    fitted = ridge_fit(rows, user, item, offset=3.0, ridge=jnp.ones(5))
    return gradient, sums.matrix, sums.vector, fitted

  for small, large in zip(integers('cpu'), integers('gpu'), strict=True):
    np.testing.assert_array_equal(small, large)


def test_dots_of_integers_have_all_bits_of_float32(ratings):
  """Also where JAX's default is less, as it is on GPUs and TPUs."""
  rows = training_data(ratings).by_user
  user, item = jnp.ones((31, 3)), jnp.ones((17, 3))
  whole = lattice.columns(user, 1.0), lattice.columns(item, 1.0)
  zero = jnp.float32(0)

  def gradient(rows, side, columns):
    return lattice.row_gradient(
      rows,
      side,
      columns,
      offset=zero,
      low=zero,
      high=zero,
      residual_bound=zero,
      shift=jnp.int32(0),
    )

  equations = functools.partial(
    normal.lattice_equations, clip_norm=1.0, label_bound=1.0
  )
  fit = functools.partial(ridge_fit, offset=3.0, ridge=jnp.ones(3))
  for kernel, *args in (
    (gradient, rows, *whole),
    (equations, rows, item, rows.value),
    (fit, rows, user, item),
    (ones_up_to, jnp.ones(40, bool)),
  ):
    text = jax.jit(kernel).lower(*args).as_text()
    dots = re.findall(r'stablehlo.dot_general.*', text)
    assert dots
    assert all('precision = [HIGHEST, HIGHEST]' in dot for dot in dots)
