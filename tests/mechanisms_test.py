import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax.mechanisms.clipping import clip_rows, clip_scale
from dpmf_jax.mechanisms.noise import add_on_lattice, normal, normals
from dpmf_jax.sharding import device_mesh


@settings(max_examples=50, deadline=None)
@given(
  st.integers(1, 200),
  st.floats(1e-3, 1e3),
  st.floats(-12, 12),
  st.integers(0, 2**31 - 1),
)
def test_clipped_rows_never_exceed_the_norm(rank, norm, log_size, seed):
  rng = np.random.default_rng(seed)
  rows = (rng.normal(size=(20, rank)) * np.exp(log_size)).astype(np.float32)
  clipped = np.asarray(clip_rows(jnp.asarray(rows), norm), np.float64)
  assert (np.linalg.norm(clipped, axis=1) <= np.float32(norm)).all()
  # Within the slack it is the paper's formula.
  want = [oracles.clip_row(row.astype(np.float64), norm) for row in rows]
  np.testing.assert_allclose(clipped, want, rtol=2e-5, atol=0)


def test_rows_inside_the_norm_are_untouched():
  rows = jnp.array([[0.3, 0.4], [0.0, 0.0]])
  np.testing.assert_array_equal(clip_rows(rows, 1.0), rows)


def test_rows_that_are_not_finite_contribute_nothing():
  rows = jnp.array([[jnp.inf, 0.0], [jnp.nan, 1.0], [1e30, 1e30]])
  assert clip_scale(rows, 1.0)[:2].tolist() == [0.0, 0.0]
  clipped = np.asarray(clip_rows(rows, 1.0))
  assert np.isfinite(clipped).all()
  assert (np.linalg.norm(clipped, axis=1) <= 1).all()


def test_lattice_noise_has_its_scale_and_stays_on_the_lattice():
  count = jnp.arange(100_000, dtype=jnp.int32).reshape(1000, 100) * 7
  (noise,) = normals(jax.random.key(3), [count.shape])
  noised = add_on_lattice(count, 5.0 * noise, 2.0**-6)
  units = np.asarray(noised, np.float64) * 2**6
  np.testing.assert_array_equal(units, np.round(units))
  draws = (units - np.asarray(count)).ravel() * 2.0**-6
  # 100,000 draws: the KS test accepts the right scale (false alarm 1e-3 at
  # most, seed fixed) and rejects 2/3 and 3/2 of it. Rounding adds 1e-6 of
  # the variance.
  p_value = lambda std: scipy.stats.kstest(draws, 'norm', (0, std)).pvalue
  assert p_value(5.0) > 1e-3
  assert p_value(5.0 * 2 / 3) < 1e-9
  assert p_value(5.0 * 3 / 2) < 1e-9


def test_noise_is_added_exactly_far_from_zero():
  # In float32 a noise of 1.25 would be lost beside 2^29.
  found = add_on_lattice(
    jnp.array([2**29, -(2**29) + 1]), jnp.array([-(2.0**29), 2.0**29]), 1.0
  )
  assert found.tolist() == [0.0, 1.0]


def test_noise_is_the_same_for_the_same_key_only():
  first, second, other = (
    normal(jax.random.key(seed), 20) for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, second)
  assert (other != first).all()


@pytest.mark.parametrize('count', [1, 2, 999, 1000, 1001])
def test_draws_do_not_depend_on_the_devices(count):
  mesh = device_mesh(2)
  one = jax.jit(lambda key: normal(key, count))(jax.random.key(4))
  two = jax.jit(lambda key: normal(key, count, mesh))(jax.random.key(4))
  assert one.shape == two.shape == (count,)
  np.testing.assert_array_equal(one, two)


def test_shapes_share_one_stream_without_overlap():
  shapes = [(3, 4), (5,), (2, 1)]
  parts = normals(jax.random.key(7), shapes)
  assert [part.shape for part in parts] == shapes
  together = np.concatenate([np.ravel(part) for part in parts])
  np.testing.assert_array_equal(together, normal(jax.random.key(7), 19))
  assert len(np.unique(together)) == 19


def test_normal_draws_reach_the_tails_and_fill_them():
  # Two million draws, fixed seed. 5.73e-7 of them are beyond 5 on average;
  # beyond 4 there are 127 on average (standard deviation 11).
  draws = np.asarray(normal(jax.random.key(0), 2_000_000), np.float64)
  assert np.isfinite(draws).all()
  assert np.abs(draws).max() < 6.8
  assert 71 <= (np.abs(draws) > 4).sum() <= 183  # 5 standard deviations
  far = draws[np.abs(draws) > 3]
  assert len(np.unique(far)) > 0.999 * len(far)


def test_noise_entries_are_independent():
  draws = np.asarray(normals(jax.random.key(9), [(20_000, 4)])[0])
  correlation = np.corrcoef(draws.T) - np.eye(4)
  # Standard error 0.007; 5 of them is a false alarm of 1e-6 per pair.
  assert np.abs(correlation).max() < 0.036
