"""The tightest valid rule for any mixture, and calibration to a target."""

import math

import dp_accounting
import pytest
import stated
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  events,
)

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def test_ten_responses_are_ten_and_not_one():
  # 1-DP: the truth with probability e/(e + 1), so a coin with 2/(e + 1).
  coin = dp_accounting.RandomizedResponseDpEvent(2 / (math.e + 1), 2)
  accountant = PLDAccountant(REPLACE)
  accountant.compose(coin, 10)
  # The defect of dp-accounting 0.6.0: `count` is ignored.
  assert accountant.get_epsilon(1e-6) == pytest.approx(1.0, abs=1e-3)
  ours = accounting.epsilon(events.RandomizedResponse(1.0, 10), 1e-6)
  # All ten are the truth with probability (e/(e + 1))^10.
  exact = 10 + math.log1p(-1e-6 * (1 + math.exp(-1)) ** 10)
  assert ours == pytest.approx(exact, rel=1e-9)
  assert ours == pytest.approx(10.0, abs=1e-3)
  # Composed by hand, their distribution agrees.
  single = library.from_randomized_response(2 / (math.e + 1), 2)
  by_hand = single.self_compose(10).get_epsilon_for_delta(1e-6)
  assert by_hand == pytest.approx(ours, abs=1e-2)


def test_replace_one_doubles_a_gaussian_shift():
  accountant = RdpAccountant(neighboring_relation=REPLACE)
  accountant.compose(dp_accounting.GaussianDpEvent(2.0))
  wrong = accountant.get_epsilon(1e-6)
  other = PLDAccountant(REPLACE)
  other.compose(dp_accounting.GaussianDpEvent(2.0))
  right = other.get_epsilon(1e-6)
  # The defect of dp-accounting 0.6.0: its RDP accountant takes the noise 2.0,
  # which it means for add/remove, for replace as well.
  one_shift = accounting.epsilon(events.Gaussian(2.0), 1e-6)
  two_shifts = accounting.epsilon(events.Gaussian(1.0), 1e-6)
  assert one_shift <= wrong < 1.2 * one_shift
  assert right == pytest.approx(two_shifts, rel=1e-3)
  assert wrong < 0.6 * right


def test_known_values():
  # Single releases have closed forms.
  assert accounting.epsilon(events.Laplace(2.0), 0.01) == pytest.approx(
    0.5 + 2 * math.log(0.99)
  )
  assert accounting.delta(events.Laplace(2.0), 0.1) == pytest.approx(
    1 - math.exp(-0.2)
  )
  assert accounting.epsilon(events.Pure(1.0), 0.01) == pytest.approx(
    1 + math.log1p(-0.01 * (1 + math.exp(-1)))
  )
  # Six-ary: all ten are the truth with probability (e/(e + 5))^10.
  ours = accounting.epsilon(events.RandomizedResponse(1.0, 10, 6), 1e-6)
  exact = 10 + math.log1p(-1e-6 * ((math.e + 5) / math.e) ** 10)
  assert ours == pytest.approx(exact, abs=1e-4)
  assert ours >= exact


def test_pure_events_have_an_epsilon_at_delta_zero():
  event = events.Composed(
    (events.Pure(0.5, 3), events.Laplace(2.0, 2), events.L2Laplace(4.0, 4, 20))
  )
  assert accounting.epsilon(event, 0.0) == pytest.approx(3.5)
  assert accounting.epsilon(event, 0.0) >= 3.5
  assert accounting.delta(event, 3.6) == 0.0
  assert accounting.epsilon(events.Pure(0.7), 0.0) == 0.7
  for part in (events.Gaussian(1.0), events.SubsampledGaussian(1.0, 0.1)):
    with pytest.raises(ValueError, match=r'delta must be in .* got 0.0'):
      accounting.epsilon(events.Composed((event, part)), 0.0)


MIXTURES = (
  events.Composed((events.Gaussian(2.0, 12), events.Laplace(10.0, 5))),
  events.Composed((events.Pure(0.1, 50), events.Pure(0.3, 10))),
  events.Composed(
    (events.SubsampledGaussian(1.1, 0.01, 500), events.Laplace(5.0))
  ),
  events.RandomizedResponse(0.5, 20, 6),
  events.L2Laplace(10.0, 100, 20),
)


