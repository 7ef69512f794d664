"""Deployments without a network, for their tests: parties in one process."""

import functools
import os
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dpmf_jax.federated import (
  envelopes,
  folders,
  in_process,
  messages,
  parties,
)
from dpmf_jax.federated.journal import journal, read_log, read_transcript
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import AGGREGATOR, Node, Plan, new_run
from dpmf_jax.federated.preparation import node_ratings, planned, prepared
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.systems.untrusted import sums as untrusted_sums

USERS, ITEMS, ROUNDS, SEED = 36, 24, 3, 5
SIZES = (18, 18)  # of nodes; the simulator has blocks of 16
FIRSTS = (0, 18)
NODES = len(SIZES)
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
  'online': 0.9,
}
SUMS = {
  'scale': [1.0, 5.0],
  'variant': 'sound',
  'relation': 'add_remove',
  'epsilon': 4.0,
}

GRADIENTS = {
  'scale': [1.0, 5.0],
  'variant': 'paper',
  'relation': 'replace',
  'epsilon': 100.0,
  'rank': 3,
  'rounds': ROUNDS,
}


def of_node(number):
  """(user, item, value) of a node."""
  return of_users(FIRSTS[number], SIZES[number])


def of_users(first, size):
  """(user, item, value) of users that follow one another."""
  return node_ratings(RATINGS, Node(first, size))


def plan_of(**changes):
  """A plan of SDMF, or of whatever `changes` say."""
  fields = {
    'run': new_run(),
    'system': 'sdmf',
    'settings': SETTINGS,
    'item_ids': tuple(str(item) for item in RATINGS.item_ids),
    'nodes': tuple(Node(*node) for node in zip(FIRSTS, SIZES, strict=True)),
    'attempts': 3,
    'seconds': 5.0,
  }
  return Plan(**fields | changes)


class Deployed:
  """Parties in folders of their own, and an exchange that calls them."""

  settings = SETTINGS
  system = 'sdmf'

  def __init__(self, folder, plan=None, sizes=SIZES, **settings):
    self.folder = folder
    self.places = [folder / f'node-{i}' for i in range(len(sizes))]
    self.third = folder / 'aggregator'
    for place in [*self.places, self.third, folder / 'recommender']:
      place.mkdir(parents=True, exist_ok=True)
    self.plan = plan or self.planned(sizes, settings)
    self.nodes = {}
    for number in range(len(sizes)):
      self.start(number)
    if self.system != 'sdmf':
      self.start_aggregator()
    self.book = journal(folder / 'recommender', transcript=True)

  def planned(self, sizes, settings):
    key = lambda place: envelopes.public_key(envelopes.own_key(place))
    sealed = self.system != 'sdmf'
    firsts = np.cumsum([0, *sizes])[:-1].tolist()
    return plan_of(
      system=self.system,
      settings=self.settings | settings,
      nodes=tuple(
        Node(first, size, key(place) if sealed else '')
        for first, size, place in zip(firsts, sizes, self.places, strict=True)
      ),
      aggregator_key=key(self.third) if sealed else '',
    )

  def start(self, number, seed=SEED):
    place, here = self.places[number], self.plan.nodes[number]
    ratings = of_users(here.first, here.size)
    self.nodes[number] = parties.node(
      self.plan, number, place, ratings, journal(place), seed=seed
    )

  def start_aggregator(self):
    book = journal(self.third, transcript=True)
    self.nodes[AGGREGATOR] = parties.aggregator(self.plan, self.third, book)

  def run(self, exchange=None):
    return parties.recommender(
      self.plan,
      self.folder / 'recommender',
      exchange or self.exchange,
      self.book,
      seed=SEED,
    )

  def exchange(self, questions, seconds):
    return in_process.exchange(self.nodes)(questions, seconds)

  def without_node(self, number):
    """An exchange in which nothing comes from a node."""
    return lambda questions, seconds: [
      (who, data)
      for who, data in self.exchange(questions, seconds)
      if who != number
    ]

  def log(self, party='recommender'):
    return read_log(self.folder / party)

  def events(self, event, party='recommender'):
    return [line for line in self.log(party) if line['event'] == event]

  def transcript(self):
    return list(read_transcript(self.folder / 'recommender'))

  def saved(self, party='recommender'):
    return folders.saved(self.folder / party, self.plan)

  def all_nodes(self, name):
    """What the nodes keep under a name, one after the other."""
    parts = [self.saved(place.name)[name] for place in self.places]
    return np.concatenate(parts)


