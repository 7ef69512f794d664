import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from dpmf_jax.evaluation.metrics import release_rmse
from dpmf_jax.kernels.gradients import (
  error_counts,
  gradients,
  row_gradient,
  squared_error,
)
from dpmf_jax.mechanisms.clipping import clip_scale
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import (
  Data,
  data_rows,
  device_mesh,
  put_replicated,
  training_data,
)
from dpmf_jax.types import Factors, Release


def random_factors(ratings, rank=5, seed=0, size=1.5):
  rng = np.random.default_rng(seed)
  return Factors(
    rng.normal(size=(ratings.num_users, rank)).astype(np.float32) * size,
    rng.normal(size=(ratings.num_items, rank)).astype(np.float32) * size,
  )


@pytest.mark.parametrize('devices', [1, 2])
def test_gradients_equal_the_oracle(small_ratings, devices):
  factors = random_factors(small_ratings)
  mesh = device_mesh(devices)
  data = training_data(small_ratings, mesh=mesh, slices=4, slots=8)
  placed = put_replicated(jax.tree.map(jnp.asarray, factors), mesh)
  found = jax.jit(
    lambda data, factors: gradients(
      data,
      factors,
      offset=0.5,
      user_scale=clip_scale(factors.user, 1.0),
      item_scale=clip_scale(factors.item, 1.0),
    )
  )(data, placed)
  want = oracles.gaussian_mf_gradients(
    small_ratings,
    *(f.astype(np.float64) for f in factors),
    clip_norm=1.0,
    offset=0.5,
  )
  # clip_scale leaves 1e-5 of slack below the norm.
  for a, b in zip(found, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_autodiff(small_ratings):
  data = training_data(small_ratings)
  factors = Factors(*map(jnp.asarray, random_factors(small_ratings)))

  def loss(factors):
    users = factors.user[small_ratings.user]
    items = factors.item[small_ratings.item]
    return 0.5 * jnp.sum(((users * items).sum(1) - small_ratings.value) ** 2)

  for a, b in zip(
    gradients(data, factors), jax.grad(loss)(factors), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_padding_slices_change_nothing(small_ratings):
  factors = Factors(*map(jnp.asarray, random_factors(small_ratings)))
  plain = data_rows(small_ratings, slices=4).by_user
  padded = data_rows(small_ratings, slices=4, chunk_multiple=64).by_user
  assert len(padded.column) > len(plain.column)
  results = [
    row_gradient(jax.tree.map(jnp.asarray, rows), *factors)
    for rows in (plain, padded)
  ]
  np.testing.assert_array_equal(*results)


def test_a_row_without_ratings_has_gradient_zero(small_ratings):
  keep = small_ratings.take(small_ratings.user != 3)
  gradient = gradients(
    training_data(keep),
    Factors(*map(jnp.asarray, random_factors(small_ratings))),
  )
  assert (gradient.user[3] == 0).all()
  assert np.isfinite(gradient.item).all()


@pytest.mark.parametrize('scale', [None, (1.0, 5.0)])
def test_rmse_equals_the_oracle(small_ratings, scale):
  factors = random_factors(small_ratings, size=1.0)
  release = Release(Factors(*map(jnp.asarray, factors)), jnp.float32(3.0))
  rows = training_data(small_ratings).by_user
  found = release_rmse(release, rows, scale)
  want = oracles.rmse(small_ratings, *factors, offset=3.0, scale=scale)
  assert found == pytest.approx(want, rel=1e-5)


def test_wrong_shapes_are_refused(small_ratings):
  factors = random_factors(small_ratings)
  data = training_data(small_ratings)
  with pytest.raises(ValueError, match='have 40 columns: give it 40 rows'):
    row_gradient(data.by_user, factors.item, factors.user)
  dropped = dataclasses.replace(data.by_user, num_rows=61)
  with pytest.raises(ValueError, match='have 61 rows'):
    row_gradient(dropped, *factors)


@pytest.mark.parametrize(
  'kernel',
  [
    row_gradient,
    squared_error,
    lambda rows, p, q: error_counts(rows, p, q, jnp.ones(1)),
    lambda rows, p, q: row_gradient(
      rows, p, jnp.ones((40, 5)), column_scale=q[:, 0]
    ),
  ],
)
@pytest.mark.parametrize(('users', 'items'), [(59, 40), (60, 39), (61, 40)])
def test_factors_of_other_lengths_are_refused(
  small_ratings, kernel, users, items
):
  rows = training_data(small_ratings).by_user
  p, q = jnp.ones((users, 5)), jnp.ones((items, 5))
  with pytest.raises(ValueError, match=r'the table of (rows|columns) is'):
    jax.jit(kernel)(rows, p, q)


def test_rows_of_the_wrong_side_are_refused():
  # As many users as items: nothing but the side tells them apart.
  ratings = synthetic(num_users=9, num_items=9, num_ratings=40, rank=2, seed=0)
  data = training_data(ratings)
  factors = Factors(jnp.ones((9, 2)), jnp.ones((9, 2)))
  release = Release(factors, jnp.float32(3))
  said = 'rows are by item, but must be by user: use data.by_user'
  with pytest.raises(ValueError, match=said):
    release_rmse(release, data.by_item)
  with pytest.raises(ValueError, match=said):
    gradients(Data(*data[::-1]), factors)
