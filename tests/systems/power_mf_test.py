"""Noisy power MF: sums, noise, estimates, accuracy and the rule."""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.stats
from laws import assert_scale
from quiet import quiet
from tables import crowd_of, layouts, table

from benchmarks import made_ratings
from dpmf_jax import accounting, training
from dpmf_jax.accounting import tails
from dpmf_jax.evaluation import metrics
from dpmf_jax.kernels import lattice
from dpmf_jax.plans import selection, user_levels
from dpmf_jax.plans.auto import recommended
from dpmf_jax.plans.power_mf import (
  PowerMFConfig,
  lattice_spacing,
  level_laws,
  needed_ratings,
  plan,
)
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import Ratings, from_arrays
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import power_mf as module
from dpmf_jax.systems import power_mf_steps, power_mf_sums
from dpmf_jax.systems.power_mf import power_mf
from dpmf_jax.systems.row_factors import (
  gauge_of,
  prior_of,
  second_moment,
  shortened,
  shrunk_rows,
)
from dpmf_jax.systems.row_means import level_ridge, shrunk_means
from dpmf_jax.systems.user_levels import levels_of_users
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)
SHIFT = 6


def make(**fields):
  fields = {'epsilon': 4.0, 'delta': 1e-6, 'scale': SCALE} | fields
  return PowerMFConfig(relation='add_remove', **fields)


def without_noise(state):
  return state._replace(hyper=quiet(state.hyper))


def spread_ratings():
  """A popular item, items and users with one rating, values at both ends."""
  users = [0, 1, 2, 3, 4, 5, 0, 1, 2, 1, 2, 0]
  items = [0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 4]
  values = [5, 1, 3, 5, 1, 4, 1, 5, 5, 2, 4, 1]
  return from_arrays(users, items, values, scale=SCALE)


def side(ratings, by):
  data = training_data(ratings)
  others = ratings.num_users if by == 'item' else ratings.num_items
  rows = data.by_item if by == 'item' else data.by_user
  own = ratings.item if by == 'item' else ratings.user
  return data, rows, others, own


@functools.partial(jax.jit, static_argnames=('others', 'how'))
def pair_of(key, state, rows, column_mean, others, how):
  label = power_mf_sums.labels(rows, state.hyper, column_mean)
  found = power_mf_sums.noisy_pair(key, state, rows, others, label, how)
  return found.number, found.total


@jax.jit
def sums_of(key, state, rows, means, own, other):
  label = power_mf_sums.labels(rows, state.hyper, *means)
  return power_mf_sums.noisy_sums(key, state, rows, label, own, other)


item_sums = jax.jit(power_mf_steps.item_sums)


@pytest.mark.parametrize('by', ['item', 'user'])
@pytest.mark.parametrize('count_scale', [0.4, 2.0])
def test_removing_any_rating_moves_counts_and_sums_by_at_most_sensitivity(
  by, count_scale
):
  ratings = spread_ratings()
  config = make(count_scale=count_scale)
  bound = plan(config).sensitivity['counts and sums']
  assert np.hypot(count_scale, 2) <= bound <= 1.002 * np.hypot(count_scale, 2)
  data = training_data(ratings)
  state = without_noise(power_mf(config).init(jax.random.key(0), data))
  # Means far off, so that labels are clipped.
  for means in (0.0, 3.0):

    def pair(table, means=means):
      _, rows, others, _ = side(table, by)
      columns = jnp.full(others, means)
      found = pair_of(
        jax.random.key(1), state, rows, columns, others, (False, SHIFT)
      )
      return np.asarray(found, np.float64).T * [count_scale, 1.0]

    before, largest = pair(ratings), 0.0
    own = side(ratings, by)[-1]
    for gone in range(len(ratings)):
      kept = ratings.take(np.arange(len(ratings)) != gone)
      moved = np.linalg.norm(before - pair(kept), axis=1)
      assert 0 < moved[own[gone]] <= bound
      assert not np.delete(moved, own[gone]).any()
      largest = max(largest, moved.max())
    assert largest > 0.99 * bound  # it is reached


@pytest.mark.parametrize('by', ['item', 'user'])
@pytest.mark.parametrize(('rank', 'size'), [(1, 1.0), (3, 0.2), (3, 50.0)])
def test_removing_any_rating_moves_one_row_of_factor_sums_by_at_most_its_bound(
  by, rank, size
):
  ratings = spread_ratings()
  config = make(rank=rank)
  bound = plan(config).sensitivity['factors']
  assert 0.6 <= bound <= 0.6 * 1.002
  rng = np.random.default_rng(0)
  data, _, others, own = side(ratings, by)
  state = without_noise(power_mf(config).init(jax.random.key(0), data))
  num_rows = ratings.num_items if by == 'item' else ratings.num_users
  mine = jnp.float32(size * rng.normal(size=(num_rows, rank)))
  other = jnp.float32(size * rng.normal(size=(others, rank)))
  if rank == 1:
    other = jnp.ones_like(other)
  means = (
    jnp.float32(rng.normal(size=others)),
    jnp.float32(rng.normal(size=num_rows)),
  )

  def sums(table):
    _, rows, _, _ = side(table, by)
    found = sums_of(jax.random.key(1), state, rows, means, mine, other)
    return np.asarray(found, np.float64)

  before, largest = sums(ratings), 0.0
  for gone in range(len(ratings)):
    kept = ratings.take(np.arange(len(ratings)) != gone)
    moved = np.linalg.norm(before - sums(kept), axis=1)
    assert moved[own[gone]] <= bound
    assert not np.delete(moved, own[gone]).any()
    largest = max(largest, moved.max())
  if size >= 1:
    assert largest > 0.99 * bound  # it is reached


@pytest.mark.parametrize('apart', [False, True])
@pytest.mark.parametrize('by', ['user', 'item'])
def test_a_rating_moves_sums_of_its_own_part_alone(by, apart):
  rng = np.random.default_rng(1)
  users, items = np.divmod(rng.choice(24 * 11, 100, replace=False), 11)
  ratings = from_arrays(users, items, rng.choice([1.0, 5.0], 100), scale=SCALE)
  config, part = make(rank=3), tried_pairs(24, 11)
  data, rows, others, own = side(ratings, by)
  state = without_noise(power_mf(config).init(jax.random.key(0), data))
  mine, other = (
    jnp.float32(rng.normal(size=(size, 3))) for size in (rows.num_rows, others)
  )

  @jax.jit
  def found(rows):
    label = power_mf_sums.labels(rows, state.hyper, None)
    label = power_mf_sums.of_part(rows, label, apart=apart)
    key = jax.random.key(1)
    return power_mf_sums.noisy_sums(key, state, rows, label, mine, other)

  def sums(table):
    return np.asarray(found(side(table, by)[1]), np.float64)

  before, largest = sums(ratings), 0.0
  for gone in range(len(ratings)):
    kept = ratings.take(np.arange(len(ratings)) != gone)
    moved = np.linalg.norm(before - sums(kept), axis=1)
    assert not np.delete(moved, own[gone]).any()
    pair = int(ratings.user[gone]), int(ratings.item[gone])
    assert (moved[own[gone]] > 0) == ((pair in part) == apart)
    largest = max(largest, moved.max())
  assert 0.95 * 0.6 < largest <= plan(config).sensitivity['factors']


