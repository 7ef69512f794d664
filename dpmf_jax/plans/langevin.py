"""The settings of MF by Langevin dynamics, and of input perturbation."""

from __future__ import annotations

import functools
from typing import Literal

from dpmf_jax import accounting
from dpmf_jax.plans import assumptions, sdcf
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Plan, Spec
from dpmf_jax.types import Guarantee


@declare.config
class LangevinConfig(sdcf.LangevinSettings):
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: none: ratings as they are. paper: Laplace noise on each.
    epsilon: paper: epsilon of each rating's value; noise has the scale of the
      width of the ratings over it.
    clip: paper: whether perturbed ratings are clipped to the scale.
  """

  variant: Literal['none', 'paper'] = declare.setting(flag=False)
  epsilon: float | None = declare.setting(default=None, above=0)
  clip: bool = declare.setting(default=False)

  def check(self):
    if self.variant == 'paper' and self.epsilon is None:
      raise ValueError('epsilon=None must be positive and finite')


@functools.lru_cache
def plan(config: LangevinConfig) -> Plan:
  """The paper's claim for perturbed ratings, or that there is none."""
  if config.variant == 'none':
    stated = declare.no_guarantee(
      'replace',
      ('user factors', 'item factors'),
      'none: the noise of a sampler is not calibrated to anything',
    )
    return Plan(stated, config.steps)
  assert config.epsilon is not None  # checked by the config
  tau = config.scale[1] - config.scale[0]
  noise = tau / config.epsilon
  claimed = Guarantee(
    status='claimed',
    unit='rating',
    relation='replace',
    adversary='anyone who sees what is released',
    released=('user factors', 'item factors'),
    secret=('ratings', 'random key'),
    assumptions=(
      assumptions.PUBLIC_PAIRS,
      'The noise is as good as exact Laplace noise; it is float32.',
    ),
    mechanism=f'Laplace noise of scale {noise:g} on each rating, once; then '
    f'{config.steps} steps of Langevin dynamics',
    event=accounting.ClaimedPure(config.epsilon),
  )
  return Plan(
    claimed,
    config.steps,
    noise={'ratings': noise},
    sensitivity={'ratings': tau},
  )


SPEC = Spec(
  name='langevin',
  help='Langevin dynamics on ratings as they are, or with Laplace noise on '
  'each (ISGLD, as published).',
  config=LangevinConfig,
  plan=plan,
  variants=sdcf.VARIANTS,
  cases=sdcf.cases(),
)
