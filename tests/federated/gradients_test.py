"""Rounds of gradients as published, between parties without a network."""

import numpy as np
import pytest
from deployments import (
  NODES,
  RATINGS,
  ROUNDS,
  SEED,
  Gradients,
  rating_bytes,
  windows,
)

from benchmarks.federated import results, transcripts
from dpmf_jax.federated import checks, envelopes, messages
from dpmf_jax.federated.asking import TooFewNodesError
from dpmf_jax.federated.messages import Kind
from dpmf_jax.federated.plan import AGGREGATOR
from dpmf_jax.rows import training_data

pytest.importorskip(
  'cryptography', reason='sealed messages need the package cryptography'
)


SETUP_TURNS = 2  # who rated what, scales of noise


@pytest.fixture
def deployed(tmp_path):
  return Gradients(tmp_path / 'run')


def difference(deployed):
  """How far factors are from the simulator's with the same noise."""
  parts = [deployed.saved(f'node-{i}') for i in range(NODES)]
  _, far = results.compared_gradients(
    deployed.plan,
    parts,
    training_data(RATINGS),
    deployed.saved(),
    SEED,
  )
  return far['largest_difference']


# A term of a sum may be rounded the other way: 2^-20 or so, times the step.
NEAR = 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('faults', [False, True])
def test_rounds_are_the_simulators_with_the_same_noise(faults, deployed):
  exchange = faulty_exchange(deployed, {}) if faults else deployed.exchange
  item = deployed.run(exchange)
  assert difference(deployed) < NEAR
  assert (deployed.shares() != 0).mean() > 0.9
  np.testing.assert_array_equal(deployed.run(), item)  # all rounds are done
  done = [line['round'] for line in deployed.events('round done')]
  assert done == [*range(ROUNDS)]


@pytest.fixture(scope='module')
def usual(tmp_path_factory):
  """A run without faults."""
  made = Gradients(tmp_path_factory.mktemp('usual') / 'run')
  made.run()
  return made


def faulty_exchange(deployed, envelopes_of):
  """A node is missing, an answer is replayed, the aggregator restarted."""
  first, attempts = [], deployed.plan.attempts

  def exchange(questions, seconds):
    round = messages.from_bytes(next(iter(questions.values()))).round
    turn, attempt = divmod(round, attempts)
    for who, data in deployed.exchange(questions, seconds):
      if who == 1 and (turn, attempt) == (2, 0):
        deployed.start(1)  # killed: what it said is lost, in all attempts
        continue
      if who == 0 and turn >= SETUP_TURNS:
        envelopes_of[round] = data
        first.append(data)
        if turn == 3 and attempt == 0:
          data = first[0]  # replayed
      if who == AGGREGATOR and (turn, attempt) == (4, 0):
        deployed.start_aggregator()  # killed: its sum was saved and is lost
        continue
      yield who, data

  return exchange


def test_faults_are_left_out_and_turns_done_again(deployed):
  envelopes_of, attempts = {}, deployed.plan.attempts
  deployed.run(faulty_exchange(deployed, envelopes_of))
  done = [line['round'] for line in deployed.events('round done')]
  assert done == [*range(ROUNDS)]
  broken = [line['round'] for line in deployed.events('round broken')]
  assert broken == [turn * attempts for turn in (2, 3, 4)]
  whys = [line['why'] for line in deployed.events('rejected')]
  assert any('late or replayed' in why for why in whys)
  passed = [line['round'] for line in deployed.events('answered', 'aggregator')]
  assert [round // attempts for round in passed] == [2, 3, 4]
  assert deployed.events('answered again', 'aggregator')
  # Masks are new in each attempt, and what is under them is not.
  third = envelopes.own_key(deployed.third)
  words = [
    envelopes.opened_report(
      deployed.plan,
      round,
      0,
      messages.from_bytes(envelopes_of[round]).arrays[1].tobytes(),
      third,
    )[2]
    for round in (2 * attempts, 2 * attempts + 1)
  ]
  assert (words[0] != words[1]).mean() > 0.99


def test_no_turn_without_everybody(deployed):
  for _ in range(2):  # also when it is started again
    with pytest.raises(TooFewNodesError):
      deployed.run(deployed.without_node(1))
  assert len(deployed.events('round broken')) == deployed.plan.attempts


def test_turns_past_the_plan_are_refused(usual):
  attempts = usual.plan.attempts
  (last, *_) = [
    data
    for way, who, data in reversed(usual.transcript())
    if (way, who) == ('sent', 0)
  ]
  message = messages.from_bytes(last)
  for restarted in (False, True):
    if restarted:
      usual.start(0)
    more = message._replace(round=(SETUP_TURNS + ROUNDS) * attempts)
    refusal = messages.from_bytes(usual.nodes[0](messages.to_bytes(more)))
    assert 'past the' in checks.refusal(refusal)
    early = message._replace(round=message.round - attempts)
    refusal = messages.from_bytes(usual.nodes[0](messages.to_bytes(early)))
    assert 'is over' in checks.refusal(refusal)


def test_nothing_that_is_sent_shows_ratings_or_gradients_without_masks(usual):
  kept, attempts = usual.transcript(), usual.plan.attempts
  # Nodes: two turns of setup and the rounds; the aggregator: the rounds.
  assert len(kept) == 2 * (NODES * (SETUP_TURNS + ROUNDS) + ROUNDS)
  unsealed = usual.unsealed()
  everything = b'\n'.join([*(data for *_, data in kept), *unsealed.values()])
  assert not any(word in everything for word in rating_bytes())
  for number in range(NODES):
    state = usual.saved(f'node-{number}')  # of the last round
    counts = state['counts']
    hidden = [counts, state['share'], counts + state['share']]
    for part in (*hidden, state['factors']):
      assert not any(word in everything for word in windows(part, 3))
  # As a trial searches, which keeps the folders in the same places.
  data = messages.to_bytes(
    messages.Message(Kind.REPORT, 0, 0, (state['factors'],))
  )
  assert transcripts.found_words(data, transcripts.pairs(state['factors']))
  assert not transcripts.found_words(
    everything, transcripts.pairs(state['factors'])
  )
  # What such a search would find: masked words of the last round.
  last = (SETUP_TURNS + ROUNDS - 1) * attempts
  sent = messages.from_bytes(unsealed[last, 0])
  assert all(word in everything for word in windows(sent.arrays[2], 3))
