"""The auditor: bounds that hold, attacks that work, and no false alarms."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax_privacy.auditing import CanaryScoreAuditor

from benchmarks import planted
from dpmf_jax import accounting, auditing, training
from dpmf_jax.auditing import (
  bounds,
  canaries,
  found,
  pairs,
  sampling,
  search,
)
from dpmf_jax.auditing.distinguishing import Bound, measure
from dpmf_jax.auditing.statistics import STATISTICS, Block
from dpmf_jax.kernels import regression
from dpmf_jax.plans import SPECS
from dpmf_jax.systems import made
from dpmf_jax.types import Kinds

DELTA = 1e-5


def gaussian_sampler(mu, batch=4096):
  """The exact Gaussian mechanism, shift mu, beside three columns of noise."""

  def draw(keys, side):
    noise = jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)
    return np.asarray(noise) + side * mu * np.array([1.0, 0, 0, 0])

  return sampling.Sampler(draw, batch, (Block(0, 4, 1),))


def laplace_sampler(epsilon, batch=4096):
  def draw(keys, side):
    noise = jax.vmap(lambda key: jax.random.laplace(key, (2,)))(keys)
    return np.asarray(noise) + side * epsilon * np.array([1.0, 0])

  return sampling.Sampler(draw, batch, (Block(0, 2, 1),))


# Bounds.


@pytest.mark.parametrize('successes', [0, 1, 17, 99, 100])
def test_binomial_limits_are_those_of_clopper_and_pearson(successes):
  test = scipy.stats.binomtest(successes, 100)
  for alternative, limit in (
    ('greater', bounds.binomial_lower(successes, 100, 0.01)),
    ('less', bounds.binomial_upper(successes, 100, 0.01)),
  ):
    test = scipy.stats.binomtest(successes, 100, alternative=alternative)
    want = test.proportion_ci(0.99, 'exact')
    got = want.low if alternative == 'greater' else want.high
    np.testing.assert_allclose(limit, got, atol=1e-12)


def test_bounds_are_exact_for_known_probabilities():
  limits = bounds.Limits(np.array([0.5, 1e-6]), np.array([0.1, 0.5]))
  np.testing.assert_allclose(
    bounds.epsilon_bound(limits, 1e-3), [np.log(0.499 / 0.1), 0.0]
  )
  want = scipy.stats.norm.ppf(0.5) - scipy.stats.norm.ppf(0.1)
  np.testing.assert_allclose(bounds.mu_bound(limits), [want, 0.0])


def test_an_event_is_found_in_a_tail_and_on_either_side():
  rng = np.random.default_rng(0)
  usual, rare = rng.normal(size=5000), rng.normal(size=5000)
  rare[:50] = -9.0  # one in a hundred, and nowhere in the other
  for scores, likely in (((usual, rare), 1), ((rare, usual), 0)):
    event = bounds.best_event(scores, 1e-3, 1e-5)
    assert not event.above
    assert event.likely == likely
    assert event.occurs(rare).sum() >= 50


def test_the_gaussian_rule_of_jax_privacy_needs_care():
  # It takes |mu| of a mu that comes from two upper limits: on pure noise it
  # reports a large epsilon. Ours asks only where limits are apart.
  rng = np.random.default_rng(1)
  first, second = rng.normal(size=(2, 200))
  assert CanaryScoreAuditor(first, second).epsilon_from_gdp(0.01, DELTA) > 5
  event = bounds.best_event((first, second), 0.01, None)
  fresh = rng.normal(size=200), rng.normal(size=200)
  assert bounds.gaussian_epsilon(event, fresh, 0.01, DELTA) == 0


def test_the_gaussian_rule_gives_the_epsilon_of_mu():
  rng = np.random.default_rng(2)
  scores = rng.normal(size=100_000), 1 + rng.normal(size=100_000)
  event = bounds.best_event(scores, 1e-3, None)
  got = bounds.gaussian_epsilon(event, scores, 1e-3, DELTA)
  limits = bounds.limits_of(event, scores, 1e-3 / 3)
  mu = float(bounds.mu_bound(limits))
  assert 0.95 < mu < 1
  assert got == pytest.approx(accounting.gaussian.epsilon_of(mu, DELTA), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('epsilon', [0.2, 1.0, 4.0])
def test_false_alarms_are_as_rare_as_the_confidence_says(epsilon):
  # At 90% confidence up to 10% of bounds may be too large; both rules share
  # it. 600 simulated audits of the exact mechanism: 85 or more would occur
  # with chance 4e-4 if the rate were 10%.
  mu = accounting.gaussian.mu_of(epsilon, DELTA)
  rng = np.random.default_rng(3)
  alarms = 0
  for _ in range(600):
    chosen, counted = (
      (rng.normal(size=300), rng.normal(size=300) + mu) for _ in range(2)
    )
    event = bounds.best_event(chosen, 0.05, DELTA)
    free = bounds.epsilon_bound(bounds.limits_of(event, counted, 0.05), DELTA)
    middle = bounds.best_event(chosen, 0.05, None)
    gaussian = bounds.gaussian_epsilon(middle, counted, 0.05, DELTA)
    alarms += max(float(free), gaussian) > epsilon
  assert alarms < 85


# Statistics.


def test_every_statistic_sees_what_it_is_for():
  rng = np.random.default_rng(4)
  blocks = (Block(0, 50, 1),)
  noise = lambda *shape: rng.normal(size=shape)
  shift = noise(2000, 50) + 0.5
  wide = noise(2000, 50) * 1.3
  spike = noise(2000, 50)
  spike[np.arange(2000), rng.integers(50, size=2000)] += 12
  for name, second in (
    ('linear', shift),
    ('quadratic', wide),
    ('log_variance', wide),
    ('extreme', spike),
    ('support', spike),
  ):
    score = STATISTICS[name](noise(2000, 50), second, blocks)
    apart = score(second).mean() - score(noise(2000, 50)).mean()
    assert apart > 2 * score(noise(2000, 50)).std() or name == 'quadratic'
    assert apart > 0


def test_a_column_without_noise_separates():
  rng = np.random.default_rng(5)
  first, second = rng.normal(size=(2, 500, 3))
  first[:, 1], second[:, 1] = 2.0, 2.0 + 1e-5
  for name in ('linear', 'quadratic', 'support'):
    score = STATISTICS[name](first, second, (Block(0, 3, 1),))
    assert score(second).min() > score(first).max()


def test_outputs_that_are_not_finite_do_not_break_a_score():
  rng = np.random.default_rng(6)
  first, second = rng.normal(size=(2, 500, 4))
  second[::2, 0] = np.nan
  second[1::2, 1] = np.inf
  for statistic in STATISTICS.values():
    score = statistic(first, second, (Block(0, 4, 1),))
    assert np.isfinite(score(second)).all()


# The whole measurement.


@pytest.mark.slow
@pytest.mark.parametrize(('epsilon', 'least'), [(1.0, 0.8), (4.0, 3.0)])
def test_the_exact_gaussian_is_measured_closely(epsilon, least):
  # At the default budget. A bound above epsilon has chance 1e-3.
  sampler = gaussian_sampler(accounting.gaussian.mu_of(epsilon, DELTA))
  measured = measure(sampler, jax.random.key(0), delta=DELTA)
  assert least <= measured.gaussian <= epsilon
  assert measured.epsilon <= epsilon


def test_a_pure_epsilon_is_measured_without_assumptions():
  measured = measure(
    laplace_sampler(1.0), jax.random.key(1), delta=0.0, runs=100_000
  )
  assert 0.8 <= measured.epsilon <= 1.0
  assert measured.gaussian == 0


def test_no_difference_is_no_bound():
  measured = measure(
    gaussian_sampler(0.0), jax.random.key(2), delta=DELTA, runs=20_000
  )
  assert measured.epsilon == 0
  assert measured.gaussian == 0


def test_wrong_arguments_are_refused():
  with pytest.raises(ValueError, match='runs=2 must be at least 4'):
    measure(gaussian_sampler(1.0), jax.random.key(0), delta=0.1, runs=2)


BUGS = tuple(planted.planted())


@pytest.mark.slow
@pytest.mark.parametrize('name', BUGS)
def test_planted_bugs_are_found_and_nothing_else(name):
  # `benchmarks.audit` does this 20 times each.
  with jax.debug_key_reuse(False):  # a reused key is one of the bugs
    target = planted.planted()[name]
    (finding,) = auditing.findings(jax.random.key(7), [target], runs=100_000)
  assert finding.stated == pytest.approx(1.0)
  assert finding.refuted == (not name.endswith('none'))


# What is attacked is what is deployed.


def test_a_run_of_the_sampler_is_a_run_of_fit():
  case = SPECS['gaussian_mf'].cases['sound'][1]
  system = made('gaussian_mf', 'sound', **case.settings)
  pair = pairs.library_pairs('rating', 'replace', (1.0, 5.0))[0]
  data = sampling.tiny_data(pair.first, pair.second)
  sampler = sampling.sampler(
    system, data, start='known', start_key=jax.random.key(3)
  )
  keys = jax.random.split(jax.random.key(4), 2)
  state = system.init(jax.random.split(jax.random.key(3))[0], data[1])
  steps_key, _ = jax.random.split(jax.random.clone(keys)[0])
  state = training._block(
    system.step, steps_key, state, data[1], 0, system.steps
  )
  release = system.release(state, data[1])
  want = np.concatenate([np.ravel(x) for x in jax.tree.leaves(release)])
  got = np.asarray(sampler.draw(keys, 1))[0]
  np.testing.assert_allclose(got, want, rtol=2e-6)


def first_case():
  """A system, and its data on two neighbours."""
  case = SPECS['gaussian_mf'].cases['sound'][0]
  system = made('gaussian_mf', 'sound', **case.settings)
  pair = pairs.library_pairs('rating', 'replace', (1.0, 5.0))[0]
  return system, sampling.tiny_data(pair.first, pair.second)


class Walk(NamedTuple):
  place: jax.Array
  settings: jax.Array


@pytest.mark.slow
def test_kinds_of_steps_make_the_runs_of_the_whole_step():
  # Which kind is next depends on noise, so that a batch has both.
  noisy = lambda key: jax.random.normal(key, (3,))
  each = (
    lambda key, walk, data: walk._replace(place=walk.place + noisy(key)),
    lambda key, walk, data: walk._replace(
      place=walk.settings * walk.place - noisy(key)
    ),
  )
  which = lambda walk: (walk.place[0] > 0).astype(jnp.int32)

  def step(key, walk, data):
    return jax.tree.map(
      functools.partial(jnp.where, which(walk) == 1),
      each[1](jax.random.clone(key), walk, data),
      each[0](key, walk, data),
    )

  _, data = first_case()
  view = lambda key, walk, data: walk.place + noisy(key)
  seen = sampling._Seen(view, view, ())
  keys = jax.random.split(jax.random.key(5), 50)
  for axis, shape in ((None, (3,)), (0, (50, 3))):
    start = Walk(jnp.zeros(shape), jnp.float32(0.5))
    run = lambda outputs, step, axes=(axis, None), start=start: outputs(
      step, seen, axes, jax.random.clone(keys), start, data[0], 3
    )
    want = run(sampling._outputs, step)
    got = run(sampling._outputs_by_kind, Kinds(step, which, each))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_starts_are_what_they_are_called():
  system, data = first_case()
  keys = jax.random.split(jax.random.key(0), 64)
  spread = {}
  for start in ('random', 'known', 'aligned'):
    sampler = sampling.sampler(
      system, data, start=start, start_key=jax.random.key(3)
    )
    spread[start] = np.asarray(sampler.draw(jax.random.clone(keys), 0))[:, :7]
  # The noise of a step is 0.01 or so; a random sign of a factor is 1.
  assert spread['random'].std(axis=0).min() > 0.5
  assert spread['known'].std(axis=0).max() < 0.1
  np.testing.assert_allclose(spread['aligned'], 1.0, atol=0.2)


@pytest.mark.slow
def test_every_mesh_gives_the_same_runs():
  from dpmf_jax.rows import device_mesh

  system, data = first_case()
  keys = jax.random.split(jax.random.key(0), 16)
  one, two = (
    sampling.sampler(
      system, data, start='known', start_key=jax.random.key(3), mesh=mesh
    ).draw(jax.random.clone(keys), 0)
    for mesh in (None, device_mesh(2))
  )
  np.testing.assert_allclose(one, two, rtol=1e-6)


# Pairs.


@pytest.mark.parametrize('unit', ['rating', 'user'])
@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
def test_pairs_are_neighbours(unit, relation):
  made = pairs.library_pairs(unit, relation, (1.0, 5.0))
  assert len({pair.name for pair in made}) == len(made) >= 5
  for pair in made:
    first, second = (
      {
        (int(u), int(i)): float(v)
        for u, i, v in zip(r.user, r.item, r.value, strict=True)
      }
      for r in (pair.first, pair.second)
    )
    changed = {
      cell for cell in first | second if first.get(cell) != second.get(cell)
    }
    if unit == 'rating':
      assert len(changed) == 1
    else:
      assert len({user for user, _ in changed}) == 1
      assert changed == {cell for cell in first if cell[0] == 0}
    assert (set(first) == set(second)) == (relation == 'replace')
    assert pair.first.num_users == pair.second.num_users
    assert pair.first.num_items == pair.second.num_items


KINDS = [
  (unit, relation)
  for unit in ('rating', 'user')
  for relation in ('replace', 'add_remove')
]


@pytest.mark.parametrize('stated', KINDS)
@pytest.mark.parametrize('of', KINDS)
def test_a_pair_is_held_against_guarantees_about_it_alone(stated, of):
  system, _ = first_case()
  unit, relation = stated
  guarantee = dataclasses.replace(
    system.guarantee, unit=unit, relation=relation
  )
  system = system._replace(guarantee=guarantee)
  pair = pairs.library_pairs(*of, (1.0, 5.0))[-1]
  if stated == of:
    pairs.check_pair(pair, *stated)
    return
  target = auditing.Target('', '', system, pair, 'known', DELTA)
  if stated == ('user', 'replace') and of == ('rating', 'replace'):
    pairs.check_pair(pair, *stated)  # one of a user's ratings has changed
    return
  with pytest.raises(ValueError, match=f'speaks of unit={unit!r}, relation='):
    next(auditing.findings(jax.random.key(0), [target], runs=64))


def test_a_pair_shares_its_lists_of_ids(small_ratings):
  other = dataclasses.replace(
    small_ratings, item_ids=small_ratings.item_ids + 1
  )
  pair = pairs.Pair('shifted', small_ratings, other)
  with pytest.raises(ValueError, match='has neighbours for nothing'):
    pairs.check_pair(pair, 'rating', 'replace')


# Cases: every variant is attacked.


def test_every_variant_has_a_case_for_every_relation_it_allows():
  for name, entry in SPECS.items():
    for variant, preset in entry.variants.items():
      attacked = entry.cases[variant]
      covered = {
        made(name, variant, **case.settings).guarantee.relation
        for case in attacked
      }
      if 'relation' not in entry.config.__dataclass_fields__:
        continue
      for relation in ('replace', 'add_remove'):
        settings = {**preset, **attacked[0].settings, 'relation': relation}
        try:
          entry.config(**settings)
        except ValueError:
          continue
        assert relation in covered, f'{name} {variant} {relation}'


PROVED = [
  (name, variant)
  for name, spec in SPECS.items()
  for variant, attacked in spec.cases.items()
  if made(name, variant, **attacked[0].settings).guarantee.status == 'proved'
]


# Pairs on which the attack is strongest, or nearly: the others would take
# minutes, and `make test-all` has those.
QUICK = ('only rating', 'cancelling users')


@pytest.fixture
def few_users_at_a_time(monkeypatch):
  """As slices of one rating: thirty times as many users would be padding."""
  monkeypatch.setattr(regression, '_BLOCK', 4)


def audit_quickly(targets):
  # A false alarm has chance 1e-3 for each of the targets; the key is fixed.
  assert targets
  for finding in auditing.findings(jax.random.key(11), targets, runs=10_000):
    assert not finding.refuted, finding


@pytest.mark.slow
@pytest.mark.usefixtures('few_users_at_a_time')
@pytest.mark.parametrize('case', PROVED, ids=lambda case: '-'.join(case))
def test_quick_audit_refutes_nothing_that_is_proved(case):
  audit_quickly(
    [each for each in auditing.targets(*case) if each.pair.name in QUICK]
  )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures('few_users_at_a_time')
@pytest.mark.parametrize('case', PROVED, ids=lambda case: '-'.join(case))
def test_quick_audit_refutes_nothing_on_the_other_pairs(case):
  audit_quickly(
    [t for t in auditing.targets(*case) if t.pair.name not in QUICK]
  )


@pytest.mark.slow
def test_what_the_search_found_breaks_the_paper_and_not_the_sound_variant():
  records = [r for r in found.records() if r.variant == 'paper']
  assert records
  for record in records:
    for variant in ('paper', 'sound'):
      target = auditing.found_target(record, variant)
      assert target is not None
      (finding,) = auditing.findings(jax.random.key(12), [target], runs=20_000)
      assert finding.stated <= 0.5
      assert finding.refuted == (variant == 'paper')
      if variant == 'paper':
        assert finding.lower_bound >= 5


@pytest.mark.slow
def test_the_library_breaks_the_paper_from_a_random_start():
  few = next(
    target
    for target in auditing.targets('gaussian_mf', 'paper')
    if target.pair.name == 'few raters' and target.start == 'random'
  )
  (finding,) = auditing.findings(jax.random.key(13), [few], runs=20_000)
  assert finding.refuted
  assert finding.lower_bound >= 5


@pytest.mark.slow
@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
def test_objective_perturbation_as_published_is_broken(relation):
  target = next(
    target
    for target in auditing.targets('objective_pmf', 'paper')
    if target.pair.name == 'extreme values'
    and target.system.guarantee.relation == relation
  )
  (finding,) = auditing.findings(jax.random.key(15), [target], runs=20_000)
  assert finding.stated == 1
  assert finding.lower_bound >= 5


@pytest.mark.slow
def test_what_is_not_private_is_measured_as_such():
  target = next(auditing.targets('nonprivate', 'none'))
  (finding,) = auditing.findings(jax.random.key(14), [target], runs=4_000)
  assert finding.verdict == 'nothing stated'
  assert finding.stated is None
  assert finding.lower_bound > 4


# The search.


@pytest.mark.slow
def test_the_search_finds_a_case_that_can_be_kept(tmp_path):
  case = SPECS['gaussian_mf'].cases['paper'][0]
  seen = []
  record = search.search(
    jax.random.key(0),
    'gaussian_mf',
    'paper',
    case,
    seconds=4,
    progress=lambda seconds, best: seen.append(best),
  )
  assert seen == sorted(seen)
  path = tmp_path / 'found.json'
  found.add(record, path)
  found.add(record, path)
  again, twin = found.records(path)
  assert again.settings == twin.settings == record.settings
  assert again.start == record.start
  for kept, other in zip(again.pair[1:], record.pair[1:], strict=True):
    np.testing.assert_array_equal(kept.value, other.value)
    np.testing.assert_array_equal(kept.user, other.user)
  target = auditing.found_target(again, 'paper')
  assert target is not None
  assert target.system.guarantee.status == 'claimed'


# Canaries.


@pytest.mark.parametrize('unit', ['rating', 'user'])
@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
def test_canaries_are_units_with_ids_of_their_own(
  small_ratings, unit, relation
):
  made = canaries.insert(
    small_ratings, 30, unit=unit, relation=relation, seed=1
  )
  table = made.ratings
  real = table.user < small_ratings.num_users
  assert real.sum() == len(small_ratings)
  assert (table.item[real] < small_ratings.num_items).all()
  each = 1 if unit == 'rating' else 5
  users, counts = np.unique(table.user[~real], return_counts=True)
  assert (counts == each).all()
  inside = made.coin if relation == 'add_remove' else np.ones(30, bool)
  np.testing.assert_array_equal(users, made.user[inside])
  assert len(np.unique(table.item[~real])) == each * inside.sum()
  assert table.num_users == small_ratings.num_users + 30
  other = canaries.insert(
    small_ratings, 30, unit=unit, relation=relation, seed=2
  )
  assert (other.coin != made.coin).any()


@pytest.mark.slow
def test_one_run_bounds_are_near_and_below_the_truth():
  # M independent Gaussian mechanisms: the exact case of the theorem.
  rng = np.random.default_rng(8)
  coin = rng.integers(2, size=5000) == 1
  for epsilon, least in ((1.0, 0.2), (4.0, 1.0)):
    mu = accounting.gaussian.mu_of(epsilon, DELTA)
    score = rng.normal(size=5000) + mu * coin
    bound = canaries.one_run_bound(score, coin, delta=DELTA, confidence=0.999)
    assert least < bound.gaussian <= epsilon
    assert bound.epsilon <= epsilon
  nothing = canaries.one_run_bound(
    rng.normal(size=5000), coin, delta=DELTA, confidence=0.999
  )
  assert nothing.epsilon == nothing.gaussian == 0
  certain = canaries.one_run_bound(
    coin + 0.1 * rng.random(5000), coin, delta=DELTA, confidence=0.999
  )
  assert certain.epsilon > 1.5
  assert certain.gaussian > 5


@pytest.mark.slow
@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
def test_canaries_measure_a_run(small_ratings, relation):
  settings = {
    'scale': small_ratings.scale, 'epsilon': 8.0, 'delta': DELTA,
    'relation': relation, 'steps': 20,
  }  # fmt: skip
  finding = auditing.audit_canaries(
    jax.random.key(0),
    'gaussian_mf',
    'sound',
    small_ratings,
    settings,
    number=1000,
    seed=5,
  )
  assert not finding.refuted
  assert 0.3 < finding.lower_bound < 8
  # The same noise, said to be for an epsilon of 0.2.
  system = made('gaussian_mf', 'sound', **settings)
  honest = auditing._finding(
    auditing.Target('', '', system, pairs.Pair('', *[small_ratings] * 2),
                    'known', DELTA),
    auditing.Measurement((Bound('x', 9.0, 0.0),), 1, DELTA, 0.999),
  )  # fmt: skip
  assert honest.refuted


def test_findings_say_what_was_stated():
  target = next(auditing.targets('gaussian_mf', 'sound'))
  measured = auditing.Measurement((Bound('x', 0.5, 0.9),), 10, DELTA, 0.999)
  finding = auditing._finding(target, measured)
  assert (finding.lower_bound, finding.rule) == (0.9, 'gaussian')
  assert finding.verdict == 'not refuted'
  # The Gaussian rule does not count against a claim that is not Gaussian.
  paper = next(auditing.targets('gaussian_mf', 'paper'))
  finding = auditing._finding(paper, measured)
  assert (finding.lower_bound, finding.rule) == (0.5, 'binomial')
  assert finding.refuted
  assert dataclasses.is_dataclass(target.system.guarantee)
