"""Events, sensitivities, and the accountant's front door."""

import itertools
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stated import guarantee

from dpmf_jax import accounting
from dpmf_jax.accounting import ClaimedGaussianMF, Composed, Gaussian


def test_composition_is_exact():
  once = Gaussian(2.0, 12)
  parts = Composed((Gaussian(2.0, 4), Composed((Gaussian(2.0, 8),))))
  for event in (once, parts):
    mu = accounting.gaussian_mu(event)
    assert mu == pytest.approx(math.sqrt(12) / 2, rel=1e-15)
    assert mu >= math.sqrt(12) / 2
  assert accounting.epsilon(once, 1e-5) == pytest.approx(
    accounting.epsilon(parts, 1e-5), rel=1e-14
  )
  # Releases with different noise: mu^2 adds up.
  mixed = Composed((Gaussian(1.0), Gaussian(0.5)))
  assert accounting.epsilon(mixed, 1e-5) == pytest.approx(
    accounting.epsilon(Gaussian(1 / math.sqrt(5)), 1e-5), rel=1e-14
  )


def test_mu_is_rounded_up():
  rng = np.random.default_rng(0)
  for noise, count in zip(
    rng.uniform(0.1, 10, 200), rng.integers(1, 1000, 200), strict=True
  ):
    mu = accounting.gaussian_mu(Gaussian(noise, count))
    # Exact arithmetic on the floats: mu^2 noise^2 >= count.
    squared = (Fraction(mu) * Fraction(float(noise))) ** 2
    assert int(count) <= squared <= int(count) * (1 + 1e-14)


def test_guarantees_are_accounted_by_their_event():
  event = Gaussian(2.0, 12)
  proved = guarantee(status='proved', event=event)
  assert accounting.epsilon(proved, 1e-5) == accounting.epsilon(event, 1e-5)
  assert accounting.delta(proved, 3.0) == accounting.delta(event, 3.0)
  claim = ClaimedGaussianMF(0.3, 0.01, 1250)
  claimed = guarantee(status='claimed', event=claim)
  assert accounting.epsilon(claimed, 1e-5) == pytest.approx(22.2034, abs=1e-4)
  assert accounting.delta(claimed, 22.2034) == pytest.approx(1e-5, rel=1e-3)


def test_claims_and_proofs_do_not_mix():
  claim = ClaimedGaussianMF(0.3, 0.01, 10)
  with pytest.raises(ValueError, match='claim cannot be part of a proof'):
    accounting.epsilon(Composed((Gaussian(1.0), claim)), 1e-5)
  with pytest.raises(ValueError, match='status must fit the event'):
    accounting.epsilon(guarantee(status='proved', event=claim), 1e-5)
  with pytest.raises(ValueError, match='status must fit the event'):
    accounting.epsilon(guarantee(status='claimed', event=Gaussian(1.0)), 1e-5)


@pytest.mark.parametrize('read', [accounting.epsilon, accounting.delta])
def test_what_is_not_private_has_no_epsilon(read):
  with pytest.raises(ValueError, match='not private: there is no epsilon'):
    read(guarantee(status='none', event=None), 1e-5)


def test_after_some_steps():
  event = Composed((Gaussian(1.0, 3), Gaussian(2.0, 5)))
  assert accounting.count_of(event) == 8
  assert accounting.prefix(event, 8) == event
  assert accounting.prefix(event, 4) == Composed(
    (Gaussian(1.0, 3), Gaussian(2.0, 1))
  )
  assert accounting.epsilon(accounting.prefix(event, 0), 1e-5) == 0.0
  so_far = [
    accounting.epsilon(accounting.prefix(event, k), 1e-5) for k in range(9)
  ]
  assert so_far == sorted(set(so_far))
  claim = ClaimedGaussianMF(0.3, 0.01, 10)
  assert accounting.prefix(claim, 7) == ClaimedGaussianMF(0.3, 0.01, 7)
  with pytest.raises(ValueError, match='steps must be at most the 8'):
    accounting.prefix(event, 9)


def test_numpy_numbers_make_equal_events():
  event = Gaussian(np.float64(2.0), np.int64(3))
  assert event == Gaussian(2, 3)
  assert type(event.count) is int
  assert type(event.noise_multiplier) is float


