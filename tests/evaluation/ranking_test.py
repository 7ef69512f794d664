import json

import numpy as np
import oracles
import pytest

from dpmf_jax.evaluation import ranking
from dpmf_jax.ratings import formats, writing
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import from_csr
from dpmf_jax.types import Factors, Release

KS = (1, 5, 10)


def table(rows):
  """Ratings from rows of values with 0 where there are none."""
  return from_csr(np.array(rows, np.float32), scale=(1, 5))


def release(user, item):
  factors = Factors(np.array(user, np.float32), np.array(item, np.float32))
  return Release(factors, np.float32(3))


def scored(scores):
  """A model with just these scores [U, I]."""
  return release(scores, np.eye(np.shape(scores)[1]))


def random_case(rng, users, items, *, whole):
  """A model, train and test; small whole numbers make many ties."""
  cell = rng.random((users, items))
  value = rng.integers(1, 6, size=(users, items))
  train = table(np.where(cell < 0.25, value, 0))
  test = table(np.where((cell > 0.25) & (cell < 0.45), value, 0))
  sides = [
    rng.integers(-1, 2, size=(size, 3)) if whole else rng.normal(size=(size, 3))
    for size in (users, items)
  ]
  return release(*sides), train, test


def check(found, want):
  assert found['users'] == want['users']
  for name, value in want.items():
    assert found[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize('whole', [True, False])
@pytest.mark.parametrize('threshold', [None, 4])
def test_agrees_with_the_definitions(whole, threshold):
  rng = np.random.default_rng(1 + whole)
  model, train, test = random_case(rng, 40, 25, whole=whole)
  found = ranking.ranking_metrics(model, train, test, KS, threshold=threshold)
  scores = model.factors.user @ model.factors.item.T
  check(found, oracles.ranking(scores, train, test, KS, threshold=threshold))
  place = ranking.popularity(train)
  for number, name in enumerate(ranking.SLICES):
    items = np.flatnonzero(place == number).tolist()
    want = oracles.ranking(
      scores, train, test, KS, threshold=threshold, items=items
    )
    assert found['slices'][name]['items'] == len(items) > 0
    check(found['slices'][name], want)
  parts = [found['slices'][name]['relevant'] for name in ranking.SLICES]
  assert sum(parts) == found['relevant']


def test_agrees_over_more_than_one_block():
  rng = np.random.default_rng(5)
  model, train, test = random_case(rng, 1100, 12, whole=True)
  found = ranking.ranking_metrics(model, train, test, 3)
  scores = model.factors.user @ model.factors.item.T
  check(found, oracles.ranking(scores, train, test, (3,)))


def test_counts_do_not_overflow_in_a_large_catalogue():
  # 140,000 items; the relevant one is below 70,000 and ties with 69,998.
  items = np.repeat([[2.0], [1.0]], 70_000, axis=0)
  train = np.zeros((1, 140_000))
  test = train.copy()
  train[0, -1] = test[0, -2] = 3
  model = release([[1.0]], items)
  found = ranking.ranking_metrics(model, table(train), table(test))
  assert found['mrr'] == pytest.approx(1 / (70_000 + 69_998 + 1))
  assert found['auc'] == pytest.approx(69_998 / 2 / (140_000 - 2))


def test_a_case_done_by_hand():
  # Item 0 is seen. Of 1..5, scored 9, 8, 7, 6, 5, items 2 and 5 are relevant:
  # ranks 2 and 5 of 5.
  model = scored([[100, 9, 8, 7, 6, 5], [0, 0, 0, 0, 0, 0]])
  train = table([[5, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0]])
  test = table([[0, 0, 4, 0, 0, 2], [0, 0, 0, 0, 0, 0]])
  found = ranking.ranking_metrics(model, train, test, (2, 5))
  assert found['users'] == found['users_left_out'] == 1
  assert found['relevant'] == 2
  assert found['recall@2'] == pytest.approx(1 / 2)
  assert found['recall@5'] == pytest.approx(1)
  best = 1 + 1 / np.log2(3)
  assert found['ndcg@2'] == pytest.approx(1 / np.log2(3) / best)
  gain = 1 / np.log2(3) + 1 / np.log2(6)
  assert found['ndcg@5'] == pytest.approx(gain / best)
  assert found['map'] == pytest.approx((1 / 2 + 2 / 5) / 2)
  assert found['mrr'] == pytest.approx(1 / 2)
  # Item 2 is above two of the three others, item 5 above none.
  assert found['auc'] == pytest.approx((2 / 3 + 0) / 2)
  liked = ranking.ranking_metrics(model, train, test, 2, threshold=4)
  assert (liked['relevant'], liked['map']) == (1, pytest.approx(1 / 2))
  assert liked['auc'] == pytest.approx(3 / 4)  # item 5 is like unrated ones


def test_the_best_and_an_indifferent_model():
  train = table([[5, 0, 0, 0], [0, 0, 0, 3]])
  test = table([[0, 4, 0, 5], [1, 0, 0, 0]])
  perfect = ranking.ranking_metrics(
    scored([[9, 2, 0, 2], [3, 0, 0, 9]]), train, test, 2
  )
  for name in ('recall@2', 'ndcg@2', 'map', 'mrr', 'auc'):
    assert perfect[name] == pytest.approx(1)
  alike = ranking.ranking_metrics(scored(np.zeros((2, 4))), train, test, 1)
  assert alike['recall@1'] == alike['ndcg@1'] == 0
  assert alike['auc'] == pytest.approx(0.5)
  assert alike['mrr'] == pytest.approx(
    (1 / 2 + 1 / 3) / 2
  )  # the worst there is


@pytest.fixture
def case():
  return random_case(np.random.default_rng(8), 30, 20, whole=True)


def permuted(ratings, users, items):
  dense = np.zeros((ratings.num_users, ratings.num_items))
  dense[ratings.user, ratings.item] = ratings.value
  return table(dense[users][:, items])


def test_order_of_users_and_items_does_not_matter(case):
  model, train, test = case
  rng = np.random.default_rng(0)
  users, items = rng.permutation(30), rng.permutation(20)
  user, item = model.factors
  found = ranking.ranking_metrics(
    release(user[users], item[items]),
    permuted(train, users, items),
    permuted(test, users, items),
  )
  want = ranking.ranking_metrics(model, train, test)
  for lists in (found, want):  # where a tie goes to the first item
    del lists['items_shown@10'], lists['lists_differ@10']
  for part in ranking.SLICES:
    assert found['slices'][part] == pytest.approx(want['slices'][part])
  del found['slices'], want['slices']
  assert found == pytest.approx(want)


def test_only_the_order_of_scores_matters(case):
  model, train, test = case
  user, item = model.factors
  want = ranking.ranking_metrics(model, train, test)
  factor = 2.0 ** np.random.default_rng(0).integers(-3, 4, size=(30, 1))
  assert (
    ranking.ranking_metrics(release(user * factor, item), train, test) == want
  )
  raised = (user @ item.T).copy()
  raised[train.user, train.item] += 1000  # they are not in the list
  assert ranking.ranking_metrics(scored(raised), train, test) == want
  raised[test.user, test.item] += 2000
  assert ranking.ranking_metrics(scored(raised), train, test)['map'] == 1


def test_lists_are_counted_as_pairs_of_them_would_be(case):
  model, train, test = case
  found = ranking.ranking_metrics(model, train, test, (2, 5))
  scores = model.factors.user @ model.factors.item.T
  scores[train.user, train.item] = -np.inf
  order = np.argsort(-scores, axis=1, kind='stable')
  for k in (2, 5):
    lists = [set(row[:k].tolist()) for row in order]
    assert found[f'items_shown@{k}'] == len(set.union(*lists))
    differ = [len(a - b) / k for a in lists for b in lists if a is not b]
    assert found[f'lists_differ@{k}'] == pytest.approx(np.mean(differ))


def test_a_pair_that_was_trained_on_is_left_out():
  train = table([[5, 0, 0], [5, 4, 3]])
  test = table([[5, 4, 0], [5, 0, 0]])
  found = ranking.ranking_metrics(scored([[9, 1, 0], [1, 1, 1]]), train, test)
  assert (found['users'], found['relevant']) == (1, 1)
  assert found['users_left_out'] == 1
  assert found['mrr'] == 1


def test_without_negatives_auc_is_undefined_and_the_rest_is_not():
  train, test = table([[5, 0, 0]]), table([[0, 4, 3]])
  found = ranking.ranking_metrics(scored([[1, 2, 3]]), train, test)
  assert (found['map'], found['auc']) == (1, None)
  none = ranking.ranking_metrics(scored([[1, 2, 3]]), train, test, threshold=5)
  assert (none['users'], none['users_left_out'], none['map']) == (0, 1, None)
  json.dumps(none, allow_nan=False)


def test_popularity_is_by_thirds_of_all_ratings():
  # 6, 3, 2, 1, 0 ratings of 12 in all: above the items are 0, 6, 9, 11, 12.
  rows = np.zeros((6, 5))
  for item, count in enumerate((6, 3, 2, 1, 0)):
    rows[:count, item] = 3
  np.testing.assert_array_equal(
    ranking.popularity(table(rows)), [0, 1, 2, 2, 2]
  )
  equal = table(np.full((2, 4), 3.0))
  np.testing.assert_array_equal(ranking.popularity(equal), [0, 0, 0, 0])


def test_another_call_of_the_same_shape_does_not_compile(case):
  model, train, test = case
  ranking.ranking_metrics(model, train, test, 5)
  before = ranking._counts._cache_size()
  user, item = model.factors
  ranking.ranking_metrics(release(2 * user, -item), train, test, (1, 7))
  assert ranking._counts._cache_size() == before


def test_wrong_input_is_named(case):
  model, train, test = case
  user, item = model.factors
  with pytest.raises(ValueError, match='k=0 must be'):
    ranking.ranking_metrics(model, train, test, 0)
  with pytest.raises(ValueError, match='has no user factors'):
    ranking.ranking_metrics(
      Release(Factors(None, item), np.float32(0)), train, test
    )
  with pytest.raises(ValueError, match='not all finite'):
    ranking.ranking_metrics(release(user * np.nan, item), train, test)
  with pytest.raises(ValueError, match='same users'):
    ranking.ranking_metrics(release(user[1:], item), train, test)


@pytest.mark.slow
def test_train_writes_them_where_asked(launch, tmp_path):
  made = synthetic(num_users=60, num_items=40, num_ratings=900, seed=3)
  writing.write(made, tmp_path / 'mine.csv')
  flags = [
    f'--ratings={tmp_path / "mine.csv"}',
    '--epsilon=5',
    '--system=gaussian_mf',
    '--steps=3',
    '--devices=1',
  ]
  done = launch(
    'train', *flags, f'--output={tmp_path / "run"}', '--ranking_k=5,10'
  )
  assert done.returncode == 0, done.stderr
  assert 'NDCG@5 ' in done.stdout
  assert done.stdout.count('noisy popularity') == 2  # and what it is
  found = json.loads((tmp_path / 'run' / 'metrics.json').read_text())['ranking']
  read = formats.read(tmp_path / 'mine.csv', scale=(1, 5))
  _, test = random_split(read, 0.2, seed=0)
  assert found['relevant'] == len(test)
  assert 0 < found['ndcg@10'] < 1
  assert found['slices']['tail']['users'] > 0
  wrong = launch(
    'train', *flags, f'--output={tmp_path / "no"}', '--ranking_k=ten'
  )
  assert wrong.returncode == 2
  assert '--ranking_k=ten must be numbers' in wrong.stderr
  assert not (tmp_path / 'no').exists()
