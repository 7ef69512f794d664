"""The settings of SDMF as published, and what the paper claims for them."""

from __future__ import annotations

import functools
from typing import Literal

from dpmf_jax.plans import sdcf
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Plan


@declare.config
class SDMFConfig(sdcf.SDCFSettings):
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: paper: as published.
  """

  variant: Literal['paper', 'none'] = declare.setting(
    default='paper', choices=('paper',), flag=False
  )
  epsilon_value: float = sdcf.epsilon_value_setting()


@functools.lru_cache
def plan(config: SDMFConfig) -> Plan:
  """What the paper claims, which is true of the bits and of nothing else."""
  return sdcf.sdcf_plan(config, epsilon_value=config.epsilon_value)


SPEC = sdcf.spec(
  name='sdmf',
  help='As published (SDMF): clients send noisy gradients of items that '
  'randomized response chooses.',
  config=SDMFConfig,
  plan=plan,
  variants={'paper': sdcf.VARIANTS['paper']},
  # The items alone; what clients send, which says more, is not released here.
  cases={'paper': sdcf.cases(epsilon_value=1.0)['paper']},
)