@pytest.mark.parametrize(
  ('make', 'words'),
  [
    (lambda: Gaussian(0.0), 'zero noise is not private'),
    (lambda: Gaussian(-1.0), 'noise_multiplier must be in .* got -1.0'),
    (lambda: Gaussian(math.inf), 'noise_multiplier must be finite'),
    (lambda: Gaussian(math.nan), 'noise_multiplier must be finite'),
    (lambda: Gaussian('1'), "noise_multiplier must be a number, got '1'"),
    (lambda: Gaussian(1.0, -1), 'count must be an integer >= 0, got -1'),
    (lambda: Gaussian(1.0, 1.0), 'count must be an integer'),
    (lambda: Gaussian(1.0, True), 'count must be an integer'),
    (lambda: Composed((1.0,)), 'events must hold events, got 1.0'),
    (lambda: ClaimedGaussianMF(1.0, 0.1, 1), 'epsilon_per_step must be in'),
    (lambda: accounting.epsilon(None, 0.1), 'event must be an Event'),
  ],
)
def test_wrong_events_are_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()


@pytest.mark.parametrize(
  ('epsilon', 'delta', 'count'),
  [
    *itertools.product(
      (1e-6, 0.1, 1.0, 10.0, 1e4), (1e-300, 1e-6, 0.1), (1, 100, 10**6)
    )
  ],
)
def test_calibrate_then_account(epsilon, delta, count):
  noise = accounting.calibrate_noise_multiplier(
    epsilon=epsilon, delta=delta, count=count
  )
  assert accounting.epsilon(Gaussian(noise, count), delta) <= epsilon
  less = Gaussian(noise * (1 - 1e-9), count)
  assert accounting.epsilon(less, delta) > epsilon


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'epsilon': -1.0}, 'epsilon must be >= 0, got -1.0'),
    ({'delta': 0.0}, 'delta must be in'),
    ({'count': 0}, 'count must be >= 1, got 0'),
  ],
)
def test_wrong_targets_are_refused(change, words):
  good = {'epsilon': 1.0, 'delta': 1e-6, 'count': 1}
  with pytest.raises(ValueError, match=words):
    accounting.calibrate_noise_multiplier(**(good | change))


@settings(max_examples=150, derandomize=True)
@given(st.floats(-3, 6), st.integers(1, 10**6), st.floats(-300, -1))
def test_monotone_in_noise_and_steps(log_noise, count, log_delta):
  noise, delta = 10.0**log_noise, 10.0**log_delta
  epsilon = accounting.epsilon(Gaussian(noise, count), delta)
  more_noise = accounting.epsilon(Gaussian(noise * 1.01, count), delta)
  more_steps = accounting.epsilon(Gaussian(noise, 2 * count), delta)
  assert math.isfinite(epsilon)
  if epsilon > 0:
    assert more_noise < epsilon < more_steps
  else:
    assert more_noise == 0 <= more_steps


def gradients(ratings, mask, user, item, clip_norm, bound):
  """Both gradient sums as loops over the ratings."""
  clip = lambda row: row / max(1, np.linalg.norm(row) / clip_norm)
  user_gradient, item_gradient = np.zeros_like(user), np.zeros_like(item)
  for u, i in zip(*np.nonzero(mask), strict=True):
    residual = np.clip(user[u] @ item[i] - ratings[u, i], -bound, bound)
    user_gradient[u] += residual * clip(item[i])
    item_gradient[i] += residual * clip(user[u])
  return user_gradient, item_gradient


@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
@pytest.mark.parametrize('bound', [1.0, 3.0])
def test_one_rating_moves_a_gradient_by_at_most_its_sensitivity(
  relation, bound
):
  sensitivity = accounting.rating_gradient_sensitivity(
    relation=relation, rating_range=4.0, clip_norm=0.5, residual_bound=bound
  )
  rng = np.random.default_rng(0)
  largest = 0.0
  for _ in range(200):
    user, item = rng.normal(size=(2, 3, 2)) * 2
    ratings = rng.choice([1.0, 5.0], size=(3, 3))
    mask = rng.random((3, 3)) < 0.8
    mask[1, 2] = True
    other_ratings, other_mask = ratings.copy(), mask.copy()
    if relation == 'replace':
      other_ratings[1, 2] = 6 - ratings[1, 2]
    else:
      other_mask[1, 2] = False
    here = gradients(ratings, mask, user, item, 0.5, bound)
    there = gradients(other_ratings, other_mask, user, item, 0.5, bound)
    for a, b in zip(here, there, strict=True):
      moved = np.linalg.norm(a - b)
      assert moved <= sensitivity * (1 + 1e-12)
      largest = max(largest, moved)
  assert largest >= sensitivity * (1 - 1e-9)  # it is reached: not too large


def test_sensitivity_without_a_residual_bound():
  given_ = {'rating_range': 4.0, 'clip_norm': 0.5}
  sensitivity = accounting.rating_gradient_sensitivity
  assert sensitivity(relation='replace', **given_) == 2.0
  for bound in (None, math.inf):
    with pytest.raises(ValueError, match='residual_bound must be finite'):
      sensitivity(relation='add_remove', residual_bound=bound, **given_)
  with pytest.raises(ValueError, match="'replace' or 'add_remove', got 'x'"):
    sensitivity(relation='x', **given_)
  with pytest.raises(ValueError, match='clip_norm must be > 0, got -1'):
    sensitivity(relation='replace', rating_range=4.0, clip_norm=-1.0)


