import dataclasses
import gc
import types

import jax
import numpy as np
import oracles
import pandas as pd
import pytest
from certified import make

from dpmf_jax import files
from dpmf_jax.evaluation.ranking import ranking_metrics
from dpmf_jax.plans import SPECS
from dpmf_jax.ratings.catalog import load
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import training_data
from dpmf_jax.serving import folding, models, reasons, scoring
from dpmf_jax.serving.recommendations import (
  listing,
  one_order,
  predict,
  recommend,
  similar_items,
  top_items,
)
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import Counted, Factors, Fit, Release, Sum


@pytest.fixture
def ratings():
  return from_arrays(
    ['ann', 'ann', 'bob', 'cleo'],
    [10, 20, 10, 30],
    [5, 3, 1, 4],
    scale=(1, 5),
    titles={'10': 'Ten', '30': 'Thirty'},
  )


@pytest.fixture
def model(ratings):
  return models.Model(
    user_factors=np.array([[1.0], [-1.0], [0.0]], np.float32),
    item_factors=np.array([[1.0], [2.0], [0.5]], np.float32),
    offset=3.0,
    scale=(1.0, 5.0),
    user_ids=ratings.user_ids,
    item_ids=ratings.item_ids,
    titles=dict(ratings.titles),
    seen=models.seen_matrix(ratings.user, ratings.item, (3, 3)),
    covered=True,
  )


def test_seen_items_are_left_out_and_ids_are_the_users_own(model):
  found = recommend(model, ['bob', 'ann'], 5)
  assert [(r.user, r.item, r.rank) for r in found] == [
    ('bob', 30, 1),
    ('bob', 20, 2),
    ('ann', 30, 1),
  ]
  assert found[0].title == 'Thirty'
  assert found[1].title is None
  assert found[0].score == pytest.approx(2.5)


def test_the_collector_is_as_it_was_before(model):
  for switch in (gc.disable, gc.enable):
    switch()
    recommend(model)
    assert gc.isenabled() == (switch is gc.enable)


def test_all_items_where_seen_ones_are_wanted(model):
  found = recommend(model, ['ann'], 2, filter_seen=False)
  assert [(r.item, r.score) for r in found] == [(20, 5.0), (10, 4.0)]


def test_predictions_are_cut_off_at_the_scale_but_lists_are_not(model):
  far = model._replace(item_factors=10 * model.item_factors)
  found = recommend(far, ['ann'], 3, filter_seen=False)
  assert [r.item for r in found] == [20, 10, 30]
  assert [r.score for r in found] == [23.0, 13.0, 8.0]
  np.testing.assert_array_equal(predict(far, 'ann', [20, 10, 30]), 5)


def test_items_that_few_people_rated_are_not_on_top(model):
  known = model._replace(number=np.float32([300, 3, 30]))
  before = recommend(model, 'ann', filter_seen=False)
  assert [r.item for r in before] == [20, 10, 30]
  found = recommend(known, 'ann', filter_seen=False)
  assert [r.item for r in found] == [10, 30, 20]
  # From a quarter below the scale, 0: halves at 4 means, 444 ratings.
  share = lambda n: n / (n + 444) * 744 / 300
  np.testing.assert_allclose(
    [r.score for r in found], [4, 3.5 * share(30), 5 * share(3)], rtol=1e-5
  )
  np.testing.assert_array_equal(
    predict(known, 'ann', [10, 20]),
    predict(model, 'ann', [10, 20]),
  )


def test_numbers_of_ratings_are_in_the_model_file(tmp_path, ratings):
  release = Release(
    Factors(np.ones((3, 2)), np.ones((3, 2))), 3.0, None, np.float32([9, 1, 2])
  )
  files.save_tree(tmp_path / 'model.safetensors', release)
  files.write_json(tmp_path / 'ids.json', models.ids_json(ratings))
  found = models.load_model(tmp_path)
  assert found.number is not None
  np.testing.assert_array_equal(found.number, [9, 1, 2])
  again = models.model_from_release(release, ratings)
  np.testing.assert_array_equal(again.number, [9, 1, 2])


