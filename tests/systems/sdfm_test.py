"""SD-FM: the model, one client, and rounds; without features it is SDMF."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from clients import memory_of, profile_of

from dpmf_jax import accounting
from dpmf_jax.evaluation import metrics
from dpmf_jax.plans import sdfm as sdfm_plan
from dpmf_jax.plans.sdfm import SDFMConfig
from dpmf_jax.plans.sdmf import SDMFConfig
from dpmf_jax.ratings.attributes import Attributes
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import sdfm, sdmf
from dpmf_jax.systems.sdcf import client_blocks, fm, sgld, types
from dpmf_jax.training import fit
from dpmf_jax.types import Factors

SCALE = (1.0, 5.0)
ITEMS, RANK, F, G = 30, 3, 4, 5


def config(**fields):
  fields = {'epsilon_instant': 4.0, 'scale': SCALE, 'rank': RANK} | fields
  return SDFMConfig(**fields)


def made_up(seed=0):
  """Weights of one user, all items and features; and the features."""
  rng = np.random.default_rng(seed)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  mask = lambda *shape: jnp.asarray(rng.random(shape) < 0.5, jnp.float32)
  shared = fm.Shared(draw(), draw(F, RANK + 1), draw(G, RANK + 1))
  features = Factors(draw(F) * mask(F), draw(ITEMS, G) * mask(ITEMS, G))
  return draw(RANK + 1), draw(ITEMS, RANK + 1), shared, features


def literal(user, item, shared, x, y):
  """The model's definition for a user and an item: a sum over all pairs."""
  table = jnp.concatenate([user[None], item[None], shared.user, shared.item])
  values = jnp.concatenate([jnp.ones(2), x, y])
  pairs = jnp.outer(values, values) * (table[:, :-1] @ table[:, :-1].T)
  return shared.offset + values @ table[:, -1] + jnp.triu(pairs, 1).sum()


def literal_all(user, items, shared, x, y):
  return jax.vmap(literal, (None, 0, None, None, 0))(user, items, shared, x, y)


def test_predictions_are_the_sum_over_all_pairs():
  user, items, shared, (x, y) = made_up()
  wanted = jax.jit(literal_all)(user, items, shared, x, y)

  @jax.jit
  def predictions(user, items, shared, x, y):
    sides = fm.side(user, x, shared.user), fm.side(items, y, shared.item)
    return fm.predictions(*sides, shared.offset)

  found = predictions(user, items, shared, x, y)
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
  # And so is the inner product of what is released.
  released = jax.jit(fm.release)(
    Factors(user[None], items), Factors(x[None], y), shared
  )
  product = released.factors.item @ released.factors.user[0]
  np.testing.assert_allclose(product, wanted, rtol=1e-4, atol=1e-4)
  assert float(released.offset) == 0


def test_gradients_are_the_derivatives_of_the_sum_over_all_pairs():
  user, items, shared, (x, y) = made_up()
  rng = np.random.default_rng(1)
  used = rng.random(ITEMS) < 0.6
  error = jnp.float32(np.where(used, rng.normal(size=ITEMS), 0.0))
  count = used.sum().astype(np.float32)
  wanted = jax.jit(
    jax.grad(
      lambda *weights: error @ literal_all(*weights, x, y), argnums=(0, 1, 2)
    )
  )(user, items, shared)

  @jax.jit
  def gradients(user, items, shared):
    one = fm.side(user, x, shared.user)
    items_side = fm.side(items, y, shared.item)
    pulled = error[:, None] * fm.error_vector(one)[None, :]
    of_items = fm.item_feature_gradients(
      pulled, used.astype(np.float32), items_side, y, shared.item
    )
    of_user = fm.user_feature_gradients(
      error, count, items_side, one, x, shared.user
    )
    found = (
      fm.own_gradient(error, items_side, one),
      fm.item_gradients(pulled, items_side),
      fm.Shared(pulled[:, -1].sum(), of_user.gradient, of_items.gradient),
    )
    return found, of_user, of_items

  found, of_user, of_items = gradients(user, items, shared)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
    found,
    wanted,
  )
  np.testing.assert_array_equal(of_user.received, count * (np.asarray(x) != 0))
  np.testing.assert_array_equal(
    of_items.received, (np.asarray(y)[used] != 0).sum(axis=0)
  )


def attributes_of(ratings, seed=0):
  rng = np.random.default_rng(seed)
  table = lambda rows, width: (rng.random((rows, width)) < 0.4) * 0.6
  return Attributes(
    user=table(ratings.num_users, F),
    item=table(ratings.num_items, G),
    user_names=tuple('abcd'),
    item_names=tuple('abcde'),
  )


@functools.cache
def jitted(step):
  return jax.jit(step)


