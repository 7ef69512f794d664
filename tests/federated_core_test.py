"""Tests of a deployment's parties without a network: what counts, and once."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmf_jax import messages
from dpmf_jax.data.synthetic import synthetic
from dpmf_jax.federated import (
  boxes,
  folders,
  intake,
  sdmf_node,
  sdmf_server,
  sums_aggregator,
  sums_node,
  sums_server,
)
from dpmf_jax.federated.journal import (
  bytes_table,
  journal,
  read_log,
  read_transcript,
)
from dpmf_jax.federated.plan import (
  AGGREGATOR,
  Node,
  Plan,
  new_run,
  read_plan,
  write_plan,
)
from dpmf_jax.federated.rounds import TooFewNodesError
from dpmf_jax.messages import Kind
from dpmf_jax.sharding import training_data
from dpmf_jax.systems import untrusted_sums
from dpmf_jax.systems.sdmf import sdmf
from dpmf_jax.training import fit

NODES, USERS, ITEMS, ROUNDS, SEED = 2, 32, 24, 3, 5
RATINGS = synthetic(
  num_users=USERS,
  num_items=ITEMS,
  num_ratings=300,
  rank=3,
  integer=False,  # values that are not found in other bytes by chance
  seed=1,
)
SETTINGS = {
  'scale': [1.0, 5.0],
  'epsilon': 2.0,
  'sent': 8.0,
  'likelihood_scale': 300.0,
  'rank': 3,
  'steps': ROUNDS,
}
EACH = USERS // NODES


def of_node(number):
  """(user, item, value) of a node."""
  first = EACH * number
  there = (RATINGS.user >= first) & (RATINGS.user < first + EACH)
  user, item, value = RATINGS.user, RATINGS.item, RATINGS.value
  return user[there] - first, item[there], value[there]


def sdmf_plan(**changes):
  fields = {
    'run': new_run(),
    'system': 'sdmf',
    'settings': SETTINGS,
    'item_ids': tuple(str(item) for item in RATINGS.item_ids),
    'nodes': tuple(Node(EACH * i, EACH) for i in range(NODES)),
    'attempts': 3,
    'seconds': 5.0,
  }
  return Plan(**fields | changes)


def started(plan, folder, number, seed=SEED):
  folder.mkdir(exist_ok=True)
  book = journal(folder)
  return sdmf_node.node(plan, number, folder, of_node(number), book, seed=seed)


class Deployment:
  """Two nodes and a recommender in folders of their own."""

  def __init__(self, folder, plan=None):
    self.folder, self.plan = folder, plan or sdmf_plan()
    self.places = [folder / f'node-{i}' for i in range(NODES)]
    self.nodes = [
      started(self.plan, place, i) for i, place in enumerate(self.places)
    ]
    (folder / 'recommender').mkdir()
    self.book = journal(folder / 'recommender', transcript=True)

  def exchange(self, questions, seconds):
    del seconds
    return [(who, self.nodes[who](data)) for who, data in questions.items()]

  def run(self, exchange=None):
    return sdmf_server.recommender(
      self.plan,
      self.folder / 'recommender',
      exchange or self.exchange,
      self.book,
      seed=SEED,
    )

  def events(self, event):
    log = read_log(self.folder / 'recommender')
    return [line for line in log if line['event'] == event]


@pytest.fixture
def deployment(tmp_path):
  return Deployment(tmp_path)


@pytest.fixture(scope='module')
def simulated():
  """The simulator's factors with the same key."""
  fit_key, _ = jax.random.split(jax.random.key(SEED))
  state = fit(sdmf(sdmf_plan().config), fit_key, training_data(RATINGS))
  return jax.tree.map(np.asarray, state.factors)


def test_plan_is_read_as_written(tmp_path):
  plan = sdmf_plan()
  write_plan(tmp_path / 'plan.json', plan)
  assert read_plan(tmp_path / 'plan.json') == plan


