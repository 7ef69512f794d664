"""Every system and variant keeps the contract of `types.System`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from dpmf_jax import accounting, systems, training
from dpmf_jax.plans import SPECS, assumptions
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.rows import training_data
from dpmf_jax.training import fit
from dpmf_jax.types import Guarantee, Release

CASES = [
  (name, variant) for name, entry in SPECS.items() for variant in entry.variants
]
# Ways to run a variant that have steps of their own.
CASES += [
  ('objective_pmf', 'sound', 'loss', 'huber'),
  ('objective_pmf', 'sound', 'feature_share', 0.4),
  ('power_mf', 'sound', 'number_share', 0.01),
]


def build(name, variant, *more, **settings):
  entry = SPECS[name]
  fields = entry.config.__dataclass_fields__
  common = {'scale': (1.0, 5.0), 'delta': 1e-6, 'epsilon': 3.0, 'steps': 4}
  given = {k: v for k, v in common.items() if k in fields}
  if more:
    given |= {more[0]: more[1], 'rank': 3}
  if 'feature_steps' in fields and more:
    given['feature_steps'] = 3
  if name in ('dpals', 'power_mf', 'ranking_mf', 'local_ranking'):
    given['rank'] = 2  # for so few users dpals would choose 0
  return systems.build(
    name, entry.config(**{**entry.variants[variant], **given, **settings})
  )


# Tried fast with the other variant of the system, or in tests of its own.
_LONG = ('sdmf', 'sdbpr', 'sdfm', 'number_share', 'feature_share')


def takes_long(case):
  """Rounds of clients, steps with more to compile, and most of the papers'."""
  paper = case[1] == 'paper' and 'sound' in SPECS[case[0]].variants
  return paper or any(word in case for word in _LONG)


@pytest.fixture(params=CASES, ids=lambda case: '-'.join(map(str, case)))
def case(request):
  return request.param


@pytest.fixture(
  params=[
    pytest.param(case, marks=pytest.mark.slow if takes_long(case) else ())
    for case in CASES
  ],
  ids=lambda case: '-'.join(map(str, case)),
)
def compiled_case(request):
  return request.param


@pytest.fixture(scope='module')
def data(request):
  ratings = request.getfixturevalue('small_ratings')
  return training_data(with_epsilon(ratings, 3.0))


@pytest.mark.slow
def test_runs_under_jit_scan_and_vmap_over_keys(case, data):
  system = build(*case)

  def run(key):
    init_key, steps_key = jax.random.split(key)
    state = system.init(init_key, data)
    state = jax.lax.fori_loop(
      0,
      system.steps,
      lambda number, state: system.step(
        jax.random.fold_in(steps_key, number), state, data
      ),
      state,
    )
    return system.release(state, data)

  # Compiling is most of this test: unoptimized code will do.
  options = {'xla_backend_optimization_level': 0}
  many = jax.jit(jax.vmap(run), compiler_options=options)(
    jax.random.split(jax.random.key(1), 3)
  )
  assert isinstance(many, Release)
  # How users are fitted to it is no secret: a setting, or made of the rest.
  for path, leaf in tree.flatten_with_path(many._replace(fit=None)):
    if leaf is None:
      continue
    assert np.isfinite(leaf).all()
    if leaf.ndim > 1:
      assert len(leaf) == 3
    if leaf.ndim > 1 and case[0] != 'ease':  # which draws nothing
      assert not np.array_equal(leaf[0], leaf[1]), f'{path} ignores the key'


def test_same_key_same_bits(compiled_case, data):
  system = build(*compiled_case)
  runs = [fit(system, jax.random.key(7), data) for _ in range(2)]
  jax.tree.map(np.testing.assert_array_equal, *runs)


def test_steps_are_those_of_the_guarantee(case):
  system = build(*case)
  assert isinstance(system.guarantee, Guarantee)
  entry = SPECS[case[0]]
  if 'steps' in entry.config.__dataclass_fields__:
    assert system.steps == 4
  if system.guarantee.event is not None:
    # One for each step, or one for the whole run; with a number that decides,
    # one for that and one for all that it decides on.
    whole = 2 if 'number_share' in case else 1
    assert accounting.count_of(system.guarantee.event) in (whole, system.steps)


