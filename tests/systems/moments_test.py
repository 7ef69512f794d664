import fractions
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import crowd_of, layouts, table

from benchmarks.made_ratings import sparse
from dpmf_jax import accounting
from dpmf_jax.accounting.rounding import LABEL_BITS, MAX_TABLE_ITEMS
from dpmf_jax.evaluation import metrics
from dpmf_jax.kernels import moments as kernel
from dpmf_jax.mechanisms import noise
from dpmf_jax.plans.auto import recommended
from dpmf_jax.plans.moments import (
  ANSWERS,
  MAX_CELLS,
  MAX_DRAWS,
  MAX_ITEMS,
  RATING_ANSWERS,
  MomentsConfig,
  bounds,
  check_size,
  lattice_spacings,
  plan,
  residual_move,
  runs,
  sensitivities,
)
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems import made, moments, moments_items, moments_levels
from dpmf_jax.training import fit
from dpmf_jax.types import Unit

SCALE = (1.0, 5.0)
ITEMS = 12


def settings(**more):
  common = {
    'unit': 'user', 'relation': 'add_remove', 'scale': SCALE, 'delta': 1e-5,
    'epsilon': 5.0,
  }  # fmt: skip
  return MomentsConfig(**{**common, **more})


@pytest.fixture(scope='module')
def crowd():
  return crowd_of(ITEMS, most=9)


EXTREME = range(6)
LEAST = jnp.int32(moments_items.LEAST_RESIDUAL**2)


def upper(matrices):
  above = np.triu_indices(matrices.shape[-1])
  return np.asarray(matrices, int)[..., above[0], above[1]]


@functools.partial(jax.jit, static_argnums=2)
def _sums(state, data, unit: Unit = 'user'):
  first = moments.first_sums(state, data, unit)
  return first, moments.second_sums(state, data, unit)


def released_numbers(state, data, unit: Unit = 'user'):
  """The integers of both steps that get noise, for these means."""
  first, second = _sums(state, data, unit)
  numbers = {'means': np.asarray(first, int), 'moments': upper(second)}
  if unit == 'rating':
    numbers['ratings'] = np.asarray(_rating_sums(state, data), int)
  return numbers


_rating_sums = jax.jit(moments.rating_sums)
_first = jax.jit(moments._first, static_argnums=3)
_residuals = jax.jit(moments._residuals)
_residuals_of = jax.jit(kernel.residuals)
_moments_of = jax.jit(kernel.second_moments)
_first_moments = jax.jit(
  lambda own, counted, spacing: kernel.first_moments(
    own, counted, kernel.user_weights(own, counted), spacing
  )
)
_second_moments = jax.jit(
  lambda own, least, weight, spacing: kernel.second_moments(
    kernel.user_rows(own, least), own.rated, weight, spacing
  )
)


def after_means(config, data):
  state = moments.moments(config).init(jax.random.key(0), data)
  return _first(jax.random.key(1), state, data, config.unit)


# Sensitivity: take one user away.


@pytest.mark.parametrize('count_weight', [0.16, 1.0])
def test_removing_a_user_moves_sums_by_their_own_terms(crowd, count_weight):
  config = settings(count_weight=count_weight)
  state = after_means(config, training_data(crowd))
  total = released_numbers(state, training_data(crowd))
  spacing = lattice_spacings(config, 50, ITEMS)
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
  spacing = lattice_spacings(config, 50, ITEMS).values()
  wanted = zip(_sums(state, data), spacing, (first, second), strict=True)
  for found, spacing, want in wanted:
    np.testing.assert_allclose(np.asarray(found) * spacing, want, atol=1e-3)


def test_a_bound_that_forgets_something_would_be_seen(crowd):
  """Planted: products that count once, rows that are not shortened, ..."""
  config = settings(count_weight=1.0)
  data = training_data(crowd.take(crowd.user == 1))
  state = after_means(config, training_data(crowd))
  hyper = state.hyper
  own = _residuals(state, data, hyper.moments_bound)
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
  own = _residuals(state, lone, hyper.means_bound)
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
  own = _residuals_of(
    loud, jnp.zeros(MAX_ITEMS), jnp.float32(4), jnp.float32(1e-3), most,
    2 * most,
  )  # fmt: skip
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
    spacing = lattice_spacings(config, count, 2)
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
    length = np.linalg.norm(
      own[name] * lattice_spacings(config, 50, ITEMS)[name]
    )
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
  for other in layouts(crowd):
    found = released_numbers(state, other)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# Sensitivity by rating: take one rating away.

BY_RATING = {'unit': 'rating'}


