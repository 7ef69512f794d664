"""The untrusted recommender's sums between parties without a network."""

import concurrent.futures
import json
import os
import signal
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deployments import (
  FIRSTS,
  KILLED,
  NODES,
  RATINGS,
  SIZES,
  SUMS,
  SUMS_TRIAL,
  USERS,
  Sums,
  check_killed_sums,
  exact_sums,
  of_node,
  plan_of,
  prepared_trial,
  rating_bytes,
)

from benchmarks.federated import parties
from benchmarks.federated.processes import processes
from dpmf_jax import certificates
from dpmf_jax.federated import (
  checks,
  envelopes,
  folders,
  in_process,
  masks,
  messages,
)
from dpmf_jax.federated.asking import TooFewNodesError
from dpmf_jax.federated.journal import bytes_table, journal
from dpmf_jax.federated.parties import recommender
from dpmf_jax.federated.plan import AGGREGATOR, Node, read_plan, write_plan
from dpmf_jax.federated.sockets import local_exchange
from dpmf_jax.federated.statement import certificate_of, write_published
from dpmf_jax.federated.sums_protocol import own_sums
from dpmf_jax.plans.untrusted_pmf import rating_loss
from dpmf_jax.ratings.table import from_arrays, with_public_ids
from dpmf_jax.rows import training_data
from dpmf_jax.serving import models, recommendations
from dpmf_jax.serving.folding import fold_in
from dpmf_jax.systems.untrusted_pmf import untrusted_pmf

pytest.importorskip(
  'cryptography', reason='sealed messages need the package cryptography'
)


@pytest.fixture
def sums(tmp_path):
  return Sums(tmp_path / 'run')


def test_sum_is_the_simulators_but_for_the_shares(sums):
  item = sums.run()
  assert np.isfinite(item).all()
  np.testing.assert_array_equal(sums.without_noise(), exact_sums(sums.plan))
  assert sums.shares().any()


def test_all_parties_run_in_one_process(tmp_path):
  folder, plan = prepared_trial(tmp_path, attempts=2, **SUMS_TRIAL)
  item = in_process.run(folder, RATINGS, plan)
  recommender_state = folder / 'recommender' / 'state'
  sums = folders.saved(recommender_state, plan)['sums']
  states = [folder / f'node-{number}' / 'state' for number in range(2)]
  share = sum(folders.saved(s, plan)['share'].sum(axis=0) for s in states)
  np.testing.assert_array_equal(sums - share, exact_sums(plan))
  published = models.load_model(recommender_state / 'model')
  np.testing.assert_array_equal(published.item_factors[:, :1], item)


def test_without_a_node_of_this_process_nothing_is_passed_on(tmp_path):
  folder, plan = prepared_trial(tmp_path, attempts=2, **SUMS_TRIAL)
  with pytest.raises(TooFewNodesError):
    in_process.run(folder, RATINGS, plan, silent=[1])
  assert not (folder / 'recommender' / 'state' / 'model').exists()


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
  events = [line['event'] for line in sums.log('aggregator')]
  again = ['went on', 'answered again']
  assert events == ['began', 'answered', *again, *again]
  np.testing.assert_array_equal(sums.without_noise(), exact_sums(sums.plan))


def test_killed_aggregator_is_asked_again(sums):
  def exchange(questions, seconds):
    if AGGREGATOR in questions and not killed:
      killed.append(True)  # before it did anything
      return []
    return sums.exchange(questions, seconds)

  killed = []
  sums.run(exchange)
  assert sums.events('asked again')


