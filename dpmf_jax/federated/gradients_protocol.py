"""The untrusted recommender as published: rounds of gradients.

Reference: Hua, Xia and Zhong (2015), scenarios 2 (static users) and 3 (dynamic
users). Turns:

  ratings    a node says which items its users rated
  scales     it is sent H and the number of raters of each item, and draws its
             users' shares of noise, once
  shares     dynamic users: seeds come, and masked shares go to the third party
             in an envelope, once; it hides their sum from the recommender with
             an alpha that stays in its folder
  online     dynamic users: a node draws and says who of its users is online,
             and the recommender deals out what it holds of the noise
  gradients  item factors and seeds come, and masked gradients go to the third
             party in an envelope, with the share of noise, or with dynamic
             users the piece that came, while users move their vectors at home

Whoever is offline reports on no items, and does not move.

Privacy: as the paper claims, which does not hold
(docs/privacy/untrusted_pmf.md): both other parties learn who rated what, and
with dynamic users who is online. Gradients of a turn are computed once, and so
are shares of noise and who is online; only masks are new where a turn is done
again. Shares never come from a seed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.federated import checks, folders, masks
from dpmf_jax.federated.checks import Arrays, RejectedError
from dpmf_jax.federated.folders import Leaves
from dpmf_jax.federated.keys import RunKeys
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import Node, Plan
from dpmf_jax.federated.protocols import (
  Answer,
  Host,
  Protocol,
  Question,
  Reports,
  Step,
  Sum,
  Triples,
  to_all,
)
from dpmf_jax.keys import key_words, random_key, words_key
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.clipping import clip_rows
from dpmf_jax.mechanisms.secure_sum import Aggregate, MaskedReport
from dpmf_jax.rows import Rows, put_rows, rows
from dpmf_jax.systems import pmf
from dpmf_jax.systems.untrusted import rounds as untrusted_rounds


class Hosted(NamedTuple):
  """A node's ratings by user and item, in arrays and on a device."""

  user: np.ndarray
  item: np.ndarray
  value: np.ndarray
  each: np.ndarray  # uint32, how many a user has
  rows: Rows


def _prepare(plan: Plan, node: Node, ratings: Triples) -> Hosted:
  order = np.lexsort((ratings[1], ratings[0]))
  user, item, value = (part[order] for part in ratings)
  each = np.bincount(user, minlength=node.size).astype(np.uint32)
  own = put_rows(
    rows(user, item, value, node.size, plan.num_items, side='user')
  )
  return Hosted(user, item, value, each, own)


def _hyper(plan: Plan) -> Any:
  return untrusted_rounds.hyper_of(plan.config, plan.num_users)


def _optimizer_start(side: np.ndarray, plan: Plan, num_ratings: int) -> Leaves:
  count = jnp.float32(max(num_ratings, 1))
  begun = untrusted_rounds.start_optimizer(side, _hyper(plan), count)
  return folders.tree_leaves('optimizer', begun)


def _optimizer_of(state: Leaves, side: jax.Array) -> Any:
  return folders.saved_tree(state, 'optimizer', pmf.MOMENTUM.init(side))


def _start_node(host: Host, keys: RunKeys) -> Leaves:
  sizes = host.plan.num_users, host.plan.num_items
  rank = host.plan.config.rank
  every = untrusted_rounds.start_factors(keys.init, sizes, rank)
  nothing = np.zeros((len(host.data.value), rank), np.int32)
  return {
    'factors': np.asarray(every.user[host.node.users]),
    'counts': nothing,
    'share': nothing,
    'online': np.ones(host.node.size, np.uint8),
    'key': key_words(keys.steps),
  }


def _start_recommender(plan: Plan, keys: RunKeys) -> Leaves:
  sizes = plan.num_users, plan.num_items
  every = untrusted_rounds.start_factors(keys.init, sizes, plan.config.rank)
  # H, by which the recommender knows the size of everybody's noise.
  scales = jax.random.exponential(random_key(), every.item.shape)
  return {
    'item': np.asarray(every.item),
    'scales': np.asarray(scales),
    'seeds': masks.new_seeds(plan.num_users),
    'counts': np.zeros(plan.num_users, np.uint32),
    'rated': np.zeros(0, np.uint32),
    'online': np.ones(plan.num_users, np.uint8),
  }