@pytest.mark.slow
def test_without_features_it_is_sdmf_draw_for_draw(small_ratings):
  data = training_data(small_ratings)
  plain = sdmf.sdmf(
    SDMFConfig(scale=SCALE, epsilon_instant=4.0, rank=RANK, steps=3)
  )
  machine = sdfm.sdfm(config(side_step=0.0, steps=3))
  states = [s.init(jax.random.key(0), data) for s in (plain, machine)]
  for number in range(3):
    states = [
      jitted(system.step)(jax.random.key(number), state, data)
      for system, state in zip((plain, machine), states, strict=True)
    ]
  np.testing.assert_array_equal(states[0].memory.bits, states[1].memory.bits)
  models = [
    system.model(state, data)
    for system, state in zip((plain, machine), states, strict=True)
  ]
  scores = [m.factors.user @ m.factors.item.T for m in models]
  np.testing.assert_allclose(*scores, atol=1e-5)
  for one, other in zip(models[0].factors, models[1].factors, strict=True):
    np.testing.assert_allclose(one, other[:, :RANK], atol=1e-5)


def one_client(seed=0, rated=18):
  user, items, shared, (x, y) = made_up(seed)
  rng = np.random.default_rng(seed)
  own = profile_of(rng, ITEMS, rated)
  memory = memory_of(rng.random(ITEMS) < 0.5)
  public = types.Public(
    item=items,
    step_size=jnp.float32(0.01),
    langevin=sgld.Langevin(
      *map(jnp.float32, (0.01, 0.6, 30.0)),
      jnp.full(RANK + 1, 0.3),
      jnp.full(RANK + 1, 0.2),
    ),
    epsilon_value=jnp.float32(1.0),
    tolerance=jnp.float32(0.0),
    side=jnp.float32(0.25),
    shared=shared,
    features=y,
  )
  return types.Client(user, memory, x), own, public


@functools.cache
def reporting():
  report = functools.partial(sdfm.client_report, capacity=ITEMS)
  return jax.jit(jax.vmap(report, (0, None, None, None)))


def reports(client, own, public, count=1, **langevin):
  public = public._replace(langevin=public.langevin._replace(**langevin))
  keys = jax.random.split(jax.random.key(0), count)
  return reporting()(keys, client, own, public)


@pytest.mark.slow
def test_what_is_shared_is_the_sum_over_what_is_sent():
  client, own, public = one_client()
  (_, some), (_, none) = (
    reports(client, own, public, likelihood=jnp.float32(s)) for s in (30, 0)
  )
  used = np.asarray(some.item[0]) < ITEMS
  # The derivative by a linear weight is 1: it shows the error itself.
  shift = np.float64(some.gradient - none.gradient)[0][used]
  e = shift[:, -1] / (0.01 * 0.25 * 30)
  shared = jax.tree.map(
    lambda a, b: np.float64(a - b)[0] / (0.01 * 0.25 * 30),
    some.shared.gradient,
    none.shared.gradient,
  )
  assert shared.offset == pytest.approx(e.sum(), abs=1e-3)
  features = np.asarray(public.features)[np.asarray(some.item[0])[used]]
  np.testing.assert_allclose(shared.item[:, -1], e @ features, atol=1e-3)
  np.testing.assert_allclose(
    shared.user[:, -1], e.sum() * np.asarray(client.features), atol=1e-3
  )


@pytest.mark.slow
def test_every_gradient_has_its_noise():
  client, own, public = one_client()
  none = jnp.zeros(RANK + 1)
  moved, sent = reports(
    client,
    own,
    public,
    400,
    likelihood=jnp.float32(0),
    user_ridge=none,
    item_ridge=none,
  )
  used = np.asarray(sent.item) < ITEMS
  gradient = np.asarray(sent.gradient)[used]
  move = np.asarray(moved.factors - client.factors[None])
  count = np.asarray(sent.shared.received.item)
  shared = np.asarray(sent.shared.gradient.item)[count > 0]
  shared /= np.sqrt(count[count > 0])[:, None]
  found = (
    (gradient[:, :-1], 0.1),
    (gradient[:, -1], 0.05),
    (move[:, :-1], 0.1 / 18**0.5),
    (move[:, -1], 0.05 / 18**0.5),
    (shared, 0.05),
  )
  for values, std in found:
    for factor in (2 / 3, 1.0, 3 / 2):
      law = scipy.stats.norm(scale=std * factor)
      # A false alarm has chance 1e-4, for each.
      pvalue = scipy.stats.kstest(values.ravel(), law.cdf).pvalue
      assert (pvalue > 1e-4) == (factor == 1.0)


@pytest.mark.slow
def test_a_report_holds_no_personal_weights():
  client, own, public = one_client()
  first = reports(client, own, public)[1]
  other = client_blocks.Profile(own.value * 0 + 1, ~own.rated)
  second = reports(client._replace(factors=-client.factors), other, public)[1]
  # Items chosen say no more than the permanent bits do.
  np.testing.assert_array_equal(first.item, second.item)
  jax.tree.map(
    np.testing.assert_array_equal, first.shared.received, second.shared.received
  )


