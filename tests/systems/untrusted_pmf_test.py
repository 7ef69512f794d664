"""The untrusted recommender: sums, views, messages and what is stated."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from untrusted_reports import (
  collected_noise,
  dealt_pieces,
  gradient_report,
  user_sums,
)

from dpmf_jax import accounting
from dpmf_jax.federated import masks as masking
from dpmf_jax.federated import messages, sums_protocol
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.mechanisms import secure_sum, shares
from dpmf_jax.mechanisms.secure_sum import BrokenRoundError, MaskedReport
from dpmf_jax.plans import untrusted_pmf as untrusted_plan
from dpmf_jax.plans.untrusted_pmf import (
  UntrustedPMFConfig,
  rating_move,
  sizes_of,
)
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.table import Ratings, from_arrays
from dpmf_jax.rows import training_data
from dpmf_jax.systems.untrusted import rounds, sums, views
from dpmf_jax.systems.untrusted_pmf import untrusted_pmf
from dpmf_jax.training import fit

SCALE = (1.0, 5.0)


def sound(**settings):
  given = {'relation': 'add_remove', 'epsilon': 1.0, **settings}
  return UntrustedPMFConfig(variant='sound', scale=SCALE, **given)


def paper(**settings):
  given = {'relation': 'replace', 'epsilon': 1.0, 'rank': 3, **settings}
  return UntrustedPMFConfig(variant='paper', scale=SCALE, **given)


def features_of(num_users, rank, seed=0):
  return np.random.default_rng(seed).normal(size=(num_users, rank))


def rated_by(ratings, users):
  """Items and values of each of the users."""
  own = {user: ratings.user == user for user in users}
  return (
    {user: ratings.item[at] for user, at in own.items()},
    {user: ratings.value[at] for user, at in own.items()},
  )


def reference_statistic(ratings, config, counts):
  """(A, b) in integers, by a slow loop over ratings in Python integers."""
  sizes, rank = sizes_of(config), counts.shape[1]
  pairs = [(a, b) for a in range(rank) for b in range(a, rank)]
  total = np.zeros((ratings.num_items, len(pairs) + rank), object)
  toward_zero = lambda x, by: int(np.sign(x)) * (abs(int(x)) // by)
  rows = zip(ratings.user, ratings.item, ratings.value, strict=True)
  for user, item, value in rows:
    p = [int(x) for x in counts[user]]
    share = (float(value) - config.center) / config.label_bound
    label = round(share * sizes.labels)
    for place, (a, b) in enumerate(pairs):
      total[item, place] += toward_zero(p[a] * p[b] * sizes.counts, 2**16)
    for a in range(rank):
      total[item, len(pairs) + a] += toward_zero(label * p[a], 2**8)
  return total.astype(np.int64)


# The sound round.


@pytest.mark.parametrize('rank', [1, 3])
def test_the_statistic_is_that_of_a_slow_loop(small_ratings, rank):
  config = sound()
  given = np.ones((60, 1)) if rank == 1 else features_of(60, rank)
  counts = sums.feature_counts(given)
  data = training_data(small_ratings)
  got = sums.statistic(
    data.by_item, jnp.asarray(counts), sums.hyper_of(config, 60)
  )
  want = reference_statistic(small_ratings, config, counts)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize('relation', ['add_remove', 'replace'])
@pytest.mark.parametrize('rank', [1, 4])
def test_one_rating_moves_the_sums_by_at_most_what_is_noised(relation, rank):
  config = sound(relation=relation, epsilon=2.0)
  rng = np.random.default_rng(1)
  given = np.concatenate(
    [rng.normal(size=(40, rank)) * 3, np.eye(rank), np.ones((1, rank))]
  )
  counts = sums.feature_counts(given)
  hyper = sums.hyper_of(config, len(counts))
  noised = sums.noised_columns(rank, relation)
  allowed, largest = rating_move(config), 0
  for value in (1.0, 5.0, 3.0, 2.71, -1e30, np.inf, np.nan):
    values = jnp.full(len(counts), value)
    terms = np.asarray(sums.rating_terms(jnp.asarray(counts), values, hyper))
    if relation == 'replace':
      other = sums.rating_terms(
        jnp.asarray(counts), jnp.full(len(counts), 5.0), hyper
      )
      np.testing.assert_array_equal(
        terms[:, : noised.start], np.asarray(other)[:, : noised.start]
      )
      terms = terms - np.asarray(other)
    moved = np.abs(terms.astype(np.int64)[:, noised]).sum(axis=1)
    assert moved.max() <= allowed
    largest = max(largest, moved.max())
  assert largest == allowed  # the bound is met, so noise is not too much


@pytest.mark.parametrize('place', ['popular', 'only of item', 'only of user'])
def test_removing_one_rating_moves_one_item_by_its_term(place):
  config = sound()
  user = np.array([*range(30), 0, 31])
  item = np.array([0] * 30 + [1, 0])
  value = np.array([1.0, 5.0] * 16)
  gone = {'popular': 3, 'only of item': 30, 'only of user': 31}[place]
  whole = Ratings(
    user=user, item=item, value=value, scale=SCALE,
    user_ids=np.arange(32), item_ids=np.arange(2),
  )  # fmt: skip
  both = []
  for table in (whole, whole.take(np.arange(32) != gone)):
    counts = jnp.asarray(sums.feature_counts(np.ones((32, 1))))
    both.append(
      np.asarray(
        sums.statistic(
          training_data(table).by_item, counts, sums.hyper_of(config, 32)
        ),
        np.int64,
      )
    )
  moved = np.abs(both[0] - both[1]).sum(axis=1)
  assert moved[item[gone]] == rating_move(config)
  assert moved.sum() == rating_move(config)


@pytest.mark.slow
def test_the_noise_of_the_system_has_the_stated_scale(small_ratings):
  config = sound(noise_bits=8)
  system = untrusted_pmf(config)
  data = training_data(small_ratings)
  state = system.init(jax.random.key(0), data)
  exact = sums.statistic(data.by_item, state.features, state.hyper)
  run = jax.jit(lambda key: system.step(key, state, data).sums - exact)
  keys = jax.random.split(jax.random.key(1), 25)
  drawn = np.concatenate([np.asarray(run(key)).ravel() for key in keys])
  # As if continuous, at the middle of the integers' steps.
  law = lambda scale: scipy.stats.laplace(scale=scale * 2**8).cdf
  drawn = drawn + np.random.default_rng(0).uniform(-0.5, 0.5, drawn.size)
  assert scipy.stats.kstest(drawn, law(1)).pvalue > 1e-3  # false alarm 1e-3
  for wrong in (2 / 3, 3 / 2):
    assert scipy.stats.kstest(drawn, law(wrong)).pvalue < 1e-9
  # Where c may collude there is more of it, never less.
  config = sound(noise_bits=8, colluders=30)
  system = untrusted_pmf(config)
  state = system.init(jax.random.key(0), data)
  run = jax.jit(lambda key: system.step(key, state, data))
  after = [run(key) for key in jax.random.split(jax.random.key(2), 25)]
  whole = np.concatenate([(s.sums - exact).ravel() for s in after])
  rest = np.concatenate([(s.sums - s.more - exact).ravel() for s in after])
  assert rest.var() == pytest.approx(shares.variance(8), rel=0.25)
  assert whole.var() == pytest.approx(2 * shares.variance(8), rel=0.25)


def test_with_replace_counts_are_exact(small_ratings):
  system = untrusted_pmf(sound(relation='replace'))
  data = training_data(small_ratings)
  state = fit(system, jax.random.key(0), data)
  exact = sums.statistic(data.by_item, state.features, state.hyper)
  np.testing.assert_array_equal(state.sums[:, 0], exact[:, 0])
  assert (state.sums[:, 1] != exact[:, 1]).mean() > 0.9


@pytest.mark.parametrize('rank', [pytest.param(1, marks=pytest.mark.slow), 2])
def test_messages_add_up_to_what_the_simulator_sums(small_ratings, rank):
  # Real shares and masks, and 3 users who did not arrive.
  config = sound(colluders=1, dropouts=3, noise_bits=10)
  users, num_items = range(12), small_ratings.num_items
  small = small_ratings.take(small_ratings.user < 12)
  given = np.ones((60, 1)) if rank == 1 else features_of(60, rank)
  counts = sums.feature_counts(given)
  hyper = sums.hyper_of(config, 12)
  rated, values = rated_by(small, users)
  drawn = lambda: sums_protocol.client_share(config, 12, num_items, rank)
  share = {u: drawn() for u in users}
  masks = {u: secure_sum.one_time_mask(share[u].shape) for u in users}
  sent = []
  for u in users:
    own = user_sums(counts[u], rated[u], values[u], num_items, hyper)
    sent.append(
      MaskedReport(7, u, masking.masked_words(own, share[u], masks[u]))
    )
  arrived = [u for u in users if u not in (2, 5, 11)]
  total = sums_protocol.aggregate(
    [sent[u] for u in arrived], config, round=7, users=users
  )
  got = secure_sum.unmasked(total, masks, round=7)
  there = small.take(np.isin(small.user, arrived))
  exact = sums.statistic(
    training_data(there).by_item, jnp.asarray(counts), hyper
  )
  noise = sum(share[u] for u in arrived)
  np.testing.assert_array_equal(got, np.asarray(exact) + noise)
  with pytest.raises(BrokenRoundError, match='8 of 12'):
    sums_protocol.aggregate(sent[:8], config, round=7, users=users)


@pytest.mark.slow
def test_on_movielens_the_sums_are_those_of_a_curator(data_dir):
  ratings = catalog.load('ml-100k', data_dir=data_dir, quiet=True)
  data, config = training_data(ratings), sound()
  hyper = sums.hyper_of(config, ratings.num_users)
  counts = jnp.ones((ratings.num_users, 1), jnp.int32) * 2**8
  got = np.asarray(sums.statistic(data.by_item, counts, hyper), np.float64)
  number = np.bincount(ratings.item, minlength=ratings.num_items)
  total = np.bincount(ratings.item, ratings.value - 3.0, ratings.num_items)
  sizes = sizes_of(config)
  np.testing.assert_array_equal(got[:, 0], number * sizes.counts)
  error = np.abs(got[:, 1] * 2 / sizes.labels - total)
  assert (error <= number / sizes.labels).all()  # half a step each


def test_headroom_and_colluders_are_checked(small_ratings):
  data = training_data(small_ratings)
  with pytest.raises(ValueError, match='fewer bits'):
    sound(epsilon=50.0, noise_bits=12)
  with pytest.raises(ValueError, match='more bits'):
    sound(epsilon=0.01, noise_bits=4)
  config = sound(epsilon=4.0)
  assert sums.hyper_of(config, 10**5)
  with pytest.raises(ValueError, match='would wrap'):
    sums.hyper_of(config, 10**6)
  with pytest.raises(ValueError, match='dropouts = 60'):
    untrusted_pmf(sound(colluders=60)).init(jax.random.key(0), data)
  for wrong in ({'online': 0.5}, {'relation': 'add_remove'}):
    with pytest.raises(ValueError, match=r'replace|static'):
      paper(**wrong)


def test_what_is_stated_is_epsilon_for_every_party():
  for relation in ('add_remove', 'replace'):
    for view in ('public', 'recommender', 'third_party'):
      config = sound(relation=relation, view=view, epsilon=0.5, colluders=7)
      stated = untrusted_pmf(config).guarantee
      assert stated.status == 'proved'
      spent = accounting.epsilon(stated, accounting.uncovered(stated))
      assert 0.4985 < spent <= 0.5
      assert 'up to 7 users' in stated.adversary
      assert 'honest but curious' in ' '.join(stated.assumptions)
  claimed = untrusted_pmf(paper()).guarantee
  assert claimed.status == 'claimed'
  assert accounting.epsilon(claimed, 0.0) == 1


# The paper's rounds.


def test_gradient_sums_are_those_of_a_curator(small_ratings):
  check_gradients(small_ratings, paper(epsilon=0.5))


@pytest.mark.slow
def test_gradient_sums_on_movielens(data_dir):
  ratings = catalog.load('ml-100k', data_dir=data_dir, quiet=True)
  check_gradients(ratings, paper(rank=20, epsilon=0.5))


def check_gradients(ratings, config):
  """Sums of fixed-point gradients against float64, to half a step each."""
  data = training_data(ratings)
  system = untrusted_pmf(config)
  state = system.init(jax.random.key(0), data)
  online = jnp.ones(ratings.num_users, bool)
  got = rounds.gradient_sums(data.by_item, state.factors, online, state.hyper)
  p, q = (np.asarray(side, np.float64) for side in state.factors)
  e = (p[ratings.user] * q[ratings.item]).sum(axis=1) - ratings.value
  want = np.zeros_like(q)
  np.add.at(want, ratings.item, 2 * e[:, None] * p[ratings.user])
  number = np.bincount(ratings.item, minlength=ratings.num_items)
  spacing = float(state.hyper.spacing)
  error = np.abs(np.asarray(got, np.float64) * spacing - want)
  # And what float32 makes of a term, of size 10 at most.
  allowed = number * (spacing / 2 + 10 * 2.0**-22)
  assert (error <= allowed[:, None]).all()


@pytest.mark.parametrize('users', ['static', 'dynamic'])
def test_rounds_of_messages_add_up_to_what_the_simulator_sums(
  small_ratings, users
):
  ratings = small_ratings.take(small_ratings.user < 6)
  data = training_data(ratings)
  online = 1.0 if users == 'static' else 0.6
  system = untrusted_pmf(paper(attendance=users, online=online))
  state = system.init(jax.random.key(0), data)
  hyper, (p, q) = state.hyper, jax.tree.map(np.asarray, state.factors)
  rated, values = rated_by(ratings, range(6))
  rng = np.random.default_rng(0)
  share = {u: rng.integers(-999, 999, (len(rated[u]), 3)) for u in rated}
  shape = {u: s.shape for u, s in share.items()}
  noise = np.zeros(q.shape, np.int64)
  for u in rated:
    np.add.at(noise, rated[u], share[u])
  there = list(rated) if users == 'static' else [0, 2, 3, 5]
  alpha = np.zeros(q.shape, np.uint32)
  if users == 'dynamic':
    betas = {u: secure_sum.one_time_mask(shape[u]) for u in rated}
    first = [
      MaskedReport(0, u, masking.masked_words(0 * share[u], share[u], betas[u]))
      for u in rated
    ]
    held, alpha = collected_noise(first, betas, rated, len(q))
    # Neither party can tell the noise from what it holds.
    both = secure_sum.signed(held - alpha)
    np.testing.assert_array_equal(both, noise)
    with pytest.raises(BrokenRoundError):
      collected_noise(first[:-1], betas, rated, len(q))
    dealt = dealt_pieces(held, {u: rated[u] for u in there})
    share = {u: piece.astype(np.int64) for u, piece in dealt.items()}
  masks = {u: secure_sum.one_time_mask(shape[u]) for u in there}
  sent = [
    gradient_report(
      p[u], q[rated[u]], values[u], share[u], masks[u], hyper,
      round=1, sender=u,
    )
    for u in there
  ]  # fmt: skip
  total = secure_sum.aggregate(
    sent, round=1, expected=there, rows=rated, num_rows=len(q)
  )
  reached = np.unique(np.concatenate([rated[u] for u in there]))
  # Nobody who is online rated the others: no noise was dealt out for them.
  alpha = np.where(np.isin(np.arange(len(q)), reached)[:, None], alpha, 0)
  total = total._replace(values=total.values - alpha)
  got = secure_sum.unmasked(total, masks, round=1, rows=rated)
  got = rounds.server_gradient(jnp.asarray(got), jnp.asarray(q), hyper)
  who = np.isin(np.arange(60), there)
  want = rounds.gradient_sums(
    data.by_item, state.factors, jnp.asarray(who), hyper
  )
  want = np.asarray(want) + np.where(
    np.isin(np.arange(len(q)), reached)[:, None], noise, 0
  )
  want = rounds.server_gradient(jnp.asarray(want), jnp.asarray(q), hyper)
  # One step for each rater where float32 rounds the other way.
  np.testing.assert_allclose(got, want, atol=6 * float(hyper.spacing))


@pytest.mark.slow
def test_shares_of_raters_have_a_laplace_sum():
  # 1,200 items with 7 raters each, 3 coordinates.
  user, item = (x.ravel() for x in np.indices((7, 1200)))
  table = from_arrays(user, item, np.full(user.size, 3.0), scale=SCALE)
  data, config = training_data(table), paper(epsilon=2.0)
  system = untrusted_pmf(config)
  state = system.init(jax.random.key(0), data)
  state = jax.jit(system.step)(jax.random.key(1), state, data)
  drawn = np.asarray(state.noise).ravel() * float(state.hyper.spacing)
  scale = accounting.claimed_hua_share_scale(
    rating_range=4, rank=3, epsilon=2.0
  )
  law = lambda by: scipy.stats.laplace(scale=scale * by).cdf
  assert scipy.stats.kstest(drawn, law(1)).pvalue > 1e-3  # false alarm 1e-3
  for wrong in (2 / 3, 3 / 2):
    assert scipy.stats.kstest(drawn, law(wrong)).pvalue < 1e-9
  # The next round has the same noise, as published.
  after = jax.jit(system.step)(jax.random.key(2), state, data)
  np.testing.assert_array_equal(after.noise, state.noise)
  # To who knows H it is Gaussian.
  given = drawn / (scale * np.sqrt(2 * np.asarray(state.noise_scales).ravel()))
  assert scipy.stats.kstest(given, 'norm').pvalue > 1e-3


# Views.


def test_no_party_sees_what_it_must_not(small_ratings):
  assert views.PublicView._fields == ('items', 'offset')
  assert views.RecommenderView._fields == (
    'public', 'sums', 'noise_scales', 'colluders_shares',
  )  # fmt: skip
  assert views.ThirdPartyView._fields == (
    'public',
    'reports',
    'colluders_shares',
  )
  data = training_data(small_ratings)
  seen = {}
  for view in ('recommender', 'third_party'):
    system = untrusted_pmf(sound(view=view))
    state = fit(system, jax.random.key(0), data)
    seen[view] = system.views[view](jax.random.key(1), state, data)
  got = seen['recommender']
  assert isinstance(got, views.RecommenderView)
  assert got.noise_scales is None
  assert got.colluders_shares is None
  # Nothing with a row for each of the 60 users.
  assert all(60 not in leaf.shape for leaf in jax.tree.leaves(got))
  got = seen['third_party']
  assert isinstance(got, views.ThirdPartyView)
  assert got.reports.shape == (60, 40, 2)
  # Uniform, and all of every report is there, rated or not. False alarm 1e-3.
  drawn = np.asarray(got.reports).ravel() / 2**32
  assert scipy.stats.kstest(drawn, 'uniform').pvalue > 1e-3
  many = types.SimpleNamespace(by_user=types.SimpleNamespace(num_rows=10**6))
  with pytest.raises(ValueError, match='for the auditor'):
    sums._masked_reports(jax.random.key(0), state, many)


def test_dynamic_users_come_and_go_without_another_word():
  assert paper().online == 1
  assert paper(attendance='dynamic').online == 0.5
  assert paper(attendance='dynamic', online=1.0).online == 1
  with pytest.raises(ValueError, match=r"attendance='dynamic' is for variant="):
    sound(attendance='dynamic')


# Messages.


def test_bytes_of_a_round_are_within_a_twentieth_of_the_specified():
  sizes = {'num_users': 943, 'num_items': 1682, 'num_ratings': 100_000}
  for how, want in (
    ({'users': 'static'}, 25_450),
    ({'users': 'dynamic'}, 33_934),
    ({'users': 'static', 'masks': 'seed'}, 16_967),
  ):
    made = untrusted_plan.round_bytes(rank=20, num_items=106, **how)
    assert made['round'] == made['up'] + made['down']
    assert made['round'] == pytest.approx(want, rel=0.05)
    if 'masks' not in how:
      config = paper(rank=20, attendance=how['users'])
      report = untrusted_plan.traffic(config, **sizes)
      assert report['bytes_round'] == pytest.approx(want, rel=0.05)
  made = untrusted_plan.traffic(sound(), **sizes)
  assert made['bytes_up'] == pytest.approx(1682 * 2 * 4, rel=0.01)


@pytest.mark.parametrize('shape', [(5, 3), (5,), (32,), ()])
def test_bytes_of_messages_are_those_of_their_arrays(shape):
  for dtype, size in ((np.uint32, 4), (np.float32, 4), (np.uint8, 1)):
    array = np.zeros(shape, dtype)
    wire = messages.to_bytes(Message(Kind.REPORT, 1, 0, (array, array[None])))
    sizes = (size, shape), (size, (1, *shape))
    assert len(wire) == untrusted_plan.message_bytes(*sizes)


def test_messages_come_back_as_they_were():
  arrays = (
    np.arange(6, dtype=np.uint32).reshape(2, 3),
    np.array(1.5, np.float32),
    np.zeros((0, 4), np.float32),
    np.frombuffer(b'seed', np.uint8),
  )
  sent = Message(Kind.SEEDED, 7, 2**32 - 1, arrays)
  wire = messages.to_bytes(sent)
  got = messages.from_bytes(wire)
  assert got[:3] == sent[:3]
  for one, other in zip(got.arrays, arrays, strict=True):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)
  for end in range(len(wire)):
    with pytest.raises(ValueError, match=r'message|array'):
      messages.from_bytes(wire[:end])
  for place in (0, 4, 5, 7):
    broken = bytearray(wire)
    broken[place] = 99
    with pytest.raises(ValueError, match='message'):
      messages.from_bytes(bytes(broken))
  with pytest.raises(ValueError, match='follow'):
    messages.from_bytes(wire + b'x')
  with pytest.raises(ValueError, match='float64'):
    messages.to_bytes(sent._replace(arrays=(np.zeros(2),)))


def test_features_are_not_dropped_where_they_are_learned():
  with pytest.raises(ValueError, match='learns its user factors: give none'):
    untrusted_pmf(paper(), np.ones((3, 2)))
