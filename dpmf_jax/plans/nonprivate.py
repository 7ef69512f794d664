"""The settings of plain gradient descent, which is not private."""

from __future__ import annotations

import functools
from typing import Any

from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Optimizer


@declare.config
class NonprivateConfig:
  """Settings of a run, in full-batch steps.

  Attributes:
    ridge: L2 penalty per rating: a row with n ratings is shrunk by ridge * n.
    biases: Whether users and items have biases, in two columns besides rank.
    init_std: Standard deviation of the initial factors.
  """

  scale: tuple[float, float] = declare.scale()
  rank: int = declare.rank(default=20, maximum=10_000)
  steps: int = declare.steps(default=150)
  step_size: float = declare.step_size(default=0.02)
  ridge: float = declare.setting(default=0.12, minimum=0)
  biases: bool = declare.setting(default=True)
  init_std: float = declare.setting(default=0.1, above=0)
  optimizer: Optimizer | None = declare.optimizer(
    default=None, instead_of='Adam with step_size'
  )

  def check(self):
    declare.check_one_step_size(self)


@functools.lru_cache
def _plan(config: Any) -> Plan:
  released = ('user factors', 'item factors', 'mean rating')
  return Plan(declare.no_guarantee('replace', released), config.steps)


def baseline(name: str, help: str, config: type) -> Spec:
  """The spec of a system without privacy."""
  return Spec(
    name=name,
    help=f'{help}, a baseline without any guarantee.',
    config=config,
    plan=_plan,
    variants={'none': {}},
    cases={
      'none': (Case({'scale': (1.0, 5.0), 'rank': 1, 'steps': 2}, 'random'),)
    },
  )


SPEC = baseline('nonprivate', 'Gradient descent', NonprivateConfig)