def test_taking_a_rating_away_moves_sums_by_its_users_terms_alone(crowd):
  """All ratings of extreme users, and some of others, one at a time."""
  config = settings(**BY_RATING)
  numbers = functools.partial(released_numbers, unit='rating')
  state = after_means(config, training_data(crowd))
  total = numbers(state, training_data(crowd))
  spacing = lattice_spacings(config, 50, ITEMS)
  places = [
    *np.flatnonzero(crowd.user < 2)[::5],
    *np.flatnonzero((crowd.user > 1) & (crowd.user < 7)),
  ]
  moved = {'means': [], 'moments': [], 'ratings': []}
  for place in places:
    without = np.arange(len(crowd)) != place
    # With somebody else, as there must be ratings.
    own = np.isin(crowd.user, [crowd.user[place], 49])
    rest, one, other = (
      numbers(state, training_data(crowd.take(kept)))
      for kept in (without, own, own & without)
    )
    for name, lengths in moved.items():
      move = total[name] - rest[name]
      # Exactly: no other user's term changed by a single step.
      np.testing.assert_array_equal(move, one[name] - other[name])
      lengths.append(np.linalg.norm(move * spacing[name]))
    # As it is, a rating is in the sums of its own item alone.
    (row,) = np.flatnonzero((total['ratings'] - rest['ratings']).any(axis=1))
    assert row == crowd.item[place]
  for name, lengths in moved.items():
    assert 0.5 * plan(config).sensitivity[name] < max(lengths)
    assert max(lengths) <= plan(config).sensitivity[name]


def one_by_one(config, labels, rated):
  """Integers of both steps of users [N, I] with these labels, each alone.

  Through the kernels as the system calls them.
  """
  users, items = labels.shape
  hyper = moments.hyper_of(config, 50, items)
  value = jnp.asarray(labels / 2.0**LABEL_BITS, 'float32')

  def terms(value, rated):
    given = kernel.Table(rated[None], value[None])
    parts = jnp.zeros(items), jnp.float32(1), hyper.sent_ridge
    first, second = (
      kernel.residuals(given, *parts, hyper.label_bound, bound)
      for bound in (hyper.means_bound, hyper.moments_bound)
    )
    means = kernel.first_moments(
      first, hyper.counted, jnp.ones(1), jnp.float32(1)
    )
    pairs = kernel.second_moments(
      kernel.rating_rows(second, hyper.moments_bound),
      second.rated, hyper.count_weight, hyper.moments.spacing,
    )  # fmt: skip
    return means, pairs, second.value[0]

  means, pairs, row = jax.jit(jax.vmap(terms))(value, jnp.asarray(rated))
  spacing = float(hyper.moments.spacing)
  flat = upper(pairs).reshape(users, -1) * spacing
  return np.asarray(means, int).reshape(users, -1), flat, np.asarray(row, int)


def candidates(rng, users, items, label):
  """Labels that are alike, or opposite, or anything, of a few or all items."""
  sign = np.where(rng.random((users, items)) < rng.random((users, 1)), 1, -1)
  size = rng.random((users, 1)) ** np.where(rng.random((users, 1)) < 0.5, 1, 9)
  labels = np.rint(label * sign * (1 - size * rng.random((users, items))))
  number = rng.integers(1, items + 1, (users, 1))
  rated = np.arange(items)[None] < number
  labels[:, 0] = label * np.where(rng.random(users) < 0.7, -1, 1)
  return labels, rated


@pytest.mark.parametrize(
  ('more', 'reached'),
  # Where little is left of residuals, others move along with their row.
  [
    ({}, 0.8),
    pytest.param({'clip': 0.1}, 0.65, marks=pytest.mark.slow),
    pytest.param({'count_weight': 1.0}, 0.8, marks=pytest.mark.slow),
  ],
)
def test_no_rating_that_is_searched_for_moves_more_than_is_stated(
  more, reached
):
  """The search starts at random, and goes on from what moved most."""
  config = settings(**BY_RATING, **more)
  rng = np.random.default_rng(1)
  bound, label = plan(config).sensitivity, bounds(config).label
  items, users = 24, 400

  def moves(labels, rated):
    less = rated.copy()
    less[:, 0] = False
    both = zip(
      one_by_one(config, labels, rated),
      one_by_one(config, np.where(less, labels, 0), less),
      strict=True,
    )
    return [np.linalg.norm(a - b, axis=1) for a, b in both]

  labels, rated = candidates(rng, users, items, label)
  best = np.zeros(3)
  for _ in range(6):
    found = moves(labels, rated)
    best = np.maximum(best, [each.max() for each in found])
    # A quarter of each kind that moved most, changed a little.
    chosen = np.concatenate([np.argsort(-each)[:33] for each in found])
    chosen = rng.choice(chosen, users)
    changed = rng.random((users, items)) < 0.15
    other, more_rated = candidates(rng, users, items, label)
    labels = np.where(changed, other, labels[chosen])
    rated = np.where(rng.random((users, 1)) < 0.1, more_rated, rated[chosen])
  means, products, row = best
  assert 0.95 * bound['means'] < means <= bound['means']
  assert row <= residual_move(config, bounds(config).moments)
  # What is left is for cuts, which are finer for few users and items.
  assert reached * bound['moments'] < products <= bound['moments']


