import jax
import numpy as np
import pytest

from dpmf_jax import fold_in, recommend, similar_items
from dpmf_jax.plans.ease import MAX_ITEMS, EASEConfig, check_items
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.runs.train import train
from dpmf_jax.serving.models import load_model
from dpmf_jax.systems.ease import ease
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)
RATINGS = synthetic(num_users=300, num_items=280, num_ratings=4_000, seed=3)


def model_of(config, **options):
  system, data = ease(config), training_data(RATINGS, **options)
  state = fit(system, jax.random.key(0), data)
  return jax.tree.map(np.asarray, system.model(state, data))


def interactions(config):
  """What each counts, [U, I]."""
  x = np.zeros((RATINGS.num_users, RATINGS.num_items))
  at = (RATINGS.value - 1) / (4 * config.liked_from)
  x[RATINGS.user, RATINGS.item] = np.minimum(
    config.least_weight + (1 - config.least_weight) * at, 1
  )
  return x


def dense(config):
  """Scores [U, I] by the inverse, as in the paper's figure 1."""
  x = interactions(config)
  user = (x**2).sum(1) ** -config.user_power
  rare = x.sum(0).max() / np.maximum(x.sum(0), 0.5)
  scale = rare**config.popularity_power
  y = user[:, None] * x * scale[None]
  gram = y.T @ y + config.ridge * (user**2).sum() * np.eye(len(scale))
  inverse = np.linalg.inv(gram)
  weight = inverse / -np.diag(inverse)
  np.fill_diagonal(weight, 0)
  return (x * scale) @ weight / scale


@pytest.mark.parametrize(
  'settings',
  [{}, {'user_power': 0.0, 'popularity_power': 0.0, 'least_weight': 1.0}],
)
def test_scores_of_items_that_a_user_has_not_are_the_paper_s(settings):
  # More items than columns are computed at a time.
  config = EASEConfig(scale=SCALE, **settings)
  user, item = model_of(config).factors
  found, wanted = user @ item.T, dense(config)
  new = interactions(config) == 0
  # Popularity in the first column orders what is equal.
  np.testing.assert_allclose(found[new], wanted[new], atol=3e-4)


@pytest.mark.slow
def test_fewer_factors_are_those_that_weigh_most():
  user, item = model_of(EASEConfig(scale=SCALE, rank=4)).factors
  _, whole = model_of(EASEConfig(scale=SCALE)).factors
  assert user.shape == (300, 5)
  np.testing.assert_array_equal(item[:, 1:], whole[:, -4:])
  np.testing.assert_array_equal(item[:, 0], whole[:, 0])


@pytest.mark.slow
def test_two_devices_give_one_device_s_result():
  config = EASEConfig(scale=SCALE, rank=8)
  one, two = (
    model_of(config, mesh=mesh).factors for mesh in (None, device_mesh(2))
  )
  np.testing.assert_allclose(
    one.user @ one.item.T, two.user @ two.item.T, atol=1e-3
  )


@pytest.mark.slow
def test_a_run_is_not_private_and_its_folder_serves(tmp_path):
  run = train(RATINGS, system='ease', rank=8, key=0, output=tmp_path / 'run')
  assert run.certificate['status'] == 'none'
  assert 'not private' in str(run)
  assert 'rmse' not in str(run).lower()
  model = load_model(tmp_path / 'run')
  first = RATINGS.user_ids[0]
  mine = recommend(model, first, 5)
  # Somebody who did the same gets the same list.
  own = run.train.user == 0
  twin = {
    'twin': dict(
      zip(
        run.train.item_ids[run.train.item[own]].tolist(),
        run.train.value[own].tolist(),
        strict=True,
      )
    )
  }
  theirs = recommend(fold_in(model, twin), 'twin', 5)
  assert [each.item for each in theirs] == [each.item for each in mine]
  assert len(similar_items(model, RATINGS.item_ids[0], 3)) == 3


def test_too_many_items_are_refused():
  check_items(MAX_ITEMS)
  with pytest.raises(ValueError, match='takes 7 GB: at most 20000 items; use'):
    check_items(MAX_ITEMS + 1)