def test_plan_must_fit():
  with pytest.raises(ValueError, match='nodes'):
    sdmf_plan(nodes=(Node(0, EACH), Node(EACH + 1, EACH)))
  without = {k: v for k, v in SETTINGS.items() if k != 'sent'}
  with pytest.raises(ValueError, match='sent'):
    sdmf_plan(settings=without)


def test_same_bits_as_the_simulator(deployment, simulated):
  np.testing.assert_array_equal(deployment.run(), simulated.item)
  parts = [folders.saved(p, deployment.plan) for p in deployment.places]
  users = np.concatenate([part['factors'] for part in parts])
  np.testing.assert_array_equal(users, simulated.user)


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
  'an unknown user': lambda data: changed(data, users=with_first(EACH)),
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


@pytest.mark.parametrize('why', FAULTS)
def test_wrong_messages_are_left_out_and_asked_for_again(
  why, deployment, simulated
):
  turned = []

  def exchange(questions, seconds):
    for who, data in deployment.exchange(questions, seconds):
      if who == 0 and not turned:
        turned.append(who)
        yield who, FAULTS[why](data)
      else:
        yield who, data

  np.testing.assert_array_equal(deployment.run(exchange), simulated.item)
  (found,) = deployment.events('rejected')
  assert why in found['why']
  assert (found['who'], found['round']) == ('node 0', 0)
  assert len(deployment.events('asked again')) == 1


def test_nothing_is_counted_twice(deployment, simulated):
  earlier = []

  def exchange(questions, seconds):
    for who, data in deployment.exchange(questions, seconds):
      yield who, data
      yield who, data  # doubled
      yield from earlier[:1]  # replayed from the first round
      earlier.append((who, data))
      yield 9, data  # from somebody who was not asked

  np.testing.assert_array_equal(deployment.run(exchange), simulated.item)
  whys = [line['why'] for line in deployment.events('rejected')]
  assert sum('doubled' in why for why in whys) >= NODES * ROUNDS
  assert sum('replayed' in why for why in whys) == NODES * (ROUNDS - 1)
  assert sum('nobody asked' in why for why in whys) == NODES * ROUNDS


def test_late_answers_are_left_out(deployment):
  late = []

  def exchange(questions, seconds):
    answers = deployment.exchange(questions, seconds)
    held = list(late)
    late.clear()
    for who, data in answers:
      if messages.from_bytes(data).round == 0 and who == 1:
        late.append((who, data))
      else:
        yield who, data
    if messages.from_bytes(answers[0][1]).round == 1:
      yield from held

  deployment.run(exchange)
  (out,) = deployment.events('left out')
  assert (out['round'], out['who']) == (0, ['node 1'])
  assert any('late' in line['why'] for line in deployment.events('rejected'))
  done = deployment.events('round done')
  assert [line['nodes'] for line in done] == [1, 2, 2]


def test_killed_node_gives_the_same_answer_again(deployment, simulated):
  given = []

  def exchange(questions, seconds):
    for who, data in deployment.exchange(questions, seconds):
      round = messages.from_bytes(data).round
      if who == 1 and round == 1:
        given.append(data)
        if len(given) == 1:  # computed and saved, and then it was gone
          deployment.nodes[1] = started(
            deployment.plan, deployment.places[1], 1, seed=77
          )
          continue
      yield who, data

  np.testing.assert_array_equal(deployment.run(exchange), simulated.item)
  assert given[0] == given[1]
  log = read_log(deployment.places[1])
  answered = [line['round'] for line in log if line['event'] == 'answered']
  assert answered == list(range(ROUNDS))
  assert any(line['event'] == 'answered again' for line in log)


def test_recommender_goes_on_where_it_was(deployment, simulated):
  def exchange(questions, seconds):
    if messages.from_bytes(questions[0]).round == 1 and not stopped:
      stopped.append(True)
      raise ConnectionError('killed')
    return deployment.exchange(questions, seconds)

  stopped = []
  with pytest.raises(ConnectionError):
    deployment.run(exchange)
  np.testing.assert_array_equal(deployment.run(exchange), simulated.item)


