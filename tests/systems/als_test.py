import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from dpmf_jax.evaluation import metrics
from dpmf_jax.plans.als import ALSConfig
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.systems.als import als
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)


def one_step(config, data):
  """The system's start and the state after a sweep, as NumPy arrays."""
  system = als(config)
  start = system.init(jax.random.key(0), data)
  end = jax.jit(system.step)(jax.random.key(1), start, data)
  return start, end


@pytest.mark.parametrize('solver', ['cholesky', 'cg'])
def test_an_explicit_sweep_is_the_dense_solution(small_ratings, solver):
  config = ALSConfig(
    scale=SCALE, rank=3, init_std=0.5, solver=solver, cg_iterations=16
  )
  data = training_data(small_ratings)
  start, end = one_step(config, data)
  common = {
    'offset': small_ratings.value.mean(),
    'ridge': config.ridge,
    'bias_ridge': config.bias_ridge,
  }
  item = np.asarray(start.factors.item, np.float64)
  user = oracles.als_explicit(
    small_ratings, 'user', 60, item[:, :3], item[:, 4], **common
  )
  item = oracles.als_explicit(
    small_ratings, 'item', 40, user[:, :3], user[:, 3], **common
  )
  np.testing.assert_allclose(end.factors.user[:, :4], user, atol=2e-4)
  np.testing.assert_array_equal(end.factors.user[:, 4], 1)
  np.testing.assert_allclose(end.factors.item[:, :3], item[:, :3], atol=2e-4)
  np.testing.assert_allclose(end.factors.item[:, 4], item[:, 3], atol=2e-4)
  np.testing.assert_array_equal(end.factors.item[:, 3], 1)


@pytest.mark.parametrize('solver', ['cholesky', 'cg'])
def test_an_implicit_sweep_is_the_dense_solution(small_ratings, solver):
  config = ALSConfig(
    scale=SCALE, feedback='implicit', rank=3, alpha=2.0, ridge=0.7,
    init_std=0.5, solver=solver, cg_iterations=16,
  )  # fmt: skip
  start, end = one_step(config, training_data(small_ratings))
  confidence, known = np.ones((60, 40)), np.zeros((60, 40))
  at = small_ratings.user, small_ratings.item
  known[at] = np.minimum(0.1 + 0.9 / 3.6 * (small_ratings.value - 1), 1)
  confidence += 2.0 * known
  item = np.asarray(start.factors.item, np.float64)
  user = oracles.als_implicit(confidence, known, item, ridge=0.7)
  item = oracles.als_implicit(confidence.T, known.T, user, ridge=0.7)
  np.testing.assert_allclose(end.factors.user, user, atol=2e-4)
  np.testing.assert_allclose(end.factors.item, item, atol=2e-4)


@pytest.mark.slow
def test_two_devices_give_one_device_s_result(small_ratings):
  from dpmf_jax.rows import device_mesh

  config = ALSConfig(scale=SCALE, rank=2, steps=3)
  ends = [
    fit(als(config), jax.random.key(0), training_data(small_ratings, mesh=mesh))
    for mesh in (None, device_mesh(2))
  ]
  for one, two in zip(*(end.factors for end in ends), strict=True):
    np.testing.assert_allclose(one, two, atol=1e-4)


@pytest.mark.slow
def test_it_learns_what_was_planted():
  ratings = synthetic(
    num_users=300, num_items=200, num_ratings=12_000, rank=2, seed=3
  )
  train, test = random_split(ratings, 0.2, seed=0)
  data = training_data(train)
  system = als(ALSConfig(scale=SCALE, rank=4))
  state = fit(system, jax.random.key(0), data)
  rows = training_data(test).by_user
  error = metrics.rmse(system.model(state, data), rows, SCALE)
  assert error < 0.97 * metrics.baselines(train, test)['bias']
  # Implicit scores rank what is rated above what is not.
  system = als(ALSConfig(scale=SCALE, rank=4, feedback='implicit'))
  user, item = fit(system, jax.random.key(0), data).factors
  scores = np.asarray(user @ item.T)
  rated = np.zeros(scores.shape, bool)
  rated[test.user, test.item] = True
  seen = np.zeros(scores.shape, bool)
  seen[train.user, train.item] = True
  assert scores[rated].mean() > 1.5 * scores[~rated & ~seen].mean()


@pytest.mark.slow
@pytest.mark.parametrize('feedback', ['explicit', 'implicit'])
def test_few_iterations_are_enough_over_sweeps(small_ratings, feedback):
  few = ALSConfig(scale=SCALE, feedback=feedback, rank=6, steps=60)
  exact = dataclasses.replace(few, solver='cholesky')
  data = training_data(small_ratings)
  ends = [
    fit(als(config), jax.random.key(0), data).factors for config in (few, exact)
  ]
  one, two = (np.asarray(user @ item.T) for user, item in ends)
  np.testing.assert_allclose(one, two, atol=2e-3)


@pytest.mark.parametrize('feedback', ['explicit', 'implicit'])
@pytest.mark.parametrize('solver', ['cholesky', 'cg'])
def test_rows_without_ratings_are_zero(small_ratings, solver, feedback):
  keep = small_ratings.take(small_ratings.user != 7)
  config = ALSConfig(scale=SCALE, rank=3, solver=solver, feedback=feedback)
  _, end = one_step(config, training_data(keep))
  np.testing.assert_array_equal(end.factors.user[7, :3], 0)
  assert all(bool(jnp.isfinite(side).all()) for side in end.factors)


@pytest.mark.parametrize(
  ('setting', 'message'),
  [
    ({'rank': 0}, 'rank=0'),
    ({'ridge': 0.0}, r'ridge=0\.0'),
    ({'feedback': 'both'}, "feedback='both'"),
    ({'solver': 'qr'}, "solver='qr'"),
    ({'cg_iterations': 0}, 'cg_iterations=0'),
  ],
)
def test_wrong_settings_are_named(setting, message):
  with pytest.raises(ValueError, match=message):
    ALSConfig(**{'scale': SCALE, **setting})
