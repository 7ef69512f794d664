"""Local MF: records by randomized response, users by secure sums."""

import functools

import certified
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from quiet import quiet
from tables import ratings_of

from dpmf_jax import accounting, certificates, training
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.records import GRID, lie_coins
from dpmf_jax.accounting.rounding import MAX_STD
from dpmf_jax.certificates import wording
from dpmf_jax.evaluation import metrics
from dpmf_jax.mechanisms import records
from dpmf_jax.plans import local_mf as settings
from dpmf_jax.plans.local_mf import LocalMFConfig
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import local_mf as system_module
from dpmf_jax.systems import local_mf_server as server
from dpmf_jax.systems.local_mf import client_sums, local_mf
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)
STARS = (1.0, 2.0, 3.0, 4.0, 5.0)


def config(**fields):
  fields = {'unit': 'rating', 'relation': 'add_remove'} | fields
  return LocalMFConfig(
    **({'variant': 'sound', 'scale': SCALE, 'epsilon': 2.0} | fields)
  )


by_user = functools.partial(config, unit='user', delta=1e-5)


_jitted = functools.cache(jax.jit)


def stepped(system, key, data):
  """The states before and after the one step."""
  state = system.init(jax.random.key(0), data)
  return state, _jitted(system.step)(key, state, data)


def applied(*arguments, rank):
  """`server_apply`, compiled anew: a test changes the size of blocks."""
  return jax.jit(functools.partial(server.server_apply, rank=rank))(*arguments)


def a_table(seed=0, num_users=12, num_items=9, part=0.4):
  rng = np.random.default_rng(seed)
  table = rng.integers(1, 6, (num_users, num_items)).astype(float)
  table[rng.random(table.shape) > part] = 0
  table[:, 0] = np.where(table[:, 0] == 0, 3, table[:, 0])  # popular
  table[:, 1] = 0
  table[0, 1] = 5  # the only rating of an item, an extreme one
  table[1] = 0
  table[1, 2] = 1  # the only rating of a user
  return table


# Records.


def test_answers_are_those_of_each_client_with_a_key_of_its_own():
  table = a_table()
  data = training_data(ratings_of(table))
  system = local_mf(config(rank=2))
  state, after = stepped(system, jax.random.key(1), data)
  clients_key, _ = jax.random.split(jax.random.key(1))
  cells = np.where(table > 0, 1 + (table - 1) * 60, 0).astype(np.uint8)
  for u in range(12):
    want = _jitted(records.answers)(
      jax.random.fold_in(clients_key, u),
      jnp.asarray(cells[u]),
      state.hyper.response,
    )
    np.testing.assert_array_equal(after.observed[u], want)


def test_a_changed_record_moves_no_other_answer():
  # The same key: then everything but the cell's own answer must be the same.
  system = local_mf(config(rank=2, epsilon=8.0))

  def answers(table):
    data = training_data(ratings_of(table))
    return np.array(stepped(system, jax.random.key(1), data)[1].observed)

  table = a_table()
  base = answers(table)
  for u, i in ((0, 0), (0, 1), (1, 2), (5, 5)):
    for value in (0, 1, 5):
      changed = table.copy()
      changed[u, i] = value
      found = answers(changed)
      moved = {(int(a), int(b)) for a, b in np.argwhere(found != base)}
      assert moved <= {(u, i)}


def test_the_server_reads_nothing_but_answers():
  # Factors are a function of the answers and the server's key.
  data = training_data(ratings_of(a_table()))
  system = local_mf(config(rank=2))
  state, after = stepped(system, jax.random.key(1), data)
  _, server_key = jax.random.split(jax.random.key(1))
  hyper = state.hyper
  mean, factors = applied(
    server_key,
    after.observed,
    hyper.tables,
    hyper.prior_variance,
    rank=2,
  )
  np.testing.assert_allclose(after.factors.item[:, 0], mean, rtol=1e-5)
  np.testing.assert_allclose(
    np.abs(after.factors.item[:, 1:-1]), np.abs(factors), rtol=1e-3, atol=1e-4
  )
  np.testing.assert_array_equal(after.factors.item[:, -1], 1)


