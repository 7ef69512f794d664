import numpy as np
import pytest

from dpmf_jax.data.ratings import from_arrays
from dpmf_jax.metrics import baselines, bias_model


def small():
  train = from_arrays(
    ['a', 'a', 'b', 'c'], [1, 2, 1, 3], [5, 3, 1, 4], scale=(1, 5)
  )
  return train, train.take(np.array([0, 3]))


def test_baselines_by_hand():
  train, test = small()
  found = baselines(train, test)
  rmse = lambda a, b: pytest.approx(np.sqrt((a * a + b * b) / 2))
  assert found['global_mean'] == rmse(5 - 3.25, 4 - 3.25)
  assert found['user_mean'] == rmse(5 - 4, 0)
  assert found['item_mean'] == rmse(5 - 3, 0)
  assert found['bias'] < found['global_mean']


def test_unseen_users_get_the_global_mean():
  train, _ = small()
  kept = train.take(train.user != 2)
  found = baselines(kept, train.take(train.user == 2))
  assert found['user_mean'] == pytest.approx(4 - 3.0)


def test_biases_solve_their_ridge_equations(small_ratings):
  mean, user, item = bias_model(small_ratings, ridge=2.0, sweeps=200)
  error = (
    small_ratings.value.astype(np.float64)
    - mean
    - user[small_ratings.user]
    - item[small_ratings.item]
  )
  total = np.bincount(small_ratings.user, error, minlength=60)
  np.testing.assert_allclose(total, 2.0 * user, atol=1e-6)
