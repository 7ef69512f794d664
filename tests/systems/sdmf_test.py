"""SDMF as published: one client, the server, and rounds of all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from clients import memory_of, profile_of

from dpmf_jax import accounting
from dpmf_jax.accounting.claims.sdcf import claimed_sdcf_flip
from dpmf_jax.evaluation import metrics
from dpmf_jax.mechanisms import truncated
from dpmf_jax.plans import sdcf as sdcf_plan
from dpmf_jax.plans.sdmf import SDMFConfig
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import sdmf
from dpmf_jax.systems.sdcf import client_blocks, sgld, types
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)
ITEMS, RANK = 60, 4


def config(**fields):
  fields = {'epsilon_instant': 4.0, 'scale': SCALE, 'rank': RANK} | fields
  return SDMFConfig(**fields)


def one_client(seed=0, rated=25):
  """A client, its ratings and what the server sends, all made up."""
  rng = np.random.default_rng(seed)
  bits = rng.random(ITEMS) < 0.5
  own = profile_of(rng, ITEMS, rated)
  client = types.Client(
    jnp.asarray(rng.random(RANK), jnp.float32), memory_of(bits)
  )
  public = types.Public(
    item=jnp.asarray(rng.random((ITEMS, RANK)), jnp.float32),
    step_size=jnp.float32(0.01),
    langevin=sgld.Langevin(
      *map(jnp.float32, (0.01, 0.6, 30.0)),
      jnp.full(RANK, 0.3),
      jnp.full(RANK, 0.2),
    ),
    epsilon_value=jnp.float32(1.0),
    tolerance=jnp.float32(0.0),
  )
  return client, own, public


@functools.cache
def reporting(capacity):
  return jax.jit(functools.partial(sdmf.client_report, capacity=capacity))


def report(client, own, public, *, seed=0, capacity=ITEMS, **langevin):
  public = public._replace(langevin=public.langevin._replace(**langevin))
  return reporting(capacity)(jax.random.key(seed), client, own, public)


def scaled_part(*args, **how):
  """What the likelihood adds to a client and to its report: noise is gone."""
  with_it = report(*args, **how)
  without = report(*args, **how, likelihood=jnp.float32(0))
  return with_it[1].item, jax.tree.map(
    lambda a, b: np.float64(a) - np.float64(b),
    (with_it[0].factors, with_it[1].gradient),
    (without[0].factors, without[1].gradient),
  )


def test_true_residuals_are_sent_for_rated_items_and_moved_by_at_home():
  client, own, public = one_client()
  item, (move, gradient) = scaled_part(client, own, public)
  item = np.asarray(item)
  used = item < ITEMS
  p, q = np.float64(client.factors), np.float64(public.item)
  rated = np.asarray(own.rated)
  residual = np.where(rated, q @ p - np.asarray(own.value), 0)
  mean, deviation = residual[rated].mean(), residual[rated].std()
  alpha = float(truncated.bound(*map(jnp.float32, (1.0, mean, deviation))))
  e = gradient[used] @ p / (p @ p) / (0.01 * 30)
  # Rank one: residual times the user's factors.
  np.testing.assert_allclose(gradient[used], 0.3 * np.outer(e, p), atol=1e-4)
  true = rated[item[used]]
  np.testing.assert_allclose(e[true], residual[item[used]][true], atol=1e-4)
  assert np.abs(e[~true]).max() <= alpha + 1e-4
  # Theorem 3 fails: a true residual can be where no fake one is.
  assert np.abs(e[true]).max() > alpha
  wanted = -0.01 * 30 * (residual @ q) / rated.sum()
  np.testing.assert_allclose(move, wanted, atol=1e-5)


def test_ridges_shrink_both_sides():
  client, own, public = one_client()
  none = jnp.zeros(RANK)
  some = report(client, own, public)
  less = report(client, own, public, user_ridge=none, item_ridge=none)
  moved = np.asarray(some[0].factors - less[0].factors)
  np.testing.assert_allclose(
    moved, -0.01 * 0.3 * np.asarray(client.factors), atol=1e-6
  )
  used = np.asarray(some[1].item) < ITEMS
  shift = np.asarray(some[1].gradient - less[1].gradient)[used]
  wanted = 0.01 * 0.2 * np.asarray(public.item)[np.asarray(some[1].item)[used]]
  np.testing.assert_allclose(shift, wanted, atol=1e-5)


@pytest.mark.slow
def test_every_gradient_and_move_has_its_noise():
  client, own, public = one_client()
  none = {'user_ridge': jnp.zeros(RANK), 'item_ridge': jnp.zeros(RANK)}
  langevin = public.langevin._replace(likelihood=jnp.float32(0), **none)
  public = public._replace(langevin=langevin)
  keys = jax.random.split(jax.random.key(5), 400)
  moved, sent = jax.jit(
    jax.vmap(
      functools.partial(sdmf.client_report, capacity=ITEMS),
      (0, None, None, None),
    )
  )(keys, client, own, public)
  gradient = np.asarray(sent.gradient)[np.asarray(sent.item) < ITEMS].ravel()
  own_moves = np.asarray(moved.factors - client.factors[None]).ravel()
  for drawn, std in ((gradient, 0.1), (own_moves, 0.1 / 25**0.5)):
    for factor in (2 / 3, 1.0, 3 / 2):
      law = scipy.stats.norm(scale=std * factor)
      # A false alarm has chance 1e-4, for either.
      pvalue = scipy.stats.kstest(drawn, law.cdf).pvalue
      assert (pvalue > 1e-4) == (factor == 1.0)


def test_a_report_holds_neither_ratings_nor_factors():
  assert types.Upload._fields == ('item', 'gradient', 'converged', 'shared')
  client, own, public = one_client()
  first = report(client, own, public)[1]
  # The same bits whatever the ratings and factors are: items chosen say no
  # more than the permanent bits do.
  other = client_blocks.Profile(own.value * 0 + 1, ~own.rated)
  second = report(client._replace(factors=-client.factors), other, public)[1]
  np.testing.assert_array_equal(first.item, second.item)


def test_what_has_no_room_is_not_sent_and_counted():
  client, own, public = one_client()
  whole = np.asarray(report(client, own, public)[1].item)
  memory, cut = report(client, own, public, capacity=10)
  np.testing.assert_array_equal(cut.item, whole[:10])
  assert int(memory.memory.unsent) == (whole < ITEMS).sum() - 10


def test_own_ratings_are_the_ratings(small_ratings):
  rows = training_data(small_ratings, slots=4, slices=8).by_user
  blocks = client_blocks.client_blocks(rows, small_ratings.num_items)
  count, size = client_blocks.block_shape(rows, small_ratings.num_items)
  assert count > 1
  parts = [
    client_blocks.own_ratings(
      rows, blocks, jnp.int32(b), size, small_ratings.num_items
    )
    for b in range(count)
  ]
  value, rated = (
    np.concatenate(side)[:60] for side in zip(*parts, strict=True)
  )
  wanted = np.zeros((60, small_ratings.num_items))
  wanted[small_ratings.user, small_ratings.item] = small_ratings.value
  np.testing.assert_array_equal(value, wanted)
  np.testing.assert_array_equal(rated, wanted > 0)


def started(ratings, mesh=None, seed=0, **fields):
  system = sdmf.sdmf(config(**fields))
  data = training_data(ratings, mesh=mesh)
  return system, data, system.init(jax.random.key(seed), data)


@functools.cache
def jitted(step):
  return jax.jit(step)


def test_a_round_is_the_sum_of_what_clients_tell(small_ratings):
  system, data, state = started(small_ratings)
  still = state._replace(
    hyper=state.hyper._replace(
      langevin=state.hyper.langevin._replace(likelihood=jnp.float32(0))
    )
  )
  key = jax.random.key(3)
  moved = jitted(system.step)(key, state, data)
  # With the same noise, and nothing else but ridges.
  other = jitted(system.step)(jax.random.clone(key), still, data)
  rows, num_items = data.by_user, small_ratings.num_items
  count, size = client_blocks.block_shape(rows, num_items)
  clients_key = jax.random.split(jax.random.clone(key), 3)[0]
  keys = jax.random.split(clients_key, (count, size)).reshape(-1)
  keys = jax.vmap(jax.random.split)(keys[:60])[:, 1]
  public = sdcf.public_of(state)
  wanted = np.zeros((60, num_items))
  wanted[small_ratings.user, small_ratings.item] = small_ratings.value
  capacity = sdcf.message_capacity(rows, num_items, None)
  run = jax.jit(functools.partial(sdmf.client_round, capacity=capacity))
  total, received = np.zeros((num_items, RANK)), np.zeros(num_items)
  for u in range(60):
    client = types.Client(
      state.factors.user[u], jax.tree.map(lambda x, u=u: x[u], state.memory)
    )
    own = client_blocks.Profile(
      jnp.float32(wanted[u]), jnp.asarray(wanted[u] > 0)
    )
    after, sent = run(keys[u], client, own, public)
    np.testing.assert_allclose(
      after.factors, moved.factors.user[u], rtol=1e-5, atol=1e-6
    )
    total += np.outer(sent.error, sent.vector)
    received += np.asarray(sent.sent)
  mean = 0.4 * total / np.maximum(received, 1)[:, None]
  np.testing.assert_allclose(
    moved.factors.item - other.factors.item, -mean, atol=2e-5
  )
  assert float(moved.sent) == received.sum()


def test_a_message_is_what_a_client_tells_with_noise():
  client, own, public = one_client()
  key = jax.random.key(0)
  _, gave = jax.jit(functools.partial(sdmf.client_round, capacity=ITEMS))(
    jax.random.split(key, 3)[0], client, own, public
  )
  item, (_, gradient) = scaled_part(client, own, public)
  item = np.asarray(item)
  used = item < ITEMS
  np.testing.assert_array_equal(item[used], np.flatnonzero(gave.sent))
  wanted = 0.3 * np.outer(gave.error, gave.vector)
  np.testing.assert_allclose(gradient[used], wanted[item[used]], atol=1e-5)
  assert not np.asarray(gave.error)[~np.asarray(gave.sent)].any()


def test_noise_of_a_sum_is_that_of_its_messages(small_ratings):
  system, data, state = started(small_ratings)
  none = jnp.zeros(RANK)
  langevin = state.hyper.langevin._replace(
    likelihood=jnp.float32(0), user_ridge=none, item_ridge=none
  )
  state = state._replace(hyper=state.hyper._replace(langevin=langevin))
  drawn, eta = [], float(langevin.step_size)
  for number in range(20):
    moved = jitted(system.step)(jax.random.key(number), state, data)
    # The mean of n gradients: its noise has variance eta / n.
    drawn.append(np.asarray(moved.factors.item - state.factors.item))
  keys = [jax.random.split(jax.random.key(k), 3)[0] for k in range(20)]
  received = np.stack(
    [np.asarray(received_counts(k, state, data)) for k in keys]
  )
  assert received.sum(axis=1)[-1] == float(moved.sent)
  scaled = np.stack(drawn) * np.sqrt(received / eta)[..., None]
  scaled = scaled[received > 0].ravel()
  for factor in (2 / 3, 1.0, 3 / 2):
    # A false alarm has chance 1e-4.
    pvalue = scipy.stats.kstest(scaled / factor, 'norm').pvalue
    assert (pvalue > 1e-4) == (factor == 1.0)


@jax.jit
def received_counts(key, state, data):
  """How many gradients of each item the clients of a round send."""
  num_items = len(state.factors.item)
  capacity = sdcf.message_capacity(data.by_user, num_items, None)
  _, total = sdcf.simulated_round(
    key,
    functools.partial(sdmf.client_round, capacity=capacity),
    sdcf.clients_of(state),
    data.by_user,
    state.blocks,
    sdcf.public_of(state),
    state.hyper.rules,
    sdcf.total_shapes(num_items, RANK),
  )
  return total.received


@pytest.mark.slow
def test_two_devices_give_what_one_does(small_ratings):
  states = []
  for mesh in (None, device_mesh(2)):
    system, data, state = started(small_ratings, mesh)
    np.testing.assert_array_equal(np.isnan(state.factors.user), False)
    states.append(fit(system, jax.random.key(1), data))
  for one, two in zip(states[0].factors, states[1].factors, strict=True):
    np.testing.assert_allclose(one, two, atol=2e-4)
  np.testing.assert_array_equal(states[0].memory.bits, states[1].memory.bits)


def test_permanent_bits_are_drawn_once(small_ratings):
  system, data, state = started(small_ratings, epsilon_instant=40.0, steps=3)
  bits = np.unpackbits(np.asarray(state.memory.bits), axis=1)[:, :40]
  truth = np.zeros((60, 40), bool)
  truth[small_ratings.user, small_ratings.item] = True
  h = truth.sum(axis=1)
  flip = claimed_sdcf_flip(80.0, h) / 2
  flipped = (bits != truth).sum()
  mean, variance = 40 * flip.sum(), 40 * (flip * (1 - flip)).sum()
  # Four standard deviations: a false alarm has chance 6e-5.
  assert abs(flipped - mean) < 4 * variance**0.5
  for number in range(3):
    state = jitted(system.step)(jax.random.key(number), state, data)
  np.testing.assert_array_equal(
    np.unpackbits(np.asarray(state.memory.bits), axis=1)[:, :40], bits
  )


def test_clients_that_are_offline_do_nothing(small_ratings):
  system, data, state = started(small_ratings, online=0.4)
  parts, sent = [], []
  for number in range(20):
    moved = jitted(system.step)(jax.random.key(number), state, data)
    still = (moved.factors.user == state.factors.user).all(axis=1)
    parts.append(1 - np.mean(still))
    sent.append(float(moved.sent))
  # 1200 coins: five standard errors are 0.07.
  assert np.mean(parts) == pytest.approx(0.4, abs=0.07)
  assert np.mean(sent) == pytest.approx(0.4 * 700, rel=0.2)


def test_training_stops_when_all_say_so_and_stays(small_ratings):
  system, data, state = started(small_ratings, tolerance=1e3)
  first = jitted(system.step)(jax.random.key(0), state, data)
  assert int(first.stopped) == 1
  assert int(first.memory.converged.sum()) == 60
  later = jitted(system.step)(jax.random.key(1), first, data)
  jax.tree.map(np.testing.assert_array_equal, first, later)
  # Nobody agrees, then nothing stops.
  system, data, state = started(small_ratings)
  state = jitted(system.step)(jax.random.key(0), state, data)
  assert int(state.stopped) == int(state.memory.converged.sum()) == 0


def test_clients_without_ratings_take_no_part(small_ratings):
  # Of the same shape as the others, so that nothing is compiled again.
  absent = np.isin(np.arange(60), [3, 59])
  ratings = small_ratings.take(~absent[small_ratings.user])
  system, data, state = started(ratings)
  moved = jitted(system.step)(jax.random.key(0), state, data)
  assert int((~moved.memory.active).sum()) == 2
  assert np.isfinite(moved.factors.user).all()
  still = np.asarray(moved.factors.user == state.factors.user).all(axis=1)
  np.testing.assert_array_equal(still, absent)


def test_clients_without_a_solution_are_counted(small_ratings):
  state = started(small_ratings, epsilon=4.0, epsilon_instant=4.0)[2]
  assert int(state.unsolved) == 60
  state = started(small_ratings, epsilon=8.0, epsilon_instant=4.0)[2]
  assert int(state.unsolved) == 0


@pytest.mark.slow
def test_the_default_learns_and_the_letter_does_not(small_ratings):
  data = training_data(small_ratings)
  found = {}
  for name, fields in (('learns', {}), ('letter', sdcf_plan.LITERAL)):
    system = sdmf.sdmf(config(steps=60, **fields))
    start = system.init(jax.random.key(0), data)
    state = fit(system, jax.random.key(0), data)
    found[name] = [
      metrics.rmse(system.model(each, data), data.by_user, SCALE)
      for each in (start, state)
    ]
  assert found['learns'][1] < 0.6 * found['learns'][0]
  assert found['letter'][1] > 0.95 * found['letter'][0]


def test_ridges_may_be_drawn(small_ratings):
  rows = training_data(small_ratings).by_user
  made = config(ridges='gamma', rank=500)
  langevin = sgld.langevin(jax.random.key(0), made, rows)
  drawn = np.asarray(langevin.user_ridge) / (0.01 * 700)
  # A false alarm has chance 1e-4.
  assert scipy.stats.kstest(drawn, 'expon').pvalue > 1e-4
  assert not np.array_equal(drawn, langevin.item_ridge / 7)


def test_reports_give_the_direction_of_a_users_factors_away(small_ratings):
  """Why the claim is not about what is sent: S makes the noise small."""
  client, own, public = one_client()
  langevin = public.langevin._replace(
    likelihood=jnp.float32(8e4), step_size=jnp.float32(5e-6)
  )
  public = public._replace(langevin=langevin, step_size=jnp.float32(5e-6))
  sent = report(client, own, public)[1]
  used = np.asarray(sent.item) < ITEMS
  _, _, right = np.linalg.svd(np.asarray(sent.gradient)[used])
  p = np.asarray(client.factors)
  assert abs(right[0] @ p) / np.linalg.norm(p) > 0.99


def test_claims_are_those_of_the_paper():
  made = config(epsilon_instant=1.0, epsilon_value=0.25)
  assert sdcf_plan.epsilons(made) == (2.0, 1.0)
  assert sdcf_plan.epsilons(config(epsilon_instant=None, epsilon=3.0)) == (
    3.0,
    1.5,
  )
  guarantee = sdmf.sdmf(made).guarantee
  assert guarantee.status == 'claimed'
  assert accounting.epsilon(guarantee, 1e-6) == 2.0
  for claim in ('eps_P = 2 ', 'eps_I = 1 ', 'eps_g = 0.25 '):
    assert claim in guarantee.mechanism


def test_bytes_of_a_round():
  size = {'bytes_down': 1682 * 200.0, 'bytes_up': 84 * 204 + 1.0}
  sizes = {'num_users': 10, 'num_items': 1682, 'num_ratings': 840}
  assert sdcf_plan.traffic(config(rank=50), **sizes) == size
  other = sdcf_plan.traffic(config(rank=50, sent=42.0), **sizes)
  assert other == size | {'bytes_up': 42 * 204 + 1.0}


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'epsilon_instant': None}, 'pass epsilon'),
    ({'epsilon_instant': -1.0}, 'epsilon_instant=-1.0 must be'),
    ({'epsilon_value': -1.0}, 'epsilon_value=-1.0 must be'),
    ({'online': 0.0}, 'online=0.0 must be'),
    ({'average': 'some'}, "average='some' must be"),
    ({'ridges': 'some'}, "ridges='some' must be"),
    ({'scale': (5.0, 1.0)}, 'lowest < highest'),
    ({'likelihood_scale': 0.0}, 'likelihood_scale=0.0 must be'),
    ({'agreement': 2.0}, 'agreement=2.0 must be'),
    ({'rank': 2.5}, 'rank must be an integer'),
  ],
)
def test_wrong_settings_are_named(fields, message):
  with pytest.raises(ValueError, match=message):
    config(**fields)


@pytest.mark.slow
def test_rmse_on_movielens_100k_is_in_the_papers_order(data_dir):
  from dpmf_jax.ratings import catalog

  ratings = catalog.load('ml-100k', data_dir=data_dir, quiet=True)
  train, test = random_split(ratings, 0.2, seed=0)
  data, rows = training_data(train, mesh=device_mesh(2)), training_data(test)
  found = []
  for value in (4.0, 0.25, 0.0):
    system = sdmf.sdmf(config(rank=50, epsilon_value=value))
    state = fit(system, jax.random.key(0), data)
    model = jax.device_get(system.model(state, data))
    found.append(metrics.rmse(model, rows.by_user, ratings.scale))
  assert found == sorted(found)
  np.testing.assert_allclose(found, [0.956, 0.965, 0.973], atol=0.015)
