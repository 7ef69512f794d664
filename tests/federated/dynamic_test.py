"""Dynamic users of the rounds as published, between parties in one process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deployments import (
  ITEMS,
  NODES,
  RATINGS,
  ROUNDS,
  SEED,
  USERS,
  Gradients,
  rating_bytes,
  windows,
)

from benchmarks.federated import results
from dpmf_jax.evaluation import metrics
from dpmf_jax.federated import checks, masks, messages
from dpmf_jax.federated.asking import TooFewNodesError
from dpmf_jax.federated.messages import Kind
from dpmf_jax.federated.plan import AGGREGATOR, RECOMMENDER
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.secure_sum import Aggregate
from dpmf_jax.rows import training_data
from dpmf_jax.systems.untrusted import rounds as untrusted_rounds
from dpmf_jax.systems.untrusted_pmf import untrusted_pmf
from dpmf_jax.types import Release

pytest.importorskip(
  'cryptography', reason='sealed messages need the package cryptography'
)

# Few enough that some items have no rater who is online.
DYNAMIC = {'attendance': 'dynamic', 'online': 0.15}
SHARES, FIRST = 2, 3  # turns: of shares, and the first of the rounds
KINDS = ('ratings', 'scales', 'shares', *('online', 'gradients') * ROUNDS)


def rows(deployed):
  """(user, item) of each rating, in the order in which nodes have them."""
  got = deployed.saved()
  return np.repeat(np.arange(USERS), got['counts']), got['rated']


def noise(deployed):
  """The sum of all users' shares [I, D]."""
  _, item = rows(deployed)
  made = np.zeros((ITEMS, 3), np.int64)
  np.add.at(made, item, deployed.all_nodes('share'))
  return made


def received_sum(deployed, turn):
  """The sum of a turn as the recommender gets it, without masks."""
  (data,) = {
    data
    for way, who, data in deployed.transcript()
    if (way, who) == ('received', AGGREGATOR)
    and messages.from_bytes(data).round // deployed.plan.attempts == turn
  }
  message = messages.from_bytes(data)
  got = deployed.saved()
  user, item = rows(deployed)
  there = got['online'].astype(bool)
  rated = {u: item[user == u] if there[u] else item[:0] for u in range(USERS)}
  known = {
    u: masks.mask(got['seeds'][u], (len(items), 3), message.round, u)
    for u, items in rated.items()
  }
  arrived = tuple(int(who) for who in message.arrays[1])
  return secure_sum.unmasked(
    Aggregate(message.round, arrived, message.arrays[2]),
    known,
    round=message.round,
    rows=rated,
  )


def last_sum(deployed):
  """The gradients of those online plus the noise, for items they rated."""
  user, item = rows(deployed)
  there = deployed.saved()['online'].astype(bool)[user]
  made = np.zeros((ITEMS, 3), np.int64)
  np.add.at(made, item[there], deployed.all_nodes('counts')[there])
  reached = np.isin(np.arange(ITEMS), item[there])
  return made + np.where(reached[:, None], noise(deployed), 0), reached


def simulator_start(deployed, data):
  """The simulator's state before the first round, with the users' noise."""
  fit_key, _ = jax.random.split(jax.random.key(SEED))
  init_key, steps_key = jax.random.split(fit_key)
  state = untrusted_pmf(deployed.plan.config).init(init_key, data)
  return steps_key, state._replace(noise=jnp.asarray(noise(deployed), 'int32'))


@pytest.fixture(scope='module')
def usual(tmp_path_factory):
  """A run without faults."""
  made = Gradients(tmp_path_factory.mktemp('usual') / 'run', **DYNAMIC)
  made.run()
  return made


@pytest.mark.slow
def test_the_sum_of_a_round_is_that_of_those_online_and_the_noise(usual):
  want, reached = last_sum(usual)
  assert 0 < reached.sum() < ITEMS
  assert 0 < usual.saved()['online'].sum() < USERS
  got = received_sum(usual, FIRST + 2 * ROUNDS - 1)
  np.testing.assert_array_equal(got, want)
  # It can fail: the noise is there, item by item.
  assert (want[reached] != want[reached] - noise(usual)[reached]).mean() > 0.9


def test_neither_party_holds_the_noise_and_both_together_do(usual):
  held, alpha = usual.saved()['noise'], usual.saved('aggregator')['alpha']
  both = secure_sum.signed(held - alpha)
  np.testing.assert_array_equal(both, noise(usual))
  # By chance a word in 2^32 / |noise| would look like it.
  for words in (held, alpha):
    assert np.abs(secure_sum.signed(words).astype(float)).mean() > 2**28


