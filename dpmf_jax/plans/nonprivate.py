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
  """Settings of a run, in full-batch steps.

  Attributes:
    ridge: L2 penalty per rating: a row with n ratings is shrunk by ridge * n.
    biases: Whether users and items have biases, in two columns besides rank.
    init_std: Standard deviation of the initial factors.
  """

  scale: tuple[float, float] = scale_setting()
  rank: int = rank_setting(default=20, maximum=10_000)
  steps: int = steps_setting(default=150)
  step_size: float = step_size_setting(default=0.02)
  ridge: float = setting(default=0.12, minimum=0)
  biases: bool = setting(default=True)
  init_std: float = setting(default=0.1, above=0)
  optimizer: Optimizer | None = optimizer_setting(
    default=None, instead_of='Adam with step_size'
  )


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
