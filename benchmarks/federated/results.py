"""What a trial measures, from what its parties keep."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.evaluation import metrics
from dpmf_jax.federated import folders
from dpmf_jax.federated.keys import fit_key
from dpmf_jax.federated.plan import Plan
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, training_data
from dpmf_jax.systems.sdmf import sdmf, sdmf_by_messages
from dpmf_jax.systems.untrusted import sums as untrusted_sums
from dpmf_jax.systems.untrusted_pmf import untrusted_pmf
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Release, System


def event_counts(log: list[dict[str, Any]]) -> dict[str, int]:
  """How often each event is in a log."""
  return dict(sorted(Counter(line['event'] for line in log).items()))


def states_of_nodes(folder: Path, plan: Plan) -> list[folders.Leaves]:
  """What each node has in its folder."""
  return [
    folders.saved(folder / f'node-{i}' / 'state', plan) or {}
    for i in range(len(plan.nodes))
  ]


def accuracy(
  folder: Path, plan: Plan, train: Ratings, test: Ratings, *, seed: int | None
) -> dict[str, Any]:
  """Held-out error of the deployed model beside the simulator's."""
  data, held_out = training_data(train), training_data(test).by_user
  parts = states_of_nodes(folder, plan)
  got = folders.saved(folder / 'recommender' / 'state', plan) or {}
  compared = _COMPARED[plan.system, plan.config.variant]
  releases, same = compared(plan, parts, data, got, seed)
  scale = plan.config.scale
  return {
    f'{name}test_rmse': metrics.rmse(release, held_out, scale)
    for name, release in releases.items()
  } | same


def _deployed(parts, got) -> Release:
  """The model of users at their nodes and items at the recommender."""
  user = np.concatenate([part['factors'] for part in parts])
  factors = Factors(jnp.asarray(user), jnp.asarray(got['item']))
  return Release(factors, jnp.float32(0))


def _sdmf(plan, parts, data, got, seed):
  """Models by the name of who made them, and whether bits are the same."""
  deployed = _deployed(parts, got)
  releases = {
    '': deployed,
    'simulator_': _simulated(sdmf(plan.config), seed, data),
  }
  if seed is None:  # every party has a key of its own
    return releases, {}
  messages = _simulated(sdmf_by_messages(plan.config), seed, data)
  same = all(
    np.array_equal(np.asarray(a), np.asarray(b))
    for a, b in zip(deployed.factors, messages.factors, strict=True)
  )
  return releases, {'same_bits': same}


def _sums(plan, parts, data, got, seed):
  """The same, for sums that are the simulator's but for the noise."""
  hyper = untrusted_sums.hyper_of(plan.config, plan.num_users)
  features = untrusted_sums.feature_counts(np.ones((plan.num_users, 1)))
  state = untrusted_sums.start(data, features, hyper)
  items = state.factors.item.at[:, :-1].set(jnp.asarray(got['item']))
  deployed = untrusted_sums.sums_model(
    state._replace(factors=state.factors._replace(item=items)), data
  )
  exact = untrusted_sums.statistic(data.by_item, state.features, hyper)
  shares = sum(part['share'].sum(axis=0) for part in parts)
  releases = {
    '': deployed,
    'simulator_': _simulated(untrusted_pmf(plan.config), seed, data),
  }
  # With all users in it; without some there is no such sum to compare with.
  same = np.array_equal(got['sums'], np.asarray(exact) + shares)
  return releases, {'same_sums': bool(same)}


def compared_gradients(plan, parts, data, got, seed):
  """The same, for rounds of gradients with the users' shares of noise.

  With a seed the simulator starts where the parties did.
  """
  deployed = _deployed(parts, got)
  noise = np.zeros(got['item'].shape, np.int32)
  share = np.concatenate([part['share'] for part in parts])
  np.add.at(noise, got['rated'], share)
  system = untrusted_pmf(plan.config)
  key = fit_key(seed)
  init_key, _ = jax.random.split(jax.random.clone(key))
  begun = system.init(init_key, data)._replace(
    noise=jnp.asarray(noise),
    noise_scales=jnp.asarray(got['scales']),
    done=jnp.int32(1),  # noise is drawn in the first round only
  )
  state = fit(system, key, data, start=(0, begun))
  releases = {'': deployed, 'simulator_': system.model(state, data)}
  far = [
    float(np.abs(np.asarray(a) - np.asarray(b)).max())
    for a, b in zip(
      deployed.factors, releases['simulator_'].factors, strict=True
    )
  ]
  return releases, {'largest_difference': max(far)}


def _simulated(system: System, seed: int | None, data: Data) -> Release:
  """What a simulator comes to; keys are used as parties use them."""
  return system.model(fit(system, fit_key(seed), data), data)


_COMPARED = {
  ('sdmf', 'paper'): _sdmf,
  ('untrusted_pmf', 'sound'): _sums,
  ('untrusted_pmf', 'paper'): compared_gradients,
}
