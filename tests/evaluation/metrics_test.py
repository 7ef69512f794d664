import types

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from dpmf_jax.evaluation import plots
from dpmf_jax.evaluation.metrics import (
  baselines,
  bias_model,
  error_cdf,
  error_grid,
  release_rmse,
  rmse,
)
from dpmf_jax.plans import SPECS, config_of
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.serving.models import model_from_release
from dpmf_jax.types import Factors, Release


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


def release_of(ratings, seed=0, spread=1.0):
  rng = np.random.default_rng(seed)
  user = rng.normal(size=(ratings.num_users, 5)) * spread
  item = rng.normal(size=(ratings.num_items, 5))
  return Release(
    Factors(jnp.asarray(user, 'float32'), jnp.asarray(item, 'float32')),
    jnp.float32(3.1),
  )


def test_errors_of_all_that_holds_a_model(small_ratings):
  release = release_of(small_ratings)
  factors = map(np.asarray, release.factors)
  want = pytest.approx(
    oracles.rmse(small_ratings, *factors, offset=3.1, scale=(1, 5)), rel=1e-5
  )
  model = model_from_release(release, small_ratings)
  run = types.SimpleNamespace(model=model)
  rows = training_data(small_ratings).by_user
  for holder in (release, model, run):
    assert rmse(holder, small_ratings) == want
    assert rmse(holder, rows, (1, 5)) == want
  # A model finds users and items by their ids, whatever their places.
  columns = small_ratings.columns()
  order = np.arange(40)
  few = from_arrays(
    columns['user'][order],
    columns['item'][order].astype(str),
    columns['rating'][order],
    scale=(1, 5),
  )
  assert len(few.user_ids) < len(small_ratings.user_ids)
  assert rmse(model, few) == pytest.approx(
    rmse(release, small_ratings.take(order)), rel=1e-6
  )


def test_errors_under_jit_and_vmap(small_ratings):
  releases = [release_of(small_ratings, seed) for seed in range(3)]
  rows = training_data(small_ratings).by_user
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *releases)
  error = lambda release: release_rmse(release, rows, (1.0, 5.0))
  want = [rmse(release, small_ratings) for release in releases]
  np.testing.assert_allclose(jax.vmap(error)(stacked), want, rtol=1e-6)
  assert jax.jit(error)(releases[0]) == pytest.approx(want[0], rel=1e-6)


def test_what_cannot_be_compared_is_refused(small_ratings):
  release, data = release_of(small_ratings), training_data(small_ratings)
  strange = from_arrays(['zoe'], [10**6], [3], scale=(1, 5))
  short = release._replace(
    factors=Factors(release.factors.user, release.factors.item[:-5])
  )
  secret = release._replace(factors=Factors(None, release.factors.item))
  for model, ratings, said in (
    (release, data.by_item, 'rows are by item, but must be by user'),
    (
      release,
      data,
      'of type Data must be Ratings, or training_data',
    ),
    (release, strange, '1 users .* do not fit a model of 60 users'),
    (short, small_ratings, 'do not fit a model of 60 users and 35 items'),
    (secret, small_ratings, 'no user factors, .*fold_in'),
    (
      model_from_release(secret, small_ratings),
      small_ratings,
      'no user factors, .*fold_in',
    ),
    (
      model_from_release(release, small_ratings),
      strange,
      "user 'zoe' is not in the model",
    ),
    (print, small_ratings, 'must be a Model, a Release'),
  ):
    with pytest.raises(ValueError, match=said):
      rmse(model, ratings)


