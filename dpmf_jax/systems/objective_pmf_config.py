"""The settings of objective perturbation, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.accounting.events import checked_count
from dpmf_jax.kernels import normal
from dpmf_jax.systems.settings import require, scale_check
from dpmf_jax.types import Guarantee, Relation


@dataclass(frozen=True, kw_only=True)
class ObjectivePMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: 'paper' (both stages as published, with the claimed epsilon) or
      'sound' (exact solution against public user features, proved).
    relation: 'replace' or 'add_remove'. Hua et al. have only 'replace'.
    scale: (lowest, highest) possible rating.
    epsilon: of the whole release; pure.
    delta: at which the certificate states epsilon; none is needed.
    objective: 'zhang' or 'hua' (paper): whose objective and noise.
    noise: 'once' or 'every_step' (paper): Alg. 2 draws anew in every step,
      its theorem is about noise that is drawn once.
    rank, ridge, step_size, pmf_steps, noise_steps: d, lambda, gamma, k1 and
      k2 (paper). The step is gamma over the number of ratings, on sums.
    count_scale: weight of the matrix A against the vector b in what is noised
      (sound, 'add_remove').
    prior_variance: of an item's vector around the common one (sound).
    shift: bits dropped from exact sums (sound); more for more users.
    bias_ridge, vector_ridge: of the fit that each user makes of their own
      bias and vector (sound). These stay with the user.
  """

  variant: Literal['paper', 'sound']
  relation: Relation
  scale: tuple[float, float]
  epsilon: float
  delta: float = 0.0
  objective: Literal['zhang', 'hua'] = 'zhang'
  noise: Literal['once', 'every_step'] = 'once'
  rank: int = 20
  ridge: float = 0.01
  step_size: float = 50.0
  pmf_steps: int = 50
  noise_steps: int = 50
  count_scale: float = 1.0
  prior_variance: float = 0.35
  shift: int = 6
  bias_ridge: float = 5.0
  vector_ridge: float = 8.0

  def __post_init__(self):
    for field in ('rank', 'pmf_steps', 'noise_steps', 'shift'):
      checked_count(field, getattr(self, field))
    require(
      self,
      variant=(self.variant in ('paper', 'sound'), "'paper' or 'sound'"),
      relation=(
        self.relation in ('replace', 'add_remove'),
        "'replace' or 'add_remove'",
      ),
      scale=scale_check(self.scale),
      epsilon=(0 < self.epsilon < np.inf, 'positive and finite'),
      delta=(0 <= self.delta < 1, 'in [0, 1)'),
      objective=(self.objective in ('zhang', 'hua'), "'zhang' or 'hua'"),
      noise=(self.noise in ('once', 'every_step'), "'once' or 'every_step'"),
      rank=(1 <= self.rank <= 1_000, 'in 1..1000'),
      ridge=(0 <= self.ridge < np.inf, 'at least 0 and finite'),
      step_size=(0 < self.step_size < np.inf, 'positive and finite'),
      noise_steps=(self.noise_steps >= 1, 'at least 1'),
      count_scale=(0 < self.count_scale < np.inf, 'positive and finite'),
      prior_variance=(0 < self.prior_variance < np.inf, 'positive and finite'),
      shift=(0 <= self.shift <= normal.PRODUCT_BITS, 'in 0..18'),
      bias_ridge=(0 < self.bias_ridge < np.inf, 'positive and finite'),
      vector_ridge=(0 < self.vector_ridge < np.inf, 'positive and finite'),
    )
    if self.objective == 'hua' and self.relation != 'replace':
      raise ValueError(
        "Hua et al. claim nothing for relation='add_remove'; use "
        "relation='replace' or objective='zhang'"
      )

  @property
  def center(self) -> float:
    """What labels are counted from (sound): the middle of the scale."""
    return sum(self.scale) / 2

  @property
  def label_bound(self) -> float:
    return (self.scale[1] - self.scale[0]) / 2


# Both stages as published, for `ObjectivePMFConfig(**PAPER, ...)`.
PAPER: dict[str, Any] = {'variant': 'paper', 'relation': 'add_remove'}