@pytest.mark.parametrize('done', [2, 3])
def test_counts_and_residuals_in_place_of_factors_have_the_same_bound(done):
  ratings = spread_ratings()
  config = make(rank=3, epsilon=20.0)
  bound = plan(config).sensitivity['factors']
  asked = 'counted' if done == 2 else 'left'

  def sums(table):
    data = training_data(table)
    state = power_mf(config).init(jax.random.key(0), data)
    state = state._replace(done=jnp.int32(done))
    # The same noise for all tables.
    found = item_sums(jax.random.key(1), state, data)
    total, precision = getattr(found, asked)
    unit = config.residual_bound if done == 2 else 1.0
    return np.asarray(total, np.float64) / float(precision) * unit

  before, largest = sums(ratings), 0.0
  for gone in range(len(ratings)):
    kept = ratings.take(np.arange(len(ratings)) != gone)
    moved = np.abs(before - sums(kept))
    assert moved[ratings.item[gone]] <= bound
    assert not np.delete(moved, ratings.item[gone]).any()
    largest = max(largest, moved.max())
  assert largest > 0.99 * bound


number_of = jax.jit(power_mf_sums.with_number)


@pytest.mark.parametrize(
  'devices', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_rating_less_moves_their_number_by_one(devices):
  ratings, config = spread_ratings(), make(rank=3, number_share=0.01)
  assert plan(config).sensitivity['number of ratings'] == 1.0
  mesh = device_mesh(2) if devices == 2 else None

  def number(table):
    data = training_data(table, mesh=mesh)
    state = power_mf(config).init(jax.random.key(0), data)
    # The same noise for all tables.
    return int(number_of(jax.random.key(1), state, data).ratings)

  before = number(ratings)
  for gone in range(len(ratings)):
    kept = ratings.take(np.arange(len(ratings)) != gone)
    assert number(kept) == before - 1


@pytest.mark.slow
def test_the_number_of_ratings_has_the_noise_that_is_stated():
  data = training_data(spread_ratings())
  config = make(rank=3, number_share=0.002, epsilon=5.0)
  state = power_mf(config).init(jax.random.key(0), data)
  found = jax.jit(
    jax.vmap(lambda key: power_mf_sums.with_number(key, state, data))
  )(jax.random.split(jax.random.key(0), 20_000)).ratings
  (scale,) = plan(config).noise['number of ratings']
  assert scale == pytest.approx(100)
  assert_scale(np.asarray(found) - 12, 'laplace', scale)


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 5.0, 25.0])
def test_what_the_number_decides_on_spends_what_is_left(epsilon):
  """Either of the two, and the number besides, is what is stated."""
  config = make(rank=4, epsilon=epsilon, number_share=0.002)
  made = plan(config)
  number, either = made.guarantee.event.events
  assert (
    number.epsilon == 0.002 * epsilon == 1 / made.noise['number of ratings'][0]
  )
  stated = accounting.epsilon(made.guarantee, config.delta)
  assert (1 - 1e-6) * epsilon <= stated <= epsilon
  factors, means = either.events
  squares = [
    (made.sensitivity[what] / scale) ** 2
    for what in ('counts and sums', 'factors')
    for scale in made.noise[what]
  ]
  # A millionth more, for float32, in both.
  assert factors.noise_multiplier < 1 / np.sqrt(sum(squares))
  what = 'counts and sums alone'
  loss = made.sensitivity[what] / made.noise[what][0]
  assert means.noise_multiplier == pytest.approx(1 / loss, rel=1e-12)
  for one in (factors, means):
    part = accounting.delta_left(made.guarantee.event, config.delta)
    exact = accounting.exact_noise(one)
    assert number.epsilon + accounting.epsilon(exact, part) <= epsilon
  # After the first step the number is spent, and after two all of it may be.
  spent = [made.epsilon(steps, config.delta) for steps in (0, 1, 2, made.steps)]
  assert spent[0] == 0
  assert 0.9 * number.epsilon < spent[1] <= number.epsilon
  assert spent[2] == spent[3] == stated
  assert made.steps == plan(make(rank=4, epsilon=epsilon)).steps + 1
  assert [made.rounds(steps) for steps in (2, 3, 5)] == [None, 0, 1]


@pytest.mark.slow
def test_the_number_alone_decides():
  """Means as with rank 0 below what is needed, and all steps from there."""
  data = training_data(spread_ratings())
  config = make(rank=2, rounds=1, epsilon=10.0, number_share=0.002)
  system = power_mf(config)
  start = system.init(jax.random.key(0), data)
  users, items = (rows.num_rows for rows in data)
  needed = math.ceil(needed_ratings(config, users, items))
  assert needed == math.ceil(start.hyper.needed) > 10 * users
  step = jax.jit(system.step)

  def run(ratings):
    state = start._replace(ratings=jnp.int32(ratings), done=jnp.int32(1))
    for number in range(1, system.steps):
      state = step(jax.random.key(number), state, data)
    return state

  few, enough = run(needed - 1), run(needed)
  means = power_mf(make(rank=0, epsilon=10.0))
  alone = jax.jit(means.step)(
    jax.random.key(1), means.init(jax.random.key(0), data), data
  )
  # The same draws, of nearly the same scale.
  np.testing.assert_allclose(few.pair.number, alone.pair.number, rtol=0.05)
  assert not np.asarray(few.factors.item).any()
  # Nothing was asked of users.
  for found, begun in zip(few.user, start.user, strict=True):
    np.testing.assert_array_equal(found, begun)
  plain = power_mf(make(rank=2, rounds=1, epsilon=10.0))
  state = plain.init(jax.random.key(0), data)
  for number in range(plain.steps):
    state = jax.jit(plain.step)(jax.random.key(number + 1), state, data)
  np.testing.assert_allclose(enough.pair.number, state.pair.number, rtol=0.05)
  np.testing.assert_allclose(enough.user.mean, state.user.mean, atol=0.05)


