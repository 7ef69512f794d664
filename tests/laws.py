"""Tests of what noise is distributed like."""

import jax.numpy as jnp
import numpy as np
import scipy.stats

from dpmf_jax.mechanisms.noise import lattice_noise


def assert_scale(found, law, scale=1.0):
  """The KS test accepts `scale` and rejects 2/3 and 3/2 of it.

  Seeds are fixed; a right mechanism fails for one seed in a thousand.
  """
  p_value = lambda by: scipy.stats.kstest(found / (scale * by), law).pvalue
  assert p_value(1.0) > 1e-3
  assert p_value(2 / 3) < 1e-9
  assert p_value(3 / 2) < 1e-9


def assert_low_bits_are_fair(drawn, log_units):
  """Two million draws as noise of 2^log_units units end in all bits alike.

  The standard error is 0.035%, so that 0.2% is a false alarm of 1e-8.
  """
  count = jnp.zeros(2_000_000, jnp.int32)
  own = lattice_noise(2.0**log_units, 1.0, limit='')
  found = np.asarray(own.add(count, drawn), np.int64)
  # Small enough to be read back from a float32 exactly.
  small = found[np.abs(found) < 2**24]
  assert len(small) > 1_900_000
  assert abs((small % 2 == 0).mean() - 0.5) < 2e-3
  assert abs((small % 4 == 1).mean() - 0.25) < 2e-3
