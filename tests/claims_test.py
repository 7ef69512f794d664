"""The papers' formulas, against the numbers the papers print."""

import math

import pytest

from dpmf_jax import accounting

PAPER = {'delta_per_step': 0.01, 'delta': 1e-5}


@pytest.mark.parametrize(
  ('steps', 'epsilon_per_step', 'printed'),
  [(900, 0.15, 8.0), (1172, 0.2, 13.0), (1322, 0.3, 23.0)],
)
def test_printed_epsilons(steps, epsilon_per_step, printed):
  # Read off the paper's figure for ML-1M, hence the tolerance.
  ours = accounting.claimed_gaussian_mf(
    steps=steps, epsilon_per_step=epsilon_per_step, **PAPER
  )
  assert ours == pytest.approx(printed, abs=0.01)


def test_claim_is_above_the_exact_curve_of_the_same_noise():
  claimed = accounting.claimed_gaussian_mf(
    steps=300, epsilon_per_step=0.4, **PAPER
  )
  noise = accounting.claimed_gaussian_mf_noise_multiplier(0.4, 0.01)
  exact = accounting.epsilon(accounting.Gaussian(noise, 300), 1e-5)
  assert claimed == pytest.approx(13.1837, abs=1e-4)
  assert exact == pytest.approx(11.4380, abs=1e-4)


def test_claim_is_mironov_of_its_noise_at_its_order():
  settings = {'steps': 700, 'epsilon_per_step': 0.25, **PAPER}
  noise = accounting.claimed_gaussian_mf_noise_multiplier(0.25, 0.01)
  order = accounting.claimed_gaussian_mf_order(**settings)
  eq7 = order * 700 / (2 * noise**2) + math.log(1e5) / (order - 1)
  claimed = accounting.claimed_gaussian_mf(**settings)
  assert claimed == pytest.approx(eq7, rel=1e-12)
  assert claimed == pytest.approx(
    accounting.rdp.epsilon_mironov(accounting.rdp.gaussian(noise, 700), 1e-5),
    rel=1e-9,
  )


def test_noise_is_that_of_the_classical_mechanism():
  ours = accounting.claimed_gaussian_mf_noise_multiplier(0.5, 0.01)
  assert ours == pytest.approx(math.sqrt(2 * math.log(125)) / 0.5)


@pytest.mark.parametrize('epsilon_per_step', [1e-4, 0.15, 0.9])
@pytest.mark.parametrize('steps', [1, 100, 10**6])
def test_inverses(steps, epsilon_per_step):
  epsilon = accounting.claimed_gaussian_mf(
    steps=steps, epsilon_per_step=epsilon_per_step, **PAPER
  )
  back = accounting.claimed_gaussian_mf_epsilon_per_step(
    epsilon=epsilon, steps=steps, **PAPER
  )
  assert back == pytest.approx(epsilon_per_step, rel=1e-9)
  delta = accounting.claimed_gaussian_mf_delta(
    steps=steps,
    epsilon_per_step=epsilon_per_step,
    delta_per_step=0.01,
    epsilon=epsilon,
  )
  assert delta == pytest.approx(1e-5, rel=1e-6)


def test_edges_of_the_formula():
  none = {'steps': 0, 'epsilon_per_step': 0.3, 'delta_per_step': 0.01}
  assert accounting.claimed_gaussian_mf(**none, delta=1e-5) == 0.0
  assert accounting.claimed_gaussian_mf_delta(**none, epsilon=0.0) == 0.0
  many = none | {'steps': 10**6}
  assert accounting.claimed_gaussian_mf_delta(**many, epsilon=1.0) == 1.0


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
    accounting.claimed_gaussian_mf(**(good | change))


def test_an_epsilon_that_the_paper_cannot_reach_is_refused():
  with pytest.raises(ValueError, match=r'epsilon must be lower for 3 steps'):
    accounting.claimed_gaussian_mf_epsilon_per_step(
      epsilon=50.0, steps=3, **PAPER
    )
