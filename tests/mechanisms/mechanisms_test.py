import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.stats
from any_rows import rows_of_any_size
from hypothesis import given, settings
from hypothesis import strategies as st
from independence import assert_independent
from jax.errors import KeyReuseError
from jax.extend.random import threefry_2x32
from laws import assert_low_bits_are_fair, assert_scale

from dpmf_jax.accounting import tails
from dpmf_jax.accounting.rounding import MAX_STD, dither_bits
from dpmf_jax.mechanisms import noise
from dpmf_jax.mechanisms.clipping import SLACK, clip_rows, clip_scale, slack
from dpmf_jax.mechanisms.noise import (
  Draws,
  LatticeNoise,
  draws,
  lattice_noise,
)
from dpmf_jax.rows import device_mesh


@settings(max_examples=50)
@given(rows_of_any_size(most_rank=200), st.floats(1e-3, 1e3))
def test_clipped_rows_never_exceed_the_norm(rows, norm):
  clipped = np.asarray(clip_rows(jnp.asarray(rows), norm), np.float64)
  assert (np.linalg.norm(clipped, axis=1) <= np.float32(norm)).all()
  # Within the slack it is the paper's formula.
  want = [oracles.clip_row(row.astype(np.float64), norm) for row in rows]
  np.testing.assert_allclose(clipped, want, rtol=2e-5, atol=0)


@pytest.mark.parametrize('rank', [1, 300, 400, 10_000])
def test_the_slack_covers_a_norm_in_the_worst_order(rank):
  # Squares of a little less than half a unit in the last place of the first
  # are all lost, if they are added to it one by one. No backend has to do so,
  # and any may.
  row = np.full(rank, np.sqrt(0.99 * 2.0**-24), np.float32)
  row[0] = 1.0
  length = np.sqrt(np.cumsum(np.square(row), dtype=np.float32)[-1])
  assert length == 1.0
  room = np.float32(1 - slack(rank))
  clipped = row * (room / length)
  assert np.linalg.norm(clipped.astype(np.float64)) <= 1 - SLACK
  # By much less it would be too long from rank 336 on.
  longer = np.linalg.norm((row * np.float32(1 - SLACK)).astype(np.float64))
  assert (longer > 1) == (rank >= 336)
  clipped = np.asarray(clip_rows(jnp.asarray(row)[None], 1.0), np.float64)
  assert np.linalg.norm(clipped) <= 1 - SLACK
  assert np.linalg.norm(clipped) > 1 - 2 * slack(rank)


@pytest.mark.parametrize('rank', [2, 64])
def test_rows_next_to_the_norm_never_exceed_it(rank):
  """There float32 may take a row that is longer for one that is not."""
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(2000, rank))
  sizes = rng.uniform(1 - 1e-6, 1 + 1e-6, (2000, 1))
  rows = rows / np.linalg.norm(rows, axis=1, keepdims=True) * sizes
  clipped = clip_rows(jnp.asarray(rows, 'float32'), 1.0)
  squares = np.square(np.asarray(clipped, np.float64))  # exact
  assert all(math.fsum(row) <= 1.0 for row in squares)


def test_rows_inside_the_norm_are_untouched():
  rows = jnp.array([[0.3, 0.4], [0.0, 0.0]])
  np.testing.assert_array_equal(clip_rows(rows, 1.0), rows)


def test_rows_that_are_not_finite_contribute_nothing():
  rows = jnp.array([[jnp.inf, 0.0], [jnp.nan, 1.0], [1e30, 1e30]])
  assert clip_scale(rows, 1.0)[:2].tolist() == [0.0, 0.0]
  clipped = np.asarray(clip_rows(rows, 1.0))
  assert np.isfinite(clipped).all()
  assert (np.linalg.norm(clipped, axis=1) <= 1).all()


def normal(key, count, mesh=None):
  return draws(key, [(count,)], mesh)[0].value


def test_lattice_noise_has_its_scale_and_stays_on_the_lattice():
  count = jnp.arange(100_000, dtype=jnp.int32).reshape(1000, 100) * 7
  (drawn,) = draws(jax.random.key(3), [count.shape])
  spacing = 2.0**-6
  noised = lattice_noise(5.0, spacing, limit='').add(count, drawn)
  steps = np.asarray(noised, np.float64) / spacing
  np.testing.assert_array_equal(steps, np.round(steps))
  found = (steps - np.asarray(count)).ravel() * spacing
  # 100,000 draws: rounding and dither add less than 1e-4 of the variance.
  assert_scale(found, 'norm', 5.0)