def test_nodes_keep_to_their_budget(deployment):
  asked = []

  def exchange(questions, seconds):
    asked.append(questions[0])
    return deployment.exchange(questions, seconds)

  deployment.run(exchange)
  node = deployment.nodes[0]

  def refusal(data):
    with pytest.raises(intake.RefusedError) as error:
      sdmf_server.checked_report(deployment.plan, 0, node(data))
    return str(error.value)

  assert 'is over' in refusal(asked[0])
  more = messages.from_bytes(asked[-1])._replace(round=ROUNDS)
  assert 'past the 3 that' in refusal(messages.to_bytes(more))
  with pytest.raises(ValueError, match='another run'):
    started(sdmf_plan(), deployment.places[0], 0)


def test_run_stops_without_nodes(deployment):
  with pytest.raises(TooFewNodesError):
    deployment.run(lambda questions, seconds: [])
  assert len(deployment.events('asked again')) == 2
  assert deployment.events('stopped')


def windows(array, length):
  """All runs of `length` entries of a flat array, as bytes."""
  flat = np.ascontiguousarray(array).reshape(-1)
  return {flat[i : i + length].tobytes() for i in range(len(flat) - length + 1)}


def rating_bytes(length=2):
  """Ratings of a user next to one another, in several types.

  Two float32 are 64 bits: to find one of 2,000 by chance in a megabyte has a
  chance of 1e-10.
  """
  found = set()
  for user in range(USERS):
    values = RATINGS.value[RATINGS.user == user]
    for dtype in (np.float32, np.float64, '>f4', '>f8'):
      found |= windows(values.astype(dtype), length)
    found |= {repr(float(v)).encode() for v in values}
  return found


def test_transcript_holds_no_rating_and_no_gradient_without_noise(deployment):
  deployment.run()
  plan = deployment.plan
  kept = list(read_transcript(deployment.folder / 'recommender'))
  assert len(kept) == 2 * NODES * ROUNDS
  everything = b'\n'.join(data for _, _, data in kept)
  assert not any(word in everything for word in rating_bytes())
  # Factors of users: as they are after the last round.
  for place in deployment.places:
    state = folders.saved(place, plan)
    assert not any(w in everything for w in windows(state['factors'], 2))
    assert not any(w in everything for w in windows(state['kept/bits'], 6))
  # What the check would find: the items, which are sent.
  items = folders.saved(deployment.folder / 'recommender', plan)['item']
  (last,) = [
    data
    for way, who, data in kept
    if way == 'received' and who == 0 and messages.from_bytes(data).round == 2
  ]
  assert last[-40:-16] in everything
  assert items.tobytes() not in everything  # after the last round


def test_bytes_are_those_of_the_messages(deployment):
  deployment.run()
  table = bytes_table(deployment.folder / 'recommender')
  kept = list(read_transcript(deployment.folder / 'recommender'))
  for row in table:
    sizes = [len(data) for way, _, data in kept if way == row['direction']]
    assert (row['messages'], row['bytes']) == (len(sizes), sum(sizes))
  down = 16 + 4 + 18 + 4 + 4 * 3 * (ITEMS + 2) + 4 * 6 + 10 + 6 + 10
  assert abs(table[1]['bytes'] / (NODES * ROUNDS) - down) < 40


# The untrusted recommender's sums.