@pytest.mark.parametrize('side', ['by_user', 'by_item'])
def test_parts_of_a_trial_are_of_pairs_and_add_up(side):
  """Exact sums over both parts are those over all; a rating is in one part."""
  users, items = 40, 30
  every = [
    (u, i, 1.0 + (u + i) % 5) for u in range(users) for i in range(items)
  ]
  data = training_data(table(every, users, items))
  rows = getattr(data, side)
  rng = np.random.default_rng(0)
  columns = [
    lattice.columns(rng.normal(size=(size, 3)), jnp.float32(1))
    for size in (rows.num_rows, rows.num_columns)
  ]

  @jax.jit
  def sums(label):
    return lattice.row_gradient(
      dataclasses.replace(rows, value=label),
      *columns,
      offset=jnp.float32(0),
      low=jnp.float32(-np.inf),
      high=jnp.float32(np.inf),
      residual_bound=jnp.float32(2),
      shift=jnp.int32(0),
    )

  label = rows.value - 3
  parts = [
    power_mf_sums.of_part(rows, label, apart=apart) for apart in (False, True)
  ]
  np.testing.assert_array_equal(sum(map(sums, parts)), sums(label))
  there = np.arange(rows.column.shape[-1]) < np.asarray(rows.length)[..., None]
  apart = ~np.isnan(parts[1]) & there
  assert not (apart & ~np.isnan(parts[0])).any()
  assert 0.09 < apart.sum() / there.sum() < 0.16  # an eighth
  # The same pairs, in whichever layout.
  row = np.broadcast_to(np.asarray(rows.row)[..., None], apart.shape)[apart]
  column = np.asarray(rows.column)[apart]
  user, item = (row, column) if side == 'by_user' else (column, row)
  assert set(zip(user.tolist(), item.tolist(), strict=True)) == tried_pairs(
    users, items
  )


def tried_pairs(users, items):
  """Those that a trial leaves out, number by number."""
  found = set()
  for user in range(users):
    for item in range(items):
      mixed = user * 0x9E3779B1 % 2**32
      mixed = ((mixed ^ (mixed >> 15)) + item) % 2**32
      mixed = mixed * 0x85EBCA77 % 2**32
      mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE3D % 2**32
      if (mixed >> 16) % 8 == 0:
        found.add((user, item))
  return found


def test_factors_are_tried_where_they_may_be_worth_it():
  data = training_data(spread_ratings())
  system = power_mf(make(rank=2, rounds=6, epsilon=10.0))
  start = system.init(jax.random.key(0), data)
  least, sure = (float(each) for each in module._needed(start))
  assert 0 < least < sure
  means, biases, users, items, sums, *trial, asks = range(8)
  which = jax.jit(system.step.which)

  def kinds(ratings, gain=0.0):
    number = jnp.zeros(len(start.factors.item)).at[0].set(ratings)
    state = start._replace(item=start.item._replace(number=number))
    return [
      int(which(state._replace(done=jnp.int32(done), gain=jnp.float32(gain))))
      for done in range(system.steps)
    ]

  first, tried = [means, biases], [*trial, *trial, *trial, trial[0], asks]
  assert kinds(least - 1) == first + [sums] * 12
  assert kinds(least + 1, gain=-0.1) == first + tried + [sums] * 4
  assert kinds(sure - 1, gain=0.1) == first + tried + [users, items] * 2
  assert kinds(sure + 1) == first + [users, items] * 6
  # With few rounds there is no trial.
  few = power_mf(make(rank=2, rounds=4, epsilon=10.0))
  least, sure = module._needed(few.init(jax.random.key(0), data))
  assert least == sure


@pytest.mark.slow
def test_a_trial_finds_taste_and_nothing_else():
  """Users and items have 24 ratings, which alone would be too few."""
  means, factors = (
    held_out(epsilon=15.0, rank=0),
    planted_run(epsilon=20.0, delta=1e-3, rank=3, rounds=6),
  )
  assert factors[0].gain > 0
  assert factors[1] < means - 0.1
  none = made_ratings.sparse(
    num_users=400, num_items=150, per_user=40.0, scale=SCALE, of_users=0.1,
    seed=1, name='none',
  )  # fmt: skip
  system = power_mf(make(epsilon=20.0, delta=1e-3, rank=3, rounds=6))
  state = fit(system, jax.random.key(0), training_data(none))
  assert state.gain < 0
  assert not np.asarray(state.factors.item).any()


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [0.1, 10.0])
def test_a_run_compiles_the_steps_that_it_takes(epsilon):
  """The same states as of one program that has them all."""
  data, key = training_data(spread_ratings()), jax.random.key(3)
  system = power_mf(make(rank=2, epsilon=epsilon, number_share=0.01))
  states, compiled = [], training._one._cache_size()
  fit(
    system, jax.random.clone(key), data, report_every=1,
    callbacks=[lambda progress: states.append(progress.state)],
  )  # fmt: skip
  which = jax.jit(system.step.which)
  kinds = {int(which(state)) for state in states[:-1]}
  assert training._one._cache_size() - compiled <= len(kinds)
  assert len(kinds) < len(system.step.each)
  steps_key = jax.random.split(key)[1]
  with training.in_float32():
    want = training._block(
      system.step, steps_key, states[0], data, 0, system.steps
    )
  for found, other in zip(
    jax.tree.leaves(states[-1]), jax.tree.leaves(want), strict=True
  ):
    np.testing.assert_allclose(found, other, rtol=1e-3, atol=1e-4)


@jax.jit
def exact_levels(rows):
  """Of ratings as they are, from the middle of 1..5."""
  return levels_of_users(rows, rows.value - 3)


def levels_of(values):
  """Of one user's ratings on 1..5: exact, but for the last rounding."""
  steps = [int(np.clip(np.rint(4 * (value - 3)), -6, 6)) for value in values]
  number = len(steps)
  if number < 2:
    return np.zeros(2, int)
  squares = sum(step * step for step in steps)
  pairs = sum(steps) ** 2 - squares
  return np.array(
    [
      math.floor(Fraction(min(number, 8) * each, many) + Fraction(1, 2))
      for each, many in ((pairs, number * (number - 1)), (squares, number))
    ]
  )


def test_levels_are_sums_over_users_of_products_and_squares():
  crowd = crowd_of(20, 15)
  users = range(crowd.num_users)
  by_hand = sum(levels_of(crowd.value[crowd.user == user]) for user in users)
  for data in (training_data(crowd), *layouts(crowd)):
    np.testing.assert_array_equal(exact_levels(data.by_user), by_hand)


def test_a_rating_moves_levels_by_no_more_than_is_stated():
  """Users with every number of ratings at one end of the scale, or amid it."""
  largest = np.zeros(2, int)
  for number in range(25):
    for low in range(number + 1):
      for rest in (3.0, 5.0):
        own = [1.0] * low + [rest] * (number - low)
        moved = [levels_of([*own, new]) - levels_of(own) for new in (1, 3, 5)]
        largest = np.maximum(largest, np.abs(moved).max(axis=0))
  stated = np.array(user_levels.sensitivities())
  assert (largest <= stated).all()
  assert (largest >= stated - 1).all()  # they are reached, but for rounding


