"""Randomized response of records: exact odds, frequencies, unbiasedness."""

import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax.accounting.records import COINS, lie_coins, true_epsilon
from dpmf_jax.mechanisms import records
from dpmf_jax.rows import training_data

SCALE = (1.0, 5.0)
STARS = (1.0, 2.0, 3.0, 4.0, 5.0)
SIX = functools.partial(records.response, STARS, rounding='nearest')
TERNARY = functools.partial(records.response, (1.0, 5.0), rounding='stochastic')
COARSE = functools.partial(records.response, (2.6, 4.4), rounding='nearest')
# 0 is blank, then 1, 1.5, .. 5.
CONTENTS = np.concatenate([[0], 1 + np.arange(9) * 30]).astype(np.uint8)


def law(response, content):
  """The exact chances of all answers for a cell, as fractions.

  By counting coins, from what `records.answers` does with them.
  """
  categories = int(response.categories)
  lie = Fraction(int(response.lie), COINS)
  up = Fraction(int(response.up[content]), COINS)
  lower = int(response.lower[content])
  chances = [lie] * categories
  truth = 1 - (categories - 1) * lie
  chances[lower] += (1 - up) * (truth - lie)
  if up:
    chances[lower + 1] += up * (truth - lie)
  assert sum(chances) == 1
  return chances


@pytest.mark.parametrize('make', [SIX, TERNARY, COARSE])
@pytest.mark.parametrize('epsilon', [1e-4, 0.1, 1.0, math.log(3), 4.0, 8.0, 20])
def test_no_two_contents_are_further_apart_than_epsilon(make, epsilon):
  response = make(scale=SCALE, epsilon=epsilon)
  laws = {content: law(response, content) for content in CONTENTS}
  # A vector of two cells of which one changes: all answers, all pairs.
  most = 0
  answers = range(int(response.categories))
  for one, other, rest in itertools.product(laws, laws, CONTENTS[[0, 4]]):
    for first, second in itertools.product(answers, repeat=2):
      p = laws[one][first] * laws[rest][second]
      q = laws[other][first] * laws[rest][second]
      most = max(most, p / q)
  assert math.log(most) <= epsilon * (1 + 1e-15)
  # And not much less: the coins are not wasted.
  if epsilon < 8:
    assert math.log(most) > epsilon - 1e-6 - 1e-5 * epsilon
  bound = true_epsilon(int(response.lie), int(response.categories))
  assert math.log(most) <= bound <= epsilon + 1e-9


@pytest.mark.parametrize('categories', [2, 3, 5, 6, 17])
def test_coins_are_rounded_to_the_safe_side(categories):
  for epsilon in (1e-4, 0.3, 1.0, 2.5, 7.0, 16.0, 20.0):
    lie = lie_coins(epsilon, categories)
    truth = COINS - (categories - 1) * lie
    # With one coin less for a lie the odds would be too large.
    assert truth / lie <= math.exp(epsilon) * (1 + 1e-15)
    less = (COINS - (categories - 1) * (lie - 1)) / max(lie - 1, 1e-9)
    assert less > math.exp(epsilon) * (1 - 1e-15)


def test_the_largest_coins_are_compared_as_they_are():
  # With one coin for a lie nearly all coins are beyond int32.
  response = SIX(scale=SCALE, epsilon=20.0)._replace(lie=jnp.uint32(1))
  cells = jnp.full(4096, CONTENTS[3])
  found = records.answers(jax.random.key(0), cells, response)
  np.testing.assert_array_equal(found, np.full(4096, 2))


def frequencies(response, content, seed, number=200_000):
  cells = jnp.full(number, content, jnp.uint8)
  found = jax.jit(records.answers)(jax.random.key(seed), cells, response)
  return np.bincount(np.asarray(found), minlength=int(response.categories))