@pytest.mark.slow
@pytest.mark.parametrize('log_units', [13, 19, 22])
def test_low_bits_of_the_noise_are_fair(log_units):
  # float32 noise of 2^19 units has a grid of its own: without the dither
  # 52.6% of the results were even.
  assert 2.0**log_units <= MAX_STD
  (drawn,) = draws(jax.random.key(5), [(2_000_000,)])
  assert_low_bits_are_fair(drawn, log_units)


def test_dither_is_small_beside_the_noise():
  for units in (1.0, 50.0, 2.0**10, 3e5, MAX_STD):
    assert 2.0 ** dither_bits(units, 1.0) <= max(1.0, units / 64)
  assert dither_bits(MAX_STD, 1.0) == 16


def test_noise_that_does_not_fit_is_refused_and_none_is_rounded_down():
  lattice_noise(MAX_STD, 1.0, limit='this')
  with pytest.raises(ValueError, match='is too large for this'):
    lattice_noise(MAX_STD * (1 + 1e-9), 1.0, limit='this')
  for std in (0.1, 1 / 3, np.array([0.1, 0.7, 1e5 + 0.1])):
    found = lattice_noise(std, 0.25, limit='')
    assert found.std.dtype == np.float32
    assert (np.asarray(found.std, np.float64) >= std).all()
    np.testing.assert_allclose(found.std, std, rtol=2e-7)


def test_noise_is_added_exactly_far_from_zero():
  # In float32 these would be lost beside 2^29.
  drawn = Draws(jnp.array([-1.0, 1.0]), jnp.array([0, 0]))
  own = LatticeNoise(jnp.float32(2.0**22), jnp.float32(1), jnp.int32(0))
  found = own.add(jnp.array([2**22, -(2**22) + 1]), drawn)
  assert found.tolist() == [0.0, 1.0]


def test_a_draw_that_is_not_finite_releases_nothing():
  drawn = Draws(jnp.array([jnp.nan, jnp.inf]), jnp.array([0, 0]))
  found = lattice_noise(1.0, 1.0, limit='').add(jnp.array([5, 5]), drawn)
  assert np.isnan(found).all()


def test_noise_is_the_same_for_the_same_key_only():
  first, second, other = (
    normal(jax.random.key(seed), 20) for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, second)
  assert (other != first).all()


@pytest.mark.parametrize('count', [1, 2, 999, 1000, 1001])
def test_draws_do_not_depend_on_the_devices(count):
  mesh = device_mesh(2)
  one, two = (
    jax.jit(lambda key, mesh=mesh: draws(key, [(count,)], mesh)[0])(
      jax.random.key(4)
    )
    for mesh in (None, mesh)
  )
  assert one.value.shape == two.uniform.shape == (count,)
  jax.tree.map(np.testing.assert_array_equal, one, two)


def test_shapes_share_one_stream_without_overlap():
  shapes = [(3, 4), (5,), (2, 1)]
  parts = [part.value for part in draws(jax.random.key(7), shapes)]
  assert [part.shape for part in parts] == shapes
  together = np.concatenate([np.ravel(part) for part in parts])
  np.testing.assert_array_equal(together, normal(jax.random.key(7), 19))
  assert len(np.unique(together)) == 19


def test_noise_is_there_with_64_bit_types_enabled():
  code = (
    'import jax, numpy as np;'
    'from dpmf_jax.mechanisms.noise import draws;'
    'd = draws(jax.random.key(0), [(10000,)])[0];'
    'x = np.asarray(d.value); assert 0.97 < x.std() < 1.03, x;'
    'assert 0 <= d.uniform.min() and 65000 < d.uniform.max() < 65536'
  )
  env = os.environ | {'JAX_ENABLE_X64': '1'}
  subprocess.run([sys.executable, '-c', code], check=True, env=env)


