"""What does not compile again, and what does not run in 64 bits."""

import functools
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import dpmf_jax
from dpmf_jax.plans import SPECS
from dpmf_jax.systems.traced import MadeAlike


@pytest.mark.parametrize(
  'make',
  [
    lambda rate: optax.adam(rate),
    lambda rate: optax.sgd(rate, momentum=0.9),
    lambda rate: optax.chain(optax.clip(1.0), optax.adamw(rate)),
    lambda rate: optax.rmsprop(optax.cosine_decay_schedule(rate, 10)),
  ],
)
def test_optimizers_made_alike_are_equal(make):
  first, again, other = (MadeAlike(make(rate)) for rate in (0.02, 0.02, 0.03))
  assert first == again
  assert hash(first) == hash(again)
  assert first != other


def test_functions_of_others_equal_themselves_alone():
  # One that reads a variable may do another thing tomorrow.
  schedule = lambda step: 0.1
  assert MadeAlike(optax.sgd(schedule)) == MadeAlike(optax.sgd(schedule))
  other = MadeAlike(optax.sgd(lambda step: 0.1))
  assert MadeAlike(optax.sgd(schedule)) != other
  assert MadeAlike(optax.scale(0.0)) != MadeAlike(optax.scale(-0.0))


def test_what_wraps_a_function_of_optax_is_not_one_of_it():
  """`functools.wraps` gives it the name and the module of the other."""
  given = optax.sgd(0.1)

  def made():
    @functools.wraps(given.update)
    def update(gradient, state, params=None):
      return jax.tree.map(lambda x: -RATE * x, gradient), state

    return MadeAlike(optax.GradientTransformation(given.init, update))

  assert made() != made()


RATE = 0.1  # such as a notebook changes


def test_numbers_of_other_types_are_others():
  # They may be rounded in another way.
  numbers = 0.25, np.float64(0.25)
  assert len({MadeAlike(optax.scale(number)) for number in numbers}) == 2


@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    ('gaussian_mf', {'epsilon': 1, 'delta': 1e-6}),
    ('nonprivate', {}),
    ('langevin', {'epsilon': 1, 'variant': 'paper'}),
    ('sdmf', {'epsilon': 1, 'epsilon_value': 1, 'variant': 'paper'}),
  ],
)
def test_equal_optimizers_have_one_step(name, settings):
  first, again, other = (
    getattr(dpmf_jax, name)(
      scale=(1, 5), optimizer=optax.adam(rate), **settings
    ).step
    for rate in (0.02, 0.02, 0.03)
  )
  assert first == again
  assert hash(first) == hash(again)
  assert first != other


def test_the_functions_of_a_system_can_be_transformed(small_ratings):
  data = dpmf_jax.training_data(small_ratings)
  systems = [
    dpmf_jax.gaussian_mf(epsilon=e, delta=1e-6, scale=(1, 5)) for e in (1, 2)
  ]
  assert systems[0].model == systems[1].model
  keys = jax.random.split(jax.random.key(0), 2)
  states = jax.vmap(lambda key: systems[0].init(key, data))(keys)
  models = jax.jit(jax.vmap(systems[0].model, (0, None)))(states, data)
  assert models.factors.user.shape[:2] == (2, 60)
  one = jax.tree.map(lambda leaf: leaf[0], states)
  assert jax.jit(systems[0].model)(one, data).factors.item.shape[0] == 40


TWICE = """
import dataclasses, jax, jax.monitoring, numpy as np
import dpmf_jax
from dpmf_jax.plans import SPECS

compiled = []
jax.monitoring.register_event_duration_secs_listener(
  lambda event, seconds, **more: compiled.append(event)
  if 'backend_compile' in event else None
)
ratings = dpmf_jax.synthetic(
  num_users=60, num_items=40, num_ratings=700, rank=3, seed=1
)
ratings = dataclasses.replace(ratings, epsilon=np.ones(700), unique=True)
data = dpmf_jax.training_data(ratings)
more = {
  'power_mf': {'rank': 2, 'rounds': 1, 'epsilon': 2.0, 'delta': 1e-6},
  'dpals': {'rank': 2, 'epsilon': 5.0, 'delta': 1e-5},
}

def model(name, variant):
  case = SPECS[name].cases[variant][-1].settings
  system = getattr(dpmf_jax, name)(
    variant=variant, **{**case, 'scale': (1.0, 5.0), **more.get(name, {})}
  )
  state = dpmf_jax.fit(system, dpmf_jax.random_key(0), data)
  return system.model(state, data)

for name in NAMES:
  for variant in SPECS[name].variants:
    jax.config.update('jax_enable_x64', False)
    first = model(name, variant)
    compiled.clear()
    again = model(name, variant)
    assert not compiled, (name, variant, len(compiled))
    jax.config.update('jax_enable_x64', True)
    wide = model(name, variant)
    assert jax.tree.structure(first) == jax.tree.structure(wide)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(wide)):
      assert a.dtype == b.dtype, (name, variant)
      np.testing.assert_array_equal(a, b)
    if name == 'power_mf':
      error = dpmf_jax.rmse(first, ratings)
      whole = dpmf_jax.model_from_release(wide._replace(fit=None), ratings)
      assert abs(dpmf_jax.rmse(whole, ratings) - error) < 1e-6
      items = wide._replace(factors=wide.factors._replace(user=None))
      served = dpmf_jax.model_from_release(items, ratings)
      new = dpmf_jax.fold_in(served, {'me': {ratings.item_ids[0].item(): 5}})
      assert len(dpmf_jax.recommend(new, 'me', 3)) == 3
"""


@pytest.mark.slow
@pytest.mark.long
def test_the_second_time_compiles_nothing_and_64_bits_change_no_bit():
  code = TWICE.replace('NAMES', repr(list(SPECS)))
  subprocess.run([sys.executable, '-c', code], check=True)
