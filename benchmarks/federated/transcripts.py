"""Whether a trial's messages hold what they must not, by searching bytes.

What is looked for is eight bytes long: to find one of 200,000 such words by
chance in 200 megabytes has a chance of 2e-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax.federated import envelopes, messages, sums_protocol
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.journal import read_transcript
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import Plan
from dpmf_jax.federated.preparation import node_ratings
from dpmf_jax.ratings.table import Ratings

_WORD = 8  # bytes
_HASH_BITS = 24


def transcript_findings(
  folder: Path, plan: Plan, train: Ratings, parts: list[Leaves]
) -> dict[str, Any]:
  """How often each secret was found in the messages of a trial.

  Args:
    folder: of the trial, with the recommender's transcript: all messages go
      through it. Envelopes are opened with the aggregator's key, and searched,
      too.
    plan: of the run.
    train: ratings that nodes have.
    parts: what nodes keep, after the run.
  """
  secrets = {
    'ratings': _rating_words(train),
    **_words_at_nodes(plan, train, parts),
  }
  found = dict.fromkeys(secrets, 0)
  tables = {name: hash_table(words) for name, words in secrets.items()}
  count = size = 0
  for data in _all_bytes(folder, plan):
    count, size = count + 1, size + len(data)
    for name, words in secrets.items():
      found[name] += found_words(data, words, tables[name])
  looked_for = {name: len(words) for name, words in secrets.items()}
  sizes = {'messages': count, 'bytes': size}
  return sizes | {'looked_for': looked_for, 'found': found}


def found_words(
  data: bytes, words: np.ndarray, table: np.ndarray | None = None
) -> int:
  """How many places in `data` hold one of the sorted uint64 `words`.

  `table` is `hash_table` of them, for whoever searches more than once.
  """
  table = hash_table(words) if table is None else table
  total = 0
  for offset in range(min(_WORD, len(data))):
    size = (len(data) - offset) // _WORD
    here = np.frombuffer(data, np.uint64, size, offset)
    here = here[table[_hash(here)]]  # most are none of them
    place = np.minimum(np.searchsorted(words, here), len(words) - 1)
    total += int((words[place] == here).sum())
  return total


def hash_table(words: np.ndarray) -> np.ndarray:
  """Where words may be: bool, by `_hash`."""
  table = np.zeros(2**_HASH_BITS, bool)
  table[_hash(words)] = True
  return table


def _hash(words: np.ndarray) -> np.ndarray:
  return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _HASH_BITS)


def pairs(rows: np.ndarray, above: float = 0) -> np.ndarray:
  """All neighbours in the rows of 32-bit numbers [n, k], as sorted words.

  Only those of which both are larger than `above` in size.
  """
  both = np.stack([rows[:, :-1], rows[:, 1:]], axis=-1).reshape(-1, 2)
  return _sorted(both[np.abs(both).min(axis=1) > above])


def _sorted(array: np.ndarray) -> np.ndarray:
  return np.unique(np.ascontiguousarray(array).view(np.uint64).reshape(-1))


def _rating_words(train: Ratings) -> np.ndarray:
  """A user's ratings next to one another, in float32 and as bytes.

  As integers of 32 bits they would look like the numbers of items, and
  one as float64 is mostly zeros, of which there are others.
  """
  order = np.lexsort((train.item, train.user))
  value, user = train.value[order], train.user[order]
  together = user[:-1] == user[1:]
  found = []
  for kind in (np.float32, '>f4'):
    every = value.astype(kind)
    both = np.stack([every[:-1], every[1:]], axis=1)[together]
    found.append(_sorted(both))
  whole = value.astype(np.uint8)
  if np.array_equal(whole, value):
    run = np.lib.stride_tricks.sliding_window_view(whole, _WORD)
    found.append(_sorted(run[user[: 1 - _WORD] == user[_WORD - 1 :]]))
  return np.unique(np.concatenate(found))


def _words_at_nodes(
  plan: Plan, train: Ratings, parts: list[Leaves]
) -> dict[str, np.ndarray]:
  """What nodes keep: vectors of users, and words without their masks.

  Small integers are left out where messages hold numbers of users or items.
  """
  if plan.system == 'sdmf':
    factors = np.concatenate([part['factors'] for part in parts])
    return {'factors of users': pairs(factors)}
  if plan.config.variant == 'paper':
    join = lambda name: np.concatenate([part[name] for part in parts])
    counts, share = join('counts'), join('share')
    small = max(plan.num_users, plan.num_items)
    return {
      'factors of users': pairs(join('factors')),
      'gradients without masks': pairs(counts + share, small),
      'gradients without noise': pairs(counts, small),
      'shares of noise': pairs(share, small),
    }
  words = []
  for node, part in zip(plan.nodes, parts, strict=True):
    ratings = node_ratings(train, node)
    user, item, _ = ratings
    counts = sums_protocol.own_sums(plan, node, ratings)[user, item]
    share = part['share'][user, item]
    words.append(np.concatenate([counts, counts + share]).astype(np.int32))
  found = pairs(np.concatenate(words), plan.num_users)
  return {'sums without masks': found}


def _all_bytes(folder: Path, plan: Plan) -> Iterator[bytes]:
  """All messages, and what is in the envelopes among them."""
  private = None
  if plan.system == 'untrusted_pmf':
    private = envelopes.own_key(folder / 'aggregator' / 'state')
  for direction, peer, data in read_transcript(
    folder / 'recommender' / 'state'
  ):
    yield data
    message = messages.from_bytes(data)
    from_node = direction == 'received' and peer < len(plan.nodes)
    if from_node and message.kind == Kind.SEALED and private is not None:
      envelope = message.arrays[1].tobytes()
      arrays = envelopes.opened_report(
        plan, message.round, peer, envelope, private
      )
      report = Message(Kind.REPORT, message.round, peer, arrays)
      yield messages.to_bytes(report)
