"""Ranking MF: what one user or one interaction can move, and what it finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tables import layouts, table

from dpmf_jax import accounting, files
from dpmf_jax.accounting.sensitivity import interaction_sensitivity
from dpmf_jax.evaluation.ranking import ranking_metrics
from dpmf_jax.kernels import profiles
from dpmf_jax.plans.ranking_mf import (
  ALONG,
  RankingMFConfig,
  check_size,
  lattice_spacing,
  plan,
  resolved,
)
from dpmf_jax.plans.settings import slope
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.rows import training_data
from dpmf_jax.serving import folding, models, recommendations
from dpmf_jax.systems import ranking_mf
from dpmf_jax.training import fit
from dpmf_jax.types import Sum

SCALE = (1.0, 5.0)
USERS, ITEMS, RANK = 50, 30, 3
OPEN = {
  'rank': None, 'kept_items': None, 'popularity_share': None,
  'popularity_power': None,
  'lattice_bits': None,
}  # fmt: skip


def settings(**more):
  common = {
    'unit': 'user', 'relation': 'add_remove', 'scale': SCALE, 'delta': 1e-5,
    'epsilon': 5.0, 'rank': RANK, 'kept_items': 20, 'popularity_share': 0.1,
    'popularity_power': 0.3, 'lattice_bits': 20, 'least_weight': 0.2,
  }  # fmt: skip
  return RankingMFConfig(**{**common, **more})


@pytest.fixture(scope='module')
def crowd():
  """Ordinary users after five extreme ones.

  User 0 did everything, 1 everything with all ratings, 2 one thing that nobody
  else did, 3 a single popular one, 4 one twice as liked as another.
  """
  rng = np.random.default_rng(4)
  rows = [(0, i, 5.0) for i in range(29)]
  rows += [(1, i, 1.0 + i % 5) for i in range(29)]
  rows += [(2, 29, 5.0), (3, 0, 1.0), (4, 0, 5.0), (4, 1, 1.0)]
  for user in range(5, USERS):
    items = {0, *rng.choice(29, rng.integers(1, 20), replace=False).tolist()}
    rows += [(user, i, float(rng.integers(1, 6))) for i in sorted(items)]
  return table(rows, USERS, ITEMS)


def known_at(rng, config, *, spread=1.0, along=0):
  """Items as steps may release them, or worse: any scales and factors."""
  scale = np.where(
    rng.uniform(size=ITEMS) < 0.8, rng.uniform(size=ITEMS) ** spread, 0
  )
  direction = np.where(scale > 0, rng.exponential(size=ITEMS), 0)
  vector = np.where((scale > 0)[:, None], rng.normal(size=(ITEMS, RANK)), 0)
  # Some like rows of items that are all alike.
  vector = (1 - along) * vector + along * rng.normal(size=(1, RANK))
  data = training_data(table([(0, 0, 5.0)], USERS, ITEMS))
  known = ranking_mf.ranking_mf(config).init(jax.random.key(0), data).known
  return known._replace(
    scale=jnp.asarray(scale, 'float32'),
    direction=jnp.asarray(direction / np.linalg.norm(direction), 'float32'),
    vector=jnp.asarray(vector, 'float32'),
    strength=jnp.asarray(rng.exponential(size=RANK), 'float32'),
  )


@jax.jit
def user_sums(known, hyper, data):
  sent = ranking_mf.sent_by_users(known, hyper, data, True)
  return profiles.item_sums(
    data.by_item, known.scale, sent, hyper.counted, hyper.sums.spacing
  )


@jax.jit
def interaction_sums(known, hyper, data):
  sent = ranking_mf.sent_by_users(known, hyper, data, False)
  return profiles.item_sums(
    data.by_item, known.scale, sent, hyper.counted, hyper.sums.spacing
  )


def length(moved, known, unit):
  """Of integers that move, in the metric of the noise of `unit`."""
  moved = np.asarray(moved, float)
  square = np.sum(moved**2)
  if unit == 'user':
    along = np.asarray(known.direction, float) @ moved
    square -= ALONG / (1 + ALONG) * np.sum(along**2)
  return square**0.5


# Sensitivity: take one user away.


@pytest.mark.slow
@pytest.mark.parametrize('least_weight', [0.2, 1.0])
def test_a_user_moves_sums_by_their_own_terms(crowd, least_weight):
  config = settings(least_weight=least_weight)
  hyper = ranking_mf._hyper(config)
  spacing, bound = lattice_spacing(config), plan(config).sensitivity['factors']
  rng, most = np.random.default_rng(0), 0.0
  for number in range(12):
    known = known_at(rng, config, spread=3.0 * (number % 3), along=number % 2)
    total = np.asarray(user_sums(known, hyper, training_data(crowd)), int)
    for user in range(6):
      rest = training_data(crowd.take(crowd.user != user))
      moved = total - np.asarray(user_sums(known, hyper, rest))
      alone = training_data(crowd.take(crowd.user == user))
      own = user_sums(known, hyper, alone)
      np.testing.assert_array_equal(moved, own)
      most = max(most, length(moved, known, 'user') * spacing)
      assert most <= bound
  # A bound that is wrong would be seen.
  assert most > 0.999


@pytest.mark.slow
def test_what_users_may_not_forget_would_be_seen(crowd):
  config = settings()
  hyper = ranking_mf._hyper(config)
  spacing, bound = lattice_spacing(config), plan(config).sensitivity['factors']
  known = known_at(np.random.default_rng(1), config)
  data = training_data(crowd.take(crowd.user == 0))
  sent = ranking_mf.sent_by_users(known, hyper, data, True)
  norm = jnp.sqrt(profiles.profiles(
    data.by_user, known.scale, known.vector[:, :0], hyper.counted
  ).square)  # fmt: skip
  at = lambda sent: length(
    profiles.item_sums(
      data.by_item, known.scale, sent, hyper.counted, hyper.sums.spacing
    ),
    known,
    'user',
  )
  assert at(sent) * spacing > 0.99 * bound
  # The norm of the row, or that of the projection, or the known direction.
  assert at(sent * norm[:, None]) * spacing > 1.5 * bound
  assert at(sent * 1.05) * spacing > bound
  euclidean = np.linalg.norm(
    profiles.item_sums(
      data.by_item, known.scale, sent, hyper.counted, hyper.sums.spacing
    )
  )
  assert euclidean * spacing > 1.02 * bound


# Sensitivity: take one interaction away.


def exact_term(r, encoder, full_profile):
  """y z^T of `interaction_sensitivity`, for one row."""
  n, q = np.linalg.norm(r), r @ encoder
  y = r / max(n, full_profile**0.5)
  return np.outer(y, q / max(n, np.linalg.norm(q), 1e-30))


@pytest.mark.parametrize(
  ('full_profile', 'reached'), [(1.0, 0.6), (50.0, 0.95), (200.0, 0.95)]
)
def test_no_interaction_moves_a_term_by_more_than_is_proved(
  full_profile, reached
):
  rng, most = np.random.default_rng(0), 0.0
  bound = interaction_sensitivity(full_profile)
  for number in range(20_000):
    size, rank = rng.integers(1, 60), rng.integers(1, 4)
    r = rng.uniform(size=size) ** rng.choice([0.0, 0.3, 2.0])
    r[1 + rng.integers(0, size) :] = 0
    encoder = rng.normal(size=(size, rank))
    if number % 2:  # all alike but the new one
      encoder = encoder[:1] + rng.choice([0, 0.1]) * encoder
      encoder[0] = rng.normal(size=rank)
    norms = np.linalg.norm(encoder, axis=1, keepdims=True)
    encoder = encoder / np.maximum(norms, 1e-9)
    less = np.where(np.arange(size) == 0, 0.0, r)
    moved = np.linalg.norm(
      exact_term(r, encoder, full_profile)
      - exact_term(less, encoder, full_profile)
    )
    most = max(most, moved)
  assert most <= bound
  assert most > reached * bound


def test_nothing_between_the_cases_of_the_proof_moves_more():
  """Of norms and sums that integers may be, which are no row's own."""
  rng, size = np.random.default_rng(0), 2_000_000
  norm = lambda x: np.linalg.norm(x, axis=0)
  root = 10 ** rng.uniform(0, 1.5, size)  # of N
  t = np.minimum(1, rng.uniform(0, 2, size))
  n = root * 10 ** rng.uniform(-3, 1, size)
  near = rng.uniform(size=size) < 0.5  # n is about sqrt(N)
  n = np.where(near, np.sqrt(root**2 - rng.uniform(0, 1, size) * t**2), n)
  w = rng.normal(size=(2, size))
  w *= np.minimum(1, rng.uniform(0, 2, size)) / norm(w)
  # Some q are not clipped, some just so, and some very much.
  angle = rng.uniform(0, 2 * np.pi, size)
  length = rng.choice([0.9, 0.99, 1.0, 1.02, 3.0], size)
  length *= rng.uniform(size=size) ** rng.choice([0.0, 0.01, 1.0], size)
  q = n * length * np.array([np.cos(angle), np.sin(angle)])
  more, moved = np.hypot(n, t), q + t * w
  z, last = q / np.maximum(n, norm(q)), moved / np.maximum(more, norm(moved))
  m, most = np.maximum(n, root), np.maximum(more, root)
  own, others = t / most * norm(last), n * norm(last / most - z / m)
  ratio = np.hypot(own, others) / (t * 2**0.5 / root)
  assert ratio.max() <= 1 + 1e-9
  for profile in (more <= root, n >= root, (n < root) & (root < more)):
    for before in (norm(q) > n, norm(q) <= n):
      for after in (norm(moved) > more, norm(moved) <= more):
        assert ratio[profile & before & after].max() > 0.95
  assert ratio.max() > 0.99
  assert interaction_sensitivity(50.0) == pytest.approx(0.2)


