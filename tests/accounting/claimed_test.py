"""The formulas of SDCF, PDP-PMF and DPMF."""

import math

import numpy as np
import pytest
import sdcf_claims
from scipy import stats

from dpmf_jax import accounting
from dpmf_jax.accounting.claims import sdcf

# MovieLens-100K: I = 1682 and z = N/U = 100000/943.
ML = {'num_items': 1682, 'sent': 100_000 / 943}
RATED = np.array([15, 20, 106, 737, 1600])


@pytest.mark.parametrize('epsilon', [0.0625, 4.0, 400.0])
def test_sdcf_response_has_both_epsilons(epsilon):
  response = accounting.claimed_sdcf_response(
    epsilon_permanent=2 * epsilon,
    epsilon_instant=epsilon,
    num_rated=RATED,
    **ML,
  )
  flip, p, q, p_all, q_all, unsolved = response
  assert not unsolved.any()
  for values in (flip, p, q):
    assert np.all((values >= 0) & (values <= 1))
  # Eqs. (10) to (13) and Theorem 1, as printed.
  np.testing.assert_allclose(p_all, flip / 2 * q + (1 - flip / 2) * p)
  np.testing.assert_allclose(q_all, (1 - flip / 2) * q + flip / 2 * p)
  sent = RATED * q_all + (1682 - RATED) * p_all
  np.testing.assert_allclose(sent, ML['sent'], rtol=1e-12)
  odds = q_all * (1 - p_all) / (p_all * (1 - q_all))
  np.testing.assert_allclose(RATED * np.log(odds), epsilon, rtol=1e-4)
  permanent = 2 * RATED * np.log((1 - flip / 2) / (flip / 2))
  np.testing.assert_allclose(permanent, 2 * epsilon, rtol=1e-7)


def test_sdcf_rates_solve_the_quadratic():
  # odds(q*) = k odds(p*) in eq. (12) is a quadratic in p*.
  h, items, sent, k = 30.0, 200.0, 40.0, math.exp(6.0 / 30)
  p_all, q_all = sdcf.claimed_sdcf_rates(
    epsilon_instant=6.0, num_rated=30, num_items=200, sent=40.0
  )
  roots = np.roots(
    [(items - h) * (k - 1), h * k + items - h - sent * (k - 1), -sent]
  )
  assert float(p_all) == pytest.approx(roots[(roots > 0) & (roots < 1)].item())
  assert float(q_all) == pytest.approx(k * p_all / (1 + (k - 1) * p_all))


def test_sdcf_inverses():
  flip = sdcf.claimed_sdcf_flip(3.0, RATED)
  np.testing.assert_allclose(sdcf_claims.epsilon_permanent(flip, RATED), 3.0)
  p_all, q_all = sdcf.claimed_sdcf_rates(
    epsilon_instant=0.5, num_rated=RATED, **ML
  )
  np.testing.assert_allclose(
    sdcf_claims.epsilon_instant(p_all, q_all, RATED), 0.5
  )


@pytest.mark.parametrize('factor', [1.0, 1.5])
def test_too_small_a_permanent_epsilon_is_feasible_for_no_user(factor):
  given = {
    'epsilon_permanent': 4 * factor,
    'epsilon_instant': 4.0,
    'num_rated': RATED,
    **ML,
  }
  clipped = accounting.claimed_sdcf_response(**given)
  assert clipped.unsolved.all()
  assert np.all(clipped.unrated == 0)
  assert np.all((clipped.rated > 0) & (clipped.rated <= 1))
  spent = sdcf_claims.epsilon_instant(
    clipped.unrated_in_all, clipped.rated_in_all, RATED
  )
  assert np.all(spent < 4.0)  # less is said in a round, and more is sent
  sent = RATED * clipped.rated_in_all
  sent += (1682 - RATED) * clipped.unrated_in_all
  assert np.all(sent > ML['sent'])
  # eps_P = 2 h ln of the larger ratio will do, and nothing less.
  p_all, q_all = sdcf.claimed_sdcf_rates(
    epsilon_instant=4.0, num_rated=RATED, **ML
  )
  ratio = np.log(np.maximum(q_all / p_all, (1 - p_all) / (1 - q_all)))
  for place, bound in enumerate(2 * RATED * ratio):
    for factor, unsolved in ((1 - 1e-5, True), (1 + 1e-5, False)):
      again = given | {'epsilon_permanent': bound * factor}
      found = accounting.claimed_sdcf_response(**again).unsolved
      assert found[place] == unsolved