class Sums(Deployed):
  """The untrusted recommender's sums: nodes, an aggregator, a recommender."""

  settings = SUMS
  system = 'untrusted_pmf'

  def unsealed(self):
    """What the third party finds in envelopes, as bytes by (node, round)."""
    third, found = envelopes.own_key(self.third), {}
    for way, who, data in self.transcript():
      message = messages.from_bytes(data)
      from_node = way == 'received' and who < len(self.places)
      if from_node and message.kind == Kind.SEALED:
        place = message.round, who
        envelope = message.arrays[1].tobytes()
        arrays = envelopes.opened_report(self.plan, *place, envelope, third)
        found[place] = messages.to_bytes(Message(Kind.REPORT, *place, arrays))
    return found

  def shares(self):
    """All users' shares of noise [U, I, W], from the folders of nodes."""
    return self.all_nodes('share')

  def without_noise(self):
    """The sum that the recommender got, less the shares of noise."""
    return self.saved()['sums'] - self.shares().sum(axis=0)


class Gradients(Sums):
  """The same with rounds of gradients, as published."""

  settings = GRADIENTS


# A trial, whose parties are processes.
SUMS_TRIAL = {'system': 'untrusted_pmf', 'settings': SUMS}
FAULTY = str(Path(__file__).parent / 'faulty_worker.py')
KILLED = (FAULTY, '--faults=killed')


def prepared_trial(tmp_path, *, system, settings, attempts):
  """(folder, plan) of a trial with two nodes, with the files of each party."""
  folder = tmp_path / 'run'
  folder.mkdir()
  plan = planned(
    RATINGS,
    system=system,
    nodes=2,
    settings={k: v for k, v in settings.items() if k != 'scale'},
    attempts=attempts,
    seconds=20.0,
  )
  return folder, prepared(folder, RATINGS, plan)


def check_killed_sums(folder, plan, node):
  """Asserts that a node and the aggregator, once killed, answered once."""
  got, *nodes = (
    folders.saved(folder / party / 'state', plan)
    for party in ('recommender', 'node-0', 'node-1')
  )
  share = sum(each['share'].sum(axis=0) for each in nodes)
  np.testing.assert_array_equal(got['sums'] - share, exact_sums(plan))
  for party in (node, 'aggregator'):
    events = [line['event'] for line in read_log(folder / party / 'state')]
    assert events.count('started') == 2
    assert events.count('answered') == 1
    assert events.count('answered again') >= 1


def exact_sums(plan, users=range(USERS)):
  """The simulator's sums of those users without noise."""
  hyper = untrusted_sums.hyper_of(plan.config, USERS)
  features = jnp.asarray(untrusted_sums.feature_counts(np.ones((USERS, 1))))
  there = np.flatnonzero(np.isin(RATINGS.user, users))
  rows = training_data(RATINGS.take(there)).by_item
  return np.asarray(untrusted_sums.statistic(rows, features, hyper))


def windows(array, length):
  """All runs of `length` entries of a flat array, as bytes."""
  flat = np.ascontiguousarray(array).reshape(-1)
  return {flat[i : i + length].tobytes() for i in range(len(flat) - length + 1)}


@functools.cache
def rating_bytes():
  """Ratings of a user next to one another in several types, and as text.

  Two float32 are 64 bits: to find one of 2,000 by chance in a megabyte has a
  chance of 1e-10.
  """
  found = set()
  for user in range(USERS):
    values = RATINGS.value[RATINGS.user == user]
    for dtype in (np.float32, np.float64, '>f4', '>f8'):
      found |= windows(values.astype(dtype), 2)
    found |= {repr(float(v)).encode() for v in values}
  return found


def left_behind(folder) -> list[int]:
  """Processes that know of a folder, once those that end had time to."""
  for _ in range(3000):  # ten minutes: machines stall
    found = []
    for process in Path('/proc').glob('[0-9]*'):
      try:
        environment = (process / 'environ').read_bytes()
        command = (process / 'cmdline').read_bytes()
      except OSError:
        continue
      if str(folder).encode() in environment + command:
        found.append(int(process.name))
    found = [number for number in found if number != os.getpid()]
    if not found:
      break
    time.sleep(0.2)
  return found
