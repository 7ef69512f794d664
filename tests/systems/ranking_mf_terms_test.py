"""Ranking MF: the integers that each user adds, at extremes of everything.

Sums are over users. Here every pair of a user and an item is an item of its
own, so that the same kernels give each user's own terms, of many users at once.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax.kernels import profiles
from dpmf_jax.mechanisms.clipping import slack
from dpmf_jax.plans.ranking_mf import ALONG, RankingMFConfig, plan, resolved
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, device_mesh, put_rows, rows, training_data
from dpmf_jax.systems import ranking_mf
from dpmf_jax.training import fit

FINE = 2.0**-28  # a lattice on which little is cut
USERS, ITEMS, RANK = 48, 60, 3


def settings(**more):
  common = {
    'unit': 'user', 'relation': 'add_remove', 'scale': (1.0, 5.0),
    'delta': 1e-5, 'epsilon': 20.0, 'rank': RANK, 'kept_items': ITEMS,
    'popularity_share': 0.1, 'popularity_power': 0.3, 'lattice_bits': 16,
    'least_weight': 1.0,
  }  # fmt: skip
  return RankingMFConfig(**{**common, **more})


def known_items(config, *, scale, direction, vector):
  """What is known of items, whatever it is: nothing here is a release's."""
  nobody = Ratings(
    user=np.zeros(1, int),
    item=np.zeros(1, int),
    value=np.full(1, config.scale[1]),
    user_ids=np.arange(1),
    item_ids=np.arange(len(scale)),
    scale=config.scale,
  )
  system = ranking_mf.ranking_mf(config)
  state = system.init(jax.random.key(0), training_data(nobody))
  p = jnp.asarray(direction, 'float32')
  return state.hyper, state.known._replace(
    scale=jnp.asarray(scale, 'float32'),
    direction=p / jnp.linalg.norm(p) * (1 - slack(len(scale))),
    vector=jnp.asarray(vector, 'float32'),
    strength=jnp.ones(vector.shape[1]),
  )


@jax.jit
def _own(sent, scale, counted, by_pair):
  return profiles.item_sums(by_pair, scale, sent, counted, FINE)