# Turn 'ratings'.


def _ratings_answer(host: Host, asked: Question, state: Leaves) -> Answer:
  return (host.data.each, host.data.item.astype(np.uint32)), state


def _ratings_check(plan: Plan, number: int, arrays: Arrays) -> None:
  checks.check_items(arrays[1], arrays[0], plan)


def _ratings_apply(plan: Plan, state: Leaves, answers: dict[int, Message]):
  """The state once all nodes have said who rated what."""
  both = zip(*(message.arrays for message in answers.values()), strict=True)
  counts, rated = map(np.concatenate, both)
  begun = _optimizer_start(state['item'], plan, len(rated))
  return {**state, 'counts': counts, 'rated': rated, **begun}, None


_RATINGS = Step(
  answered=('counts uint32[n]', 'items uint32[*]'),
  answer=_ratings_answer,
  check=_ratings_check,
  apply=_ratings_apply,
)


# Turn 'scales'.


def _scales_question(plan: Plan, state: Leaves) -> Reports:
  raters = np.bincount(state['rated'], minlength=plan.num_items)
  return to_all(plan, state['scales'], raters.astype(np.uint32))


def _scales_answer(host: Host, asked: Question, state: Leaves) -> Answer:
  """Nothing, but users' shares are drawn, from the operating system."""
  if not asked.new:
    return (), state
  scales, raters = asked.arrays
  drawn = jax.random.normal(random_key(), state['share'].shape)
  share = untrusted_rounds.share_counts(
    drawn,
    jnp.asarray(scales[host.data.item]),
    jnp.asarray(raters[host.data.item], jnp.float32),
    _hyper(host.plan),
  )
  begun = _optimizer_start(state['factors'], host.plan, int(raters.sum()))
  return (), {**state, 'share': np.asarray(share), **begun}


_SCALES = Step(
  asks=Kind.SHARE,
  asked=('scales float32[I,D]', 'raters uint32[I]'),
  question=_scales_question,
  answers=Kind.SHARE,
  answer=_scales_answer,
  apply=lambda plan, state, answers: (state, None),
)


# Sums of masked words for the items that users rated, in two of the turns.


def _sealed(
  host: Host, counts: np.ndarray, noise: np.ndarray, asked: Question, state
) -> Arrays:
  """A node's report: how many items a user has, which, and masked words.

  `noise` is for the ratings of those online; all are until some are not.
  """
  sent = host.data.each * state['online'].astype(np.uint32)
  there = _there(host, state)
  users, rank = host.node.users, host.plan.config.rank
  known = [
    masks.mask(seed, (count, rank), asked.round, int(user))
    for seed, count, user in zip(asked.arrays[0], sent, users, strict=True)
  ]
  words = masks.masked_words(counts[there], noise, np.concatenate(known))
  return sent, host.data.item[there].astype(np.uint32), words


def _there(host: Host, state: Leaves) -> np.ndarray:
  """Which ratings are of users who are online."""
  return np.repeat(state['online'], host.data.each).astype(bool)


def _sealed_check(plan: Plan, number: int, arrays: Arrays) -> None:
  counts, items, words = arrays
  checks.check_items(items, counts, plan)
  if len(items) != len(words):
    raise RejectedError('wrong shape: items and words differ')


def _added(
  plan: Plan, reports: Reports, round: int
) -> tuple[Aggregate, np.ndarray]:
  """(the sum of all users' words, the items that it is of)."""
  every, rated = [], {}
  for number, (counts, items, words) in reports.items():
    ends = np.cumsum(counts.astype(int))[:-1]
    parts = np.split(items, ends), np.split(words, ends)
    for user, own, values in zip(plan.nodes[number].users, *parts, strict=True):
      rated[int(user)] = own
      every.append(MaskedReport(round, int(user), values))
  total = secure_sum.aggregate(
    every,
    round=round,
    expected=range(plan.num_users),
    rows=rated,
    num_rows=plan.num_items,
  )
  return total, np.unique(np.concatenate([*rated.values()]))