def test_a_single_number_of_each_item_is_one_order(model):
  items = np.c_[model.item_factors, np.ones(3), np.zeros(3)]
  assert one_order(items)
  items[1, 2] = 1e-3
  assert not one_order(items)


def test_ties_go_to_the_first_item(model):
  found = recommend(model, ['cleo'], 3, filter_seen=False)
  assert [r.item for r in found] == [10, 20, 30]


def test_blocks_agree_with_one_user_at_a_time():
  rng = np.random.default_rng(0)
  users, items = 2500, 40
  pairs = rng.random((users, items)) < 0.3
  model = models.Model(
    rng.normal(size=(users, 3)).astype(np.float32),
    rng.normal(size=(items, 3)).astype(np.float32),
    3.0,
    (1.0, 5.0),
    np.arange(users),
    np.arange(items),
    {},
    models.seen_matrix(*np.nonzero(pairs), (users, items)),
    True,
  )
  chosen, _ = top_items(model, np.arange(users), 5)
  scores = np.where(pairs, -np.inf, model.user_factors @ model.item_factors.T)
  for user in range(0, users, 97):
    want = np.argsort(-scores[user], kind='stable')[:5]
    np.testing.assert_array_equal(chosen[user], want)


def test_unknown_users_and_wrong_k_are_named(model):
  with pytest.raises(ValueError, match="user 'dan' is not in the model"):
    recommend(model, ['dan'])
  with pytest.raises(ValueError, match='k=0 must be at least 1'):
    recommend(model, ['ann'], 0)
  with pytest.raises(ValueError, match='filter_seen=False'):
    recommend(model._replace(seen=None), ['ann'])


def test_it_prints_in_a_line(model):
  assert repr(model) == 'Model(3 users, 3 items, 1 factors, scale 1..5)'


@pytest.mark.parametrize('k', [2.5, '3', True, None, ['ann']])
def test_k_is_an_integer(model, k):
  with pytest.raises(ValueError, match=r'^k=.* must be an integer$'):
    recommend(model, ['ann'], k)
  with pytest.raises(ValueError, match=r'^k=.* must be an integer$'):
    top_items(model, np.array([0]), k)


@pytest.mark.parametrize(
  'call',
  [
    lambda model: recommend(model, 'ann'),
    lambda model: predict(model, 'ann', 10),
    lambda model: similar_items(model, 10),
    lambda model: folding.fold_in(model, {'me': {10: 5}}),
  ],
)
def test_what_is_no_model_says_how_to_get_one(call, model):
  holder = types.SimpleNamespace(model=model)
  with pytest.raises(ValueError, match='use the `model` of the SimpleNames'):
    call(holder)
  with pytest.raises(ValueError, match='load_model'):
    call('runs/mine')
  with pytest.raises(ValueError, match='model_from_release'):
    call(Release(Factors(model.user_factors, model.item_factors), 3.0))


@pytest.mark.parametrize(
  'users',
  ['12', 12, np.int64(12), np.array(12), ['12'], [12], (12,), np.array(['12'])],
)
def test_an_id_is_one_id_however_it_is_given(model, users):
  model = model._replace(user_ids=np.array([1, 2, 12]))
  found = recommend(model, users, 1)
  assert [r.user for r in found] == [12]


def test_several_ids(model):
  model = model._replace(user_ids=np.array([1, 2, 12]))
  for users in ([12, 1], ['12', 1], pd.Series([12, 1]), np.array(['12', '1'])):
    assert [r.user for r in recommend(model, users, 1)] == [12, 1]
  assert recommend(model, []) == []
  for users in (1.0, [1.5], True, {1, 2}):
    with pytest.raises(ValueError, match='integer'):
      recommend(model, users)


def test_lists_as_a_table(model):
  found = recommend(model, 'bob')
  frame = pd.DataFrame(found)
  assert list(frame) == ['user', 'item', 'score', 'rank', 'title', 'why']
  assert frame['item'].tolist() == [30, 20]


