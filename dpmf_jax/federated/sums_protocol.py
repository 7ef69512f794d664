"""The untrusted recommender's one sum: a masked report from every user.

The recommender sends seeds of masks; reports go to the third party alone, in
envelopes that the recommender carries and cannot open. Shares of noise are
drawn once and kept: a round that is done again has new masks over the same
words, so that no second noise can be averaged.

Privacy: as `untrusted_pmf` states it; the words under the mask are the same in
all rounds, and a round is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from dpmf_jax.federated import masks, protocols
from dpmf_jax.federated.checks import Arrays, RejectedError
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.keys import RunKeys
from dpmf_jax.federated.messages import Kind
from dpmf_jax.federated.plan import Node, Plan
from dpmf_jax.mechanisms import secure_sum, shares
from dpmf_jax.mechanisms.secure_sum import Aggregate, MaskedReport
from dpmf_jax.plans.untrusted_pmf import UntrustedPMFConfig
from dpmf_jax.systems.untrusted import sums

RANK = 1  # a constant feature for each user: items have a mean each
WIDTH = sums.width(RANK)


def own_sums(plan: Plan, node: Node, ratings: protocols.Triples) -> np.ndarray:
  """What each of a node's users adds, [n, I, W] int32, without noise."""
  hyper = sums.hyper_of(plan.config, plan.num_users)
  feature = sums.feature_counts(np.ones((1, RANK)))
  user, item, value = ratings
  terms = sums.rating_terms(
    jnp.asarray(np.repeat(feature, len(value), axis=0)),
    jnp.asarray(value, jnp.float32),
    hyper,
  )
  made = np.zeros((node.size, plan.num_items, WIDTH), np.int32)
  np.add.at(made, (user, item), np.asarray(terms))
  return made


def client_share(
  config: UntrustedPMFConfig, num_users: int, num_items: int, rank: int = RANK
) -> np.ndarray:
  """One user's share of noise [I, W] from the operating system.

  Privacy: exact; those of any num_users - colluders - dropouts users add up to
  the two-sided geometric noise of the guarantee.
  """
  share = np.zeros((num_items, sums.width(rank)), np.int64)
  block = share[:, sums.noised_columns(rank, config.relation)]
  drawn = shares.polya_shares(
    block.size, num_users - config.unneeded, config.noise_bits
  )
  block[...] = drawn.reshape(block.shape)
  return share


def aggregate(
  reports: Iterable[MaskedReport],
  config: UntrustedPMFConfig,
  *,
  round: int,
  users: Iterable[int],
) -> Aggregate:
  """The third party's sum of a round, once enough users are in it.

  Privacy: shares are made to do without those of `colluders` and `dropouts`
  users; with more reports missing nothing is passed on (BrokenRoundError).
  """
  users = list(users)
  least = len(users) - config.dropouts
  return secure_sum.aggregate(reports, round=round, expected=users, least=least)


def _start_node(host: protocols.Host, keys: RunKeys) -> Leaves:
  plan = host.plan
  drawn = [
    client_share(plan.config, plan.num_users, plan.num_items)
    for _ in range(host.node.size)
  ]
  return {'share': np.stack(drawn)}


def _answer(
  host: protocols.Host, asked: protocols.Question, state: Leaves
) -> protocols.Answer:
  """The masked reports of all of a node's users, on all items."""
  shape, users = (host.plan.num_items, WIDTH), host.node.users
  each = zip(host.data, state['share'], asked.arrays[0], users, strict=True)
  words = [
    masks.masked_words(
      counts, share, masks.mask(seed, shape, asked.round, int(user))
    )
    for counts, share, seed, user in each
  ]
  return (users, np.stack(words)), state


def _check(plan: Plan, number: int, arrays: Arrays) -> None:
  if not np.array_equal(arrays[0], plan.nodes[number].users):
    raise RejectedError('other users')


def _add(
  plan: Plan, reports: protocols.Reports, round: int, state: Leaves
) -> protocols.Sum:
  every = [
    MaskedReport(round, int(user), words)
    for arrays in reports.values()
    for user, words in zip(*arrays, strict=True)
  ]
  users = range(plan.num_users)
  return aggregate(every, plan.config, round=round, users=users), state


def _apply(
  plan: Plan, state: Leaves, total: Aggregate
) -> tuple[Leaves, dict[str, int]]:
  """The state with item vectors [I, D], once the masks are off."""
  shape = plan.num_items, WIDTH
  known = {
    user: masks.mask(state['seeds'][user], shape, total.round, user)
    for user in total.arrived
  }
  unmasked = secure_sum.unmasked(total, known, round=total.round)
  hyper = sums.hyper_of(plan.config, plan.num_users)
  item = np.asarray(sums.item_vectors(jnp.asarray(unmasked), hyper))
  said = {'round': total.round, 'users': len(total.arrived)}
  return {**state, 'item': item, 'sums': unmasked}, said


_SUM = protocols.Step(
  asks=Kind.SEEDED,
  asked=(masks.SEEDS,),
  question=masks.seeded,
  answers=Kind.SEALED,
  answered=('users uint32[n]', f'words uint32[n,I,{WIDTH}]'),
  answer=_answer,
  check=_check,
  add=_add,
  total=f'sum uint32[I,{WIDTH}]',
  apply=_apply,
)
PROTOCOL = protocols.Protocol(
  seals=True,
  schedule=lambda plan: (_SUM,),
  prepare=own_sums,
  start_node=_start_node,
  start_recommender=lambda plan, keys: {
    'seeds': masks.new_seeds(plan.num_users)
  },
)
