"""The key of a run."""

import random

import jax
import numpy as np

from dpmf_jax.runs import random_key


def drawn_keys(count):
  """Keys [count, 2] uint32 without a seed."""
  return np.stack([jax.random.key_data(random_key(None)) for _ in range(count)])


def rank_of_bits(words):
  """The rank over GF(2) of the bits of words [N, 2] uint32, in 0..64."""
  left = [int(high) << 32 | int(low) for high, low in words]
  rank = 0
  while left:
    pivot = left.pop()
    if pivot:
      rank += 1
      last = pivot & -pivot
      left = [row ^ pivot if row & last else row for row in left]
  return rank


def test_all_64_bits_of_a_key_without_a_seed_are_random():
  """A key with a word that is constant, or a copy, is found by trying."""
  words = drawn_keys(193)
  # Bits that were constant, equal or sums of others would take away from the
  # rank of the differences. That of 192 random rows is below 64 with a chance
  # of 2^-128.
  assert rank_of_bits(words[1:] ^ words[:1]) == 64
  # Nor does a word come back, as it would from a few bits stretched: 193
  # random words of 32 bits have two alike with a chance of 4e-6.
  for word in words.T:
    assert len(np.unique(word)) == len(word)


def test_a_key_without_a_seed_is_not_from_a_generator_that_can_be_seeded():
  keys = []
  for _ in range(2):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what is not to be used
    keys.append(drawn_keys(1))
  assert (keys[0] != keys[1]).any()  # false alarm 2^-64


def test_a_key_with_a_seed_is_that_of_jax():
  found = jax.random.key_data(random_key(7))
  np.testing.assert_array_equal(found, jax.random.key_data(jax.random.key(7)))
