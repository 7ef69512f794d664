import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
import scipy.stats
from laws import assert_scale
from quiet import quiet

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.mechanisms.noise import LatticeNoise
from dpmf_jax.plans.gaussian_mf import (
  PAPER,
  GaussianMFConfig,
  plan,
  sensitivity,
)
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import training_data
from dpmf_jax.systems import gaussian_mf as module
from dpmf_jax.systems.gaussian_mf import gaussian_mf
from dpmf_jax.training import fit

COMMON = {'scale': (1.0, 5.0), 'delta': 1e-6}


def sound(relation='add_remove', **settings):
  settings = {'epsilon': 2.0, 'steps': 3} | settings
  return GaussianMFConfig(
    variant='sound', relation=relation, **COMMON, **settings
  )


def paper(**settings):
  settings = {'epsilon_per_step': 0.3, 'steps': 3} | settings
  return GaussianMFConfig(**(PAPER | COMMON | settings))


def without_noise(state):
  noise = jax.tree.map(jnp.zeros_like, state.hyper.noise)  # as published
  if isinstance(state.hyper.noise.user, LatticeNoise):
    noise = quiet(state.hyper.noise)
  return state._replace(hyper=state.hyper._replace(noise=noise))


@pytest.mark.parametrize('ridge', [0.0, 0.3])
def test_without_noise_a_step_is_algorithm_1(small_ratings, ridge):
  data = training_data(small_ratings)
  system = gaussian_mf(paper(ridge=ridge, step_size=0.01, rank=6))
  state = without_noise(system.init(jax.random.key(0), data))
  want = tuple(np.asarray(f, np.float64) for f in state.factors)
  for number in range(3):
    state = jax.jit(system.step)(jax.random.key(number), state, data)
    want = oracles.gaussian_mf_step(
      small_ratings, *want, step_size=0.01, ridge=ridge, clip_norm=1.0
    )
  for a, b in zip(state.factors, want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_initial_rows_have_norm_one(small_ratings):
  data = training_data(small_ratings)
  state = gaussian_mf(paper()).init(jax.random.key(0), data)
  for side in state.factors:
    np.testing.assert_allclose(np.linalg.norm(side, axis=1), 1, rtol=1e-5)


def test_initial_factors_do_not_depend_on_ratings(small_ratings):
  key = jax.random.key(5)
  for config in (paper(), sound()):
    states = [
      gaussian_mf(config).init(jax.random.clone(key), training_data(ratings))
      for ratings in (small_ratings, small_ratings.take(np.arange(350)))
    ]
    jax.tree.map(np.testing.assert_array_equal, *states)


def noise_of_a_step(config, ratings):
  """User and item noise: what a step with noise adds to one without."""
  data = training_data(ratings)
  system = gaussian_mf(config)
  state = system.init(jax.random.key(0), data)
  key = jax.random.key(1)
  noisy = jax.jit(system.step)(jax.random.clone(key), state, data)
  clean = jax.jit(system.step)(key, without_noise(state), data)
  return [
    np.asarray((b - a) / config.step_size).ravel()
    for a, b in zip(noisy.factors, clean.factors, strict=True)
  ]


@pytest.mark.slow
def test_sound_noise_is_on_both_gradients_with_its_scale(small_ratings):
  config = sound(rank=400, step_size=1.0, user_share=0.3)
  for draws, std in zip(
    noise_of_a_step(config, small_ratings),
    plan(config).noise.values(),
    strict=True,
  ):
    assert_scale(draws, 'norm', std)  # 16,000 to 24,000 draws


@pytest.mark.slow
def test_paper_noise_is_on_the_user_gradient_only(small_ratings):
  config = paper(rank=400, step_size=1.0)
  user, item = noise_of_a_step(config, small_ratings)
  sigma = 4 / 0.3 * np.sqrt(2 * np.log(1.25 / 0.01))  # Alg. 1, line 6
  assert scipy.stats.kstest(user, 'norm', (0, sigma)).pvalue > 1e-3
  assert (item == 0).all()


def spread_ratings():
  """A popular item, an item with one rating, a user with one rating, and
  values at both ends of the scale."""
  users = [0, 1, 2, 3, 4, 0, 1, 2, 1, 2]
  items = [0, 0, 0, 0, 0, 1, 1, 2, 3, 3]
  values = [5, 1, 3, 5, 1, 1, 5, 5, 2, 4]
  return from_arrays(users, items, values, scale=(1, 5))


def noiseless_gradients(step, state, data):
  """Both gradients of a step (ridge and noise are off)."""
  after = step(jax.random.key(0), state, data)
  return [
    np.asarray(a, np.float64) - np.asarray(b, np.float64)
    for a, b in zip(state.factors, after.factors, strict=True)
  ]


def largest_move(config, ratings, neighbours, *, seeds, size):
  """How far a gradient is from that of a neighbour at random factors."""
  found, system, data = 0.0, gaussian_mf(config), training_data(ratings)
  others = [training_data(other) for other in neighbours]
  start = without_noise(system.init(jax.random.key(0), data))
  step = jax.jit(system.step)
  for seed in range(seeds):
    rng = np.random.default_rng(seed)
    factors = jax.tree.map(
      lambda f, rng=rng: jnp.float32(rng.normal(size=f.shape) * size),
      start.factors,
    )
    state = start._replace(factors=factors)
    before = noiseless_gradients(step, state, data)
    for other in others:
      after = noiseless_gradients(step, state, other)
      for a, b in zip(before, after, strict=True):
        found = max(found, np.linalg.norm(a - b))
  return found


@pytest.mark.parametrize('size', [0.1, 1.0, 5.0])
def test_removing_any_rating_moves_gradients_by_at_most_sensitivity(size):
  ratings = spread_ratings()
  config = sound(step_size=1.0, rank=3, residual_bound=1.5, clip_norm=0.8)
  bound = sensitivity(config)
  assert bound == pytest.approx(1.2 * (1 + 3**0.5 / 1024))
  places = np.arange(len(ratings))
  neighbours = [ratings.take(places != gone) for gone in places]
  largest = largest_move(config, ratings, neighbours, seeds=4, size=size)
  # float32 factors of size 5 round at 1e-6; the noise is scaled to `bound`.
  assert largest <= bound + 1e-5
  if size == 5.0:
    assert largest > 0.99 * bound  # and the bound is reached


@pytest.mark.parametrize('residual_bound', [1.0, 3.0, 40.0])
@pytest.mark.parametrize('size', [0.1, 3.0])
def test_changing_any_value_moves_gradients_by_at_most_sensitivity(
  residual_bound, size
):
  ratings = spread_ratings()
  config = sound(
    'replace', step_size=1.0, rank=3, residual_bound=residual_bound
  )
  bound = sensitivity(config)
  exact = 2.0 if residual_bound == 1.0 else 4.0 + residual_bound / 256
  assert bound == pytest.approx(exact + residual_bound / 1024 * 3**0.5)
  neighbours = []
  for place, other in itertools.product(range(len(ratings)), (1.0, 5.0)):
    values = ratings.value.copy()
    values[place] = other
    neighbours.append(
      from_arrays(ratings.user, ratings.item, values, scale=ratings.scale)
    )
  largest = largest_move(config, ratings, neighbours, seeds=3, size=size)
  assert largest <= bound + 1e-4
  if size == 3.0 and residual_bound == 3.0:
    assert largest > 0.99 * exact


def test_no_state_makes_a_nan_that_tells_who_rated_what(monkeypatch):
  ratings = spread_ratings()
  system = gaussian_mf(sound(steps=40))
  monkeypatch.setattr(module, '_update', lambda *args: args[2:])
  data = training_data(ratings)
  state = without_noise(system.init(jax.random.key(0), data))
  step = jax.jit(lambda *args: system.step(*args))  # traced anew
  for bad in (jnp.inf, -jnp.inf, jnp.nan, 3e38):
    factors = jax.tree.map(lambda f: f.at[0, 0].set(bad), state.factors)  # noqa: B023
    start = state._replace(factors=factors)
    gradient = step(jax.random.key(0), start, data)
    # The gradients that get noise are finite whatever was released before.
    assert all(np.isfinite(side).all() for side in gradient)


def test_too_many_users_for_the_lattice_are_refused():
  config = sound(lattice_bits=18)
  users = np.arange(5000)
  ratings = from_arrays(users, users % 3, 1 + users % 5, scale=(1, 5))
  with pytest.raises(ValueError, match='use lattice_bits=17'):
    gaussian_mf(config).init(jax.random.key(0), training_data(ratings))
  gaussian_mf(sound(lattice_bits=17)).init(
    jax.random.key(0), training_data(ratings)
  )


def test_short_slices_with_few_bits_are_refused():
  # The low parts of 131,080 products in slices of one overflow int32.
  users = np.arange(140_000)
  ratings = from_arrays(users, users * 0, 1 + users % 5, scale=(1, 5))
  system = gaussian_mf(sound(lattice_bits=4))
  with pytest.raises(ValueError, match='slices of 1'):
    system.init(jax.random.key(0), training_data(ratings, slots=1))
  system.init(jax.random.key(0), training_data(ratings))


def test_noise_too_large_for_the_lattice_is_refused(small_ratings):
  data = training_data(small_ratings)
  with pytest.raises(ValueError, match='use fewer bits or a larger epsilon'):
    gaussian_mf(sound(epsilon=1e-4)).init(jax.random.key(0), data)
  gaussian_mf(sound(epsilon=1e-4, lattice_bits=5)).init(jax.random.key(0), data)


def test_both_sides_together_are_the_accounted_gaussian():
  for relation, share in itertools.product(
    ('replace', 'add_remove'), (0.2, 0.5)
  ):
    config = sound(relation, steps=40, user_share=share)
    user, item = plan(config).noise.values()
    delta_2 = sensitivity(config)
    # mu^2 of all steps, from the noise that is really drawn.
    mu = np.sqrt(40 * ((delta_2 / user) ** 2 + (delta_2 / item) ** 2))
    # Delta pays for the end of the tails of all draws that a rating moves.
    m = np.sqrt(40) / mu
    left = 1e-6 - tails.uncovered(m, 2 * 40 * config.rank)
    assert accounting.gaussian.epsilon_of(mu, left) <= 2.0
    assert accounting.gaussian.epsilon_of(mu, left) > 2.0 * (1 - 3e-6)


def test_noise_is_never_rounded_down(small_ratings):
  data = training_data(small_ratings)
  for steps in range(1, 60, 7):
    config = sound(steps=steps)
    hyper = gaussian_mf(config).init(jax.random.key(0), data).hyper
    for noise, std in zip(
      hyper.noise, plan(config).noise.values(), strict=True
    ):
      assert float(noise.std) >= std


def test_paper_claim_is_the_papers_formula():
  config = paper(steps=1322, delta=1e-5)
  assert accounting.epsilon(plan(config).guarantee, 1e-5) == pytest.approx(
    23.0, abs=0.05
  )
  guarantee = gaussian_mf(config).guarantee
  assert guarantee.status == 'claimed'
  calibrated = paper(
    epsilon_per_step=None, epsilon=23.0, steps=1322, delta=1e-5
  )
  assert plan(calibrated).guarantee.event.epsilon_per_step == pytest.approx(
    0.3, abs=1e-3
  )


def test_paper_releases_user_factors_only_and_sound_both(small_ratings):
  data = training_data(small_ratings)
  for config, sides in ((paper(), 1), (sound(), 2)):
    system = gaussian_mf(config)
    state = fit(system, jax.random.key(0), data)
    release = system.release(state, data)
    assert sum(side is not None for side in release.factors) == sides
    assert len(system.guarantee.released) >= sides


@pytest.mark.slow
def test_private_training_learns(small_ratings):
  # With little noise the training error must fall well below that of
  # the best constant, 1.02 on this data.
  data = training_data(small_ratings)
  system = gaussian_mf(sound(epsilon=300.0, steps=300, step_size=0.02, rank=5))
  from dpmf_jax.evaluation.metrics import rmse

  state = fit(system, jax.random.key(0), data)
  constant = float(np.std(small_ratings.value))
  assert rmse(system.model(state, data), data.by_user) < 0.8 * constant


def test_any_optax_optimizer_drives_the_updates(small_ratings):
  data = training_data(small_ratings)
  system = gaussian_mf(sound(optimizer=optax.adam(0.01)))
  state = fit(system, jax.random.key(0), data)
  assert int(state.optimizer[0].count) == 3


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'epsilon': None}, 'takes exactly one of epsilon and noise_multiplier'),
    ({'noise_multiplier': 3.0}, 'takes exactly one of'),
    ({'delta': 0.0}, r'delta=0.0 must be in \(0, 0.25\]'),
    ({'relation': 'neighbour'}, "relation='neighbour' must be"),
    ({'residual_bound': None}, r'residual_bound=None must be in \(0, 256\]'),
    ({'residual_bound': 1e3}, 'residual_bound=1000.0 must be in'),
    ({'scale': (1e6, 1e6 + 1)}, 'too far from 0'),
    ({'step_size': float('inf')}, 'step_size=inf must be positive and'),
    ({'offset': float('nan')}, 'offset=nan must be finite'),
    ({'lattice_bits': 30}, 'lattice_bits=30 must be in 4..18'),
    ({'rank': 1}, "rank=1 must be at least 2 with init='bias'"),
    ({'rank': 3.5}, 'rank must be an integer'),
    ({'lattice_bits': 10.5}, 'lattice_bits must be an integer'),
    ({'clip_norm': 1e9}, r'needs it in \[1e-6, 1e6\]'),
    ({'residual_bound': 7e-37}, r'needs it in \[1e-6, 1e6\]'),
    ({'steps': 0}, 'steps=0 must be at least 1'),
    ({'scale': (5.0, 1.0)}, 'lowest < highest'),
    ({'epsilon': -1.0}, 'epsilon=-1.0 must be positive'),
  ],
)
def test_wrong_settings_are_named(settings, message):
  base = {'variant': 'sound', 'relation': 'add_remove', 'epsilon': 1.0}
  with pytest.raises(ValueError, match=message):
    gaussian_mf(GaussianMFConfig(**(base | COMMON | settings)))


def test_paper_variant_takes_only_what_is_in_the_paper():
  with pytest.raises(ValueError, match="init='bias' is not in the paper"):
    paper(init='bias')
  with pytest.raises(ValueError, match='claims nothing'):
    paper(relation='add_remove')
  with pytest.raises(
    ValueError, match='exactly one of epsilon and epsilon_per'
  ):
    paper(noise_multiplier=1.0)


def test_so_little_noise_that_its_tails_end_is_refused():
  # One step with a multiplier of 0.2: beyond what 64 bits reach.
  with pytest.raises(ValueError, match='tails'):
    sound(epsilon=None, noise_multiplier=0.2, steps=1)
  sound(epsilon=None, noise_multiplier=2.0, steps=1)


def test_tails_of_both_gradients_in_all_steps_count():
  lost = []
  for multiplier in np.linspace(0.2, 1.0, 400):
    try:
      sound(epsilon=None, noise_multiplier=multiplier, steps=50, rank=20)
    except ValueError:
      continue
    lost.append(tails.uncovered(multiplier, 2 * 50 * 20))
  # The largest that is accepted is near the bound, a hundredth of delta.
  assert 0.8 * 1e-8 < max(lost) <= 1e-8
