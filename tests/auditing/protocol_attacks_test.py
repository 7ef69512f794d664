"""Attacks on the untrusted recommender: they work on the paper's rounds."""

import attacks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from untrusted_reports import dealt_pieces, gradient_report

from dpmf_jax import auditing
from dpmf_jax.federated import sums_protocol
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.secure_sum import BrokenRoundError, MaskedReport
from dpmf_jax.plans.untrusted_pmf import UntrustedPMFConfig, share_scale
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems.untrusted import rounds
from dpmf_jax.systems.untrusted_pmf import untrusted_pmf

SCALE = (1.0, 5.0)
VALUES = (1.0, 2.0, 3.0, 4.0, 5.0)


def table(target):
  """Eight users who rate four items; user 0 gives item 0 the `target`."""
  user, item = (x.ravel() for x in np.indices((8, 4)))
  value = 1.0 + (3 * user + 2 * item) % 5
  value[0] = target
  return Ratings(
    user=user, item=item, value=value, scale=SCALE,
    user_ids=np.arange(8), item_ids=np.arange(4),
  )  # fmt: skip


def paper(**settings):
  given = {'epsilon': 0.1, 'rank': 3, 'rounds': 2, 'step_size': 1.0, **settings}
  return UntrustedPMFConfig(
    variant='paper', relation='replace', scale=SCALE, **given
  )


def two_rounds(config, target, key, silent=False):
  """The states after one and after two rounds, from a known start."""
  system = untrusted_pmf(config)
  data = training_data(table(target))
  state = system.init(jax.random.key(0), data)
  if silent:
    hyper = state.hyper._replace(noise=jnp.float32(0))
    state = state._replace(hyper=hyper)
  step, states = jax.jit(system.step), []
  for number in range(2):
    state = step(jax.random.fold_in(key, number), state, data)
    states.append(state)
  return states


def expected_sums(config, served):
  """Item 0's sums of both rounds without noise, for each value.

  The attacker knows the start, all other ratings, and the items that were
  `served` in the second round. Users move by what they were served in the
  first, which has no noise in it yet.
  """
  made = []
  step = jax.jit(untrusted_pmf(config).step)
  for value in VALUES:
    first, _ = two_rounds(config, value, jax.random.key(99), silent=True)
    moved = first._replace(factors=first.factors._replace(item=served))
    data = training_data(table(value))
    second = step(jax.random.key(98), moved, data)
    made.append(np.asarray(second.sums, np.int64)[:, 0])
  return np.stack(made)


@pytest.mark.parametrize('users', ['static', 'dynamic'])
def test_the_difference_of_two_rounds_tells_the_rating(users):
  config = paper(attendance=users, online=1.0, view='recommender')
  for number, target in enumerate(VALUES[::2]):
    first, second = two_rounds(config, target, jax.random.key(number))
    seen = np.asarray(second.sums, np.int64)[:, 0]
    expected = expected_sums(config, first.factors.item)
    guess = attacks.difference_attack(seen, expected)
    assert VALUES[guess.place] == target
    # Not by luck: the others are far off, and noise hides a single round.
    best, next_best = np.sort(guess.misfit)[:2]
    assert next_best > 20 * max(best, 1)
    assert np.linalg.norm(np.asarray(second.noise[0])) > next_best


def test_fresh_noise_in_a_round_stops_the_difference():
  config = paper(round_noise=300.0)
  wrong = 0
  for number, target in enumerate(VALUES):
    state = two_rounds(config, target, jax.random.key(number))[1]
    clean = two_rounds(paper(), target, jax.random.key(number))[1]
    seen = np.asarray(state.sums, np.int64)[:, 0]
    other = np.asarray(clean.sums, np.int64)[:, 0]
    moved = (seen[1] - seen[0]) - (other[1] - other[0])
    wrong += np.abs(moved * float(state.hyper.spacing)).max() > 50
  assert wrong == len(VALUES)


def test_an_absent_user_is_isolated_with_their_rating_and_vector():
  # Dynamic users: noise does not depend on who is online.
  config = paper(attendance='dynamic')
  hyper = rounds.hyper_of(config, 8)
  rng = np.random.default_rng(3)
  vectors = rng.normal(size=(8, 3)) * 0.4
  ratings = rng.integers(1, 6, size=8).astype(float)
  noise = rng.integers(-(10**6), 10**6, size=(1, 3))  # of the item, once
  alpha = secure_sum.one_time_mask((1, 3))
  held = secure_sum.on_ring(noise) + alpha
  rated = {u: np.array([0]) for u in range(8)}

  def served(item, online, number):
    """The sum of a round in which the item is served to those online."""
    there = {u: rated[u] for u in online}
    pieces = dealt_pieces(held, there)
    masks = {u: secure_sum.one_time_mask((1, 3)) for u in online}
    sent = [
      gradient_report(
        vectors[u], item[None], ratings[u : u + 1],
        pieces[u].astype(np.int64), masks[u], hyper, round=number, sender=u,
      )
      for u in online
    ]  # fmt: skip
    total = secure_sum.aggregate(
      sent, round=number, expected=online, rows=there, num_rows=1
    )
    total = total._replace(values=total.values - alpha)  # the third party
    sums = secure_sum.unmasked(total, masks, round=number, rows=there)
    return sums[0] * float(hyper.spacing)

  everybody, target = list(range(8)), 5
  others = [u for u in everybody if u != target]
  items = rng.normal(size=(2, 3))
  isolated = [
    attacks.isolated_gradient(
      served(item, everybody, 2 * number), served(item, others, 2 * number + 1)
    )
    for number, item in enumerate(items)
  ]
  found = attacks.recovered_rating(isolated, items)
  assert found.rating == pytest.approx(ratings[target], abs=1e-2)
  np.testing.assert_allclose(found.vector, vectors[target], atol=1e-2)
  with pytest.raises(ValueError, match='not those of one user'):
    attacks.recovered_rating([[1.0, 0, 0], [2.0, 0, 0]], [[1.0, 0, 0], [0] * 3])