@pytest.mark.slow
def test_an_open_step_is_the_mean_of_all_gradients(small_ratings):
  data, known = training_data(small_ratings), attributes_of(small_ratings)
  system = sdfm.sdfm(
    config(variant='none', attributes=known, likelihood_scale=1.0, ridge=0.0)
  )
  state = system.init(jax.random.key(0), data)
  rng = np.random.default_rng(0)
  draw = lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32)
  state = state._replace(
    factors=jax.tree.map(draw, state.factors),
    shared=jax.tree.map(draw, state.shared),
  )
  step = jitted(system.step)
  langevin = state.hyper.langevin._replace(likelihood=jnp.float32(0))
  quiet = state._replace(hyper=state.hyper._replace(langevin=langevin))
  # The same noise in both.
  one, two = (step(jax.random.key(1), s, data) for s in (state, quiet))

  def squares(factors, shared):
    scores = jax.vmap(literal, (0, 0, None, 0, 0))(
      factors.user[small_ratings.user],
      factors.item[small_ratings.item],
      shared,
      jnp.asarray(known.user)[small_ratings.user],
      jnp.asarray(known.item)[small_ratings.item],
    )
    return ((scores - jnp.asarray(small_ratings.value)) ** 2).sum() / 2

  of_factors, of_shared = jax.device_get(
    jax.jit(jax.grad(squares, (0, 1)))(state.factors, state.shared)
  )
  eta = 0.4 * np.r_[np.ones(RANK), 0.1]
  counts = lambda index, size: np.bincount(index, minlength=size)[:, None]
  wanted = (
    -eta * of_factors.user / counts(small_ratings.user, 60),
    -eta * of_factors.item / np.maximum(counts(small_ratings.item, 40), 1),
    -0.04
    * of_shared.item
    / (known.item[small_ratings.item] > 0).sum(axis=0)[:, None],
    -0.04
    * of_shared.user
    / (known.user[small_ratings.user] > 0).sum(axis=0)[:, None],
    -0.04 * of_shared.offset / 700,
  )
  of = lambda s: (*s.factors, s.shared.item, s.shared.user, s.shared.offset)
  for a, b, c in zip(of(one), of(two), wanted, strict=True):
    np.testing.assert_allclose(a - b, c, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('variant', ['paper', 'none'])
def test_it_learns_from_features_on_one_device_and_two(small_ratings, variant):
  known = attributes_of(small_ratings)
  states = []
  for mesh in (None, device_mesh(2)):
    data = training_data(small_ratings, mesh=mesh)
    system = sdfm.sdfm(config(variant=variant, attributes=known, steps=40))
    states.append(fit(system, jax.random.key(1), data))
  one, two = (jax.device_get((s.factors, s.shared)) for s in states)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, atol=2e-3), one, two
  )
  assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(one[1]))
  data = training_data(small_ratings)
  start = system.init(jax.random.key(0), data)
  errors = [
    metrics.rmse(system.model(s, data), data.by_user, SCALE)
    for s in (start, states[0])
  ]
  assert errors[1] < 0.6 * errors[0]


def test_claims_and_wrong_settings(small_ratings):
  guarantee = sdfm.sdfm(config(epsilon_instant=1.0)).guarantee
  assert guarantee.status == 'claimed'
  assert accounting.epsilon(guarantee, 1e-6) == 2.0
  assert any('Features of users' in each for each in guarantee.assumptions)
  assert sdfm.sdfm(config(variant='none')).guarantee.status == 'none'
  for fields, message in (
    ({'side_step': 2.0}, r'side_step=2.0 must be in \[0, 1\]'),
    ({'attributes': np.zeros(3)}, 'attributes='),
    ({'epsilon_value': -1.0}, 'epsilon_value=-1.0 must be'),
  ):
    with pytest.raises(ValueError, match=message):
      config(**fields)
  few = Attributes(
    user=np.zeros((2, 0)), item=np.zeros((3, 0)), user_names=(), item_names=()
  )
  with pytest.raises(ValueError, match='2 users and 3 items do not fit'):
    sdfm.sdfm(config(attributes=few)).init(
      jax.random.key(0), training_data(small_ratings)
    )


def test_bytes_of_a_round(small_ratings):
  sizes = {'num_users': 60, 'num_items': 40, 'num_ratings': 600}
  width, features = RANK + 1, F + G
  known = attributes_of(small_ratings)
  assert sdfm_plan.traffic(config(attributes=known), **sizes) == {
    'bytes_down': 4.0 * (40 * width + features * width + 1),
    'bytes_up': 10 * 4.0 * (width + 1) + 4.0 * (features * width + 1) + 1,
  }
  assert sdfm_plan.traffic(config(variant='none'), **sizes) is None