def test_a_row_moves_by_what_is_stated_and_hardly_less():
  """As many others as move most, all highest, and then one that is lowest."""
  config = settings(**BY_RATING)
  label, _, clip = bounds(config)
  rated = np.tril(np.ones((40, 40), bool))
  labels = np.where(np.arange(40) == 0, -label, label) * np.ones((40, 1))
  less = rated & (np.arange(40) > 0)[None]
  after, before = (
    one_by_one(config, np.where(each, labels, 0), each)[2]
    for each in (rated, less)
  )
  length = np.linalg.norm(after - before, axis=1).max()
  stated = residual_move(config, clip)
  assert 0.97 * stated < length <= stated
  assert stated < 1.1 * clip
  # Planted: a bound that forgets that biases move, or that they are rounded.
  assert length > 1.02 * clip


def test_products_over_norms_move_by_sqrt_2_at_most():
  """The identity of the proof, and that nothing smaller would do."""
  rng = np.random.default_rng(3)
  term = lambda e: np.outer(e, e) / max(np.linalg.norm(e), 1e-300)
  largest = 0.0
  for _ in range(500):
    size = rng.integers(1, 9)
    a, b = rng.normal(size=(2, size)) * (0.01 + rng.random((2, 1)) ** 4)
    b = a + b * rng.choice([1.0, 1e-3])
    p, q = np.linalg.norm(a), np.linalg.norm(b)
    cos = a @ b / (p * q)
    exact = 2 * np.square(a - b).sum() - (p - q) ** 2
    exact -= 2 * p * q * (1 - cos) ** 2
    moved = np.square(term(a) - term(b)).sum()
    assert moved == pytest.approx(exact, rel=1e-6, abs=1e-12)
    largest = max(largest, moved / np.square(a - b).sum())
  assert 1.99 < largest <= 2 + 1e-6


def test_a_bound_by_rating_that_forgets_something_would_be_seen():
  """Planted: rows that are not clipped, or shortened as those of users."""
  config = settings(**BY_RATING, count_weight=1.0)
  bound, hyper = plan(config).sensitivity, moments.hyper_of(config, 50, ITEMS)
  spacing = float(hyper.moments.spacing)
  label = bounds(config).label
  labels = np.where(np.arange(ITEMS) % 2, label, -label) * 1.0
  rated = np.ones(ITEMS, bool)

  def sums(labels, rated, rows, clip, ridge=hyper.sent_ridge):
    value = jnp.asarray(labels / 2.0**LABEL_BITS, 'float32')
    own = _residuals_of(
      kernel.Table(jnp.asarray(rated)[None], value[None]),
      jnp.zeros(ITEMS), jnp.float32(1), ridge, hyper.label_bound, clip,
    )  # fmt: skip
    return _moments_of(
      rows(own), own.rated, hyper.count_weight, hyper.moments.spacing
    )

  def moved(rows, clip=hyper.moments_bound, labels=labels, place=0):
    less = rated & (np.arange(ITEMS) != place)
    both, one = (sums(labels, each, rows, clip) for each in (rated, less))
    return np.asarray(both - one) * spacing

  right = lambda own: kernel.rating_rows(own, hyper.moments_bound)
  length = lambda move: np.linalg.norm(upper(move / spacing) * spacing)
  assert length(moved(right)) <= bound['moments']
  # Residuals as large as labels and biases allow.
  assert length(moved(right, 2**10)) > 1.05 * bound['moments']
  # Products that are not divided by a norm.
  whole = lambda own: right(own)._replace(
    row=own.value.astype('float32') / hyper.moments_bound
  )
  assert length(moved(whole)) > 1.5 * bound['moments']
  # Counts that are not, either.
  counts = lambda own: right(own)._replace(part=jnp.ones(1))
  assert length(moved(counts)) > 1.5 * bound['moments']
  # The whole matrix, off the diagonal with its factor, and not a triangle.
  assert np.linalg.norm(moved(right)) > 1.1 * bound['moments']
  # Counts that were left out of the sensitivity.
  less = sensitivities(settings(**BY_RATING, count_weight=1e-3))
  assert length(moved(right)) > 1.1 * less['moments']