def test_a_round_is_the_simulators_with_the_same_noise(tmp_path):
  deployed = Gradients(tmp_path / 'run', **DYNAMIC, rounds=1)
  deployed.run()
  data = training_data(RATINGS)
  key, state = simulator_start(deployed, data)
  _, online_key, _ = jax.random.split(jax.random.fold_in(key, 0), 3)
  online = jax.random.bernoulli(online_key, DYNAMIC['online'], (USERS,))
  np.testing.assert_array_equal(deployed.saved()['online'], online)
  hyper = state.hyper
  want = untrusted_rounds.gradient_sums(
    data.by_item, state.factors, online, hyper
  )
  _, reached = last_sum(deployed)
  want = np.asarray(want) + np.where(reached[:, None], noise(deployed), 0)
  # One step for each rater where float32 rounds the other way.
  got = received_sum(deployed, FIRST + 1)
  np.testing.assert_allclose(got, want, atol=USERS)
  # Whoever is offline does not move, and the others do.
  moved = deployed.all_nodes('factors') != np.asarray(state.factors.user)
  np.testing.assert_array_equal(moved.any(axis=1), np.asarray(online))


@pytest.mark.slow
def test_all_rounds_are_the_simulators_with_the_same_noise(tmp_path):
  # A step with which rounds do not swing: then small differences stay small.
  deployed = Gradients(
    tmp_path / 'run',
    attendance='dynamic',
    online=0.5,
    rounds=30,
    step_size=4.0,
    epsilon=1000.0,
  )
  deployed.run()
  data = training_data(RATINGS)
  parts = [deployed.saved(f'node-{i}') for i in range(NODES)]
  made, _ = results.compared_gradients(
    deployed.plan, parts, data, deployed.saved(), SEED
  )
  both = zip(made[''].factors, made['simulator_'].factors, strict=True)
  for one, other in both:
    np.testing.assert_allclose(one, other, atol=1e-4)
  begun = Release(simulator_start(deployed, data)[1].factors, jnp.float32(0))
  rmse = lambda release: metrics.rmse(release, data.by_user, (1.0, 5.0))
  assert rmse(made['']) < rmse(begun) - 0.5


def test_a_round_in_which_nobody_is_online_has_no_sums(tmp_path):
  deployed = Gradients(
    tmp_path / 'run', attendance='dynamic', online=1e-6, rounds=1
  )
  deployed.run()
  assert not deployed.saved()['online'].any()  # false alarm 4e-5
  assert not received_sum(deployed, FIRST + 1).any()


def faulty_exchange(deployed):
  """A node is missing, an answer is replayed, the aggregator restarted."""
  first, attempts = {}, deployed.plan.attempts

  def exchange(questions, seconds):
    round = messages.from_bytes(next(iter(questions.values()))).round
    turn, attempt = divmod(round, attempts)
    for who, data in deployed.exchange(questions, seconds):
      first.setdefault((who, KINDS[turn]), data)
      if attempt == 0 and (who, turn) in (
        (1, SHARES),  # killed: what it said is lost
        (1, FIRST),
        (1, FIRST + 1),
      ):
        deployed.start(1)
        continue
      if attempt == 0 and (who, turn) in ((0, FIRST + 2), (0, FIRST + 3)):
        data = first[who, KINDS[turn]]  # replayed
      if (who, attempt) == (AGGREGATOR, 1) and turn == SHARES:
        deployed.start_aggregator()  # killed: its sum was saved and is lost
        continue
      if (who, attempt) == (AGGREGATOR, 0) and turn == FIRST + 5:
        deployed.start_aggregator()
        continue
      yield who, data

  return exchange


def test_faults_are_left_out_and_turns_done_again(tmp_path):
  deployed = Gradients(tmp_path / 'run', **DYNAMIC)
  deployed.run(faulty_exchange(deployed))
  attempts = deployed.plan.attempts
  done = [line['round'] for line in deployed.events('round done')]
  assert done == [*range(ROUNDS)]
  broken = {
    line['round'] // attempts for line in deployed.events('round broken')
  }
  assert broken == {SHARES, *range(FIRST, FIRST + 4), FIRST + 5}
  whys = [line['why'] for line in deployed.events('rejected')]
  assert any('late or replayed' in why for why in whys)
  passed = [
    line['round'] // attempts
    for line in deployed.events('answered', 'aggregator')
  ]
  assert passed == [SHARES, *range(FIRST + 1, FIRST + 2 * ROUNDS, 2)]
  assert deployed.events('answered again', 'aggregator')
  # After all of it the restarted aggregator's alpha is that of tau-hat.
  want, _ = last_sum(deployed)
  got = received_sum(deployed, FIRST + 2 * ROUNDS - 1)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize('turn', [FIRST, FIRST + 1])
