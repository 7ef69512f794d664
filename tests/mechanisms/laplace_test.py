"""Laplace noise in one and in many dimensions."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from independence import assert_independent
from laws import assert_low_bits_are_fair, assert_scale

from dpmf_jax.accounting.tails import LAPLACE_END, LAPLACE_ERROR, LAPLACE_REACH
from dpmf_jax.mechanisms.laplace import (
  l2_laplace,
  laplace,
)
from dpmf_jax.mechanisms.noise import lattice_noise
from dpmf_jax.rows import device_mesh

ROWS = 40_000


_drawn = jax.jit(l2_laplace, static_argnums=1)


def rows(rank, seed=0, count=ROWS):
  return np.asarray(
    _drawn(jax.random.key(seed), (count, rank)).value, np.float64
  )


def coordinate_law(rank):
  """CDF of a coordinate, by integrating exp(-||x||) over the others."""
  if rank == 1:
    return scipy.stats.laplace.cdf
  if rank == 3:
    # The density is (1 + |x|) exp(-|x|) / 4.
    tail = lambda x: (2 + x) * np.exp(-x) / 4
    return lambda x: np.where(x < 0, tail(-x), 1 - tail(np.abs(x)))
  # In two dimensions it is |x| K_1(|x|) / pi.
  grid = np.linspace(1e-9, 60, 600_001)
  density = grid * scipy.special.k1(grid) / np.pi
  steps = (density[1:] + density[:-1]) / 2 * (grid[1] - grid[0])
  half = np.append(0.0, np.cumsum(steps))
  np.testing.assert_allclose(half[-1], 0.5, rtol=1e-6)
  return lambda x: 0.5 + np.sign(x) * np.interp(np.abs(x), grid, half)


@pytest.mark.slow
@pytest.mark.parametrize('rank', [1, 2, 3, 20, 128])
def test_norms_are_gamma(rank):
  norms = np.linalg.norm(rows(rank), axis=1)
  assert_scale(norms, scipy.stats.gamma(rank).cdf)


@pytest.mark.slow
@pytest.mark.parametrize('rank', [1, 2, 3])
def test_a_coordinate_has_its_law(rank):
  law = coordinate_law(rank)
  for place in range(rank):
    assert_scale(rows(rank, seed=1)[:, place], law)


def test_laplace_is_laplace():
  drawn = laplace(jax.random.key(2), (200, 200))
  assert drawn.value.shape == drawn.uniform.shape == (200, 200)
  found = np.ravel(drawn.value).astype(np.float64)
  assert_scale(found, 'laplace')
  # And independent, neighbours at least: standard error 0.005, 5 of them.
  assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.025


def test_one_dimension_of_l2_laplace_is_laplace():
  assert_scale(rows(1, seed=4)[:, 0], 'laplace')


def test_laplace_is_near_the_exact_value_for_its_bits():
  count = 1_000_000
  drawn = laplace(jax.random.key(3), (count,))
  found = np.abs(np.asarray(drawn.value, np.float64))
  words = np.asarray(jax.random.bits(jax.random.key(3), (4, count), 'uint32'))
  uniform = words[0] * 2.0**-32 + words[1] * 2.0**-64 + words[2] * 2.0**-96
  exact = -np.log(uniform)
  # A quarter of what is allowed for, which other processors may need.
  assert (np.abs(found - exact) <= LAPLACE_ERROR / 4 * (1 + exact)).all()
  # The largest there is, and what one step of the bits is at LAPLACE_REACH.
  assert -np.log(np.float32(0.5 * 2.0**-96)) < LAPLACE_END
  assert 2.0**-97 / np.exp(-LAPLACE_REACH) < LAPLACE_ERROR / 8


@pytest.mark.parametrize('place', [0, 1, 2])
def test_sizes_have_96_bits(monkeypatch, place):
  """Without the last of three words they would end at 45, before the reach.

  One draw in 2^64 shows that, so words are given: 0 before `place`, and of
  all lengths there.
  """
  rng = np.random.default_rng(0)
  words = rng.integers(0, 2**32, (4, 20_000))
  words[:place] = 0
  words[place] >>= rng.integers(0, 32, 20_000)
  bits = lambda key, shape, dtype: jnp.asarray(words, dtype)
  monkeypatch.setattr(jax.random, 'bits', bits)
  found = np.abs(laplace(jax.random.key(0), (20_000,)).value)
  whole = [int(a) << 64 | int(b) << 32 | int(c) for a, b, c in words[:3].T]
  exact = 96 * np.log(2) - np.log(np.array(whole, float) + 0.5)
  assert (np.abs(found - exact) <= LAPLACE_ERROR / 4 * (1 + exact)).all()
  assert place < 2 or exact.max() > LAPLACE_REACH


@pytest.mark.slow
def test_dither_is_independent_of_the_noise():
  drawn = laplace(jax.random.key(12), (2**20,))
  found = np.asarray(drawn.value, float)
  size = np.exp(-np.abs(found))
  # The sign, and the word that sizes are made of, 16 bits at a time.
  for fraction in (found > 0, size, size * 2**16 % 1):
    assert_independent(drawn.uniform, 2**16, fraction)


@pytest.mark.slow
@pytest.mark.parametrize('rank', [2, 5, 128])
def test_directions_are_uniform(rank):
  found = rows(rank, seed=5)
  norms = np.linalg.norm(found, axis=1, keepdims=True)
  direction = found / norms * np.sqrt(rank)
  # Entries have variance 1 and their products at most 2. Six standard errors
  # are a false alarm of 2e-9 for each of up to 16,384 entries.
  error = 6 / np.sqrt(ROWS)
  assert np.abs(direction.mean(axis=0)).max() < error
  covariance = direction.T @ direction / ROWS
  assert np.abs(covariance - np.eye(rank)).max() < 1.5 * error
  # Nor do they depend on the norm.
  assert np.abs((direction * (norms - rank)).mean(axis=0)).max() < (
    error * np.sqrt(rank)
  )


def test_angles_are_uniform_in_two_dimensions():
  found = rows(2, seed=6)
  angle = np.arctan2(found[:, 1], found[:, 0])
  law = scipy.stats.uniform(-np.pi, 2 * np.pi).cdf
  assert scipy.stats.kstest(angle, law).pvalue > 1e-3  # false alarm 1e-3
  # And so among the long ones: no axis is favoured in the tails.
  far = angle[np.linalg.norm(found, axis=1) > 5]
  assert len(far) > 1000
  assert scipy.stats.kstest(far, law).pvalue > 1e-3


def test_rows_are_independent():
  found = rows(3, seed=7)
  found = np.column_stack([found, np.linalg.norm(found, axis=1)])
  correlation = np.corrcoef(found[1:].T, found[:-1].T)[:4, 4:]
  # Standard error 0.005; 5 of them are a false alarm of 1e-5 for 16 entries.
  assert np.abs(correlation).max() < 0.025


def test_tails_are_reached_and_filled():
  # Two million draws: 2e6 exp(-8) = 671 beyond 8 (standard deviation 26) and
  # 12.3 beyond 12; more than 35 of these are a false alarm of 1e-7.
  drawn = laplace(jax.random.key(8), (2_000_000,))
  found = np.abs(np.asarray(drawn.value, np.float64))
  assert np.isfinite(found).all()
  assert 541 <= (found > 8).sum() <= 801  # 5 standard deviations
  assert 1 <= (found > 12).sum() <= 35
  # From 23 random bits, values beyond 6 would repeat and end at 16.6.
  far = found[found > 6]
  assert len(np.unique(far)) > 0.998 * len(far)


def test_draws_are_the_same_for_the_same_key_only():
  for draw, shape in ((laplace, (5, 4)), (l2_laplace, (5, 4))):
    first, second, other = (
      jax.jit(draw, static_argnums=1)(jax.random.key(seed), shape)
      for seed in (0, 0, 1)
    )
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert (first.value != other.value).all()


def test_draws_do_not_depend_on_the_devices():
  one, two = (
    jax.jit(lambda key, mesh=mesh: l2_laplace(key, (300, 7), mesh))(
      jax.random.key(4)
    )
    for mesh in (None, device_mesh(2))
  )
  np.testing.assert_array_equal(one.uniform, two.uniform)
  # Normals are the same bits; the norm may be summed in another order.
  np.testing.assert_allclose(one.value, two.value, rtol=1e-6)


def test_many_keys_at_once_give_what_each_gives():
  draw = lambda key: l2_laplace(key, (10, 3)).value
  keys = lambda: jax.random.split(jax.random.key(9), 4)
  together = jax.jit(jax.vmap(draw))(keys())
  for place in range(4):
    alone = jax.jit(draw)(keys()[place])
    np.testing.assert_allclose(together[place], alone, rtol=1e-6)


@pytest.mark.parametrize('rank', [1, pytest.param(20, marks=pytest.mark.slow)])
def test_noise_on_a_lattice_has_its_scale_and_stays_there(rank):
  scale, spacing = 5.0, 2.0**-6
  count = 7 * jnp.arange(ROWS * rank, dtype=jnp.int32).reshape(ROWS, rank)
  drawn = l2_laplace(jax.random.key(10), count.shape)
  # Small enough to be read back from a float32 exactly.
  count = count % 2**16
  noised = lattice_noise(scale, spacing, limit='').add(count, drawn)
  steps = np.asarray(noised, np.float64) / spacing
  np.testing.assert_array_equal(steps, np.round(steps))
  norms = np.linalg.norm((steps - np.asarray(count)) * spacing, axis=1)
  assert_scale(norms, scipy.stats.gamma(rank).cdf, scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize('log_units', [13, 19, 22])
def test_low_bits_of_the_noise_are_fair(log_units):
  drawn = laplace(jax.random.key(11), (2_000_000,))
  assert_low_bits_are_fair(drawn, log_units)


@pytest.mark.slow
def test_draws_are_float32_with_64_bit_types_enabled():
  code = (
    'import jax, numpy as np;'
    'from dpmf_jax.mechanisms.laplace import l2_laplace, laplace;'
    'd = laplace(jax.random.key(0), (10000,));'
    'assert d.value.dtype == "float32" and d.uniform.dtype == "int32", d;'
    'assert 0.95 < np.abs(d.value).mean() < 1.05;'  # 5 standard errors
    'd = l2_laplace(jax.random.key(1), (2000, 128));'
    'assert d.value.dtype == "float32" and d.uniform.dtype == "int32", d;'
    'n = np.linalg.norm(d.value, axis=1).mean();'
    'assert 126.7 < n < 129.3, n'  # 5 standard errors
  )
  env = os.environ | {'JAX_ENABLE_X64': '1'}
  subprocess.run([sys.executable, '-c', code], check=True, env=env)
