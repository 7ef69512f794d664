"""The papers' formulas, against the numbers the papers print."""

import math

import pytest
from stated import guarantee

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  ClaimedGaussianMF,
  ClaimedPure,
  encoding,
  events,
  ledger,
)

PAPER = {'delta_per_step': 0.01, 'delta': 1e-5}


def claimed(steps, epsilon_per_step, delta_per_step=0.01, delta=1e-5):
  event = ClaimedGaussianMF(epsilon_per_step, delta_per_step, steps)
  return accounting.epsilon(event, delta)


@pytest.mark.parametrize(
  ('steps', 'epsilon_per_step', 'printed'),
  [(900, 0.15, 8.0), (1172, 0.2, 13.0), (1322, 0.3, 23.0)],
)
def test_printed_epsilons(steps, epsilon_per_step, printed):
  # Read off the paper's figure for ML-1M, hence the tolerance.
  ours = claimed(steps, epsilon_per_step)
  assert ours == pytest.approx(printed, abs=0.01)


def test_claim_is_above_the_exact_curve_of_the_same_noise():
  ours = claimed(300, 0.4)
  noise = accounting.claimed_gaussian_mf_noise_multiplier(0.4, 0.01)
  exact = accounting.epsilon(accounting.Gaussian(noise, 300), 1e-5)
  assert ours == pytest.approx(13.1837, abs=1e-4)
  assert exact == pytest.approx(11.4380, abs=1e-4)


def test_claim_is_mironov_of_its_noise_at_its_order():
  settings = {'steps': 700, 'epsilon_per_step': 0.25, **PAPER}
  noise = accounting.claimed_gaussian_mf_noise_multiplier(0.25, 0.01)
  order = accounting.claimed_gaussian_mf_order(**settings)
  eq7 = order * 700 / (2 * noise**2) + math.log(1e5) / (order - 1)
  ours = claimed(700, 0.25)
  assert ours == pytest.approx(eq7, rel=1e-12)
  assert ours == pytest.approx(
    accounting.rdp.epsilon_mironov(
      accounting.rdp.gaussian(noise, 700), 1e-5
    ).epsilon,
    rel=1e-9,
  )


def test_noise_is_that_of_the_classical_mechanism():
  ours = accounting.claimed_gaussian_mf_noise_multiplier(0.5, 0.01)
  assert ours == pytest.approx(math.sqrt(2 * math.log(125)) / 0.5)


@pytest.mark.parametrize('epsilon_per_step', [1e-4, 0.15, 0.9])
@pytest.mark.parametrize('steps', [1, 100, 10**6])
def test_inverses(steps, epsilon_per_step):
  epsilon = claimed(steps, epsilon_per_step)
  back = accounting.claimed_gaussian_mf_epsilon_per_step(
    epsilon=epsilon, steps=steps, **PAPER
  )
  assert back == pytest.approx(epsilon_per_step, rel=1e-9)
  event = ClaimedGaussianMF(epsilon_per_step, 0.01, steps)
  delta = accounting.delta(event, epsilon)
  assert delta == pytest.approx(1e-5, rel=1e-6)


def test_edges_of_the_formula():
  none = ClaimedGaussianMF(0.3, 0.01, 0)
  assert accounting.epsilon(none, 1e-5) == 0.0
  assert accounting.delta(none, 0.0) == 0.0
  assert accounting.delta(ClaimedGaussianMF(0.3, 0.01, 10**6), 1.0) == 1.0


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'epsilon_per_step': 1.0}, r'epsilon_per_step must be in \(0, 1\), got'),
    ({'epsilon_per_step': 0.0}, 'epsilon_per_step must be in'),
    ({'delta_per_step': 0.0}, 'delta_per_step must be in'),
    ({'delta': 1.0}, r'delta must be in \(0, 1\), got 1.0'),
    ({'steps': -1}, 'must be an integer >= 0, got -1'),
    ({'steps': 2.5}, 'must be an integer >= 0, got 2.5'),
  ],
)
def test_errors_name_the_parameter(change, words):
  good = {'steps': 10, 'epsilon_per_step': 0.3, **PAPER}
  with pytest.raises(ValueError, match=words):
    claimed(**(good | change))


def test_an_epsilon_that_the_paper_cannot_reach_is_refused():
  with pytest.raises(ValueError, match=r'epsilon must be lower for 3 steps'):
    accounting.claimed_gaussian_mf_epsilon_per_step(
      epsilon=50.0, steps=3, **PAPER
    )


@pytest.mark.parametrize('delta', [0, 0.0, 1e-300, 1e-6, 0.999])
def test_a_pure_claim_is_stated_as_it_is(delta):
  assert accounting.epsilon(ClaimedPure(0.1), delta) == 0.1
  claim = ClaimedPure(0.3, 7)
  for statement in (claim, guarantee(claim, 'claimed')):
    assert accounting.epsilon(statement, delta) == 0.3 * 7
    assert accounting.bounds(statement, delta) == {'claimed': 0.3 * 7}
    assert accounting.delta(statement, 0.3 * 7) == 0.0
    assert accounting.delta(statement, 9.0) == 0.0
    assert accounting.delta(statement, math.nextafter(0.3 * 7, 0)) == 1.0
  assert accounting.epsilon(ClaimedPure(0.3, 0), delta) == 0.0
  assert accounting.prefix(claim, 2) == ClaimedPure(0.3, 2)
  assert accounting.count_of(claim) == 7


@pytest.mark.parametrize('delta', [-1e-9, 1.0, math.nan])
def test_a_pure_claim_checks_delta(delta):
  with pytest.raises(ValueError, match='delta must be'):
    accounting.epsilon(ClaimedPure(0.1), delta)


@pytest.mark.parametrize(
  'claim', [ClaimedPure(0.5), ClaimedGaussianMF(0.3, 0.01, 10)]
)
def test_a_claim_stays_a_claim(claim):
  proved = accounting.Pure(0.5)
  for parts in ((proved, claim), (claim, proved), (claim,), (claim, claim)):
    with pytest.raises(ValueError, match='claim cannot be part of a proof'):
      accounting.epsilon(accounting.Composed(parts), 1e-6)
  with pytest.raises(ValueError, match='claim cannot be part of a proof'):
    accounting.curve_of(claim)
  with pytest.raises(ValueError, match='status must fit the event'):
    accounting.epsilon(guarantee(claim, 'proved'), 1e-6)
  with pytest.raises(ValueError, match='claim cannot be part of a proof'):
    ledger.proved_event(guarantee(claim, 'proved'))
  with pytest.raises(ValueError, match='only claimed'):
    ledger.proved_event(guarantee(claim, 'claimed'))
  assert encoding.decode(encoding.encode(claim)) == claim


def test_claims_are_known_by_name_and_by_type():
  named = {name for name in vars(events) if name.startswith('Claimed')}
  known = {kind.__name__ for kind in events.ClaimedEvent.__args__}
  assert named - {'ClaimedEvent'} == known