def test_a_recommender_that_was_killed_deals_the_same_pieces(tmp_path, turn):
  # One round: that in which some nodes were asked and others not.
  deployed = Gradients(tmp_path / 'run', **DYNAMIC, rounds=1)

  class KilledError(Exception):
    pass

  def exchange(questions, seconds):
    round = messages.from_bytes(next(iter(questions.values()))).round
    if round // deployed.plan.attempts == turn:
      deployed.nodes[0](questions[0])  # node 1 is not asked
      raise KilledError
    return deployed.exchange(questions, seconds)

  with pytest.raises(KilledError):
    deployed.run(exchange)
  deployed.run()
  want, _ = last_sum(deployed)
  got = received_sum(deployed, FIRST + 1)
  np.testing.assert_array_equal(got, want)
  assert not deployed.events('round broken')


def test_no_turn_without_every_node(tmp_path):
  deployed = Gradients(tmp_path / 'run', **DYNAMIC)

  def exchange(questions, seconds):
    round = messages.from_bytes(next(iter(questions.values()))).round
    found = deployed.exchange(questions, seconds)
    late = round // deployed.plan.attempts == FIRST + 1
    return [(who, data) for who, data in found if who != 1 or not late]

  with pytest.raises(TooFewNodesError):
    deployed.run(exchange)
  assert not deployed.events('round done')
  passed = deployed.events('answered', 'aggregator')
  assert [line['round'] // deployed.plan.attempts for line in passed] == [
    SHARES
  ]


def test_questions_out_of_turn_are_refused(usual, tmp_path):
  plan = usual.plan
  (last, *_) = [
    data
    for way, who, data in reversed(usual.transcript())
    if (way, who) == ('sent', 0)
  ]
  message = messages.from_bytes(last)

  def refusal(party, question):
    reply = usual.nodes[party](messages.to_bytes(question))
    return checks.refusal(messages.from_bytes(reply))

  more = message._replace(round=len(KINDS) * plan.attempts)
  assert 'past the' in refusal(0, more)
  early = message._replace(round=message.round - 2 * plan.attempts)
  assert 'is over' in refusal(0, early)
  # Gradients without pieces for those who are online.
  fresh = Gradients(tmp_path / 'run', **DYNAMIC)

  def exchange(questions, seconds):
    changed = {}
    for who, data in questions.items():
      asked = messages.from_bytes(data)
      if asked.kind == Kind.SEEDED and len(asked.arrays) == 4:
        short = (*asked.arrays[:3], asked.arrays[3][1:])
        data = messages.to_bytes(asked._replace(arrays=short))
      changed[who] = data
    return fresh.exchange(changed, seconds)

  with pytest.raises(TooFewNodesError):
    fresh.run(exchange)
  whys = [line['why'] for line in fresh.events('refused', 'node-0')]
  assert all('pieces' in why for why in whys)
  assert whys
  # The aggregator adds up shares before gradients, and nothing in between.
  one = np.ones(1, np.uint32)
  broken = (0 * one, one, np.zeros(1, np.uint8))
  third = Gradients(tmp_path / 'third', **DYNAMIC)
  for turn, why in ((FIRST, 'nothing is added'), (FIRST + 1, 'before all')):
    asked = checks.run_message(
      third.plan, Kind.SEALED, turn * plan.attempts, RECOMMENDER, *broken
    )
    reply = messages.from_bytes(third.nodes[AGGREGATOR](asked))
    assert why in checks.refusal(reply)
  none = tuple(array[:0] for array in broken)
  asked = checks.run_message(third.plan, Kind.SEALED, 0, RECOMMENDER, *none)
  reply = messages.from_bytes(third.nodes[AGGREGATOR](asked))
  assert 'no envelopes' in checks.refusal(reply)


def test_nothing_that_is_sent_shows_ratings_shares_or_gradients(usual):
  sent = [data for _, _, data in usual.transcript()]
  everything = b'\n'.join([*sent, *usual.unsealed().values()])
  assert not any(word in everything for word in rating_bytes())
  counts, share = usual.all_nodes('counts'), usual.all_nodes('share')
  for part in (counts, share, counts + share, usual.all_nodes('factors')):
    assert not any(word in everything for word in windows(part, 3))
  alpha = usual.saved('aggregator')['alpha']
  assert not any(word in everything for word in windows(alpha, 3))