def test_release_holds_no_more_than_the_model(compiled_case, data):
  system = build(*compiled_case)
  state = system.init(jax.random.key(0), data)
  release = system.release(state, data)
  model = system.model(state, data)
  assert model.factors.user is not None
  assert model.factors.item is not None
  for released, known in zip(release.factors, model.factors, strict=True):
    if released is not None:
      np.testing.assert_array_equal(released, known)


def test_ratings_of_another_scale_are_refused(case, data):
  system = build(*case, scale=(0.0, 1.0))
  assert system.scale == (0.0, 1.0)
  with pytest.raises(ValueError, match=r'system has scale=\(0.0, 1.0\), but'):
    fit(system, jax.random.key(0), data)


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
    epsilon = accounting.epsilon(guarantee, 1e-6)
    assert epsilon <= 3.0 * (1 + 1e-4)
    if not isinstance(guarantee.event, accounting.Composed):
      assert epsilon == pytest.approx(3.0, rel=1e-4)


@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    *((case[0], {}) for case in CASES if case[1:] == ('sound',)),
    ('gaussian_mf', {'relation': 'replace'}),
    ('objective_pmf', {'relation': 'replace'}),
    ('objective_pmf', {'loss': 'huber'}),
    ('objective_pmf', {'feature_share': 0.4}),
    ('personalized_pmf', {'method': 'sampling'}),
    ('local_mf', {'unit': 'user'}),
    ('power_mf', {'rank': 0}),
    ('ranking_mf', {'unit': 'rating'}),
    ('moments', {'unit': 'rating'}),
  ],
)  # fmt: skip
def test_every_proof_says_that_floats_are_taken_to_be_the_same(name, settings):
  # A rating or user that goes moves the others in memory, and each proof takes
  # their terms to stay as they are.
  guarantee = build(name, 'sound', **settings).guarantee
  assert guarantee.status == 'proved'
  assert guarantee.assumptions.count(assumptions.SAME_FLOATS) == 1


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
  'local_mf': {'epsilon': 0.7, 'prior_variance': 0.2, 'bias_ridge': 2.0},
  'local_ranking': {'epsilon': 0.7, 'least_weight': 0.5, 'liked_from': 0.5},
  'dpals': {
    'epsilon': 0.7,
    'steps': 9,
    'contribution': 2.0,
    'adaptivity': 0.1,
    'final_vector_ridge': 2.0,
  },
  'moments': {'epsilon': 0.7, 'means_share': 0.4, 'bias_ridge': 1.0},
  'als': {'ridge': 0.3, 'steps': 9},
  'ease': {'ridge': 0.3, 'user_power': 0.0, 'least_weight': 0.5},
  'power_mf': {'epsilon': 0.7, 'rounds': 3, 'relaxation': 0.8},
  'ranking_mf': {'epsilon': 0.7, 'rounds': 2, 'popularity_power': 0.1},
  'untrusted_pmf': {'epsilon': 0.7, 'ridge': 0.2, 'rounds': 9},
  'nonprivate': {'step_size': 0.01, 'ridge': 0.3, 'steps': 9},
  'sdmf': {'epsilon': 0.7, 'epsilon_value': 0.5, 'ridge': 0.02, 'online': 0.8},
  'sdbpr': {'epsilon': 0.7, 'ridge': 0.02, 'step_size': 4.0, 'steps': 9},
  'sdfm': {'epsilon': 0.7, 'epsilon_value': 0.5, 'side_step': 0.2, 'steps': 9},
  'langevin': {'epsilon': 0.7, 'ridge': 0.02, 'decay': 0.5, 'steps': 9},
}


def test_other_settings_do_not_compile_again(compiled_case, data):
  name = compiled_case[0]
  fit(build(*compiled_case), jax.random.key(0), data)
  compiled = lambda: [
    program._cache_size() for program in (training._block, training._one)
  ]
  before = compiled()
  state = fit(build(*compiled_case, **OTHER[name]), jax.random.key(1), data)
  assert compiled() == before
  assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state.factors))
