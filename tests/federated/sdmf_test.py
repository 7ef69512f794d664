"""SDMF between parties without a network: what counts, and once."""

import shutil

import jax
import numpy as np
import pytest
import scipy.stats
from deployments import (
  FIRSTS,
  ITEMS,
  NODES,
  RATINGS,
  ROUNDS,
  SEED,
  SETTINGS,
  SIZES,
  Deployed,
  of_node,
  plan_of,
  rating_bytes,
  windows,
)

from dpmf_jax.federated import checks, messages, sdmf_protocol
from dpmf_jax.federated.asking import TooFewNodesError
from dpmf_jax.federated.journal import bytes_table
from dpmf_jax.federated.messages import Kind
from dpmf_jax.federated.plan import Node, read_plan, write_plan
from dpmf_jax.rows import training_data
from dpmf_jax.systems import sdmf
from dpmf_jax.training import fit


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
  """A deployment before its first round; to be copied, not run."""
  return Deployed(tmp_path_factory.mktemp('begun'), plan_of())


@pytest.fixture
def deployed(begun, tmp_path):
  """Parties that were started before, each from its folder."""
  shutil.copytree(begun.folder, tmp_path / 'run')
  return Deployed(tmp_path / 'run', begun.plan)


@pytest.fixture(scope='module')
def simulated():
  """The simulator's factors with the same key, message by message."""
  fit_key, _ = jax.random.split(jax.random.key(SEED))
  system = sdmf.sdmf_by_messages(plan_of().config)
  state = fit(system, fit_key, training_data(RATINGS))
  return jax.tree.map(np.asarray, state.factors)


def test_plan_is_read_as_written(tmp_path):
  plan = plan_of()
  write_plan(tmp_path / 'plan.json', plan)
  assert read_plan(tmp_path / 'plan.json') == plan


def test_plan_must_fit():
  with pytest.raises(ValueError, match='nodes'):
    plan_of(nodes=(Node(0, SIZES[0]), Node(SIZES[0] + 1, SIZES[1])))
  without = {k: v for k, v in SETTINGS.items() if k != 'sent'}
  with pytest.raises(ValueError, match='sent'):
    plan_of(settings=without)


@pytest.mark.slow
def test_same_bits_as_the_simulator(deployed, simulated):
  np.testing.assert_array_equal(deployed.run(), simulated.item)
  np.testing.assert_array_equal(deployed.all_nodes('factors'), simulated.user)


def changed(data, **changes):
  """A node's message with other arrays, or another header."""
  message = messages.from_bytes(data)
  names = ('run', 'users', 'counts', 'items', 'gradients', 'converged')
  arrays = dict(zip(names, message.arrays, strict=True))
  for name in changes.keys() & arrays.keys():
    arrays[name] = changes.pop(name)(arrays[name].copy())
  return messages.to_bytes(
    message._replace(arrays=tuple(arrays.values()), **changes)
  )


def with_first(value):
  def change(array):
    array.reshape(-1)[0] = value
    return array

  return change


FAULTS = {
  'wrong shape': lambda data: changed(data, gradients=lambda x: x[:, :-1]),
  'wrong shape: ': lambda data: changed(data, gradients=lambda x: x[:-1]),
  'wrong shape: users is': lambda data: changed(
    data, users=lambda x: x.astype(np.float32)
  ),
  'gradients is not finite': lambda data: changed(
    data, gradients=with_first(np.nan)
  ),
  'is not finite': lambda data: changed(data, gradients=with_first(-np.inf)),
  'an unknown item': lambda data: changed(
    data, items=lambda x: np.where(x == x[0], np.uint32(ITEMS), x)
  ),
  'an unknown user': lambda data: changed(data, users=with_first(SIZES[0])),
  'not in order': lambda data: changed(
    data, items=lambda x: np.full_like(x, x[0])
  ),
  'more items': lambda data: changed(
    data,
    counts=lambda x: np.array([x.sum()] + [0] * (len(x) - 1), np.uint32),
  ),
  'a bit that is none': lambda data: changed(data, converged=with_first(2)),
  'of another run': lambda data: changed(data, run=lambda x: x ^ 1),
  'is from node 1': lambda data: changed(data, sender=1),
  'late or replayed': lambda data: changed(data, round=7),
  'is PUBLIC': lambda data: changed(data, kind=Kind.PUBLIC),
  'is cut off': lambda data: data[:30],
  'broken: not': lambda data: b'x' + data[1:],
  'follow': lambda data: data + b'0',
}


