"""What is counted without training anything: sizes, thresholds, bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.reproduce.data import Dataset, Source
from dpmf_jax import accounting
from dpmf_jax.federated import envelopes, messages, parties
from dpmf_jax.federated.journal import journal
from dpmf_jax.federated.plan import AGGREGATOR, Node, Plan, new_run
from dpmf_jax.plans import untrusted_pmf
from dpmf_jax.ratings import attributes, catalog
from dpmf_jax.ratings.specification import asked_by_fractions
from dpmf_jax.ratings.table import Ratings


def sizes(dataset: Dataset) -> dict[str, float]:
  """How large a data set is."""
  ratings = dataset.ratings
  return {
    'users': float(ratings.num_users),
    'items': float(ratings.num_items),
    'ratings': float(len(ratings)),
  }


def sampling(
  dataset: Dataset, *, fractions: Mapping[str, float], t: float
) -> dict[str, float]:
  """t, and the share of ratings that sampling at t keeps, of all pairs."""
  del dataset
  asked = asked_by_fractions(**fractions)
  kept = accounting.pdp_probabilities(asked.epsilon, t)
  return {'t': t, 'kept': float(np.sum(asked.share * kept))}


def attributes_of(ratings: Ratings, source: Source) -> attributes.Attributes:
  """Of MovieLens; made up, without any meaning, for other ratings."""
  if ratings.name.startswith('ml-'):
    folder = catalog.fetch(ratings.name, data_dir=source.data_dir, quiet=True)
    return attributes.movielens(ratings, folder)
  rng = np.random.default_rng(0)
  made: dict[str, Any] = {
    side: rng.integers(0, 2, (size, 3)).astype(np.float32)
    for side, size in (('user', ratings.num_users), ('item', ratings.num_items))
  }
  names = ('a', 'b', 'c')
  return attributes.Attributes(**made, user_names=names, item_names=names)


# Users of a deployment whose messages are counted, each on a node of its own.
_DEPLOYED = 4
# Turns before the first round; see `federated.gradients_protocol`.
_SETUP = {'static': 2, 'dynamic': 3, 'sound': 0}


def overhead(
  dataset: Dataset,
  *,
  attendance: Literal['static', 'dynamic', 'sound'],
  counted: Literal['formula', 'messages'],
  rank: int,
  rounds: int,
  measured_rounds: int,
) -> dict[str, float]:
  """Bytes of a user who rated as many items as the mean user does.

  Args:
    dataset: of the ratings.
    attendance: the scenario of the paper; or the sound form, in one round.
    counted: the formula, which counts what a user has to know; or all messages
      of a deployment of four users in this process, with its envelopes.
    rank: number of factors.
    rounds: in all; those of the setup come on top.
    measured_rounds: how many of them are run to count messages.
  """
  ratings = dataset.ratings
  number = np.bincount(ratings.user, minlength=ratings.num_users)
  near = np.argsort(np.abs(number - number.mean()), kind='stable')[:_DEPLOYED]
  if counted == 'formula':
    found = [
      _formula(attendance, rank, ratings.num_items, int(number[user]))
      for user in near
    ]
    up, down, setup = np.mean(found, axis=0)
    third = up
  else:
    settings = _settings(attendance, rank, measured_rounds, ratings)
    up, down, third, setup = _messages(ratings, near, settings)
  times = 1 if attendance == 'sound' else rounds
  return {
    'bytes sent in a round': float(up),
    'bytes received in a round': float(down),
    'bytes of the third party in a round': float(third),
    'bytes in all': float(setup + times * (up + down)),
  }


def _formula(
  attendance: str, rank: int, num_items: int, rated: int
) -> tuple[float, float, float]:
  """(sent, received, of the setup) by one user."""
  if attendance == 'sound':
    sizes = untrusted_pmf.sum_bytes(num_items)
    return sizes['up'], sizes['down'], 0
  sizes = untrusted_pmf.round_bytes(
    rank=rank, num_items=rated, users=attendance
  )
  return sizes['up'], sizes['down'], sizes['setup_down']


def _settings(
  attendance: str, rank: int, rounds: int, ratings: Ratings
) -> dict[str, Any]:
  common = {'scale': list(ratings.scale), 'epsilon': 1.0}
  if attendance == 'sound':
    sound = {'variant': 'sound', 'relation': 'add_remove', 'colluders': 1}
    return common | sound
  online = {'online': 1.0} if attendance == 'dynamic' else {}
  return (
    common
    | online
    | {
      'variant': 'paper',
      'relation': 'replace',
      'attendance': attendance,
      'rank': rank,
      'rounds': rounds,
    }
  )


def _messages(
  ratings: Ratings, users: np.ndarray, settings: dict[str, Any]
) -> tuple[float, float, float, float]:
  """(sent, received, third party, of the setup): bytes of a user's messages.

  A deployment whose parties are in this process: what they say is what they
  say over a network.
  """
  with tempfile.TemporaryDirectory() as name:
    places = {n: Path(name) / str(n) for n in (*range(len(users)), AGGREGATOR)}
    home = Path(name) / 'recommender'
    for place in (*places.values(), home):
      place.mkdir()
    key = lambda n: envelopes.public_key(envelopes.own_key(places[n]))
    plan = Plan(
      run=new_run(),
      system='untrusted_pmf',
      settings=settings,
      item_ids=tuple(map(str, ratings.item_ids)),
      nodes=tuple(Node(n, 1, key(n)) for n in range(len(users))),
      attempts=1,
      seconds=60.0,
      aggregator_key=key(AGGREGATOR),
    )
    asked = {
      AGGREGATOR: parties.aggregator(
        plan, places[AGGREGATOR], journal(places[AGGREGATOR])
      )
    }
    for n, user in enumerate(users):
      own = ratings.user == user
      triples = np.zeros(own.sum(), np.int32), ratings.item[own]
      asked[n] = parties.node(
        plan,
        n,
        places[n],
        (*triples, ratings.value[own]),
        journal(places[n]),
        seed=0,
      )
    turns: dict[int, np.ndarray] = {}

    def exchange(questions, seconds):
      del seconds
      answers = []
      for who, data in questions.items():
        answer = asked[who](data)
        turn = messages.from_bytes(data).round // protocol.tries(plan)
        sizes = turns.setdefault(turn, np.zeros(3))
        if who == AGGREGATOR:
          sizes[2] += len(data) + len(answer)
        else:
          sizes[:2] += len(answer), len(data)
        answers.append((who, answer))
      return answers

    protocol = parties.protocol_of(plan)
    parties.recommender(plan, home, exchange, journal(home), seed=0)
  rounds = settings.get('rounds', 1)
  first = _SETUP[settings.get('attendance', 'sound')]
  each = np.array([turns[turn] for turn in sorted(turns)]) / len(users)
  up, down, third = each[first:].sum(axis=0) / rounds
  return up, down, third, each[:first, :2].sum()
