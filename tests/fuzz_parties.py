"""Fuzz targets of deployments: what each party makes of any message."""

from __future__ import annotations

import functools
import pathlib
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax.federated import checks, envelopes, messages, parties
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import AGGREGATOR
from tests import deployments
from tests.mutations import Target, changed_bytes

_SILENT = Journal(lambda event, **fields: None, lambda way, peer, data: None)


class Asked(NamedTuple):
  """A question, or an answer, and what its reader knew before."""

  data: bytes
  turn: int
  peer: int
  state: pathlib.Path | None = None  # the folder of who is asked


def targets(folder: pathlib.Path) -> Iterator[tuple[str, Target]]:
  """Of nodes, third parties and recommenders of all protocols."""
  for name, made in (
    ('sdmf', deployments.Deployed),
    ('sums', deployments.Sums),
    ('gradients', deployments.Gradients),
  ):
    place = folder / f'deployed {name}'
    deployed = made(place / 'parties')
    asked, answered = _recorded(deployed, place / 'states')
    for party in sorted({each.peer for each in asked}):
      if party not in (0, AGGREGATOR):
        continue  # one node is like another
      good = [each for each in asked if each.peer == party]
      who = 'third party' if party == AGGREGATOR else 'node'
      yield f'{who} of {name}', _party_target(deployed, party, good)
    yield f'recommender of {name}', _answers_target(deployed, answered)


def _recorded(
  deployed: Any, states: pathlib.Path
) -> tuple[list[Asked], list[Asked]]:
  """All questions of a run, with states before them, and all answers."""
  asked, answered = [], []
  tries = parties.protocol_of(deployed.plan).tries(deployed.plan)

  def exchange(questions, seconds):
    del seconds
    for who, data in questions.items():
      turn = messages.from_bytes(data).round // tries
      home = deployed.third if who == AGGREGATOR else deployed.places[who]
      state = states / str(len(asked))
      shutil.copytree(home, state)
      asked.append(Asked(data, turn, who, state))
      answer = deployed.nodes[who](data)
      answered.append(Asked(answer, turn, who))
      yield who, answer

  deployed.run(exchange)
  return asked, answered


def _party_target(deployed: Any, party: int, good: list[Asked]) -> Target:
  """Of a party that may be in the state before any of its turns."""
  plan, ready = deployed.plan, {}

  def started(state: pathlib.Path, folder: pathlib.Path) -> Callable:
    home = folder / state.name
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(state, home)
    if party == AGGREGATOR:
      return parties.aggregator(plan, home, _SILENT)
    here = plan.nodes[party]
    ratings = deployments.of_users(here.first, here.size)
    return parties.node(
      plan, party, home, ratings, _SILENT, seed=deployments.SEED
    )

  def read(each: Asked, folder: pathlib.Path) -> None:
    if each.state not in ready:
      ready[each.state] = started(each.state, folder)
    answer = messages.from_bytes(ready[each.state](each.data))
    if answer.kind != Kind.REFUSED:
      del ready[each.state]  # it has gone on
    elif each in good:
      raise AssertionError(f'refused: {checks.refusal(answer)}')

  changed = functools.partial(_changed, deployed)
  return Target(good, read, False, changed)


def _answers_target(deployed: Any, good: list[Asked]) -> Target:
  """Of the recommender's checks of what nodes and the third party answer."""
  plan = deployed.plan
  steps = parties.protocol_of(plan).schedule(plan)

  def read(each: Asked, folder: pathlib.Path) -> None:
    del folder
    step, peer = steps[each.turn], each.peer
    if peer == AGGREGATOR:
      shapes = 'arrived uint32[*]', step.total
      checks.opened(each.data, plan, Kind.AGGREGATE, peer, shapes)
      return
    sealed = step.answers == Kind.SEALED
    shapes = ('envelope uint8[*]',) if sealed else step.answered
    message = checks.opened(each.data, plan, step.answers, peer, shapes, peer)
    if not sealed:
      step.check(plan, peer, message.arrays)

  return Target(good, read, False, functools.partial(_changed, deployed))


def _changed(deployed: Any, rng: random.Random, each: Asked) -> Asked:
  """The same with another message, or with another one in an envelope."""
  if rng.random() < 0.3:
    return each._replace(data=changed_bytes(rng, each.data))
  message = messages.from_bytes(each.data)
  if message.kind == Kind.SEALED and len(message.arrays) == 4:
    message = _with_other_report(deployed, rng, message)
  else:
    message = _changed_message(rng, message)
  return each._replace(data=messages.to_bytes(message))


def _changed_message(rng: random.Random, message: Message) -> Message:
  """The message with one or two other parts."""
  for _ in range(rng.randint(1, 2)):
    arrays = list(message.arrays)
    kind = rng.randrange(6)
    if kind == 0:
      message = message._replace(round=rng.choice((0, 1, 2, 5, 9, 2**32 - 1)))
    elif kind == 1:
      message = message._replace(sender=rng.choice((0, 1, 7, 2**32 - 1)))
    elif kind == 2:
      message = message._replace(kind=rng.choice(list(Kind)))
    elif arrays:
      place = rng.randrange(len(arrays))
      arrays[place] = _changed_array(rng, arrays[place])
      if rng.random() < 0.1:
        arrays.pop(place)
      message = message._replace(arrays=tuple(arrays))
  return message


def _changed_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
  array = array.copy()
  kind = rng.randrange(4)
  if kind == 0:
    shape = [rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(4))]
    return np.zeros(shape, rng.choice((np.uint32, np.float32, np.uint8)))
  if kind == 1:
    return array[: rng.randrange(len(array) + 1)] if array.ndim else array
  if array.size:
    odd = (0, 1, 255) if array.dtype.kind == 'u' else (np.nan, np.inf, 3e38, -1)
    if array.dtype == np.uint32:
      odd = (0, 1, 2**31, 2**32 - 1)
    array.flat[rng.randrange(array.size)] = rng.choice(odd)
    if kind == 2:
      array.fill(rng.choice(odd))
  return array


def _with_other_report(
  deployed: Any, rng: random.Random, message: Message
) -> Message:
  """A question to the third party in which one node has sealed another."""
  plan, third = deployed.plan, envelopes.own_key(deployed.third)
  words, senders, sizes, content = message.arrays
  parts = np.split(content, np.cumsum(sizes.astype(int))[:-1])
  place = rng.randrange(len(parts))
  sender, round = int(senders[place]), message.round
  arrays = envelopes.opened_report(
    plan, round, sender, parts[place].tobytes(), third
  )
  inner = messages.to_bytes(
    _changed_message(rng, Message(Kind.REPORT, round, sender, arrays))
  )
  if rng.random() < 0.3:
    inner = changed_bytes(rng, inner)
  private = envelopes.own_key(deployed.places[sender])
  label = envelopes.label_of(plan, round, sender)
  made = envelopes.sealed(inner, private, plan.aggregator_key, label)
  parts[place] = np.frombuffer(made, np.uint8)
  sizes = np.array([len(part) for part in parts], np.uint32)
  return message._replace(arrays=(words, senders, sizes, np.concatenate(parts)))
