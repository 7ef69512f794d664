"""Tests of the ratings table and its constructors."""

import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax.evaluation.metrics import baselines
from dpmf_jax.ratings import formats
from dpmf_jax.ratings import table as r
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import training_data


def make(**changes):
  fields = {
    'user': np.array([0, 1, 1]),
    'item': np.array([0, 0, 1]),
    'value': np.array([1.0, 3.5, 5.0]),
    'user_ids': np.array([7, 9]),
    'item_ids': np.array(['a', 'b']),
    'scale': (1, 5),
  }
  return r.Ratings(**(fields | changes))


def test_fields_have_the_promised_types():
  table = make(timestamp=np.array([3, 1, 2], np.int32))
  assert (table.user.dtype, table.item.dtype) == (np.int32, np.int32)
  assert table.value.dtype == np.float32
  assert table.timestamp is not None
  assert table.timestamp.dtype == np.int64
  assert (table.num_users, table.num_items, len(table)) == (2, 2, 3)
  with pytest.raises(ValueError, match='read-only'):
    table.value[0] = 2


def test_a_callers_array_stays_writable():
  value = np.array([1, 2, 3], np.float32)
  make(value=value)
  value[0] = 4
  assert value[0] == 4


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'user': np.array([0, 1, 2])}, r'user\[2\] = 2 is not in 0..1'),
    ({'item': np.array([0, -1, 1])}, r'item\[1\] = -1 is not in 0..1'),
    ({'user': np.array([0.0, 1.0, 1.0])}, 'type float64, not integer'),
    ({'value': np.array([1.0, np.nan, 2.0])}, 'row 1: rating nan is outside'),
    ({'value': np.array([1.0, 2.0, 6.0])}, 'row 2: rating 6 .* 1..5; .*scale'),
    ({'value': np.array([1.0, 2.0])}, r'shape \(3,\), not \[2\]'),
    ({'item': np.array([0, 1, 1])}, 'row 2: user 9 rates item b again'),
    ({'scale': (5, 1)}, 'r_min < r_max'),
    ({'scale': (1, np.inf)}, 'r_min < r_max'),
    ({'scale': 5}, 'r_min < r_max'),
    ({'user_ids': np.array([7, 7])}, 'user_ids holds an id more than once'),
    ({'user_ids': np.array([7.0, 8.0])}, 'not int64 or str'),
    ({'timestamp': np.array([1.0, np.inf, 2.0])}, 'row 1: timestamp inf'),
    ({'epsilon': [1.0, 2.0]}, r'epsilon has shape \(2,\), not \[3\]'),
    ({'epsilon': [1.0, 0.0, 2.0]}, 'row 1: epsilon 0.0 is not positive'),
    ({'epsilon': [1.0, 2.0, np.inf]}, 'row 2: epsilon inf is not positive'),
    ({'epsilon': [np.nan, 2.0, 1.0]}, 'row 0: epsilon nan is not positive'),
    ({'epsilon': ['low', 'low', 'high']}, 'epsilons are not all numbers'),
  ],
)
def test_wrong_fields_are_named(changes, message):
  with pytest.raises(r.DataError, match=message):
    make(**changes)


def test_epsilons_stay_with_their_ratings():
  given = np.array([1, 2, 3])
  table = make(epsilon=given)
  assert table.epsilon is not None
  assert table.epsilon.dtype == np.float64
  with pytest.raises(ValueError, match='read-only'):
    table.epsilon[0] = 2
  given[0] = 9
  assert table.epsilon[0] == 1
  part = table.take(np.array([2, 0]))
  np.testing.assert_array_equal(part.epsilon, [3, 1])
  assert part.columns()['epsilon'].tolist() == [3.0, 1.0]
  assert 'epsilon' not in make().columns()
  assert make().take(np.array([0])).epsilon is None


def test_no_ratings_is_an_error():
  none = np.array([], int)
  with pytest.raises(r.DataError, match='no ratings'):
    make(user=none, item=none, value=np.array([]))
  with pytest.raises(r.DataError, match='no ratings'):
    r.from_arrays([], [], [], scale=(1, 5))


def test_take_keeps_the_id_lists_and_the_indices():
  table = make(timestamp=np.array([3, 1, 2]))
  part = table.take(np.array([False, True, True]))
  np.testing.assert_array_equal(part.user, [1, 1])
  np.testing.assert_array_equal(part.timestamp, [1, 2])
  np.testing.assert_array_equal(part.user_ids, table.user_ids)
  np.testing.assert_array_equal(part.item_ids, table.item_ids)
  assert part.scale == table.scale


