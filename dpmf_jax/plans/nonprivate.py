"""The settings of plain gradient descent, which is not private."""

from __future__ import annotations

import functools

from dpmf_jax.plans.settings import (
  config,
  no_guarantee,
  optimizer_setting,
  rank_setting,
  scale_setting,
  setting,
  step_size_setting,
  steps_setting,
)
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Optimizer


@config
class NonprivateConfig:
  """Settings of a run, in full-batch steps."""

  scale: tuple[float, float] = scale_setting()
  rank: int = rank_setting(20, maximum=10_000)
  steps: int = steps_setting(150)
  step_size: float = step_size_setting(0.02)
  ridge: float = setting(
    0.12,
    minimum=0,
    help='L2 penalty per rating: a row with n ratings is shrunk by ridge * n.',
  )
  biases: bool = setting(
    True,
    help='Whether users and items have biases, in two columns besides rank.',
  )
  init_std: float = setting(
    0.1, above=0, help='Standard deviation of the initial factors.'
  )
  optimizer: Optimizer | None = optimizer_setting('Adam with step_size')


@functools.lru_cache
def plan(config: NonprivateConfig) -> Plan:
  """That there is no privacy."""
  released = ('user factors', 'item factors', 'mean rating')
  return Plan(no_guarantee('replace', released), config.steps)


SPEC = Spec(
  name='nonprivate',
  help='Gradient descent, a baseline without any guarantee.',
  config=NonprivateConfig,
  plan=plan,
  variants={'none': {}},
  cases={
    'none': (Case({'scale': (1.0, 5.0), 'rank': 1, 'steps': 2}, 'random'),)
  },
)
