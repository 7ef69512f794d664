"""The settings of SD-BPRMF, and what the paper claims for them."""

from __future__ import annotations

import functools
from typing import Literal

from dpmf_jax.plans import sdcf
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Plan

Sign = Literal['true', 'perturbed']


@declare.config
class SDBPRConfig(sdcf.SDCFSettings):
  """Public facts about a run; nothing here may be computed from ratings.

  With variant 'none' every client sends the gradients of all that it rated,
  and of as many others.

  Attributes:
    gradient_sign: paper: the bits that say whether an item is pulled or pushed,
      the true ones or the permanent ones, which are perturbed.
  """

  gradient_sign: Sign = declare.setting(default='true')
  rank: int = declare.rank(default=10)
  step_size: float = declare.step_size(default=8.0)
  ridge: float = declare.ridge(default=0.0)


@functools.lru_cache
def plan(config: SDBPRConfig) -> Plan:
  """What the paper claims, which holds where signs are perturbed."""
  return sdcf.sdcf_plan(config)


SPEC = sdcf.spec(
  name='sdbpr',
  help='As published (SD-BPRMF): personalised ranking in the rounds of sdmf.',
  config=SDBPRConfig,
  plan=plan,
  cases=sdcf.cases(),
  task='ranking',
)
