"""Tables of users that are spread over devices, each where its ratings are."""

import re

import jax
import numpy as np
import pytest

from dpmf_jax import homes, training
from dpmf_jax.homes import data_at_home, padded, spread_items, whole_items
from dpmf_jax.mechanisms import noise
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.runs import choosing
from dpmf_jax.types import Kinds

_USERS = 803  # which four devices have 201, 201, 201 and 200 of
_SYSTEMS = {
  'gaussian_mf': {'rank': 4, 'steps': 3},
  'dpals': {'rank': 2, 'steps': 3},
  'ranking_mf': {'rank': 2},
  'moments': {},
  'power_mf': {'rank': 2},
}


def one_fast(names):
  """The others have more to compile, and are tested in the same way."""
  slow = lambda name: () if name == 'gaussian_mf' else pytest.mark.slow
  return [pytest.param(name, marks=slow(name)) for name in names]


_COLLECTIVE = re.compile(
  r'= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|'
  r'reduce-scatter|collective-broadcast)(-start)?\('
)


@pytest.fixture(scope='module')
def ratings():
  return synthetic(num_users=_USERS, num_items=15, num_ratings=4000, seed=2)


@pytest.fixture(scope='module')
def at_home(ratings):
  return data_at_home(ratings, device_mesh(4))


def system_of(name, ratings, **more):
  given = {'epsilon': 4.0, 'unit': None, **_SYSTEMS[name], **more}
  return choosing.chosen(
    name, given, ratings, task=None, variant=None, delta=None, threshold=None,
    asked=None, features=None, items_known=False, in_ledger=False,
  ).system  # fmt: skip


def compiled(system, data):
  """The programs of steps, as `fit` runs them."""
  key = jax.random.key(1)
  data = training.data_for(system, data)
  state, step = training._put(system.init(key, data), data), system.step
  with training.in_float32():
    if isinstance(step, Kinds):
      lowered = [
        training._next.lower(step.which, key, state, data, 0),
        *(training._one.lower(each, key, state, data) for each in step.each),
      ]
    else:
      lowered = [training._block.lower(step, key, state, data, 0, 2)]
  return [each.compile() for each in lowered]


def sent(programs):
  """How many numbers each collective operation of programs has."""
  found = []
  text = '\n'.join(program.as_text() for program in programs)
  for shapes, *_ in _COLLECTIVE.findall(text):
    sizes = [
      np.prod([int(size) for size in each.split(',') if size], dtype=int)
      for each in re.findall(r'\w+\[([\d,]*)\]', shapes)
    ]
    found.append(int(sum(sizes)))
  return found


@pytest.fixture
def few_tell(monkeypatch):
  """Sums over users are of every ninth, as if there were millions."""
  jax.clear_caches()
  monkeypatch.setattr(homes, '_TELLING', 90)
  yield
  jax.clear_caches()


@pytest.mark.parametrize('name', one_fast(_SYSTEMS))
def test_homes_change_no_bit(ratings, at_home, name):
  check_homes(system_of(name, ratings), ratings, at_home)


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings',
  [
    {'caution': 0.0},
    {'rank': 0, 'level_share': 0.1},
    {'number_share': 0.01, 'level_share': 0.1},
  ],
  ids=['factors', 'means', 'means by the number'],
)
def test_homes_change_no_bit_of_power_mf(ratings, at_home, settings):
  system = system_of('power_mf', ratings, **settings)
  check_homes(system, ratings, at_home)


@pytest.mark.slow
@pytest.mark.usefixtures('few_tell')
def test_homes_change_no_bit_where_some_users_tell_of_all(ratings, at_home):
  system = system_of('power_mf', ratings, caution=0.0)
  check_homes(system, ratings, at_home)


def check_homes(system, ratings, at_home):
  data = training_data(ratings, mesh=device_mesh(4))
  state, spread = (
    training.fit(system, jax.random.key(1), each) for each in (data, at_home)
  )
  for leaf, other in zip(*map(jax.tree.leaves, (state, spread)), strict=True):
    other = other[: len(leaf)] if leaf.ndim else other
    np.testing.assert_array_equal(leaf, other)
  model, other = system.model(state, data), system.model(spread, at_home)
  np.testing.assert_array_equal(model.factors.item, other.factors.item)
  user = np.asarray(other.factors.user)
  np.testing.assert_array_equal(model.factors.user, user[:_USERS])
  assert len(user) == 804
  assert not user[_USERS:].any()


