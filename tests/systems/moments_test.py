import dataclasses
import fractions
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import table

from dpmf_jax import accounting
from dpmf_jax.accounting.rounding import LABEL_BITS, MAX_TABLE_ITEMS
from dpmf_jax.kernels import moments as kernel
from dpmf_jax.mechanisms import noise
from dpmf_jax.plans.auto import recommended
from dpmf_jax.plans.moments import (
  ANSWERS,
  MAX_CELLS,
  MAX_DRAWS,
  MAX_ITEMS,
  MomentsConfig,
  check_size,
  lattice_spacings,
  plan,
)
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import moments
from dpmf_jax.training import fit
from dpmf_jax.types import Unit

SCALE = (1.0, 5.0)
ITEMS = 12


def settings(**more):
  common = {
    'relation': 'add_remove', 'scale': SCALE, 'delta': 1e-5, 'epsilon': 5.0,
  }  # fmt: skip
  return MomentsConfig(**{**common, **more})


@pytest.fixture(scope='module')
def crowd():
  """50 users, 12 items: ordinary users, and users who are extreme.

  User 0 rated everything highest, 1 everything by turns, 2 one item that
  nobody else rated, 3 a single popular one lowest, 4 two opposite ratings.
  """
  rng = np.random.default_rng(4)
  rows = [(0, i, 5.0) for i in range(ITEMS - 1)]
  rows += [(1, i, 5.0 if i % 2 else 1.0) for i in range(ITEMS - 1)]
  rows += [(2, ITEMS - 1, 5.0), (3, 0, 1.0), (4, 0, 5.0), (4, 1, 1.0)]
  for user in range(5, 50):
    items = {0, *rng.choice(ITEMS - 1, rng.integers(1, 9), replace=False)}
    rows += [(user, int(i), float(rng.integers(1, 6))) for i in sorted(items)]
  return table(rows, 50, ITEMS)


EXTREME = range(6)
LEAST = jnp.int32(moments._LEAST_RESIDUAL**2)


def upper(matrices):
  above = np.triu_indices(matrices.shape[-1])
  return np.asarray(matrices, int)[..., above[0], above[1]]


@jax.jit
def _sums(state, data):
  hyper = state.hyper
  own = moments._residuals(state, data)
  first = kernel.first_moments(own, hyper.counted, hyper.means.spacing)
  second = kernel.second_moments(
    own, LEAST, hyper.count_weight, hyper.moments.spacing
  )
  return first, second


def released_numbers(state, data):
  """The integers of both steps that get noise, for these means."""
  first, second = _sums(state, data)
  return {'means': np.asarray(first, int), 'moments': upper(second)}


_first = jax.jit(moments._first)
_residuals = jax.jit(moments._residuals)
_first_moments = jax.jit(kernel.first_moments)
_second_moments = jax.jit(kernel.second_moments)


def after_means(config, data):
  state = moments.moments(config).init(jax.random.key(0), data)
  return _first(jax.random.key(1), state, data)


# Sensitivity: take one user away.


@pytest.mark.parametrize('count_weight', [0.16, 1.0])
def test_removing_a_user_moves_sums_by_their_own_terms(crowd, count_weight):
  config = settings(count_weight=count_weight)
  state = after_means(config, training_data(crowd))
  total = released_numbers(state, training_data(crowd))
  spacing = lattice_spacings(config, 50)
  lengths = {'means': [], 'moments': []}
  for user in EXTREME:
    rest = released_numbers(
      state, training_data(crowd.take(crowd.user != user))
    )
    own = released_numbers(state, training_data(crowd.take(crowd.user == user)))
    for name, bound in plan(config).sensitivity.items():
      # Exactly: no other user's term changed by a single step.
      np.testing.assert_array_equal(total[name] - rest[name], own[name])
      length = np.linalg.norm(own[name] * spacing[name])
      assert length <= bound
      lengths[name].append(length)
  for name, bound in plan(config).sensitivity.items():
    # The bound is not far from what happens, so a wrong one would be seen.
    assert max(lengths[name]) > 0.999 * bound