class Sums:
  """Two nodes, an aggregator and a recommender."""

  def __init__(self, folder, **settings):
    pytest.importorskip(
      'cryptography', reason='sealed messages need the package cryptography'
    )
    self.folder = folder
    self.places = [folder / f'node-{i}' for i in range(NODES)]
    for place in [*self.places, folder / 'third', folder / 'recommender']:
      place.mkdir()
    key = lambda place: boxes.public_key(boxes.own_key(place / 'box.key'))
    self.plan = sdmf_plan(
      system='untrusted_pmf',
      settings={
        'scale': [1.0, 5.0],
        'variant': 'sound',
        'relation': 'add_remove',
        'epsilon': 4.0,
        **settings,
      },
      nodes=tuple(
        Node(EACH * i, EACH, key(place)) for i, place in enumerate(self.places)
      ),
      aggregator_key=key(folder / 'third'),
    )
    self.nodes = {
      i: sums_node.node(self.plan, i, place, of_node(i), journal(place))
      for i, place in enumerate(self.places)
    }
    self.start_aggregator()
    self.book = journal(folder / 'recommender', transcript=True)

  def start_aggregator(self):
    self.nodes[AGGREGATOR] = sums_aggregator.aggregator(
      self.plan, self.folder / 'third', journal(self.folder / 'third')
    )

  def exchange(self, questions, seconds):
    del seconds
    return [(who, self.nodes[who](data)) for who, data in questions.items()]

  def run(self, exchange=None):
    return sums_server.recommender(
      self.plan,
      self.folder / 'recommender',
      exchange or self.exchange,
      self.book,
    )

  def sums(self):
    return folders.saved(self.folder / 'recommender', self.plan)['sums']

  def shares(self):
    return np.stack(
      [folders.saved(p, self.plan)['share'] for p in self.places]
    ).reshape(USERS, ITEMS, 2)


def exact_sums(plan):
  """The simulator's sums without noise."""
  hyper = untrusted_sums.hyper_of(plan.config, USERS)
  features = jnp.asarray(untrusted_sums.feature_counts(np.ones((USERS, 1))))
  rows = training_data(RATINGS).by_item
  return np.asarray(untrusted_sums.statistic(rows, features, hyper))


@pytest.fixture
def sums(tmp_path):
  return Sums(tmp_path)


def test_sum_is_the_simulators_but_for_the_shares(sums):
  item = sums.run()
  assert np.isfinite(item).all()
  without = sums.sums() - sums.shares().sum(axis=0)
  np.testing.assert_array_equal(without, exact_sums(sums.plan))
  assert sums.shares().any()


def test_restarted_aggregator_passes_on_one_sum(sums):
  lost = []

  def exchange(questions, seconds):
    for who, data in sums.exchange(questions, seconds):
      if who == AGGREGATOR and len(lost) < 2:
        lost.append(data)
        sums.start_aggregator()  # killed after it saved, before it sent
        continue
      yield who, data

  sums.run(exchange)
  assert lost[0] == lost[1]
  log = read_log(sums.folder / 'third')
  events = [line['event'] for line in log]
  assert events == ['passed on', 'passed on again', 'passed on again']
  without = sums.sums() - sums.shares().sum(axis=0)
  np.testing.assert_array_equal(without, exact_sums(sums.plan))


def test_killed_aggregator_is_asked_again(sums):
  def exchange(questions, seconds):
    if AGGREGATOR in questions and not killed:
      killed.append(True)  # before it did anything
      return []
    return sums.exchange(questions, seconds)

  killed = []
  sums.run(exchange)
  log = read_log(sums.folder / 'recommender')
  assert any(line['event'] == 'asked again' for line in log)


def test_round_without_a_node_is_done_again_under_another_number(sums):
  def exchange(questions, seconds):
    round = messages.from_bytes(next(iter(questions.values()))).round
    for who, data in sums.exchange(questions, seconds):
      if who == 1 and round == 0:
        continue
      yield who, data

  sums.run(exchange)
  log = read_log(sums.folder / 'recommender')
  (broken,) = [line for line in log if line['event'] == 'round broken']
  (done,) = [line for line in log if line['event'] == 'round done']
  assert (broken['round'], done['round']) == (0, 1)
  third = read_log(sums.folder / 'third')
  assert [line['event'] for line in third] == ['refused', 'passed on']
  without = sums.sums() - sums.shares().sum(axis=0)
  np.testing.assert_array_equal(without, exact_sums(sums.plan))