@pytest.mark.slow
@pytest.mark.parametrize('why', FAULTS)
def test_wrong_messages_are_left_out_and_asked_for_again(
  why, deployed, simulated
):
  turned = []

  def exchange(questions, seconds):
    for who, data in deployed.exchange(questions, seconds):
      if who == 0 and not turned:
        turned.append(who)
        yield who, FAULTS[why](data)
      else:
        yield who, data

  np.testing.assert_array_equal(deployed.run(exchange), simulated.item)
  (found,) = deployed.events('rejected')
  assert why in found['why']
  assert (found['who'], found['round']) == ('node 0', 0)
  assert len(deployed.events('asked again')) == 1


@pytest.mark.slow
def test_nothing_is_counted_twice(deployed, simulated):
  earlier = []

  def exchange(questions, seconds):
    for who, data in deployed.exchange(questions, seconds):
      yield who, data
      yield who, data  # doubled
      yield from earlier[:1]  # replayed from the first round
      earlier.append((who, data))
      yield 9, data  # from somebody who was not asked

  np.testing.assert_array_equal(deployed.run(exchange), simulated.item)
  whys = [line['why'] for line in deployed.events('rejected')]
  assert sum('doubled' in why for why in whys) >= NODES * ROUNDS
  assert sum('replayed' in why for why in whys) == NODES * (ROUNDS - 1)
  assert sum('nobody asked' in why for why in whys) == NODES * ROUNDS


def test_late_answers_are_left_out(deployed):
  late = []

  def exchange(questions, seconds):
    answers = deployed.exchange(questions, seconds)
    held = list(late)
    late.clear()
    for who, data in answers:
      if messages.from_bytes(data).round == 0 and who == 1:
        late.append((who, data))
      else:
        yield who, data
    if messages.from_bytes(answers[0][1]).round == 1:
      yield from held

  deployed.run(exchange)
  (out,) = deployed.events('left out')
  assert (out['round'], out['who']) == (0, ['node 1'])
  assert any('late' in line['why'] for line in deployed.events('rejected'))
  done = deployed.events('round done')
  assert [line['nodes'] for line in done] == [1, 2, 2]


@pytest.mark.slow
def test_killed_node_gives_the_same_answer_again(deployed, simulated):
  given = []

  def exchange(questions, seconds):
    for who, data in deployed.exchange(questions, seconds):
      round = messages.from_bytes(data).round
      if who == 1 and round == 1:
        given.append(data)
        if len(given) == 1:  # computed and saved, and then it was gone
          deployed.start(1, seed=77)
          continue
      yield who, data

  np.testing.assert_array_equal(deployed.run(exchange), simulated.item)
  assert given[0] == given[1]
  answered = deployed.events('answered', 'node-1')
  assert [line['round'] for line in answered] == list(range(ROUNDS))
  assert deployed.events('answered again', 'node-1')


@pytest.mark.slow
def test_recommender_goes_on_where_it_was(deployed, simulated):
  def exchange(questions, seconds):
    if messages.from_bytes(questions[0]).round == 1 and not stopped:
      stopped.append(True)
      deployed.exchange(questions, seconds)  # nodes have answered
      raise ConnectionError('killed')
    return deployed.exchange(questions, seconds)

  stopped = []
  with pytest.raises(ConnectionError):
    deployed.run(exchange)
  np.testing.assert_array_equal(deployed.run(exchange), simulated.item)
  answered = deployed.events('answered', 'node-0')
  assert [line['round'] for line in answered] == list(range(ROUNDS))