def test_an_interaction_moves_sums_within_the_bound(crowd):
  config = settings(unit='rating', full_profile=4.0)
  hyper = ranking_mf._hyper(config)
  spacing, bound = lattice_spacing(config), plan(config).sensitivity['factors']
  rng, most = np.random.default_rng(0), 0.0
  whole = training_data(crowd)
  for number in range(6):
    known = known_at(rng, config, spread=number % 3, along=number % 2)
    total = np.asarray(interaction_sums(known, hyper, whole), int)
    # Those of users 2 to 4, and some others.
    for taken in (58, 59, 60, 61, *range(0, len(crowd), 41)):
      rest = training_data(crowd.take(np.arange(len(crowd)) != taken))
      moved = total - np.asarray(interaction_sums(known, hyper, rest))
      # Nobody else's terms: rows of items that this user does not have.
      others = np.setdiff1d(
        np.arange(ITEMS), crowd.item[crowd.user == crowd.user[taken]]
      )
      assert not moved[others].any()
      most = max(most, length(moved, known, 'rating') * spacing)
      assert most <= bound
  assert most > 0.4 * bound


@pytest.mark.slow
@pytest.mark.parametrize('unit', ['user', 'rating'])
def test_popularity_moves_by_one(crowd, unit):
  config = settings(unit=unit, rank=0, lattice_bits=16)
  system = ranking_mf.ranking_mf(config)
  state = system.init(jax.random.key(0), training_data(crowd))
  quiet = state.hyper.counts._replace(
    std=jnp.full(9, 1e-9), dither=jnp.int32(0)
  )
  state = state._replace(hyper=state.hyper._replace(counts=quiet))

  def counts(ratings):
    data = training_data(ratings)
    known = ranking_mf._popularity(
      jax.random.key(1), state, data, unit == 'user'
    )
    # On the lattice, which float32 may leave in its last digits.
    counts = np.asarray(known.total / known.precision, float)
    return np.round(counts * 2**16) / 2**16

  total, lengths = counts(crowd), []
  for taken in range(5):
    left = np.arange(len(crowd)) != taken
    if unit == 'user':
      left = crowd.user != taken
    lengths.append(np.linalg.norm(total - counts(crowd.take(left))))
  assert 0.99 < max(lengths) <= plan(config).sensitivity['popularity']