@pytest.mark.parametrize('event', MIXTURES, ids=str)
def test_the_smallest_of_valid_bounds(event):
  bounds = accounting.bounds(event, 1e-6)
  assert accounting.epsilon(event, 1e-6) == min(bounds.values())
  assert {'basic', 'renyi_canonne', 'pld'} <= bounds.keys()
  # The distribution is the tightest up to its grid; here L2-Laplace has one
  # of any pure mechanism only.
  if not isinstance(event, events.L2Laplace):
    assert bounds['pld'] <= bounds['renyi_canonne'] * (1 + 1e-4)
  tiny = accounting.bounds(event, 1e-200)
  assert tiny['pld'] == math.inf
  assert accounting.epsilon(event, 1e-200) < math.inf


def test_a_mixture_agrees_with_dp_accounting():
  event = MIXTURES[0]
  accountant = PLDAccountant()
  accountant.compose(dp_accounting.GaussianDpEvent(2.0), 12)
  accountant.compose(dp_accounting.LaplaceDpEvent(10.0), 5)
  assert accounting.epsilon(event, 1e-6) == pytest.approx(
    accountant.get_epsilon(1e-6), rel=1e-3
  )
  renyi = RdpAccountant(orders=[1 + k / 50 for k in range(1, 1000)])
  renyi.compose(dp_accounting.GaussianDpEvent(2.0), 12)
  renyi.compose(dp_accounting.LaplaceDpEvent(10.0), 5)
  ours = accounting.bounds(event, 1e-6)['renyi_canonne']
  assert ours == pytest.approx(renyi.get_epsilon(1e-6), rel=1e-4)


def test_a_sample_agrees_with_dp_accounting():
  event = events.SubsampledGaussian(1.1, 0.01, 1000)
  accountant = PLDAccountant()
  gaussian = dp_accounting.GaussianDpEvent(1.1)
  accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, gaussian), 1000)
  assert accounting.epsilon(event, 1e-6) == pytest.approx(
    accountant.get_epsilon(1e-6), rel=1e-3
  )


noises = st.floats(-1, 2).map(lambda log: 10.0**log)
counts = st.integers(1, 50)
# With larger ones the curve has flat parts, where delta says little of epsilon.
epsilons = st.floats(-2, 0).map(lambda log: 10.0**log)
parts = st.one_of(
  st.builds(events.Gaussian, noises, counts),
  st.builds(events.Laplace, noises, counts),
  st.builds(events.L2Laplace, noises, counts, st.sampled_from((None, 3, 20))),
  st.builds(events.Pure, epsilons, counts),
  st.builds(
    events.RandomizedResponse, epsilons, counts, st.sampled_from((2, 6))
  ),
  st.builds(events.SubsampledGaussian, noises, st.floats(0.001, 0.5), counts),
)
mixtures = st.lists(parts, min_size=1, max_size=3).map(
  lambda many: events.Composed(tuple(many))
)


@settings(max_examples=25, derandomize=True)
@given(mixtures, st.sampled_from((1e-300, 1e-12, 1e-6, 0.01)))
def test_there_and_back_loses_no_epsilon(event, delta):
  epsilon = accounting.epsilon(event, delta)
  assert 0 <= epsilon < math.inf
  back = accounting.delta(event, epsilon)
  # A delta is as exact as an epsilon that is rounded to a float lets it be.
  assert 0 <= back <= delta * (1 + 1e-6) + 1e-14 * max(1, epsilon)
  if back > 0:
    again = accounting.epsilon(event, back)
    assert again >= epsilon - 1e-9 * max(1, epsilon)


@settings(max_examples=12, derandomize=True)
@given(st.floats(-0.5, 2), st.integers(1, 200), st.sampled_from((1e-8, 1e-4)))
def test_distribution_next_to_exact_below_renyi(log_noise, count, delta):
  # Where the exact curve is known, as a distribution that does not know it:
  # a Gaussian as a sample of everything.
  noise = 10.0**log_noise
  exact = accounting.epsilon(events.Gaussian(noise, count), delta)
  event = (events.SubsampledGaussian(noise, 1.0, count),)
  grid = accounting.pld.grid_of(event, exact)
  above = accounting.pld.epsilon_of(event, delta, grid)
  renyi = accounting.rdp.epsilon_canonne(
    accounting.curve_of(event[0]), delta
  ).epsilon
  assert exact <= above <= renyi
  # The stated discretisation.
  assert above <= exact * (1 + 5e-4) + 100 * grid