def test_normal_draws_reach_the_tails_and_fill_them():
  # Two million draws, fixed seed. 5.73e-7 of them are beyond 5 on average;
  # beyond 4 there are 127 on average (standard deviation 11).
  found = np.asarray(normal(jax.random.key(0), 2_000_000), np.float64)
  assert np.isfinite(found).all()
  assert np.abs(found).max() < 6.8
  assert 71 <= (np.abs(found) > 4).sum() <= 183  # 5 standard deviations
  far = found[np.abs(found) > 3]
  assert len(np.unique(far)) > 0.999 * len(far)


def test_noise_entries_are_independent():
  found = np.asarray(draws(jax.random.key(9), [(20_000, 4)])[0].value)
  correlation = np.corrcoef(found.T) - np.eye(4)
  # Standard error 0.007; 5 of them is a false alarm of 1e-6 per pair.
  assert np.abs(correlation).max() < 0.036


@pytest.mark.slow
def test_dither_is_independent_of_the_noise():
  """It hides the grid of float32 noise only if it is no part of the noise."""
  # Sixteen blocks: the first half of each are the x of pairs, the rest the y.
  count = 2**20
  (drawn,) = draws(jax.random.key(10), [(count,)])
  normals, dithers = (
    np.asarray(part).reshape(16, 2, -1).transpose(1, 0, 2).reshape(2, -1)
    for part in drawn
  )
  x, y = normals.astype(np.float64)
  turn = np.arctan2(y, x) / (2 * np.pi) % 1
  radius = np.exp(-(x * x + y * y) / 2)
  # The words that pairs were made of, 16 bits at a time: float32 keeps both.
  for fraction in (turn, turn * 2**16 % 1, radius, radius * 2**16 % 1):
    # They are all there: chi-squared, a false alarm of 1e-8.
    counts, _ = np.histogram(fraction, 16, (0, 1))
    assert scipy.stats.chisquare(counts).pvalue > 1e-8
    for dither in dithers:
      assert_independent(dither, 2**16, fraction)
  assert_independent(dithers[0], 2**16, dithers[1] / 2**16)


def test_radii_leave_no_gaps_below_the_reach_and_have_an_end():
  # All bits but the last few are 0: the largest radii there are.
  last = np.arange(256, dtype=np.uint32)
  words = jnp.stack([jnp.zeros(256, 'uint32')] * 3 + [jnp.asarray(last)])
  radius = np.asarray(noise._pairs(words).value)[0]  # angle 0
  assert 9.4 < radius[0] < 9.5
  assert (radius < tails.REACH).any()
  gap = np.abs(np.diff(radius))[radius[:-1] < tails.REACH].max()
  # Neighbours are closer than the dither to either side, or the lattice. Just
  # below a power of 2 the dither is smallest beside the noise.
  for units in (64.0, *(2.0**log - 1e-3 for log in range(7, 23)), MAX_STD):
    assert gap * units < max(1.0, 2.0 ** dither_bits(units, 1.0) / 2)


def words_beyond(radius, angle):
  """Of all 2^64 pairs of words, how many have at least that radius."""
  pairs = jax.jit(noise._pairs)

  def radius_of(word):
    words = [word >> 32, angle, 0, word & 0xFFFFFFFF]
    pair = pairs(jnp.asarray(words, 'uint32')[:, None]).value
    return np.hypot(*np.asarray(pair, np.float64)[:, 0])

  low, high = 0, 2**64  # the radius falls from word to word
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if radius_of(middle) >= radius else (low, middle)
  return low + 1


@pytest.mark.parametrize('radius', [3.0, 6.5, 8.0, 8.7, tails.REACH])
def test_no_more_words_are_beyond_a_radius_than_is_paid_for(radius):
  for angle in (0, 123456789, 2**30 - 1, 3 * 2**30 + 5):
    chance = words_beyond(radius, angle) / 2**64
    assert chance <= tails.beyond(radius)
    assert chance > 0.97 * tails.beyond(radius)


def chance_uncovered(move):
  """Of a Gaussian pair to be beyond REACH as it is or moved, in polar form."""
  reach = tails.REACH
  radius = np.linspace(0, reach, 20_001)
  with np.errstate(divide='ignore', invalid='ignore'):
    cosine = (reach**2 - radius**2 - move**2) / (2 * radius * move)
  moved_out = np.arccos(np.clip(np.nan_to_num(cosine, nan=1.0), -1, 1)) / np.pi
  density = radius * np.exp(-(radius**2) / 2)
  return np.exp(-(reach**2) / 2) + np.trapezoid(density * moved_out, radius)