@pytest.mark.parametrize(
  ('ids', 'kept'),
  [
    ([10, 9, 10], [9, 10]),
    (['10', '9', '-3'], [-3, 9, 10]),
    (['007', '7', '8'], ['007', '7', '8']),
    (['-0', '1', '2'], ['-0', '1', '2']),
    (['é', 'a', 'z'], ['a', 'z', 'é']),
    ([2**63 - 1, -(2**63), 0], [-(2**63), 0, 2**63 - 1]),
    (['9223372036854775808', '1', '2'], ['1', '2', '9223372036854775808']),
    (np.array([3, 'x', 'y'], object), ['3', 'x', 'y']),
    ([10**15, 5, 7], [5, 7, 10**15]),
  ],
)
def test_ids_are_sorted_and_kept_exactly(ids, kept):
  table = r.from_arrays(ids, [1, 2, 3], [1, 1, 1], scale=(1, 5))
  np.testing.assert_array_equal(table.user_ids, kept)
  assert table.user_ids.dtype.kind == ('i' if isinstance(kept[0], int) else 'U')
  found = table.user_ids[table.user].astype(str)
  np.testing.assert_array_equal(found, np.asarray(ids).astype(str))


@settings(max_examples=100)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40))
def test_integer_ids_are_found_again(ids):
  rows = np.arange(len(ids))
  table = r.from_arrays(np.array(ids), rows, np.ones(len(ids)), scale=(0, 5))
  np.testing.assert_array_equal(table.user_ids, sorted(set(ids)))
  np.testing.assert_array_equal(table.user_ids[table.user], ids)


@pytest.mark.parametrize(
  ('users', 'message'),
  [
    ([1.0, 2.0], 'type float64'),
    (np.array(['a', None], object), 'row 1: user id None'),
    (np.array([True, 'a'], object), 'row 0: user id True'),
    (['a', ' '], 'row 1: empty user id'),
    (np.array([1, 2**63], np.uint64), 'above 2'),
    ([1, 2, 3], 'differ in length'),
  ],
)
def test_wrong_ids_are_named(users, message):
  with pytest.raises(r.DataError, match=message):
    r.from_arrays(users, [1, 2], [1, 1], scale=(1, 5))


@pytest.mark.parametrize(
  ('policy', 'values', 'stamps'),
  [
    ('last', [3, 4, 5], [1, 3, 4]),
    ('first', [1, 3, 4], [0, 1, 3]),
    ('mean', [3, 4, 3], [1, 3, 4]),
  ],
)
def test_duplicates_follow_the_policy(policy, values, stamps):
  users, items = ['u', 'v', 'u', 'w', 'u'], [1, 1, 1, 1, 1]
  with pytest.warns(UserWarning, match=r'row 2: .* 2 such .* the ' + policy):
    table = r.from_arrays(
      users, items, [1, 3, 3, 4, 5], scale=(1, 5), timestamps=[0, 1, 2, 3, 4],
      duplicates=policy,
    )  # fmt: skip
  np.testing.assert_array_equal(table.value, values)
  np.testing.assert_array_equal(table.timestamp, stamps)


def test_duplicates_can_be_an_error():
  with pytest.raises(r.DataError, match=r'row 1: .* 1 such'):
    r.from_arrays([1, 1], [2, 2], [3, 3], scale=(1, 5), duplicates='error')
  with pytest.raises(r.DataError, match="'all' is not one of last"):
    r.from_arrays([1], [2], [3], scale=(1, 5), duplicates='all')  # pyright: ignore


def test_the_scale_is_never_inferred():
  with pytest.raises(r.DataError, match='scale=None is not a pair'):
    r.from_arrays([1], [1], [3])
  with pytest.raises(r.DataError, match=r'row 1: rating 0\.5 .* 1\.\.5'):
    r.from_arrays([1, 2], [1, 1], [3, 0.5], scale=(1, 5))


def test_a_rating_on_the_bound_survives_float32():
  table = r.from_arrays([1, 2], [1, 1], [0.1, 0.7], scale=(0.1, 0.7))
  np.testing.assert_array_equal(table.value, np.float32([0.1, 0.7]))