@pytest.mark.parametrize('epsilon', [0.2, 1.0, 12.0])
@pytest.mark.parametrize('rank', [0, 3])
def test_levels_spend_what_means_leave_of_epsilon(epsilon, rank):
  number = {'number_share': 0.002} if rank else {}
  config = make(rank=rank, epsilon=epsilon, level_share=0.1, **number)
  made, levels = plan(config), level_laws(config)
  stated = accounting.epsilon(made.guarantee, config.delta)
  assert (1 - 1e-3) * epsilon <= stated <= epsilon
  left = epsilon * (1 - 0.002) if rank else epsilon
  assert levels.epsilon == pytest.approx(min(0.1 * left, 1.0), rel=1e-9)
  assert 0 < levels.uncovered < 1e-13
  names = 'products of a user', 'squares of a user'
  spent = sum(made.sensitivity[name] / made.noise[name][0] for name in names)
  assert spent == pytest.approx(levels.epsilon, rel=1e-12)
  what = 'counts and sums alone' if rank else 'counts and sums'
  means = made.sensitivity[what] / made.noise[what][0]
  assert means + levels.epsilon == pytest.approx(left, rel=1e-5)
  assert means + levels.epsilon <= left
  without = plan(make(rank=rank, epsilon=epsilon, **number))
  assert made.steps == without.steps + (not rank)
  # What the ends of noise cost differs where epsilon is large.
  factors = without.noise['factors']
  assert made.noise['factors'] == pytest.approx(factors, rel=1e-6)


@pytest.mark.slow
def test_levels_have_the_noise_that_is_stated():
  data = training_data(spread_ratings())
  config = make(rank=0, level_share=0.1)
  state = power_mf(config).init(jax.random.key(0), data)
  found = jax.jit(
    jax.vmap(lambda key: power_mf_sums.with_levels(key, state, data))
  )(jax.random.split(jax.random.key(0), 20_000)).levels
  moved = np.asarray(found) - np.asarray(exact_levels(data.by_user))
  for column, name in zip(
    moved.T, ('products of a user', 'squares of a user'), strict=True
  ):
    assert_scale(column, 'laplace', plan(config).noise[name][0])
  assert abs(np.corrcoef(moved.T)[0, 1]) < 0.03


def test_levels_are_asked_for_where_means_are_all_there_is():
  data, key = training_data(spread_ratings()), jax.random.key(0)
  alone = power_mf(make(rank=0, level_share=0.1))
  found = fit(alone, key, data)
  assert np.asarray(found.levels).any()
  assert alone.steps == 2
  # As with the same epsilon for means alone, but for the ridge of biases.
  config = make(rank=0, level_share=0.1)
  (scale,) = plan(config).noise['counts and sums']
  (usual,) = plan(make(rank=0)).noise['counts and sums']
  assert scale == pytest.approx(usual / 0.9, rel=1e-5)
  ridge = found.hyper.bias_ridge
  without = found._replace(levels=jnp.zeros(2, jnp.int32))
  own, plain = (alone.model(state, data).fit for state in (found, without))
  assert own.ridge[1] != plain.ridge[1] < ridge


@pytest.mark.slow
def test_the_number_decides_on_levels_too():
  data = training_data(spread_ratings())
  more = {'rank': 2, 'rounds': 1, 'number_share': 0.002, 'level_share': 0.02}
  system = power_mf(make(epsilon=10.0, **more))
  start, step = system.init(jax.random.key(0), data), jax.jit(system.step)

  def run(ratings):
    state = start._replace(ratings=jnp.int32(ratings), done=jnp.int32(1))
    levels = []
    for number in range(1, system.steps):
      state = step(jax.random.key(number), state, data)
      levels.append(np.asarray(state.levels))
    return state, levels

  few, levels = run(0)
  assert not levels[0].any()
  assert levels[1].any()
  for later in levels[2:]:
    np.testing.assert_array_equal(later, levels[1])
  assert not np.asarray(few.factors.item).any()
  _, levels = run(2**30)
  assert not np.any(levels)


def test_the_ridge_of_biases_is_what_levels_ask_for():
  stds = jnp.float32([10.0, 10.0])
  ridge = lambda product, square, stds=stds: float(
    level_ridge(jnp.float32([product, square]), stds, jnp.float32(3.0))
  )
  # Variances of levels of a third, of nothing and of nearly all.
  assert ridge(1e5, 3e5) == pytest.approx(2.0, rel=0.01)
  assert ridge(0.0, 3e5) == pytest.approx(49.0, rel=0.05)
  assert ridge(3e5, 3e5) == pytest.approx(0.25, rel=0.05)
  # What noise hides is as usual.
  for hidden in (ridge(-50.0, -20.0), ridge(5.0, 1.0)):
    assert hidden == pytest.approx(3.0, rel=0.2)
  assert ridge(1.0, 3.0, 1e4 * stds) == pytest.approx(3.0, rel=0.05)


def test_levels_of_too_many_users_or_items_are_refused(monkeypatch):
  data, key = training_data(spread_ratings()), jax.random.key(0)
  system = power_mf(make(rank=0, level_share=0.1))
  for what, number in ('users', 6), ('items', 5):
    with monkeypatch.context() as patch:
      patch.setattr(user_levels, f'MAX_{what.upper()}', number - 1)
      with pytest.raises(ValueError, match=f'at most {number - 1} {what}'):
        system.init(key, data)
  system.init(key, data)


@pytest.mark.slow
@pytest.mark.parametrize('of_users', [0.0, 0.2])
def test_biases_are_shrunk_as_users_differ(of_users):
  """Better than without, though means have less: all alike, or far apart."""
  ratings = made_ratings.sparse(
    num_users=6_000, num_items=500, per_user=3.0, scale=SCALE,
    of_users=of_users, seed=1, name='made',
  )  # fmt: skip
  train, test = random_split(ratings, 0.2, seed=0)
  data, held = training_data(train), training_data(test).by_user

  def error(**fields):
    system = power_mf(make(rank=0, **fields))
    state = fit(system, jax.random.key(0), data)
    return metrics.rmse(jax.jit(system.model)(state, data), held, SCALE)

  assert error(level_share=0.02) < error() - 0.01


