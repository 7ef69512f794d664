"""Whether a trial's messages hold what they must not, by searching bytes.

What is looked for is eight bytes long: to find one of 200,000 such words by
chance in 200 megabytes has a chance of 2e-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import messages
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.federated import carried, sums_node
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.journal import read_transcript
from dpmf_jax.federated.plan import Plan
from dpmf_jax.messages import Kind

_WORD = 8  # bytes


def transcript_findings(
  folder: Path, plan: Plan, train: Ratings, parts: list[Leaves]
) -> dict[str, Any]:
  """How often each secret was found in the messages of a trial.

  Args:
    folder: of the trial, with the recommender's transcript: all messages go
      through it. Boxes are opened with the aggregator's key, and searched too.
    plan: of the run.
    train: ratings that nodes have.
    parts: what nodes keep, after the run.
  """
  secrets = {
    'ratings': _rating_words(train),
    **_kept_words(plan, train, parts),
  }
  found = dict.fromkeys(secrets, 0)
  count = size = 0
  for data in _all_bytes(folder, plan):
    count, size = count + 1, size + len(data)
    for name, words in secrets.items():
      found[name] += found_words(data, words)
  looked_for = {name: len(words) for name, words in secrets.items()}
  sizes = {'messages': count, 'bytes': size}
  return sizes | {'looked_for': looked_for, 'found': found}


def found_words(data: bytes, words: np.ndarray) -> int:
  """How many places in `data` hold one of the sorted uint64 `words`."""
  total = 0
  for offset in range(min(_WORD, len(data))):
    size = (len(data) - offset) // _WORD
    here = np.frombuffer(data, np.uint64, size, offset)
    place = np.searchsorted(words, here)
    total += int((words[np.minimum(place, len(words) - 1)] == here).sum())
  return total


def pairs(rows: np.ndarray) -> np.ndarray:
  """All neighbours in the rows of 32-bit numbers [n, k], as sorted words."""
  both = np.stack([rows[:, :-1], rows[:, 1:]], axis=-1)
  return _sorted(np.ascontiguousarray(both).reshape(-1, 2))


def _sorted(array: np.ndarray) -> np.ndarray:
  return np.unique(np.ascontiguousarray(array).view(np.uint64).reshape(-1))


def _rating_words(train: Ratings) -> np.ndarray:
  """A user's ratings next to one another, as floats and as bytes.

  As integers of 32 bits they could not be told from the numbers of items.
  """
  order = np.lexsort((train.item, train.user))
  value, user = train.value[order], train.user[order]
  together = user[:-1] == user[1:]
  found = [value.astype(np.float64).view(np.uint64)]
  for kind in (np.float32, '>f4'):
    every = value.astype(kind)
    both = np.stack([every[:-1], every[1:]], axis=1)[together]
    found.append(_sorted(both))
  whole = value.astype(np.uint8)
  if np.array_equal(whole, value):
    run = np.lib.stride_tricks.sliding_window_view(whole, _WORD)
    found.append(_sorted(run[user[: 1 - _WORD] == user[_WORD - 1 :]]))
  return np.unique(np.concatenate(found))


def _kept_words(
  plan: Plan, train: Ratings, parts: list[Leaves]
) -> dict[str, np.ndarray]:
  """What nodes keep: vectors of users, and words without their masks."""
  if plan.system == 'sdmf':
    factors = np.concatenate([part['factors'] for part in parts])
    return {'factors of users': pairs(factors)}
  if plan.config.variant == 'paper':
    join = lambda name: np.concatenate([part[name] for part in parts])
    counts, share = join('counts'), join('share')
    return {
      'factors of users': pairs(join('factors')),
      'gradients without masks': pairs(counts + share),
      'gradients without noise': pairs(counts),
    }
  words = []
  for node, part in zip(plan.nodes, parts, strict=True):
    there = (train.user >= node.first) & (train.user < node.first + node.size)
    user = train.user[there] - node.first
    item = train.item[there]
    ratings = (user, item, train.value[there])
    counts = sums_node.own_sums(plan, node.size, ratings)[user, item]
    share = part['share'][user, item]
    words.append(np.concatenate([counts, counts + share]).astype(np.int32))
  found = np.concatenate(words)
  # Small ones are the numbers of users, too.
  found = found[np.abs(found).min(axis=1) > plan.num_users]
  return {'sums without masks': pairs(found)}


def _all_bytes(folder: Path, plan: Plan) -> Iterator[bytes]:
  """All messages, and what is in the boxes among them."""
  private = None
  if plan.system == 'untrusted_pmf':
    private = carried.party_key(
      folder / 'aggregator' / 'state', plan.aggregator_key
    )
  for direction, peer, data in read_transcript(
    folder / 'recommender' / 'state'
  ):
    yield data
    message = messages.from_bytes(data)
    from_node = direction == 'received' and peer < len(plan.nodes)
    if from_node and message.kind == Kind.SEALED and private is not None:
      box = message.arrays[1].tobytes()
      opened = carried.opened_report(plan, message.round, peer, box, private)
      yield messages.to_bytes(opened)
