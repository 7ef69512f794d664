"""Langevin dynamics on ratings as they are, and on perturbed ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmf_jax import accounting
from dpmf_jax.evaluation import metrics
from dpmf_jax.plans.langevin import LangevinConfig
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import training_data
from dpmf_jax.systems.langevin import langevin, perturbed
from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)


def config(variant='none', **fields):
  fields = {'scale': SCALE, 'rank': 4} | fields
  return LangevinConfig(variant=variant, **fields)


@functools.cache
def jitted(step):
  return jax.jit(step)


def after(system, data, state, **settings):
  state = state._replace(langevin=state.langevin._replace(**settings))
  return jitted(system.step)(jax.random.key(2), state, data).factors


def test_a_step_moves_by_the_mean_of_the_gradients(small_ratings):
  system, data = langevin(config()), training_data(small_ratings)
  state = system.init(jax.random.key(0), data)
  # The same noise with and without the likelihood.
  parts = [
    after(system, data, state, likelihood=jnp.float32(s)) for s in (700.0, 0.0)
  ]
  p, q = (np.float64(side) for side in state.factors)
  user, item, r = small_ratings.user, small_ratings.item, small_ratings.value
  e = (p[user] * q[item]).sum(axis=1) - r
  for index, other, found in (
    (user, q[item], np.float64(parts[0].user) - np.float64(parts[1].user)),
    (item, p[user], np.float64(parts[0].item) - np.float64(parts[1].item)),
  ):
    sums, count = np.zeros(found.shape), np.zeros(len(found))
    np.add.at(sums, index, e[:, None] * other)
    np.add.at(count, index, 1)
    wanted = -0.4 * sums / np.maximum(count, 1)[:, None]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.slow
def test_noise_is_that_of_the_mean_of_so_many_gradients(small_ratings):
  system = langevin(config(rank=200))
  data = training_data(small_ratings)
  state = system.init(jax.random.key(0), data)
  none = jnp.zeros(200)
  moved = after(
    system,
    data,
    state,
    likelihood=jnp.float32(0),
    user_ridge=none,
    item_ridge=none,
    step_size=jnp.float32(0.01),
  )
  for index, new, old in (
    (small_ratings.user, moved.user, state.factors.user),
    (small_ratings.item, moved.item, state.factors.item),
  ):
    count = np.bincount(index, minlength=len(new))[:, None]
    drawn = (np.asarray(new - old) * np.sqrt(count))[count[:, 0] > 0].ravel()
    for factor in (2 / 3, 1.0, 3 / 2):
      law = scipy.stats.norm(scale=0.1 * factor)
      # A false alarm has chance 1e-4, for either side.
      pvalue = scipy.stats.kstest(drawn, law.cdf).pvalue
      assert (pvalue > 1e-4) == (factor == 1.0)


def test_the_step_size_decays(small_ratings):
  data = training_data(small_ratings)
  state = langevin(config()).init(jax.random.key(0), data)
  eta = sgld.schedule(state.langevin)
  found = [float(eta(count)) for count in (0, 1, 9)]
  wanted = [0.4 / 700 / t**0.6 for t in (1, 2, 10)]
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_perturbed_ratings_have_laplace_noise_once(small_ratings):
  data = training_data(small_ratings)
  key = jax.random.key(1)
  by_user = perturbed(key, data.by_user, 2.0, by_user=True)
  by_item = perturbed(jax.random.clone(key), data.by_item, 2.0, by_user=False)
  tables = []
  for rows, values, turned in (
    (data.by_user, by_user, False),
    (data.by_item, by_item, True),
  ):
    used = np.arange(32) < np.asarray(rows.length)[..., None]
    row = np.broadcast_to(np.asarray(rows.row)[..., None], used.shape)
    cells = (row[used], np.asarray(rows.column)[used])
    table = np.full((60, 40), np.nan)
    table[cells[::-1] if turned else cells] = np.asarray(values)[used]
    tables.append(table)
  # The same in both orientations: a second draw would be a second release.
  np.testing.assert_array_equal(tables[0], tables[1])
  r = small_ratings
  drawn = tables[0][r.user, r.item] - r.value
  assert np.isfinite(drawn).all()
  for factor in (2 / 3, 1.0, 3 / 2):
    law = scipy.stats.laplace(scale=2.0 * factor)
    # A false alarm has chance 1e-4.
    pvalue = scipy.stats.kstest(drawn, law.cdf).pvalue
    assert (pvalue > 1e-4) == (factor == 1.0)


def test_one_rating_moves_its_own_perturbed_value_alone(small_ratings):
  """By tau at most, which is what the noise is scaled to."""
  rows = training_data(small_ratings).by_user
  values = np.asarray(rows.value).copy()
  values[0, 0, 0] = 6 - values[0, 0, 0]
  other = type(rows)(**{**vars(rows), 'value': jnp.asarray(values)})
  key = jax.random.key(1)
  first, second = (
    np.asarray(perturbed(jax.random.clone(key), each, 1.0, by_user=True))
    for each in (rows, other)
  )
  moved = np.argwhere(first != second)
  assert moved.tolist() == [[0, 0, 0]]
  assert np.abs(first - second).max() <= 4 + 1e-5


def test_clipped_ratings_are_on_the_scale(small_ratings):
  data = training_data(small_ratings)
  for clip in (False, True):
    system = langevin(config('paper', epsilon=1.0, clip=clip))
    values = system.init(jax.random.key(0), data).values
    inside = all(np.asarray((side >= 1) & (side <= 5)).all() for side in values)
    assert inside == clip


@pytest.mark.slow
def test_more_noise_is_less_accurate(small_ratings):
  train, test = random_split(small_ratings, 0.2, seed=0)
  data, rows = training_data(train), training_data(test).by_user
  found = []
  for made in (
    config(),
    config('paper', epsilon=4.0),
    config('paper', epsilon=0.5),
  ):
    system = langevin(made)
    state = fit(system, jax.random.key(0), data)
    found.append(metrics.rmse(system.model(state, data), rows, SCALE))
  assert found == sorted(found)


def test_guarantees():
  assert langevin(config()).guarantee.status == 'none'
  claimed = langevin(config('paper', epsilon=2.0)).guarantee
  assert claimed.status == 'claimed'
  assert accounting.epsilon(claimed, 1e-6) == 2.0
  assert 'scale 2 ' in claimed.mechanism
  with pytest.raises(ValueError, match='epsilon=None must be positive'):
    config('paper')
  with pytest.raises(ValueError, match="variant='sound' must be"):
    config('sound', epsilon=1.0)