def test_predictions_by_ids(model):
  assert predict(model, 'ann', 30) == pytest.approx(3.5)
  np.testing.assert_allclose(predict(model, 'ann', ['10', 20]), [4, 5])
  np.testing.assert_allclose(predict(model, ['ann', 'bob'], [10, 30]), [4, 2.5])
  users = np.array(['ann', 'bob'])[:, None]
  table = predict(model, users, model.item_ids)
  np.testing.assert_allclose(table, [[4, 5, 3.5], [2, 1, 2.5]])
  with pytest.raises(ValueError, match="item '99' is not in the model"):
    predict(model, 'ann', 99)
  with pytest.raises(ValueError, match=r'shape \(2,\) and .* \(3,\) do not'):
    predict(model, ['ann', 'bob'], [10, 20, 30])
  with pytest.raises(ValueError, match=r'fold_in\(model, ratings\)'):
    predict(model._replace(user_factors=None), 'ann', 10)


def test_new_users_in_any_form(model):
  model = model._replace(fit=Fit(np.zeros(1), np.ones(1)))
  table = from_arrays(['me', 'me'], [10, 20], [5, 4], scale=(1, 5))
  want = folding.fold_in(model, table)
  for given in (
    {'me': {'10': 5, 20: 4}},
    pd.DataFrame({'userId': 'me', 'movieId': [10, 20], 'rating': [5, 4]}),
  ):
    found = folding.fold_in(model, given)
    np.testing.assert_array_equal(found.user_factors, want.user_factors)
    np.testing.assert_array_equal(found.user_ids, want.user_ids)
    assert [r.item for r in recommend(found, 'me')] == [30]
  with pytest.raises(ValueError, match=r'user: \{item: rating'):
    folding.fold_in(model, {'50': 5})


def test_a_folder_without_a_model_is_named(tmp_path):
  with pytest.raises(ValueError, match=r'model\.safetensors is missing'):
    models.load_model(tmp_path)


def test_ids_that_do_not_fit_the_model_are_refused(tmp_path, ratings):
  files.save_tree(
    tmp_path / 'model.safetensors',
    {
      'factors': {'user': np.zeros((2, 1)), 'item': np.zeros((3, 1))},
      'offset': np.float32(0),
    },
  )
  files.write_json(tmp_path / 'ids.json', models.ids_json(ratings))
  with pytest.raises(ValueError, match=r'lists \(3, 3\) users and items'):
    models.load_model(tmp_path)


def test_ties_at_the_end_of_a_list_go_to_the_first_items(model):
  # Ten items that all score alike: the first four, not any four.
  many = model._replace(
    item_factors=np.ones((10, 1), np.float32),
    item_ids=np.arange(10),
    seen=models.seen_matrix([0], [1], (3, 10)),
  )
  chosen, _ = top_items(many, np.array([0, 2]), 4)
  np.testing.assert_array_equal(chosen, [[0, 2, 3, 4], [0, 1, 2, 3]])


def test_similar_items_are_by_cosine_without_biases(model):
  # The second column is 1 for all items, the last one is for all users.
  items = np.array([[1, 1, 2, 9], [2, 1, 4, -9], [2, 1, 0, 0], [0, 1, 0, 5]])
  users = np.array([[3, 5, 0, 1], [1, 2, 8, 1], [0, 0, 1, 1]])
  model = model._replace(
    user_factors=users.astype(np.float32),
    item_factors=items.astype(np.float32),
    item_ids=np.array(['a', 'b', 'c', 'd']),
    titles={'b': 'Bee'},
  )
  found = similar_items(model, ['a'], 10)
  assert [(r.item, r.similar, r.rank) for r in found] == [
    ('a', 'b', 1),
    ('a', 'c', 2),
  ]
  np.testing.assert_allclose([r.score for r in found], [1, 0.2**0.5], atol=1e-6)
  assert found[0].title == 'Bee'
  # Nothing is known of d.
  assert [r.item for r in similar_items(model, k=1)] == ['a', 'b', 'c']
  assert similar_items(model, 'd') == []
  # Few people rated b.
  rare = model._replace(number=np.array([900.0, 2, 900, 900], np.float32))
  assert [r.similar for r in similar_items(rare, 'a')] == ['c', 'b']
  with pytest.raises(ValueError, match="item 'z' is not in the model"):
    similar_items(model, ['z'])


