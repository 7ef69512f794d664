import jax
import numpy as np
import pytest

from dpmf_jax.evaluation.metrics import baselines, rmse
from dpmf_jax.plans.nonprivate import NonprivateConfig
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.systems.nonprivate import nonprivate
from dpmf_jax.training import fit


@pytest.mark.slow
def test_it_beats_every_baseline_on_planted_factors():
  ratings = synthetic(
    num_users=300, num_items=200, num_ratings=15_000, rank=3, noise=0.3, seed=0
  )
  train, test = random_split(ratings, 0.2, seed=0)
  data = training_data(train)
  system = nonprivate(NonprivateConfig(scale=ratings.scale, rank=6, ridge=0.05))
  state = fit(system, jax.random.key(0), data)
  found = rmse(system.model(state, data), test)
  assert found < 0.95 * min(baselines(train, test).values())


def test_fixed_columns_stay_ones(small_ratings):
  data = training_data(small_ratings)
  system = nonprivate(NonprivateConfig(scale=(1, 5), rank=3, steps=20))
  state = fit(system, jax.random.key(0), data)
  assert (state.factors.user[:, -1] == 1).all()
  assert (state.factors.item[:, -2] == 1).all()
  assert np.ptp(state.factors.user[:, -2]) > 0.01  # biases were learned


def test_without_biases_the_rank_is_the_rank(small_ratings):
  data = training_data(small_ratings)
  system = nonprivate(NonprivateConfig(scale=(1, 5), rank=3, biases=False))
  assert system.init(jax.random.key(0), data).factors.user.shape == (60, 3)


@pytest.mark.slow
def test_real_ratings(data_dir):
  from dpmf_jax.ratings import catalog

  ratings = catalog.load('ml-100k', data_dir=data_dir, quiet=True)
  train, test = random_split(ratings, 0.2, seed=0)
  data = training_data(train)
  system = nonprivate(NonprivateConfig(scale=ratings.scale))
  state = fit(system, jax.random.key(0), data)
  found = rmse(system.model(state, data), test)
  assert found < 0.93  # bias model: 0.941


@pytest.mark.parametrize('field', ['rank', 'steps', 'step_size', 'init_std'])
def test_wrong_settings_are_named(field):
  with pytest.raises(ValueError, match=rf'{field}=0(\.0)? must be'):
    NonprivateConfig(scale=(1, 5), **{field: 0})