def _rated(state: Leaves) -> dict[int, np.ndarray]:
  """Items of each user; none of those who are offline."""
  ends = np.cumsum(state['counts'].astype(int))[:-1]
  parts = np.split(state['rated'], ends)
  both = enumerate(zip(parts, state['online'], strict=True))
  return {user: part if online else part[:0] for user, (part, online) in both}


def _unmasked(state: Leaves, total: Aggregate) -> np.ndarray:
  """The sum [I, D] int32 without the masks of those who are online."""
  rated, rank = _rated(state), total.values.shape[1]
  known = {
    user: masks.mask(
      state['seeds'][user], (len(items), rank), total.round, user
    )
    for user, items in rated.items()
  }
  return secure_sum.unmasked(total, known, round=total.round, rows=rated)


# Turn 'shares'.


def _shares_answer(host: Host, asked: Question, state: Leaves) -> Answer:
  share = state['share']
  nothing = np.zeros_like(share)
  return _sealed(host, nothing, share, asked, state), state


def _shares_add(plan: Plan, reports: Reports, round: int, state: Leaves) -> Sum:
  """The third party's tau-tilde, the sum of shares plus alpha; and alpha."""
  if 'alpha' in state:
    raise RejectedError('noise is collected once')
  total, _ = _added(plan, reports, round)
  alpha = secure_sum.one_time_mask(total.values.shape)
  hidden = total._replace(values=total.values + alpha)
  return hidden, {**state, 'alpha': alpha}


def _shares_apply(plan: Plan, state: Leaves, total: Aggregate):
  """The state with tau-hat, all users' shares under the third party's alpha."""
  return {**state, 'noise': _unmasked(state, total).view(np.uint32)}, None


_SHARES = Step(
  asks=Kind.SEEDED,
  asked=(masks.SEEDS,),
  question=masks.seeded,
  answers=Kind.SEALED,
  answered=('counts uint32[n]', 'items uint32[*]', 'words uint32[*,D]'),
  answer=_shares_answer,
  check=_sealed_check,
  add=_shares_add,
  total='sum uint32[I,D]',
  apply=_shares_apply,
)


# Turn 'online'.


def _online_answer(host: Host, asked: Question, state: Leaves) -> Answer:
  """Who is online in the next round; with a seed as in the simulator."""
  if asked.new:
    plan = host.plan
    turn = asked.round // plan.attempts
    past = schedule(plan)[:turn].count(_ONLINE)
    key = jax.random.fold_in(words_key(state['key']), past)
    every = untrusted_rounds.who_is_online(
      untrusted_rounds.round_keys(key).online, _hyper(plan), plan.num_users
    )
    own = np.asarray(every)[host.node.users]
    state = {**state, 'online': own.astype(np.uint8)}
  return (state['online'],), state


def _online_check(plan: Plan, number: int, arrays: Arrays) -> None:
  if (arrays[0] > 1).any():
    raise RejectedError('neither online nor offline')


def _online_apply(plan: Plan, state: Leaves, answers: dict[int, Message]):
  """The state with pieces of tau-hat, dealt to the ratings of those online.

  They are saved before they are sent: nodes that got different ones, from a
  recommender that was killed in between, would not add up to the noise.
  """
  online = [message.arrays[0] for message in answers.values()]
  state = {**state, 'online': np.concatenate(online)}
  places = np.concatenate([*_rated(state).values()])
  return {
    **state,
    'pieces': secure_sum.row_pieces(state['noise'], places),
  }, None


_ONLINE = Step(
  answered=('online uint8[n]',),
  answer=_online_answer,
  check=_online_check,
  apply=_online_apply,
)


# Turn 'gradients'.


def _static_question(plan: Plan, state: Leaves) -> Reports:
  return masks.seeded(plan, state, *[(state['item'],)] * len(plan.nodes))


def _dynamic_question(plan: Plan, state: Leaves) -> Reports:
  rated = _rated(state)
  sizes = [sum(len(rated[int(u)]) for u in node.users) for node in plan.nodes]
  pieces = np.split(state['pieces'], np.cumsum(sizes)[:-1])
  return masks.seeded(plan, state, *((state['item'], part) for part in pieces))