@pytest.mark.slow
def test_without_lies_means_and_factors_are_those_of_the_ratings():
  # Epsilon 20 on a full low-rank table: means come out, and factors span what
  # is left of the table.
  rng = np.random.default_rng(3)
  left, right = rng.normal(size=(90, 1)), rng.normal(size=(30, 1))
  table = np.clip(np.round(3.5 + 1.5 * left @ right.T), 1, 5)
  data = training_data(ratings_of(table))
  system = local_mf(config(epsilon=20.0, levels=STARS, rank=2))
  state = fit(system, jax.random.key(0), data)
  item = np.asarray(state.factors.item)
  np.testing.assert_allclose(3.5 + item[:, 0], table.mean(axis=0), atol=0.1)
  rest = table - table.mean(axis=0)
  top = np.linalg.svd(rest, full_matrices=False)[2][0]
  first = item[:, 1] / np.linalg.norm(item[:, 1])
  assert abs(first @ top) > 0.98


@pytest.mark.slow
def test_blocks_of_users_do_not_matter(monkeypatch):
  rng = np.random.default_rng(4)
  answers = jnp.asarray(rng.integers(0, 3, (50, 20)), jnp.uint8)
  lie = lie_coins(3.0, 3)
  tables = records.estimates((2.6, 4.4), lie, center=3.5, spacing=1.0)
  found = []
  for block in (7, 64):
    monkeypatch.setattr(server, '_BLOCK', block)
    made = applied(jax.random.key(0), answers, tables, jnp.float32(0.3), rank=2)
    found.append(made)
  np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    np.abs(found[0][1]), np.abs(found[1][1]), rtol=1e-2, atol=1e-2
  )


@pytest.mark.slow
def test_factors_are_nothing_where_there_is_only_noise():
  # 400 x 200 cells without ratings: noise has a singular value above its edge
  # by a few percent at most, which leaves a quarter of the length.
  response = records.response(
    (2.6, 4.4), scale=SCALE, rounding='nearest', epsilon=1.0
  )
  keys = jax.random.split(jax.random.key(5), 400)
  blank = jnp.zeros(200, jnp.uint8)
  answers = jax.vmap(records.answers, (0, None, None))(keys, blank, response)
  lie = lie_coins(1.0, 3)
  tables = records.estimates((2.6, 4.4), lie, center=3.5, spacing=1.0)
  _, factors = applied(
    jax.random.key(6), answers, tables, jnp.float32(0.3), rank=4
  )
  assert np.linalg.norm(factors, axis=0).max() < 0.35 * 200**0.5


def test_stated_epsilon_is_that_of_the_coins():
  for epsilon in (0.5, 2.0, 4.0):
    made = config(epsilon=epsilon)
    guarantee = local_mf(made).guarantee
    assert guarantee.status == 'proved'
    event = guarantee.event
    assert isinstance(event, accounting.RandomizedResponse)
    assert event.categories == len(made.answer_levels) + 1
    assert event.epsilon <= epsilon
    assert accounting.epsilon(guarantee, 0.0) == pytest.approx(
      epsilon, abs=1e-6
    )
    assert 'server itself' in guarantee.adversary
    assert any('value that changes' in x for x in guarantee.assumptions)


def test_the_certificate_does_not_say_that_values_have_less():
  for made, less in ((config(), False), (by_user(), True)):
    document = certificates.certificate(
      local_mf(made).guarantee,
      system='local_mf',
      config=made,
      delta=made.delta,
      randomness=certified.SECRET,
    )
    text = str(wording.sections(document))
    assert ('get less protection' in text) == less


# Users.


def contributions(table, made):
  data = training_data(ratings_of(table))
  hyper = system_module._user_hyper(made, *table.shape)
  sums = _jitted(system_module.summed_contributions)(data, hyper)
  return np.asarray(sums), hyper


def test_the_sum_is_that_of_all_clients():
  table = a_table()
  sums, hyper = contributions(table, by_user(clip_norm=2.0))
  cells = np.where(table > 0, 1 + (table - 1) * 60, 0).astype(np.uint8)
  each = [
    np.asarray(
      _jitted(client_sums)(
        jnp.asarray(row), hyper.clip, hyper.counted, hyper.weight
      )
    )
    for row in cells
  ]
  np.testing.assert_array_equal(sums, np.sum(each, axis=0))
  # By hand, for the user with one rating of 1: 2.5 stars below the center.
  norm = np.hypot(30, 150)
  weight = np.floor(1024 * 120 * (1 - 1e-5) / norm)
  np.testing.assert_array_equal(each[1][2], weight * np.array([30, -150]))
  assert np.abs(each[1]).sum() == np.abs(each[1][2]).sum()


