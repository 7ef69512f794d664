"""SD-BPRMF: pairs, signs, what is sent, and the AUC it is measured by."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clients import memory_of

from dpmf_jax import accounting
from dpmf_jax.evaluation import ranking
from dpmf_jax.plans.sdbpr import SDBPRConfig
from dpmf_jax.ratings.splits import hold_out_per_user
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems import sdbpr
from dpmf_jax.systems.sdcf import sgld, types
from dpmf_jax.systems.sdcf.client_blocks import Profile
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Release

SCALE = (1.0, 5.0)
ITEMS, RANK = 40, 3


def one_client(seed=0):
  rng = np.random.default_rng(seed)
  rated, bits = rng.random((2, ITEMS)) < 0.4
  client = types.Client(
    jnp.asarray(rng.normal(size=RANK), jnp.float32), memory_of(bits)
  )
  public = types.Public(
    item=jnp.asarray(rng.normal(size=(ITEMS, RANK)), jnp.float32),
    step_size=jnp.float32(0.01),
    langevin=sgld.Langevin(
      *map(jnp.float32, (0.01, 0.6, 50.0)), jnp.zeros(RANK), jnp.zeros(RANK)
    ),
    epsilon_value=jnp.float32(0),
    tolerance=jnp.float32(0),
  )
  own = Profile(jnp.where(jnp.asarray(rated), 4.0, 0.0), jnp.asarray(rated))
  return client, own, public, bits, rated


@functools.cache
def reporting(sign):
  return jax.jit(
    functools.partial(sdbpr.client_report, capacity=ITEMS, sign=sign)
  )


def sent_part(sign, client, own, public, seed=0):
  """(items, residuals that were sent): the noise is the same and drops out."""
  found = []
  for scale in (50.0, 0.0):
    langevin = public.langevin._replace(likelihood=jnp.float32(scale))
    _, report = reporting(sign)(
      jax.random.key(seed), client, own, public._replace(langevin=langevin)
    )
    found.append(np.float64(report.gradient))
  item = np.asarray(report.item)
  p = np.float64(client.factors)
  e = (found[0] - found[1]) @ p / (p @ p) / (0.01 * 50)
  return item[item < ITEMS], e[item < ITEMS]


@pytest.mark.parametrize(
  'sign', ['true', pytest.param('perturbed', marks=pytest.mark.slow)]
)
def test_the_sign_is_that_of_the_bits_it_is_said_to_come_from(sign):
  client, own, public, bits, rated = one_client()
  item, e = sent_part(sign, client, own, public)
  truth = rated if sign == 'true' else bits
  np.testing.assert_array_equal(e < 0, truth[item])
  scores = np.asarray(public.item) @ np.asarray(client.factors)
  for place, size in zip(item, np.abs(e), strict=True):
    # The size is that of a pair with some item of the other kind.
    others = scores[truth != truth[place]]
    x = (scores[place] - others) * (1 if truth[place] else -1)
    assert np.abs(1 / (1 + np.exp(x)) - size).min() < 1e-4


def test_perturbed_signs_say_nothing_beyond_the_permanent_bits():
  client, own, public, _, _ = one_client()
  other = Profile(own.value * 0, ~own.rated)
  for sign, same in (('perturbed', True), ('true', False)):
    key = jax.random.key(1)
    first, second = (
      reporting(sign)(jax.random.clone(key), client, each, public)
      for each in (own, other)
    )
    equal = [
      np.array_equal(a, b)
      for a, b in zip(
        jax.tree.leaves(first), jax.tree.leaves(second), strict=True
      )
    ]
    assert all(equal) == same


def test_own_pairs_are_a_rated_and_an_unrated_item():
  _, _, _, _, rated = one_client()
  scores = np.linspace(-1, 1, ITEMS).astype(np.float32)
  keys = jax.random.split(jax.random.key(0), 500)
  pull, pairs = jax.vmap(sdbpr.own_gradient, (0, None, None))(
    keys, jnp.asarray(scores), jnp.asarray(rated)
  )
  pull, pairs = np.asarray(pull), np.asarray(pairs)
  assert (pull[:, rated] <= 0).all()
  assert (pull[:, ~rated] >= 0).all()
  np.testing.assert_allclose(pull.sum(axis=1), 0, atol=1e-4)
  np.testing.assert_array_equal(
    pairs[:, rated].sum(axis=1), pairs[:, ~rated].sum(axis=1)
  )
  # Unrated items are drawn evenly: each is 1/I of the rated ones' partners.
  mean = pairs[:, ~rated].mean(axis=0)
  wanted = rated.sum() / ITEMS
  # Five standard errors.
  assert np.abs(mean - wanted).max() < 5 * (wanted / 500) ** 0.5


def test_some_of_draws_evenly_where_it_may():
  mask = jnp.arange(20) % 3 == 0
  drawn = np.asarray(sdbpr.some_of(jax.random.key(0), mask, 14_000))
  counts = np.bincount(drawn, minlength=20)
  assert (counts[~np.asarray(mask)] == 0).all()
  # Seven places, 2000 each, five standard errors.
  assert np.abs(counts[np.asarray(mask)] - 2000).max() < 5 * 2000**0.5
  none = sdbpr.some_of(jax.random.key(1), jnp.zeros(20, bool), 3)
  assert ((np.asarray(none) >= 0) & (np.asarray(none) < 20)).all()


def table(cells, num_users=3, num_items=5):
  user, item = np.array(cells).T
  return Ratings(
    user=user,
    item=item,
    value=np.full(len(user), 4.0),
    user_ids=np.arange(num_users),
    item_ids=np.arange(num_items),
    scale=SCALE,
  )


def auc(train, test, user, item):
  model = Release(Factors(user, item), jnp.float32(0))
  return ranking.ranking_metrics(model, train, test)['auc']


def test_auc_is_the_share_of_unrated_items_below():
  train = table([(0, 0), (1, 1), (1, 2), (2, 0)])
  test = table([(0, 1), (1, 0), (2, 4)])
  rng = np.random.default_rng(0)
  user, item = rng.normal(size=(3, 2)), rng.normal(size=(5, 2))
  item[3] = item[4]  # a tie
  wanted = []
  for u, i in zip(test.user, test.item, strict=True):
    seen = {*train.item[train.user == u], i}
    others = [j for j in range(5) if j not in seen]
    score = item @ user[u]
    below = [
      (score[i] > score[j]) + 0.5 * (score[i] == score[j]) for j in others
    ]
    wanted.append(np.mean(below))
  found = auc(train, test, user, item)
  assert found == pytest.approx(np.mean(wanted))


@pytest.mark.slow
def test_without_privacy_it_ranks_and_with_perturbed_signs_it_does_not():
  rng = np.random.default_rng(0)
  # Two kinds of users who rate two kinds of items.
  cells = [
    (u, i)
    for u in range(60)
    for i in range(40)
    if u % 2 == i % 2 and rng.random() < 0.5
  ]
  ratings = table(cells, 60, 40)
  train, test = hold_out_per_user(ratings, 1, seed=0)
  data = training_data(train)
  found = {}
  for name, fields in {
    'none': {'variant': 'none'},
    'true': {'epsilon_instant': 1.0},
    'perturbed': {'epsilon_instant': 1.0, 'gradient_sign': 'perturbed'},
  }.items():
    # Step sizes are for many more ratings than these.
    config = SDBPRConfig(
      scale=SCALE,
      rank=4,
      steps=150,
      step_size=3.0,
      likelihood_scale=1e5,
      **fields,
    )
    system = sdbpr.sdbpr(config)
    state = fit(system, jax.random.key(1), data)
    user, item = jax.device_get(system.model(state, data).factors)
    found[name] = auc(train, test, user, item)
  assert found['none'] > 0.75
  assert found['true'] > 0.7
  assert 0.3 < found['perturbed'] < 0.65


def test_guarantees_and_settings():
  claimed = sdbpr.sdbpr(SDBPRConfig(scale=SCALE, epsilon_instant=1.0)).guarantee
  assert accounting.epsilon(claimed, 1e-6) == 2.0
  assert 'eps_g' not in claimed.mechanism
  none = sdbpr.sdbpr(SDBPRConfig(scale=SCALE, variant='none')).guarantee
  assert none.status == 'none'
  with pytest.raises(ValueError, match='pass epsilon'):
    SDBPRConfig(scale=SCALE)
  with pytest.raises(ValueError, match="gradient_sign='guess' must be"):
    SDBPRConfig(scale=SCALE, epsilon=1.0, gradient_sign='guess')