@pytest.mark.parametrize('epsilon', [0.1, 1.0, 25.0])
def test_popularity_alone_has_laplace_noise_and_is_asked_for_once(
  crowd, epsilon
):
  config = settings(unit='rating', rank=0, lattice_bits=12, epsilon=epsilon)
  made, system = plan(config), ranking_mf.ranking_mf(config)
  event = made.guarantee.event
  assert accounting.epsilon(event, config.delta) <= epsilon
  # All of it is spent by the first step.
  for steps in range(1, 1 + made.steps):
    assert made.epsilon(steps, 1e-9) <= min(epsilon, 20)
    assert made.epsilon(steps, 1e-9) > 0.99 * min(epsilon, 18)
  data = training_data(crowd)
  states = [system.init(jax.random.key(0), data)]
  for key in jax.random.split(jax.random.key(1), made.steps):
    states.append(jax.jit(system.step)(key, states[-1], data))
  totals = [np.asarray(state.known.total) for state in states]
  assert (totals[1] != totals[0]).all()
  for total in totals[2:]:
    np.testing.assert_array_equal(total, totals[1])


@pytest.mark.slow
def test_noise_of_popularity_alone_is_laplace(crowd):
  config = settings(unit='rating', rank=0, lattice_bits=12, epsilon=0.5)
  data = training_data(crowd)
  state = ranking_mf.ranking_mf(config).init(jax.random.key(0), data)

  @jax.jit
  @jax.vmap
  def counts(key):
    known = ranking_mf._popularity(key, state, data, False)
    return known.total / known.precision

  found = np.asarray(counts(jax.random.split(jax.random.key(1), 4000)))
  size = np.abs(found - np.median(found, axis=0)) * config.epsilon
  # Of an exponential: means of 120,000.
  assert size.mean() == pytest.approx(1, abs=0.02)
  assert np.mean(size > 3) == pytest.approx(np.exp(-3), abs=0.004)