def test_biases_that_were_trained_are_known_from_the_certificate(
  tmp_path, ratings
):
  # As `gaussian_mf` starts: item biases, then what meets users' biases.
  item = np.array([[5, 0.7, 1, 0], [5, 0.8, 0, 1], [-5, 0.6, 1, 0.1]])
  item = item.astype(np.float32)
  user = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
  proof = make(init='bias')[1]
  published(tmp_path, item, ratings, user=user, certificate=proof)
  found = similar_items(models.load_model(tmp_path), ['10'])
  assert [r.similar for r in found] == [30, 20]
  proof = make(init='unit')[1]
  published(tmp_path, item, ratings, user=user, certificate=proof)
  found = similar_items(models.load_model(tmp_path), ['10'])
  assert [r.similar for r in found] == [20, 30]


def test_items_with_one_number_each_are_not_compared(model):
  with pytest.raises(ValueError, match='at most one number each'):
    similar_items(model)


def published(folder, item, ratings, *, user=None, fit=None, certificate=None):
  """A folder with what is published, and with no private/."""
  folder.mkdir(exist_ok=True)
  release = Release(Factors(user, item), np.float32(3), fit)
  files.save_tree(folder / 'model.safetensors', release)
  files.write_json(folder / 'ids.json', models.ids_json(ratings))
  if certificate is not None:
    files.write_json(folder / 'certificate.json', certificate)
  return folder


def test_a_published_folder_has_all_that_new_users_need(tmp_path, ratings):
  item = np.array([[1, 1], [0, 1], [-1, 1]], np.float32)
  fit = Fit(np.float32([1, 0]), np.float32([8, 5]))
  folder = published(tmp_path, item, ratings, fit=fit)
  model = models.load_model(folder)
  assert model.user_factors is None
  assert model.covered
  with pytest.raises(ValueError, match='fold users in by their own ratings'):
    recommend(model, ['ann'], filter_seen=False)
  new = from_arrays(['zoe'], ['20'], [5], scale=(1, 5))
  folded = folding.fold_in(model, new)
  # b minimises (3 + 0 + b - 5)^2 + 5 b^2; the first column meets a 0.
  np.testing.assert_allclose(folded.user_factors, [[1, 1 / 3]], rtol=1e-6)
  found = recommend(folded, k=5)
  assert [(r.user, r.item, r.title) for r in found] == [
    ('zoe', 10, 'Ten'),
    ('zoe', 30, 'Thirty'),
  ]
  assert found[0].score == pytest.approx(3 + 1 + 1 / 3)


def test_the_scale_is_that_of_the_certificate_where_ids_have_none(
  tmp_path, ratings
):
  item = np.array([[1, 1], [0, 1], [-1, 1]], np.float32)
  published(tmp_path, item, ratings, certificate=make()[1])
  ids = models.ids_json(ratings)
  del ids['scale']
  del ids['users']  # a system may keep them secret
  files.write_json(tmp_path / 'ids.json', ids)
  assert models.load_model(tmp_path).scale == (1, 5)
  (tmp_path / 'certificate.json').unlink()
  with pytest.raises(ValueError, match='has the scale'):
    models.load_model(tmp_path)


def test_an_unfinished_run_is_not_served(tmp_path, ratings):
  published(tmp_path, np.ones((3, 2), np.float32), ratings)
  (tmp_path / 'private').mkdir()
  with pytest.raises(ValueError, match=r'certificate\.json is missing'):
    models.load_model(tmp_path)


def test_items_that_are_not_released_take_no_new_users(tmp_path, ratings):
  files.save_tree(
    tmp_path / 'model.safetensors',
    {'factors': {'user': np.ones((3, 2))}, 'offset': np.float32(0)},
  )
  files.write_json(tmp_path / 'ids.json', models.ids_json(ratings))
  files.write_json(tmp_path / 'certificate.json', make()[1])
  with pytest.raises(ValueError, match='has no item factors'):
    models.load_model(tmp_path)
  (tmp_path / 'private').mkdir()
  files.save_tree(
    tmp_path / 'private' / 'unreleased.safetensors',
    {'factors': {'item': np.ones((3, 2))}},
  )
  model = models.load_model(tmp_path)
  assert not model.covered
  with pytest.raises(ValueError, match='releases no item factors'):
    folding.fold_in(model, ratings)


