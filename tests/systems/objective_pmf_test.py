"""Objective perturbation, as published and sound, with one epsilon or many."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.stats
from equations import (
  SCALE,
  features_for,
  moves,
  paper,
  personal,
  personal_moves,
  sound,
  spread_ratings,
  sums,
  without_noise,
)
from laws import assert_scale

from dpmf_jax import accounting
from dpmf_jax.accounting.rounding import MAX_STD
from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.plans import objective_pmf as settings
from dpmf_jax.plans.gaussian_mf import GaussianMFConfig
from dpmf_jax.plans.personalized_pmf import PAPER as PERSONAL_PAPER
from dpmf_jax.ratings.specification import from_fractions, with_epsilon
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import noisy_equations
from dpmf_jax.systems.gaussian_mf import gaussian_mf
from dpmf_jax.systems.objective_pmf import objective_pmf
from dpmf_jax.systems.personalized_pmf import (
  personalized_pmf,
)
from dpmf_jax.training import fit
from dpmf_jax.types import Factors

FEATURES = [(None, 1.0), (3, 0.2), (3, 50.0)]


@pytest.mark.parametrize('count_scale', [0.4, 2.0])
@pytest.mark.parametrize(('rank', 'size'), FEATURES)
def test_removing_any_rating_moves_one_item_by_at_most_sensitivity(
  rank, size, count_scale
):
  ratings = spread_ratings()
  config = sound(count_scale=count_scale)
  bound = settings.sensitivity(config, rank or 1)
  # ||p||^2 <= 1 and |y| ||p|| <= 2, and what a shift of 6 bits may add.
  assert np.hypot(count_scale, 2) <= bound <= 1.002 * np.hypot(count_scale, 2)
  features = rank and features_for(ratings, rank, size=size)
  system = objective_pmf(config, features)
  before, largest = sums(system, ratings), 0.0
  for gone in range(len(ratings)):
    kept = ratings.take(np.arange(len(ratings)) != gone)
    moved, matrix, _ = moves(config, before, sums(system, kept))
    assert moved[ratings.item[gone]] <= bound
    assert matrix[ratings.item[gone]] > 0
    assert not np.delete(moved, ratings.item[gone]).any()
    largest = max(largest, moved.max())
  if rank is None or size == 50.0:
    assert largest > 0.99 * bound  # it is reached


@pytest.mark.parametrize(
  ('rank', 'size', 'shift'), [(None, 1.0, 12), (3, 0.2, 6), (3, 50.0, 0)]
)
def test_changing_any_value_moves_b_alone_by_at_most_sensitivity(
  rank, size, shift
):
  ratings = spread_ratings()
  config = sound('replace', shift=shift)
  bound = settings.sensitivity(config, rank or 1)
  assert 4 <= bound <= 4 * (1 + 2.0 ** (shift - 18))
  features = rank and features_for(ratings, rank, size=size)
  system = objective_pmf(config, features)
  before, largest = sums(system, ratings), 0.0
  for place in range(len(ratings)):
    for other in SCALE:
      values = ratings.value.copy()
      values[place] = other
      changed = from_arrays(ratings.user, ratings.item, values, scale=SCALE)
      _, matrix, vector = moves(config, before, sums(system, changed))
      assert not matrix.any()
      assert vector[ratings.item[place]] <= bound
      assert not np.delete(vector, ratings.item[place]).any()
      largest = max(largest, vector.max())
  if rank is None or size == 50.0:
    assert largest > 0.98 * bound


@pytest.mark.parametrize('shift', [6, 9])
@pytest.mark.parametrize(('seed', 'rank'), [(0, None), (1, None), (2, 5)])
def test_no_weighted_rating_moves_more_than_its_own_epsilon_allows(
  seed, rank, shift
):
  rng = np.random.default_rng(seed)
  ratings = spread_ratings()
  own = np.exp(rng.uniform(np.log(2e-3), 0.7, len(ratings)))
  ratings = with_epsilon(ratings, own)
  config = personal(epsilon=1.5, shift=shift)
  features = rank and features_for(ratings, rank, size=50.0)
  for gone, spent in personal_moves(config, ratings, features):
    assert spent <= own[gone]
    if rank is None and ratings.value[gone] in SCALE and own[gone] > 0.1:
      assert spent > 0.95 * min(own[gone], 1.5)  # and it is used


@pytest.mark.parametrize(
  ('shift', 'own', 'count'), [(12, 0.00197, 5), (14, 0.01, 4), (18, 0.1, 6)]
)
def test_no_weighted_rating_gains_by_a_large_shift(shift, own, count):
  # The last of `count` ratings takes the sum over a rounding boundary.
  user = np.arange(count)
  ratings = from_arrays(user, 0 * user, 0 * user + 5, scale=SCALE)
  ratings = with_epsilon(ratings, own)
  for _, spent in personal_moves(personal(shift=shift), ratings):
    assert spent <= own


def test_sampled_ratings_move_like_any_other_or_not_at_all():
  ratings = with_epsilon(spread_ratings(), 0.7)
  config = personal(method='sampling')
  spent = [moved for _, moved in personal_moves(config, ratings)]
  assert 0 < sum(moved == 0 for moved in spent) < len(spent)
  assert max(spent) <= 1.0


def empty_items(count=20_000):
  """One rating of the first item, and `count` items without any."""
  item = np.arange(count + 1)
  ratings = from_arrays(0 * item, item, 1 + item % 5, scale=SCALE)
  return ratings.take(np.array([0]))


@pytest.mark.parametrize('epsilon', [0.1, 2.0])
def test_noise_on_b_is_laplace_with_its_scale(epsilon):
  config = sound('replace', epsilon=epsilon)
  matrix, vector = sums(objective_pmf(config), empty_items(), noise=True)
  assert not matrix[1:].any()
  # 4 is the range of values, and 2e-4 is for the lattice.
  scale = settings.noise_scale(config, 1)
  assert 4 / epsilon <= scale <= 4 / epsilon * (1 + 2e-4)
  assert_scale(vector[1:, 0], 'laplace', scale)


@pytest.mark.slow
@pytest.mark.parametrize('count_scale', [0.3])
def test_noise_on_the_pair_has_a_gamma_norm(count_scale):
  config = sound(epsilon=0.5, count_scale=count_scale)
  for rank, dimension in ((1, 2), (2, 5)):
    assert settings.dimension(config, rank) == dimension
    features = None if rank == 1 else np.ones((1, 2))
    matrix, vector = sums(
      objective_pmf(config, features), empty_items(), noise=True
    )
    pair, _, _ = moves(config, (matrix, vector), (0 * matrix, 0 * vector))
    scale = settings.noise_scale(config, rank)
    assert_scale(pair[1:], scipy.stats.gamma(dimension).cdf, scale)
    # Both parts have noise, all entries alike, and signs are independent: the
    # mean square of an entry is (n + 1) scale^2, 5 standard errors are 15%.
    want = (dimension + 1) * scale**2
    flat = vector[1:] ** 2, (count_scale * matrix[1:, 0, 0]) ** 2
    for squares in flat:
      np.testing.assert_allclose(squares.mean(axis=0), want, rtol=0.15)
    if rank == 2:
      off = 2 * (count_scale * matrix[1:, 0, 1]) ** 2
      np.testing.assert_allclose(off.mean(), want, rtol=0.15)


def test_personal_noise_is_that_of_the_largest_epsilon():
  for method in ('weights', 'sampling'):
    config = personal(epsilon=0.5, method=method)
    ratings = with_epsilon(empty_items(), 0.2)
    pair = moves(
      config,
      sums(personalized_pmf(config), ratings, noise=True),
      sums(personalized_pmf(config), ratings),
    )[0]
    scale = settings.noise_scale(sound(epsilon=0.5), 1)
    assert_scale(pair[1:], scipy.stats.gamma(2).cdf, scale)


def test_noise_is_never_rounded_down():
  for epsilon in np.geomspace(0.01, 18, 40):
    for relation in ('replace', 'add_remove'):
      config = sound(relation, epsilon=epsilon)
      hyper = noisy_equations.hyper_of(config, 1)
      drawn = float(hyper.vector.std)
      assert settings.sensitivity(config, 1) / drawn <= epsilon
      guarantee = objective_pmf(config).guarantee
      assert guarantee.status == 'proved'
      least = accounting.uncovered(guarantee)
      assert accounting.epsilon(guarantee, least) <= epsilon
      assert accounting.epsilon(guarantee, least) > epsilon * (1 - 1e-5)


@pytest.mark.parametrize(
  'fields', [{'epsilon': 1e-7}, {'count_scale': 1e-9}, {'count_scale': 1e9}]
)
def test_noise_too_large_for_the_lattice_is_refused(fields):
  config = sound(**fields)
  scale = settings.noise_scale(config, 1)
  unit = 2.0 ** (config.shift - 18)
  assert max(scale / 2, scale / config.count_scale) > MAX_STD * unit
  with pytest.raises(ValueError, match=r'epsilon|shift|count_scale'):
    objective_pmf(config).init(
      jax.random.key(0), training_data(spread_ratings())
    )


def shrunk_oracle(matrix, vector, variance, prior_variance):
  """`shrunk_solution` by matrix inverses in float64, one item at a time."""
  rank = vector.shape[1]
  floored = lambda a: (lambda w, v: (v * np.maximum(w, 0)) @ v.T)(
    *np.linalg.eigh(a)
  )
  common = np.linalg.solve(
    floored(matrix.sum(axis=0)) + np.eye(rank), vector.sum(axis=0)
  )
  found = []
  for a, b in zip(matrix, vector, strict=True):
    size = floored(a)
    errors = size @ size * prior_variance + size + variance * np.eye(rank)
    gain = prior_variance * size @ np.linalg.pinv(errors, rcond=1e-12)
    found.append(common + gain @ (b - a @ common))
  return np.array(found)


def plain_sums(ratings, features, center):
  rank = features.shape[1]
  matrix = np.zeros((ratings.num_items, rank, rank))
  vector = np.zeros((ratings.num_items, rank))
  for u, i, r in zip(ratings.user, ratings.item, ratings.value, strict=True):
    matrix[i] += np.outer(features[u], features[u])
    vector[i] += (r - center) * features[u]
  return matrix, vector


@pytest.mark.parametrize(
  ('rank', 'relation'), [(1, 'replace'), (3, 'add_remove')]
)
def test_without_noise_items_are_the_shrunk_solution(
  small_ratings, rank, relation
):
  features = features_for(small_ratings, rank)
  features /= np.maximum(1, np.linalg.norm(features, axis=1, keepdims=True))
  if rank == 1:
    features = np.ones_like(features)
  given = None if rank == 1 else features
  system = objective_pmf(sound(relation, shift=0), given)
  data = training_data(small_ratings)
  state = without_noise(system.init(jax.random.key(0), data))
  after = jax.jit(system.step)(jax.random.key(1), state, data)
  matrix, vector = plain_sums(small_ratings, features, 3.0)
  want = shrunk_oracle(matrix, vector, 0.0, 0.35)
  rated = np.bincount(small_ratings.item, minlength=40) >= rank
  items = np.asarray(after.factors.item)
  # A lattice of 2^-9 for features and labels.
  np.testing.assert_allclose(items[rated, :-1], want[rated], atol=0.02)
  np.testing.assert_array_equal(items[:, -1], 1.0)


@pytest.mark.parametrize(
  ('rank', 'relation'),
  [
    (1, 'replace'),
    (3, 'add_remove'),
    pytest.param(1, 'add_remove', marks=pytest.mark.slow),
    pytest.param(3, 'replace', marks=pytest.mark.slow),
  ],
)
def test_with_noise_items_are_what_the_noisy_sums_give(
  small_ratings, rank, relation
):
  features = None if rank == 1 else features_for(small_ratings, rank)
  config = sound(relation, epsilon=0.5)
  system = objective_pmf(config, features)
  matrix, vector = sums(system, small_ratings, noise=True, seed=7)
  if relation == 'add_remove':
    assert np.linalg.eigvalsh(matrix).min() < 0  # some have to be floored
  data = training_data(small_ratings)
  state = system.init(jax.random.key(0), data)
  after = jax.jit(system.step)(jax.random.key(7), state, data)
  dimension = settings.dimension(config, rank)
  variance = settings.noise_scale(config, rank) ** 2 * (dimension + 1)
  want = shrunk_oracle(matrix, vector, variance, 0.35)
  found = np.asarray(after.factors.item)[:, :-1]
  np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-4)
  assert np.isfinite(found).all()


@pytest.mark.parametrize('rank', [pytest.param(1, marks=pytest.mark.slow), 3])
def test_users_fit_a_ridge_regression_of_their_own(small_ratings, rank):
  features = features_for(small_ratings, rank, size=0.3)
  features = np.ones_like(features) if rank == 1 else features
  config = sound(epsilon=15.0, bias_ridge=2.0, vector_ridge=7.0)
  system = objective_pmf(config, None if rank == 1 else features)
  data = training_data(small_ratings)
  state = fit(system, jax.random.key(0), data)
  model = jax.jit(system.model)(state, data)
  item = np.asarray(model.factors.item, np.float64)
  assert float(model.offset) == 3.0
  ridge = np.diag([7.0] * rank + [2.0])
  priors = np.pad(features, [(0, 0), (0, 1)])
  want = oracles.user_regressions(
    small_ratings, item, ridge=ridge, priors=priors, offset=3.0
  )
  np.testing.assert_allclose(model.factors.user, want, rtol=1e-3, atol=1e-4)
  release = system.release(state, data)
  assert release.factors.user is None
  np.testing.assert_array_equal(release.factors.item, model.factors.item)


def test_user_features_are_shortened_for_both_sides(small_ratings):
  # Same features once they are shortened: the same items.
  long = features_for(small_ratings, 3, size=40.0)
  unit = long / np.linalg.norm(long, axis=1, keepdims=True)
  config, data = sound(), training_data(small_ratings)
  found = [
    fit(objective_pmf(config, each), jax.random.key(0), data).factors.item
    for each in (long, unit)
  ]
  np.testing.assert_allclose(*found, atol=0.02)


def test_users_fit_around_shortened_features(small_ratings):
  long = features_for(small_ratings, 3, size=40.0)
  unit = long / np.linalg.norm(long, axis=1, keepdims=True)
  data = training_data(small_ratings)
  found = []
  for each in (long, unit):
    system = objective_pmf(sound(), each)
    state = fit(system, jax.random.key(0), data)
    found.append(jax.jit(system.model)(state, data).factors.user)
  np.testing.assert_allclose(*found, atol=0.1)


def stage_one(ratings, user, item, weight, *, rate, ridge, steps):
  """Zhang et al., Alg. 2, lines 2 to 13, with the classical momentum."""
  speed_user, speed_item = np.zeros_like(user), np.zeros_like(item)
  for _ in range(steps):
    grad_user, grad_item = ridge * user, ridge * item
    for u, i, r, w in zip(
      ratings.user, ratings.item, ratings.value, weight, strict=True
    ):
      e = user[u] @ item[i] - r
      grad_user[u] += w * e * item[i]
      grad_item[i] += w * e * user[u]
    speed_user = 0.8 * speed_user + grad_user
    speed_item = 0.8 * speed_item + grad_item
    user, item = user - rate * speed_user, item - rate * speed_item
    length = np.linalg.norm(user, axis=1, keepdims=True)
    user = user / np.maximum(1.0, length)
  return user, item


def stage_two(ratings, user, item, weight, *, rate, ridge, etas, loss_scale):
  """Lines 14 to 21: items only, plain steps, eta in the gradient."""
  for eta in etas:
    gradient = ridge * item
    for u, i, r, w in zip(
      ratings.user, ratings.item, ratings.value, weight, strict=True
    ):
      gradient[i] += w * (user[u] @ item[i] - r) * user[u]
    item = item - rate * (loss_scale * gradient + eta)
  return user, item


def assert_stages(system, config, ratings, state, weight, etas, loss_scale):
  data = training_data(ratings)
  start = [np.asarray(part, np.float64) for part in state.factors]
  common = {'rate': config.step_size / weight.sum(), 'ridge': config.ridge}
  want = stage_one(ratings, *start, weight, steps=config.pmf_steps, **common)
  for number in range(config.pmf_steps):
    state = jax.jit(system.step)(jax.random.key(number), state, data)
  close = functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=5e-4)
  for a, b in zip(state.factors, want, strict=True):
    close(a, b)
  want = stage_two(
    ratings, *want, weight, etas=etas, loss_scale=loss_scale, **common
  )
  for number in range(config.noise_steps):
    state = jax.jit(system.step)(jax.random.key(99 + number), state, data)
  for a, b in zip(state.factors, want, strict=True):
    close(a, b)
  assert system.steps == config.pmf_steps + config.noise_steps
  return want


@pytest.mark.parametrize(
  ('objective', 'noise'), [('zhang', 'once'), ('hua', 'every_step')]
)
def test_without_noise_the_stages_are_the_papers(
  small_ratings, objective, noise
):
  config = paper(
    objective=objective,
    relation='replace',
    noise=noise,
    pmf_steps=6,
    noise_steps=4,
    ridge=0.3,
    step_size=20.0,
  )
  system = objective_pmf(config)
  state = system.init(jax.random.key(0), training_data(small_ratings))
  user, _ = assert_stages(
    system,
    config,
    small_ratings,
    without_noise(state),
    np.ones(700),
    [0.0] * 4,
    2 if objective == 'hua' else 1,
  )
  # Some rows were projected, so that is tested too.
  assert (np.linalg.norm(user, axis=1) > 1 - 1e-6).any()


def test_noise_drawn_once_is_the_same_in_all_steps(small_ratings):
  config = paper(pmf_steps=2, noise_steps=5)
  system = objective_pmf(config)
  state = system.init(jax.random.key(0), training_data(small_ratings))
  eta = np.asarray(state.eta, np.float64)
  assert_stages(
    system, config, small_ratings, state, np.ones(700), [eta] * 5, 1
  )


def test_published_sampling_runs_the_stages_on_the_sample(small_ratings):
  ratings = from_fractions(small_ratings, seed=2)
  fields = {'rank': 4, 'pmf_steps': 4, 'noise_steps': 3, 'epsilon': 0.4}
  config = personal(**(PERSONAL_PAPER | fields))
  system = personalized_pmf(config)
  data = training_data(ratings)
  state = system.init(jax.random.key(0), data)
  rows, kept = data.by_item, np.asarray(state.weights.item)
  table = np.zeros((ratings.num_items, ratings.num_users))
  slot = np.nonzero(kept)
  table[np.asarray(rows.row)[slot[:2]], np.asarray(rows.column)[slot]] = 1
  weight = table[ratings.item, ratings.user]
  assert weight.sum() == kept.sum() == float(state.weights.user.sum())
  assert weight[ratings.epsilon >= 0.4].all()
  assert 0 < weight.mean() < 1
  etas = [np.asarray(state.eta, np.float64)] * 3
  assert_stages(system, config, ratings, state, weight, etas, 1)
  guarantee = system.guarantee
  assert guarantee.status == 'claimed'
  assert accounting.epsilon(guarantee, 0.0) == 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
  ('objective', 'relation', 'want'),
  [('zhang', 'add_remove', 5), ('zhang', 'replace', 4), ('hua', 'replace', 8)],
)
def test_eta_has_the_claimed_scale(objective, relation, want):
  ratings = empty_items()
  fields = {'objective': objective, 'relation': relation, 'pmf_steps': 0}
  config = paper(epsilon=0.5, rank=3, ridge=0.0, **fields)
  scale = accounting.claimed_objective_scale(
    objective, 0.5, relation=relation, scale=SCALE
  )
  assert scale == settings.paper_noise_scale(config) == 2 * want
  law = scipy.stats.gamma(3).cdf
  data = training_data(ratings)
  state = objective_pmf(config).init(jax.random.key(0), data)
  assert_scale(np.linalg.norm(state.eta[1:], axis=1), law, scale)
  # In every step: items without ratings move by eta times the step.
  config = paper(epsilon=0.5, rank=3, ridge=0.0, noise='every_step', **fields)
  step = jax.jit(objective_pmf(config).step)
  first = step(jax.random.key(1), state, data)
  second = step(jax.random.key(2), first, data)
  etas = [
    np.asarray(a.factors.item - b.factors.item, np.float64)[1:] / 50.0
    for a, b in ((state, first), (first, second))
  ]
  for eta in etas:
    assert_scale(np.linalg.norm(eta, axis=1), law, scale)
  # Fresh, and not what 'once' would take: 60,000 pairs, 5 standard errors.
  for other in (etas[1], np.asarray(state.eta)[1:]):
    assert abs(np.corrcoef(etas[0].ravel(), other.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize('num_devices', [1, 2])
def test_weighted_gradients_are_sums_over_weighted_ratings(
  small_ratings, num_devices
):
  own = np.random.default_rng(0).uniform(0.1, 1.0, len(small_ratings))
  ratings = with_epsilon(small_ratings, own)
  mesh = device_mesh(num_devices)
  data = training_data(ratings, mesh=mesh, slots=8)
  rng = np.random.default_rng(1)
  user, item = rng.normal(size=(60, 5)), rng.normal(size=(40, 5))
  factors = Factors(jnp.float32(user), jnp.float32(item))
  found = jax.jit(gradients)(
    data, factors, weights=Factors(data.by_user.epsilon, data.by_item.epsilon)
  )
  want = np.zeros_like(user), np.zeros_like(item)
  for u, i, r, w in zip(
    ratings.user, ratings.item, ratings.value, own, strict=True
  ):
    e = w * (user[u] @ item[i] - r)
    want[0][u] += e * item[i]
    want[1][i] += e * user[u]
  for a, b in zip(found, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_both_devices_give_what_one_gives(small_ratings):
  ratings = from_fractions(small_ratings, seed=2)
  system = personalized_pmf(personal(method='sampling'))
  found = [
    fit(
      system, jax.random.key(0), training_data(ratings, mesh=device_mesh(n))
    ).factors.item
    for n in (1, 2)
  ]
  np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('variant', ['weights', 'sampling', 'paper'])
def test_personal_systems_need_a_specification(small_ratings, variant):
  fields = {'method': variant} if variant != 'paper' else PERSONAL_PAPER
  system = personalized_pmf(personal(**fields))
  with pytest.raises(ValueError, match='no specification'):
    fit(system, jax.random.key(0), training_data(small_ratings))


def test_personal_guarantees_state_the_most_that_any_rating_has():
  for method in ('weights', 'sampling'):
    guarantee = personalized_pmf(personal(epsilon=0.7, method=method)).guarantee
    assert guarantee.status == 'proved'
    assert guarantee.relation == 'add_remove'
    least = accounting.uncovered(guarantee)
    assert accounting.epsilon(guarantee, least) == 0.7
    assert any('specification' in line for line in guarantee.assumptions)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'relation': 'neighbour'}, "relation='neighbour' must be"),
    ({'epsilon': 0.0}, 'epsilon=0.0 must be positive'),
    ({'epsilon': np.nan}, 'epsilon=nan must be positive'),
    ({'scale': (5.0, 1.0)}, 'lowest < highest'),
    ({'shift': 19}, r'shift=19 must be in 0\.\.18'),
    ({'rank': 2.5}, 'rank must be an integer'),
    ({'noise_steps': 0}, 'noise_steps=0 must be at least 1'),
    ({'count_scale': 0.0}, 'count_scale=0.0 must be positive'),
    ({'objective': 'hua', 'relation': 'add_remove'}, 'claim nothing for'),
  ],
)
def test_wrong_settings_are_named(fields, message):
  for make in (sound, paper):
    with pytest.raises(ValueError, match=message):
      make(**fields)


def test_personal_settings_are_checked():
  with pytest.raises(ValueError, match="method='weights' is not in the paper"):
    personal(variant='paper')
  with pytest.raises(ValueError, match="relation='replace' must be"):
    personal(relation='replace')
  with pytest.raises(ValueError, match="method='both' must be"):
    personal(method='both')
  with pytest.raises(ValueError, match=r'epsilon=-1\.0 must be'):
    personal(epsilon=-1.0)


@pytest.mark.slow
def test_learned_features_are_those_that_gaussian_mf_releases(small_ratings):
  config = sound(
    epsilon=8.0, delta=1e-6, feature_share=0.5, feature_steps=7, rank=3
  )
  data = training_data(small_ratings)
  state = fit(objective_pmf(config), jax.random.key(3), data)
  mine = fit(
    gaussian_mf(
      GaussianMFConfig(
        variant='sound',
        relation='add_remove',
        scale=SCALE,
        epsilon=4.0,
        delta=1e-6,
        rank=3,
        steps=7,
      )
    ),
    jax.random.key(3),
    data,
  )
  np.testing.assert_allclose(state.learning.factors.user, mine.factors.user)
  # The last step is that of `objective_pmf` with these features.
  features = np.asarray(mine.factors.user)
  system = objective_pmf(sound(epsilon=4.0, delta=1e-6), features)
  _, steps_key = jax.random.split(jax.random.key(3))
  want = system.step(
    jax.random.fold_in(steps_key, 7),
    system.init(jax.random.key(0), data),
    data,
  )
  np.testing.assert_allclose(state.factors.item, want.factors.item, rtol=1e-4)
  np.testing.assert_allclose(state.factors.user, want.factors.user, rtol=1e-6)


def test_learned_features_and_items_compose():
  config = sound(epsilon=2.0, delta=1e-6, feature_share=0.25, rank=3)
  guarantee = objective_pmf(config).guarantee
  assert isinstance(guarantee.event, accounting.Composed)
  spent = accounting.epsilon(guarantee, 1e-6)
  assert 1.5 < spent <= 2.0
  assert not any(
    'user features and all' in text for text in guarantee.assumptions
  )


def test_an_epsilon_beyond_the_tails_is_refused():
  for rank, most in ((1, 18.1), (32, 12.7)):
    settings.plan(sound(epsilon=most), rank)
    with pytest.raises(ValueError, match=r'epsilon=.* must be at most'):
      settings.plan(sound(epsilon=most + 0.1), rank)


@pytest.mark.parametrize(
  'fields',
  [
    {'feature_share': 0.5},  # no delta
    {'feature_share': 1.0, 'delta': 1e-6},
    {'feature_share': -0.1, 'delta': 1e-6},
  ],
)
def test_wrong_shares_are_named(fields):
  with pytest.raises(ValueError, match='feature_share'):
    sound(**fields)


def test_features_are_given_or_learned():
  config = sound(feature_share=0.5, delta=1e-6)
  with pytest.raises(ValueError, match='learns features'):
    objective_pmf(config, np.ones((3, 2)))
  for build in (
    lambda: objective_pmf(paper(), np.ones((3, 2))),
    lambda: personalized_pmf(personal(**PERSONAL_PAPER), np.ones((3, 2))),
  ):
    with pytest.raises(ValueError, match='learns its user factors'):
      build()


def test_wrong_features_are_refused(small_ratings):
  data = training_data(small_ratings)
  with pytest.raises(ValueError, match='a row for each of the 60 users'):
    objective_pmf(sound(), np.ones((59, 2))).init(jax.random.key(0), data)
