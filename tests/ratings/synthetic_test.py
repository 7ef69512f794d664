"""Tests of the planted ratings."""

import hashlib
import time

import numpy as np
import pytest

from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import DataError


def checksum(ratings):
  digest = hashlib.sha256()
  for array in (ratings.user, ratings.item, ratings.value):
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()[:16]


def test_the_same_seed_gives_the_same_bits():
  make = lambda seed: synthetic(
    num_users=50, num_items=40, num_ratings=700, seed=seed
  )
  assert checksum(make(1)) == checksum(make(1))
  assert checksum(make(1)) != checksum(make(2))
  assert checksum(make(1)) == 'e588eb60ae002a08'


@pytest.mark.parametrize(
  'size', [(1, 1, 1), (5, 4, 20), (7, 30, 7), (30, 20, 599), (60, 50, 900)]
)
def test_counts_are_exact_and_nobody_is_left_out(size):
  users, items, count = size
  table = synthetic(num_users=users, num_items=items, num_ratings=count, seed=0)
  assert (table.num_users, table.num_items, len(table)) == size
  assert np.bincount(table.user, minlength=users).min() >= 1


def test_popularity_and_activity_are_uneven():
  table = synthetic(num_users=2000, num_items=500, num_ratings=40000, seed=3)
  items = np.sort(np.bincount(table.item, minlength=500))[::-1]
  users = np.bincount(table.user, minlength=2000)
  assert items[:50].sum() > 0.3 * len(table)
  assert users.mean() > 1.3 * np.median(users)
  even = synthetic(
    num_users=2000, num_items=500, num_ratings=40000, popularity_exponent=0,
    seed=3,
  )  # fmt: skip
  assert np.bincount(even.item).max() < 2 * np.bincount(even.item).min()


def test_drawing_follows_popularity_without_replacement():
  # Every user takes 1 of 4 items, so the share of each item is known.
  table = synthetic(
    num_users=40000, num_items=4, num_ratings=40000, popularity_exponent=1,
    seed=0,
  )  # fmt: skip
  share = np.sort(np.bincount(table.item))[::-1] / 40000
  want = 1 / np.arange(1, 5)
  # Five standard deviations of a share: false alarm below 1e-5.
  np.testing.assert_allclose(share, want / want.sum(), atol=5 * 0.0025)


def test_draws_and_races_agree(monkeypatch):
  # One law, three algorithms: only draws, only races, one round of draws
  # finished by races. The users' counts come first, so they are the same.
  shares = []
  for dense, rounds in ((1, 1000), (0, 0), (1, 1)):
    monkeypatch.setattr('dpmf_jax.ratings.synthetic._DENSE', dense)
    monkeypatch.setattr('dpmf_jax.ratings.synthetic._ROUNDS', rounds)
    table = synthetic(num_users=4000, num_items=30, num_ratings=32000, seed=7)
    shares.append(np.bincount(table.item, minlength=30) / 4000)
  # A share has a standard deviation of at most sqrt(.25 / 4000) = .008 and a
  # difference of two of .0112; six of those over 60 differences: below 1e-7.
  for other in shares[1:]:
    np.testing.assert_allclose(other, shares[0], atol=6 * 0.0112)
  assert shares[0].max() > 3 * shares[0].min()


def test_extreme_popularity_ends():
  table = synthetic(
    num_users=200, num_items=300, num_ratings=10000, popularity_exponent=10,
    seed=0,
  )  # fmt: skip
  assert len(table) == 10000


def test_without_noise_the_structure_is_low_rank():
  table = synthetic(
    num_users=60, num_items=50, num_ratings=3000, rank=2, noise=0,
    scale=(-100, 100), integer=False, seed=2,
  )  # fmt: skip
  dense = np.zeros((60, 50))
  dense[table.user, table.item] = table.value
  while (clipped := np.abs(dense) == 100).any():  # leave out rows and columns
    row, column = clipped.sum(1).argmax(), clipped.sum(0).argmax()
    if clipped[row].mean() > clipped[:, column].mean():
      dense = np.delete(dense, row, axis=0)
    else:
      dense = np.delete(dense, column, axis=1)
  assert min(dense.shape) >= 10
  # The mean and both biases have rank 2, the interaction has 2 more.
  spectrum = np.linalg.svd(dense, compute_uv=False)
  assert spectrum[4] < 1e-4 * spectrum[3]


def test_integers_and_scale():
  table = synthetic(
    num_users=50, num_items=40, num_ratings=700, scale=(1, 10), seed=1
  )
  np.testing.assert_array_equal(table.value, np.rint(table.value))
  assert len(np.unique(table.value)) > 5
  assert table.value.max() == 10


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'num_ratings': 101}, r'num_ratings=101 is not in 10\.\.100'),
    ({'num_ratings': 9}, r'num_ratings=9 is not in 10\.\.100'),
    ({'num_users': 0}, 'num_users=0'),
    ({'rank': 0}, 'rank=0'),
    ({'noise': -1}, 'noise=-1'),
    ({'popularity_exponent': -1}, 'popularity_exponent=-1'),
    ({'scale': (0.5, 5)}, 'must be integers'),
    ({'seed': -1}, 'seed=-1'),
  ],
)
def test_wrong_arguments_are_named(changes, message):
  sizes = {'num_users': 10, 'num_items': 10, 'num_ratings': 50, 'seed': 0}
  with pytest.raises(DataError, match=message):
    synthetic(**(sizes | changes))


def test_a_million_ratings_are_quick():
  """As quick as a plain loop over them (half of it here), in processor time."""

  def seconds(run):
    began = time.process_time()
    run()
    return time.process_time() - began

  sizes = {'num_users': 6040, 'num_items': 3706, 'num_ratings': 1_000_000}
  rng = np.random.default_rng(0)
  loop = lambda: [rng.normal() + rng.random() for _ in range(1_000_000)]
  assert seconds(lambda: synthetic(**sizes, seed=1)) < 5 * seconds(loop)