@pytest.mark.parametrize('num_devices', [1, 2])
@pytest.mark.parametrize('scale', [None, (1.0, 5.0)])
def test_the_cdf_counts_ratings_within_each_error(
  small_ratings, scale, num_devices
):
  release = release_of(small_ratings)
  user, item = (np.asarray(x, np.float64) for x in release.factors)
  want = 3.1 + (user[small_ratings.user] * item[small_ratings.item]).sum(1)
  want = want if scale is None else np.clip(want, *scale)
  error = np.abs(want - small_ratings.value)
  points = [0.0, 0.3, 1.0, 1.7, 4.0, 100.0]
  # No error is so near to a point that float32 could count it otherwise, but
  # for clipped ones, which are whole numbers in both.
  inner = (want != 1) & (want != 5)
  assert np.abs(error[inner, None] - np.array(points)).min() > 1e-5
  mesh = device_mesh(num_devices)
  rows = training_data(small_ratings, mesh=mesh, slots=8).by_user
  found = error_cdf(rows, release, points, scale)
  np.testing.assert_array_equal(
    found, [(error <= point).mean() for point in points]
  )
  assert found[-1] == 1
  if scale:  # some are clipped onto their own value
    assert found[0] > 0


def test_a_prediction_that_is_no_number_is_within_no_error(small_ratings):
  release = release_of(small_ratings)
  broken = release._replace(offset=jnp.float32(np.nan))
  rows = training_data(small_ratings).by_user
  assert not error_cdf(rows, broken, [1.0, 4.0], (1.0, 5.0)).any()


def test_an_exact_prediction_is_within_any_error():
  train, _ = small()
  release = Release(
    Factors(jnp.zeros((3, 1)), jnp.zeros((3, 1))), jnp.float32(4.0)
  )
  found = error_cdf(training_data(train).by_user, release, [0, 1, 2, 3])
  np.testing.assert_array_equal(found, [0.25, 0.75, 0.75, 1.0])


@pytest.mark.parametrize(
  ('scale', 'size', 'step'),
  [((1, 5), 17, 0.25), ((0.5, 5), 19, 0.25), ((0, 100), 101, 1.0)],
)
def test_the_grid_of_errors_ends_at_the_width(scale, size, step):
  grid = error_grid(scale)
  assert (len(grid), grid[0], grid[-1]) == (size, 0.0, scale[1] - scale[0])
  np.testing.assert_allclose(np.diff(grid), step)
  uneven = error_grid((0.0, 1.1))
  np.testing.assert_allclose(uneven, [0, 0.25, 0.5, 0.75, 1.0, 1.1])


def test_curves_become_a_picture_for_the_curator(tmp_path):
  plots.error_cdf(
    tmp_path / 'cdf.png',
    [0, 1, 2],
    {'one': [0, 0.5, 1], 'other': [0.1, 0.2, 1]},
    title='two',
  )
  assert (tmp_path / 'cdf.png').read_bytes()[:4] == b'\x89PNG'
  assert (tmp_path / 'cdf.png').stat().st_mode & 0o777 == 0o600


def test_learning_curves_count_rounds_and_axes_say_so(monkeypatch):
  shown = {}
  monkeypatch.setattr(
    plots,
    'write',
    lambda path, axes, **labels: shown.update(
      labels, lines=[line.get_xdata() for line in axes.lines]
    ),
  )
  plan = SPECS['power_mf'].plan(
    config_of(
      'power_mf', 'sound', scale=(1, 5), epsilon=1, delta=1e-6, rank=2, rounds=3
    )
  )
  assert plan.steps == 8
  done = [plan.rounds(step) for step in range(9)]
  assert done == [None, None, 0, None, 1, None, 2, None, 3]
  curve = [
    {'step': step, 'train_rmse': 1.0, 'test_rmse': 1.0}
    | ({} if number is None else {'round': number})
    for step, number in enumerate(done)
  ]
  plots.learning_curve('', curve, {}, title='')
  assert [list(x) for x in shown['lines']] == [[0, 1, 2, 3]] * 2
  assert shown['x_label'] == 'rounds (over all users, then all items)'
  steps = [{**point, 'round': point['step']} for point in curve]
  plots.learning_curve('', steps, {}, title='')
  assert list(shown['lines'][0]) == list(range(9))
  assert shown['x_label'] == 'steps'