@pytest.mark.slow
def test_a_run_that_decides_goes_on_where_it_was():
  data = training_data(spread_ratings())
  system = power_mf(make(rank=2, rounds=2, number_share=0.01))
  kept = {}
  whole = fit(
    system, jax.random.key(3), data, report_every=1,
    callbacks=[lambda progress: kept.update({progress[0]: progress[1]})],
  )  # fmt: skip
  for done in (1, 2, 4):
    again = fit(system, jax.random.key(3), data, start=(done, kept[done]))
    for one, other in zip(
      jax.tree.leaves(whole), jax.tree.leaves(again), strict=True
    ):
      np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
  'rank', [3, pytest.param(15, marks=pytest.mark.slow), 63]
)
def test_rounding_moves_every_coordinate_of_a_row(rank):
  """So that the bound must grow with the rank, by what rounding adds.

  Users rated item 0, whose coordinates are alike and a bit more than a whole
  number of steps each, and item 1, which brings the sums of some of them to
  where the term of item 0 crosses one step more, in all coordinates at once.
  """
  config = make(rank=rank, lattice_bits=4)
  values = np.linspace(2.4, 3.0, 200)
  users = np.arange(200)
  both = from_arrays(
    np.tile(users, 2),
    np.repeat([0, 1], 200),
    np.concatenate([np.full(200, 1.0), values]),
    scale=SCALE,
  )
  other = jnp.ones((2, rank)) * jnp.array([[1.0], [1 / 16]])

  def sums(table):
    data, rows, _, _ = side(table, 'user')
    state = without_noise(power_mf(config).init(jax.random.key(0), data))
    found = sums_of(
      jax.random.key(1), state, rows, (jnp.zeros(2), jnp.zeros(200)),
      jnp.zeros((200, rank)), other,
    )  # fmt: skip
    return np.asarray(found, np.float64)

  moved = np.linalg.norm(sums(both) - sums(both.take(both.item == 1)), axis=1)
  bound = plan(config).sensitivity['factors']
  assert 0.97 * bound < moved.max() <= bound
  # One coordinate's rounding would not be enough.
  spacing = lattice_spacing(config)
  assert moved.max() > config.residual_bound + spacing


def test_without_noise_sums_are_those_of_a_loop(small_ratings):
  config = make(rank=3)
  data = training_data(small_ratings)
  state = without_noise(power_mf(config).init(jax.random.key(0), data))
  rng = np.random.default_rng(0)
  user, item = (0.4 * rng.normal(size=(n, 3)) for n in (60, 40))
  bias, mean = (0.3 * rng.normal(size=n) for n in (60, 40))
  want = np.zeros_like(user)
  longest = np.maximum(1, np.linalg.norm(item, axis=1, keepdims=True))
  for u, i, r in zip(
    small_ratings.user, small_ratings.item, small_ratings.value, strict=True
  ):
    e = user[u] @ item[i] - (r - 3 - mean[i] - bias[u])
    want[u] += np.clip(e, -0.6, 0.6) * (item / longest)[i]
  found = sums_of(
    jax.random.key(1),
    state,
    data.by_user,
    (jnp.float32(mean), jnp.float32(bias)),
    jnp.float32(user),
    jnp.float32(item),
  )
  # Residuals are rounded to 2^-8 of their bound, factors to 2^-10.
  np.testing.assert_allclose(found, want, atol=0.1)
  count, total = pair_of(
    jax.random.key(1), state, data.by_item, None, 60, (False, config.shift)
  )
  centred = small_ratings.value - 3.0
  np.testing.assert_allclose(
    count, np.bincount(small_ratings.item, minlength=40), rtol=0.01
  )
  np.testing.assert_allclose(
    total, np.bincount(small_ratings.item, centred, 40), rtol=0.01, atol=0.01
  )


def empty_rows():
  """One rating, and 3,000 users and items without any."""
  ids = np.arange(3000)
  return Ratings(
    user=np.array([0]),
    item=np.array([0]),
    value=np.array([5.0]),
    user_ids=ids,
    item_ids=ids,
    scale=SCALE,
  )


@pytest.mark.slow
def test_noise_has_the_scale_that_is_accounted_for():
  ratings = empty_rows()
  data = training_data(ratings)
  config = make(rank=2, rounds=2, epsilon=1.0, count_scale=0.5)
  system, noise = power_mf(config), plan(config).noise
  start = system.init(jax.random.key(0), data)
  zeros = jnp.zeros((3000, 2))
  for done, scale in enumerate(noise['counts and sums'] + noise['factors']):
    state = start._replace(done=jnp.int32(done))
    if done < 2:
      pair = pair_of(
        jax.random.key(done), state, data.by_item, None, 3000, (False, SHIFT)
      )
      values = np.asarray(pair)[:, 1:] * [[0.5], [1.0]]
    else:
      values = sums_of(
        jax.random.key(done), state, data.by_item, (None,), zeros, zeros
      )[1:]
    assert_scale(np.ravel(values), 'norm', scale)


def test_pure_noise_has_its_scale_too():
  data = training_data(empty_rows())
  config = make(rank=0, epsilon=0.5, delta=0.0)
  state = power_mf(config).init(jax.random.key(0), data)
  pair = pair_of(
    jax.random.key(1), state, data.by_item, None, 3000, (True, SHIFT)
  )
  norms = np.linalg.norm(np.asarray(pair)[:, 1:], axis=0)
  (scale,) = plan(config).noise['counts and sums']
  assert_scale(norms, scipy.stats.gamma(2).cdf, scale)
  guarantee = power_mf(config).guarantee
  least = accounting.uncovered(guarantee)
  assert accounting.epsilon(guarantee, least) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.slow
def test_noise_of_means_that_were_chosen_has_its_scale_too():
  data = training_data(empty_rows())
  config = make(rank=2, rounds=1, epsilon=0.5, number_share=0.002)
  state = power_mf(config).init(jax.random.key(0), data)
  alone = jax.jit(power_mf_steps.item_means_alone, static_argnums=3)
  pair = alone(
    jax.random.key(1), state._replace(done=jnp.int32(1)), data, SHIFT
  ).pair
  norms = np.hypot(pair.number, pair.total)[1:]
  (scale,) = plan(config).noise['counts and sums alone']
  assert_scale(norms, scipy.stats.gamma(2).cdf, scale)
  assert float(pair.total_variance) == pytest.approx(3 * scale**2, rel=1e-5)
  # The others are where they would be without a number before them.
  (first, second), rows = (
    plan(config).noise[what] for what in ('counts and sums', 'factors')
  )
  hyper = state.hyper
  np.testing.assert_allclose(hyper.totals.std, [first, second, scale], 1e-6)
  for done, want in enumerate(rows, start=3):
    at = power_mf_sums.row_noise(state._replace(done=jnp.int32(done)))
    assert float(at.std) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize('rounds', [1, 8])
