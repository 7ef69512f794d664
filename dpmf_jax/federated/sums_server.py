"""The recommender of the untrusted sums: seeds out, one sum in, masks off."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpmf_jax.federated import carried, folders, intake, untrusted_protocol
from dpmf_jax.federated.journal import Journal
from dpmf_jax.federated.messages import Kind
from dpmf_jax.federated.plan import RECOMMENDER, Plan
from dpmf_jax.federated.rounds import Exchange, TooFewNodesError
from dpmf_jax.federated.sums_node import mask, width
from dpmf_jax.mechanisms import secure_sum
from dpmf_jax.mechanisms.secure_sum import Aggregate, BrokenRoundError
from dpmf_jax.systems.untrusted import sums as untrusted_sums


def recommender(
  plan: Plan, folder: str | Path, exchange: Exchange, journal: Journal
) -> np.ndarray:
  """Item vectors [I, D] from one sum over all users.

  A round that is broken is done again under another number, with new seeds:
  up to the plan's attempts.

  Raises:
    TooFewNodesError: where no round could be summed.
  """
  state = folders.saved(folder, plan)
  if state is None:
    state = {'seeds': carried.new_seeds(plan.num_users), 'round': np.int32(0)}
    folders.save(folder, plan, state)
  if 'item' in state:
    return state['item']
  hyper = untrusted_sums.hyper_of(plan.config, plan.num_users)
  while (round := int(state['round'])) < plan.attempts:
    try:
      total = _total(plan, exchange, journal, state['seeds'], round)
      users = {int(user) for user in total.arrived}
      # The seeds' masks are of this round alone: ChaCha20's nonce has it.
      masks = {
        user: mask(state['seeds'][user], plan, total.round, user)
        for user in users
      }
      item = untrusted_protocol.server_apply(
        total, masks, hyper, round=total.round
      )
    except (TooFewNodesError, BrokenRoundError) as error:
      journal.log('round broken', round=round, why=str(error))
      state = {**state, 'round': np.int32(round + 1)}
      folders.save(folder, plan, state)
      continue
    sums = secure_sum.unmasked(total, masks, round=total.round)
    folders.save(folder, plan, {**state, 'item': item, 'sums': sums})
    journal.log('round done', round=total.round, users=len(users))
    journal.log('finished', rounds=1)
    return item
  raise TooFewNodesError(f'no sum after {plan.attempts} rounds')


def _total(
  plan: Plan,
  exchange: Exchange,
  journal: Journal,
  seeds: np.ndarray,
  round: int,
) -> Aggregate:
  """The third party's sum of a round."""
  questions = {
    number: intake.run_message(
      plan, Kind.SEEDED, round, RECOMMENDER, seeds[node.users]
    )
    for number, node in enumerate(plan.nodes)
  }
  shape = (plan.num_items, width())
  return carried.carried_sum(
    plan, exchange, journal, questions, round=round, shape=shape
  )