@pytest.mark.parametrize('share', [1e-6, 0.1, 0.5, 0.7])
@pytest.mark.parametrize('noise', [1e-50, 0.3, 42.24678889326844])
def test_split_noise_is_jointly_the_noise(noise, share):
  user, item = accounting.split_noise_multiplier(noise, share)
  joint = 1 / math.hypot(1 / user, 1 / item)
  # A millionth more than accounted for is for what float32 rounds off.
  assert joint == pytest.approx(noise * 1.000001, rel=1e-12)
  assert (joint / user) ** 2 == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize('share', [0.0, 1.0, -1.0, math.nan])
def test_a_share_of_nothing_is_refused(share):
  with pytest.raises(ValueError, match='user_share must be'):
    accounting.split_noise_multiplier(1.0, share)


def test_import_is_quick_and_without_jax():
  code = (
    'import sys, time; start = time.process_time(); import dpmf_jax.accounting;'
    'print(time.process_time() - start); assert "jax" not in sys.modules'
  )
  # Processor time, and the better of two, as tests share the machine.
  seconds = min(
    float(subprocess.check_output([sys.executable, '-c', code], text=True))
    for _ in range(2)
  )
  assert seconds < 1


# Arrays.

SPENT = (
  accounting.Gaussian(20.0, 100, uncovered=1e-9),
  accounting.SubsampledGaussian(2.0, 0.1, 10),
  accounting.compose(accounting.Gaussian(9.0), accounting.Laplace(3.0, 2)),
  accounting.ClaimedPure(0.3, 2),
)


@pytest.mark.parametrize('event', SPENT, ids=repr)
def test_arrays_are_what_numbers_are(event):
  deltas = np.array([[1e-3, 1e-5], [1e-6, 1e-7]])
  epsilons = accounting.epsilon(event, deltas)
  assert epsilons.shape == (2, 2)
  assert epsilons[1, 0] == accounting.epsilon(event, 1e-6)
  assert isinstance(accounting.epsilon(event, np.float64(1e-6)), float)
  back = accounting.delta(event, epsilons.ravel().tolist())
  assert back[2] == accounting.delta(event, float(epsilons[1, 0]))
  assert np.all(back <= deltas.ravel() * (1 + 1e-9))
  assert accounting.epsilon(event, []).shape == (0,)


@pytest.mark.parametrize('event', SPENT[:3], ids=repr)
def test_renyi_over_arrays_and_the_best_order(event):
  orders = np.array([1.5, 4.0, 30.0])
  curve = accounting.curve_of(event)
  assert curve(orders).tolist() == [curve(order) for order in orders.tolist()]
  for name in ('mironov', 'canonne'):
    best = accounting.renyi_epsilon(event, [1e-5, 1e-6], name)
    assert best.epsilon.shape == best.order.shape == (2,)
    order = float(best.order[1])
    at = accounting.renyi_epsilon(event, 1e-6, name, order=order)
    assert at.epsilon == pytest.approx(best.epsilon[1], rel=1e-12)
    for other in (1 + (order - 1) * 0.9, 1 + (order - 1) * 1.1):
      worse = accounting.renyi_epsilon(event, 1e-6, name, order=other)
      assert worse.epsilon >= at.epsilon
    found = accounting.bounds(event, 1e-6)
    assert found[f'renyi_{name}'] == best.epsilon[1]
    assert min(found.values()) == accounting.epsilon(event, 1e-6)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda e: accounting.renyi_epsilon(e, 1e-6, 'best'), "conversion='best'"),
    (lambda e: accounting.renyi_epsilon(e, 1e-6, order=1.0), 'order=1.0 must'),
    (lambda e: accounting.curve_of(e)([2.0, 0.5]), 'order=0.5 must be > 1'),
    (lambda e: accounting.epsilon(e, [1e-6, 2.0]), 'delta must be in'),
    (lambda e: accounting.compose(e, 1.0), 'events must hold events'),
    (
      lambda e: accounting.compose(e, accounting.ClaimedPure(1.0)),
      'a claim cannot be part of a proof',
    ),
    (
      lambda e: accounting.compose(
        accounting.SubsampledGaussian(2.0, 0.1),
        accounting.SubsampledGaussian(2.0, 0.1, 1, 'without_replacement'),
      ),
      'sampling must be the same',
    ),
  ],
)
def test_what_is_refused_of_arrays_and_compositions(call, message):
  with pytest.raises(ValueError, match=message):
    call(accounting.Gaussian(20.0))
