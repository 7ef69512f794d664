"""What the ends of noise drawn in floats cost, from draw to certificate."""

import dataclasses
import math

import certified
import numpy as np
import pytest

from dpmf_jax import accounting, certificates, systems
from dpmf_jax.accounting import (
  events,
  ledger,
  tails,
)
from dpmf_jax.plans import SPECS, gaussian_mf
from dpmf_jax.plans.objective_pmf import ObjectivePMFConfig
from dpmf_jax.plans.untrusted_pmf import guarantee as protocol
from dpmf_jax.systems.objective_pmf import objective_pmf

EPSILON, DELTA = 3.0, 1e-6
# What has noise of its own: system, settings besides, what its ends may cost.
L2 = (1 + math.exp(EPSILON)) * tails.beyond(tails.REACH)
DRAWN = [
  ('gaussian_mf', {}, 1e-14),
  ('power_mf', {'rank': 3}, 1e-14),
  ('power_mf', {'rank': 3, 'number_share': 0.002}, 3e-14),
  ('power_mf', {'rank': 0, 'level_share': 0.1}, 5 * L2),
  ('power_mf', {'rank': 0}, 5 * L2),
  ('objective_pmf', {'relation': 'replace'}, 3 * L2),
  ('objective_pmf', {'relation': 'add_remove'}, 5 * L2),
  (
    'objective_pmf',
    {'loss': 'huber'},
    4 * math.exp(EPSILON - tails.LAPLACE_REACH),
  ),
  ('objective_pmf', {'feature_share': 0.4, 'rank': 3}, 1e-14),
  ('personalized_pmf', {'method': 'weights'}, 5 * L2),
  ('personalized_pmf', {'method': 'sampling'}, 5 * L2),
  ('untrusted_pmf', {}, (1 + math.exp(EPSILON)) * 2e-17),
  ('local_mf', {'unit': 'user'}, 1e-12),
  ('dpals', {}, 1e-3 * DELTA),
  ('moments', {}, 1e-2 * DELTA),
  ('moments', {'unit': 'rating'}, 1e-2 * DELTA),
]


def build(name, **settings):
  entry = SPECS[name]
  fields = entry.config.__dataclass_fields__
  common = {'scale': (1.0, 5.0), 'delta': DELTA, 'epsilon': EPSILON}
  given = {k: v for k, v in common.items() if k in fields}
  variant = entry.variants.get('sound', next(iter(entry.variants.values())))
  config = entry.config(**{**variant, **given, **settings})
  return config, systems.build(name, config)


@pytest.mark.parametrize(('name', 'settings', 'most'), DRAWN)
def test_no_system_states_an_epsilon_at_less_than_its_ends_cost(
  name, settings, most, tmp_path
):
  config, system = build(name, **settings)
  guarantee = system.guarantee
  ends = accounting.uncovered(guarantee)
  assert 0 < ends <= most * (1 + 1e-12)
  assert accounting.epsilon(guarantee, DELTA) <= EPSILON * (1 + 1e-9)
  for delta in (0.0, ends * 0.99):
    for state in (accounting.epsilon, accounting.bounds):
      with pytest.raises(ValueError, match=r'delta must be at least .* got'):
        state(guarantee, delta)
  words = {'system': name, 'config': config, 'randomness': certified.SECRET}
  with pytest.raises(ValueError, match='delta must be at least'):
    certificates.certificate(guarantee, delta=ends * 0.99, **words)
  stated = certificates.certificate(guarantee, delta=DELTA, **words)
  assert stated['epsilon'] <= EPSILON * (1 + 1e-9)
  assert 'delta pays for' in ' '.join(stated['assumptions'])
  # A ledger adds up the ends of all its runs.
  spend = lambda delta: ledger.spend(
    tmp_path / f'{delta}.ledger',
    ledger.proved_event(guarantee),
    delta=delta,
    unit=guarantee.unit,
    relation=guarantee.relation,
    dataset='made-up',
    budget_epsilon=1000,
  )
  with pytest.raises(ValueError, match='delta must be at least'):
    spend(ends * 0.99)
  spend(1.5 * ends)
  with pytest.raises(ledger.BudgetExceeded, match='the ends of noise'):
    spend(1.5 * ends)


def test_pure_noise_is_stated_at_what_its_ends_cost_if_delta_is_0():
  for name, settings in (
    ('power_mf', {'rank': 0}),
    ('objective_pmf', {}),
    ('objective_pmf', {'loss': 'huber'}),
    ('personalized_pmf', {}),
    ('untrusted_pmf', {}),
  ):
    config, system = build(name, delta=0.0, **settings)
    document = certificates.certificate(
      system.guarantee,
      system=name,
      config=config,
      delta=0.0,
      randomness=certified.SECRET,
    )
    assert document['delta'] == accounting.uncovered(system.guarantee) > 0
    assert document['epsilon'] == pytest.approx(EPSILON, rel=1e-3)
    assert document['epsilon'] <= EPSILON
  # Coins of integers, and shares of integers, have no ends.
  config, system = build('local_mf', unit='rating')
  assert accounting.epsilon(system.guarantee, 0.0) <= EPSILON
  config, _ = build('untrusted_pmf')
  assert accounting.epsilon(protocol(config), 0.0) <= EPSILON