def test_clipping_never_spends_more():
  rng = np.random.default_rng(0)
  num_clipped = 0
  for _ in range(300):
    h = int(rng.integers(5, 50))
    items = h + int(rng.integers(1, 100))
    epsilon = 10 ** rng.uniform(-2, 1)
    made = accounting.claimed_sdcf_response(
      epsilon_permanent=epsilon * rng.uniform(0.1, 3),
      epsilon_instant=epsilon,
      num_rated=h,
      num_items=items,
      sent=rng.uniform(0.01, 0.99) * items,
    )
    spent = sdcf_claims.epsilon_instant(
      made.unrated_in_all, made.rated_in_all, h
    )
    assert spent <= epsilon * (1 + 1e-6)
    if not made.unsolved:
      assert spent == pytest.approx(epsilon, rel=1e-6)
    assert made.unsolved == (made.unrated == 0 or made.rated == 1)
    num_clipped += made.unsolved
  assert 50 < num_clipped < 250


@pytest.mark.parametrize('mean', [-0.4, 0.0, 5.0])
@pytest.mark.parametrize('bound', [1e-3, 0.5, 2.0])
def test_sdcf_value_epsilon_is_minus_log_of_the_mass(mean, bound):
  normal = stats.norm(mean, 0.9)
  mass = normal.cdf(bound) - normal.cdf(-bound)
  ours = sdcf_claims.epsilon_value(bound, mean=mean, deviation=0.9)
  assert ours == pytest.approx(-math.log(mass), rel=1e-6)
  if bound < abs(mean) + 1.8:
    back = sdcf_claims.bound(ours, mean=mean, deviation=0.9)
    assert back == pytest.approx(bound, rel=1e-9)


def test_sdcf_value_epsilon_far_from_the_mean():
  # The mass is 1e-1000 and no float.
  ours = sdcf_claims.epsilon_value(0.1, mean=70.0, deviation=1.0)
  assert ours == pytest.approx(69.9**2 / 2, rel=1e-2)


@pytest.mark.parametrize(
  ('objective', 'relation', 'sensitivity'),
  [('zhang', 'add_remove', 5), ('zhang', 'replace', 4), ('hua', 'replace', 8)],
)
def test_objective_scale(objective, relation, sensitivity):
  scale = accounting.claimed_objective_scale(
    objective, 0.5, relation=relation, scale=(1, 5)
  )
  assert scale == sensitivity / 0.5


def test_objective_scale_moves_the_density_by_epsilon():
  # Two data sets that differ in one rating have the minimiser q at two etas,
  # which differ by the gradient of that rating: (r - r') p, twice for 'hua'.
  for objective, factor in (('zhang', 1), ('hua', 2)):
    scale = accounting.claimed_objective_scale(
      objective, 0.7, relation='replace', scale=(0.5, 5)
    )
    assert factor * 4.5 / scale == pytest.approx(0.7)


def test_hua_share_scale():
  ours = accounting.claimed_hua_share_scale(
    rating_range=4.0, rank=20, epsilon=0.5
  )
  assert ours == pytest.approx(2 * 4 * math.sqrt(20) / 0.5)


@pytest.mark.parametrize(
  ('make', 'words'),
  [
    (lambda: sdcf.claimed_sdcf_flip(1.0, 0), 'num_rated must be >= 1'),
    (
      lambda: sdcf.claimed_sdcf_rates(
        epsilon_instant=1.0, num_rated=9, num_items=5, sent=1.0
      ),
      'num_rated must be at most num_items = 5, got 9',
    ),
    (
      lambda: sdcf.claimed_sdcf_rates(
        epsilon_instant=1.0, num_rated=3, num_items=5, sent=5.0
      ),
      'sent must be below num_items = 5, got 5.0',
    ),
    (
      lambda: accounting.claimed_sdcf_response(
        epsilon_permanent=0.0, epsilon_instant=1.0, num_rated=3, **ML
      ),
      'epsilon_permanent must be > 0',
    ),
    (
      lambda: accounting.pdp_probabilities([0.1], 'median'),
      "threshold must be 'mean', 'max' or a number, got 'median'",
    ),
    (
      lambda: accounting.pdp_probabilities([0.1, -0.1], 'max'),
      'epsilons must be > 0 and finite, got -0.1',
    ),
    (
      lambda: accounting.claimed_hua_share_scale(
        rating_range=4.0, rank=0, epsilon=1.0
      ),
      'rank must be >= 1, got 0',
    ),
  ],
)
def test_errors_name_the_parameter(make, words):
  with pytest.raises(ValueError, match=words):
    make()


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'objective': 'hua'}, "relation must be 'replace' for objective 'hua'"),
    ({'objective': 'pmf'}, "objective must be 'zhang' or 'hua', got 'pmf'"),
    ({'relation': 'remove'}, "must be 'replace' or 'add_remove', got 'remove'"),
    ({'epsilon': 0.0}, 'epsilon must be > 0, got 0.0'),
    ({'scale': (5, 1)}, 'scale must be r_min < r_max'),
    ({'scale': (-9, 1)}, 'scale must not go below 0'),
  ],
)
def test_errors_of_objectives_name_the_parameter(change, words):
  good = {'objective': 'zhang', 'epsilon': 1.0, 'scale': (1, 5)}
  with pytest.raises(ValueError, match=words):
    accounting.claimed_objective_scale(
      **{**good, 'relation': 'add_remove', **change}
    )
