import dataclasses
import fractions
import itertools
import json
import re

import certified
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.integrate
import scipy.stats
from laws import assert_scale
from tables import crowd_of, layouts, table

from dpmf_jax import accounting, certificates, files
from dpmf_jax.accounting import ledger, tails
from dpmf_jax.accounting.rounding import smallest_spacing, user_term_bound
from dpmf_jax.auditing import cases, library_pairs
from dpmf_jax.auditing.sampling import tiny_data
from dpmf_jax.certificates import wording
from dpmf_jax.evaluation import metrics
from dpmf_jax.kernels import user_sums
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.auto import rank_for, recommended
from dpmf_jax.plans.dpals import (
  NEVER,
  DPALSConfig,
  alternatives,
  check_tails,
  lattice_spacing,
  plan,
  resolved,
  terms_bound,
  vote_bound,
)
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.runs import folders
from dpmf_jax.serving import models
from dpmf_jax.systems import (
  dpals,
  dpals_items,
  dpals_taste,
  dpals_users,
  dpals_votes,
  made,
)
from dpmf_jax.systems.row_means import own_bias_ridge
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)
DELTA = 1e-5


def settings(**more):
  common = {
    'relation': 'add_remove', 'scale': SCALE, 'delta': DELTA, 'epsilon': 5.0,
  }  # fmt: skip
  return DPALSConfig(**{**common, **more})


def begun(config, data, seed=0):
  """The system, and the state that a run begins with."""
  system = dpals.dpals(config)
  return system, system.init(jax.random.key(seed), data)


@pytest.fixture(scope='module')
def crowd():
  return crowd_of(30, most=20)


EXTREME = range(6)


def state_after(config, data, sweeps):
  """What some sweeps released, as any that is public.

  They have vectors, which so few ratings would not pay for.
  """
  system, state = begun(config, data, seed=3)
  step = jax.jit(system.step)
  for number in range(sweeps):
    state = step(jax.random.key(10 + number), state, data)
    state = state._replace(share=state.hyper.vector_share)
  return state


@jax.jit
def integer_sums(state, data):
  users, public, _ = dpals.local_users(state, data)
  spacing = state.hyper.noise.spacing
  return user_sums.item_sums(data.by_item, users, public, spacing)


@jax.jit
def integer_terms(state, data):
  """Sums and votes, all that a sweep adds noise to, in one row."""
  _, _, votes = dpals.local_users(state, data)
  sums = integer_sums(state, data)
  return jnp.concatenate([sums.reshape(-1), votes.sum(axis=0)])


# Sensitivity: take one user away.


