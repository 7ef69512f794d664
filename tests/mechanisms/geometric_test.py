"""Integer noise from coins: its exact law, and that draws have it."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import assert_scale

from dpmf_jax.accounting import geometric
from dpmf_jax.mechanisms.geometric import (
  _number,
  coin_words,
  geometric_noise,
)

WHOLE = 2**64


def chances(law):
  """Of 0, 1, .., the largest number of these digits, exactly."""
  found = [Fraction(1)]
  for coin in law.coins:
    if coin:
      one = Fraction(coin, WHOLE)
      found = [p * (1 - one) for p in found] + [p * one for p in found]
  return found


@pytest.mark.parametrize('epsilon', [0.15, 0.4, 1.0])
def test_a_count_that_moves_by_one_has_the_epsilon_that_is_stated(epsilon):
  law = geometric.law(epsilon)
  one = chances(law)
  assert sum(one) == 1
  whole = WHOLE ** sum(coin > 0 for coin in law.coins)
  weights = [int(p * whole) for p in one]
  noise = [
    Fraction(sum(map(int.__mul__, weights, weights[z:])), whole**2)
    for z in range(len(one))
  ]
  assert noise[0] + 2 * sum(noise[1:]) == 1
  noise.append(Fraction(0))
  # Just below e^epsilon.
  ratio = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 2**52))
  ends = [
    max(here - ratio * further, Fraction(0))
    for here, further in itertools.pairwise(noise)
  ]
  # What is left over for one count and not for its neighbour: on one side.
  assert sum(ends) <= Fraction(law.uncovered) + Fraction(1, 2**50)
  assert ends[-2] > 0  # the end is not private, and is paid for
  # The other way, noise never grows outwards by as much.
  assert all(b <= ratio * a for a, b in itertools.pairwise(noise))


@pytest.mark.parametrize('epsilon', [8e-6, 2e-4, 2e-3, 0.02, 0.3, 1.0])
def test_all_ratios_of_neighbours_are_within_epsilon_and_near_it(epsilon):
  law = geometric.law(epsilon)
  odds = Fraction(1)
  for coin in law.coins:
    if coin:
      ratio = Fraction(WHOLE - coin, coin) * odds
      logarithm = math.log1p(float(ratio - 1))
      assert -epsilon < logarithm <= epsilon * (1 + 1e-12)
      assert logarithm == pytest.approx(epsilon, rel=1e-2, abs=5e-6)
      odds *= Fraction(coin, WHOLE - coin)
  last = math.prod(Fraction(coin, WHOLE) for coin in law.coins if coin)
  assert last <= Fraction(law.uncovered) < 1e-13


@pytest.mark.parametrize('epsilon', [1e-7, 1.5])
def test_an_epsilon_without_such_noise_is_refused(epsilon):
  with pytest.raises(ValueError, match='of a count must be in'):
    geometric.law(epsilon)


def test_digits_are_compared_with_coins_as_whole_numbers():
  law = geometric.law(0.01)
  coins = coin_words(law)
  used = sum(coin > 0 for coin in law.coins)

  def words(more):
    values = [max(coin + more, 0) for coin in law.coins]
    split = [(value >> 32, value & 0xFFFFFFFF) for value in values]
    return jnp.asarray(np.array(split, np.uint32))

  # One less than the coin is a 1, the coin itself a 0; no digit is unused.
  assert int(_number(words(-1), coins)) == 2**used - 1
  assert int(_number(words(0), coins)) == 0


def test_draws_have_the_law():
  law = geometric.law(0.01)
  coins = coin_words(law)
  keys = jax.random.split(jax.random.key(0), 20_000)
  found = np.asarray(jax.jit(jax.vmap(geometric_noise, (0, None)))(keys, coins))
  assert found.dtype == np.int32
  # So wide that steps of 1 are as good as a continuous law.
  assert_scale(found, 'laplace', 100.0)