def test_folding_in_is_the_regression_of_each_user(small_ratings):
  rng = np.random.default_rng(0)
  item = rng.normal(size=(small_ratings.num_items, 5)).astype(np.float32)
  fit = Fit(rng.normal(size=5), np.array([1.0, 8, 0.5, 3, 20]))
  model = models.Model(
    None, item, 3.0, (1.0, 5.0), np.array([]), small_ratings.item_ids, {}, None,
    True, fit=fit,
  )  # fmt: skip
  folded = folding.fold_in(model, small_ratings)
  want = oracles.ridge_users(
    small_ratings, item, offset=3.0, prior=fit.prior, ridge=fit.ridge
  )
  np.testing.assert_allclose(folded.user_factors, want, atol=2e-4)
  # Nobody else's ratings matter.
  one = small_ratings.take(small_ratings.user == 7)
  alone = folding.fold_in(model, one).user_factors
  assert alone is not None
  np.testing.assert_allclose(alone[7], want[7], atol=2e-4)
  np.testing.assert_allclose(alone[8], fit.prior, rtol=1e-6)
  held = fit._replace(ridge=np.array([1, np.inf, 1, 1, 1]))
  moved = folding.fold_in(model, small_ratings, fit=held).user_factors
  assert moved is not None
  np.testing.assert_allclose(moved[:, 1], fit.prior[1], rtol=1e-6)


def test_users_are_folded_in_over_more_than_one_block():
  rng = np.random.default_rng(3)
  users = np.repeat(np.arange(5000), 2)
  item, value = np.tile([0, 1], 5000), rng.integers(1, 6, size=10000)
  factors = np.array([[1.0], [-0.5]], np.float32)
  found = folding.user_factors(
    users, item, value.astype(np.float32), 5000, item_factors=factors,
    offset=3.0, fit=Fit(np.zeros(1), np.full(1, 0.75)),
  )  # fmt: skip
  want = (value - 3.0).reshape(-1, 2) @ factors / 2
  np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param('objective_pmf', marks=pytest.mark.slow),
    pytest.param('personalized_pmf', marks=pytest.mark.slow),
    pytest.param('dpals', marks=pytest.mark.slow),
    pytest.param('power_mf', marks=pytest.mark.slow),
    pytest.param('local_mf', marks=pytest.mark.slow),
    'untrusted_pmf',
  ],
)
def test_folding_in_does_what_the_system_does(small_ratings, name):
  entry = SPECS[name]
  ridges = {'vector_ridge': 3.0, 'bias_ridge': 7.0}
  if name == 'dpals':
    ridges = {'final_vector_ridge': 3.0, 'bias_ridge': 7.0}
  more = {'rank': 2} if name in ('dpals', 'power_mf', 'local_mf') else {}
  config = entry.config(
    **{**entry.variants['sound'], **ridges, **more},
    scale=(1, 5), epsilon=2.0, delta=1e-6,
  )  # fmt: skip
  system = build(name, config)
  epsilon = np.linspace(0.5, 2.0, len(small_ratings))
  ratings = dataclasses.replace(small_ratings, epsilon=epsilon)
  data = training_data(ratings)
  state = fit(system, jax.random.key(0), data)
  whole = jax.jit(system.model)(state, data)
  release = system.release(state, data)
  assert release.factors.user is None
  model = models.model_from_release(release, ratings)
  folded = folding.fold_in(model, ratings)
  # A mean of features rounds.
  np.testing.assert_allclose(folded.user_factors, whole.factors.user, atol=2e-6)


@pytest.mark.slow
def test_new_users_have_the_mean_of_features(small_ratings):
  """Also of features that were learned, which no setting tells."""
  entry = SPECS['objective_pmf']
  config = entry.config(
    variant='sound', relation='add_remove', scale=(1, 5), epsilon=2.0,
    delta=1e-6, rank=3, feature_share=0.5, feature_steps=2,
  )  # fmt: skip
  system = build('objective_pmf', config)
  data = training_data(small_ratings)
  state = fit(system, jax.random.key(0), data)
  release = system.release(state, data)
  features = np.asarray(state.items.factors.user)
  assert release.fit is not None
  np.testing.assert_allclose(
    release.fit.prior, features.mean(axis=0), rtol=1e-5
  )
  model = models.model_from_release(release, small_ratings)
  assert np.isfinite(folding.fold_in(model, small_ratings).user_factors).all()


