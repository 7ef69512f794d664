"""Tests that splits are what they say and keep neighbours neighbours."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpmf_jax.ratings import splits
from dpmf_jax.ratings import table as r
from dpmf_jax.ratings.synthetic import synthetic


@pytest.fixture(scope='module')
def table():
  return synthetic(num_users=300, num_items=200, num_ratings=9000, seed=5)


def rows(ratings):
  """The ratings as a set of (user id, item id, value, timestamp)."""
  stamps = ratings.timestamp
  return set(
    zip(
      ratings.user_ids[ratings.user].astype(str).tolist(),
      ratings.item_ids[ratings.item].astype(str).tolist(),
      ratings.value.tolist(),
      [0] * len(ratings) if stamps is None else stamps.tolist(),
      strict=True,
    )
  )


def test_random_split_is_a_partition_of_about_the_right_size(table):
  train, test = splits.random_split(table, 0.2, seed=1)
  assert rows(train) | rows(test) == rows(table)
  assert len(train) + len(test) == len(table)
  # Five standard deviations of a binomial: false alarm below 1e-6.
  assert abs(len(test) - 1800) < 5 * np.sqrt(9000 * 0.2 * 0.8)
  np.testing.assert_array_equal(train.item_ids, table.item_ids)


def test_uniforms_look_uniform_and_independent_of_ids(table):
  u = splits.uniforms(table, seed=9)
  grid = np.histogram2d(u, table.user % 2, bins=(10, 2))[0]
  expected = grid.sum(axis=0) / 10
  # Chi-square with 18 degrees of freedom: 60 has p below 2e-6.
  assert ((grid - expected) ** 2 / expected).sum() < 60
  assert len(np.unique(u)) == len(table)


def test_another_seed_gives_another_split(table):
  one, two = (rows(splits.random_split(table, 0.5, seed=s)[1]) for s in (1, 2))
  assert 0.2 < len(one & two) / len(table) < 0.3


def test_the_split_is_pinned():
  # The first outputs of splitmix64 from state 0, as published.
  word = splits._mix(np.array([0, 0x9E3779B97F4A7C15], np.uint64))
  assert [hex(w) for w in word] == ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
  # A split written down in a paper must come out the same next year.
  table = r.from_arrays([1, 1, 2, 2], ['a', 'b'] * 2, [1] * 4, scale=(1, 5))
  np.testing.assert_allclose(
    splits.uniforms(table, seed=3),
    [0.8316591524161977, 0.1802886704734572, 0.5516902136989759,
     0.7211522008987473],
    rtol=0, atol=1e-15,
  )  # fmt: skip


@pytest.mark.parametrize('count', [1, 3, 40])
def test_hold_out_takes_count_of_each_user(table, count):
  train, test = splits.hold_out_per_user(table, count, seed=1)
  total = np.bincount(table.user, minlength=300)
  held = np.bincount(test.user, minlength=300)
  np.testing.assert_array_equal(held, np.minimum(total, count))
  assert rows(train) == rows(table) - rows(test)


def test_every_rating_is_in_one_fold(table):
  parts = [splits.fold(table, k, folds=4, seed=1) for k in range(4)]
  assert sum(len(test) for _, test in parts) == len(table)
  assert set().union(*(rows(test) for _, test in parts)) == rows(table)
  for train, test in parts:
    assert rows(train) == rows(table) - rows(test)
    # Five standard deviations, as above.
    assert abs(len(test) - 2250) < 5 * np.sqrt(9000 * 0.25 * 0.75)


PAIRS = st.lists(
  st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 4)),
  min_size=1,
  max_size=24,
  unique_by=lambda row: row[:2],
)
SPLITS = {
  'random': lambda t, seed: splits.random_split(t, 0.5, seed=seed),
  'fold': lambda t, seed: splits.fold(t, 1, folds=2, seed=seed),
  'one': lambda t, seed: splits.hold_out_per_user(t, 1, seed=seed),
  'two': lambda t, seed: splits.hold_out_per_user(t, 2, seed=seed),
  'four': lambda t, seed: splits.hold_out_per_user(t, 4, seed=seed),
  'last': lambda t, seed: splits.hold_out_last(t, seed=seed),
}


# A bystander with ratings on both sides, so that no side is empty.
BYSTANDER = [(9, item, 1) for item in range(1, 9)]


def build(pairs):
  users, items, stamps = zip(*pairs, *BYSTANDER, strict=True)
  values = np.ones(len(users))
  return r.from_arrays(users, items, values, scale=(1, 5), timestamps=stamps)


def split_or_skip(split, table, seed):
  try:
    return split(table, seed)
  except r.DataError as error:
    assume('would be empty' not in str(error))
    raise


@pytest.mark.parametrize('name', SPLITS)
@settings(max_examples=80)
@given(pairs=PAIRS, which=st.integers(0, 100), seed=st.integers(0, 50))
def test_neighbours_have_neighbouring_training_sides(name, pairs, which, seed):
  # The tables are built from the rows alone, so that the id lists may differ.
  fewer = list(pairs)
  removed = fewer.pop(which % len(pairs))
  split = SPLITS[name]
  big_train, big_test = map(rows, split_or_skip(split, build(pairs), seed))
  train, test = map(rows, split_or_skip(split, build(fewer), seed))
  assert train <= big_train
  assert len(big_train - train) <= 1
  # Nobody else's test side moves either, and at most one rating is displaced.
  assert {row for row in test ^ big_test if row[0] != str(removed[0])} == set()
  assert len(test ^ big_test) <= 2


@settings(max_examples=30)
@given(pairs=PAIRS, seed=st.integers(0, 50), order=st.randoms())
def test_order_and_values_play_no_part(pairs, seed, order):
  shuffled = list(pairs)
  order.shuffle(shuffled)
  for split in SPLITS.values():
    one = split_or_skip(split, build(pairs), seed)
    two = split_or_skip(split, build(shuffled), seed)
    assert rows(one[0]) == rows(two[0])


def test_equal_hashes_do_not_make_places_count(table, monkeypatch):
  nothing = lambda ratings, seed: np.zeros(len(ratings), np.uint64)
  monkeypatch.setattr(splits, '_hashes', nothing)
  _, expected = splits.hold_out_per_user(table, 3, seed=1)
  order = np.random.default_rng(0).permutation(len(table))
  _, found = splits.hold_out_per_user(table.take(order), 3, seed=1)
  assert rows(found) == rows(expected)


def test_an_odd_id_elsewhere_does_not_move_the_others():
  plain = [(user, item, 1) for user in range(1, 6) for item in range(1, 9)]
  users, items, _ = zip(*plain, strict=True)
  whole = r.from_arrays(users, items, np.ones(len(plain)), scale=(1, 5))
  odd = r.from_arrays(
    [*(str(p[0]) for p in plain), 'someone new'],
    [*(str(p[1]) for p in plain), '007'],
    np.ones(len(plain) + 1),
    scale=(1, 5),
  )
  assert (whole.user_ids.dtype.kind, odd.user_ids.dtype.kind) == ('i', 'U')
  np.testing.assert_array_equal(
    splits.uniforms(whole, seed=1), splits.uniforms(odd, seed=1)[:-1]
  )


def test_the_last_of_each_user_is_held_out():
  stamps = [3, 9, 1, 5, 5, 2]
  made = r.from_arrays([1, 1, 1, 2, 2, 3], [*'abcabc'], timestamps=stamps)
  train, test = splits.hold_out_last(made)
  assert {row[:2] for row in rows(train)} >= {('1', 'a'), ('1', 'c')}
  held = {row[:2] for row in rows(test)}
  assert len(held) == 3
  assert held >= {('1', 'b'), ('3', 'c')}  # the only one, too
  # A tie is decided by the ids alone.
  again = made.take(np.arange(6)[::-1])
  assert rows(splits.hold_out_last(again)[1]) == rows(test)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda t: splits.random_split(t, 0, seed=1), 'test_fraction=0'),
    (lambda t: splits.random_split(t, 1.5, seed=1), 'test_fraction=1.5'),
    (lambda t: splits.random_split(t, 0.5, seed=-1), 'seed=-1'),
    (lambda t: splits.random_split(t, 1e-9, seed=1), 'test side .* empty'),
    (lambda t: splits.fold(t, 3, folds=3, seed=1), 'number=3 of folds=3'),
    (lambda t: splits.fold(t, 0, folds=1, seed=1), 'there are not 2'),
    (lambda t: splits.hold_out_per_user(t, 0, seed=1), 'count=0'),
    (lambda t: splits.hold_out_per_user(t, 200, seed=1), 'training side'),
    (splits.hold_out_last, "no timestamps, which split='last' needs"),
  ],
)
def test_wrong_arguments_are_named(table, call, message):
  with pytest.raises(r.DataError, match=message):
    call(table)