def test_who_knows_the_scales_sees_more_than_epsilon():
  # Of what a changed rating moves, 2 tau times a vector of norm 1.
  config = paper(epsilon=1.0, rank=1)
  scale = share_scale(config)
  losses = [
    attacks.loss_given_scales([2 * 4.0], [h], scale)
    for h in np.random.default_rng(0).exponential(size=1000)
  ]
  above = np.mean(np.array(losses) > config.epsilon)
  # The chance is that of H < 1/4, 0.22; five deviations either way.
  assert 0.15 < above < 0.29


@pytest.mark.slow
@pytest.mark.parametrize(
  ('view', 'least'), [('recommender', 4.0), ('public', 1.0)]
)
def test_audits_refute_what_the_paper_claims(view, least):
  target = next(
    target
    for target in auditing.targets('untrusted_pmf', 'paper')
    if target.pair.name == 'few raters'
    and (view == 'public')
    == (target.system.guarantee.released[-1] == 'id lists')
  )
  (finding,) = auditing.findings(jax.random.key(1), [target], runs=16_000)
  assert finding.stated == 1
  assert finding.refuted
  assert finding.lower_bound > least


# The sound variant stops both.


def sound_sums(target, epsilon, runs, absent=False):
  """Item 0's sums in many runs, as the recommender sees them."""
  config = UntrustedPMFConfig(
    variant='sound', relation='add_remove', scale=SCALE, epsilon=epsilon,
    view='recommender',
  )  # fmt: skip
  system = untrusted_pmf(config)
  ratings = table(target)
  if absent:
    ratings = ratings.take(np.arange(len(ratings)) != 0)
  data = training_data(ratings, slots=1, slices=32)
  state = system.init(jax.random.key(0), data)

  def run(key):
    after = system.step(key, state, data)
    seen = system.views['recommender'](jax.random.key(0), after, data)
    return seen.sums[0]

  seed = int(target) + 100 * absent
  keys = jax.random.split(jax.random.key(seed), runs)
  return np.asarray(jax.jit(jax.vmap(run))(keys), np.int64)


@pytest.mark.slow
@pytest.mark.parametrize('what', ['value', 'membership'])
def test_neither_attack_gains_more_than_epsilon_from_sound_sums(what):
  epsilon, runs = 0.5, 4000
  first = sound_sums(5.0, epsilon, runs)
  second = sound_sums(1.0 if what == 'value' else 5.0, epsilon, runs,
                      absent=what == 'membership')  # fmt: skip
  # The best guess there is: the nearer of the two, by the likelihood.
  means = [np.median(side, axis=0) for side in (first, second)]
  guesses = [
    np.abs(side - means[0]).sum(axis=1) <= np.abs(side - means[1]).sum(axis=1)
    for side in (first, second)
  ]
  right = (guesses[0].mean() + 1 - guesses[1].mean()) / 2
  # A changed value is one rating gone and another come: twice epsilon.
  spent = epsilon * (2 if what == 'value' else 1)
  bound = np.exp(spent) / (1 + np.exp(spent))
  assert 0.5 < right < bound + 0.03  # five deviations
  # Two rounds cannot be had to take the one from the other.
  words = secure_sum.one_time_mask((4, 2))
  twice = [MaskedReport(1, 0, words), MaskedReport(1, 0, words)]
  with pytest.raises(BrokenRoundError, match='two reports'):
    secure_sum.aggregate(twice, round=1, expected=[0])


def test_a_round_without_somebody_is_not_passed_on():
  config = UntrustedPMFConfig(
    variant='sound', relation='add_remove', scale=SCALE, epsilon=1.0
  )
  sent = [
    MaskedReport(1, u, secure_sum.one_time_mask((4, 2))) for u in range(8)
  ]
  assert sums_protocol.aggregate(sent, config, round=1, users=range(8))
  with pytest.raises(BrokenRoundError, match='7 of 8'):
    sums_protocol.aggregate(sent[:7], config, round=1, users=range(8))