@pytest.mark.parametrize('rank', [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize('sweeps', [0, 2])
def test_removing_a_user_moves_sums_by_their_own_terms(crowd, rank, sweeps):
  config = settings(rank=rank, contribution=2.0, steps=2)
  state = state_after(config, training_data(crowd), sweeps)
  total = np.asarray(integer_terms(state, training_data(crowd)), int)
  bound = plan(config).sensitivity['sums']
  lengths = []
  for user in EXTREME:
    rest = training_data(crowd.take(crowd.user != user))
    moved = total - np.asarray(integer_terms(state, rest))
    alone = training_data(crowd.take(crowd.user == user))
    own = np.asarray(integer_terms(state, alone))
    # Exactly: no other user's term changed by a single step.
    np.testing.assert_array_equal(moved, own)
    length = np.linalg.norm(moved * float(state.hyper.noise.spacing))
    assert length <= bound
    lengths.append(length)
  # The bound is not far from what happens, so a wrong one would be seen.
  assert max(lengths) > (0.95 if rank == 0 else 0.8) * bound


def test_a_bound_that_forgets_something_would_be_seen(crowd):
  config = settings(rank=2, contribution=2.0, clip_norm=1e-3, steps=2)
  state = state_after(config, training_data(crowd), 2)
  data = training_data(crowd.take(crowd.user == 1))
  users, public, votes = jax.jit(dpals.local_users)(state, data)
  bound = plan(config).sensitivity['sums']
  spacing = state.hyper.noise.spacing
  length = lambda users: np.linalg.norm(
    np.asarray(user_sums.item_sums(data.by_item, users, public, spacing))
    * float(spacing)
  )
  assert 0 < np.linalg.norm(votes) * float(spacing) <= vote_bound(config)
  assert length(users) > 0.9 * bound
  loud = users._replace(weight=jnp.ones_like(users.weight))
  assert length(loud) > 1.5 * bound
  assert length(users._replace(vector=2 * users.vector)) > 1.2 * bound
  # Without vectors the bound would be too small for this user.
  means = dataclasses.replace(config, rank=0)
  assert length(users) > plan(means).sensitivity['sums']


@pytest.mark.parametrize('scale', [(1.0, 5.0), (0.0, 100.0)])
def test_contributions_are_bounded_whatever_the_items(crowd, scale):
  """Also for items that no sweep would release."""
  value = scale[0] + (crowd.value - 1) / 4 * (scale[1] - scale[0])
  data = training_data(dataclasses.replace(crowd, value=value, scale=scale))
  config = settings(rank=3, contribution=1.0, scale=scale)
  hyper = dpals.hyper_of(config, 50)
  rng = np.random.default_rng(0)
  bound = terms_bound(config, True) * (1 + 1e-6)
  most_votes = vote_bound(config) / float(hyper.noise.spacing)
  local_users = jax.jit(dpals.local_users)
  for number in range(20):
    size = 10.0 ** rng.integers(-4, 2) * config.quarter
    wide = lambda *shape, s=size: jnp.asarray(rng.normal(size=shape) * s)
    state = dpals.start(jax.random.key(number), 30, 3, hyper)
    items = state.items._replace(
      mean=wide(30).astype('float32'),
      counts=jnp.asarray(rng.exponential(size=30), 'float32'),
      vector=wide(30, 3).astype('float32'),
      weight=jnp.asarray(rng.uniform(0, 4, 30), 'float32'),
    )
    # With vectors, and in a sweep of means alone.
    share = jnp.float32(1.2 * (number % 2))
    state = state._replace(items=items, share=share)
    users, _, votes = local_users(state, data)
    assert np.linalg.norm(votes, axis=1).max() <= most_votes
    assert float(jnp.linalg.norm(users.vector, axis=1).max()) <= share
    y = np.clip(
      value
      - np.asarray(items.mean)[crowd.item]
      - np.asarray(users.bias)[crowd.user],
      -2 * config.quarter,
      2 * config.quarter,
    )
    size = (y**2 + (0.5 * config.quarter) ** 2) * (
      1 + np.linalg.norm(users.vector, axis=1)[crowd.user] ** 2
    )
    weight = np.asarray(users.weight, float)[crowd.user]
    weight = weight * np.asarray(items.weight, float)[crowd.item]
    length = np.sqrt(np.bincount(crowd.user, weight**2 * size))
    assert length.max() <= bound


@pytest.mark.parametrize('no_number', [jnp.inf, jnp.nan])
def test_items_that_are_not_finite_tell_nothing(crowd, no_number):
  config = settings(rank=2, contribution=1.0, steps=2)
  state = state_after(config, training_data(crowd), 1)
  items = state.items._replace(
    vector=state.items.vector.at[3].set(jnp.nan),
    mean=state.items.mean.at[4:].set(no_number),
  )
  state = state._replace(items=items)
  sums = np.asarray(integer_terms(state, training_data(crowd)), int)
  rest = training_data(crowd.take(crowd.user != 0))
  moved = sums - np.asarray(integer_terms(state, rest))
  bound = plan(config).sensitivity['sums']
  assert np.linalg.norm(moved * float(state.hyper.noise.spacing)) <= bound


# Sums: exact, and those of the oracle.


def test_sums_are_those_of_slow_loops(crowd):
  config = settings(rank=2, steps=2)
  state = state_after(config, training_data(crowd), 2)
  items, hyper = state.items, state.hyper
  data = training_data(crowd)
  users, *_ = jax.jit(dpals.local_users)(state, data)
  total = np.zeros((30, 4))
  for user in range(50):
    at = crowd.user == user
    terms = oracles.user_terms(
      crowd.value[at],
      crowd.item[at],
      float(users.bias[user]),
      np.asarray(users.vector[user], float),
      float(users.weight[user]),
      mean=np.asarray(items.mean, float),
      weights=np.asarray(items.weight, float),
      bound=2.0,
      scale=0.5,
    )
    for item, term in terms.items():
      total[item] += term
  found = np.asarray(integer_sums(state, data)) * float(hyper.noise.spacing)
  # Each of up to 47 terms is cut by less than a step.
  spacing = float(hyper.noise.spacing)
  np.testing.assert_allclose(found, total, atol=50 * spacing)


def test_terms_are_cut_and_never_rounded_up(crowd):
  """A user of many terms of half a step would else add far more than these."""
  config = settings(rank=2, steps=2)
  state = state_after(config, training_data(crowd), 1)
  hyper = state.hyper
  data = training_data(crowd.take(crowd.user == 1))
  users, public, _ = jax.jit(dpals.local_users)(state, data)
  sums = lambda spacing: (
    spacing
    * np.abs(
      np.asarray(
        user_sums.item_sums(data.by_item, users, public, jnp.float32(spacing))
      )
    )
  )
  fine, coarse = sums(float(hyper.noise.spacing)), sums(2.0**-4)
  assert (coarse <= fine).all()
  assert (fine - coarse > 2.0**-5).any()


@pytest.mark.slow
def test_sums_do_not_depend_on_places_or_devices(crowd):
  config = settings(rank=3, steps=2)
  state = state_after(config, training_data(crowd), 2)
  expected = integer_terms(state, training_data(crowd))
  for data in layouts(crowd):
    np.testing.assert_array_equal(integer_terms(state, data), expected)


def test_units_hold_the_largest_sums():
  for num_users in (1, 2, 6040, 10**6):
    for largest in (0.3, 1.0, 9.6, 240.0):
      spacing = smallest_spacing(num_users, largest)
      assert largest <= spacing * 2**30 / num_users
      assert np.log2(spacing) == round(np.log2(spacing))
  # Everybody loud, at the largest weight: nothing wraps.
  count, items = 3000, 2
  rows = [(u, i, 5.0) for u in range(count) for i in range(items)]
  data = training_data(table(rows, count, items))
  spacing = smallest_spacing(count, user_term_bound(2.0, 0.5, 1.2))
  users = user_sums.Users(
    jnp.zeros(count), jnp.full((count, 1), 1.2), jnp.ones(count)
  )
  public = user_sums.Public(
    jnp.zeros(items), jnp.full(items, 4.0), jnp.float32(2), jnp.float32(0.5)
  )
  sums = user_sums.item_sums(data.by_item, users, public, jnp.float32(spacing))
  expected = count * 4.0 * np.array([[0.5, 2.0, 2.4]] * items)
  np.testing.assert_allclose(np.asarray(sums) * spacing, expected, rtol=1e-5)


def test_norms_are_upper_bounds(crowd):
  data = training_data(crowd)
  rng = np.random.default_rng(2)
  bias, mean = rng.normal(size=50), rng.normal(size=30)
  weight = rng.uniform(0, 4, 30)
  public = user_sums.Public(
    jnp.asarray(mean, 'float32'),
    jnp.asarray(weight, 'float32'),
    jnp.float32(2),
    jnp.float32(0.5),
  )
  found = user_sums.squared_norms(
    data.by_user, jnp.asarray(bias, 'float32'), public, 30
  )
  y = np.clip(crowd.value - mean[crowd.item] - bias[crowd.user], -2, 2)
  terms = weight[crowd.item] ** 2 * (y**2 + 0.25)
  exact = np.bincount(crowd.user, terms)
  assert (np.asarray(found) >= exact).all()
  np.testing.assert_allclose(found, exact, rtol=1e-3)


def exact_square(*numbers):
  """a^2 (scale^2 + y^2) of a rating, as a fraction."""
  numbers = (fractions.Fraction(float(number)) for number in numbers)
  rating, mean, weight, bias, bound, scale = numbers
  y = min(max(rating - mean - bias, -bound), bound)
  return weight**2 * (scale**2 + y**2)


@pytest.mark.parametrize('num_items', [1, 30, 2**12, 2**21])
@pytest.mark.parametrize('most', [4.0, 0.3, 0.01])
def test_norms_are_never_below_the_exact_ones(num_items, most):
  """Where all float32 can do is round, and where terms are below a step."""
  rng = np.random.default_rng(7)
  each = min(num_items, 5)
  rows = [
    (u, i, float(rng.integers(1, 6))) for u in range(200) for i in range(each)
  ]
  normal = lambda size: rng.normal(size=size).astype('float32')
  bias, mean = normal(200), normal(each)
  weight = rng.uniform(0, most, each).astype('float32')
  public = user_sums.Public(mean, weight, np.float32(1.7), np.float32(0.3))
  found = user_sums.squared_norms(
    training_data(table(rows, 200, each)).by_user,
    jnp.asarray(bias),
    jax.tree.map(jnp.asarray, public),
    num_items,
  )
  exact = [fractions.Fraction(0)] * 200
  for u, i, value in rows:
    exact[u] += exact_square(value, mean[i], weight[i], bias[u], *public[2:])
  assert all(
    fractions.Fraction(float(upper)) >= norm
    for upper, norm in zip(found, exact, strict=True)
  )


@pytest.mark.parametrize('num_items', [1, 2, 64, 65])
def test_norms_of_the_loudest_user_do_not_wrap(num_items):
  rows = training_data(
    table([(0, i, 5.0) for i in range(num_items)], 1, num_items)
  ).by_user
  public = user_sums.Public(
    jnp.zeros(num_items), jnp.full(num_items, 4.0), jnp.float32(2),
    jnp.float32(2),
  )  # fmt: skip
  found = user_sums.squared_norms(rows, jnp.zeros(1), public, num_items)
  exact = num_items * 4.0**2 * (2.0**2 + 2.0**2)
  assert exact <= float(found[0]) <= exact * (1 + 1e-4)


def test_weights_keep_their_bound_exactly():
  """Also where float32 rounds up, and just above and below the bound."""
  rng = np.random.default_rng(9)
  near = lambda size: rng.uniform(1 - 1e-6, 1 + 1e-6, size).astype('float32')
  exact = fractions.Fraction
  square = np.float32(0.7**2) * np.append(near(1000), near(1000) * 3)
  weight = user_sums.weights(jnp.asarray(square), jnp.float32(0.7))
  assert all(
    exact(float(v)) ** 2 * exact(float(s)) <= exact(float(np.float32(0.7))) ** 2
    for v, s in zip(weight, square, strict=True)
  )


def test_vectors_keep_their_bound_exactly():
  rng = np.random.default_rng(10)
  near = lambda size: rng.uniform(1 - 1e-6, 1 + 1e-6, size).astype('float32')
  exact = fractions.Fraction
  angle = rng.uniform(0, 2 * np.pi, 2000)
  sizes = 0.2 * np.append(near(1000), near(1000) * 3)
  columns = [(sizes * f(angle)).astype('float32') for f in (np.cos, np.sin)]
  found = jax.jit(dpals_users.clipped)(
    np.stack(columns, axis=1), np.float32(0.2), np.float32(1.2)
  )
  assert all(
    exact(float(x)) ** 2 + exact(float(y)) ** 2 <= exact(1.2) ** 2
    for x, y in np.asarray(found)
  )


def test_vectors_that_are_not_finite_are_zero():
  first = jnp.array([jnp.nan, jnp.inf, 1e30, 0.1])
  vector = jnp.stack([first, jnp.full(4, 0.1)], axis=1)
  found = np.array(dpals_users.clipped(vector, jnp.float32(1), jnp.float32(1)))
  assert (found[:3] == 0).all()
  np.testing.assert_allclose(found[3], 0.1)


def test_a_user_at_the_bound_is_above_it_in_float32_and_below_what_is_stated():
  """The products of a term are rounded, so the bound needs room for that.

  Weights and vectors have a slack of their own, without which the users here
  are: each has one item, and bounds that hold with equality before rounding.
  """
  count, rng = 2000, np.random.default_rng(8)
  rows = [(u, u, 4.0) for u in range(count)]
  uniform = lambda low, high: rng.uniform(low, high, count).astype('float32')
  users = user_sums.Users(
    uniform(2, 3), uniform(0.3, 1)[:, None], uniform(0.5, 1)
  )
  # Counts so small that the bound is tight.
  public = user_sums.Public(
    uniform(0, 1), uniform(0.5, 1), np.float32(2), np.float32(1e-6)
  )
  spacing = smallest_spacing(1, user_term_bound(2.0, 1e-6, 1.0))
  found = user_sums.item_sums(
    training_data(table(rows, count, count)).by_item,
    jax.tree.map(jnp.asarray, users),
    jax.tree.map(jnp.asarray, public),
    jnp.float32(spacing),
  )
  found = np.linalg.norm(np.asarray(found, float) * spacing, axis=1)
  squares = [
    exact_square(4.0, mean, weight, bias, *public[2:])
    for mean, weight, bias in zip(*public[:2], users.bias, strict=True)
  ]
  contribution = users.weight.astype(float) * np.sqrt(np.array(squares, float))
  share = users.vector[:, 0].astype(float)
  exact = contribution * np.hypot(1.0, share)
  worst = np.argmax(found / exact)
  assert found[worst] > exact[worst] * (1 + 1e-7)
  for u in (worst, *range(10)):
    config = settings(
      contribution=contribution[u],
      vector_share=share[u],
      count_scale=1e-6,
      rank=1,
    )
    assert found[u] <= terms_bound(config, True) * (1 + 1e-4)


def test_elementwise_solutions_are_those_of_lapack():
  rng = np.random.default_rng(5)
  for size in (1, 2, 5):
    root = rng.normal(size=(40, size, size + 2))
    matrix = root @ root.transpose(0, 2, 1) + np.eye(size)
    right = rng.normal(size=(40, size))
    given = matrix, right, np.zeros(40)
    equations = dpals_users.Equations(
      *(jnp.asarray(x, 'float32') for x in given)
    )
    ridge = jnp.full(size, 0.5)
    found, _ = jax.jit(dpals_users.fitted)(equations, ridge, ridge[None])
    matrix = matrix + 0.5 * np.eye(size)
    expected = np.linalg.solve(matrix, right[..., None])[..., 0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def own_columns(state, ratings, user):
  """What a user's equations are of: columns and labels, in quarters."""
  at = ratings.user == user
  i = ratings.item[at]
  items = state.items
  mean = np.asarray(items.mean, float)
  slopes = mean - float(dpals_items.common_mean(items))
  columns = [
    np.ones((len(i), 1)),
    np.asarray(items.vector, float)[i],
    slopes[i, None],
    np.asarray(dpals_items.popularity(items), float)[i, None],
  ]
  return np.concatenate(columns, axis=1), ratings.value[at] - 3.5 - mean[i]


@pytest.fixture(scope='module')
def learned(crowd):
  """After two sweeps with vectors."""
  return state_after(settings(rank=2, steps=2), training_data(crowd), 2)


def test_a_user_s_fit_is_a_ridge_regression(crowd, learned):
  users, *_ = jax.jit(dpals.local_users)(learned, training_data(crowd))
  for user in (0, 2, 20):
    x, y = own_columns(learned, crowd, user)
    x = x[:, :3]
    found = np.linalg.solve(x.T @ x + np.diag([10.0, 1.0, 1.0]), x.T @ y)
    # Factors and labels are rounded to 2^-9 of 2.8 and of 6.
    assert float(users.bias[user]) == pytest.approx(found[0] + 3.5, abs=0.02)
    size = np.linalg.norm(found[1:])
    want = found[1:] * min(1, 0.2 / size) * 6
    np.testing.assert_allclose(users.vector[user], want, atol=0.15)


# Votes.


def odds_of(x, y, ridges):
  """Logarithms of how likely y is, against the first of `ridges` [G, K].

  A multivariate t: errors N(0, s^2), coefficients N(0, s^2 / ridge), and 1/s^2
  has a Gamma prior of 3 ratings that are 0.7 off.
  """
  found = []
  for ridge in ridges:
    cover = np.eye(len(y)) + (x / ridge) @ x.T
    law = scipy.stats.multivariate_t(np.zeros(len(y)), 0.7 * cover, df=3)
    found.append(law.logpdf(y))
  return np.array(found) - found[0]


def test_votes_are_odds_of_a_user_s_ratings(crowd, learned):
  config = settings(rank=2, steps=2)
  *_, votes = jax.jit(dpals.local_users)(learned, training_data(crowd))
  unit = 2.0 / vote_bound(config) * float(learned.hyper.noise.spacing)
  size = np.asarray(learned.items.size, float) ** -2
  assert size.max() > 1
  bias = own_bias_ridge(5.0, float(learned.items.own))
  ridges = [
    (bias, vector * size[0], vector * size[1], mean, popularity)
    for vector, mean, popularity in alternatives(config)
  ]
  assert len(ridges) == 12
  for user in (0, 2, 3, 20, 30):
    expected = odds_of(*own_columns(learned, crowd, user), np.array(ridges))
    length = np.linalg.norm(expected)
    expected = expected * min(1, 2 / length)
    found = np.asarray(votes[user]) * unit
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_a_user_without_ratings_has_no_vote(crowd):
  """Whatever the ridges: nobody is to move sums by not being there."""
  config = settings(rank=2, steps=2, final_vector_ridge=1e-6)
  state = state_after(config, training_data(crowd), 1)
  rest = training_data(crowd.take(crowd.user != 7))
  *_, votes = jax.jit(dpals.local_users)(state, rest)
  assert not np.asarray(votes[7]).any()
  assert np.asarray(votes[8]).any()


def test_votes_keep_their_bound_exactly():
  """Also where evidence is just as long as it may be, or no number."""
  rng = np.random.default_rng(11)
  evidence = rng.normal(size=(1000, 12)).astype('float32')
  odds = evidence - evidence[:, :1]
  length = np.linalg.norm(odds, axis=1, keepdims=True)
  near = rng.uniform(1 - 1e-6, 1 + 1e-6, (1000, 1))
  sizes = 2 * near * 10.0 ** rng.choice([-30, 0, 0, 5, 15], (1000, 1))
  evidence = (odds / length * sizes).astype('float32')
  no_numbers = np.zeros((5, 12), 'float32')
  no_numbers[:4, 3] = [np.nan, np.inf, -np.inf, 1e30]
  no_numbers[4] = np.inf
  spacing = 2.0**-30
  find = lambda evidence, rated: np.asarray(
    jax.jit(dpals_votes.terms)(
      jnp.asarray(evidence),
      jnp.asarray(rated),
      bound=jnp.float32(0.7),
      spacing=jnp.float32(spacing),
    )
  )
  found = find(evidence, np.ones(1000, bool)).tolist()
  squares = [sum(vote * vote for vote in votes) for votes in found]
  bound = fractions.Fraction(0.7) / fractions.Fraction(spacing)
  assert max(squares) <= bound**2
  assert max(squares) >= (1 - 3e-5) * bound**2
  assert not find(no_numbers, np.ones(5, bool)).any()
  assert not find(evidence, np.zeros(1000, bool)).any()


@pytest.mark.parametrize('num_users', [1, 6040, 10**6])
@pytest.mark.parametrize(
  'more', [{}, {'contribution': 1e6}, {'vector_share': 1e6}]
)
def test_the_lattice_has_room_for_all_votes(num_users, more):
  for rank in (0, 2):
    config = settings(rank=rank, **more)
    spacing = lattice_spacing(config, num_users)
    assert num_users * vote_bound(config) <= 2**30 * spacing


@pytest.mark.slow
def test_votes_have_noise_of_their_own_of_the_scale_of_all_sums():
  config = settings(rank=0, epsilon=1.0, steps=2)
  data = training_data(table([(0, 0, 5.0), (1, 1, 2.0)], 5, 3))
  system, state = begun(config, data)
  keys = jax.random.split(jax.random.key(1), 1500)
  after = jax.jit(jax.vmap(system.step, (0, None, None)))(keys, state, data)
  votes = np.asarray(integer_terms(state, data))[-3:]
  noisy = np.asarray(after.votes.total) / 2.0 * vote_bound(config)
  noise = noisy - votes * float(state.hyper.noise.spacing)
  assert_scale(np.ravel(noise), 'norm', plan(config).noise['sums'])
  sums = after.items.sums
  every = np.concatenate([noise, sums.counts, sums.residual], axis=1)
  pairs = np.corrcoef(every.T)[np.triu_indices(9, 1)]
  assert abs(pairs).max() < 0.15  # 5.8 deviations


def test_votes_decide_unless_noise_hides_them():
  ridges = jnp.array([[5.0, 10, 80], [5, NEVER, NEVER], [NEVER, 10, 80]])
  for total, variance, expected in (
    ((0.0, 5.0, 1.0), 1.0, (5.0, np.inf, np.inf)),
    ((0.0, 5.0, 1.0), 9.0, (5.0, 10.0, 80.0)),
    ((0.0, -5.0, 9.0), 1.0, (np.inf, 10.0, 80.0)),
  ):
    votes = dpals_votes.Votes(jnp.array(total), jnp.float32(variance))
    chosen = dpals_votes.chosen(votes, ridges)
    np.testing.assert_array_equal(chosen, expected)
  best = lambda *total: bool(
    dpals_votes.vectors_help(
      dpals_votes.Votes(jnp.array(total), jnp.float32(1)), ridges
    )
  )
  assert best(0.0, 5.0, 4.0)
  assert not best(0.0, 1.0, 4.0)


def test_votes_end_vectors_and_give_their_share_to_means(crowd):
  data = training_data(crowd)
  config = settings(rank=2, steps=12)
  system = dpals.dpals(config)
  state, step = system.init(jax.random.key(0), data), jax.jit(system.step)
  # Nobody wants vectors: the last three of 12 alternatives are without.
  against = jnp.where(jnp.arange(12) < 9, 0.0, jnp.float32(1e9))
  shares, vectors = [], []
  for number in range(7):
    shares.append(float(state.share))
    vectors.append(np.asarray(state.items.vector))
    votes = state.votes._replace(total=against)
    state = step(jax.random.key(number), state._replace(votes=votes), data)
    if number == 0:  # so few would not try
      state = state._replace(share=state.hyper.vector_share)
  np.testing.assert_allclose(shares, [0] + [1.2] * 4 + [0] * 2, rtol=1e-6)
  changed = [(a != b).any() for a, b in itertools.pairwise(vectors)]
  assert changed == [False] + [True] * 4 + [False]
  wide, narrow = (
    float(dpals.contribution(state._replace(share=jnp.float32(share))))
    for share in (0.0, 1.2)
  )
  assert narrow == pytest.approx(4.0)
  assert wide == pytest.approx(4.0 * np.hypot(1, 1.2))


# Noise.


@pytest.mark.slow
def test_noise_has_the_scale_that_was_calibrated():
  # 3,000 numbers: the right scale fails with chance 1e-4, by the threshold;
  # 2/3 and 3/2 of it have p-values below 1e-20.
  config = settings(rank=1, epsilon=1.0, steps=2)
  data = training_data(table([(0, 0, 5.0), (1, 1, 2.0)], 5, 3000))
  system, state = begun(config, data)
  sums = np.asarray(integer_sums(state, data), float)
  after = jax.jit(system.step)(jax.random.key(1), state, data)
  seen = after.items.sums
  precision = np.asarray(seen.precision, float)
  noisy = [
    np.asarray(seen.counts, float) / precision * 0.5,
    np.asarray(seen.residual, float) / precision,
    np.asarray(seen.vector[:, 0], float),
  ]
  std = plan(config).noise['sums']
  mu = 1 / system.guarantee.event.noise_multiplier
  assert std >= plan(config).sensitivity['sums'] / mu
  for place, values in enumerate(noisy):
    drawn = values - sums[:, place] * float(state.hyper.noise.spacing)
    test = lambda s, d=drawn: scipy.stats.kstest(d / (s * std), 'norm').pvalue
    assert test(1.0) > 1e-4
    assert test(2 / 3) < 1e-10
    assert test(3 / 2) < 1e-10
  pairs = np.corrcoef(noisy)
  assert abs(pairs[np.triu_indices(3, 1)]).max() < 0.08  # 4.4 deviations


def test_every_sweep_draws_anew(small_ratings):
  # With the ratings of tests of the contract, who have compiled it.
  data = training_data(with_epsilon(small_ratings, 3.0))
  config = settings(rank=2, steps=2)
  states = []
  fit(
    dpals.dpals(config), jax.random.key(0), data, report_every=1,
    callbacks=[lambda report: states.append(report.state)],
  )  # fmt: skip
  one, two = (np.asarray(s.items.sums.counts) for s in states[1:])
  assert abs(np.corrcoef(one, two - one)[0, 1]) < 0.999


# What is stated.


def test_the_statement_is_about_users():
  config = settings()
  guarantee = dpals.dpals(config).guarantee
  assert (guarantee.unit, guarantee.relation) == ('user', 'add_remove')
  assert accounting.epsilon(guarantee, DELTA) == pytest.approx(5, rel=1e-4)
  assert accounting.epsilon(guarantee, DELTA) <= 5 * (1 + 1e-9)
  # Twelve sweeps are one Gaussian.
  spent = guarantee.event
  mu = accounting.gaussian.mu_of(5.0, DELTA)
  assert spent.noise_multiplier == pytest.approx(12**0.5 / mu, rel=1e-4)
  assert 'user factors' in guarantee.secret
  assert 'user ids' in guarantee.secret
  assert guarantee.released == (
    'item factors',
    'offset',
    'noisy counts of items',
    "ridges of users' fits",
    'item ids',
  )


def test_the_certificate_speaks_of_users():
  config = settings()
  document = certificates.certificate(
    dpals.dpals(config).guarantee, system='dpals', config=config, delta=DELTA,
    randomness=certified.SECRET, parameters={'dataset': 'x'},
  )  # fmt: skip
  words = wording.summary(document)
  assert 'any one user with all ratings' in words.lower()
  assert 'All ratings of one person together' not in words
  assert document['unit'] == 'user'


def test_the_mechanism_states_the_noise_of_the_rank_that_runs(small_ratings):
  data = training_data(small_ratings)
  for rank in (None, 0, 2):
    config = resolved(settings(rank=rank), small_ratings.num_users, 40)
    assert config.rank == (rank or 0)  # too few users to choose vectors
    system, state = begun(config, data)
    words = system.guarantee.mechanism
    bound, std = map(
      float,
      re.search(r'at most (\S+) in L2 norm, .* of (\S+)$', words).groups(),
    )
    assert bound == pytest.approx(plan(config).sensitivity['sums'], rel=1e-5)
    assert std == pytest.approx(float(state.hyper.noise.std), rel=1e-5)
    assert ('times user vectors' in words) == (config.rank > 0)


def test_the_mechanism_has_both_figures_while_the_rank_is_open():
  config = settings(rank=None)
  words = dpals.dpals(config).guarantee.mechanism
  plans = [plan(dataclasses.replace(config, rank=rank)) for rank in (0, 8)]
  for figure in ('sensitivity', 'noise'):
    without, vectors = (getattr(each, figure)['sums'] for each in plans)
    assert f'{without:.6g} (rank 0) or {vectors:.6g} (above 0)' in words


def test_the_ledger_keeps_units_apart(tmp_path):
  guarantee = dpals.dpals(settings()).guarantee
  spend = lambda unit: ledger.spend(
    tmp_path / 'ledger', ledger.proved_event(guarantee), budget_epsilon=20.0,
    delta=DELTA, unit=unit, relation='add_remove', dataset='x', digest='d',
    system='dpals', variant='sound', what='here',
  )  # fmt: skip
  spend('user')
  with pytest.raises(ValueError, match='unit'):
    spend('rating')


def test_user_ids_are_not_beside_the_model(tmp_path, small_ratings):
  data = training_data(small_ratings)
  config = settings(rank=1, steps=1)
  system, state = begun(config, data)
  folder = tmp_path / 'run'
  (folder / 'private').mkdir(parents=True)
  model = system.model(state, data)
  folders.write_model(folder, model, system.guarantee, small_ratings)
  document = certificates.certificate(
    system.guarantee, system='dpals', config=config, delta=DELTA,
    randomness=certified.SECRET,
  )  # fmt: skip
  files.write_json(folder / folders.FINISHED, document)
  ids = json.loads((folder / 'ids.json').read_text())
  assert 'users' not in ids
  assert len(ids['items']) == 40
  users = folder / 'private' / 'users.json'
  assert users.stat().st_mode & 0o777 == 0o600
  model = models.load_model(folder)
  np.testing.assert_array_equal(model.user_ids, small_ratings.user_ids)
  assert not model.covered
  users.unlink()
  with pytest.raises(ValueError, match='keeps them secret'):
    models.load_model(folder)


@pytest.mark.parametrize(
  ('setting', 'message'),
  [
    ({'relation': 'replace'}, "relation='replace'"),
    ({'delta': 0.0}, r'delta=0\.0'),
    ({'rank': 17}, 'rank=17'),
    ({'rank': 1.5}, 'rank'),
    ({'steps': 0}, 'steps=0'),
    ({'count_scale': 3.0}, r'count_scale=3\.0'),
    ({'contribution': float('nan')}, 'contribution=nan'),
    ({'scale': (1000.0, 1001.0)}, 'within 64 widths'),
    ({'noise_multiplier': 1.0}, 'exactly one'),
    ({'epsilon': None}, 'exactly one'),
  ],
)
def test_wrong_settings_are_named(setting, message):
  with pytest.raises(ValueError, match=message):
    settings(**setting)


def test_too_little_noise_for_float32_is_refused():
  config = settings(epsilon=None, noise_multiplier=0.2, rank=4)
  with pytest.raises(ValueError, match='tails'):
    check_tails(config, 1000)
  check_tails(settings(epsilon=20.0, rank=8), 100_000)


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 5.0, 20.0])
def test_delta_pays_for_the_noise_as_drawn_and_for_its_tails(epsilon):
  config = settings(epsilon=epsilon, rank=2)
  drawn = plan(config).noise['sums'] / plan(config).sensitivity['sums']
  spent = accounting.delta(accounting.Gaussian(drawn, config.steps), epsilon)
  # `check_tails` lets the tails have a ten thousandth of delta.
  assert spent <= (1 - 1e-4) * DELTA


def test_tails_of_all_sweeps_count():
  lost = tails.uncovered_jointly(1.0, 3000)
  make = lambda steps: settings(
    epsilon=None, noise_multiplier=1.0, steps=steps, delta=55_000 * lost, rank=1
  )
  check_tails(make(5), 1000)
  with pytest.raises(ValueError, match='tails'):
    check_tails(make(6), 1000)


# Items.


def test_counts_are_posterior_means():
  noisy = np.array([-3.0, 0.0, 1.0, 8.0, 30.0])
  error = np.array([1.0, 1.0, 2.0, 1.0, 3.0])
  positive_counts = jax.jit(dpals_items.positive_counts)
  found = positive_counts(
    jnp.asarray(noisy, 'float32'), jnp.asarray(error, 'float32')
  )
  prior = noisy.mean()
  for value, sd, mean in zip(noisy, error, found, strict=True):
    density = lambda x, v=value, s=sd: np.exp(
      -x / prior - (x - v) ** 2 / (2 * s * s)
    )
    top = max(value, 0) + 12 * sd
    weight = scipy.integrate.quad(density, 0, top, limit=200)[0]
    moment = scipy.integrate.quad(
      lambda x, d=density: x * d(x), 0, top, limit=200
    )[0]
    assert float(mean) == pytest.approx(moment / weight, rel=2e-3)
  far = positive_counts(jnp.array([-1e6, -50.0, 5.0]), jnp.ones(3))
  assert bool((far > 0).all())


def test_means_are_shrunk_by_their_errors():
  rng = np.random.default_rng(6)
  count = rng.exponential(20, 4000)
  truth = 0.3 + 0.5 * rng.normal(size=4000)
  variance = 9 + count * 0.8
  sums = count * truth + np.sqrt(variance) * rng.normal(size=4000)
  found = np.asarray(
    dpals_items.shrunk_means(*(jnp.asarray(x) for x in (sums, count, variance)),
                             0.25)
  )  # fmt: skip
  error = np.mean((found - truth) ** 2)
  expected = np.mean(0.25 * variance / (variance + 0.25 * count**2))
  assert error == pytest.approx(expected, rel=0.15)
  assert error < np.mean((truth - truth.mean()) ** 2)


@pytest.mark.parametrize('spread', [0.04, 0.25, 0.6])
def test_the_spread_of_means_is_seen_in_noisy_sums(spread):
  rng = np.random.default_rng(7)
  count = rng.exponential(20, 2000)
  variance = 100 + count * 0.8
  truth = 0.3 + spread**0.5 * rng.normal(size=2000)
  sums = count * truth + np.sqrt(variance) * rng.normal(size=2000)
  given = [jnp.asarray(x, 'float32') for x in (sums, count, variance)]
  usual = jnp.float32(0.25)
  found = dpals_items.spread_of_means(*given, usual)
  assert float(found) == pytest.approx(spread, rel=0.25)
  # Where noise hides it, the usual one is left.
  given[2] = given[2] + 1e9
  hidden = dpals_items.spread_of_means(*given, usual)
  assert float(hidden) == pytest.approx(0.25, rel=1e-3)


def updated_items(per_user):
  """After a sweep in which 1,000 users had so many ratings, of 200 items."""
  items = dpals_items.start(jax.random.key(0), 200, 0, jnp.float32(1))
  noisy = jnp.full((200, 2), per_user * 1000 / 200).at[:, 0].multiply(0.5)
  return jax.jit(dpals_items.updated, static_argnames='num_users')(
    items, noisy, jnp.float32(2), num_users=1000, quarter=jnp.float32(1),
    count_scale=jnp.float32(0.5), contribution=jnp.float32(4),
    vector_share=jnp.float32(0), adaptivity=jnp.float32(0.4),
    memory=jnp.float32(0.4),
  )  # fmt: skip


def test_where_users_have_few_ratings_these_weigh_more():
  few, many = updated_items(2.0), updated_items(40.0)
  assert float(few.own) == pytest.approx(2, abs=0.1)
  # Those of 105 have a weight of 0.38 each: a norm of 4.
  assert float(many.own) == pytest.approx(40**2 * 1.05 / 16, rel=0.01)
  # A user of two has a norm of 1.45 as it is, and 4 are allowed.
  np.testing.assert_allclose(few.weight, 4 / np.sqrt(2.1 * 1.05), rtol=0.05)
  np.testing.assert_allclose(many.weight, 1.0, rtol=0.05)


def test_vectors_are_tried_where_taste_would_be_seen():
  def tried(per_user, std=2.0, rank=2, promised=1.0):
    """Where there are so many ratings, and so much noise from now on."""
    items = updated_items(per_user)
    items = items._replace(vector=jnp.zeros((200, rank)))
    return bool(
      dpals_taste.pays(
        items, std=jnp.float32(std), quarter=jnp.float32(1),
        share=jnp.float32(1.2), now=jnp.float32(0), memory=jnp.float32(0.4),
        left=jnp.int32(11), promised=jnp.float32(promised),
      )
    )  # fmt: skip

  assert tried(20.0)
  # Users of a few ratings cannot tell what they like, nor can anybody in noise.
  assert not tried(2.0)
  assert not tried(20.0, std=100.0)
  # The more there is to learn, the less of it is learned.
  assert not tried(5.0, rank=16)
  assert tried(2.0, std=100.0, rank=16, promised=0.0)


@pytest.mark.slow
def test_audits_have_vectors_in_all_sweeps():
  step = jax.jit(dpals.step)
  for case in cases('dpals', 'sound'):
    system = made('dpals', 'sound', **case.settings)
    for pair in library_pairs('user', 'add_remove', case.settings['scale']):
      data = tiny_data(pair.first, pair.second)[1]
      state = system.init(jax.random.key(0), data)
      for sweep in range(system.steps if case.settings['rank'] else 0):
        assert float(state.share) > 0
        state = step(jax.random.key(sweep), state, data)


@pytest.mark.parametrize('per_user', [2.0, 20.0])
def test_a_run_tries_vectors_where_they_pay(crowd, per_user):
  data = training_data(crowd)
  _, state = begun(settings(rank=2, steps=12), data)
  items = updated_items(per_user)._replace(
    vector=jnp.zeros((200, 2)), size=jnp.ones(2)
  )
  quiet = state.hyper._replace(
    noise=state.hyper.noise._replace(std=jnp.float32(2))
  )
  after = dpals._after(state._replace(hyper=quiet), items, jnp.zeros(12))
  assert float(after.share) == pytest.approx(1.2 if per_user > 5 else 0)


# Choice and accuracy.


def test_the_rank_comes_from_public_facts():
  assert rank_for(0.27, 6040, 3706) == 0  # MovieLens-1M, epsilon 1
  assert rank_for(1.12, 6040, 3706) == 3  # epsilon 5
  assert rank_for(3.45, 6040, 3706) == 8
  assert rank_for(1.12, 943, 1682) == 0  # MovieLens-100K
  assert rank_for(3.45, 943, 1682) == 2
  ranks = [rank_for(mu, 5000, 3000) for mu in np.linspace(0.01, 5, 100)]
  assert ranks == sorted(ranks)
  with pytest.raises(ValueError, match='num_items=0'):
    rank_for(1.0, 5, 0)
  for epsilon in (0.1, 5.0, 20.0):
    given = {'epsilon': epsilon, 'delta': DELTA}
    name, chosen = recommended('user', num_users=6040, num_items=3706, **given)
    config = SPECS[name].config(scale=SCALE, **given, **chosen)
    default = dataclasses.replace(config, rank=None)
    assert resolved(default, 6040, 3706) == config


def held_out(config, ratings, seed=0):
  train, test = random_split(ratings, 0.2, seed=seed)
  data = training_data(train)
  system = dpals.dpals(config)
  state = fit(system, jax.random.key(seed), data)
  rows = training_data(test).by_user
  model = jax.jit(system.model)(state, data)
  error = metrics.rmse(model, rows, ratings.scale)
  return error, metrics.baselines(train, test)


@pytest.mark.slow
def test_it_learns_means_and_then_vectors():
  ratings = synthetic(
    num_users=2000, num_items=100, num_ratings=60_000, rank=2, seed=3
  )
  errors = {
    rank: held_out(settings(rank=rank, epsilon=20.0), ratings)[0]
    for rank in (0, 2)
  }
  baselines = held_out(settings(rank=0, epsilon=0.05, steps=2), ratings)
  assert errors[0] < 0.97 * baselines[1]['user_mean']
  assert errors[2] < 0.97 * errors[0]
  # With hardly any budget it is the users' own means that are left.
  assert baselines[0] < 1.03 * baselines[1]['user_mean']


@pytest.mark.slow
def test_movielens_is_better_than_the_user_mean_at_every_epsilon(data_dir):
  from dpmf_jax.ratings import catalog

  ratings = catalog.load('ml-100k', data_dir=data_dir, quiet=True)
  for epsilon, most in ((0.1, 1.045), (20.0, 0.945)):
    error, baselines = held_out(settings(epsilon=epsilon), ratings)
    assert error < most
    assert error < baselines['user_mean'] + 0.005