def test_no_more_items_are_kept_than_are_paid_for(crowd):
  """Noisy counts are on a lattice, so that some are equal."""
  config = settings()
  system = ranking_mf.ranking_mf(config)
  state = system.init(jax.random.key(0), training_data(crowd))
  scaled = jax.jit(ranking_mf._scaled)
  for total in (np.ones(ITEMS), np.arange(ITEMS) // 4, np.arange(ITEMS)):
    known = state.known._replace(
      total=jnp.float32(total * 10), precision=jnp.float32(1)
    )
    found = scaled(known, state.hyper)
    kept = np.asarray(found.scale) > 0
    assert 1 - 2e-5 < np.linalg.norm(np.asarray(found.direction, float)) < 1
    assert int(kept.sum()) == config.kept_items
    assert kept[-1] or total[0] == total[-1]
  none = known._replace(total=known.total.at[3].set(jnp.nan))
  assert not scaled(none, state.hyper).scale.any()


@pytest.mark.parametrize('scale', [SCALE, (63.0, 64.0), (-64.0, -63.0)])
@pytest.mark.parametrize('liked_from', [1e-3, 0.75])
def test_what_interactions_count_is_the_same_in_all_programs(scale, liked_from):
  """Or norms by user would not be those of terms by item."""
  config = settings(scale=scale, liked_from=liked_from, least_weight=0.01)
  counted = ranking_mf._hyper(config).counted
  low, high = scale
  value = low + (high - low) * liked_from * np.linspace(0, 1.1, 999) ** 2
  value = value.astype('float32')
  found = np.asarray(profiles.counts(value, counted), float)
  exact = 0.01 + slope(config) * (value.astype(float) - low)
  np.testing.assert_allclose(found, np.minimum(exact, 1), rtol=0, atol=2e-6)
  # Compilers round products that are added to something once or twice.
  steps = np.float32(counted.slope) * (value - np.float32(low))
  whole = np.minimum(np.round(0.01 * 2**20) + np.floor(steps * 2**20), 2**20)
  np.testing.assert_array_equal(found * 2**20, whole)
  np.testing.assert_array_equal(jax.jit(profiles.counts)(value, counted), found)
  strange = jnp.array([-jnp.inf, low - 1, high + 1, jnp.inf, jnp.nan])
  np.testing.assert_allclose(
    profiles.counts(strange, counted), [0.01, 0.01, 1, 1, 0], atol=1e-6
  )


def test_terms_are_rounded_towards_zero():
  """To the nearest, 1023 terms of a bit more than half of one are too long."""
  config = settings(lattice_bits=4, epsilon=1.0)
  hyper, items = ranking_mf._hyper(config), 1023
  ones = jnp.ones(items)
  user, value = np.zeros(items, int), np.full(items, 5.0)
  data = training_data(from_arrays(user, np.arange(items), value, scale=SCALE))
  spacing = float(hyper.counts.spacing)
  own = profiles.profiles(data.by_user, ones, ones[:, None], hyper.counted)
  sent = ranking_mf._inverse(own.square)[:, None]
  assert 0.5 < float(sent[0, 0]) / spacing < 0.51
  sums = profiles.item_sums(data.by_item, ones, sent, hyper.counted, spacing)
  moved = np.linalg.norm(np.asarray(sums, float)) * spacing
  assert moved <= plan(config).sensitivity['popularity']


@pytest.mark.parametrize('no_number', [jnp.inf, jnp.nan])
@pytest.mark.parametrize('unit', ['user', 'rating'])
def test_items_that_are_not_finite_tell_nothing(crowd, no_number, unit):
  config = settings(unit=unit)
  hyper = ranking_mf._hyper(config)
  known = known_at(np.random.default_rng(1), config)
  known = known._replace(vector=known.vector.at[3].set(no_number))
  sums = user_sums if unit == 'user' else interaction_sums
  bound = plan(config).sensitivity['factors'] / lattice_spacing(config)
  left = np.arange(len(crowd)) != 0 if unit == 'rating' else crowd.user != 0
  total = np.asarray(sums(known, hyper, training_data(crowd)), int)
  moved = total - np.asarray(
    sums(known, hyper, training_data(crowd.take(left)))
  )
  assert length(moved, known, unit) <= bound


# Sums: exact, wherever they are computed.


@pytest.mark.slow
@pytest.mark.parametrize('sums', [user_sums, interaction_sums])
def test_sums_do_not_depend_on_places_or_devices(crowd, sums):
  unit = 'user' if sums is user_sums else 'rating'
  config = settings(unit=unit)
  hyper = ranking_mf._hyper(config)
  known = known_at(np.random.default_rng(2), config)
  expected = sums(known, hyper, training_data(crowd))
  for data in layouts(crowd):
    np.testing.assert_array_equal(sums(known, hyper, data), expected)


@pytest.mark.slow
def test_noise_is_larger_along_popularity_alone():
  known = known_at(np.random.default_rng(0), settings())
  keys = jax.random.split(jax.random.key(0), 4000)
  drawn = jax.vmap(
    lambda key: ranking_mf._drawn(key, known, True, None).value[:, 0]
  )(keys)
  p = np.asarray(known.direction, float)
  cover = np.cov(np.asarray(drawn, float).T)
  expected = np.eye(ITEMS) + ALONG * np.outer(p, p)
  np.testing.assert_allclose(cover, expected, atol=0.25)
  assert p @ cover @ p == pytest.approx(1 + ALONG, rel=0.1)


# Plans.


@pytest.mark.parametrize('unit', ['user', 'rating'])
@pytest.mark.parametrize('epsilon', [0.1, 1.0, 20.0])
def test_steps_spend_what_is_stated(unit, epsilon):
  config = settings(unit=unit, epsilon=epsilon, lattice_bits=10)
  made = plan(config)
  noise = [*made.noise['popularity'], *made.noise['factors']]
  moved = [made.sensitivity['popularity']] + [
    made.sensitivity['factors']
  ] * config.rounds
  spent = sum((m / n) ** 2 for m, n in zip(moved, noise, strict=True)) ** 0.5
  event = accounting.Gaussian(1 / spent, 1, made.guarantee.event.uncovered)
  assert accounting.epsilon(event, config.delta) <= epsilon
  assert accounting.epsilon(event, config.delta) > 0.999 * epsilon
  assert made.epsilon(made.steps, config.delta) <= epsilon
  assert sum(made.shares) == pytest.approx(1)


@pytest.mark.parametrize('unit', ['user', 'rating'])
def test_more_users_and_epsilon_ask_for_more(unit):
  at = lambda users, epsilon: resolved(
    settings(unit=unit, epsilon=epsilon, **OPEN), users, 2000
  )
  found = [at(1000, e) for e in (0.01, 1.0, 5.0, 20.0)]
  assert found[0].rank == 0
  assert [c.rank for c in found] == sorted(c.rank for c in found)
  assert [c.kept_items for c in found] == sorted(c.kept_items for c in found)
  assert at(10**5, 0.1).rank > 0
  assert at(10**6, 5.0).kept_items == 2000
  for config in found:
    assert resolved(config, 1000, 2000) == config
    check_size(config, 1000, 2000)


@pytest.mark.parametrize('unit', ['user', 'rating'])
@pytest.mark.parametrize('delta', [1e-3, 1e-5])
def test_an_open_config_states_the_noise_that_is_drawn(unit, delta):
  tried = 0
  for epsilon in (0.01, 1.0, 5.0, 15.0, 20.0, 25.0):
    config = settings(unit=unit, delta=delta, epsilon=epsilon, **OPEN)
    stated = plan(config).guarantee.event
    assert accounting.epsilon(stated, delta) <= epsilon
    for users, items in ((30, 50), (1000, 1700), (10**6, 20_000)):
      used = resolved(config, users, items)
      made = plan(used)
      drawn = made.guarantee.event
      # By rating it is Gaussian or Laplace: all that is known is this delta.
      assert drawn == stated or unit == 'rating'
      assert accounting.epsilon(drawn, delta) <= epsilon
      if used.pure:
        (scale,) = made.noise['popularity']
        assert scale >= drawn.noise_multiplier >= 1 / epsilon
        continue
      spent = sum(
        (made.sensitivity[kind] / std) ** 2
        for kind, stds in made.noise.items()
        for std in stds
      )
      assert spent**-0.5 >= drawn.noise_multiplier
      tried += 1
  assert tried >= 10


@pytest.mark.parametrize('unit', ['user', 'rating'])
def test_what_is_left_open_has_room_for_the_noise(unit):
  for epsilon in (1e-4, 1e-3, 0.01, 0.1, 1.0):
    for delta in (1e-6, 0.01, 0.25):
      config = settings(unit=unit, delta=delta, epsilon=epsilon, **OPEN)
      for users in (1, 30, 10**5):
        ranking_mf._hyper(resolved(config, users, 50))  # or it is refused


def test_shares_do_not_tell_how_many_users_there_are():
  at = lambda users: resolved(settings(epsilon=1.0, **OPEN), users, 1682)
  shares = {at(users).popularity_share for users in range(500, 1500, 31)}
  assert 1 < len(shares) <= 24
  assert all(share == round(share, 2) for share in shares)


def test_what_does_not_fit_is_refused():
  config = settings(lattice_bits=20)
  with pytest.raises(ValueError, match=r'lattice_bits=20 allows 512 users'):
    check_size(config, 513, ITEMS)
  with pytest.raises(ValueError, match=r'delta=1e-12 is too small'):
    settings(delta=1e-12)
  with pytest.raises(ValueError, match=r'are 1048577 sums: at most 1048576'):
    check_size(settings(), USERS, 2**20 + 1)
  with pytest.raises(ValueError, match=r'least_weight=0.0 must be'):
    settings(least_weight=0.0)
  with pytest.raises(ValueError, match=r'liked_from=1e-05 must be'):
    settings(liked_from=1e-5)
  with pytest.raises(ValueError, match=r'must be within 64 widths of 0'):
    settings(scale=(1e5, 1e5 + 1))
  with pytest.raises(ValueError, match=r'kept_items=100001 must be'):
    settings(kept_items=100_001)


@pytest.mark.parametrize('unit', ['user', 'rating'])
def test_what_is_given_is_used_or_refused(unit):
  """A certificate states the noise of what is given."""
  given = {'unit': unit, 'epsilon': 2.0}
  closed = settings(**given)
  assert resolved(closed, USERS, ITEMS) == closed
  with pytest.raises(ValueError, match=r'kept_items=2000 must be at most 30'):
    resolved(settings(**given, kept_items=2000), USERS, ITEMS)
  with pytest.raises(ValueError, match=r'rank=64 must be less .*=20;'):
    resolved(settings(**given, rank=64), USERS, ITEMS)
  with pytest.raises(ValueError, match=r'rank=64 must be less .*=30;'):
    resolved(settings(**given, **{**OPEN, 'rank': 64}), USERS, ITEMS)
  # What is open makes room for what is given.
  for name, value in (('rank', 29), ('kept_items', 2), ('rank', 0)):
    used = resolved(settings(**given, **{**OPEN, name: value}), USERS, ITEMS)
    assert getattr(used, name) == value
    assert (used.rank or 0) < (used.kept_items or 0)


# Lists.


@pytest.fixture(scope='module')
def groups():
  """Two groups who like different halves of the items, and popular ones."""
  rng = np.random.default_rng(0)
  users, items = 600, 60
  taste = 0.03 + 0.5 * (np.arange(users)[:, None] % 2 == np.arange(items) % 2)
  chance = taste * np.linspace(1, 0.2, items)
  user, item = np.nonzero(rng.uniform(size=(users, items)) < chance)
  ratings = from_arrays(
    user, item, rng.integers(1, 6, len(user)).astype(float), scale=SCALE
  )
  return random_split(ratings, 0.2, seed=0)


def trained(train, **more):
  config = settings(**{**OPEN, **more})
  system = ranking_mf.ranking_mf(config)
  data = training_data(train)
  state = fit(system, jax.random.key(1), data)
  return system, system.model(state, data), system.release(state, data)


@pytest.mark.slow
def test_lists_beat_popularity_and_never_lose_to_it(groups):
  train, test = groups
  ndcg = lambda **more: ranking_metrics(
    trained(train, **more)[1], train, test, 10
  )['ndcg@10']
  popular = ndcg(epsilon=20.0, rank=0)
  assert ndcg(epsilon=8.0) > 1.5 * popular
  assert ndcg(epsilon=8.0, unit='rating') > 1.5 * popular
  # So much noise that nothing is left of factors.
  assert ndcg(epsilon=0.5) > 0.8 * ndcg(epsilon=0.5, rank=0)


def test_factors_of_nothing_but_popular_items_have_no_weight():
  known = known_at(np.random.default_rng(0), settings())
  kept = np.asarray(known.scale > 0)
  few = np.zeros(ITEMS)
  few[np.argsort(-np.asarray(known.direction))[:3]] = 0.5
  half = np.asarray(known.direction) * (-1.0) ** np.arange(ITEMS)
  weight = lambda strongest: float(
    ranking_mf._told_apart(
      known._replace(
        vector=known.vector.at[:, 1].set(strongest),
        strength=jnp.array([1.0, 2.0, 0.5]),
      )
    )
  )
  assert weight(few) == 0
  assert weight(np.where(kept, 0.3, 0.0)) == 1
  # Two groups, of which either likes half of what is popular.
  assert weight(np.sign(half)) == 1
  assert weight(np.sqrt(np.abs(half)) * np.sign(half)) == 1


@pytest.fixture(scope='module')
def run(groups):
  """A system, both sides of its model, and what it released."""
  return trained(groups[0], epsilon=20.0)


@pytest.mark.slow
def test_users_are_fitted_at_home_as_the_curator_does(groups, run):
  train, _ = groups
  _, model, release = run
  assert release.factors.user is None
  assert isinstance(release.fit, Sum)
  served = models.model_from_release(release, train)
  at_home = folding.fold_in(served, train)
  np.testing.assert_array_equal(at_home.user_factors, model.factors.user)


@pytest.mark.slow
def test_a_published_folder_is_enough_for_new_users(groups, run, tmp_path):
  train, _ = groups
  _, model, release = run
  files.save_tree(tmp_path / 'model.safetensors', release)
  ids = {k: v for k, v in models.ids_json(train).items() if k != 'users'}
  files.write_json(tmp_path / 'ids.json', ids)
  served = models.load_model(tmp_path)
  assert isinstance(served.fit, Sum)
  at_home = folding.fold_in(served, train)
  np.testing.assert_array_equal(at_home.user_factors, model.factors.user)
  # Scores are not cut off at the highest rating.
  scores = [each.score for each in recommendations.recommend(at_home, k=3)]
  assert len({*scores}) > 10


@pytest.mark.slow
def test_cold_users_get_popularity(run):
  _, model, _ = run
  cold = np.asarray(model.fit.prior) @ np.asarray(model.factors.item).T
  by_count = np.argsort(-np.asarray(model.factors.item[:, 0]))
  np.testing.assert_array_equal(np.argsort(-cold), by_count)
  assert (np.asarray(model.factors.item[:, 0]) > 0).all()


@pytest.mark.slow
def test_similar_items_are_of_the_same_half(groups, run):
  train, _ = groups
  _, _, release = run
  served = models.model_from_release(release, train)
  found = recommendations.similar_items(served, ['0', '1'], k=5)
  same = [int(each.item) % 2 == int(each.similar) % 2 for each in found]
  assert np.mean(same) > 0.9