@pytest.mark.parametrize('restarted', [False, True])
def test_nodes_keep_to_their_budget(restarted, deployed):
  asked = []

  def exchange(questions, seconds):
    asked.append(questions[0])
    return deployed.exchange(questions, seconds)

  item = deployed.run(exchange)
  if restarted:
    deployed.start(0)
    # The recommender does not go on after the last round, either.
    np.testing.assert_array_equal(deployed.run(exchange), item)
    assert len(asked) == ROUNDS

  def refusal(data):
    answer = messages.from_bytes(deployed.nodes[0](data))
    assert answer.kind == Kind.REFUSED
    return checks.refusal(answer)

  assert 'is over' in refusal(asked[0])
  more = messages.from_bytes(asked[-1])._replace(round=ROUNDS)
  assert 'past the 3 that' in refusal(messages.to_bytes(more))
  whys = [line['why'] for line in deployed.events('refused', 'node-0')]
  assert len(whys) == 2


def test_a_folder_of_another_run_is_refused(deployed):
  with pytest.raises(ValueError, match='another run'):
    Deployed(deployed.folder, plan_of())


def test_run_stops_without_nodes(deployed):
  with pytest.raises(TooFewNodesError):
    deployed.run(lambda questions, seconds: [])
  assert len(deployed.events('asked again')) == 2
  assert deployed.events('stopped')


def test_transcript_holds_no_rating_and_no_gradient_without_noise(
  deployed, begun
):
  deployed.run()
  kept = deployed.transcript()
  assert len(kept) == 2 * NODES * ROUNDS
  everything = b'\n'.join(data for _, _, data in kept)
  assert not any(word in everything for word in rating_bytes())
  # Factors of users: as they are before the first and after the last round.
  for number in range(NODES):
    party = f'node-{number}'
    for state in (begun.saved(party), deployed.saved(party)):
      assert not any(w in everything for w in windows(state['factors'], 2))
      assert not any(w in everything for w in windows(state['memory/0'], 6))
  # Gradients of true ratings: what was sent is the clean one and noise.
  noise = []
  for number in range(NODES):
    question, answer = (
      next(d for way, who, d in kept if (way, who) == (direction, number))
      for direction in ('sent', 'received')
    )
    state = begun.saved(f'node-{number}')
    clean, sent, eta = rated_gradients(number, state, question, answer)
    assert not any(word in everything for word in windows(clean, 2))
    # What such a search would find: what is sent.
    assert all(row.tobytes() in everything for row in sent)
    noise += ((clean - sent) / np.sqrt(eta)).reshape(-1).tolist()
  # False alarms: one key in a thousand, and this one is fixed. Of that many
  # draws a deviation is 5% off.
  assert len(noise) > 200
  assert scipy.stats.kstest(noise, 'norm').pvalue > 1e-3
  assert 0.8 < np.std(noise) < 1.2


def rated_gradients(number, state, question, answer):
  """Gradients of ratings in the first round without noise, and as sent."""
  public = sdmf_protocol.public_of(messages.from_bytes(question).arrays[1:])
  users, counts, sent, gradients, _ = messages.from_bytes(answer).arrays[1:]
  ratings = np.full((SIZES[number], ITEMS), np.nan, np.float32)
  user, item, value = of_node(number)
  ratings[user, item] = value
  user = np.repeat(users.astype(int) - FIRSTS[number], counts)
  there = ~np.isnan(ratings[user, sent])
  user, sent, gradients = user[there], sent[there], gradients[there]
  p, q = state['factors'][user], np.asarray(public.item)[sent]
  error = (p * q).sum(axis=1) - ratings[user, sent]
  langevin = jax.tree.map(np.asarray, public.langevin)
  drift = langevin.likelihood * error[:, None] * p + q * langevin.item_ridge
  eta = np.asarray(public.step_size)
  return eta * drift, gradients, eta


def test_bytes_are_those_of_the_messages(deployed):
  deployed.run()
  table = bytes_table(deployed.folder / 'recommender')
  kept = deployed.transcript()
  for row in table:
    sizes = [len(data) for way, _, data in kept if way == row['direction']]
    assert (row['messages'], row['bytes']) == (len(sizes), sum(sizes))
  down = 16 + 4 + 18 + 4 + 4 * 3 * (ITEMS + 2) + 4 * 6 + 10 + 6 + 10
  assert abs(table[1]['bytes'] / (NODES * ROUNDS) - down) < 40