def test_all_steps_together_spend_what_is_stated(rounds):
  config = make(rank=5, rounds=rounds, epsilon=2.0)
  made = plan(config)
  assert len(made.shares) == made.steps == 2 + 2 * rounds
  losses = [
    (made.sensitivity[what] / scale) ** 2
    for what, scales in made.noise.items()
    for scale in scales
  ]
  np.testing.assert_allclose(losses / np.sum(losses), made.shares)
  assert sum(made.shares) == pytest.approx(1)
  mu = np.sqrt(sum(losses))
  stated = made.guarantee.event.noise_multiplier
  # A millionth more, for float32.
  assert 1 / mu == pytest.approx(stated * 1.000001, rel=1e-9)
  guarantee = power_mf(config).guarantee
  assert accounting.epsilon(guarantee, 1e-6) <= 2.0
  # No padding of the schedule is without noise.
  data = training_data(spread_ratings())
  hyper = power_mf(config).init(jax.random.key(0), data).hyper
  for noise in (hyper.counts, hyper.totals, hyper.rows):
    assert float(noise.std.min()) > 0


def planted_rows(noise, seed=0, rows=800):
  rng = np.random.default_rng(seed)
  number = np.floor(np.exp(rng.normal(3.0, 1.2, rows)))
  mean = 0.3 + 0.15 * (np.log1p(number) - 3) + 0.4 * rng.normal(size=rows)
  total = number * mean + np.sqrt(number) * rng.normal(size=rows)
  noisy = rng.normal(size=(2, rows)) * noise
  found = jax.jit(shrunk_means, static_argnames=('most',))(
    jnp.float32(number + noisy[0]),
    jnp.float32(total + 2 * noisy[1]),
    count_variance=jnp.float32(noise**2),
    total_variance=jnp.float32(4 * noise**2),
    most=10_000,
  )
  return number, mean, total, found


def test_means_without_noise_are_shrunk_to_the_line():
  number, mean, total, found = planted_rows(0.1)
  own = total / np.maximum(number, 1)
  long = number > 200
  np.testing.assert_allclose(found.mean[long], own[long], atol=0.05)
  np.testing.assert_allclose(found.number, number, atol=1.0)
  error = lambda guess: np.mean((guess - mean) ** 2)
  assert error(found.mean) < 0.9 * error(own)


@pytest.mark.slow
def test_means_of_few_ratings_survive_noise_of_heavy_tails():
  """Of L2-Laplace noise, which is larger than most rows are long."""
  rng = np.random.default_rng(1)
  number = np.floor(900.0 * np.arange(1, 3001) ** -0.7)
  mean = 0.8 + 0.2 * rng.normal(size=3000)
  total = number * mean + np.sqrt(number) * rng.normal(size=3000)
  radius, angle = rng.gamma(2, 20.0, 3000), rng.uniform(0, 2 * np.pi, 3000)
  variance = jnp.float32(3 * 20.0**2)
  noisy = (
    jnp.float32(number + radius * np.cos(angle)),
    jnp.float32(total + radius * np.sin(angle)),
  )
  shrunk = jax.jit(shrunk_means, static_argnames=('most', 'pure'))
  found, taken_for_gaussian = (
    shrunk(
      *noisy,
      count_variance=variance,
      total_variance=variance,
      most=20_000,
      pure=pure,
    )
    for pure in (True, False)
  )
  every = float(noisy[0].sum())
  np.testing.assert_allclose(found.number.sum(), every, rtol=0.1)

  def error(means):
    rest = np.asarray(means.mean) - mean
    return number @ np.square(rest - number @ rest / number.sum())

  assert error(found) < 0.95 * error(taken_for_gaussian)
  # No more than means vary.
  assert error(found) < 0.04 * number.sum()


@pytest.mark.parametrize('noise', [3.0, 30.0, 300.0])
def test_means_are_never_worse_than_one_for_all(noise):
  # Weighted by ratings, as an error over ratings is.
  number, mean, _, found = planted_rows(noise)
  weight = number / number.sum()

  def error(guess):
    # Users have biases of their own: a constant costs nothing.
    rest = np.asarray(guess) - mean
    return weight @ (rest - weight @ rest) ** 2

  constant = error(0 * mean)
  assert error(found.mean) < 1.02 * constant
  if noise < 10:
    assert error(found.mean) < 0.2 * constant
  assert np.isfinite(found.mean).all()
  assert (np.asarray(found.number) >= 0).all()


@jax.jit
def shrunk(sums, count, moment, *, error, variance, bound=jnp.inf):
  """Factors, and the covariance of rows."""
  prior = prior_of(
    sums, count, moment, error=error, variance=variance, bound=bound
  )
  found = shrunk_rows(prior, sums, count, error=error, variance=variance)
  return found, prior.covariance


def test_factors_are_found_where_noise_is_small_and_vanish_where_it_is_not():
  rng = np.random.default_rng(0)
  truth = rng.normal(size=(500, 3)) * [1.0, 0.5, 0.2]
  count = rng.integers(50, 150, 500).astype(float)
  other = rng.normal(size=(400, 3))
  moment = second_moment(jnp.float32(other), jnp.ones(400))
  np.testing.assert_allclose(moment, other.T @ other / 400, rtol=1e-4)
  exact = count[:, None] * (truth @ np.asarray(moment))
  give = functools.partial(
    shrunk,
    count=jnp.float32(count),
    moment=moment,
    error=jnp.float32(1),
  )
  found, prior = give(jnp.float32(exact), variance=jnp.float32(1))
  np.testing.assert_allclose(found, truth, atol=0.2)
  np.testing.assert_allclose(np.trace(prior), (truth**2).sum() / 500, atol=0.2)
  noisy = exact + 1e4 * rng.normal(size=exact.shape)
  drowned, _ = give(jnp.float32(noisy), variance=jnp.float32(1e8))
  assert np.abs(drowned).max() < 0.2 * np.abs(truth).max()


def test_many_rows_of_two_ratings_and_much_noise_have_no_factors():
  rng = np.random.default_rng(1)
  count, moment = np.full(20_000, 2.0), np.diag([0.1, 0.12])
  errors = rng.uniform(-0.6, 0.6, (20_000, 2)) * np.sqrt(2 * np.diag(moment))
  found, prior = shrunk(
    jnp.float32(errors + 4.0 * rng.normal(size=errors.shape)),
    jnp.float32(count),
    jnp.float32(moment),
    error=jnp.float32(0.8),
    variance=jnp.float32(16),
    bound=jnp.float32(0.6),
  )
  # What a factor could add to a rating, in squared quarters of the scale.
  assert np.trace(prior @ moment) < 0.02
  assert np.trace(np.cov(found.T) @ moment) < 0.02


