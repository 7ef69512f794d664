"""Objective perturbation of a Huber loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from equations import spread_ratings
from laws import assert_scale
from quiet import quiet

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.rounding import HUBER_BITS, HUBER_ERROR
from dpmf_jax.accounting.tails import LAPLACE_END, LAPLACE_ERROR
from dpmf_jax.kernels import huber
from dpmf_jax.plans.objective_pmf import ObjectivePMFConfig, huber_parts
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import device_mesh, put_rows, rows, training_data
from dpmf_jax.systems import huber_means
from dpmf_jax.systems.objective_pmf import objective_pmf
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)
FINER = 2 ** (HUBER_BITS - 9)


def config_of(**fields):
  fields = {'epsilon': 1.0, 'scale': SCALE, 'loss': 'huber'} | fields
  return ObjectivePMFConfig(variant='sound', relation='add_remove', **fields)


def one_rating_of_20_001_items():
  item = np.arange(20_001)
  ratings = from_arrays(0 * item, item, 1 + item % 5, scale=SCALE)
  return training_data(ratings.take(np.array([0])))


def labels_of(rows):
  return jnp.round((rows.value - 3.0) / 2.0 * 512) * FINER


def exact_minimum(labels, bound, slope, push):
  """By another method, in float64."""
  gradient = lambda q: (
    slope * q + push - np.clip(labels - q, -bound, bound).sum()
  )
  reach = 2**HUBER_BITS + abs(push) / slope + 1
  return scipy.optimize.brentq(gradient, -reach, reach, xtol=1e-9, rtol=1e-15)


@pytest.mark.parametrize('slope', [0.5, 40.0])
@pytest.mark.parametrize('bound', [0.25, 4.0])
def test_what_is_found_is_within_its_bound_of_the_minimum(slope, bound):
  rng = np.random.default_rng(0)
  # One item of 3,000 equal ratings, where rounding errors would add up.
  items = np.r_[np.zeros(3000, int), rng.integers(1, 40, 4000)]
  users = np.r_[np.arange(3000), rng.integers(0, 3000, 4000)]
  values = np.r_[np.full(3000, 4), rng.integers(1, 6, 4000)]
  ratings = from_arrays(users, items, values, scale=SCALE, duplicates='last')
  rows = training_data(ratings).by_item
  push = rng.laplace(size=rows.num_rows) * 3e6
  push = push.astype(np.float32)
  limit = np.int32(bound / 2 * 2**HUBER_BITS)
  found = huber.balance(
    rows,
    labels_of(rows),
    bound=jnp.int32(limit),
    slope=jnp.float32(slope),
    push=jnp.asarray(push),
  )
  for item in range(rows.num_rows):
    mine = ratings.value[ratings.item == item].astype(np.float64)
    labels = (mine - 3) / 2 * 2**HUBER_BITS
    want = exact_minimum(labels, limit, slope, float(push[item]))
    error = HUBER_ERROR * (slope * abs(want) + abs(push[item])) / slope
    assert abs(int(found[item]) - want) <= 1 + error


@pytest.mark.parametrize('slope', [0.5, 0.7, 41.3])
def test_the_error_is_more_than_float32_makes_of_a_far_minimum(slope):
  """Without ratings it is -push / slope, and places have 29 bits."""
  slope, rng = np.float32(slope), np.random.default_rng(1)
  laid = put_rows(rows(*np.zeros((2, 1), int), np.zeros(1), 20_000, 1))
  far = rng.uniform(2.0**26, 2.0**28, laid.num_rows)
  push = (far * slope).astype(np.float32)
  found = huber.balance(
    laid, laid.value, bound=jnp.int32(9), slope=slope, push=jnp.asarray(push)
  )
  exact = -push.astype(np.float64) / np.float64(slope)
  off = (np.abs(np.asarray(found) - exact)[1:] - 1) / np.abs(2 * exact)[1:]
  # A quarter of what is allowed for, which other processors may need.
  assert 2.0**-26 < off.max() < HUBER_ERROR / 4


@pytest.mark.parametrize('bound', [0.3, 1.0, 4.0])
def test_removing_any_rating_moves_one_gradient_by_at_most_the_bound(bound):
  ratings, largest = spread_ratings(), 0
  hyper = huber_means.hyper_of(config_of(residual_bound=bound))
  limit = int(hyper.bound)
  assert limit * float(hyper.cover.spacing) <= bound

  def labelled(ratings):
    rows = training_data(ratings).by_item
    return dataclasses.replace(rows, value=labels_of(rows))

  def sums(rows, place):
    place = jnp.full(rows.num_rows, place, jnp.int32)
    return np.asarray(clipped_sums(rows, place, hyper.bound), np.int64)

  places, clipped_sums = np.arange(len(ratings)), jax.jit(huber.clipped_sums)
  whole = labelled(ratings)
  less = [labelled(ratings.take(places != gone)) for gone in places]
  for place in (-(2**21), -5, 0, 70_000, 2**19):
    before = sums(whole, place)
    for gone, kept in enumerate(less):
      moved = np.abs(sums(kept, place) - before)
      assert moved[ratings.item[gone]] <= limit
      assert not np.delete(moved, ratings.item[gone]).any()
      largest = max(largest, moved.max())
  assert largest == limit  # it is reached


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 5.0])
@pytest.mark.parametrize('bound', [0.5, 4.0])
def test_densities_of_neighbours_are_within_epsilon(epsilon, bound):
  # The density of the exact minimum, eta(q)'s times the slope, on a grid.
  parts = huber_parts(config_of(epsilon=epsilon, residual_bound=bound))
  q = np.linspace(-12, 12, 20_001)
  worst = 0.0

  def log_density(labels):
    rest = np.asarray(labels)[:, None] - q[None]
    eta = np.clip(rest, -bound, bound).sum(axis=0) - parts.ridge * q
    active = (np.abs(rest) < bound).sum(axis=0)
    return -np.abs(eta) / parts.noise + np.log(parts.ridge + active)

  for labels in ([2.0], [2.0, -2.0], [2.0, 0.0, 0.0], [-2.0] * 5, [0.1] * 50):
    change = log_density(labels) - log_density(np.asarray(labels)[1:])
    worst = max(worst, np.abs(change).max())
  spent = epsilon - 2 * parts.tolerance / parts.cover
  assert worst <= spent * (1 + 1e-9)
  assert worst > 0.65 * spent  # the bound is not idle


@pytest.mark.parametrize('epsilon', [0.01, 0.1, 1.0, 20.0])
def test_all_parts_together_cost_epsilon(epsilon):
  config = config_of(epsilon=epsilon)
  parts = huber_parts(config)
  spent = (
    config.knee / parts.noise
    + np.log1p(1 / parts.ridge)
    + 2 * parts.tolerance / parts.cover
  )
  guarantee = objective_pmf(config).guarantee
  stated = accounting.epsilon(guarantee, accounting.uncovered(guarantee))
  assert spent <= stated * (1 + 1e-12)
  assert 0.999 * epsilon <= stated <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize('epsilon', [0.05, 1.0, 8.0])
def test_the_tolerance_holds_for_what_the_step_computes(epsilon):
  config = config_of(epsilon=epsilon)
  parts = huber_parts(config)
  hyper = huber_means.hyper_of(config)
  rng = np.random.default_rng(1)
  items = rng.integers(0, 300, 5000)
  ratings = from_arrays(
    np.arange(5000) % 700,
    items,
    rng.integers(1, 6, 5000),
    scale=SCALE,
    duplicates='last',
  )
  data = training_data(ratings)
  system = objective_pmf(config)
  state = system.init(jax.random.key(0), data)
  # Without the noise that covers it.
  state = state._replace(hyper=quiet(hyper))
  state = jax.jit(system.step)(jax.random.key(5), state, data)
  found = np.asarray(state.factors.item[:, 0], np.float64)
  # Exactly what the random bits say, in float64.
  noise_key, _ = jax.random.split(jax.random.key(5))
  words = np.asarray(
    jax.random.bits(noise_key, (4, ratings.num_items), 'uint32')
  )
  eta = -np.log(words[0] * 2.0**-32 + words[1] * 2.0**-64)
  eta = np.where(words[3] >> 31, -eta, eta) * float(hyper.noise)
  for item in range(ratings.num_items):
    labels = ratings.value[ratings.item == item].astype(np.float64) - 3
    want = exact_minimum(labels, config.knee, float(hyper.ridge), eta[item])
    assert abs(found[item] - want) <= parts.tolerance


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [0.1, 2.0])
def test_noise_in_the_objective_has_its_scale(epsilon):
  # Items without ratings have their minimum at -eta / ridge.
  data = one_rating_of_20_001_items()
  config = config_of(epsilon=epsilon)
  parts = huber_parts(config)
  system = objective_pmf(config)
  state = system.init(jax.random.key(0), data)
  hyper = quiet(state.hyper)
  state = system.step(jax.random.key(3), state._replace(hyper=hyper), data)
  found = -np.asarray(state.factors.item[1:, 0], np.float64) * parts.ridge
  assert_scale(found, 'laplace', parts.noise)


@pytest.mark.slow
def test_noise_that_covers_the_search_has_its_scale():
  # With hardly any noise in the objective, what is left is the cover.
  data = one_rating_of_20_001_items()
  config = config_of()
  system = objective_pmf(config)
  state = system.init(jax.random.key(0), data)
  hyper = state.hyper._replace(noise=jnp.float32(0))
  state = system.step(jax.random.key(4), state._replace(hyper=hyper), data)
  found = np.asarray(state.factors.item[1:, 0], np.float64)
  assert_scale(found, 'laplace', huber_parts(config).cover)


@pytest.mark.slow
def test_the_noise_that_covers_is_not_that_of_the_objective():
  """Where nobody rated, and both have one scale, the same would cancel."""
  data = one_rating_of_20_001_items()
  system = objective_pmf(config_of())
  state = system.init(jax.random.key(0), data)
  hyper = state.hyper
  cover = hyper.cover._replace(std=jnp.float32(1))
  hyper = hyper._replace(cover=cover, noise=hyper.ridge)
  state = system.step(jax.random.key(5), state._replace(hyper=hyper), data)
  found = np.asarray(state.factors.item[1:, 0], np.float64)
  # Two independent ones of variance 2; six standard errors, 1e-9.
  assert np.mean(found**2) == pytest.approx(4, rel=6 * 0.0132)


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 20.0])
def test_the_tolerance_is_all_that_its_parts_allow_themselves(epsilon):
  """That is `huber.balance` at the farthest minimum, and `laplace` there."""
  config = config_of(epsilon=epsilon)
  parts, label = huber_parts(config), config.label_bound
  most = LAPLACE_END * parts.noise
  line = parts.ridge * (label + most / parts.ridge) + most
  errors = HUBER_ERROR * line + LAPLACE_ERROR * (1 + LAPLACE_END) * parts.noise
  allowed = label * 2.0**-HUBER_BITS + errors / parts.ridge
  assert parts.tolerance >= allowed * (1 - 1e-12)


def test_draws_of_the_largest_epsilon_end_as_seldom_as_said():
  # Two draws, as they are and moved by epsilon, on either side.
  ends = 4 * np.exp(tails.max_laplace_epsilon() - tails.LAPLACE_REACH)
  assert ends == pytest.approx(tails.UNCOVERED)


@pytest.mark.slow
def test_both_devices_give_what_one_gives(small_ratings):
  system = objective_pmf(config_of())
  one, two = (
    fit(system, jax.random.key(2), training_data(small_ratings, mesh=mesh))
    for mesh in (None, device_mesh(2))
  )
  np.testing.assert_array_equal(one.factors.item, two.factors.item)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'relation': 'replace'}, "loss='squared' needs less noise"),
    ({'residual_bound': 4.5}, 'residual_bound=4.5'),
    ({'residual_bound': 0.0}, 'residual_bound=0.0'),
    ({'loss': 'hinge'}, "loss='hinge'"),
    ({'feature_share': 0.5, 'delta': 1e-6}, 'feature_share'),
  ],
)
def test_wrong_settings_are_named(fields, message):
  fields = {
    'epsilon': 1.0,
    'scale': SCALE,
    'loss': 'huber',
    'relation': 'add_remove',
  } | fields
  with pytest.raises(ValueError, match=message):
    ObjectivePMFConfig(variant='sound', **fields)


def test_features_are_refused():
  with pytest.raises(ValueError, match='has no user features'):
    objective_pmf(config_of(), np.ones((3, 2)))


def test_an_epsilon_that_is_too_small_is_refused():
  with pytest.raises(ValueError, match='epsilon=1e-06'):
    objective_pmf(config_of(epsilon=1e-6))


@pytest.mark.parametrize('epsilon', [30.0, 1e6])
def test_an_epsilon_beyond_the_tails_is_refused(epsilon):
  # One rating would move the minimum out of what draws can reach.
  with pytest.raises(ValueError, match=r'epsilon=.* must be at most'):
    objective_pmf(config_of(epsilon=epsilon))


def test_sums_of_long_rows_keep_their_low_bits():
  # Half of the slices have low parts that are nearly 2^12, and all cancel.
  length = 2_000_000
  user = np.arange(length)
  label = np.where(user % 2 == 0, 477.0, -477.0).astype(np.float32)
  label[:32] = 1.0
  laid = put_rows(rows(0 * user, user, label, 1, length))
  found = huber.clipped_sums(laid, jnp.zeros(1, jnp.int32), jnp.int32(500))
  assert int(found[0]) == int(label.astype(np.int64).sum())


def test_more_users_than_sums_can_hold_are_refused():
  with pytest.raises(ValueError, match='users'):
    huber.check_size(2**23, 32)
  with pytest.raises(ValueError, match='slices of 2048'):
    huber.check_size(10, 2**11)