def test_dataframes():
  stamps = pd.to_datetime(['2020-01-01', '2020-01-02', '1970-01-01'])
  frame = pd.DataFrame(
    {'u': ['b', 'a', 'b'], 'i': [3, 2, 2], 'r': [1.0, 4.5, 2.0], 't': stamps}
  )
  columns = {'user': 'u', 'item': 'i', 'rating': 'r', 'timestamp': 't'}
  table = r.from_dataframe(frame, scale=(1, 5), columns=columns)
  back = table.columns()
  assert back['user'].tolist() == ['b', 'a', 'b']
  assert back['item'].tolist() == [3, 2, 2]
  assert back['rating'].tolist() == [1.0, 4.5, 2.0]
  assert back['timestamp'].tolist() == [1577836800, 1577923200, 0]
  with pytest.raises(r.DataError, match='dataframe: no user column among u, i'):
    r.from_dataframe(frame, scale=(1, 5))
  with pytest.raises(r.DataError, match="columns: 'who' is not one of user"):
    r.from_dataframe(frame, scale=(1, 5), columns={'who': 'u'})


@pytest.mark.parametrize(
  'names',
  [
    ('userId', 'movieId', 'rating', 'timestamp'),
    ('user_id', 'item_id', 'Score', 'time'),
    ('User-ID', 'ISBN', 'Book-Rating', 'date'),
  ],
)
def test_columns_of_dataframes_are_guessed_as_those_of_files(names, tmp_path):
  frame = pd.DataFrame([['a', 7, 3.0, 9], ['b', 7, 4.5, 8]], columns=names)
  frame = frame[[names[2], names[0], names[3], names[1]]]
  frame.to_csv(tmp_path / 'ratings.csv', index=False)
  table = r.from_dataframe(frame, scale=(1, 5))
  read = formats.read(tmp_path / 'ratings.csv', scale=(1, 5))
  for name, column in table.columns().items():
    np.testing.assert_array_equal(column, read.columns()[name])


def test_to_a_dataframe_and_back(small_ratings):
  frame = small_ratings.to_dataframe()
  assert list(frame) == list(small_ratings.columns())
  back = r.from_dataframe(frame, scale=small_ratings.scale)
  for name, column in small_ratings.columns().items():
    np.testing.assert_array_equal(column, back.columns()[name])


def test_without_pandas(small_ratings, monkeypatch):
  monkeypatch.setitem(sys.modules, 'pandas', None)
  with pytest.raises(r.DataError, match=r"pip install 'dpmf_jax\[pandas\]'"):
    small_ratings.to_dataframe()


def test_text_is_no_timestamp():
  frame = pd.DataFrame(
    {'user': [1], 'item': [1], 'rating': [3], 'date': ['May']}
  )
  with pytest.raises(r.DataError, match='numbers or datetimes, or leave them'):
    r.from_dataframe(frame, scale=(1, 5))


def test_csr_keeps_zeros_and_empty_rows():
  dense = scipy.sparse.csr_array(
    (np.array([0.0, 2.0]), ([0, 2], [1, 0])), shape=(4, 3)
  )
  table = r.from_csr(dense, scale=(0, 5), item_ids=['z', 'y', 'x'])
  assert (table.num_users, table.num_items) == (4, 3)
  np.testing.assert_array_equal(table.item_ids, ['z', 'y', 'x'])
  back = np.zeros((4, 3))
  back[table.user, table.item] = table.value
  assert len(table) == 2
  np.testing.assert_array_equal(back, dense.toarray())
  np.testing.assert_array_equal(table.to_csr().toarray(), dense.toarray())
  assert table.to_csr().nnz == 2
  with pytest.raises(r.DataError, match='2 ids for 3 places'):
    r.from_csr(dense, scale=(0, 5), item_ids=['z', 'y'])


@pytest.mark.parametrize('scale', [(1, 5), (0, 5)])
def test_truths_are_no_low_ratings(scale):
  said = r'ratings are True or False, .*pass scale=\(0, 1\)'
  matrix = scipy.sparse.csr_array(np.eye(2, dtype=bool))
  with pytest.raises(r.DataError, match=said):
    r.from_csr(matrix, scale=scale)
  with pytest.raises(r.DataError, match=said):
    r.from_arrays([1, 2], [1, 2], [True, True], scale=scale)
  assert r.from_csr(matrix, scale=(0, 1)).value.tolist() == [1, 1]
  found = r.from_arrays([1, 2], [1, 2], [True, False], scale=(0, 1))
  assert found.value.tolist() == [1, 0]