def test_rounding_of_the_library_is_paid_for():
  # 5-GDP in a hundred thousand parts: Fourier transforms of that many factors.
  count = 10**5
  event = (events.SubsampledGaussian(math.sqrt(count) / 5, 1.0, count),)
  exact = accounting.gaussian.epsilon_of(5.0, 1e-11)
  grid = accounting.pld.grid_of(
    event, accounting.gaussian.epsilon_of(5.0, 1e-6)
  )
  loss = accounting.pld.distribution(event, grid)
  assert loss.get_delta_for_epsilon(exact) < 0.9e-11  # below the truth
  # So there it is not used, and where it is used there is a margin.
  assert accounting.pld.epsilon_of(event, 1e-11, grid) == math.inf
  for delta in (1e-7, 1e-4):
    exact = accounting.gaussian.epsilon_of(5.0, delta)
    assert accounting.pld.epsilon_of(event, delta, grid) >= exact
    assert accounting.pld.delta_of(event, exact, grid) >= delta


@settings(max_examples=12, derandomize=True)
@given(epsilons, st.integers(1, 200), st.sampled_from((1e-8, 1e-4)))
def test_responses_as_a_distribution(epsilon, count, delta):
  event = (events.RandomizedResponse(epsilon, count),)
  exact = accounting.epsilon(event[0], delta)
  grid = accounting.pld.grid_of(event, exact)
  above = accounting.pld.epsilon_of(event, delta, grid)
  renyi = accounting.rdp.epsilon_canonne(
    accounting.curve_of(event[0]), delta
  ).epsilon
  assert exact <= above <= renyi + 100 * grid
  assert above <= exact * (1 + 5e-4) + 100 * grid


@pytest.mark.parametrize('delta', [1e-300, 1e-6])
@pytest.mark.parametrize(
  'event',
  [
    events.Laplace(1e6, 10**6),
    events.Laplace(1e-4, 10),
    events.L2Laplace(1e6, 10**6, 1000),
    events.L2Laplace(1e-4, 10, 20),
    events.Pure(1e-6, 10**6),
    events.RandomizedResponse(1e4, 3, 6),
    events.SubsampledGaussian(1e6, 1e-6, 10**6),
    events.SubsampledGaussian(0.01, 0.99, 10, 'without_replacement'),
    events.Composed((events.Gaussian(1e6, 10**6), events.Pure(1e-6, 10**6))),
    events.Composed((events.Gaussian(0.01), events.Pure(1e4))),
  ],
  ids=str,
)
def test_extremes_are_finite(event, delta):
  epsilon = accounting.epsilon(event, delta)
  more = accounting.epsilon(events.Composed((event, event)), delta)
  assert 0 <= epsilon < math.inf
  assert 0 <= more < math.inf
  assert more >= epsilon
  back = accounting.delta(event, epsilon)
  assert 0 <= back <= delta * (1 + 1e-6) + 1e-14 * max(1, epsilon)


def test_equal_releases_are_counted_together():
  apart = events.Composed(
    (events.Laplace(9.0, 3), events.Pure(0.2), events.Laplace(9.0, 4))
  )
  together = events.Composed((events.Laplace(9.0, 7), events.Pure(0.2)))
  assert accounting.epsilon(apart, 1e-6) == accounting.epsilon(together, 1e-6)
  nothing = events.Composed(
    (events.Laplace(9.0, 0), events.SubsampledGaussian(1.0, 0.1, 0))
  )
  assert accounting.epsilon(nothing, 1e-6) == 0.0
  assert accounting.count_of(apart) == 8
  assert accounting.prefix(apart, 5) == events.Composed(
    (events.Laplace(9.0, 3), events.Pure(0.2), events.Laplace(9.0, 1))
  )


def test_samples_keep_to_their_relation():
  poisson = events.SubsampledGaussian(1.0, 0.1, 5)
  fixed = events.SubsampledGaussian(1.0, 0.1, 5, 'without_replacement')
  with pytest.raises(ValueError, match='sampling must be the same'):
    accounting.epsilon(events.Composed((poisson, fixed)), 1e-6)
  for event, relation in ((poisson, 'replace'), (fixed, 'add_remove')):
    statement = stated.guarantee(event, relation=relation)
    with pytest.raises(ValueError, match=f'relation must be .* {relation!r}'):
      accounting.epsilon(statement, 1e-6)
  with pytest.raises(ValueError, match="must be 'poisson' for a loss"):
    accounting.pld.distribution((fixed,), 1e-3)