def test_one_sum_for_a_run_whoever_asks_and_when(sums):
  """A second sum without somebody would tell what they have."""
  asked = []

  def exchange(questions, seconds):
    asked.append(questions)
    return sums.exchange(questions, seconds)

  sums.run(exchange)
  (boxed,) = [q[AGGREGATOR] for q in asked if AGGREGATOR in q]
  sums.start_aggregator()
  message = messages.from_bytes(boxed)
  run, senders, sizes, content = message.arrays
  without = (run, senders[:1], sizes[:1], content[: sizes[0]])
  for question in (
    boxed,
    messages.to_bytes(message._replace(arrays=without)),
    messages.to_bytes(message._replace(round=1, arrays=without)),
  ):
    again = messages.from_bytes(sums.nodes[AGGREGATOR](question))
    np.testing.assert_array_equal(again.arrays[1], np.arange(USERS))
  # Nor does the recommender ask for one, or a node answer past its rounds.
  sums.run(exchange)
  assert len(asked) == 2
  seeded = messages.from_bytes(asked[0][0])
  for restarted in (False, True):
    if restarted:
      sums.start(0)
    more = messages.to_bytes(seeded._replace(round=sums.plan.attempts))
    refusal = messages.from_bytes(sums.nodes[0](more))
    assert 'past the 3' in checks.refusal(refusal)


def test_killed_node_gives_the_same_answer_again(sums):
  given = []

  def exchange(questions, seconds):
    for who, data in sums.exchange(questions, seconds):
      if who == 1:
        given.append(data)
        if len(given) == 1:  # computed and saved, and then it was gone
          sums.start(1)
          continue
      yield who, data

  sums.run(exchange)
  assert given[0] == given[1]
  np.testing.assert_array_equal(sums.without_noise(), exact_sums(sums.plan))


def test_round_without_a_node_is_done_again_under_another_number(sums):
  def exchange(questions, seconds):
    round = messages.from_bytes(next(iter(questions.values()))).round
    for who, data in sums.exchange(questions, seconds):
      if who == 1 and round == 0:
        continue
      yield who, data

  sums.run(exchange)
  (broken,) = sums.events('round broken')
  (done,) = sums.events('round done')
  assert (broken['round'], done['round']) == (0, 1)
  events = [line['event'] for line in sums.log('aggregator')]
  assert events == ['began', 'refused', 'answered']
  np.testing.assert_array_equal(sums.without_noise(), exact_sums(sums.plan))


def test_rounds_end_where_a_node_is_gone(sums):
  for _ in range(2):  # also when it is started again
    with pytest.raises(TooFewNodesError):
      sums.run(sums.without_node(1))
    assert len(sums.events('round broken')) == sums.plan.attempts
  assert not sums.events('answered', 'aggregator')


THIRDS = (12, 12, 12)


def test_dropouts_leave_room_for_a_node(tmp_path):
  sums = Sums(tmp_path / 'run', sizes=THIRDS, dropouts=12)

  sums.run(sums.without_node(1))
  (done,) = sums.events('round done')
  assert done['users'] == 24


def kept_back(boxed, senders):
  """What the aggregator is asked without the envelopes of some nodes."""
  message = messages.from_bytes(boxed)
  run, numbers, sizes, content = message.arrays
  parts = np.split(content, np.cumsum(sizes.astype(int))[:-1])
  stay = [at for at, who in enumerate(numbers) if who not in senders]
  content = np.concatenate([parts[at] for at in stay])
  arrays = (run, numbers[stay], sizes[stay], content)
  return messages.to_bytes(message._replace(arrays=arrays))


