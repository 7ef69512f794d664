"""What a trial measures, from what its parties keep."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import files, metrics
from dpmf_jax.data.ratings import Ratings
from dpmf_jax.federated import folders
from dpmf_jax.federated.plan import Plan
from dpmf_jax.federated.sdmf_node import factors_of
from dpmf_jax.sharding import training_data
from dpmf_jax.systems import untrusted_sums
from dpmf_jax.systems.sdmf import sdmf
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Release


def event_counts(log: list[dict[str, Any]]) -> dict[str, int]:
  """How often each event is in a log."""
  return dict(sorted(Counter(line['event'] for line in log).items()))


def accuracy(
  folder: Path, plan: Plan, train: Ratings, test: Ratings, *, seed: int | None
) -> dict[str, Any]:
  """Held-out error of the deployed model and, with a seed, the simulator's."""
  data, held_out = training_data(train), training_data(test).by_user
  leaves, _ = files.load_leaves(
    folder / 'recommender' / 'state' / 'items.safetensors'
  )
  scale = plan.config.scale
  if plan.system == 'untrusted_pmf':
    hyper = untrusted_sums.hyper_of(plan.config, plan.num_users)
    features = untrusted_sums.feature_counts(np.ones((plan.num_users, 1)))
    state = untrusted_sums.start(data, features, hyper)
    items = state.factors.item.at[:, :-1].set(jnp.asarray(leaves['item']))
    state = state._replace(factors=state.factors._replace(item=items))
    release = untrusted_sums.sums_model(state, data)
    return {'test_rmse': metrics.rmse(held_out, release, scale)}
  parts = [
    folders.saved(folder / f'node-{i}' / 'state', plan) or {}
    for i in range(len(plan.nodes))
  ]
  release = Release(factors_of(parts, leaves['item']), jnp.float32(0))
  found: dict[str, Any] = {
    'train_rmse': metrics.rmse(data.by_user, release, scale),
    'test_rmse': metrics.rmse(held_out, release, scale),
  }
  if seed is not None:
    fit_key, _ = jax.random.split(jax.random.key(seed))
    state = fit(sdmf(plan.config), fit_key, data)
    simulated = Release(
      Factors(state.factors.user, state.factors.item), jnp.float32(0)
    )
    found['simulator_test_rmse'] = metrics.rmse(held_out, simulated, scale)
    found['same_bits'] = all(
      np.array_equal(np.asarray(a), np.asarray(b))
      for a, b in zip(release.factors, simulated.factors, strict=True)
    )
  return found