def test_cuts_and_sums_by_rating_stay_within_what_is_stated():
  config = settings(**BY_RATING, epsilon=1.0)
  for users, items in ((4, 3), (24_983, 100), (2**20, 31), (33_000, 1_000)):
    spacing = lattice_spacings(config, users, items)
    cuts = spacing['moments'] * (items * (items + 1)) ** 0.5
    # With a thousandth for float32: 13 roundings of terms with a norm of at
    # most the square root of I, of both data sets.
    rounded = 2 * 20 * 2.0**-23 * 1_000**0.5 * 2**0.5
    assert cuts + rounded < 0.125 + 1e-3
    assert users <= spacing['moments'] * 2**30
    assert users * 2**LABEL_BITS <= 2**30
    for name, std in plan(config).noise.items():
      assert std <= 2**22 * spacing[name]
  with pytest.raises(ValueError, match=r'epsilon=0\.001 needs more noise'):
    lattice_spacings(settings(**BY_RATING, epsilon=1e-3), 1000, 500)


# Noise.


@pytest.mark.slow
def test_noise_is_what_the_plan_says_and_symmetric(crowd):
  config = settings(count_weight=0.5)
  data = training_data(crowd)
  start = moments.moments(config).init(jax.random.key(0), data)
  state = after_means(config, data)
  keys = lambda seed: jax.random.split(jax.random.key(seed), 400)

  @jax.jit  # leaves out what is computed from the sums
  @jax.vmap
  def runs(one, other):
    first = moments._first(one, start, data, 'user').sums.first
    return first, moments._second(other, state, data, 'user').sums.second

  first, noisy = map(np.asarray, runs(keys(5), keys(6)))
  exact = released_numbers(start, data)['means']
  exact = exact * lattice_spacings(config, 50, ITEMS)['means']
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


@pytest.mark.slow
def test_too_few_ratings_for_pairs_are_asked_for_as_they_are():
  """By noisy counts; an answer is the mean of all with their own noise."""
  rows = [(u, i, 5.0 - (u + i) % 2) for u in range(300) for i in range(2)]
  data = training_data(table(rows, 300, ITEMS))
  config = settings(**BY_RATING, epsilon=0.5)
  start = moments.moments(config).init(jax.random.key(0), data)
  state = _first(jax.random.key(1), start, data, 'rating')
  assert not moments.pairs_pay(state)

  @jax.jit
  @jax.vmap
  def runs(one, other):
    state = moments._first(one, start, data, 'rating')
    levels = moments.level_sums(state, data)
    state = moments._second(other, state, data, 'rating')
    sums = state.sums
    return *sums._replace(levels=sums.levels - levels), levels

  keys = lambda seed: jax.random.split(jax.random.key(seed), 300)
  *found, levels = map(np.asarray, runs(keys(2), keys(3)))
  first, second, ratings, of_levels = found
  exact, stds = released_numbers(start, data, 'rating'), plan(config).noise
  # An attacker is shown what both steps gave.
  moved = np.std(first - exact['means'][None])
  assert moved == pytest.approx(stds['means'], rel=0.05)
  moved = np.std(ratings - exact['ratings'][None])
  assert moved == pytest.approx(stds['ratings'] / RATING_ANSWERS**0.5, rel=0.05)
  assert levels.any()
  assert np.std(of_levels, axis=0) == pytest.approx(stds['levels'], rel=0.15)
  assert np.abs(np.mean(of_levels, axis=0)).max() < 0.2 * stds['levels']
  every = np.concatenate(
    [of_levels, (ratings - exact['ratings']).reshape(300, -1)], axis=1
  )
  alike = np.corrcoef(every.T)[:2, 2:]
  assert np.abs(alike).max() < 0.3  # no draw is in two of them
  assert not second.any()
  many = [(u, i, 5.0 - (u + i) % 2) for u in range(300) for i in range(ITEMS)]
  full = training_data(table(many, 300, ITEMS))
  state = _first(jax.random.key(1), start, full, 'rating')
  assert moments.pairs_pay(state)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('level', 'least', 'most'), [(1.0, 0.3, 3), (0.0, 8, 60)]
)
def test_biases_are_shrunk_by_how_users_differ_where_pairs_are_few(
  level, least, most
):
  """Users of four ratings of 3 +- 1, whose means differ or do not."""
  rng = np.random.default_rng(4)
  own = level * rng.choice([-1.0, 1.0], 4000)
  rows = [
    (u, i, float(np.clip(3 + own[u] + rng.choice([-1.0, 1.0]), 1, 5)))
    for u in range(4000)
    for i in rng.choice(ITEMS, 4, replace=False)
  ]
  data = training_data(table(rows, 4000, ITEMS))
  config = settings(**BY_RATING, pairs_from=1e6, epsilon=1.0)
  state = fit(moments.moments(config), jax.random.key(2), data)
  assert np.asarray(state.sums.levels).any()
  # The best ridge is the variance of ratings over that of users.
  assert least <= float(state.bias_ridge) <= most