@pytest.mark.parametrize(('dropouts', 'nodes'), [(0, 0), (12, 1), (23, 1)])
def test_recommender_can_keep_back_the_envelopes_of_dropouts(
  dropouts, nodes, tmp_path
):
  """With more kept back it gets no sum; one sum is all that it ever gets."""
  sums = Sums(tmp_path / 'run', sizes=THIRDS, dropouts=dropouts)
  asked = []

  def exchange(questions, seconds):
    if AGGREGATOR in questions:
      boxed = questions[AGGREGATOR]
      more = kept_back(boxed, range(nodes + 1))
      refusal = messages.from_bytes(sums.nodes[AGGREGATOR](more))
      assert 'nothing is passed on' in checks.refusal(refusal)
      asked.append(boxed)
      questions = {AGGREGATOR: kept_back(boxed, range(nodes))}
    return sums.exchange(questions, seconds)

  sums.run(exchange)
  there = range(12 * nodes, USERS)
  (done,) = sums.events('round done')
  assert done['users'] == len(there)
  noise = sums.shares()[there].sum(axis=0)
  exact = exact_sums(sums.plan, there)
  np.testing.assert_array_equal(sums.saved()['sums'] - noise, exact)
  # Together with one more node it knows all shares but what is needed.
  config = sums.plan.config
  loss = rating_loss(config, num_users=USERS, known=12 * (nodes + 1))
  assert loss <= config.epsilon
  # All envelopes after the fact bring the same sum, and not the difference.
  again = messages.from_bytes(sums.nodes[AGGREGATOR](asked[0]))
  np.testing.assert_array_equal(again.arrays[1], np.array(there))


# Whom a node counts for.


def test_a_node_alone_or_with_the_recommender_learns_what_is_stated(sums):
  config = sums.plan.config
  for size in SIZES:
    loss = rating_loss(config, num_users=USERS, known=size)
    assert loss <= config.epsilon
  # One share more, and it would not be so.
  beyond = rating_loss(config, num_users=USERS, known=max(SIZES) + 1)
  assert beyond > config.epsilon


def sums_plan(sizes, **settings):
  """A plan of sums with nodes of these sizes."""
  firsts = np.cumsum([0, *sizes])[:-1].tolist()
  nodes = tuple(Node(*node) for node in zip(firsts, sizes, strict=True))
  return plan_of(system='untrusted_pmf', settings=SUMS | settings, nodes=nodes)


def test_colluders_are_at_least_the_users_of_the_largest_node(tmp_path):
  plan = sums_plan((5, 9, 7))
  assert plan.config.colluders == 9
  assert sums_plan((5, 9, 7), colluders=14).config.colluders == 14
  for wrong, why in (
    ({'colluders': 8}, 'colluders=8 must be at least 9'),
    ({'colluders': 0}, 'colluders=0 must be at least 9'),
    ({'colluders': 21}, 'colluders=21 and dropouts=0 .* below the 21 users'),
    ({'dropouts': 12}, 'colluders=9 and dropouts=12 .* below the 21 users'),
    ({'dropouts': 4}, 'dropouts=4 .* the smallest has 5'),
  ):
    with pytest.raises(ValueError, match=why):
      sums_plan((5, 9, 7), **wrong)
  with pytest.raises(ValueError, match='more nodes'):
    sums_plan((21,))
  assert sums_plan((5, 9, 7), dropouts=11).config.unneeded == 20
  # Also where somebody changed the file that all parties read.
  path = tmp_path / 'plan.json'
  write_plan(path, plan)
  assert read_plan(path) == plan
  fields = json.loads(path.read_text())
  fields['settings']['colluders'] = 1
  path.write_text(json.dumps(fields))
  with pytest.raises(ValueError, match='colluders=1 must be at least 9'):
    read_plan(path)


def test_what_is_stated_of_a_deployment_counts_a_node_as_its_users(sums):
  document = certificate_of(sums.plan)
  assert document['status'] == 'proved'
  assert 0.999 * SUMS['epsilon'] < document['epsilon'] <= SUMS['epsilon']
  assert document['adversary'].count(f'up to {max(SIZES)} users') == 3
  assert document['adversary'].endswith(
    f'a node counts as all of its users, at most {max(SIZES)}, and is trusted '
    'with their ratings'
  )
  assumed = ' '.join(document['assumptions'])
  assert 'simulator' not in assumed
  assert 'operating systems' in assumed
  assert document['parameters']['colluders'] == max(SIZES)
  assert document['parameters']['node_sizes'] == list(SIZES)


