"""What a deployment publishes: its model, and what is promised of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpmf_jax import certificates
from dpmf_jax.federated.plan import Plan
from dpmf_jax.plans import untrusted_pmf as untrusted_pmf_plan
from dpmf_jax.runs import folders
from dpmf_jax.types import Factors, Fit, Release

_NOT_COVERED = (
  'metrics.json of a trial: computed from the ratings without noise',
  'the folders of nodes, aggregator and recommender: must not leave them',
)
_RANDOMNESS = {
  'source': 'operating system entropy',
  'generator': f'{certificates.OPERATING_SYSTEMS} for shares of noise, '
  'ChaCha20 for masks',
  'valid_for_release': True,
  'note': 'a --seed does not reach shares and masks',
}


def write_published(folder: Path, plan: Plan, item: np.ndarray) -> None:
  """Writes what may be published, from which `launch.recommend` serves.

  Args:
    folder: which is made.
    plan: that the parties have run.
    item: [I, D] item factors at the end.

  Privacy: item factors are all that is released; with sums there is a
  certificate of them. Users are folded in by their own ratings, at home.
  """
  folder.mkdir(exist_ok=True)
  ids = {'items': list(plan.item_ids), 'scale': list(plan.config.scale)}
  folders.write_release(folder, release_of(plan, item), ids)
  if plan.sums:
    folders.finish(folder, certificate_of(plan))


def release_of(plan: Plan, item: np.ndarray) -> Release:
  """The items, and how a user is fitted to them, as in the simulator."""
  config, offset = plan.config, 0.0
  if plan.sums:  # a constant feature, and a bias of their own
    item = np.append(item, np.ones_like(item[:, :1]), axis=1)
    prior, ridge = (1.0, 0.0), (config.vector_ridge, config.bias_ridge)
    offset = config.center
  else:
    prior, ridge = (np.full(item.shape[1], x) for x in (0.0, config.ridge))
  fit = Fit(np.asarray(prior, np.float32), np.asarray(ridge, np.float32))
  return Release(Factors(None, item), np.float32(offset), fit)


def certificate_of(plan: Plan) -> dict[str, Any]:
  """The certificate of sums that the plan's parties have run.

  Privacy: made of the plan alone, which is public.
  """
  config = plan.config
  of_plan = config, 1, plan.largest_node
  document = certificates.certificate(
    untrusted_pmf_plan.plan(*of_plan).guarantee,
    system=plan.system,
    config=config,
    delta=config.delta,
    randomness=_RANDOMNESS,
    features=of_plan[1:],
    parameters={'node_sizes': [node.size for node in plan.nodes]},
  )
  document |= {'not_covered': list(_NOT_COVERED)}
  certificates.validate(document)
  return document