@pytest.mark.parametrize('items', [1, 12, 23])
def test_a_pair_of_draws_is_never_for_one_number_twice(items, monkeypatch):
  """`tails.uncovered_jointly` of an answer bounds what a pair is moved by."""
  drawn = []

  def paired(words):
    number = words[0].astype(jnp.float32)  # tells a pair from others
    value = jnp.stack([number, number], axis=-2)
    return noise.Draws(value, jnp.zeros(value.shape, jnp.int32))

  def kept(self, counts, draws):
    drawn.append(draws.value)
    return counts.astype(jnp.float32)

  monkeypatch.setattr(noise, '_pairs', paired)
  monkeypatch.setattr(noise.LatticeNoise, 'add', kept)
  monkeypatch.setattr(moments, 'with_items', lambda state, unit: state)
  data = training_data(table([(0, 0, 5.0)], 3, items))
  state = moments.moments(settings()).init(jax.random.key(0), data)

  @jax.jit  # of all that a step does, what is drawn is computed
  def pairs_of(key):
    moments._second(key, state, data, 'user')
    (pairs,) = drawn
    return pairs

  pairs = np.asarray(pairs_of(jax.random.key(1)))
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
  length = np.linalg.norm(
    moved * lattice_spacings(config, 50, ITEMS)['moments']
  )
  bound = plan(config).sensitivity['moments']
  assert 1.3 * bound < length <= 2 * bound


@pytest.mark.parametrize('unit', ['user', 'rating'])
@pytest.mark.parametrize(
  ('epsilon', 'share'), [(0.05, 0.2), (0.1, 0.9), (1.0, 0.02), (20.0, 0.2)]
)
def test_the_two_steps_spend_what_is_stated(epsilon, share, unit):
  config = settings(epsilon=epsilon, means_share=share, unit=unit)
  made = plan(config)
  answers = {'means': 1, 'moments': ANSWERS}
  each = {
    name: (made.sensitivity[name] / std) ** 2
    for name, std in made.noise.items()
  }
  if unit == 'rating':
    # The second step asks for one of two, at the same cost.
    instead = RATING_ANSWERS * each['ratings'] + each['levels']
    assert instead == pytest.approx(ANSWERS * each['moments'], rel=1e-12)
  spent = sum(number * each[name] for name, number in answers.items())
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
    for name, spacing in lattice_spacings(config, users, 10).items():
      assert made.noise[name] <= 2**22 * spacing
      assert users * max(1.0, config.count_weight) <= spacing * 2**30


