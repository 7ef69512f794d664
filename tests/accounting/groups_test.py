import functools
import math

import mpmath
import numpy as np
import pytest
import stated
from hypothesis import given
from hypothesis import strategies as st

from dpmf_jax import accounting
from dpmf_jax.accounting import Gaussian, gaussian, groups, tails
from dpmf_jax.plans import SPECS
from dpmf_jax.plans import dpals as dpals_plan
from dpmf_jax.systems import build
from dpmf_jax.types import Tails

DELTA = 1e-6


def sound(name, **settings):
  """The guarantee of a sound system."""
  entry = SPECS[name]
  given = {'scale': (1.0, 5.0), 'delta': DELTA, 'epsilon': 2.0} | settings
  return build(
    name, entry.config(**{**entry.variants['sound'], **given})
  ).guarantee


plain = functools.partial(stated.guarantee, relation='add_remove')


def test_ten_ratings_at_epsilon_2():
  # As docs/privacy/sharp_edges.md has it. From (epsilon, delta) alone nothing
  # follows: epsilon 20 with a delta above 1, where the exact one is 0.8%.
  epsilon, delta = groups.group(sound('gaussian_mf'), DELTA, 10)
  assert (round(epsilon, 1), delta) == (30.7, DELTA)
  assert groups.of_any(2.0, DELTA, 10) == (20.0, 1.0)
  mu = gaussian.mu_of(2.0, DELTA)
  assert gaussian.delta_of(10 * mu, 20.0) == pytest.approx(0.008, abs=5e-4)


@given(st.floats(0.05, 3), st.floats(1e-9, 1e-3), st.integers(1, 10))
def test_gaussian_groups_are_on_the_exact_curve(epsilon, delta, size):
  mu = gaussian.mu_of(epsilon, delta)
  guarantee = plain(Gaussian(20 / mu, 400), tails=Tails(1e9, 1, 1))
  found, at = groups.group(guarantee, delta, size)
  assert at == delta
  assert gaussian.delta_of(size * mu, found) <= delta
  want = gaussian.epsilon_of(size * mu, delta)
  assert want <= found <= want * (1 + 1e-6)


@pytest.mark.parametrize(
  'event',
  [
    accounting.Pure(0.7),
    accounting.RandomizedResponse(0.7, categories=5),
    accounting.Laplace(1 / 0.7),
    accounting.L2Laplace(1 / 0.7, 1, 3),
  ],
  ids=lambda event: type(event).__name__,
)
def test_pure_groups_have_so_many_epsilons(event):
  for size in (1, 2, 10):
    epsilon, delta = groups.group(plain(event), 0.0, size)
    assert delta == 0
    assert size * 0.7 * (1 - 1e-15) <= epsilon <= size * 0.7 * (1 + 1e-15)
    # A delta that is allowed takes hardly anything off, and adds nothing.
    smaller, at = groups.group(plain(event), DELTA, size)
    assert at == DELTA
    assert epsilon - 1e-5 < smaller <= epsilon
  # Exact products are not rounded up.
  assert groups.group(plain(accounting.Pure(2.0)), 0.0, 10) == (20.0, 0.0)


def test_parts_of_a_mixture_are_grouped_each():
  both = accounting.Composed((Gaussian(40.0, 9), accounting.Pure(0.5, 2)))
  guarantee = plain(both, tails=Tails(40.0, 4, 9))
  epsilon, delta = groups.group(guarantee, DELTA, 4)
  larger = accounting.Composed((Gaussian(10.0, 9), accounting.Pure(2.0, 2)))
  assert delta == DELTA
  assert epsilon == pytest.approx(accounting.epsilon(larger, DELTA), rel=1e-9)


@given(st.floats(0.01, 3), st.floats(1e-12, 1e-3), st.integers(1, 10))
def test_what_follows_from_epsilon_and_delta_holds_for_gaussian_noise(
  epsilon, delta, size
):
  total, chance = groups.of_any(epsilon, delta, size)
  assert total == pytest.approx(size * epsilon)
  mu = gaussian.mu_of(epsilon, delta)
  assert gaussian.delta_of(size * mu, total) <= chance
  with mpmath.workdps(40):
    want = sum(delta * mpmath.exp(k * epsilon) for k in range(size))
    assert min(want, 1) <= chance <= min(want * (1 + 1e-8), 1)