def test_what_tails_cannot_reach_is_bounded():
  assert tails.uncovered(1e6, 1) == pytest.approx(tails.beyond(9), rel=1e-4)
  assert tails.uncovered(1.0, 10) == pytest.approx(10 * tails.beyond(8))
  assert tails.uncovered(0.05, 3) > 3.0
  # A record moves some draws, by 1/m in all, wherever they are in pairs.
  rng = np.random.default_rng(3)
  for multiplier in (0.3, 1.0, 5.0):
    for number in (1, 2, 7, 40):
      for power in (0.0, 1.0, 9.0):
        moves = np.zeros(100)
        moves[rng.permutation(100)[:number]] = rng.random(number) ** power
        pairs = np.hypot(*moves.reshape(2, 50))
        pairs /= np.linalg.norm(pairs) * multiplier
        true = sum(map(chance_uncovered, pairs[pairs > 0]))
        assert true <= tails.uncovered(multiplier, number)
        assert true <= tails.uncovered_jointly(multiplier, number)
  # One pair by all of it: the bound is not much more.
  true, bound = chance_uncovered(1.0), tails.uncovered(1.0, 1)
  assert 0.05 * bound < true < bound


def test_the_bound_on_tails_is_above_any_way_to_move_them():
  # One pair by all, all pairs by the same, and random ones in between.
  rng = np.random.default_rng(7)
  for multiplier in (0.2, 0.5, 2.0):
    for number in (2, 50, 3000):
      bound = tails.uncovered_jointly(multiplier, number)
      for power in (0.0, 1.0, 4.0, 30.0):
        s = rng.random(number) ** power + 1e-12
        s = s / np.linalg.norm(s) / multiplier
        assert sum(tails.beyond(tails.REACH - each) for each in s) <= bound
      # Some pairs alike, and the others not at all.
      for moved in (1, 10, 100, number):
        if moved <= number:
          each = tails.beyond(tails.REACH - 1 / multiplier / moved**0.5)
          rest = (number - moved) * tails.beyond(tails.REACH)
          assert moved * each + rest <= bound


@pytest.mark.parametrize('size', [2, 6, 4096])
def test_words_are_those_of_jaxs_threefry(size):
  for number in range(3):
    key = jax.random.bits(jax.random.key(number), (2,), 'uint32')
    counters = jnp.arange(size, dtype=jnp.uint32)
    np.testing.assert_array_equal(
      noise._hashed(key, size), threefry_2x32(key, counters)
    )


def test_words_of_draws_keep_the_bits_of_nan():
  key = jax.random.bits(jax.random.key(1), (2,), 'uint32')
  counters = jnp.arange(2**16, dtype=jnp.uint32).reshape(4, -1)
  words = jax.jit(noise._words)(key, *counters)
  want = np.asarray(threefry_2x32(key, counters.reshape(-1)))
  np.testing.assert_array_equal(np.concatenate(words), want)
  # The least and the largest exponents of floats are among them.
  exponents = want >> 23 & 255
  assert (exponents == 255).sum() > 100
  assert (exponents == 0).sum() > 100


@pytest.mark.parametrize('shape', [(), (3,), (16, 2), (2, 33, 2)])
def test_unrolled_keys_draw_what_keys_draw(shape):
  key = jax.random.key(7)
  for drawn in (
    lambda key: jax.random.bits(key, shape, 'uint32'),
    lambda key: jax.random.normal(key, shape),
    lambda key: jax.random.key_data(jax.random.split(key)),
    lambda key: jax.random.key_data(jax.random.fold_in(key, 3)),
  ):
    unrolled = lambda key, drawn=drawn: drawn(noise.unrolled(key))
    np.testing.assert_array_equal(
      jax.jit(unrolled)(jax.random.clone(key)),
      jax.jit(drawn)(jax.random.clone(key)),
    )


def test_a_key_that_was_unrolled_is_used():
  key = jax.random.key(7)
  noise.unrolled(key)
  with pytest.raises(KeyReuseError):
    jax.random.bits(key)


def test_keys_of_other_kinds_are_left_as_they_are():
  key = jax.random.key(7, impl='rbg')
  assert noise.unrolled(key) is key
