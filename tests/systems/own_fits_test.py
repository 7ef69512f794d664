"""What a user is shown has no bit of other users' ratings but the release.

Certificates say so ("a user who also sees their own predictions is covered for
the ratings of all others"), and it is deterministic: one bit is one too many.
"""

import jax
import numpy as np
import pytest

from dpmf_jax.plans import SPECS
from dpmf_jax.ratings.catalog import load
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.serving import folding, models, recommendations
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import Fit, Sum

# Systems that release items and leave users' sides to the users.
CASES = {
  'power_mf': ('power_mf', {'rank': 3, 'rounds': 2}),
  'power_mf, means': ('power_mf', {'rank': 0}),
  'dpals': ('dpals', {'rank': 2, 'steps': 2}),
  'moments': ('moments', {'rank': 3}),
  'moments, rating': (
    'moments',
    {'rank': 3, 'unit': 'rating', 'pairs_from': 0.0},
  ),
  # All items, of which there are so many.
  'ranking_mf': ('ranking_mf', {'rank': 2, 'rounds': 1, 'kept_items': 140}),
  'ranking_mf, rating': (
    'ranking_mf',
    {'rank': 2, 'rounds': 1, 'unit': 'rating'},
  ),
  'objective_pmf': ('objective_pmf', {}),
  'objective_pmf, huber': ('objective_pmf', {'loss': 'huber'}),
  'objective_pmf, features': (
    'objective_pmf',
    {'feature_share': 0.4, 'rank': 3, 'feature_steps': 2},
  ),
  'personalized_pmf': ('personalized_pmf', {}),
  'local_mf': ('local_mf', {}),
  'local_mf, user': ('local_mf', {'unit': 'user'}),
  'local_ranking': ('local_ranking', {'rank': 2}),
  'untrusted_pmf': ('untrusted_pmf', {}),
}
DEVICES = (1, 2, 4)
# One rating less, and the slices of all users after them move up.
ODD = (20, 80, 141)


@pytest.fixture(scope='module')
def ratings():
  """Slices of 32 over all of four devices; ODD users have 33 ratings."""
  drawn = synthetic(
    num_users=170, num_items=140, num_ratings=9000, rank=3, seed=3
  )
  place = np.arange(len(drawn)) - np.searchsorted(drawn.user, drawn.user)
  assert (np.diff(drawn.user) >= 0).all()
  drawn = drawn.take(~np.isin(drawn.user, ODD) | (place < 33))
  assert (np.bincount(drawn.user)[list(ODD)] == 33).all()
  return with_epsilon(drawn, 3.0)


# All users' sides are one regression, of which one case is quick to try.
QUICK = ('local_mf, user',)


@pytest.fixture(
  scope='module',
  params=[
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in CASES
  ],
)
def run(request, ratings):
  """A system, and its state after a run on all of the ratings."""
  name, settings = CASES[request.param]
  entry = SPECS[name]
  common = {'scale': (1.0, 5.0), 'delta': 1e-5, 'epsilon': 5.0}
  common = {k: v for k, v in common.items() if k in fields(entry.config)}
  config = entry.config(**{**entry.variants['sound'], **common, **settings})
  system = build(name, config)
  return system, fit(system, jax.random.key(0), training_data(ratings))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['power_mf', 'dpals'])
def test_nobody_elses_real_ratings_are_in_a_users_vector(name, data_dir):
  ratings = load('ml-100k', data_dir=data_dir, quiet=True)
  settings = {'rank': 2} | ({'rounds': 1} if name == 'power_mf' else {})
  config = SPECS[name].config(
    relation='add_remove', scale=(1, 5), epsilon=5, delta=1e-5, **settings
  )
  system = build(name, config)
  state = fit(system, jax.random.key(0), training_data(ratings))
  first = next(iter(on_devices(system, state, ratings)))
  odd = np.flatnonzero(np.bincount(ratings.user) % 32 == 1)[:2]
  for user in odd.tolist():
    one = np.flatnonzero(ratings.user == user)[0]
    for keep in (np.arange(len(ratings)) != one, ratings.user != user):
      for found in on_devices(system, state, ratings.take(keep)):
        same = (found.factors.user == first.factors.user).all(axis=1)
        same[user] = True
        assert same.all(), np.flatnonzero(~same)


def fields(config):
  return config.__dataclass_fields__


def without(ratings):
  """Neighbours: (who was changed, the ratings after that)."""
  for user in (0, *ODD):
    first = int(np.flatnonzero(ratings.user == user)[0])
    yield user, ratings.take(np.arange(len(ratings)) != first)
  for user in (0, 1, ratings.num_users // 2):
    yield user, ratings.take(ratings.user != user)


def on_devices(system, state, ratings):
  """The model of everybody on 1, 2 and 4 devices."""
  for devices in DEVICES:
    data = training_data(ratings, mesh=device_mesh(devices))
    yield jax.device_get(jax.jit(system.model)(state, data))


def test_nobody_elses_ratings_are_in_a_users_vector(run, ratings):
  system, state = run
  first, *others = on_devices(system, state, ratings)
  for other in others:
    jax.tree.map(np.testing.assert_array_equal, first, other)
  for user, changed in without(ratings):
    for found in on_devices(system, state, changed):
      np.testing.assert_array_equal(found.factors.item, first.factors.item)
      same = (found.factors.user == first.factors.user).all(axis=1)
      assert not same[user] or not (ratings.user == user).any()
      same[user] = True
      assert same.all(), np.flatnonzero(~same)


def test_nobody_elses_ratings_are_in_a_users_list(run, ratings):
  """Served alone, beside all others, or when somebody has left."""
  system, state = run
  release = next(iter(on_devices(system, state, ratings)))
  model = models.model_from_release(release, ratings)
  everybody = np.arange(ratings.num_users)
  items, scores = recommendations.top_items(model, everybody, ratings.num_items)
  for some in ([5], [5, 9, 11], everybody[1:], everybody[::2], everybody[:64]):
    some = np.asarray(some)
    found = recommendations.top_items(model, some, ratings.num_items)
    np.testing.assert_array_equal(found[0], items[some])
    np.testing.assert_array_equal(found[1], scores[some])


@pytest.mark.slow
def test_nobody_elses_ratings_are_in_a_new_users_vector(run, ratings):
  system, state = run
  release = system.release(state, training_data(ratings))
  width = release.factors.item.shape[1]
  chosen = release.fit
  if not isinstance(chosen, Sum):
    chosen = Fit(np.linspace(0, 1, width), np.linspace(1, 5, width))
  model = models.model_from_release(release, ratings, fit=chosen)
  everybody = folding.fold_in(model, ratings).user_factors
  for user, changed in without(ratings):
    found = folding.fold_in(model, changed).user_factors
    same = (found == everybody).all(axis=1)
    same[user] = True
    assert same.all(), np.flatnonzero(~same)
  for some in ([3], [3, 7], range(1, ratings.num_users), range(40, 90)):
    few = ratings.take(np.isin(ratings.user, list(some)))
    found = folding.fold_in(model, few).user_factors
    np.testing.assert_array_equal(found[list(some)], everybody[list(some)])