def test_released_users_tell_how_new_ones_are_fitted(model):
  users = np.array([[1, 0, 1], [3, 0.5, 1]], np.float32)
  found = models.fit_of_released_users(users)
  np.testing.assert_allclose(found.prior, [2, 0.25, 1])
  np.testing.assert_allclose(found.ridge, [1, 16, np.inf])
  # What is not released tells nothing, also where it is at hand.
  with pytest.raises(ValueError, match='how its users are fitted'):
    folding.fold_in(model, from_arrays(['z'], [10], [3], scale=(1, 5)))


def test_what_the_model_does_not_know_is_counted_or_refused(model):
  model = model._replace(fit=Fit(np.zeros(1), np.ones(1)))
  new = from_arrays(
    ['x', 'x', 'y'], [10, 99, 98], [5, 1, 1], scale=(1, 5), name='new.csv'
  )
  words = (
    r'new\.csv: 2 of 3 ratings are left out, of 2 item.* 1 user.s. have no'
  )
  with pytest.warns(UserWarning, match=words):
    folded = folding.fold_in(model, new)
  np.testing.assert_allclose(folded.user_factors, [[1.0], [0.0]], atol=1e-6)
  with pytest.raises(ValueError, match='knows none of the items, such as 98'):
    folding.fold_in(model, new.take(np.array([2])))
  with pytest.raises(ValueError, match=r'rating 9 is outside the scale 1\.\.5'):
    folding.fold_in(model, from_arrays(['x'], [10], [9], scale=(0, 10)))
  with pytest.raises(ValueError, match='must be positive'):
    folding.fold_in(
      model, new.take(np.array([0])), fit=Fit(np.zeros(1), np.zeros(1))
    )


def test_products_are_exact_whatever_rows_are_asked_for():
  rng = np.random.default_rng(1)
  # Columns and rows of many sizes.
  item = rng.normal(size=(700, 9)) * 10.0 ** rng.integers(-3, 4, size=9)
  rows = rng.normal(size=(300, 9)) * 10.0 ** rng.integers(-3, 4, size=(300, 1))
  item, rows = item.astype(np.float32), rows.astype(np.float32)
  whole, items, exponent = scoring.whole_numbers(rows, item)
  for numbers in (whole, items):
    np.testing.assert_array_equal(numbers, np.rint(numbers))
  assert (np.abs(whole) @ np.abs(items).T).max() < 2**53
  want = rows.astype(np.float64) @ item.T.astype(np.float64)
  most = np.abs(rows.astype(np.float64)) @ np.abs(item).max(axis=0)
  found = np.ldexp(whole @ items.T, exponent[:, None])
  assert (np.abs(found - want) <= 2.0**-21 * most[:, None]).all()
  order = np.argsort(-found, axis=1, kind='stable')
  longer, _ = scoring.top_products(rows, item, 100)
  np.testing.assert_array_equal(longer, order[:, :100])
  every = scoring.top_products(rows, item, 12)
  np.testing.assert_array_equal(every[0], order[:, :12])
  for some in ([299], [7, 3, 250], range(100, 300)):
    few = scoring.top_products(rows[list(some)], item, 12)
    for one, all_of_them in zip(few, every, strict=True):
      np.testing.assert_array_equal(one, all_of_them[list(some)])


def test_lists_that_are_longer_than_what_is_left():
  item = np.arange(300, dtype=np.float32)[:, None]
  rows = np.float32([[1], [-1]])
  seen = models.seen_matrix(
    np.zeros(298, int), np.arange(298), (2, 300), np.zeros(298, np.float32)
  )  # ratings of 0 are seen, too
  for k in (3, 300, 400):
    chosen, scores = scoring.top_products(rows, item, k, seen)
    assert chosen[0, :3].tolist() == [299, 298, -1]
    assert (scores[0, 2:] == -np.inf).all()
    np.testing.assert_array_equal(
      chosen[1], np.r_[np.arange(300), np.full(100, -1)][:k]
    )