@pytest.mark.parametrize('name', one_fast(_SYSTEMS))
@pytest.mark.parametrize(
  ('devices', 'homes'), [(1, False), (2, False), (4, False), (4, True)]
)
def test_items_that_are_spread_change_no_bit(ratings, name, devices, homes):
  system, mesh = system_of(name, ratings), device_mesh(devices)
  data = (data_at_home if homes else training_data)(ratings, mesh=mesh)
  both = data, spread_items(data)
  state, spread = (
    training.fit(system, jax.random.key(1), each) for each in both
  )
  found = whole_items(spread, both[1])
  jax.tree.map(np.testing.assert_array_equal, state, found)
  models = system.model(state, data), system.model(found, both[1])
  jax.tree.map(np.testing.assert_array_equal, *models)
  for shard in spread.factors.item.addressable_shards:
    assert len(shard.data) == -(-15 // devices)


def test_rows_of_items_are_updated_where_they_are(ratings, at_home):
  system = system_of('gaussian_mf', ratings)
  # Sums of 15 items, and two numbers for each that noise is made of.
  assert sorted(sent(compiled(system, at_home))) == [60, 60, 60]
  # The same sums; factors of 15 items and one more, and their lengths.
  found = sorted(sent(compiled(system, spread_items(at_home))))
  assert found == [16, 60, 64]


@pytest.mark.parametrize('name', one_fast(_SYSTEMS))
@pytest.mark.usefixtures('few_tell')
def test_nothing_as_long_as_the_users_crosses_the_network(
  ratings, at_home, name
):
  system = system_of(name, ratings)
  found = sent(compiled(system, at_home))
  assert found
  assert max(found) < _USERS
  everywhere = training_data(ratings, mesh=device_mesh(4))
  assert max(sent(compiled(system, everywhere))) >= _USERS


@pytest.mark.parametrize('name', one_fast(_SYSTEMS))
def test_a_device_has_the_rows_of_its_own_users(ratings, at_home, name):
  state = training.fit(system_of(name, ratings), jax.random.key(1), at_home)
  for shard in state.factors.user.addressable_shards:
    assert len(shard.data) == 201
  for shard in state.factors.item.addressable_shards:
    assert len(shard.data) == 15


def test_a_run_goes_on_from_a_state_at_home(ratings, at_home):
  system, reports = system_of('gaussian_mf', ratings), []
  whole = training.fit(
    system,
    jax.random.key(1),
    at_home,
    report_every=1,
    callbacks=[reports.append],
  )
  # As it is, and as a checkpoint has it.
  one = reports[1].state
  saved = jax.tree.map(np.asarray, one)
  user = saved.factors.user[:_USERS]
  saved = saved._replace(factors=saved.factors._replace(user=user))
  for start in (one, saved):
    key = jax.random.key(1)
    again = training.fit(system, key, at_home, start=(1, start))
    jax.tree.map(np.testing.assert_array_equal, whole, again)


@pytest.mark.parametrize(
  'shapes', [[(803, 7), (15, 7)], [(33, 2), (5, 2)], [(4001, 20)]]
)
def test_draws_of_users_at_home_are_those_of_all(shapes):
  mesh = device_mesh(4)
  assert mesh is not None
  own = [True] + [False] * (len(shapes) - 1)

  @jax.jit
  def spread(key):
    user, *others = noise.draws(key, shapes, mesh, spread=own)
    return [padded(user, shapes[0][0], mesh), *others]

  plain = jax.jit(lambda key: noise.draws(key, shapes))
  both = spread(jax.random.key(5)), plain(jax.random.key(5))
  for drawn, all_draws in zip(*both, strict=True):
    for own, other in zip(drawn, all_draws, strict=True):
      np.testing.assert_array_equal(own[: len(other)], other)
