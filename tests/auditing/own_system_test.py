"""Systems of others: audited as objects, and registered under a name."""

import dataclasses
import importlib

import jax
import pytest

from dpmf_jax import accounting, auditing, plans, systems
from dpmf_jax.accounting import ledger
from dpmf_jax.plans import SPECS
from dpmf_jax.types import Guarantee

FACTS = {'scale': (1.0, 5.0), 'epsilon': 1.0, 'delta': 1e-5}


@pytest.fixture(scope='module', autouse=True)
def own_sums():
  """The module, registered while these tests run: others go over all names."""
  module = importlib.import_module('own_sums')
  systems.register(module.SPEC, module.own_sums)
  yield module
  del SPECS['own_sums'], systems._REGISTERED['own_sums']


@pytest.fixture(scope='module')
def result(own_sums):
  return audited(own_sums, epsilon=4.0)


def config(**settings):
  return plans.config_of('own_sums', 'sound', **{**FACTS, **settings})


def audited(own_sums, **settings):
  system = own_sums.own_sums(config(**settings))
  return auditing.audit(system, key=1, runs=4_000)


def test_an_audit_of_an_object_chooses_its_pairs(result):
  # A false alarm has chance 1e-3; the key is fixed.
  assert result.stated == pytest.approx(4, rel=1e-6)
  assert 1 < result.lower_bound <= 4
  assert not result.refuted
  assert result.verdict == 'not refuted'
  assert {each.relation for each in result.findings} == {'add_remove'}
  assert len({each.pair for each in result.findings}) == 5
  assert {each.status for each in result.findings} == {'stated'}
  shown = repr(result)
  assert 'epsilon 4 at delta 1e-05 is stated, for one rating' in shown
  assert 'was measured, with 99.9% confidence' in shown
  assert 'no proof' in shown


def test_an_audit_of_an_object_finds_missing_noise(own_sums):
  result = audited(own_sums, drawn=0.1)
  assert result.refuted
  assert result.lower_bound > 3
  assert 'own system: refuted' in repr(result)


def test_the_doubt_is_shared_by_all_attacks(result):
  for each in result.findings:
    assert 1 - each.confidence == pytest.approx(0.001 / 5)


def test_the_unit_and_the_relation_are_those_of_the_guarantee(own_sums):
  own = own_sums.own_sums(config())
  for unit in ('rating', 'user'):
    for relation in ('replace', 'add_remove'):
      stated = dataclasses.replace(
        own.guarantee, unit=unit, relation=relation, status='stated'
      )
      target, *_ = auditing._own_targets(
        own._replace(guarantee=stated), 'random', None
      )
      first, second = target.pair.first, target.pair.second
      assert (len(first) == len(second)) == (relation == 'replace')
      changed = len(first) - len(second) or (first.value != second.value).sum()
      assert (changed > 1) == (unit == 'user')


def test_audits_by_name_take_settings_over_those_of_the_cases():
  (case,) = auditing.cases('own_sums', 'sound')
  assert case.settings == FACTS
  (case,) = auditing.cases('own_sums', 'sound', epsilon=3.0)
  assert case.settings == {**FACTS, 'epsilon': 3.0}
  given = auditing.cases('gaussian_mf', 'sound', epsilon=3.0)
  assert {case.settings['epsilon'] for case in given} == {3.0}
  result = auditing.audit('own_sums', key=2, runs=2_000, epsilon=3.0)
  assert result.stated == pytest.approx(3, rel=1e-6)
  assert {each.system for each in result.findings} == {'own_sums'}
  assert {each.status for each in result.findings} == {'stated'}


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda key: auditing.audit('no_such', key=key), "system='no_such' must"),
    (
      lambda key: auditing.audit('own_sums', key=key, variant='paper'),
      "variant='paper' of own_sums must be sound",
    ),
    (
      lambda key: auditing.audit('own_sums', key=key, epsilon=-1.0),
      'epsilon=-1.0 must be',
    ),
    (
      lambda key: auditing.audit('own_sums', key=key, start='known'),
      "start='known' and view=None are for a System",
    ),
    (
      lambda key: auditing.audit(
        systems.made('own_sums', 'sound', **FACTS), key=key, epsilon=2.0
      ),
      r"\['epsilon'\] must not be given with a System",
    ),
    (
      lambda key: auditing.audit(config(), key=key),
      'must be a System or the name of one',
    ),
    (
      lambda key: auditing.audit(
        systems.made('own_sums', 'sound', **FACTS), key=key, view='server'
      ),
      "view='server' must be",
    ),
  ],
)
def test_what_an_audit_refuses(call, message):
  with pytest.raises(ValueError, match=message):
    call(jax.random.key(0))


# Registered systems.


def test_what_others_call_proved_is_stated(own_sums):
  assert own_sums.plan(config()).guarantee.status == 'proved'
  assert SPECS['own_sums'].plan(config()).guarantee.status == 'stated'
  system = systems.made('own_sums', 'sound', **FACTS)
  assert system.guarantee.status == 'stated'
  assert accounting.epsilon(system.guarantee, 1e-5) == pytest.approx(1)
  with pytest.raises(ValueError, match='only stated'):
    ledger.proved_event(system.guarantee)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'name': 'power_mf'}, "name='power_mf' must be"),
    ({'name': 'auto'}, "name='auto' must be"),
    ({'name': 'my-own'}, "name='my-own' must be"),
    ({'variants': {'mine': {}}}, r"variants=\['mine'\] must be"),
  ],
)
def test_what_is_not_registered(own_sums, changes, message):
  with pytest.raises(ValueError, match=message):
    systems.register(own_sums.SPEC._replace(**changes), own_sums.own_sums)
  assert SPECS['power_mf'].config.__name__ == 'PowerMFConfig'


def test_a_setting_of_another_kind_needs_another_name(own_sums):
  @plans.settings.config
  class Config:
    rank: float = plans.settings.setting(default=1.0)

  spec = own_sums.SPEC._replace(name='own_rank', config=Config)
  with pytest.raises(ValueError, match="'rank' of own_rank must be int"):
    systems.register(spec, own_sums.own_sums)


def test_a_factory_must_keep_to_its_plan(own_sums):
  def generous(config):
    system = own_sums.own_sums(config)
    more: Guarantee = dataclasses.replace(
      system.guarantee, released=('item factors', 'user factors'), secret=()
    )
    return system._replace(guarantee=more)

  spec = own_sums.SPEC._replace(name='own_generous')
  systems.register(spec, generous)
  try:
    with pytest.raises(ValueError, match='guarantee and the steps of its plan'):
      systems.made('own_generous', 'sound', **FACTS)
  finally:
    del SPECS['own_generous'], systems._REGISTERED['own_generous']