def test_what_is_published_serves_anybody(sums, tmp_path):
  """As the simulator's release does, with nothing but its folder."""
  item, plan = sums.run(), sums.plan
  published = tmp_path / 'model'
  write_published(published, plan, item)
  names = {path.name for path in published.iterdir()}
  assert names == {'model.safetensors', 'ids.json', 'certificate.json'}
  assert certificates.read(published)['status'] == 'proved'
  model = models.load_model(published)
  assert model.covered
  me = {'me': {plan.item_ids[0]: 5, plan.item_ids[1]: 1}}
  folded = fold_in(model, me)
  ratings = from_arrays(
    ['a', 'a'], plan.item_ids[:2], [5.0, 1.0], scale=plan.config.scale
  )
  users = ['a', *map(str, range(plan.num_users - 1))]
  ratings = with_public_ids(ratings, users=users, items=plan.item_ids)
  data = training_data(ratings)
  system = untrusted_pmf(plan.config)
  state = system.init(jax.random.key(0), data)
  factors = state.factors._replace(item=jnp.asarray(model.item_factors))
  want = system.model(state._replace(factors=factors), data)
  np.testing.assert_allclose(
    folded.user_factors[0],
    want.factors.user[list(ratings.user_ids).index('a')],
    rtol=1e-5,
    atol=1e-6,
  )
  assert model.offset == want.offset
  assert len(recommendations.recommend(folded, 'me', k=3)) == 3


# Envelopes.


def test_envelopes_of_another_round_or_node_do_not_open(sums):
  kept = []

  def exchange(questions, seconds):
    for who, data in sums.exchange(questions, seconds):
      message = messages.from_bytes(data)
      if who == 0 and message.round < 2:
        kept.append(data)
        other = kept[0] if message.round else sums.nodes[1](questions[1])
        arrays = (message.arrays[0], messages.from_bytes(other).arrays[1])
        yield who, messages.to_bytes(message._replace(arrays=arrays))
      else:
        yield who, data

  sums.run(exchange)
  whys = [line['why'] for line in sums.events('rejected', 'aggregator')]
  assert len(whys) == 2
  assert all('another run, round or sender' in why for why in whys)
  (done,) = sums.events('answered', 'aggregator')
  assert done['round'] == 2


def wrong_report(sums, change):
  """A node's envelope with masked reports changed before it was closed."""

  def changed(envelope):
    third = envelopes.own_key(sums.third)
    opened = envelopes.opened_report(sums.plan, 0, 0, envelope, third)
    own = envelopes.own_key(sums.places[0])
    data = envelopes.sealed_report(sums.plan, 0, own, 0, change(*opened))
    return messages.from_bytes(data).arrays[1]

  return changed


WRONG = {
  'an item less': ('wrong shape', lambda users, words: (users, words[:, :-1])),
  'an item more': (
    'wrong shape',
    lambda users, words: (users, words[:, [*range(24), 0]]),
  ),
  'NaN': (
    'wrong shape',
    lambda users, words: (users, np.full(words.shape, np.nan, np.float32)),
  ),
  'another user': (
    'other users',
    lambda users, words: (users + np.uint32(SIZES[0]), words),
  ),
  'a user twice': (
    'wrong shape',
    lambda users, words: (np.r_[users, users[:1]], np.r_[words, words[:1]]),
  ),
}


@pytest.mark.parametrize('fault', WRONG)
def test_wrong_reports_are_not_added_and_the_round_is_done_again(fault, sums):
  why, change = WRONG[fault]
  change = wrong_report(sums, change)

  def exchange(questions, seconds):
    for who, data in sums.exchange(questions, seconds):
      message = messages.from_bytes(data)
      if who == 0 and message.round == 0:
        run, envelope = message.arrays
        arrays = run, change(envelope.tobytes())
        data = messages.to_bytes(message._replace(arrays=arrays))
      yield who, data

  sums.run(exchange)
  (wrong,) = sums.events('rejected', 'aggregator')
  assert why in wrong['why']
  (done,) = sums.events('round done')
  assert done['round'] == 1
  np.testing.assert_array_equal(sums.without_noise(), exact_sums(sums.plan))