@functools.cache
def sparse():
  """Two ratings of a user, about, by whose mean they can be told apart."""
  rng = np.random.default_rng(5)
  user = np.repeat(np.arange(3_000), rng.integers(2, 4, 3_000))
  item = rng.integers(0, 300, len(user))
  user, item = np.divmod(np.unique(user * 300 + item), 300)
  mean = rng.normal(size=3_000)[user] + 0.3 * rng.normal(size=300)[item]
  value = np.clip(
    np.rint(7 + 1.2 * mean + 1.2 * rng.normal(size=len(user))), 1, 10
  )
  ratings = Ratings(
    user=user,
    item=item,
    value=value,
    user_ids=np.arange(3_000),
    item_ids=np.arange(300),
    scale=(1.0, 10.0),
  )
  train, test = random_split(ratings, 0.2, seed=0)
  return train, test, training_data(train), training_data(test).by_user


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [1.0, 5.0])
def test_users_of_two_ratings_are_no_worse_off_than_with_their_means(epsilon):
  train, test, data, held = sparse()
  system = power_mf(make(scale=(1.0, 10.0), epsilon=epsilon, rank=3, rounds=6))
  state = fit(system, jax.random.key(0), data)
  model = jax.jit(system.model)(state, data)
  alone = metrics.baselines(train, test)['user_mean']
  assert metrics.rmse(model, held, train.scale) < alone
  # Counts and sums of items were asked for in place of factors.
  assert not np.asarray(state.factors.item).any()
  true = np.bincount(train.item, minlength=300)
  of_pair = np.abs(np.asarray(state.item.number) - true).mean()
  assert np.abs(np.asarray(model.number) - true).mean() < 0.7 * of_pair


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [1.0, 5.0])
def test_where_users_have_few_ratings_auto_is_as_good_as_means(epsilon):
  train, _, data, held = sparse()

  def error(**fields):
    system = power_mf(make(scale=(1.0, 10.0), epsilon=epsilon, **fields))
    model = jax.jit(system.model)
    states = (fit(system, jax.random.key(seed), data) for seed in range(5))
    return np.mean(
      [metrics.rmse(model(state, data), held, train.scale) for state in states]
    )

  means, auto = error(rank=0), error(rank=3, rounds=6, number_share=0.002)
  assert auto == pytest.approx(means, abs=0.01)
  assert auto < error(rank=3, rounds=6)


def balanced(factors, count, **how):
  """Factors in their gauge, and the gauge."""
  gauge = gauge_of(factors, count, **how)
  return shortened(factors, gauge), *gauge


@pytest.mark.parametrize('rank', [1, 3])
def test_a_gauge_keeps_products_and_bounds_norms(rank):
  rng = np.random.default_rng(0)
  factors = jnp.float32(rng.normal(size=(50, rank)) * 7)
  other = jnp.float32(rng.normal(size=(20, rank)))
  moved, there, back = balanced(
    factors,
    jnp.ones(50),
    quantile=jnp.float32(1.0),
    power=jnp.float32(0.35),
  )
  assert np.linalg.norm(moved, axis=1).max() <= 1 + 1e-6
  np.testing.assert_allclose(moved, factors @ there, rtol=1e-3, atol=1e-5)
  np.testing.assert_allclose(
    moved @ (other @ back).T, factors @ other.T, rtol=1e-3, atol=1e-3
  )
  halved, *_ = balanced(
    factors, jnp.ones(50), quantile=jnp.float32(0.5), power=jnp.float32(0.35)
  )
  assert (np.linalg.norm(halved, axis=1) > 1 - 1e-5).sum() == 25
  # All zeros stay so, without a NaN.
  still, *_ = balanced(
    0 * factors, jnp.ones(50), quantile=jnp.float32(0.5), power=jnp.float32(0.5)
  )
  assert not np.asarray(still).any()


@pytest.mark.parametrize('rank', [0, pytest.param(2, marks=pytest.mark.slow)])
def test_users_fit_a_ridge_regression_of_their_own(small_ratings, rank):
  config = make(epsilon=15.0, delta=1e-3, rank=rank, rounds=2)
  system = power_mf(config)
  data = training_data(small_ratings)
  state = fit(system, jax.random.key(0), data)
  model = jax.jit(system.model)(state, data)
  item = np.asarray(model.factors.item, np.float64)
  assert item.shape == (40, rank + 2)
  np.testing.assert_array_equal(item[:, 1], 1.0)
  number = np.sum(model.number) / small_ratings.num_users
  bias_ridge = 5 * (10 + number) / (20 + number)
  ridge = np.diag([4.0, bias_ridge] + [1.5] * rank)
  priors = np.tile(np.eye(rank + 2)[0], (small_ratings.num_users, 1))
  want = oracles.user_regressions(
    small_ratings, item, ridge=ridge, priors=priors, offset=float(model.offset)
  )
  np.testing.assert_allclose(model.factors.user, want, rtol=1e-3, atol=1e-3)
  release = system.release(state, data)
  assert release.factors.user is None
  np.testing.assert_array_equal(release.factors.item, model.factors.item)


@functools.cache
def planted():
  ratings = synthetic(
    num_users=300, num_items=200, num_ratings=15_000, rank=2, seed=3
  )
  train, test = random_split(ratings, 0.2, seed=0)
  return train, test, training_data(train), training_data(test).by_user


def held_out(**fields):
  return planted_run(**fields)[1]


def planted_run(**fields):
  """The last state, and the error on what was held out."""
  train, _, data, test = planted()
  system = power_mf(make(**fields))
  state = fit(system, jax.random.key(0), data)
  model = jax.jit(system.model)(state, data)
  return state, metrics.rmse(model, test, train.scale)


@pytest.mark.slow
def test_factors_are_better_than_means_and_means_than_users_alone():
  alone = metrics.baselines(*planted()[:2])['user_mean']
  means = held_out(epsilon=15.0, rank=0)
  factors = held_out(epsilon=20.0, delta=1e-3, rank=3, rounds=6)
  assert means < alone - 0.01
  assert factors < means - 0.01


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [1e-2, 0.1])
def test_no_epsilon_is_worse_than_the_user_mean(epsilon):
  alone = metrics.baselines(*planted()[:2])['user_mean']
  assert held_out(epsilon=epsilon, rank=0) < alone + 0.002


