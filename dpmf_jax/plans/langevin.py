"""The settings of Langevin dynamics that several systems share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpmf_jax.accounting.events import checked_count
from dpmf_jax.plans.settings import require, scale_check

if TYPE_CHECKING:
  import optax

Average = Literal['item', 'all']


@dataclass(frozen=True, kw_only=True)
class LangevinSettings:
  """What all systems that take Langevin steps have in common.

  Attributes:
    scale: (lowest, highest) possible rating.
    delta: at which the certificate states epsilon; none is needed.
    rank: number of factors, the paper's K.
    steps: rounds at most.
    step_size: eta_0 times S.
    decay: gamma of eta_t = eta_0 / t^gamma.
    likelihood_scale: S; None is the number of ratings, which is then public.
    ridge: Lambda over S.
    ridges: 'fixed', or 'gamma': each of the rank diagonal entries of Lambda is
      drawn from Gamma(1) times the ridge, as in the paper.
    average: what the sum of an item's gradients is divided by: the gradients
      of that 'item', or 'all' gradients of the round, as the paper writes.
    init_size: factors start uniform in [0, init_size).
    optimizer: an optax transformation of the items' mean gradient, in which
      eta_t is already; plain descent by default.
  """

  scale: tuple[float, float]
  delta: float = 0.0
  rank: int = 50
  steps: int = 100
  step_size: float = 0.4
  decay: float = 0.6
  likelihood_scale: float | None = None
  ridge: float = 0.01
  ridges: Literal['fixed', 'gamma'] = 'fixed'
  average: Average = 'item'
  init_size: float = 0.25
  optimizer: optax.GradientTransformation | None = None

  def __post_init__(self):
    for field in ('rank', 'steps'):
      checked_count(field, getattr(self, field))
    s = self.likelihood_scale
    require(
      self,
      scale=scale_check(self.scale),
      delta=(0 <= self.delta < 1, 'in [0, 1)'),
      rank=(1 <= self.rank <= 1_000, 'in 1..1000'),
      steps=(self.steps >= 1, 'at least 1'),
      step_size=(0 < self.step_size < np.inf, 'positive and finite'),
      decay=(0 <= self.decay < np.inf, 'at least 0 and finite'),
      likelihood_scale=(s is None or 0 < s < np.inf, 'positive and finite'),
      ridge=(0 <= self.ridge < np.inf, 'at least 0 and finite'),
      ridges=(self.ridges in ('fixed', 'gamma'), "'fixed' or 'gamma'"),
      average=(self.average in ('item', 'all'), "'item' or 'all'"),
      init_size=(0 < self.init_size < np.inf, 'positive and finite'),
    )


# The paper to the letter, for MovieLens-100K: nothing is learned.
LITERAL: dict[str, Any] = {
  'likelihood_scale': 1.0,
  'step_size': 5e-6,
  'average': 'all',
  'ridges': 'gamma',
}