def test_dropouts_leave_room_for_a_node(tmp_path):
  sums = Sums(tmp_path, dropouts=EACH)

  def exchange(questions, seconds):
    found = sums.exchange(questions, seconds)
    return [(who, data) for who, data in found if who != 1]

  sums.run(exchange)
  (done,) = [
    line
    for line in read_log(tmp_path / 'recommender')
    if line['event'] == 'round done'
  ]
  assert done['users'] == EACH


def test_boxes_of_another_round_or_node_do_not_open(sums):
  kept = []

  def exchange(questions, seconds):
    for who, data in sums.exchange(questions, seconds):
      message = messages.from_bytes(data)
      if who == 0 and message.round < 2:
        kept.append(data)
        other = kept[0] if message.round else sums.nodes[1](questions[1])
        box = messages.from_bytes(other).arrays[1]
        arrays = (message.arrays[0], box)
        yield who, messages.to_bytes(message._replace(arrays=arrays))
      else:
        yield who, data

  sums.run(exchange)
  third = read_log(sums.folder / 'third')
  whys = [line['why'] for line in third if line['event'] == 'rejected']
  assert len(whys) == 2
  assert all('another run, round or sender' in why for why in whys)
  (done,) = [line for line in third if line['event'] == 'passed on']
  assert done['round'] == 2


def test_nothing_that_is_sent_shows_ratings_or_words_without_masks(sums):
  sums.run()
  kept = list(read_transcript(sums.folder / 'recommender'))
  assert len(kept) == 2 * (NODES + 1)
  everything = b'\n'.join(data for _, _, data in kept)
  assert not any(word in everything for word in rating_bytes())
  hidden = set()
  for number in range(NODES):
    counts = sums_node.own_sums(sums.plan, EACH, of_node(number))
    words = counts + sums.shares()[EACH * number : EACH * (number + 1)]
    for part in (counts, words):
      for row in part.astype(np.int32).reshape(-1, 2):
        if row.all():
          hidden.add(row.tobytes())
  assert len(hidden) > 100
  assert not any(word in everything for word in hidden)
  # Masked reports are the third party's alone: not even these are there.
  for number in range(NODES):
    question = next(
      data for way, who, data in kept if way == 'sent' and who == number
    )
    seeds = messages.from_bytes(question).arrays[1]
    counts = sums_node.own_sums(sums.plan, EACH, of_node(number))
    for place in range(EACH):
      user = EACH * number + place
      mask = sums_node.mask(seeds[place], sums.plan, 0, user)
      word = counts[place] + sums.shares()[user]
      masked = word.astype(np.uint32) + mask
      assert masked[:2].tobytes() not in everything


def test_log_is_lines_of_json(tmp_path):
  book = journal(tmp_path)
  book.log('began', round=1)
  book.keep('sent', 3, b'nonsense')
  (line,) = (tmp_path / 'log.jsonl').read_text().splitlines()
  assert json.loads(line)['event'] == 'began'
  assert os.stat(tmp_path / 'log.jsonl').st_mode & 0o077 == 0
  assert bytes_table(tmp_path)[0]['kind'] == 'BROKEN'


@pytest.mark.parametrize(
  'system', [['--system=sdmf', '--seed=3'], ['--system=untrusted_pmf']]
)
def test_processes_without_a_network(system, tmp_path, launch):
  from dpmf_jax.data.writing import write

  if 'untrusted' in system[0]:
    pytest.importorskip(
      'cryptography', reason='sealed messages need the package cryptography'
    )
  write(RATINGS, tmp_path / 'ratings.csv')
  killed = '1:1' if 'sdmf' in system[0] else 'aggregator:0'
  done = launch(
    'federated.trial',
    f'--ratings={tmp_path / "ratings.csv"}',
    *system,
    '--nodes=2',
    '--rounds=3',
    '--rank=3',
    '--epsilon=4',
    '--transport=local',
    f'--kill={killed}',
    f'--output={tmp_path / "trial"}',
  )
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / 'trial' / 'metrics.json').read_text())
  assert report['finished']
  assert report.get('same_bits', True)
  assert 0 < report['test_rmse'] < 5
