"""Events that are chosen by what was released before."""

import math

import numpy as np
import pytest
import stated
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  Composed,
  Either,
  Gaussian,
  Pure,
  encoding,
  events,
  filters,
  groups,
  ledger,
)
from dpmf_jax.types import Tails

DELTA = 1e-6
# Both are about (1, 1e-6).
BRANCHES = (
  Gaussian(4.23, uncovered=1e-12),
  accounting.L2Laplace(1.0, 1, 2, 1e-11),
)
RUN = Composed((Pure(0.002, 1, 1e-17), Either(BRANCHES)))


def test_it_is_the_worst_of_them_after_a_pure_count():
  exact = accounting.exact_noise(RUN)
  for delta in (1e-9, 1e-6, 1e-3, 0.1):
    each = [
      accounting.epsilon(accounting.exact_noise(one), delta) for one in BRANCHES
    ]
    basic = accounting.bounds(exact, delta)['basic']
    assert basic == pytest.approx(0.002 + max(each), rel=1e-9)
    assert basic >= 0.002 + max(each)
    assert accounting.epsilon(exact, delta) <= basic
  for epsilon in (0.1, 0.9, 1.5):
    found = accounting.delta(exact, epsilon)
    each = [
      accounting.delta(accounting.exact_noise(one), epsilon - 0.002)
      for one in BRANCHES
    ]
    assert found <= max(each) * (1 + 1e-6)


def test_its_curve_is_the_largest_at_each_order():
  orders = np.array([1.1, 2.0, 8.0, 64.0, 1000.0])
  count, *both = (
    accounting.curve_of(each)(orders) for each in (RUN.events[0], *BRANCHES)
  )
  found = accounting.curve_of(RUN)(orders)
  np.testing.assert_allclose(found, count + np.maximum(*both), rtol=1e-12)
  assert (found >= count + np.maximum(*both)).all()
  # Each is the larger one somewhere.
  assert len(set((both[0] > both[1]).tolist())) == 2
  three = accounting.curve_of(Either(BRANCHES, 3))(orders)
  np.testing.assert_allclose(three, 3 * np.maximum(*both), rtol=1e-12)


def test_what_the_ends_cost_is_the_most_of_them():
  assert events.uncovered(Either(BRANCHES, 2)) == 2e-11
  assert events.uncovered(RUN) == pytest.approx(1e-11 + 1e-17)
  exact = accounting.exact_noise(RUN)
  assert events.uncovered(exact) == 0
  left = accounting.delta_left(RUN, DELTA)
  assert accounting.epsilon(RUN, DELTA) == accounting.epsilon(exact, left)
  with pytest.raises(ValueError, match='delta must be at least'):
    accounting.epsilon(RUN, 1e-12)


def best_choice(first_loss, first_chance, branches, epsilon):
  """Delta at `epsilon` of whoever chooses by the loss of the first release."""
  left = epsilon - first_loss
  best = np.zeros_like(left)
  for branch in branches:
    of = lambda x, branch=branch: (
      -math.expm1(x) if x < -50 else accounting.delta(branch, x)
    )
    profile = np.array(
      # For a negative epsilon: 1 - e^x (1 - delta(-x)), of symmetric pairs.
      [of(x) if x >= 0 else 1 - math.exp(x) * (1 - of(-x)) for x in left]
    )
    best = np.maximum(best, profile)
  return float(first_chance @ best)


@pytest.mark.parametrize('epsilon', [0.2, 0.8, 1.1])
def test_no_choice_by_a_response_has_more(epsilon):
  branches = Gaussian(2.0), Pure(1.0)
  event = Composed((accounting.RandomizedResponse(0.3), Either(branches)))
  kept = special.expit(0.3)
  found = best_choice(
    np.array([0.3, -0.3]), np.array([kept, 1 - kept]), branches, epsilon
  )
  assert 0 < found <= accounting.delta(event, epsilon)
  assert accounting.epsilon(event, found) >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize('epsilon', [1.0, 1.6])
def test_no_choice_by_a_gaussian_loss_has_more(epsilon):
  """Where exact composition of either with it would have less."""
  branches, mu = (Gaussian(2.5), Pure(0.55)), 0.5
  loss = np.linspace(-5, 5, 401) * mu + mu**2 / 2
  chance = np.exp(-(((loss - mu**2 / 2) / mu) ** 2) / 2)
  chance /= chance.sum()
  found = best_choice(loss, chance, branches, epsilon)
  fixed = [
    accounting.delta(Composed((Gaussian(1 / mu), branch)), epsilon)
    for branch in branches
  ]
  assert found > 1.01 * max(fixed)
  event = Composed((Gaussian(1 / mu), Either(branches)))
  assert found <= accounting.delta(event, epsilon)
  assert accounting.epsilon(event, found) >= epsilon


@given(st.floats(0.5, 20), st.floats(0.5, 20), st.integers(1, 4))
def test_it_grows_with_choices_and_falls_with_noise(noise, scale, count):
  def of(more, times=count):
    pair = Gaussian(noise * more), accounting.L2Laplace(scale * more, 1, 2)
    event = Composed((Pure(0.01), Either(pair, times)))
    return accounting.epsilon(event, DELTA)

  assert of(2.0) <= of(1.0) <= of(1.0, count + 1)
  fixed = accounting.epsilon(Gaussian(noise), DELTA)
  assert of(1.0) > max(fixed, 0.99 / scale)