def _gradients_answer(host: Host, asked: Question, state: Leaves) -> Answer:
  """Masked gradients; in a new turn users' vectors take their own step."""
  _, items, *pieces = asked.arrays
  there = _there(host, state)
  noise = pieces[0] if pieces else state['share'][there]
  if len(noise) != there.sum():
    raise RejectedError('wrong shape: pieces are not for those online')
  if asked.new:
    old = jnp.asarray(state['factors'])
    factors, optimizer, counts = _node_step(
      old,
      _optimizer_of(state, old),
      jnp.asarray(items),
      jnp.asarray(state['online'], bool),
      host.data,
      _hyper(host.plan),
    )
    moved = {'factors': np.asarray(factors), 'counts': np.asarray(counts)}
    state = {**state, **moved, **folders.tree_leaves('optimizer', optimizer)}
  return _sealed(host, state['counts'], noise, asked, state), state


@jax.jit  # most of a node's work
def _node_step(factors, optimizer, items, online, hosted, hyper):
  """(users' vectors, optimizer, counts [n, D]) after a round."""
  counts = untrusted_rounds.gradient_counts(
    factors[hosted.user], items[hosted.item], hosted.value, hyper
  )
  gradient = untrusted_rounds.user_gradient(hosted.rows, factors, items, hyper)
  updates, moved_optimizer = pmf.MOMENTUM.update(gradient, optimizer, factors)
  moved: Any = optax.apply_updates(factors, updates)
  moved = clip_rows(moved, 1.0)
  # Neither vector nor momentum of who is offline changes.
  kept = lambda new, old: (
    jnp.where(online[:, None], new, old) if new.shape == factors.shape else new
  )
  moved_optimizer = jax.tree.map(kept, moved_optimizer, optimizer)
  return kept(moved, factors), moved_optimizer, counts


def _static_add(plan: Plan, reports: Reports, round: int, state: Leaves) -> Sum:
  return _added(plan, reports, round)[0], state


def _dynamic_add(
  plan: Plan, reports: Reports, round: int, state: Leaves
) -> Sum:
  """The third party's sum without alpha, where any noise was dealt out."""
  if 'alpha' not in state:
    raise RejectedError('noise is collected before all rounds')
  total, reached = _added(plan, reports, round)
  values = total.values.copy()
  values[reached] -= state['alpha'][reached]
  return total._replace(values=values), state


def _gradients_apply(plan: Plan, state: Leaves, total: Aggregate):
  """The state after a round of gradients."""
  item = jnp.asarray(state['item'])
  sums = jnp.asarray(_unmasked(state, total))
  gradient = untrusted_rounds.server_gradient(sums, item, _hyper(plan))
  updates, optimizer = pmf.MOMENTUM.update(
    gradient, _optimizer_of(state, item), item
  )
  moved = np.asarray(optax.apply_updates(item, updates))
  return {
    **state,
    'item': moved,
    **folders.tree_leaves('optimizer', optimizer),
  }, {}


_STATIC = Step(
  asks=Kind.SEEDED,
  asked=(masks.SEEDS, 'items float32[I,D]'),
  question=_static_question,
  answers=Kind.SEALED,
  answered=_SHARES.answered,
  answer=_gradients_answer,
  check=_sealed_check,
  add=_static_add,
  total=_SHARES.total,
  apply=_gradients_apply,
)
_DYNAMIC = _STATIC._replace(
  asked=(*_STATIC.asked, 'pieces uint32[*,D]'),
  question=_dynamic_question,
  add=_dynamic_add,
)


def schedule(plan: Plan) -> tuple[Step, ...]:
  """What each turn is for."""
  rounds = plan.config.rounds
  if plan.config.attendance == 'dynamic':
    return (_RATINGS, _SCALES, _SHARES, *(_ONLINE, _DYNAMIC) * rounds)
  return (_RATINGS, _SCALES, *(_STATIC,) * rounds)


PROTOCOL = Protocol(
  seals=True,
  schedule=schedule,
  prepare=_prepare,
  start_node=_start_node,
  start_recommender=_start_recommender,
)