def explained(small_ratings, fit, number=None):
  """A model that is folded in, and its lists with all reasons."""
  rng = np.random.default_rng(0)
  item = rng.normal(size=(small_ratings.num_items, 4)).astype(np.float32)
  model = models.Model(
    None, item, 3.0, (1.0, 5.0), np.array([]), small_ratings.item_ids,
    {str(small_ratings.item_ids[0]): 'First'}, None, True, fit=fit,
    number=number,
  )  # fmt: skip
  model = folding.fold_in(model, small_ratings)
  return model, recommend(model, k=3, why=small_ratings.num_items)


REGRESSED = Fit(np.array([0.2, 1, 0, 0.5]), np.array([1.0, np.inf, 0.5, 3]))


@pytest.mark.parametrize('kind', ['regression', 'shrunk', 'sum'])
def test_reasons_add_up_to_the_score(small_ratings, kind):
  number, fit = None, REGRESSED
  if kind == 'shrunk':
    number = np.linspace(1, 90, small_ratings.num_items)
  if kind == 'sum':
    weight = np.linspace(1, 0, small_ratings.num_items, dtype=np.float32)
    fit = Sum(np.float32([0.1, 0, 0, 0]), weight, Counted(1.0, 0.4, 0.15))
  model, found = explained(small_ratings, fit, number)
  titles = {reason.title for row in found for reason in row.why}
  assert titles == {None, 'First'}
  index = {u: i for i, u in enumerate(model.user_ids.tolist())}
  label = reasons.labels(small_ratings.value, fit)
  for row in found[::7]:
    user = index[row.user]
    mine = small_ratings.user == user
    place = models.indices('item', model.item_ids, row.item)
    parts = {reason.item: reason.part for reason in row.why}
    assert all(part > 0 for part in parts.values())
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    # Taking an item away takes its part of a sum away.
    own = small_ratings.item_ids[small_ratings.item[mine]].tolist()
    assert set(parts) <= set(own)
    every = reasons.own_parts(
      place[None], small_ratings.item[mine], label[mine],
      item=model.item_factors, offset=3.0, fit=fit,
      row=model.user_factors[user],
    )[0]  # fmt: skip
    score = 3 + every.sum() + model.item_factors[place] @ np.asarray(fit.prior)
    if number is not None:
      how = listing(number, model.scale)
      every = every * how.share[place]
      score = how.floor + how.share[place] * (score - how.floor)
    assert row.score == pytest.approx(score, abs=1e-3)
    np.testing.assert_allclose(
      sorted(parts.values()), np.sort(every[every > 0]), rtol=1e-6
    )


def test_reasons_are_known_of_users_who_fitted_themselves(small_ratings):
  model, _ = explained(small_ratings, REGRESSED)
  moved = model._replace(user_factors=model.user_factors + 1)
  with pytest.raises(ValueError, match='why is not known of users of this'):
    recommend(moved, k=1, why=2)
  with pytest.raises(ValueError, match='why needs the ratings of the users'):
    recommend(model._replace(seen=None), k=1, filter_seen=False, why=2)
  for why in (-1, True, 1.5):
    with pytest.raises(ValueError, match=r'^why=.* must be an integer'):
      recommend(model, k=1, why=why)


def test_a_user_of_whom_nothing_is_known_gets_what_is_popular(model):
  items = np.float32([[1, 1], [3, -2], [2, 0]])
  fit = Sum(np.float32([0.1, 0]), np.ones(3), Counted(1.0, 0.4, 0.15))
  model = model._replace(item_factors=items, fit=fit, offset=0.0)
  cold = folding.fold_in(model, {'me': {}, 'you': {}})
  found = recommend(cold, 'you', why=3)
  assert [r.item for r in found] == [20, 30, 10]
  assert [r.why for r in found] == [()] * 3
  both = folding.fold_in(model, {'me': {}, 'you': {10: 5}})
  assert recommend(both, 'me') == recommend(cold, 'me')
  assert [r.item for r in recommend(both, 'you')] == [30, 20]