def test_nothing_that_is_sent_shows_ratings_or_words_without_masks(sums):
  sums.run()
  kept = sums.transcript()
  assert len(kept) == 2 * (NODES + 1)
  carried = b'\n'.join(data for _, _, data in kept)
  # What the third party finds in the envelopes.
  opened = sums.unsealed()
  everything = carried + b''.join(opened.values())
  assert not any(word in everything for word in rating_bytes())
  hidden = set()
  for number, (first, size) in enumerate(zip(FIRSTS, SIZES, strict=True)):
    counts = own_sums(sums.plan, sums.plan.nodes[number], of_node(number))
    words = counts + sums.shares()[first : first + size]
    for part in (counts, words):
      for row in part.astype(np.int32).reshape(-1, 2):
        if np.abs(row).min() > USERS:  # no number of a user
          hidden.add(row.tobytes())
  assert len(hidden) > 100
  assert not any(word in everything for word in hidden)
  # Masked reports are the third party's alone: it has them, and whoever
  # carries the envelopes, and knows the masks, does not.
  for number in range(NODES):
    question = next(
      data for way, who, data in kept if way == 'sent' and who == number
    )
    seeds = messages.from_bytes(question).arrays[1]
    counts = own_sums(sums.plan, sums.plan.nodes[number], of_node(number))
    for place in range(SIZES[number]):
      user = FIRSTS[number] + place
      mask = masks.mask(seeds[place], counts[place].shape, 0, user)
      word = counts[place] + sums.shares()[user]
      masked = (word.astype(np.uint32) + mask)[:2].tobytes()
      assert masked in opened[0, number]
      assert masked not in carried


def test_log_is_lines_of_json(tmp_path):
  book = journal(tmp_path)
  book.log('began', round=1)
  book.keep('sent', 3, b'nonsense')
  (line,) = (tmp_path / 'log.jsonl').read_text().splitlines()
  assert json.loads(line)['event'] == 'began'
  assert os.stat(tmp_path / 'log.jsonl').st_mode & 0o077 == 0
  assert bytes_table(tmp_path)[0]['kind'] == 'BROKEN'


@pytest.mark.slow
def test_processes_that_are_killed_between_saving_and_sending(tmp_path):
  """A node's worker and the aggregator's, over sockets and without Flower."""
  folder, plan = prepared_trial(tmp_path, attempts=20, **SUMS_TRIAL)
  state = folder / 'recommender' / 'state'
  with (
    tempfile.TemporaryDirectory(prefix='dpmf') as sockets,
    processes(folder) as running,
    concurrent.futures.ThreadPoolExecutor() as pool,
  ):
    sockets = Path(sockets)
    settings = parties.Settings(folder, sockets, False, None, True)
    parties.start_node(running, settings, 0, KILLED)
    parties.start_node(running, settings, 1)
    parties.start_aggregator(running, settings, KILLED)
    exchange = local_exchange(
      {number: sockets / f'{number}.sock' for number in range(2)}
      | {AGGREGATOR: sockets / 'aggregator.sock'}
    )
    found = pool.submit(
      recommender, plan, state, exchange, journal(state), seed=None
    )
    left = {'node-0': '0', 'aggregator': 'aggregator'}
    while not found.done():
      concurrent.futures.wait([found], timeout=0.1)
      for name in list(left):
        if running.running[name].poll() == -signal.SIGKILL:
          parties.restart(running, settings, left.pop(name))
    item = found.result()
  assert not left
  assert np.isfinite(item).all()
  check_killed_sums(folder, plan, 'node-0')
