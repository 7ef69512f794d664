import numpy as np
import pytest

from dpmf_jax import files, serving
from dpmf_jax.data.ratings import from_arrays


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
  return serving.Model(
    user_factors=np.array([[1.0], [-1.0], [0.0]], np.float32),
    item_factors=np.array([[1.0], [2.0], [0.5]], np.float32),
    offset=3.0,
    scale=(1.0, 5.0),
    user_ids=ratings.user_ids,
    item_ids=ratings.item_ids,
    titles=dict(ratings.titles),
    seen=serving.seen_matrix(ratings.user, ratings.item, (3, 3)),
    covered=True,
  )


def test_seen_items_are_left_out_and_ids_are_the_users_own(model):
  found = serving.recommend(model, ['bob', 'ann'], 5)
  assert [(r.user, r.item, r.rank) for r in found] == [
    ('bob', 30, 1),
    ('bob', 20, 2),
    ('ann', 30, 1),
  ]
  assert found[0].title == 'Thirty'
  assert found[1].title is None
  assert found[0].score == pytest.approx(2.5)


def test_all_items_where_seen_ones_are_wanted(model):
  found = serving.recommend(model, ['ann'], 2, filter_seen=False)
  assert [(r.item, r.score) for r in found] == [(20, 5.0), (10, 4.0)]


def test_scores_are_clipped_but_order_is_not(model):
  far = model._replace(item_factors=10 * model.item_factors)
  found = serving.recommend(far, ['ann'], 3, filter_seen=False)
  assert [r.item for r in found] == [20, 10, 30]
  assert [r.score for r in found] == [5.0, 5.0, 5.0]


def test_ties_go_to_the_first_item(model):
  found = serving.recommend(model, ['cleo'], 3, filter_seen=False)
  assert [r.item for r in found] == [10, 20, 30]


def test_blocks_agree_with_one_user_at_a_time():
  rng = np.random.default_rng(0)
  users, items = 2500, 40
  pairs = rng.random((users, items)) < 0.3
  model = serving.Model(
    rng.normal(size=(users, 3)).astype(np.float32),
    rng.normal(size=(items, 3)).astype(np.float32),
    3.0,
    (1.0, 5.0),
    np.arange(users),
    np.arange(items),
    {},
    serving.seen_matrix(*np.nonzero(pairs), (users, items)),
    True,
  )
  chosen, _ = serving.top_items(model, np.arange(users), 5)
  scores = np.where(pairs, -np.inf, model.user_factors @ model.item_factors.T)
  for user in range(0, users, 97):
    want = np.argsort(-scores[user], kind='stable')[:5]
    np.testing.assert_array_equal(chosen[user], want)


def test_unknown_users_and_wrong_k_are_named(model):
  with pytest.raises(ValueError, match="user 'dan' is not in the model"):
    serving.recommend(model, ['dan'])
  with pytest.raises(ValueError, match='k=0 must be at least 1'):
    serving.recommend(model, ['ann'], 0)
  with pytest.raises(ValueError, match='nofilter_seen'):
    serving.recommend(model._replace(seen=None), ['ann'])


def test_a_folder_without_a_model_is_named(tmp_path):
  with pytest.raises(ValueError, match=r'model\.safetensors is missing'):
    serving.load_model(tmp_path)


def test_ids_that_do_not_fit_the_model_are_refused(tmp_path, ratings):
  files.save_tree(
    tmp_path / 'model.safetensors',
    {
      'factors': {'user': np.zeros((2, 1)), 'item': np.zeros((3, 1))},
      'offset': np.float32(0),
    },
  )
  files.write_json(tmp_path / 'ids.json', serving.ids_json(ratings))
  files.write_json(tmp_path / 'certificate.json', {})
  with pytest.raises(ValueError, match=r'lists \(3, 3\) users and items'):
    serving.load_model(tmp_path)