def test_sizes_that_are_not_paid_for_are_refused():
  assert MAX_ITEMS * (MAX_ITEMS + 1) <= MAX_DRAWS
  for unit in ('user', 'rating'):
    check_size(unit, 1000, MAX_ITEMS)
    with pytest.raises(ValueError, match='num_items=1001 must be at most 1000'):
      check_size(unit, 1000, MAX_ITEMS + 1)
    with pytest.raises(ValueError, match=f"unit='{unit}', which makes a table"):
      check_size(unit, MAX_CELLS[unit] // 100 + 1, 100)
  with pytest.raises(ValueError, match='num_users=1048577 times num_items=1 m'):
    check_size('rating', 2**20 + 1, 1)
  with pytest.raises(ValueError, match='within 64 widths'):
    settings(scale=(1000.0, 1001.0))


# What is computed from noisy sums.


def test_ascending_is_isotonic_regression():
  rng = np.random.default_rng(0)
  ascending = jax.jit(moments_items.ascending)
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

  @jax.jit
  def cleaned(matrix, std):
    size, axes = moments_items.cleaned(jnp.asarray(matrix, 'float32'), std)
    return (axes * size[None]) @ axes.T

  found = np.asarray(cleaned(noisy, 1.0))
  error = lambda matrix: np.linalg.norm(matrix - signal)
  assert error(found) < 0.45 * error(noisy)
  nothing = np.asarray(cleaned(noisy - signal, 1.0))
  assert np.linalg.norm(nothing) < 0.3 * np.linalg.norm(noisy - signal)
  # Without noise nothing is taken away.
  same = cleaned(signal, 1e-6)
  np.testing.assert_allclose(same, signal, atol=1e-3)


def drawn(users, items, rated, seed=0, strength=1.0, level=3.0):
  """Ratings of a Gaussian with three factors, and one rating held out each."""
  rng = np.random.default_rng(seed)
  factors = strength * rng.normal(size=(items, 3)) / 3**0.5
  bias, mean = 0.5 * rng.normal(size=(users, 1)), 0.5 * rng.normal(size=items)
  value = rng.normal(size=(users, 3)) @ factors.T + bias + mean
  value = np.clip(level + value + 0.6 * rng.normal(size=value.shape), 1, 5)
  chosen = np.argsort(rng.random((users, items)), axis=1)[:, : rated + 1]
  kept, out = chosen[:, 1:], chosen[:, 0]
  user = np.repeat(np.arange(users), rated)
  train = Ratings(
    user=user, item=kept.reshape(-1), value=value[user, kept.reshape(-1)],
    user_ids=np.arange(users), item_ids=np.arange(items), scale=SCALE,
  )  # fmt: skip
  return train, out, value[np.arange(users), out]


def predicted(release, out):
  """Of the item that is held out, for each user."""
  user, item = map(np.asarray, release.factors)
  found = float(release.offset) + (user * item[out]).sum(axis=1)
  return np.clip(found, *SCALE)


def errors(train, out, value, **more):
  """RMSE of what is held out: of the system, and of the user's mean."""
  data = training_data(train)
  system = moments.moments(settings(**more))
  state = fit(system, jax.random.key(3), data)
  own = np.bincount(train.user, train.value) / np.bincount(train.user)
  rmse = lambda x: np.sqrt(np.mean(np.square(x - value)))
  return rmse(predicted(system.model(state, data), out)), rmse(own), state


@pytest.mark.slow
def test_factors_are_learned_where_noise_allows_it():
  train, out, value = drawn(4000, 20, 10)
  found, own, state = errors(train, out, value, epsilon=5.0, rank=8)
  assert found < 0.8 * own
  assert (np.abs(np.asarray(state.factors.item[:, :8])).max(axis=0) > 0).any()
  # More noise is never better, and means alone better than users' own.
  less, own, _ = errors(train, out, value, epsilon=0.05, rank=8)
  assert found < less < own


@pytest.mark.slow
def test_a_rating_costs_less_than_a_user_where_users_have_many():
  train, out, value = drawn(1000, 60, 40)
  found, own, _ = errors(train, out, value, epsilon=1.0, rank=8, **BY_RATING)
  whole, _, _ = errors(train, out, value, epsilon=1.0, rank=8)
  assert found < whole < own


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
def test_users_who_differ_in_level_alone_are_as_well_off_as_with_means():
  train, out, value = drawn(6000, 20, 4, strength=0.0, level=3.8)
  mean = np.bincount(train.item, train.value) / np.bincount(train.item)
  rest = np.bincount(train.user, train.value - mean[train.item])
  rmse = lambda x: np.sqrt(np.mean(np.square(np.clip(x, *SCALE) - value)))
  # With the ridge that is best: 0.36 / 0.25.
  alone = rmse(mean[out] + (rest / (4 + 1.44)))
  found, own, _ = errors(train, out, value, epsilon=10.0, rank=20, **BY_RATING)
  assert found < min(alone + 0.006, own)


def test_what_pairs_have_in_common_says_how_users_differ():
  number, sent = 5.0, 10.0
  both = number + sent

  def ridge(variance, error=0.0):
    common = (sent / both) ** 2 * variance + number / both**2 - 2 / both
    common = common / (1 + common)
    pairs = moments_items.Pairs(
      jnp.zeros((3, 3)),
      *map(jnp.float32, (1.0, number, 0.1, common, error, 0.1)),
    )
    return float(
      moments_items.bias_ridge(pairs, jnp.float32(sent), jnp.float32(4))
    )

  assert ridge(0.25) == pytest.approx(4, rel=1e-4)
  assert ridge(1.0) == pytest.approx(1.1, abs=0.15)
  assert ridge(0.1) > 7
  # What noise hides is not taken for anything.
  assert ridge(1.0, error=100.0) == pytest.approx(4, rel=1e-2)


def pairs_with(shared, std, mean, users=4e4):
  """What is made of items that are rated alike, by users of 5 ratings."""
  items = len(mean)
  together = np.full((items, items), users * 4 / items**2)
  np.fill_diagonal(together, users / items)
  products = together * (np.eye(items) + shared * (1 - np.eye(items)))
  return _pairs_of(
    jnp.asarray(np.stack([products, together]), 'float32'),
    jnp.ones(items),
    (jnp.float32(std), jnp.float32(std)),
    1.0,
    jnp.asarray(mean, 'float32'),
  )


_pairs_of = jax.jit(moments_items.pairs_of, static_argnums=3)


def test_products_of_means_say_how_users_slopes_differ():
  mean = np.linspace(-1, 1, 40)
  slopes = lambda variance: variance * np.outer(mean, mean)
  # So much noise that there are no vectors, and yet one number stands out.
  found = [pairs_with(slopes(each), 90.0, mean) for each in (0.05, 0.25)]
  assert not any(np.asarray(each.vector).any() for each in found)
  small, large = (float(each.slope) for each in found)
  assert small < 0.1 < 0.15 < large < 0.25
  # What noise hides is not taken for anything, and what vectors have is theirs.
  hidden = pairs_with(slopes(0.25), 1e5, mean)
  assert float(hidden.slope) == pytest.approx(0.125, abs=1e-3)
  shared = pairs_with(slopes(0.25), 0.1, mean)
  assert np.asarray(shared.vector).any()
  assert float(shared.slope) < 0.02


def test_more_negative_than_positive_products_give_no_vectors():
  rng = np.random.default_rng(4)
  one, other = rng.choice([-1.0, 1.0], (2, 20))
  one, other = np.outer(one, one), np.outer(other, other)
  mean = np.linspace(-1, 1, 20)
  taste = pairs_with(0.3 * one - 0.1 * other, 1.0, mean)
  assert np.asarray(taste.vector).any()
  wrong = pairs_with(0.3 * one - 0.6 * other, 1.0, mean)
  assert not np.asarray(wrong.vector).any()


def sent_by(users, rated, level, mean, reference, seed=0):
  """What users of a common mean send, computed row by row, in labels."""
  rng = np.random.default_rng(seed)
  number = 1 + np.floor(rng.exponential(rated - 1, users)).astype(int)
  sent, counted, totals = 2.0, 51.0, np.zeros(5)
  for n in number:
    value = mean + level * rng.normal() + 90 * rng.normal(size=n)
    value = value - value.sum() / (n + sent)
    v = (n * counted**2 + (value**2).sum()) ** -0.5
    # The same bias is taken off what is left of the reference.
    rest = value - reference * sent / (n + sent)
    square = max((rest**2).sum(), n * 16.0**2)
    product = (rest.sum() ** 2 - (rest**2).sum()) / square
    totals += n * v, value.sum() * v, product, n - 1, 1
  counts, sums, products, pairs, _ = totals
  return moments_levels.Sent(
    *map(
      jnp.float32,
      (
        number.mean(), 0.0, sent, counted, counts * counted / users,
        sums / counts, reference, products / pairs, 0.0,
      ),
    ),
    least=16.0,
  )  # fmt: skip


@pytest.mark.parametrize(('rated', 'level'), [(2.5, 20), (2.5, 90), (6, 50)])
def test_sums_say_what_is_left_of_means_and_how_users_differ(rated, level):
  mean = 100.0
  sent = sent_by(8000, rated, level, mean, reference=130.0)
  found = jax.jit(moments_levels.levels)(sent)
  assert float(sent.mean / found.left.common) == pytest.approx(mean, rel=0.06)
  # Closer to what it is than what is usual, which it is where noise hides it.
  apart = lambda variance: abs(np.log(variance / (level / 90) ** 2))
  assert apart(float(found.variance)) < apart(usual := 0.25)
  hidden = sent._replace(error=jnp.float32(1e6), unsure=jnp.float32(1e6))
  hidden = float(jax.jit(moments_levels.levels)(hidden).variance)
  assert hidden == pytest.approx(usual, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('users', 'items', 'per_user', 'of_users'),
  [(6000, 20, 3.0, 0.1), (6000, 20, 3.0, 0.0), (20_000, 50, 8.0, 0.1)],
)
def test_ratings_without_taste_are_as_well_off_as_with_means_alone(
  users, items, per_user, of_users
):
  ratings = sparse(
    num_users=users, num_items=items, per_user=per_user, scale=SCALE,
    of_users=of_users, seed=7, name='levels',
  )  # fmt: skip
  train, test = random_split(ratings, 0.2, seed=0)
  data, held_out = training_data(train), training_data(test).by_user

  def rmse(name, **more):
    system = made(name, 'sound', scale=SCALE, epsilon=5.0, delta=1e-5, **more)
    state = fit(system, jax.random.key(0), data)
    return metrics.rmse(jax.jit(system.model)(state, data), held_out, SCALE)

  # 0.003 is allowed, and as much for noise; on other seeds it is up to 0.0038.
  found, alone = rmse('moments'), rmse('dpals', rank=0)
  assert found < min(alone + 0.006, metrics.baselines(train, test)['user_mean'])


@pytest.mark.slow
def test_few_ratings_of_a_user_are_no_worse_than_means():
  train, out, value = drawn(6000, 20, 4, strength=0.5, level=3.8)
  # Means of items without noise, and users' biases with the same ridge.
  mean = np.bincount(train.item, train.value) / np.bincount(train.item)
  rest = np.bincount(train.user, train.value - mean[train.item])
  alone = mean[out] + rest / (4 + settings().home_ridge)
  alone = np.sqrt(np.mean(np.square(np.clip(alone, *SCALE) - value)))
  best = np.inf
  for epsilon in (0.5, 2.0, 20.0):
    found, _, state = errors(train, out, value, epsilon=epsilon, rank=8)
    # What noise on means costs, and vectors on top of it.
    plain = state.factors.item.at[:, :8].set(0.0)
    plain = state._replace(factors=state.factors._replace(item=plain))
    plain = predicted(moments.model(plain, training_data(train)), out)
    assert found < np.sqrt(np.mean(np.square(plain - value))) + 0.003
    assert found < min(alone + 0.003 * max(1, 2 / epsilon), best + 0.003)
    best = min(best, found)


@pytest.mark.slow
def test_items_without_ratings_and_single_items_have_finite_factors():
  for items in (1, 2, 5):
    data = training_data(table([(0, 0, 5.0), (1, 0, 1.0)], 3, items))
    system = moments.moments(settings(epsilon=0.1))
    state = fit(system, jax.random.key(0), data)
    release = system.model(state, data)
    assert all(jnp.isfinite(x).all() for x in release.factors)
    assert (np.asarray(release.number) > 0).all()


def test_auto_spends_more_on_means_where_there_is_little_to_spend():
  facts: dict[str, Any] = {'num_users': 24_983, 'num_items': 100, 'delta': 1e-6}
  for epsilon, share in ((0.1, {'means_share': 0.5}), (1.0, {})):
    found = recommended('user', epsilon=epsilon, **facts)
    settled = {'unit': 'user', 'relation': 'add_remove', **share}
    assert found == ('moments', settled)
  assert 'means_share' not in recommended('rating', epsilon=0.1, **facts)[1]


def test_noise_that_int32_has_no_room_for_is_not_chosen():
  budget: dict[str, Any] = {'epsilon': 1e-4, 'delta': 1e-6}
  assert not runs('rating', 1000, 2, **budget)
  with pytest.raises(ValueError, match='use a larger epsilon'):
    lattice_spacings(settings(unit='rating', **budget), 1000, 2)


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
  # By rating as well, but for few users, or without a delta.
  assert of(unit='rating') == of(unit='rating', epsilon=5.0) == 'moments'
  for more in ({'delta': 0.0}, {'num_users': 5_000}, {'epsilon': 100.0}):
    assert of(unit='rating', **more) == 'power_mf'
  few = {'unit': 'rating', 'num_items': 20, 'epsilon': 1.0}
  assert of(**few, num_users=1_000) == 'power_mf'
  assert of(**few, num_users=2_000) == 'moments'
  # It takes nothing that is known of items besides.
  assert of('rating', items_known=True) == 'power_mf'
  assert of('user', items_known=True) == 'dpals'
  assert of(num_items=1) == 'dpals'
  # More than are paid for, or than fit into memory, are refused.
  many = {'epsilon': 5.0, 'num_users': 10**6}
  assert of(**many, num_items=MAX_ITEMS) == 'dpals'
  assert of(**many, num_items=100, unit='rating') == 'power_mf'
  assert of(**many, num_items=250) == 'moments'
  few = {'epsilon': 5.0, 'num_users': 10**5}
  assert of(**few, num_items=MAX_ITEMS) == 'moments'
  assert of(**few, num_items=MAX_ITEMS + 1) == 'dpals'
  # What is chosen runs at the deltas that scripts have.
  settings(epsilon=20.0, delta=1e-6)