def test_a_ranking_is_blended_in_by_ids(model):
  count = Sum(np.zeros(2, np.float32), np.ones(3), Counted(1.0, 0.4, 0.15))
  ranking = model._replace(
    user_factors=np.array([[0, 1], [2, 0], [1, 3]], np.float32),
    item_factors=np.array([[3, 0], [2, 1], [1, -1]], np.float32),
    user_ids=np.array(['bob', 'ann', 'cleo']),
    fit=count,
    offset=0.0,
  )
  found = recommend(model, 'ann', filter_seen=False, blend=ranking)
  scores = np.array([6.0, 4, 2])  # of ann, who is second there
  want = scores / scores.std() + 0.5 * np.array([1.0, 2, 0.5])
  order = np.argsort(-want)
  assert [r.item for r in found] == model.item_ids[order].tolist()
  np.testing.assert_allclose([r.score for r in found], want[order], rtol=1e-5)
  for other, words in (
    (model, 'blend must be a model of a ranking'),
    (ranking._replace(item_ids=np.array([1, 2, 3])), 'blend has other items'),
    (ranking._replace(user_ids=np.array(['a', 'b', 'c'])), "user 'ann' is not"),
  ):
    with pytest.raises(ValueError, match=words):
      recommend(model, 'ann', blend=other)
  with pytest.raises(ValueError, match='without blend'):
    recommend(model, 'ann', why=1, blend=ranking)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'settings', 'delta'),
  [
    ('power_mf', {'rank': 3, 'rounds': 6, 'epsilon': 2.0}, 1e-6),
    ('dpals', {'rank': 0, 'epsilon': 5.0}, 1e-5),
  ],
)
def test_lists_of_ratings_are_about_as_good_as_popularity(
  data_dir, name, settings, delta
):
  """Of MovieLens-100K, where popularity has an NDCG@10 of 0.176."""
  ratings = load('ml-100k', data_dir=data_dir, quiet=True)
  train, test = random_split(ratings, 0.2, seed=3)
  config = SPECS[name].config(
    relation='add_remove', scale=(1, 5), delta=delta, **settings
  )
  system, data = build(name, config), training_data(train)
  release = system.model(fit(system, jax.random.key(3), data), data)
  ndcg = lambda one: ranking_metrics(one, train, test, threshold=4)['ndcg@10']
  assert ndcg(release._replace(number=None)) < 0.11
  assert ndcg(release) > 0.16
  # Lists are those that were measured.
  model = models.model_from_release(release, train)
  assert ndcg(model) == ndcg(release)
  found = recommend(model, k=10, why=2)
  top = {row.item for row in found if row.rank == 1}
  index = models.indices('item', model.item_ids, sorted(top))
  rated = np.bincount(train.item, minlength=train.num_items)
  assert rated[index].min() >= 100
  assert not one_order(model.item_factors)


@pytest.mark.slow
def test_private_factors_know_which_films_are_alike(data_dir):
  ratings = load('ml-100k', data_dir=data_dir, quiet=True)
  config = SPECS['ranking_mf'].config(
    unit='user', relation='add_remove', scale=(1, 5), epsilon=5.0, delta=1e-5
  )
  resolved = SPECS['ranking_mf'].resolved
  assert resolved is not None
  config = resolved(config, ratings.num_users, ratings.num_items)
  system, data = build('ranking_mf', config), training_data(ratings)
  state = fit(system, jax.random.key(0), data)
  model = models.model_from_release(system.release(state, data), ratings)
  like = [row.title for row in similar_items(model, '50', 5)]
  assert any('Return of the Jedi' in title for title in like)
  new = folding.fold_in(model, {'me': {'50': 5, '181': 5}, 'you': {}})
  mine, yours = (recommend(new, u, why=2) for u in ('me', 'you'))
  assert {reason.item for row in mine for reason in row.why} == {50, 181}
  popular = np.argsort(-model.item_factors[:, 0], kind='stable')[:10]
  assert [r.item for r in yours] == model.item_ids[popular].tolist()
