"""The settings of alternating least squares, which is not private."""

from __future__ import annotations

from typing import Literal

from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.nonprivate import baseline
from dpmf_jax.plans.spec import Task

_RANKS = {'explicit': 16, 'implicit': 64}


@declare.config
class ALSConfig:
  """Settings of a run; a step is a sweep over users and items.

  Attributes:
    feedback: explicit: predict ratings. implicit: rank items by what users did;
      such scores are no ratings.
    rank: Number of factors; by default 16, or 64 (implicit).
    ridge: L2 penalty of a row of factors; times sqrt(n) for one with n ratings.
    bias_ridge: L2 penalty of a bias, times sqrt(n) (explicit).
    biases: Whether users and items have biases, in two columns besides rank
      (explicit).
    alpha: An interaction that counts x has confidence 1 + alpha x (implicit).
    least_weight: What an interaction with the lowest rating counts; more for
      higher ones, up to 1. 1 where ratings mean nothing, as for clicks
      (implicit).
    liked_from: Part of the scale from which on it counts 1 (implicit).
    init_std: Standard deviation of the initial factors.
    solver: How a side's equations are solved. cg: by conjugate gradients, from
      where the sweep before ended. cholesky: exactly, in time that grows with
      the square of the rank for each rating.
    cg_iterations: Of conjugate gradients, in each sweep and side (cg).
  """

  scale: tuple[float, float] = declare.scale()
  feedback: Literal['explicit', 'implicit'] = declare.setting(
    default='explicit'
  )
  rank: int | None = declare.setting(default=None, minimum=1, maximum=2_000)
  steps: int = declare.steps(default=12)
  ridge: float = declare.setting(default=1.2, above=0)
  bias_ridge: float = declare.setting(default=1.0, above=0)
  biases: bool = declare.setting(default=True)
  alpha: float = declare.setting(default=0.5, above=0)
  least_weight: float = declare.setting(default=0.1, minimum=0.01, maximum=1)
  liked_from: float = declare.setting(default=0.9, minimum=1e-3, maximum=1)
  init_std: float = declare.setting(default=0.1, above=0)
  solver: Literal['cg', 'cholesky'] = declare.setting(default='cg')
  cg_iterations: int = declare.setting(default=3, minimum=1, maximum=1_000)

  def check(self):
    if self.rank is None:  # certificates say which
      object.__setattr__(self, 'rank', _RANKS[self.feedback])

  @property
  def width(self) -> int:
    """The rank, which is an int once a config is made."""
    assert self.rank is not None
    return self.rank

  @property
  def task(self) -> Task:
    return 'ranking' if self.feedback == 'implicit' else 'rating'

  @property
  def iterations(self) -> int | None:
    """Of conjugate gradients; None for Cholesky's method."""
    return None if self.solver == 'cholesky' else self.cg_iterations


SPEC = baseline('als', 'Alternating least squares', ALSConfig)
