"""The settings of alternating least squares, which is not private."""

from __future__ import annotations

from typing import Literal

from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.nonprivate import baseline
from dpmf_jax.plans.spec import Task

# Above this rank conjugate gradients are faster, and take no [R, D, D].
_LARGEST_CHOLESKY_RANK = 64


@declare.config
class ALSConfig:
  """Settings of a run; a step is a sweep over users and items.

  Attributes:
    feedback: explicit: predict ratings. implicit: rank items by whether users
      know them; such scores are no ratings.
    ridge: L2 penalty of a row of factors; times sqrt(n) for one with n ratings
      (explicit).
    bias_ridge: L2 penalty of a bias, times sqrt(n) (explicit).
    biases: Whether users and items have biases, in two columns besides rank
      (explicit).
    alpha: A rating r has confidence 1 + alpha r (implicit).
    init_std: Standard deviation of the initial factors.
    solver: How equations are solved; cg: conjugate gradients. By default chosen
      by rank.
  """

  scale: tuple[float, float] = declare.scale()
  feedback: Literal['explicit', 'implicit'] = declare.setting(
    default='explicit'
  )
  rank: int = declare.rank(default=16, maximum=2_000)
  steps: int = declare.steps(default=12)
  ridge: float = declare.setting(default=1.2, above=0)
  bias_ridge: float = declare.setting(default=1.0, above=0)
  biases: bool = declare.setting(default=True)
  alpha: float = declare.setting(default=1.0, above=0)
  init_std: float = declare.setting(default=0.1, above=0)
  solver: Literal['cholesky', 'cg'] | None = declare.setting(default=None)

  def check(self):
    if self.feedback == 'implicit' and self.scale[0] < 0:
      raise ValueError(
        f'scale={self.scale!r} must not be negative for implicit feedback: '
        'a rating is a confidence'
      )

  @property
  def task(self) -> Task:
    return 'ranking' if self.feedback == 'implicit' else 'rating'

  @property
  def solves_with(self) -> Literal['cholesky', 'cg']:
    if self.solver is not None:
      return self.solver
    return 'cg' if self.rank > _LARGEST_CHOLESKY_RANK else 'cholesky'


SPEC = baseline('als', 'Alternating least squares', ALSConfig)