@pytest.mark.parametrize('epsilon', [0.0, 1e-300, 700.0, 1e300, math.inf])
def test_no_epsilon_is_too_small_or_large(epsilon):
  total, chance = groups.of_any(epsilon, 0.0, 10)
  assert (total, chance) == (pytest.approx(10 * epsilon), 0.0)
  assert DELTA <= groups.of_any(epsilon, DELTA, 10)[1] <= 1


def test_what_is_not_known_follows_from_epsilon_and_delta_alone():
  sampled = accounting.SubsampledGaussian(3.0, 0.1, 10)
  claimed = accounting.ClaimedPure(1.5)
  for guarantee in (
    plain(Gaussian(5.0)),  # and not what a unit moves
    plain(sampled),
    plain(claimed, status='claimed'),
  ):
    alone = accounting.epsilon(guarantee, DELTA)
    want = groups.of_any(alone, DELTA, 2)
    assert groups.group(guarantee, DELTA, 2) == want


# The end of the tails.


def test_a_group_whose_noise_ends_has_a_larger_delta():
  # 10 ratings move a step by 3.7 standard deviations or more, out of 9.
  guarantee = sound('power_mf', epsilon=4.0)
  lost = groups.tails_of_group(guarantee.tails, 10)
  assert lost > DELTA / 2
  epsilon, delta = groups.group(guarantee, DELTA, 10)
  assert delta == 2 * lost < 1e-3
  event = accounting.groups.grouped(guarantee.event, 10)
  assert epsilon == accounting.epsilon(event, lost)
  # And with less noise still, nothing.
  _, delta = groups.group(sound('gaussian_mf', epsilon=40.0), DELTA, 10)
  assert delta == 1


def test_tails_of_groups_are_above_any_way_to_move_the_draws():
  # Dirichlet draws say how the move is shared out between pairs.
  rng = np.random.default_rng(0)
  for multiplier, number, size in ((17.0, 8, 10), (3.0, 40, 2), (1.5, 5, 10)):
    bound = groups.tails_of_group(Tails(multiplier, number, 3), size)
    moved = size / multiplier
    for alpha in (0.05, 1.0, 50.0):
      shares = rng.dirichlet(np.full(size * number, alpha), size=50)
      moves = moved * np.sqrt(shares)
      total = 3 * np.exp(-np.square(tails.REACH - moves) / 2).sum(axis=1)
      assert (total <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize(
  ('name', 'settings'),
  [
    ('gaussian_mf', {}),
    ('power_mf', {}),
    ('dpals', {}),
    ('moments', {}),
    ('moments', {'unit': 'rating'}),
    ('local_mf', {'unit': 'user'}),
    ('objective_pmf', {'feature_share': 0.4}),
  ],
)
def test_every_system_with_gaussian_noise_says_what_a_unit_moves(
  name, settings
):
  guarantee = sound(name, **settings)
  tails = guarantee.tails
  assert tails is not None
  mu = accounting.gaussian_mu(
    accounting.Composed(
      tuple(
        part
        for part in accounting.events.leaves(guarantee.event)
        if isinstance(part, Gaussian)
      )
    )
  )
  # No step moves more than all together, and all together no more than if
  # each had the least noise.
  assert 1 / tails.noise_multiplier <= mu * (1 + 1e-9)
  assert math.sqrt(tails.steps) / tails.noise_multiplier >= mu * 0.995


def test_draws_are_at_least_those_that_are_checked():
  config = dpals_plan.DPALSConfig(
    relation='add_remove', scale=(1.0, 5.0), delta=1e-9, epsilon=2.0, rank=3
  )
  most = dpals_plan.plan(config).guarantee.tails.draws
  dpals_plan.check_tails(config, most // 6)  # 5 draws an item
  with pytest.raises(ValueError, match='tails'):
    dpals_plan.check_tails(config, most // 5 + 1)
  for lost in (1e-12, 1e-8):
    most = tails.max_draws(lost)
    assert tails.uncovered_jointly(1e9, most + 1) > lost
