"""Events to dp-accounting and back, and what its accountants say of them."""

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  Gaussian,
  Laplace,
  RandomizedResponse,
  SubsampledGaussian,
  compose,
  events,
  from_dp_event,
  to_dp_event,
)

WITHOUT = 'without_replacement'
CONVERTED = [
  Gaussian(3.7),
  Gaussian(3.7, 0),
  Gaussian(40.0, 1000),
  Laplace(12.0, 30),
  SubsampledGaussian(1.1, 0.013, 200),
  SubsampledGaussian(1.1, 0.013, 200, WITHOUT),
  SubsampledGaussian(1.1, 1 / 3, 2, WITHOUT),
  SubsampledGaussian(1.1, 0.1 + 1e-15, 2, WITHOUT),
  compose(),
  compose(Gaussian(3.0)),
  compose(Gaussian(3.0), Laplace(2.0, 4), compose(Laplace(5.0))),
]


@pytest.mark.parametrize('event', CONVERTED, ids=repr)
def test_there_and_back(event):
  assert from_dp_event(to_dp_event(event)) == event


@pytest.mark.parametrize('epsilon', [1e-8, 1e-6, 0.1, 1.0, 30.0, 600.0])
@pytest.mark.parametrize(('count', 'categories'), [(1, 2), (5, 6)])
def test_responses_there_and_back(epsilon, count, categories):
  event = RandomizedResponse(epsilon, count, categories)
  back = from_dp_event(to_dp_event(event))
  assert isinstance(back, RandomizedResponse)
  assert (back.count, back.categories) == (count, categories)
  # A chance near 1 keeps 16 digits of itself, not of its distance to 1.
  assert back.epsilon == pytest.approx(epsilon, rel=1e-14, abs=1e-14)
  assert back.epsilon >= epsilon


@pytest.mark.parametrize(
  ('event', 'relation', 'tolerance'),
  [
    (Gaussian(40.0, 1000), Relation.ADD_OR_REMOVE_ONE, 1e-4),
    (Laplace(12.0, 30), Relation.ADD_OR_REMOVE_ONE, 1e-3),
    (RandomizedResponse(0.3, 20, 6), Relation.REPLACE_ONE, 1e-3),
    (SubsampledGaussian(1.1, 0.013, 200), Relation.ADD_OR_REMOVE_ONE, 5e-3),
    (
      compose(Gaussian(4.0, 9), Laplace(10.0, 5)),
      Relation.ADD_OR_REMOVE_ONE,
      1e-3,
    ),
  ],
  ids=repr,
)
def test_their_loss_distributions_agree(event, relation, tolerance):
  accountant = PLDAccountant(relation)
  accountant.compose(to_dp_event(event))
  for delta in (1e-4, 1e-7):
    ours = accounting.epsilon(event, delta)
    assert ours == pytest.approx(accountant.get_epsilon(delta), rel=tolerance)


@pytest.mark.parametrize(
  ('event', 'relation'),
  [
    (Gaussian(40.0, 1000), Relation.ADD_OR_REMOVE_ONE),
    (Laplace(12.0, 30), Relation.ADD_OR_REMOVE_ONE),
    (SubsampledGaussian(1.1, 0.013, 200), Relation.ADD_OR_REMOVE_ONE),
    (SubsampledGaussian(1.1, 0.013, 200, WITHOUT), Relation.REPLACE_ONE),
  ],
  ids=repr,
)
def test_their_renyi_accountant_agrees(event, relation):
  orders = [1 + k / 50 for k in range(1, 50)] + list(range(2, 64))
  accountant = RdpAccountant(orders, relation)
  accountant.compose(to_dp_event(event))
  theirs, their_order = accountant.get_epsilon_and_optimal_order(1e-6)
  ours = accounting.renyi_epsilon(event, 1e-6, order=their_order)
  assert ours.epsilon == pytest.approx(theirs, rel=1e-6)
  best = accounting.renyi_epsilon(event, 1e-6)
  assert best.epsilon <= theirs * (1 + 1e-8)  # their orders are some of ours
  assert best.order == pytest.approx(their_order, abs=1)


def test_noise_that_ends_is_converted_as_exact_noise():
  event = Gaussian(20.0, 100, uncovered=1e-8)
  with pytest.raises(ValueError, match=r'convert exact_noise\(event\)'):
    to_dp_event(compose(event, Laplace(2.0)))
  accountant = PLDAccountant(Relation.ADD_OR_REMOVE_ONE)
  accountant.compose(to_dp_event(accounting.exact_noise(event)))
  theirs = accountant.get_epsilon(accounting.delta_left(event, 1e-6))
  assert accounting.epsilon(event, 1e-6) == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize(
  'event', [accounting.L2Laplace(3.0), accounting.Pure(1.0)]
)
def test_events_without_a_counterpart_there(event):
  with pytest.raises(ValueError, match='has no counterpart in dp-accounting'):
    to_dp_event(compose(Gaussian(2.0), event))


def test_a_claim_is_not_converted():
  with pytest.raises(ValueError, match='a claim cannot be part of a proof'):
    to_dp_event(accounting.ClaimedPure(1.0))


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.NonPrivateDpEvent(),
    dp_accounting.ZCDpEvent(0.1),
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)),
    dp_accounting.SampledWithReplacementDpEvent(
      10, 2, dp_accounting.GaussianDpEvent(1.0)
    ),
  ],
  ids=repr,
)
def test_events_without_a_counterpart_here(event):
  with pytest.raises(ValueError, match='of dp-accounting has no counterpart'):
    from_dp_event(dp_accounting.SelfComposedDpEvent(event, 3))


def test_responses_that_never_lie_are_refused():
  with pytest.raises(ValueError, match='noise_parameter=0 must be in'):
    from_dp_event(dp_accounting.RandomizedResponseDpEvent(0, 2))


def test_what_is_repeated_is_counted():
  both = dp_accounting.ComposedDpEvent(
    [dp_accounting.GaussianDpEvent(2.0), dp_accounting.LaplaceDpEvent(3.0)]
  )
  found = from_dp_event(dp_accounting.SelfComposedDpEvent(both, 7))
  assert found == events.Composed((Gaussian(2.0, 7), Laplace(3.0, 7)))
