"""Settings: what is taken, what is refused, and what a plan is kept for."""

import dataclasses
import math

import numpy as np
import optax
import pytest

from dpmf_jax import accounting, systems
from dpmf_jax.mechanisms.noise import lattice_noise
from dpmf_jax.plans import SPECS, config_of
from dpmf_jax.plans.settings import settings_of

FACTS = {'scale': (1.0, 5.0), 'epsilon': 1.0, 'delta': 1e-5}


def made(name, variant, **settings):
  known = {each.name for each in settings_of(SPECS[name].config)}
  facts = {key: value for key, value in FACTS.items() if key in known}
  return config_of(name, variant, **{**facts, **settings})


@pytest.mark.parametrize('name', list(SPECS))
def test_every_setting_says_what_it_is_and_refuses_what_it_is_not(name):
  for each in settings_of(SPECS[name].config):
    assert each.help, each.name
    wrong = ['no such', 7.5j]
    if each.kind in (int, float):
      wrong += [True, np.True_, math.nan, math.inf, '1']
    if each.kind is float:
      wrong += [10**400]
    if each.kind is bool:
      wrong += [0, 1, 'no']
    for value in wrong if each.kind is not object else ():
      with pytest.raises(ValueError, match=each.name):
        each.checked(value)


@pytest.mark.parametrize('kind', [np.float16, np.float32, np.float64])
def test_a_plan_does_not_depend_on_the_type_of_a_number(kind):
  value = kind(3.763671875)
  first = made('dpals', 'sound', rank=2, contribution=value)
  SPECS['dpals'].plan.cache_clear()
  early = SPECS['dpals'].plan(first)
  SPECS['dpals'].plan.cache_clear()
  plain = made('dpals', 'sound', rank=2, contribution=float(value))
  assert SPECS['dpals'].plan(plain).noise == early.noise
  assert type(first.contribution) is float
  assert type(made('dpals', 'sound', rank=np.int16(2)).rank) is int
  assert made('dpals', 'sound', scale=[1, 5]).scale == (1.0, 5.0)


@pytest.mark.parametrize(
  'name', ['objective_pmf', 'personalized_pmf', 'untrusted_pmf']
)
def test_no_features_are_planned_as_features_of_rank_one(name):
  config, plan = made(name, 'sound'), SPECS[name].plan
  assert plan(config) is plan(config, 1) is plan(config, rank=1)


def test_an_epsilon_that_no_noise_gives_is_refused_with_features_to_learn():
  config = made('objective_pmf', 'sound', epsilon=2.0**64, feature_share=1e-300)
  with pytest.raises(ValueError, match=r'epsilon=1.8\d*e\+19 must be at most'):
    SPECS['objective_pmf'].plan(config)


def test_a_plan_is_not_changed_by_who_reads_it():
  plan = SPECS['gaussian_mf'].plan(made('gaussian_mf', 'sound'))
  with pytest.raises(TypeError):
    plan.noise['user gradient'] = 0.0
  with pytest.raises(dataclasses.FrozenInstanceError):
    plan.steps = 1


def test_a_guarantee_does_not_release_what_is_secret():
  stated = SPECS['power_mf'].plan(made('power_mf', 'sound')).guarantee
  with pytest.raises(ValueError, match='tuple of strings'):
    dataclasses.replace(stated, released='item factors; user factors stay')
  with pytest.raises(ValueError, match='both released and secret'):
    dataclasses.replace(stated, released=(*stated.released, 'user factors'))
  assert 'user factors' in stated.secret


@pytest.mark.parametrize('std', [0.0, -1.0, math.nan, np.array([1.0, 0.0])])
def test_what_is_no_noise_is_refused(std):
  with pytest.raises(ValueError, match='must be positive'):
    lattice_noise(std, 0.01, limit='x')


@pytest.mark.parametrize('name', list(SPECS))
def test_steps_and_guarantee_are_those_of_the_plan(name):
  variant = next(iter(SPECS[name].variants))
  config = made(name, variant)
  system, plan = systems.build(name, config), SPECS[name].plan(config)
  assert system.steps == plan.steps
  assert system.guarantee == plan.guarantee
  for steps in (-1, plan.steps + 1):
    with pytest.raises(ValueError, match='must be in'):
      plan.epsilon(steps, 1e-5)


@pytest.mark.parametrize('name', list(SPECS))
def test_what_steps_spend_grows_to_what_is_stated(name):
  variant = next(iter(SPECS[name].variants))
  plan = SPECS[name].plan(made(name, variant))
  counts = [0, *sorted({1, plan.steps // 2 or 1, plan.steps})]
  spent = [plan.epsilon(steps, 1e-5) for steps in counts]
  if plan.guarantee.event is None:
    assert set(spent) == {plan.spent(1)} == {None}
    return
  assert spent == sorted(spent)
  assert spent[0] == 0
  assert spent[1:] == [
    accounting.epsilon(plan.spent(steps), 1e-5) for steps in counts[1:]
  ]
  assert plan.spent(plan.steps) == plan.guarantee.event


@pytest.mark.parametrize('name', ['gaussian_mf', 'nonprivate'])
def test_a_step_size_beside_an_optimizer_is_refused(name):
  variant = next(iter(SPECS[name].variants))
  needed = {'scale': (1.0, 5.0)}
  if name == 'gaussian_mf':
    needed |= {'epsilon': 1.0, 'delta': 1e-6}
  adam = optax.adam(0.01)
  with pytest.raises(
    ValueError, match=r'step_size=0.5 would be ignored beside'
  ):
    config_of(name, variant, **needed, step_size=0.5, optimizer=adam)
  config = config_of(name, variant, **needed, optimizer=adam)
  assert dataclasses.replace(config, rank=3).optimizer is adam


def test_a_paper_may_have_another_optimizer():
  adam = optax.adam(0.01)
  config = config_of(
    'gaussian_mf', 'paper', scale=(1.0, 5.0), epsilon=1.0, delta=1e-6,
    optimizer=adam,
  )  # fmt: skip
  assert config.optimizer is adam