def paper_noise_scale(config: ObjectivePMFConfig) -> float:
  """b of the noise's density ~ exp(-||eta|| / b), as published."""
  return accounting.claimed_objective_scale(
    config.objective,
    config.epsilon,
    relation=config.relation,
    scale=config.scale,
  )


def sensitivity(config: ObjectivePMFConfig, rank: int) -> float:
  """How far one rating moves (count_scale * A, b) of its item, in L2 norm.

  With 'replace' only b moves, as who rated what is public, and so are the
  features.
  """
  bounds = normal.sensitivities(
    rank=rank,
    clip_norm=1.0,
    label_bound=config.label_bound,
    matrix_scale=config.count_scale,
    shift=config.shift,
  )
  return bounds.relabeled if config.relation == 'replace' else bounds.pair


def noise_scale(config: ObjectivePMFConfig, rank: int) -> float:
  """b of the L2-Laplace noise of the sound variant."""
  # Rounded up by far more than float32 needs.
  return sensitivity(config, rank) / config.epsilon * (1 + 1e-6)


def dimension(config: ObjectivePMFConfig, rank: int) -> int:
  """How many numbers of an item get noise together."""
  if config.relation == 'replace':
    return rank
  return rank * (rank + 1) // 2 + rank


ADVERSARY = (
  'anyone who sees what is released and knows every other rating, the id '
  'lists, the user features, the code and its settings, but not the random key'
)
ASSUMPTIONS = (
  'The rating scale, the user features and all settings are public and were '
  'not chosen by looking at the ratings.',
  'The lists of user and item ids are public; where they were taken from the '
  'ratings file, so is the fact that each of them has at least one rating.',
  'A rating is what is left of a (user, item) pair once duplicates are '
  'resolved.',
  'This covers one release. Every further release computed from the same '
  'ratings adds to the loss, also that of a run thrown away after its '
  'accuracy was seen.',
  'The random generator (Threefry, 64-bit key) is as good as random. Sums of '
  'ratings are exact, and noise is rounded to their lattice and dithered, but '
  'it is made of Gaussians evaluated in float32 from 64 random bits that end '
  'at 9.5 standard deviations: with a chance below 1e-14 for one item nothing '
  'is promised. Timing and memory are not covered.',
  'Several ratings of one user together are protected less than one alone.',
)
CLAIM = (
  'This is what the paper claims, not what is true: user factors are trained '
  'on the same ratings and taken as constants, the minimum is not reached, and '
  'the second stage starts from item factors that were trained without noise.',
)


def guarantee(config: ObjectivePMFConfig, rank: int) -> Guarantee:
  """What is stated of a release with features of that rank."""
  common: dict[str, Any] = {'unit': 'rating', 'relation': config.relation}
  if config.variant == 'paper':
    return Guarantee(
      status='claimed',
      adversary='not stated in the paper; taken to be a reader of the item '
      'factors',
      released=('item factors',),
      secret=('ratings', 'user factors', 'random key'),
      assumptions=CLAIM,
      mechanism=f'{config.pmf_steps} steps of plain PMF, then '
      f'{config.noise_steps} steps on an objective with L2-Laplace noise of '
      f'scale {paper_noise_scale(config):.6g}, drawn {config.noise}',
      event=accounting.ClaimedPure(config.epsilon),
      **common,
    )
  extra = ()
  if config.relation == 'replace':
    extra = ('Which user rated which item is public.',)
  moved = 'b' if config.relation == 'replace' else '(count_scale A, b)'
  return Guarantee(
    status='proved',
    adversary=ADVERSARY,
    released=('item factors', 'offset', 'id lists'),
    secret=('ratings', 'user factors', 'random key'),
    assumptions=ASSUMPTIONS + extra,
    mechanism=f'for each item one release of {moved}, of its normal equations '
    'against public user features, with L2-Laplace noise of scale '
    f'{noise_scale(config, rank):.6g} in {dimension(config, rank)} dimensions; '
    f'one rating moves {moved} of one item by at most '
    f'{sensitivity(config, rank):.6g} in L2 norm',
    event=accounting.L2Laplace(
      noise_scale(config, rank) / sensitivity(config, rank),
      1,
      dimension(config, rank),
    ),
    **common,
  )