@pytest.mark.parametrize('clip_norm', [0.1, 2.0, 6.0, 100.0])
def test_no_user_moves_the_sums_by_more_than_the_clip_norm(clip_norm):
  table = a_table()
  table[2] = 1  # rates everything, as low as can be
  table[3] = 5
  made = by_user(clip_norm=clip_norm)
  base, hyper = contributions(table, made)
  bound = float(hyper.clip) * int(hyper.weight)
  moved = []
  for u in range(5):  # the popular, the only and the extreme ones are there
    gone = table.copy()
    gone[u] = 0
    sums, _ = contributions(gone, made)
    moved.append(np.linalg.norm((base - sums).astype(float)))
  assert max(moved) <= bound
  if clip_norm <= 2:
    assert max(moved) > 0.95 * bound  # and the bound is not too large
  # The noise is scaled to that very bound.
  multiplier = settings.noise_multiplier(made)
  assert float(hyper.noise.std) >= multiplier * bound
  assert float(hyper.noise.std) == pytest.approx(multiplier * bound, rel=1e-6)


@pytest.mark.parametrize('clip', [6, 360, 6000])
def test_whole_weights_keep_the_bound_exactly(clip):
  """Norms whose weight is just below a whole number, which float32 may make
  that number."""
  weight = 1024
  # The first square for which a weight of k is too much.
  least = [(clip * weight) ** 2 // k**2 + 1 for k in range(1, weight + 1)]
  squares = [square for square in least if square < 2**31]
  found = system_module._weights(
    jnp.array(squares, jnp.int32), jnp.float32(clip), jnp.int32(weight)
  )
  for square, found_weight in zip(squares, found.tolist(), strict=True):
    assert found_weight**2 * square <= (clip * weight) ** 2


def test_noise_on_sums_has_its_scale_and_no_other():
  # 6,000 items without ratings. A false alarm of either KS test has chance
  # 1e-4.
  table = np.zeros((3, 6000))
  table[0, 0] = 3
  data = training_data(ratings_of(table))
  system = local_mf(by_user(epsilon=1.0))
  state, after = stepped(system, jax.random.key(1), data)
  drawn = np.asarray(after.observed)[1:].T
  made = by_user(epsilon=1.0)
  scale = settings.noise_multiplier(made) * 360 * int(state.hyper.weight)
  for column in drawn:
    law = lambda s, x=column: scipy.stats.kstest(x / s, 'norm').pvalue
    assert law(scale) > 1e-4
    assert law(scale * 2 / 3) < 1e-4
    assert law(scale * 3 / 2) < 1e-4
  assert abs(np.corrcoef(drawn)[0, 1]) < 0.07  # 5 standard errors


def test_delta_pays_for_the_tails():
  for epsilon in (1.0, 4.0, 16.0):
    made = by_user(epsilon=epsilon)
    event = settings.plan(made).guarantee.event
    assert accounting.epsilon(event, made.delta) <= epsilon
    m = settings.noise_multiplier(made)
    # What is run, at what is left of delta, is no worse than what is stated,
    # for as many items as there may be.
    lost = tails.uncovered_jointly(m, 2 * settings.max_items(made))
    assert lost <= event.uncovered <= made.delta / 100
    rest = made.delta - lost
    assert accounting.epsilon(accounting.Gaussian(m), rest) <= epsilon
    with pytest.raises(ValueError, match='too many for exact sums'):
      system_module._user_hyper(made, 10, settings.max_items(made) + 1)
  with pytest.raises(ValueError, match='too small'):
    by_user(epsilon=20.0, delta=1e-9)


def test_sums_and_noise_fit_into_32_bits():
  for num_users, epsilon in ((10, 1.0), (6040, 0.1), (1_000_000, 1.0)):
    made = by_user(epsilon=epsilon)
    weight = 2 ** settings.weight_bits(made, num_users)
    assert num_users * weight * GRID <= 2**30
    deviation = settings.noise_multiplier(made) * made.clip_steps * weight
    assert deviation <= MAX_STD
  with pytest.raises(ValueError, match='do not fit'):
    settings.weight_bits(by_user(), 10**8)
  with pytest.raises(ValueError, match='too many'):
    system_module._user_hyper(by_user(), 10, 50_000)


def test_means_without_noise_are_weighted_means():
  table = a_table(num_users=40)
  sums, hyper = contributions(table, by_user(clip_norm=100.0))
  hyper = quiet(hyper)._replace(prior_variance=jnp.float32(1e9))
  found = system_module.released_means(jnp.asarray(sums, jnp.float32), hyper)
  rated = (table > 0).sum(axis=0)
  want = np.where(table > 0, table - 3.5, 0).sum(axis=0) / np.maximum(rated, 1)
  np.testing.assert_allclose(found[rated > 0], want[rated > 0], rtol=1e-4)


# Both.


@pytest.mark.slow
@pytest.mark.parametrize('make', [config, by_user])
def test_both_devices_give_what_one_gives(small_ratings, make):
  found = [
    fit(
      local_mf(make()),
      jax.random.key(0),
      training_data(small_ratings, mesh=device_mesh(n)),
    )
    for n in (1, 2)
  ]
  np.testing.assert_array_equal(*(state.observed for state in found))
  means = [state.factors.item[:, 0] for state in found]
  np.testing.assert_allclose(*means, rtol=1e-3, atol=1e-4)


def test_the_user_form_keeps_the_contract(small_ratings):
  data = training_data(small_ratings)
  system = local_mf(by_user())
  state = fit(system, jax.random.key(0), data)
  before = training._block._cache_size()
  other = local_mf(by_user(epsilon=4.0, clip_norm=3.0, count_scale=1.0))
  fit(other, jax.random.key(0), data)
  assert training._block._cache_size() == before
  release = system.release(state, data)
  assert release.factors.user is None
  model = system.model(state, data)
  np.testing.assert_array_equal(model.factors.item, release.factors.item)
  assert system.guarantee.unit == 'user'
  assert accounting.epsilon(system.guarantee, 1e-5) == pytest.approx(2.0)


def test_levels_do_not_compile_again(small_ratings):
  data = training_data(small_ratings)
  fit(local_mf(config()), jax.random.key(0), data)
  before = training._block._cache_size()
  for fields in (
    {'levels': STARS},
    {'levels': (1.0, 5.0), 'rounding': 'stochastic'},
    {'epsilon': 8.0},
  ):
    fit(local_mf(config(**fields)), jax.random.key(0), data)
  assert training._block._cache_size() == before


def test_traffic_is_what_is_sent():
  # 3 categories in 2 bits, 5 or 6 in 3.
  sent = lambda made, items: tuple(
    settings.traffic(made, num_items=items).values()
  )
  assert sent(config(epsilon=1.0), 1682)[0] == 421
  assert sent(config(epsilon=4.0), 1682)[0] == 631
  assert sent(config(levels=STARS), 1682)[0] == 631
  assert sent(config(rank=3), 10)[1] == 4 * (10 * 5 + 1)
  assert sent(by_user(), 10) == (80, 84)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'variant': 'paper'}, "variant='paper' must be 'sound'"),
    ({'unit': 'item'}, "unit='item' must be"),
    ({'unit': 'user', 'delta': 1e-5, 'relation': 'replace'}, 'must be .add'),
    ({'unit': 'user'}, r'delta=0\.0 must be in'),
    ({'epsilon': 0.0}, r'epsilon=0\.0 must be in'),
    ({'epsilon': 21.0}, r'epsilon=21\.0 must be in'),
    ({'epsilon': np.nan}, 'epsilon=nan must be in'),
    ({'scale': (5.0, 1.0)}, 'lowest < highest'),
    ({'levels': (4.0, 2.0)}, 'ascending'),
    ({'levels': (0.0, 2.0)}, 'ascending'),
    ({'levels': ()}, 'ascending'),
    ({'rank': 1.5}, 'rank must be an integer'),
    ({'clip_norm': 0.0}, r'clip_norm=0\.0 must be'),
    ({'rounding': 'up'}, "rounding='up' must be"),
    ({'count_scale': 1e-9}, 'too small'),
    ({'mean_ridge': 0.0}, r'mean_ridge=0\.0 must be positive'),
  ],
)
def test_wrong_settings_are_named(fields, message):
  with pytest.raises(ValueError, match=message):
    config(**fields)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('make', 'most'),
  [
    (functools.partial(config, epsilon=0.1), 1.043),
    (functools.partial(config, epsilon=1.0), 1.015),
    (functools.partial(config, epsilon=4.0), 0.940),
    (functools.partial(by_user, epsilon=4.0), 0.975),
  ],
)
def test_accuracy_on_real_ratings(data_dir, make, most):
  # About 0.01 above what was measured. Local biases alone have 1.041.
  ratings = catalog.load('ml-100k', data_dir=data_dir, quiet=True)
  train, test = random_split(ratings, 0.2, seed=0)
  data = training_data(train)
  system = local_mf(make())
  state = fit(system, jax.random.key(0), data)
  model = jax.device_get(system.model(state, data))
  assert metrics.rmse(model, test) < most