def test_terms_are_those_of_slow_loops(crowd):
  config = settings(bias_ridge=2.0)
  data = training_data(crowd)
  state = after_means(config, data)
  mean = np.asarray(state.mean) + 3.0
  first, second = np.zeros((ITEMS, 2)), np.zeros((2, ITEMS, ITEMS))
  for user in range(50):
    at = crowd.user == user
    items, value = crowd.item[at], crowd.value[at]
    label = np.round((value - mean[items].astype('float32')) / 4 * 512)
    own = label - np.round(label.sum() / (len(items) + 2))
    counted = round(0.1 * 512)
    v = (np.square(own).sum() + len(items) * counted**2) ** -0.5
    first[items] += v * np.stack([np.full(len(items), counted), own], axis=1)
    x = own / max(np.square(own).sum(), len(items) * 16**2) ** 0.5
    second[0][np.ix_(items, items)] += np.outer(x, x)
    second[1][np.ix_(items, items)] += 0.16 / len(items)
  second *= np.where(np.eye(ITEMS), 1.0, 2**0.5)
  spacing = lattice_spacings(config, 50).values()
  wanted = zip(_sums(state, data), spacing, (first, second), strict=True)
  for found, spacing, want in wanted:
    np.testing.assert_allclose(np.asarray(found) * spacing, want, atol=1e-3)


