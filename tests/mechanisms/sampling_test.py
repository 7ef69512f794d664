"""Personalised sampling and weights: what a rating gets is at most its own."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax import accounting
from dpmf_jax.accounting.rounding import PRODUCT_BITS, WEIGHT_BITS
from dpmf_jax.mechanisms import sampling
from dpmf_jax.ratings.specification import from_fractions
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import device_mesh, rounded_down, training_data

COUNT = 16  # levels in a random specification; one shape, one compilation


def kept_pairs(kept, rows, by_user):
  """The (user, item) pairs that have a 1.0, and nothing but 0.0 and 1.0."""
  kept = np.asarray(kept)
  assert set(np.unique(kept)) <= {0.0, 1.0}
  row = np.broadcast_to(np.asarray(rows.row)[..., None], kept.shape)
  pairs = [row[kept == 1], np.asarray(rows.column)[kept == 1]]
  return set(zip(*(pairs if by_user else pairs[::-1]), strict=True))


def both_samples(data, threshold, seed=0):
  return [
    kept_pairs(
      sampling.sample_cells(
        jax.random.key(seed),
        rows,
        sampling.probabilities(rows.epsilon, threshold),
        by_user=by_user,
      ),
      rows,
      by_user,
    )
    for rows, by_user in ((data.by_user, True), (data.by_item, False))
  ]


@pytest.mark.parametrize('num_devices', [1, 2])
def test_both_orientations_keep_the_same(small_ratings, num_devices):
  ratings = from_fractions(small_ratings, seed=3)
  data = training_data(ratings, mesh=device_mesh(num_devices), slots=8)
  by_user, by_item = both_samples(data, 0.4)
  assert by_user == by_item
  all_pairs = set(zip(ratings.user, ratings.item, strict=True))
  assert by_user < all_pairs
  # Those who ask for the threshold or more are all there.
  sure = ratings.epsilon >= 0.4
  assert set(zip(ratings.user[sure], ratings.item[sure], strict=True)) <= (
    by_user
  )
  assert both_samples(data, 0.4, seed=1)[0] != by_user


def test_a_coin_depends_on_nothing_but_its_own_rating(small_ratings):
  ratings = from_fractions(small_ratings, seed=3)
  whole = both_samples(training_data(ratings), 0.4)[0]
  for gone in (0, 17, 350, len(ratings) - 1):
    left = ratings.take(np.arange(len(ratings)) != gone)
    pair = {(ratings.user[gone], ratings.item[gone])}
    assert both_samples(training_data(left), 0.4)[0] == whole - pair


@pytest.mark.slow
def test_ratings_are_kept_with_their_probability():
  # 120 users rated 120 items; the chance depends on the user's group.
  user, item = (index.ravel() for index in np.indices((120, 120)))
  ratings = from_arrays(user, item, 1 + (user + item) % 5, scale=(1, 5))
  rows = training_data(ratings).by_user
  group = rows.row[..., None] % 4 * jnp.ones_like(rows.column)
  chances = np.array([0.0, 0.07, 0.5, 1.0])
  kept = sampling.sample_cells(
    jax.random.key(0), rows, jnp.asarray(chances, jnp.float32)[group], True
  )
  used = np.arange(32) < np.asarray(rows.length)[..., None]
  assert not np.asarray(kept)[~used].any()  # padding is never kept
  counts = [
    np.asarray(kept)[used & (np.asarray(group) == k)].sum() for k in range(4)
  ]
  assert counts[0] == 0
  assert counts[3] == 3600
  # 3,600 coins each, fixed seed, false alarm 1e-4 for each of two.
  for found, chance in zip(counts[1:3], chances[1:3], strict=True):
    assert scipy.stats.binomtest(int(found), 3600, chance).pvalue > 1e-4
  # And coins of one user or of one item are not all the same: the counts of
  # 30 users with chance 1/2 vary like binomial ones, false alarm 1e-4.
  for index in (ratings.user, ratings.item):
    pairs = kept_pairs(kept, rows, by_user=True)
    half = ratings.user % 4 == 2
    hit = np.array(
      [
        pair in pairs
        for pair in zip(ratings.user[half], ratings.item[half], strict=True)
      ]
    )
    sums = np.bincount(index[half], hit)
    size = np.bincount(index[half])
    sums, size = sums[size > 0], size[size > 0]
    spread = ((sums - size / 2) ** 2 / (size / 4)).sum()
    assert 1e-4 < scipy.stats.chi2(len(sums)).cdf(spread) < 1 - 1e-4


def test_probabilities_are_the_papers():
  level = np.array([1e-4, 0.05, 0.1, 0.3, 0.59, 0.6, 0.61, 3.0, 50.0])
  want = accounting.pdp_probabilities(level, 0.6)
  found = sampling.probabilities(jnp.asarray(level, jnp.float32), 0.6)
  # 5e-6 is float32 and the slack of 2^-20.
  np.testing.assert_allclose(found, want, rtol=5e-6)
  assert (np.asarray(found)[-3:] == 1).all()
  assert (np.asarray(found)[:4] < want[:4]).all()


def test_weights_are_shares_of_the_highest_and_at_most_one():
  level = np.array([0.0, 1e-3, 0.25, 0.5, 1.0, 7.0])
  found = np.asarray(
    sampling.weights(jnp.asarray(level, jnp.float32), 0.5, 0.0)
  )
  np.testing.assert_allclose(found, [0, 2e-3, 0.5, 1, 1, 1], rtol=2e-6)
  assert (found <= 1).all()
  assert found[2] < 0.5


epsilons = st.lists(st.floats(1e-3, 12.0), min_size=COUNT, max_size=COUNT).map(
  np.array
)
tops = st.floats(1e-2, 12.0)


def assert_weights(epsilon, highest, shift):
  rounding = 1.000001 * 2.0 ** (shift - PRODUCT_BITS)
  level = jnp.asarray(rounded_down(epsilon))
  weight = sampling.weights(level, highest, rounding)
  weight = np.asarray(weight, np.float64)
  assert ((weight >= 0) & (weight <= 1)).all()
  # As `lattice_equations` rounds it.
  weight = np.floor(weight * 2**WEIGHT_BITS) * 2.0**-WEIGHT_BITS
  rounding = Fraction(rounding)
  for w, own in zip(weight, epsilon, strict=True):
    # A rating moves by w + rounding where noise is for 1 + rounding.
    moved = (Fraction(w) + rounding) / (1 + rounding) if w else 0
    assert moved * Fraction(highest) <= Fraction(own)
    # And little is wasted.
    assert w >= min(own / highest, 1) - float(rounding) - 2e-4


@settings(max_examples=60)
@given(epsilons, tops, st.integers(0, 18))
def test_no_weight_gives_a_rating_more_than_its_own(epsilon, highest, shift):
  # Nearer to the highest than float32 tells apart is another test.
  epsilon = epsilon[np.abs(epsilon / highest - 1) > 1e-7]
  epsilon = np.append(epsilon, np.full(COUNT - len(epsilon), highest))
  assert_weights(epsilon, highest, shift)


def test_just_below_the_highest_is_below_it():
  assert_weights(np.array([1.0 + 1e-8]), 1.0 + 5e-8, 6)


@settings(max_examples=60)
@given(epsilons, tops)
def test_no_chance_gives_a_rating_more_than_its_own(epsilon, threshold):
  # Nearer to the threshold than float32 tells apart is another test.
  epsilon = epsilon[np.abs(epsilon / threshold - 1) > 1e-7]
  epsilon = np.append(epsilon, np.full(COUNT - len(epsilon), threshold))
  level = jnp.asarray(rounded_down(epsilon))
  chance = np.asarray(sampling.probabilities(level, threshold), np.float64)
  spent = accounting.sampled_epsilon(chance, threshold)
  assert (spent <= epsilon).all()
  assert (spent >= np.minimum(epsilon, threshold) * (1 - 1e-4)).all()


def spent_at(own, threshold):
  level = jnp.asarray(rounded_down(np.array([own])))
  chance = np.asarray(sampling.probabilities(level, threshold), np.float64)
  return accounting.sampled_epsilon(chance, threshold)[0]


def test_just_below_the_threshold_is_below_it():
  threshold = 1.0 + 5e-8  # 1.0 in float32
  own = 1.0 + 1e-8
  assert spent_at(own, threshold) <= own


def test_large_thresholds_are_not_rounded_down():
  threshold = 60.0 + 1.5e-6  # 60.0 in float32
  for own in (0.5, 5.0, 20.0):
    assert spent_at(own, threshold) <= own


def test_coins_are_not_rounded_up():
  for own in (0.9, 0.3, 1e-3, 1e-5, 1e-8):
    level = jnp.asarray(rounded_down(np.array([own])))
    chance = sampling.probabilities(level, 1.0)
    real = float(np.asarray(sampling.coins_below(chance))[0]) / 2**32
    assert 0.99 * float(chance[0]) < real + 2.0**-32
    assert accounting.sampled_epsilon(real, 1.0) <= own
