import jax
import numpy as np
import pytest

import dpmf_jax
from dpmf_jax import training


@pytest.mark.slow
def test_a_sweep_is_the_runs_that_it_stands_for(small_ratings):
  train, test = dpmf_jax.random_split(small_ratings, 0.2, seed=0)
  settings = {'delta': 1e-6, 'steps': 3}
  found = dpmf_jax.sweep(
    'gaussian_mf', train, test, epsilons=[1, 4], keys=range(3), **settings
  )
  assert found.shape == (2, 3)
  compiled = training._block._cache_size()
  keys = jax.random.split(dpmf_jax.random_key(7), 3)
  other = dpmf_jax.sweep(
    dpmf_jax.gaussian_mf, train, test, epsilons=[2], keys=keys, **settings
  )
  assert training._block._cache_size() == compiled
  assert len({*found.flat, *other.flat}) == 9
  system = dpmf_jax.gaussian_mf(epsilon=4, scale=(1, 5), **settings)
  data = dpmf_jax.training_data(train)
  state = dpmf_jax.fit(system, dpmf_jax.random_key(2), data)
  assert found[1, 2] == dpmf_jax.rmse(system.model(state, data), test)


def test_an_empty_sweep(small_ratings):
  found = dpmf_jax.sweep(
    'gaussian_mf', small_ratings, small_ratings, epsilons=[], keys=[1, 2]
  )
  assert found.shape == (0, 2)


def test_settings_are_checked_before_anything_runs(small_ratings):
  with pytest.raises(ValueError, match='epsilon=-1'):
    dpmf_jax.sweep(
      'power_mf',
      small_ratings,
      small_ratings,
      epsilons=np.array([1.0, -1.0]),
      keys=[0],
      delta=1e-6,
    )


def test_what_it_cannot_take_is_named(small_ratings):
  some = {'epsilons': [1], 'keys': [0], 'delta': 1e-6}
  with pytest.raises(ValueError, match=r"system='powr' is not one of .*power"):
    dpmf_jax.sweep('powr', small_ratings, small_ratings, **some)
  with pytest.raises(ValueError, match='test of type list must be Ratings'):
    dpmf_jax.sweep('power_mf', small_ratings, [3.0], **some)