def test_a_bound_that_forgets_something_would_be_seen(crowd):
  """Planted: products that count once, rows that are not shortened, ..."""
  config = settings(count_weight=1.0)
  data = training_data(crowd.take(crowd.user == 1))
  state = after_means(config, training_data(crowd))
  hyper, own = state.hyper, _residuals(state, data)
  bound = plan(config).sensitivity['moments']
  spacing = float(hyper.moments.spacing)

  def length(own, least=LEAST):
    sums = _second_moments(own, least, 1.0, hyper.moments.spacing)
    return np.linalg.norm(upper(sums) * spacing)

  assert length(own) <= bound
  # Counts that were left out of the sensitivity.
  assert length(own) > 1.3 * plan(settings()).sensitivity['moments']
  # A norm that is computed of half of the row.
  assert length(own._replace(square=own.square // 2)) > 1.3 * bound
  # The whole matrix, off the diagonal with its factor, and not a triangle.
  sums = _second_moments(own, LEAST, 1.0, hyper.moments.spacing)
  assert np.linalg.norm(np.asarray(sums) * spacing) > 1.3 * bound
  # First sums without what ratings count.
  first = lambda own: np.linalg.norm(
    np.asarray(_first_moments(own, hyper.counted, hyper.means.spacing))
    * float(hyper.means.spacing)
  )
  lone = training_data(crowd.take(crowd.user == 3))
  own = _residuals(state, lone)
  assert first(own) <= 1
  assert (
    first(own._replace(number=own.number * 0, square=own.square // 2)) > 1.3
  )


@pytest.mark.parametrize('size', [1, 2, 7, 100, MAX_ITEMS])
def test_weights_keep_their_bound_exactly(size):
  """In fractions: of integers as they are, and of float32 terms before cuts."""
  rng = np.random.default_rng(size)
  most = 2 ** (LABEL_BITS + 1)
  square = rng.integers(-most, most + 1, (200, size)).astype(np.int64) ** 2
  square[0] = most**2
  total = square.sum(axis=1)
  assert total.max() <= 2**30
  found = np.asarray(kernel.weights(jnp.asarray(total.astype('int32'))))
  for v, s in zip(found, total, strict=True):
    exact = fractions.Fraction(float(v)) ** 2 * int(s)
    # Room for all that is rounded after it: squares of products of a few.
    assert exact <= (1 - fractions.Fraction(19, 10**6))
    assert s == 0 or exact > 1 - fractions.Fraction(21, 10**6)


def test_squares_of_the_loudest_user_do_not_wrap():
  most = 2**LABEL_BITS
  assert MAX_ITEMS <= MAX_TABLE_ITEMS
  assert MAX_TABLE_ITEMS * (2 * most) ** 2 == 2**30
  rated = jnp.ones((2, MAX_ITEMS), bool)
  loud = kernel.Table(rated, jnp.where(jnp.arange(MAX_ITEMS) % 2, 5.0, -5.0)[
    None
  ] * jnp.ones((2, 1)))  # fmt: skip
  own = kernel.residuals(
    loud, jnp.zeros(MAX_ITEMS), jnp.float32(4), jnp.float32(1e-3)
  )
  exact = (np.asarray(own.value, np.int64) ** 2).sum(axis=1)
  np.testing.assert_array_equal(own.square, exact)
  assert exact.max() == MAX_ITEMS * most**2


def test_sums_of_everybody_do_not_wrap():
  """All users alike, with rows of one item, or of two."""
  for each in (1, 2):
    count = 3000
    rows = [(u, i, 5.0 - 4 * i) for u in range(count) for i in range(each)]
    data = training_data(table(rows, count, 2))
    config = settings(count_weight=3.0)
    state = moments.moments(config).init(jax.random.key(0), data)
    first, second = _sums(state, data)
    spacing = lattice_spacings(config, count)
    assert count * 3.0 <= spacing['moments'] * 2**30
    trace = np.trace(second[1]) * spacing['moments']
    assert trace == pytest.approx(count * 3.0, rel=1e-4)
    assert np.square(np.asarray(first) * spacing['means']).sum() == (
      pytest.approx(count**2, rel=1e-3)
    )


@pytest.mark.parametrize('no_number', [np.inf, np.nan, 1e30])
def test_means_that_are_not_finite_tell_nothing(crowd, no_number):
  config = settings()
  state = after_means(config, training_data(crowd))
  state = state._replace(mean=state.mean.at[3:].set(no_number))
  own = released_numbers(state, training_data(crowd.take(crowd.user == 0)))
  for name, bound in plan(config).sensitivity.items():
    length = np.linalg.norm(own[name] * lattice_spacings(config, 50)[name])
    assert length <= bound


def test_rows_of_rounding_errors_are_not_drawn_out():
  """Somebody whose ratings are all alike says nothing of how items differ."""
  rows = [(0, i, 3.0) for i in range(ITEMS)] + [(1, 0, 5.0), (1, 1, 1.0)]
  data = training_data(table(rows, 2, ITEMS))
  state = moments.moments(settings()).init(jax.random.key(0), data)
  state = state._replace(mean=jnp.where(jnp.arange(ITEMS) == 3, 0.01, 0.0))
  _, second = _sums(state, training_data(table(rows[:ITEMS], 2, ITEMS)))
  trace = np.trace(second[0]) * float(state.hyper.moments.spacing)
  assert trace < 0.01


@pytest.mark.slow
def test_sums_do_not_depend_on_places_or_devices(crowd):
  data = training_data(crowd)
  state = after_means(settings(), data)
  expected = released_numbers(state, data)
  order = np.random.default_rng(1).permutation(50)
  moved = dataclasses.replace(crowd, user=order[crowd.user])
  for other in (
    training_data(moved),
    training_data(crowd, least_chunks=5),
    training_data(crowd, mesh=device_mesh(2)),
    training_data(moved, mesh=device_mesh(4)),
  ):
    found = released_numbers(state, other)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# Noise.


def test_noise_is_what_the_plan_says_and_symmetric(crowd):
  config = settings(count_weight=0.5)
  data = training_data(crowd)
  start = moments.moments(config).init(jax.random.key(0), data)
  state = after_means(config, data)
  keys = lambda seed: jax.random.split(jax.random.key(seed), 400)

  @jax.jit  # leaves out what is computed from the sums
  @jax.vmap
  def runs(one, other):
    first = moments._first(one, start, data).sums.first
    return first, moments._second(other, state, data).sums.second

  first, noisy = map(np.asarray, runs(keys(5), keys(6)))
  exact = released_numbers(start, data)['means']
  exact = exact * lattice_spacings(config, 50)['means']
  std = plan(config).noise['means']
  assert np.std(first - exact[None]) == pytest.approx(std, rel=0.03)
  np.testing.assert_array_equal(noisy, noisy.transpose(0, 1, 3, 2))
  moved = np.std(noisy, axis=0) / plan(config).noise['moments'] * ANSWERS**0.5
  diagonal = np.eye(ITEMS, dtype=bool)
  for part, weight in zip(moved, (1.0, 0.5), strict=True):
    assert part[diagonal].mean() == pytest.approx(1 / weight, rel=0.05)
    off = part[~diagonal].mean()
    assert off == pytest.approx(0.5**0.5 / weight, rel=0.03)
  # The same draw twice would cancel.
  above = np.triu_indices(ITEMS)
  flat = noisy[:, :, above[0], above[1]].reshape(400, -1)
  alike = np.corrcoef(flat.T) - np.eye(flat.shape[1])
  assert np.abs(alike).max() < 0.35


@pytest.mark.parametrize('items', [1, 12, 23])
def test_a_pair_of_draws_is_never_for_one_number_twice(items, monkeypatch):
  """`tails.uncovered_jointly` of an answer bounds what a pair is moved by."""
  drawn = []

  def paired(words):
    number = words[0].astype(jnp.float32)  # tells a pair from others
    zero = jnp.zeros((2, len(number)), jnp.int32)
    return noise.Draws(jnp.stack([number, number]), zero)

  def kept(self, counts, draws):
    drawn.append(np.asarray(draws.value))
    return counts.astype(jnp.float32)

  monkeypatch.setattr(noise, '_pairs', paired)
  monkeypatch.setattr(noise.LatticeNoise, 'add', kept)
  monkeypatch.setattr(moments, '_with_items', lambda state: state)
  data = training_data(table([(0, 0, 5.0)], 3, items))
  state = moments.moments(settings()).init(jax.random.key(0), data)
  moments._second(jax.random.key(1), state, data)
  (pairs,) = drawn
  assert pairs.shape == (2, items * (items + 1) // 2, ANSWERS)
  assert len(np.unique(pairs)) > 0.99 * pairs.size / 2
  alike = pairs[..., :, None] == pairs[..., None, :]
  # Words of two pairs may be alike by chance, in float32.
  assert (alike & ~np.eye(ANSWERS, dtype=bool)).sum() <= 2


def test_one_rating_moves_more_than_a_user_who_comes():
  """What protects whole users is no statement about a rating of theirs."""
  config = settings()
  data = lambda rows: training_data(table(rows, 50, ITEMS))
  state = moments.moments(config).init(jax.random.key(0), data([(0, 0, 5.0)]))
  both, one = (
    released_numbers(state, data(rows))
    for rows in ([(0, 0, 5.0), (0, 1, 4.0)], [(0, 1, 4.0)])
  )
  moved = both['moments'] - one['moments']
  length = np.linalg.norm(moved * lattice_spacings(config, 50)['moments'])
  bound = plan(config).sensitivity['moments']
  assert 1.3 * bound < length <= 2 * bound


@pytest.mark.parametrize(
  ('epsilon', 'share'), [(0.01, 0.2), (0.1, 0.9), (1.0, 0.02), (20.0, 0.2)]
)
def test_the_two_steps_spend_what_is_stated(epsilon, share):
  config = settings(epsilon=epsilon, means_share=share)
  made = plan(config)
  answers = {'means': 1, 'moments': ANSWERS}
  spent = sum(
    answers[name] * (made.sensitivity[name] / std) ** 2
    for name, std in made.noise.items()
  )
  event = made.guarantee.event
  assert isinstance(event, accounting.Gaussian)
  assert spent < event.noise_multiplier**-2
  assert spent > 0.999 * event.noise_multiplier**-2
  assert accounting.epsilon(made.guarantee, 1e-5) <= epsilon * (1 + 1e-9)
  first, both = (made.epsilon(steps, 1e-5) for steps in (1, 2))
  assert first is not None
  assert both is not None
  assert 0 < first < both
  tails = made.guarantee.tails
  assert tails is not None
  assert tails.noise_multiplier <= min(
    std / made.sensitivity[name] for name, std in made.noise.items()
  )
  for users in (1, 100, 10**6):
    for name, spacing in lattice_spacings(config, users).items():
      assert made.noise[name] <= 2**22 * spacing
      assert users * max(1.0, config.count_weight) <= spacing * 2**30


def test_sizes_that_are_not_paid_for_are_refused():
  assert MAX_ITEMS * (MAX_ITEMS + 1) <= MAX_DRAWS
  check_size(1000, MAX_ITEMS)
  with pytest.raises(ValueError, match='num_items=1001 must be at most 1000'):
    check_size(1000, MAX_ITEMS + 1)
  with pytest.raises(ValueError, match='system=moments, which makes a table'):
    check_size(MAX_CELLS // 100 + 1, 100)
  with pytest.raises(ValueError, match='within 64 widths'):
    settings(scale=(1000.0, 1001.0))


# What is computed from noisy sums.


def test_ascending_is_isotonic_regression():
  rng = np.random.default_rng(0)
  ascending = jax.jit(moments.ascending)
  for size in (1, 30):
    values = rng.normal(size=size) + np.arange(size) / 10
    found = np.asarray(ascending(jnp.asarray(values, 'float32')))
    assert (np.diff(found) >= -1e-5).all()
    # Closest: better than all other ascending numbers nearby.
    best = np.square(found - values).sum()
    for _ in range(200):
      other = np.sort(found + 0.1 * rng.normal(size=size))
      assert np.square(other - values).sum() >= best - 1e-4
  kept = jnp.arange(30.0)
  np.testing.assert_allclose(ascending(kept), kept, atol=1e-5)


def wigner(rng, size):
  noise = rng.normal(size=(size, size))
  return (noise + noise.T) / 2**0.5


def test_cleaned_is_closer_than_the_noisy_matrix():
  rng = np.random.default_rng(2)
  axes = np.linalg.qr(rng.normal(size=(60, 60)))[0]
  signal = (axes[:, :3] * [80.0, 50.0, 30.0]) @ axes[:, :3].T
  noisy = signal + wigner(rng, 60)
  cleaned = jax.jit(moments.cleaned)
  found = np.asarray(cleaned(jnp.asarray(noisy, 'float32'), 1.0))
  error = lambda matrix: np.linalg.norm(matrix - signal)
  assert error(found) < 0.45 * error(noisy)
  nothing = np.asarray(cleaned(jnp.asarray(noisy - signal, 'float32'), 1.0))
  assert np.linalg.norm(nothing) < 0.3 * np.linalg.norm(noisy - signal)
  # Without noise nothing is taken away.
  same = cleaned(jnp.asarray(signal, 'float32'), 1e-6)
  np.testing.assert_allclose(same, signal, atol=1e-3)


def drawn(users, items, rated, seed=0, strength=1.0):
  """Ratings of a Gaussian with three factors, and one rating held out each."""
  rng = np.random.default_rng(seed)
  factors = strength * rng.normal(size=(items, 3)) / 3**0.5
  bias, mean = 0.5 * rng.normal(size=(users, 1)), 0.5 * rng.normal(size=items)
  value = rng.normal(size=(users, 3)) @ factors.T + bias + mean
  value = np.clip(3 + value + 0.6 * rng.normal(size=value.shape), 1, 5)
  chosen = np.argsort(rng.random((users, items)), axis=1)[:, : rated + 1]
  kept, out = chosen[:, 1:], chosen[:, 0]
  user = np.repeat(np.arange(users), rated)
  train = Ratings(
    user=user, item=kept.reshape(-1), value=value[user, kept.reshape(-1)],
    user_ids=np.arange(users), item_ids=np.arange(items), scale=SCALE,
  )  # fmt: skip
  return train, out, value[np.arange(users), out]


def errors(train, out, value, **more):
  """RMSE of what is held out: of the system, and of the user's mean."""
  data = training_data(train)
  system = moments.moments(settings(**more))
  state = fit(system, jax.random.key(3), data)
  release = system.model(state, data)
  user, item = map(np.asarray, release.factors)
  found = np.clip(
    float(release.offset) + (user * item[out]).sum(axis=1), *SCALE
  )
  own = np.bincount(train.user, train.value) / np.bincount(train.user)
  rmse = lambda x: np.sqrt(np.mean(np.square(x - value)))
  return rmse(found), rmse(own), state


def test_factors_are_learned_where_noise_allows_it():
  train, out, value = drawn(4000, 20, 10)
  found, own, state = errors(train, out, value, epsilon=5.0, rank=8)
  assert found < 0.8 * own
  assert (np.abs(np.asarray(state.factors.item[:, :8])).max(axis=0) > 0).any()
  # More noise is never better, and means alone better than users' own.
  less, own, _ = errors(train, out, value, epsilon=0.05, rank=8)
  assert found < less < own


@pytest.mark.slow
@pytest.mark.parametrize(
  ('users', 'items', 'rated'), [(300, 40, 2), (2000, 40, 2), (60, 10, 5)]
)
@pytest.mark.parametrize('epsilon', [0.01, 1.0])
def test_little_data_is_never_worse_than_users_means(
  users, items, rated, epsilon
):
  train, out, value = drawn(users, items, rated, seed=5)
  found, own, _ = errors(train, out, value, epsilon=epsilon, rank=8)
  assert found < own + 0.003


@pytest.mark.slow
def test_items_without_ratings_and_single_items_have_finite_factors():
  for items in (1, 2, 5):
    data = training_data(table([(0, 0, 5.0), (1, 0, 1.0)], 3, items))
    system = moments.moments(settings(epsilon=0.1))
    state = fit(system, jax.random.key(0), data)
    release = system.model(state, data)
    assert all(jnp.isfinite(x).all() for x in release.factors)
    assert (np.asarray(release.number) > 0).all()


def test_auto_asks_for_pairs_where_they_pay():
  def of(unit: Unit = 'user', **more: Any) -> str:
    facts = {'num_users': 24_983, 'num_items': 100}
    budget = {'epsilon': 0.1, 'delta': 1e-6}
    return recommended(unit, **{**facts, **budget, **more})[0]

  assert of() == 'moments'
  assert of(epsilon=20.0) == 'moments'
  assert of(num_users=5_000) == 'dpals'
  # Where its ends are not paid for.
  assert of(epsilon=100.0) == of(delta=1e-9) == 'dpals'
  # A rating is not what it protects.
  for more in ({}, {'epsilon': 5.0}, {'delta': 0.0}):
    assert of(unit='rating', **more) == 'power_mf'
  assert of(num_items=1) == 'dpals'
  # More than are paid for, or than fit into memory, are refused.
  many = {'epsilon': 5.0, 'num_users': 10**6}
  assert of(**many, num_items=MAX_ITEMS) == 'dpals'
  assert of(**many, num_items=250) == 'moments'
  few = {'epsilon': 5.0, 'num_users': 10**5}
  assert of(**few, num_items=MAX_ITEMS) == 'moments'
  assert of(**few, num_items=MAX_ITEMS + 1) == 'dpals'
  # What is chosen runs at the deltas that scripts have.
  settings(epsilon=20.0, delta=1e-6)