def test_a_run_is_refused_before_it_is_made_if_delta_does_not_pay():
  # At rank 32 and epsilon 12.7 the ends cost 9.7e-10. Without them the curve
  # of L2-Laplace noise in 560 dimensions would say 5.886 at 1e-15.
  config = ObjectivePMFConfig(
    variant='sound',
    relation='add_remove',
    scale=(1.0, 5.0),
    epsilon=12.7,
    delta=1e-15,
  )
  features = np.ones((3, 32))
  with pytest.raises(
    ValueError, match=r'delta=1e-15 must be at least 9\.7e-10'
  ):
    objective_pmf(config, features)
  system = objective_pmf(dataclasses.replace(config, delta=0.0), features)
  event = dataclasses.replace(system.guarantee.event, uncovered=0.0)
  assert accounting.epsilon(event, 1e-15) < 5.9
  least = accounting.uncovered(system.guarantee)
  assert accounting.epsilon(system.guarantee, least) > 12.69
  for name, settings in (
    ('power_mf', {'rank': 0}),
    ('objective_pmf', {'loss': 'huber', 'epsilon': 20.0}),
    ('untrusted_pmf', {}),
    ('personalized_pmf', {}),
  ):
    with pytest.raises(ValueError, match=r'delta=1e-18 must be at least'):
      build(name, delta=1e-18, **settings)


@pytest.mark.parametrize('share', [0.01, 0.2, 0.8])
@pytest.mark.parametrize('epsilon', [0.5, 4.0])
@pytest.mark.parametrize('delta', [1e-9, 1e-6, 1e-2])
@pytest.mark.parametrize('rank', [2, 16])
def test_learned_features_are_accounted_at_what_the_ends_leave(
  share, epsilon, delta, rank
):
  config = ObjectivePMFConfig(
    variant='sound',
    relation='add_remove',
    scale=(1.0, 5.0),
    epsilon=epsilon,
    delta=delta,
    feature_share=share,
    feature_steps=8,
    rank=rank,
  )
  guarantee = objective_pmf(config).guarantee
  stated = accounting.epsilon(guarantee, delta)
  assert stated <= epsilon * (1 + 1e-9)
  # By hand: the noise as it is drawn, at delta less the ends of both parts.
  first = guarantee.event.events[0]
  learning = gaussian_mf.GaussianMFConfig(
    variant='sound',
    relation='add_remove',
    scale=(1.0, 5.0),
    epsilon=None,
    noise_multiplier=first.noise_multiplier,
    delta=delta,
    rank=rank,
    steps=8,
  )
  moved = gaussian_mf.sensitivity(learning)
  drawn = 1 / math.hypot(
    *(moved / std for std in gaussian_mf.plan(learning).noise.values())
  )
  dimension = rank * (rank + 1) // 2 + rank
  rest = (1 - share) * epsilon
  chance = tails.beyond(tails.REACH - 1 / drawn) * 2 * 8 * rank
  chance += (
    (1 + math.exp(rest)) * (2 * dimension + 1) * tails.beyond(tails.REACH)
  )
  exact = events.Composed(
    (events.Gaussian(drawn, 8), events.L2Laplace(1 / rest, 1, dimension))
  )
  assert accounting.epsilon(exact, delta - chance) <= stated * (1 + 1e-9)
  # And no more is paid than that; noise is a millionth more than accounted.
  assert accounting.epsilon(exact, delta - chance) >= stated * (1 - 1e-4)


def test_ends_add_up_and_go_off_delta():
  parts = (
    events.Gaussian(5.0, 3, 1e-8),
    events.L2Laplace(2.0, 1, 4, 2e-8),
    events.Pure(0.1, 2, 3e-8),
    events.Laplace(9.0),
    events.RandomizedResponse(0.2),
  )
  event = events.Composed(parts)
  plain = events.Composed(
    (
      events.Gaussian(5.0, 3),
      events.L2Laplace(2.0, 1, 4),
      events.Pure(0.1, 2),
      *parts[3:],
    )
  )
  assert accounting.uncovered(event) == pytest.approx(6e-8)
  assert accounting.epsilon(event, 1e-6) == pytest.approx(
    accounting.epsilon(plain, 9.4e-7), rel=1e-9
  )
  assert accounting.epsilon(event, 1e-6) > accounting.epsilon(plain, 1e-6)
  epsilon = accounting.epsilon(event, 1e-6)
  back = accounting.delta(event, epsilon)
  assert back == pytest.approx(1e-6, rel=1e-3)
  assert back >= accounting.delta(plain, epsilon) + 6e-8
  assert accounting.epsilon(event, back) <= epsilon * (1 + 1e-9)
  # What has not happened has no ends; what has, has all of them.
  assert accounting.uncovered(accounting.prefix(event, 0)) == 0
  assert accounting.uncovered(accounting.prefix(event, 1)) == 1e-8
  for wrong in (-1e-9, 1.0, math.nan):
    with pytest.raises(ValueError, match='uncovered must be'):
      events.Gaussian(1.0, 1, wrong)


def test_noise_that_ends_is_calibrated_to_what_delta_leaves():
  ends = lambda multiplier: 1e-8 / multiplier
  event = accounting.drawn_gaussian(ends, epsilon=1.0, delta=1e-6, count=7)
  assert accounting.epsilon(event, 1e-6) <= 1.0
  assert accounting.epsilon(event, 1e-6) == pytest.approx(1.0, rel=1e-9)
  assert ends(event.noise_multiplier) <= event.uncovered
  given = accounting.drawn_gaussian(ends, noise_multiplier=3.0, delta=1e-6)
  assert given == events.Gaussian(3.0, 1, 1e-8 / 3)
  with pytest.raises(ValueError, match=r'tails end with .* of 1\.2e-08'):
    accounting.drawn_gaussian(
      lambda _: 1.2e-8, noise_multiplier=3.0, delta=1e-6
    )
  with pytest.raises(ValueError, match=r'end with a chance of 1, and at most'):
    accounting.drawn_gaussian(lambda _: 490.0, epsilon=1e9, delta=1e-6)
  with pytest.raises(ValueError, match='one of epsilon and noise_multiplier'):
    accounting.drawn_gaussian(ends, delta=1e-6)
