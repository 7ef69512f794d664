"""The certificate of a deployment: what is promised, and against whom."""

from __future__ import annotations

from typing import Any

from dpmf_jax import certificates
from dpmf_jax.federated.plan import Plan
from dpmf_jax.plans import untrusted_pmf as untrusted_pmf_plan

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