@pytest.mark.slow
def test_both_devices_give_what_one_gives(small_ratings):
  system = power_mf(make(rank=2, rounds=2))
  found = []
  for mesh in (None, device_mesh(2)):
    data = training_data(small_ratings, mesh=mesh)
    state = fit(system, jax.random.key(0), data)
    found.append(system.release(state, data).factors.item)
  np.testing.assert_allclose(*found, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_other_scales_give_the_same_up_to_scale(small_ratings):
  other = from_arrays(
    small_ratings.user,
    small_ratings.item,
    (small_ratings.value - 1) * 25,
    scale=(0.0, 100.0),
  )
  found = []
  for ratings in (small_ratings, other):
    system = power_mf(make(scale=ratings.scale, rank=2, rounds=2))
    data = training_data(ratings)
    state = fit(system, jax.random.key(0), data)
    model = jax.jit(system.model)(state, data)
    table = model.offset + model.factors.user @ model.factors.item.T
    found.append(np.asarray(table))
  np.testing.assert_allclose((found[0] - 1) * 25, found[1], atol=2.0)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'rank': -1}, 'rank'),
    ({'rank': 65}, r'rank=65 must be in 0\.\.64'),
    ({'rounds': 0}, r'rounds=0 must be in 1\.\.32'),
    ({'mean_share': 1.0}, 'mean_share=1.0 must be'),
    ({'bias_share': 0.9}, 'bias_share=0.9 must be'),
    ({'epsilon': 0.0}, 'epsilon=0.0 must be positive'),
    ({'delta': 0.0}, 'delta=0 needs rank=0'),
    ({'scale': (5.0, 1.0)}, 'lowest < highest'),
    ({'residual_bound': 100.0}, 'residual_bound=100.0 must be'),
    ({'epsilon': 60.0, 'delta': 1e-15}, 'delta=1e-15 is too small'),
    ({'scale': (1000.0, 1001.0)}, 'within 64 widths of 0'),
    ({'number_share': 0.6}, r'number_share=0.6 must be in \[0, 0.5\]'),
    ({'number_share': 0.1, 'delta': 1e-16}, 'delta=1e-16 is too small for'),
    ({'number_share': 1e-8}, 'of a count must be in'),
    ({'level_share': 0.02}, 'level_share=0.02 needs rank=0 or a number_share'),
    ({'level_share': 1e-4, 'rank': 0}, 'level_share=0.0001 of epsilon=4.0 is'),
    ({'level_share': 1e-320, 'rank': 0}, 'use a larger one, or 0'),
    ({'level_share': 0.6, 'rank': 0}, r'level_share=0.6 must be in \[0, 0.5\]'),
  ],
)
def test_wrong_settings_are_named(fields, message):
  with pytest.raises(ValueError, match=message):
    make(**fields)


def test_replace_is_refused():
  with pytest.raises(ValueError, match="relation='replace' must be"):
    PowerMFConfig(relation='replace', scale=SCALE, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize('rank', [1, 64])
def test_tails_of_all_draws_that_a_rating_moves_count(rank):
  """Of whatever epsilon is accepted: two pairs, and a row in each release."""
  lost = []
  for epsilon in np.geomspace(5, 50, 40):
    try:
      config = make(rank=rank, epsilon=epsilon, delta=1e-9, rounds=8)
    except ValueError:
      continue
    multiplier = plan(config).guarantee.tails.noise_multiplier
    lost.append(tails.uncovered(multiplier, 4 + 16 * rank))
  assert 1e-12 < max(lost) <= 1e-2 * 1e-9
  assert len(lost) < 40  # some were refused


def test_noise_too_large_for_the_lattice_is_refused():
  with pytest.raises(ValueError, match='use a larger shift or epsilon'):
    power_mf(make(rank=0, epsilon=1e-7))


MOVIELENS = {'100k': (943, 1682), '1m': (6040, 3706)}


@pytest.mark.parametrize(
  ('name', 'epsilon', 'rank', 'rounds'),
  [
    ('100k', 0.1, 0, 1),
    ('100k', 1.0, 0, 1),
    ('100k', 2.0, 3, 6),
    ('100k', 5.0, 6, 8),
    ('100k', 10.0, 11, 8),
    ('1m', 0.1, 0, 1),
    ('1m', 1.0, 3, 6),
    ('1m', 2.0, 5, 8),
    ('1m', 5.0, 12, 8),
    ('1m', 10.0, 16, 8),
  ],
)
def test_the_rule_is_what_the_documents_say(name, epsilon, rank, rounds):
  users, items = MOVIELENS[name]
  system, given = recommended(
    'rating',
    num_users=users,
    num_items=items,
    epsilon=epsilon,
    delta=1e-6,
  )
  assert system == 'power_mf'
  assert given == {
    'relation': 'add_remove',
    'rank': rank,
    'rounds': rounds,
    'number_share': 0.002 if rank else 0.0,
    # Where 943 users do not tell enough of levels, they are not asked.
    'level_share': 0.02
    if (name == '1m' and epsilon > 0.1) or rank > 3
    else 0.0,
  }
  PowerMFConfig(scale=SCALE, epsilon=epsilon, delta=1e-6, **given)


def test_levels_are_not_asked_of_more_than_there_is_room_for():
  facts = {
    'num_users': 40_000,
    'num_items': 2_000,
    'epsilon': 1.0,
    'delta': 0.0,
  }
  for more in ({}, {'num_items': 60_000_000}, {'num_users': 4_000_000}):
    _, given = recommended('rating', **{**facts, **more})
    assert (given['level_share'] > 0) == (not more)


def test_ratings_have_factors_where_users_would():
  facts = {'num_users': 1000, 'num_items': 150, 'epsilon': 2.0}
  name, given = recommended('user', **facts, delta=1e-6)
  assert (name, given['rank']) == ('dpals', 2)
  name, given = recommended('rating', **facts, delta=1e-6)
  assert (name, given['rank']) == ('power_mf', 3)
  assert given['number_share'] > 0
  # Without a number, which a ledger has no room for, it would be a guess.
  name, given = recommended('rating', **facts, delta=1e-6, in_ledger=True)
  assert (name, given['rank']) == ('power_mf', 0)


def test_the_rule_counts_no_ratings_where_other_runs_share_a_budget():
  users, items = MOVIELENS['1m']
  choose = functools.partial(
    selection.automatic,
    {'epsilon': 1.0},
    task='rating',
    num_users=users,
    num_items=items,
  )
  (_, _, alone), (_, _, shared) = choose(), choose(in_ledger=True)
  assert alone['number_share'] > 0
  assert shared == alone | {'number_share': 0.0, 'level_share': 0.0}


def test_the_rule_has_no_factors_without_a_delta_and_knows_its_limits():
  of = functools.partial(recommended, num_items=9, epsilon=1.0)
  assert of('rating', num_users=9, delta=0.0)[1]['rank'] == 0
  assert of('user', num_users=9, delta=1e-6)[0] == 'dpals'
  with pytest.raises(ValueError, match="unit='item'"):
    of('item', num_users=9, delta=1e-6)
  assert of('rating', num_users=1_000, delta=1e-6)[0] == 'power_mf'
  assert of('rating', num_users=10_000, delta=1e-6)[0] == 'moments'
  with pytest.raises(ValueError, match='num_users=0'):
    of('rating', num_users=0, delta=1e-6)
