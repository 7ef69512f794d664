"""Every system and variant keeps the contract of `types.System`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from dpmf_jax import accounting, training
from dpmf_jax.data.specification import with_epsilon
from dpmf_jax.sharding import training_data
from dpmf_jax.systems import SYSTEMS
from dpmf_jax.training import fit
from dpmf_jax.types import Guarantee, Release

CASES = [
  (name, variant)
  for name, entry in SYSTEMS.items()
  for variant in entry.variants
]


def build(name, variant, **settings):
  entry = SYSTEMS[name]
  fields = entry.config.__dataclass_fields__
  common = {'scale': (1.0, 5.0), 'delta': 1e-6, 'epsilon': 3.0, 'steps': 4}
  given = {k: v for k, v in common.items() if k in fields}
  return entry.build(
    entry.config(**{**entry.variants[variant], **given, **settings})
  )


@pytest.fixture(params=CASES, ids=lambda case: '-'.join(case))
def case(request):
  return request.param


@pytest.fixture(scope='module')
def data(request):
  ratings = request.getfixturevalue('small_ratings')
  return training_data(with_epsilon(ratings, 3.0))


def test_runs_under_jit_and_scan(case, data):
  system = build(*case)

  @jax.jit
  def run(key, data):
    init_key, steps_key, release_key = jax.random.split(key, 3)
    state = system.init(init_key, data)
    state, info = jax.lax.scan(
      lambda state, key: system.step(key, state, data),
      state,
      jax.random.split(steps_key, system.steps),
    )
    return system.release(release_key, state, data), info

  release, info = run(jax.random.key(0), data)
  assert isinstance(release, Release)
  for leaf in jax.tree.leaves(release):
    assert np.isfinite(leaf).all()
  assert all(len(leaf) == system.steps for leaf in jax.tree.leaves(info))


def test_runs_under_vmap_over_keys(case, data):
  system = build(*case)

  def run(key):
    init_key, step_key, release_key = jax.random.split(key, 3)
    state = system.init(init_key, data)
    state, _ = system.step(step_key, state, data)
    return system.release(release_key, state, data)

  many = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(1), 3))
  for path, leaf in tree.flatten_with_path(many):
    if leaf is None or leaf.ndim == 1:
      continue
    assert len(leaf) == 3
    assert not np.array_equal(leaf[0], leaf[1]), f'{path} ignores the key'


def test_same_key_same_bits(case, data):
  system = build(*case)
  runs = [fit(system, jax.random.key(7), data) for _ in range(2)]
  jax.tree.map(np.testing.assert_array_equal, *runs)


def test_steps_are_those_of_the_guarantee(case):
  system = build(*case)
  assert isinstance(system.guarantee, Guarantee)
  entry = SYSTEMS[case[0]]
  if 'steps' in entry.config.__dataclass_fields__:
    assert system.steps == 4
  if system.guarantee.event is not None:
    # One for each step, or one for the whole run.
    assert accounting.count_of(system.guarantee.event) in (1, system.steps)


def test_release_holds_no_more_than_the_model(case, data):
  system = build(*case)
  state = system.init(jax.random.key(0), data)
  release = system.release(jax.random.key(1), state, data)
  model = system.model(state, data)
  assert model.factors.user is not None
  assert model.factors.item is not None
  for released, known in zip(release.factors, model.factors, strict=True):
    if released is not None:
      np.testing.assert_array_equal(released, known)


def test_info_that_is_not_noised_is_called_unsafe(case, data):
  system = build(*case)
  state = system.init(jax.random.key(0), data)
  _, info = jax.eval_shape(system.step, jax.random.key(1), state, data)
  if system.guarantee.status == 'none':
    assert all(field.startswith('unsafe_') for field in info._fields)


def test_guarantee_is_complete(case):
  guarantee = build(*case).guarantee
  assert guarantee.status in ('proved', 'claimed', 'none')
  assert guarantee.unit in ('rating', 'user')
  assert guarantee.relation in ('replace', 'add_remove')
  assert guarantee.adversary
  assert guarantee.released
  if guarantee.status == 'none':
    with pytest.raises(ValueError, match='not private'):
      accounting.epsilon(guarantee, 1e-6)
  else:
    assert guarantee.secret
    assert guarantee.assumptions
    assert accounting.epsilon(guarantee, 1e-6) == pytest.approx(3.0, rel=1e-4)


OTHER = {
  'gaussian_mf': {
    'step_size': 0.01,
    'epsilon': 0.7,
    'clip_norm': 0.5,
    'ridge': 0.2,
    'steps': 9,
  },
  'objective_pmf': {'epsilon': 0.7, 'ridge': 0.2, 'noise_steps': 9},
  'personalized_pmf': {'epsilon': 0.7, 'ridge': 0.2, 'noise_steps': 9},
  'untrusted_pmf': {'epsilon': 0.7, 'ridge': 0.2, 'rounds': 9},
  'nonprivate': {'step_size': 0.01, 'ridge': 0.3, 'steps': 9},
  'sdmf': {'epsilon': 0.7, 'epsilon_value': 0.5, 'ridge': 0.02, 'online': 0.8},
  'sdbpr': {'epsilon': 0.7, 'ridge': 0.02, 'step_size': 4.0, 'steps': 9},
  'langevin': {'epsilon': 0.7, 'ridge': 0.02, 'decay': 0.5, 'steps': 9},
}


def test_other_settings_do_not_compile_again(case, data):
  name, _ = case
  fit(build(*case), jax.random.key(0), data)
  before = training._block._cache_size()
  state = fit(build(*case, **OTHER[name]), jax.random.key(1), data)
  assert training._block._cache_size() == before
  assert all(bool(jnp.isfinite(x).all()) for x in state.factors)