def test_what_are_no_ratings_says_how_to_get_them(small_ratings):
  frame = pd.DataFrame({'user': [1], 'item': [1], 'rating': [1.0]})
  said = r' of type DataFrame must be Ratings, which .*from_dataframe'
  with pytest.raises(ValueError, match='^ratings' + said):
    random_split(frame, 0.2, seed=0)
  with pytest.raises(ValueError, match='^ratings' + said):
    training_data(frame)
  with pytest.raises(ValueError, match='^test' + said):
    baselines(small_ratings, frame)


@pytest.mark.parametrize('number', ['100', 1e3, True])
def test_a_number_of_users_is_an_integer(small_ratings, number):
  with pytest.raises(r.DataError, match=r'num_users=.* must be an integer'):
    r.with_public_ids(small_ratings, num_users=number)


def pairs_of(ratings):
  found = zip(ratings.user.tolist(), ratings.item.tolist(), strict=True)
  return dict(zip(found, ratings.value.tolist(), strict=True))


def test_clicks_come_as_columns_frames_and_matrices():
  """All are the same clicks, and none needs a scale."""
  users, items = [5, 7, 7], [1, 1, 3]
  frame = pd.DataFrame({'userId': users, 'itemId': items})
  matrix = scipy.sparse.coo_array(
    (np.ones(3, bool), ([0, 1, 1], [0, 0, 1])), shape=(2, 2)
  )
  ids = {'user_ids': [5, 7], 'item_ids': [1, 3]}
  for found in (
    r.from_arrays(users, items),
    r.from_arrays(users, items, [True] * 3),
    r.from_arrays(users, items, [2, 1, 9], max_count=1),
    r.from_dataframe(frame),
    r.from_dataframe(frame.assign(plays=[2, 1, 9])),
    r.from_csr(matrix, **ids),
    r.from_csr(matrix.astype(float), max_count=1, **ids),
    ratings_of({5: [1], 7: {1, 3}}),
    ratings_of(matrix),
  ):
    assert found.clicks
    assert found.scale == (0, 1)
    assert pairs_of(found) == {(0, 0): 1, (1, 0): 1, (1, 1): 1}
  assert '3 clicks' in repr(found)


def test_counts_are_added_up_and_cut_at_a_public_number():
  columns = [1, 1, 2, 1, 3], [4, 4, 4, 5, 6], [2, 3, 1, 9, 0]
  stamps = [10, 30, 20, 5, 7]
  found = r.from_arrays(*columns, max_count=6, timestamps=stamps)
  assert found.user_ids.tolist() == [1, 2]  # a count of 0 is nothing
  assert found.item_ids.tolist() == [4, 5]
  assert pairs_of(found) == {(0, 0): 5, (1, 0): 1, (0, 1): 6}
  assert found.timestamp is not None
  assert found.timestamp.tolist() == [30, 20, 5]
  assert found.columns()['count'].tolist() == [5, 1, 6]
  again = [np.concatenate([column, column]) for column in columns]
  assert pairs_of(r.from_arrays(*again, max_count=1)) == dict.fromkeys(
    [(0, 0), (1, 0), (0, 1)], 1
  )
  with pytest.raises(r.DataError, match='rated before'):
    r.from_arrays(*columns, max_count=6, duplicates='error')


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    ({'max_count': 0}, r'max_count=0 must be an integer in 1\.\.'),
    ({'max_count': 2.5}, 'max_count=2.5 must be an integer'),
    ({'max_count': 2, 'scale': (1, 5)}, 'give one of them'),
  ],
)
def test_what_counts_must_be_said_well(options, words):
  with pytest.raises(r.DataError, match=words):
    r.from_arrays([1, 2], [1, 2], [3, 4], **options)


def test_ratings_that_are_all_alike_may_be_clicks():
  frame = pd.DataFrame({'user': [1, 2], 'item': [1, 2], 'rating': [1, 1]})
  with pytest.raises(r.DataError, match='every rating is 1: pass max_count=1'):
    ratings_of(frame)
  assert not ratings_of(frame, scale=(0, 1)).clicks
  assert ratings_of(frame, max_count=1).clicks