def own_terms(interactions, values, hyper, known, by_user):
  """Terms [U, I, D] of users, over FINE, and those of popularity, [U, I]."""
  users, items = interactions.shape
  user, item = np.nonzero(interactions)
  value = values[user, item]
  # One shape whatever users do: little is compiled.
  laid = rows(
    user, item, value, users, items, side='user',
    least_chunks=users * (items // 32 + 1) // 64 + 2,
  )  # fmt: skip
  pairs = rows(
    user * items + item, user, value, users * items, users, side='item',
    least_chunks=users * items // 64 + 2,
  )  # fmt: skip
  laid, pairs = put_rows(laid), put_rows(pairs)
  sent = jax.jit(ranking_mf.sent_by_users, static_argnums=3)(
    known, hyper, Data(laid, laid), by_user
  )
  tiled = jnp.tile(known.scale, users)
  terms = _own(sent, tiled, hyper.counted, pairs)
  ones = jnp.ones(items)
  own = profiles.profiles(laid, ones, ones[:, None][:, :0], hyper.counted)
  counted = _own(
    ranking_mf._inverse(own.square)[:, None],
    jnp.ones_like(tiled),
    hyper.counted,
    pairs,
  )
  shaped = lambda x: np.asarray(x, float).reshape(users, items, -1)
  return shaped(terms), shaped(counted)[..., 0]


def lengths(terms, direction):
  """Of users' terms [U, I, D], in the metric of the noise."""
  p = np.asarray(direction, float)
  along = np.einsum('i,uid->ud', p, terms)
  share = ALONG / (1 + ALONG * (p @ p))
  return np.sqrt((terms**2).sum((1, 2)) - share * (along**2).sum(1))


def extremes(rng, number):
  """Scales, a direction and factors that no noise would give."""
  unit = 2.0**-24  # of squares, for so many items
  scale = [
    np.ones(ITEMS),
    np.full(ITEMS, (1.9 * unit) ** 0.5),  # nearly half is rounded up
    np.maximum(rng.uniform(size=ITEMS) ** 8, 1e-6),
  ][number % 3]
  direction = rng.exponential(size=ITEMS) ** [0, 1, 20][number // 3 % 3]
  vector = rng.normal(size=(ITEMS, RANK)) * [1e-30, 1.0, 1e15][number % 3]
  if number % 2:  # rows that are all alike
    vector = vector[:1] + 1e-3 * vector
  return {'scale': scale, 'direction': direction, 'vector': vector}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('scale', 'least_weight', 'liked_from'),
  [((1.0, 5.0), 1.0, 0.75), ((-64.0, -63.0), 0.01, 1e-3)],
)
def test_no_user_adds_more_than_one(scale, least_weight, liked_from):
  """Not by any of what is paid for rounding."""
  config = settings(
    scale=scale, least_weight=least_weight, liked_from=liked_from
  )
  rng, most = np.random.default_rng(0), []
  low, high = scale
  for number in range(9):
    hyper, known = known_items(config, **extremes(rng, number))
    part = rng.uniform(size=(USERS, ITEMS)) * liked_from * rng.choice([0, 1, 2])
    values = low + (high - low) * np.minimum(part, 1)
    did = rng.uniform(size=(USERS, ITEMS)) < rng.uniform(size=(USERS, 1))
    did[0] = True
    # Some like what everybody does, which they may add twice as much of.
    popular = np.argsort(-np.asarray(known.direction))
    for user in range(1, 9):
      did[user] = np.isin(np.arange(ITEMS), popular[: user**2])
    terms, counted = own_terms(did, values, hyper, known, True)
    moved = lengths(terms, known.direction) * FINE
    assert np.abs(terms).max() * FINE <= 2
    most.append(moved.max())
    assert np.linalg.norm(counted, axis=1).max() * FINE <= 1
  assert 0.9999 < max(most) <= 1


@pytest.mark.slow
@pytest.mark.parametrize('root', [3, 9])
def test_the_worst_interaction_of_the_proof_moves_as_much(root):
  """Projections of norm 1 and a row across them, where profiles get full."""
  others, items = root**2, root**2 + 1
  config = settings(
    unit='rating',
    full_profile=float(items),
    kept_items=items,
    rank=2,
    lattice_bits=20,
  )
  # As many more of one sign that what is projected is as long as the profile.
  vector = np.zeros((items, 2))
  vector[1:, 0] = np.where(np.arange(others) < (others + root) // 2, 1, -1)
  vector[0, 1] = 1
  ones = np.ones(items)
  hyper, known = known_items(config, scale=ones, direction=ones, vector=vector)
  did = np.ones((2, items), bool)
  did[1, 0] = False
  terms, _ = own_terms(did, np.full((2, items), 5.0), hyper, known, False)
  moved = np.linalg.norm(terms[0] - terms[1]) * FINE
  c = root / items**0.5
  exact = ((1 - c) * (1 + c + 2 * c**2)) ** 0.5
  assert moved == pytest.approx(exact, rel=5e-5)
  assert moved <= exact
  assert exact <= (2 / items) ** 0.5 <= plan(config).sensitivity['factors']


@pytest.mark.slow
@pytest.mark.parametrize('unit', ['user', 'rating'])
def test_a_release_is_the_same_bits_in_all_programs(unit):
  """How much there is to add up decides on the program, and must not show."""
  rng = np.random.default_rng(0)
  user, item = np.nonzero(rng.uniform(size=(USERS + 1, ITEMS)) < 0.1)
  ratings = Ratings(
    user=user,
    item=item,
    value=rng.integers(1, 6, len(user)).astype(float),
    user_ids=np.arange(USERS + 1),
    item_ids=np.arange(ITEMS),
    scale=(1.0, 5.0),
  )
  system = ranking_mf.ranking_mf(settings(unit=unit, rounds=2, epsilon=8.0))

  def found(data):
    state = fit(system, jax.random.key(1), data)
    return jax.device_get((state.known, system.model(state, data)))

  expected = found(training_data(ratings))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected))
  for data in (
    training_data(ratings, least_chunks=5),
    training_data(ratings, mesh=device_mesh(4)),
  ):
    jax.tree.map(np.testing.assert_array_equal, found(data), expected)


@pytest.mark.parametrize(('users', 'items'), [(0, 3), (3, 0)])
def test_nobody_or_nothing_is_refused(users, items):
  names = ('rank', 'kept_items', 'popularity_share', 'popularity_power')
  config = settings(**dict.fromkeys(names), lattice_bits=None)
  with pytest.raises(ValueError, match=r'num_(users|items)=0 must be at least'):
    resolved(config, users, items)
