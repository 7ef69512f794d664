"""The settings of SD-FM, and what the paper claims for them."""

from __future__ import annotations

import functools

from dpmf_jax.plans import sdcf
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Plan
from dpmf_jax.ratings.attributes import Attributes


@declare.config
class SDFMConfig(sdcf.SDCFSettings):
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    attributes: Features of users and items, which are public.
    side_step: Step size of linear weights and of all weights of features, over
      that of factors; 0 leaves them at 0. All of them move for the same
      residual, so that much more does not converge.
  """

  epsilon_value: float = sdcf.epsilon_value_setting()
  attributes: Attributes | None = declare.setting(
    default=None,
    holds=lambda attributes: isinstance(attributes, Attributes),
    must='ratings.attributes.Attributes',
    flag=False,
  )
  side_step: float = declare.setting(default=0.1, minimum=0, maximum=1)


ASSUMED = (
  'Features of users and items are public: which weights of features a client '
  'sends gradients of tells what it has.',
  'The gradient of the linear weight of an item is its residual, and that of '
  'the constant is the sum of them: values have no more of a bound than in '
  'matrix factorization.',
)


# Attributes are equal to themselves alone, and have a hash as such.
@functools.lru_cache
def plan(config: SDFMConfig) -> Plan:
  """What the paper claims, which is true of the bits and of nothing else."""
  return sdcf.sdcf_plan(
    config, epsilon_value=config.epsilon_value, assumed=ASSUMED
  )


def traffic(config: SDFMConfig, **sizes: int) -> dict[str, float] | None:
  """Bytes a client receives and sends in a round; it knows the features.

  How many gradients a sum is of, the server sees from the items.
  """
  known = config.attributes
  features = 0
  if known is not None:
    features = len(known.user_names) + len(known.item_names)
  width = config.rank + 1
  return sdcf.traffic(config, **sizes, width=width, shared=1 + features * width)


SPEC = sdcf.spec(
  name='sdfm',
  help='As published (SD-FM): a factorization machine in the rounds of sdmf.',
  config=SDFMConfig,
  plan=plan,
  cases=sdcf.cases(epsilon_value=1.0),
  traffic=traffic,
)