def test_claims_do_not_get_into_a_mixture():
  claim = events.ClaimedGaussianMF(0.3, 0.01, 10)
  for read in (accounting.epsilon, accounting.delta, accounting.bounds):
    with pytest.raises(ValueError, match='claim cannot be part of a proof'):
      read(events.Composed((events.Pure(1.0), claim)), 1e-5)
  assert accounting.bounds(claim, 1e-5) == {
    'claimed': accounting.epsilon(claim, 1e-5)
  }


@pytest.mark.parametrize(
  ('make', 'words'),
  [
    (lambda: events.Laplace(0.0), 'zero noise is not private'),
    (lambda: events.L2Laplace(1.0, 1, 0), 'dimension must be >= 1, got 0'),
    (lambda: events.Pure(-1.0), 'epsilon must be >= 0, got -1.0'),
    (lambda: events.Pure(math.inf), 'epsilon must be finite'),
    (lambda: events.Pure(1.0, -1), 'count must be an integer >= 0, got -1'),
    (
      lambda: events.RandomizedResponse(1.0, 1, 1),
      'categories must be >= 2, got 1',
    ),
    (lambda: events.SubsampledGaussian(1.0, 0.0), r'sampling_rate .* got 0.0'),
    (lambda: events.SubsampledGaussian(1.0, 1.5), r'sampling_rate .* got 1.5'),
    (
      lambda: events.SubsampledGaussian(1.0, 0.1, 1, 'x'),
      "sampling must be .* 'x'",
    ),
    (lambda: accounting.epsilon(events.Pure(1.0), 1.0), 'delta must be in'),
    (lambda: accounting.delta(events.Pure(1.0), -1.0), 'epsilon must be >= 0'),
  ],
)
def test_wrong_events_are_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()


@pytest.mark.parametrize(
  ('make', 'low', 'high', 'safer'),
  [
    (lambda noise: events.Gaussian(noise, 100), 0.01, 1e5, 1 + 2e-6),
    (lambda noise: events.L2Laplace(noise, 10, 20), 0.1, 1e4, 1 + 2e-6),
    (lambda epsilon: events.Pure(epsilon, 20), 1e-6, 1e4, 1 - 2e-6),
    (
      lambda rate: events.SubsampledGaussian(
        2.0, rate, 100, 'without_replacement'
      ),
      1e-6,
      1.0,
      1 - 2e-6,
    ),
  ],
)
@pytest.mark.parametrize('target', [0.3, 3.0])
def test_calibrate_any_parameter(make, low, high, safer, target):
  at = lambda value: accounting.epsilon(make(value), 1e-6)
  value = accounting.calibrate(
    make, epsilon=target, delta=1e-6, low=low, high=high
  )
  assert at(value) <= target  # never on the wrong side
  assert at(value / safer) > target  # and not far from it


def test_calibrate_whole_numbers():
  at = lambda steps: accounting.epsilon(events.Laplace(20.0, int(steps)), 1e-6)
  steps = accounting.calibrate(
    lambda steps: events.Laplace(20.0, int(steps)),
    epsilon=2.0,
    delta=1e-6,
    low=1,
    high=10**5,
    integer=True,
  )
  assert steps == int(steps)
  assert at(steps) <= 2.0 < at(steps + 1)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'low': 50.0}, r'all of \[50, 100\] holds it'),
    ({'high': 0.2}, r'nothing in \[0.1, 0.2\] holds it'),
    ({'low': -1.0}, '0 < low < high, got -1.0 and 100.0'),
    ({'epsilon': -1.0}, 'epsilon must be >= 0, got -1.0'),
    ({'delta': 2.0}, 'delta must be in'),
  ],
)
def test_targets_out_of_reach_are_refused(change, words):
  given_ = {'epsilon': 1.0, 'delta': 1e-6, 'low': 0.1, 'high': 100.0}
  with pytest.raises(ValueError, match=words):
    accounting.calibrate(events.Gaussian, **(given_ | change))
