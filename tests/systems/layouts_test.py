"""What is released does not depend on the layout that a platform has."""

import dataclasses

import jax
import numpy as np
import pytest

from dpmf_jax.plans import SPECS
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import SLICES, training_data
from dpmf_jax.systems import build
from dpmf_jax.training import fit

# All systems whose sums are of integers, and some with sums of floats. Not the
# simulators of clients, who have no chunks, nor the published `untrusted_pmf`,
# which draws shares of noise in the order of slots.
EXACT = [name for name in SPECS if 'sound' in SPECS[name].variants]
FLOATS = ['nonprivate', 'als', 'ease', 'langevin']
CASES = {name: (name, 'sound', {}) for name in EXACT}
CASES |= {name: (name, 'none', {}) for name in FLOATS}
# What steps of these ask for by settings, or by noisy sums.
_RATING = {'unit': 'rating', 'relation': 'add_remove'}
CASES |= {
  'moments by rating': ('moments', 'sound', {**_RATING, 'pairs_from': 0.0}),
  'ratings as they are': ('moments', 'sound', {**_RATING, 'pairs_from': 1e6}),
  'levels': ('power_mf', 'sound', {'rank': 0, 'level_share': 0.5}),
}


def released(name, variant, more, data):
  """The state after some steps, and both sides of the model."""
  entry = SPECS[name]
  given = {'scale': (1.0, 5.0), 'delta': 1e-6, 'epsilon': 3.0, 'steps': 3}
  given |= {'rank': 3}
  known = [field.name for field in dataclasses.fields(entry.config)]
  given = {k: v for k, v in given.items() if k in known} | more
  system = build(name, entry.config(**{**entry.variants[variant], **given}))
  state = fit(system, jax.random.key(0), data)
  model = system.model(state, data)
  return jax.tree.leaves((system.release(state, data), model.factors))


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_large_chunks_give_the_same_model(case):
  ratings = synthetic(num_users=150, num_items=90, num_ratings=4000, seed=1)
  ratings = with_epsilon(ratings, 3.0)
  narrow, wide = (
    training_data(ratings, platform=platform) for platform in ('cpu', 'gpu')
  )
  assert min(rows.row.shape[1] for rows in wide) > 3 * SLICES
  for small, large in zip(
    released(*case, narrow), released(*case, wide), strict=True
  ):
    if case[1] == 'sound':  # all their sums are of integers
      np.testing.assert_array_equal(small, large)
    else:
      np.testing.assert_allclose(small, large, rtol=1e-4, atol=1e-4)