@pytest.mark.parametrize('make', [SIX, TERNARY, COARSE])
@pytest.mark.parametrize('epsilon', [0.5, 2.0])
def test_answers_have_the_stated_frequencies_and_no_others(make, epsilon):
  # 200,000 answers a content, four contents: a p-value below 1e-5 among them
  # is a false alarm with chance 4e-5; all six tests together 2.4e-4.
  right = make(scale=SCALE, epsilon=epsilon)
  wrong = [make(scale=SCALE, epsilon=epsilon * x) for x in (0.9, 1.1)]
  for seed, content in enumerate(CONTENTS[[0, 1, 4, 9]]):
    seen = frequencies(right, content, seed)
    expected = np.array(law(right, content), float) * seen.sum()
    assert scipy.stats.chisquare(seen, expected).pvalue > 1e-5
    if content in (0, CONTENTS[-1]):
      for other in wrong:
        expected = np.array(law(other, content), float) * seen.sum()
        assert scipy.stats.chisquare(seen, expected).pvalue < 1e-5


def test_cells_are_answered_independently():
  response = COARSE(scale=SCALE, epsilon=1.0)
  keys = jax.random.split(jax.random.key(1), 50_000)
  cells = jnp.asarray(CONTENTS[[0, 9]])
  found = np.asarray(
    jax.jit(jax.vmap(records.answers, (0, None, None)))(keys, cells, response)
  )
  table = np.histogram2d(*found.T, bins=(3, 3))[0]
  # A false alarm has chance 1e-5.
  assert scipy.stats.chi2_contingency(table).pvalue > 1e-5


@pytest.mark.parametrize('make', [SIX, TERNARY, COARSE])
def test_estimates_are_unbiased(make):
  # Exactly, by the law of answers; the code's law is tested above.
  levels = make.args[0]
  for epsilon in (0.2, 1.0, 4.0):
    response = make(scale=SCALE, epsilon=epsilon)
    tables = records.estimates(
      levels, int(response.lie), center=3.5, spacing=1.0
    )
    for content in CONTENTS:
      chances = np.array(law(response, content), float)
      size = len(chances)
      count = chances @ np.asarray(tables.rated[:size], np.float64)
      total = chances @ np.asarray(tables.total[:size], np.float64)
      rating = 1 + (int(content) - 1) / 60
      want = 0.0
      if content and make is TERNARY:
        want = rating - 3.5
      elif content:
        nearest = min(levels, key=lambda level: (abs(level - rating), level))
        want = nearest - 3.5
      assert count == pytest.approx(float(content > 0), abs=1e-5)
      assert total == pytest.approx(want, abs=1e-5)
    blank = np.array(law(response, 0), float)
    spread = blank @ np.square(np.asarray(tables.total[:size], np.float64))
    assert float(tables.total_variance) == pytest.approx(spread, rel=1e-5)


def test_answers_that_tell_nothing_are_refused():
  with pytest.raises(ValueError, match='tell nothing'):
    records.estimates((1.0, 5.0), COINS // 3 + 1, center=3, spacing=1.0)


def test_profiles_hold_every_rating_and_nothing_else(small_ratings):
  rows = training_data(small_ratings).by_user
  found = np.asarray(records.profiles(rows, 40, *map(jnp.float32, SCALE)))
  want = np.zeros((60, 40))
  value = 1 + np.round((small_ratings.value - 1) * 60)
  want[small_ratings.user, small_ratings.item] = value
  np.testing.assert_array_equal(found, want)


def test_codes_stay_on_the_grid():
  value = jnp.array([-3.0, 1.0, 2.5, 5.0, 9.0, jnp.nan, jnp.inf])
  found = records.codes(value, jnp.float32(1), jnp.float32(5))
  np.testing.assert_array_equal(found, [1, 1, 91, 241, 241, 0, 241])


def test_same_key_same_answers():
  response = SIX(scale=SCALE, epsilon=1.0)
  cells = jnp.asarray(CONTENTS)
  key = jax.random.key(3)
  first = records.answers(jax.random.clone(key), cells, response)
  np.testing.assert_array_equal(first, records.answers(key, cells, response))