def test_several_share_delta_between_them():
  two = Composed((RUN, RUN, Gaussian(10.0), accounting.Laplace(20.0)))
  exact = accounting.exact_noise(two)
  third = DELTA / 3
  each = max(
    accounting.epsilon(accounting.exact_noise(one), third) for one in BRANCHES
  )
  want = 0.004 + 0.05 + accounting.epsilon(Gaussian(10.0), third) + 2 * each
  assert accounting.bounds(exact, DELTA)['basic'] == pytest.approx(want)
  # They are counted together.
  (counted,) = (
    part
    for part in accounting.composition.merged(two)
    if isinstance(part, Either)
  )
  assert counted.count == 2


def test_pure_ones_have_an_epsilon_at_delta_zero():
  event = Composed((Pure(0.1), Either((Pure(1.0), accounting.Laplace(2.0)))))
  assert accounting.epsilon(event, 0.0) == pytest.approx(1.1)
  with pytest.raises(ValueError, match=r'delta must be in \(0, 1\)'):
    accounting.epsilon(accounting.exact_noise(RUN), 0.0)


def test_a_group_is_each_of_them_for_a_group():
  guarantee = stated.guarantee(
    RUN, relation='add_remove', tails=Tails(8.0, 6, 18)
  )
  epsilon, delta = groups.group(guarantee, DELTA, 3)
  each = [Gaussian(4.23 / 3), Pure(3.0)]
  want = 0.006 + max(accounting.epsilon(one, DELTA) for one in each)
  assert delta == DELTA
  assert epsilon == pytest.approx(want, rel=1e-3)
  # Without what a rating moves nothing is known of the Gaussian one's ends.
  unknown = stated.guarantee(RUN, relation='add_remove')
  assert groups.group(unknown, DELTA, 3)[1] > DELTA


def test_it_is_written_down_and_read_back():
  encoded = encoding.encode(RUN)
  assert encoding.decode(encoded) == RUN
  assert [*encoded['Composed']['events'][1]] == ['Either']
  with pytest.raises(ValueError, match='has no counterpart in dp-accounting'):
    accounting.to_dp_event(Either((Gaussian(2.0),)))


@pytest.mark.parametrize(
  ('branches', 'words'),
  [
    ((), 'at least one'),
    ((accounting.ClaimedPure(1.0),), 'a claim cannot be part'),
    ((accounting.SubsampledGaussian(1.0, 0.1),), 'must be Gaussian or pure'),
    ((Either(BRANCHES),), 'must be Gaussian or pure'),
    ((1.0,), 'must be an Event'),
  ],
)
def test_what_cannot_be_chosen_from_is_refused(branches, words):
  with pytest.raises(ValueError, match=words):
    Either(branches)


def test_steps_before_the_choice_cost_what_they_do():
  assert accounting.count_of(RUN) == 2
  assert accounting.epsilon(accounting.prefix(RUN, 1), DELTA) <= 0.002
  whole = accounting.epsilon(RUN, DELTA)
  assert accounting.epsilon(accounting.prefix(RUN, 2), DELTA) == whole


def test_filters_count_the_worst_of_them():
  """At a Renyi order, and as Gaussian where the first run was."""
  by = filters.rule(RUN, budget=4.0, delta=DELTA)
  found = filters.bounds([RUN, RUN], delta=DELTA, by=by)
  fixed = [
    filters.bounds([Composed((RUN.events[0], one))] * 2, delta=DELTA, by=by)
    for one in BRANCHES
  ]
  assert found.keys() == {'renyi'}
  assert found['renyi'] >= max(each['renyi'] for each in fixed)
  begun = [Gaussian(20.0), RUN]
  by = filters.rule(begun[0], budget=4.0, delta=DELTA)
  found = filters.bounds(begun, delta=DELTA, by=by)
  mu = math.hypot(1 / 20, math.sqrt(math.pi / 2), math.sqrt(math.pi / 2) / 500)
  want = accounting.epsilon(Gaussian(1 / mu), filters.MAIN_SHARE * DELTA)
  assert found['gaussian'] == pytest.approx(want, rel=1e-9)
  assert found['gaussian'] >= want


def test_a_budget_takes_more_than_one_such_run(tmp_path):
  """Of runs of epsilon 1 a budget of 4 has three, if they may be chosen."""
  path = tmp_path / 'ledger.db'
  facts = {
    'delta': DELTA, 'unit': 'rating', 'relation': 'add_remove',
    'dataset': 'made-up',
  }  # fmt: skip
  spend = lambda **more: ledger.spend(path, RUN, **facts, **more)
  spend(budget_epsilon=4.0)
  spend()
  spend()
  with pytest.raises(ledger.BudgetExceeded):
    spend()
  kept = ledger.entries(path)
  assert len(kept) == 3
  assert all(entry.event == RUN for entry in kept)
