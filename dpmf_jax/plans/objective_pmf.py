"""The settings of objective perturbation, and what they are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.events import checked_count
from dpmf_jax.accounting.rounding import HUBER_BITS, HUBER_ERROR, PRODUCT_BITS
from dpmf_jax.accounting.sensitivity import ROUNDED_UP, equation_sensitivities
from dpmf_jax.plans import assumptions
from dpmf_jax.plans.settings import (
  check_least_delta,
  check_most_epsilon,
  relation_check,
  require,
  scale_check,
  variant_check,
)
from dpmf_jax.types import Guarantee, Relation


@dataclass(frozen=True, kw_only=True)
class ObjectivePMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: 'paper' (both stages as published, with the claimed epsilon) or
      'sound' (exact solution against public user features, proved).
    relation: 'replace' or 'add_remove'. Hua et al. have only 'replace'.
    scale: (lowest, highest) possible rating.
    epsilon: of the whole release; pure, unless features are learned.
    delta: at which the certificate states epsilon; it pays for the ends of
      the noise alone, unless features are learned, and 0 is as much as they
      cost.
    objective: 'zhang' or 'hua' (paper): whose objective and noise.
    noise: 'once' or 'every_step' (paper): Alg. 2 draws anew in every step,
      its theorem is about noise that is drawn once.
    rank, ridge, step_size, pmf_steps, noise_steps: d, lambda, gamma, k1 and
      k2 (paper). The step is gamma over the number of ratings, on sums.
    feature_share: part of epsilon that is spent on learning user features of
      that rank from the ratings, by sound `gaussian_mf` at `delta`; 0 takes
      the features as they are given (sound, 'squared').
    feature_steps: how many steps learn them.
    loss: 'squared' or 'huber' (sound). 'squared' is solved from noisy normal
      equations. 'huber' is objective perturbation for 'add_remove': its
      minimum, one number per item, is found to within a bound that holds for
      all ratings, and noise covers the rest.
    residual_bound: where the Huber loss becomes linear (sound, 'huber'); None
      is an eighth of the scale's width.
    count_scale: weight of the matrix A against the vector b in what is noised
      (sound, 'squared', 'add_remove').
    prior_variance: of an item's vector around the common one (sound,
      'squared').
    shift: bits dropped from exact sums (sound, 'squared'); more for more
      users.
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
  loss: Literal['squared', 'huber'] = 'squared'
  residual_bound: float | None = None
  feature_share: float = 0.0
  feature_steps: int = 60
  count_scale: float = 1.0
  prior_variance: float = 0.35
  shift: int = 6
  bias_ridge: float = 5.0
  vector_ridge: float = 8.0

  def __post_init__(self):
    for field in ('rank', 'pmf_steps', 'noise_steps', 'feature_steps', 'shift'):
      checked_count(field, getattr(self, field))
    require(
      self,
      variant=variant_check(self.variant),
      relation=relation_check(self.relation),
      scale=scale_check(self.scale),
      epsilon=(0 < self.epsilon < np.inf, 'positive and finite'),
      delta=(0 <= self.delta < 1, 'in [0, 1)'),
      objective=(self.objective in ('zhang', 'hua'), "'zhang' or 'hua'"),
      noise=(self.noise in ('once', 'every_step'), "'once' or 'every_step'"),
      rank=(1 <= self.rank <= 1_000, 'in 1..1000'),
      ridge=(0 <= self.ridge < np.inf, 'at least 0 and finite'),
      step_size=(0 < self.step_size < np.inf, 'positive and finite'),
      noise_steps=(self.noise_steps >= 1, 'at least 1'),
      loss=(self.loss in ('squared', 'huber'), "'squared' or 'huber'"),
      residual_bound=(
        0 < self.knee <= 2 * self.label_bound,
        'positive and at most the width of the scale',
      ),
      feature_share=(0 <= self.feature_share < 1, 'in [0, 1)'),
      count_scale=(0 < self.count_scale < np.inf, 'positive and finite'),
      prior_variance=(0 < self.prior_variance < np.inf, 'positive and finite'),
      shift=(0 <= self.shift <= PRODUCT_BITS, 'in 0..18'),
      bias_ridge=(0 < self.bias_ridge < np.inf, 'positive and finite'),
      vector_ridge=(0 < self.vector_ridge < np.inf, 'positive and finite'),
    )
    if self.variant == 'sound' and self.loss == 'huber':
      check_most_epsilon(self, tails.most_laplace_epsilon())
      check_least_delta(self, tails.laplace_uncovered(self.epsilon))
    if self.objective == 'hua' and self.relation != 'replace':
      raise ValueError(
        "Hua et al. claim nothing for relation='add_remove'; use "
        "relation='replace' or objective='zhang'"
      )
    if self.feature_share and (
      self.variant == 'paper' or self.loss == 'huber' or not self.delta
    ):
      raise ValueError(
        "feature_share is for variant='sound', loss='squared' and delta > 0: "
        'features are learned with Gaussian noise'
      )
    if self.loss == 'huber' and self.relation != 'add_remove':
      raise ValueError(
        "loss='huber' is for relation='add_remove'; where only values change, "
        "loss='squared' needs less noise"
      )

  @property
  def center(self) -> float:
    """What labels are counted from (sound): the middle of the scale."""
    return sum(self.scale) / 2

  @property
  def label_bound(self) -> float:
    return (self.scale[1] - self.scale[0]) / 2

  @property
  def knee(self) -> float:
    """Where the Huber loss becomes linear."""
    if self.residual_bound is None:
      return self.label_bound / 4
    return self.residual_bound


def check_tails(config: ObjectivePMFConfig, rank: int) -> None:
  """Raises ValueError where delta does not pay for ends of noise (sound)."""
  check_most_epsilon(
    config, tails.most_l2_laplace_epsilon(dimension(config, rank))
  )
  check_least_delta(config, uncovered(config, rank))


def uncovered(config: ObjectivePMFConfig, rank: int) -> float:
  """What the ends of the noise of loss='squared' cost, in delta (sound)."""
  return tails.l2_laplace_uncovered(config.epsilon, dimension(config, rank))


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
  bounds = equation_sensitivities(
    rank=rank,
    clip_norm=1.0,
    label_bound=config.label_bound,
    matrix_scale=config.count_scale,
    shift=config.shift,
  )
  return bounds.relabeled if config.relation == 'replace' else bounds.pair


def noise_scale(config: ObjectivePMFConfig, rank: int) -> float:
  """b of the L2-Laplace noise of the sound variant."""
  return sensitivity(config, rank) / config.epsilon * ROUNDED_UP


class Huber(NamedTuple):
  """How the epsilon of loss='huber' is spent.

  Attributes:
    noise: scale of the Laplace noise in the objective.
    ridge: lambda of the objective.
    tolerance: how far from the minimum its search may end.
    cover: scale of the Laplace noise on what the search found.
  """

  noise: float
  ridge: float
  tolerance: float
  cover: float


# The smallest ridge, so that the bound on the search's errors stays small;
# the part of epsilon that is spent on the ridge if it is larger; and the part
# spent on covering the search.
_LEAST_RIDGE, _RIDGE_SHARE, _COVER_SHARE = 0.5, 0.3, 0.02


def huber_parts(config: ObjectivePMFConfig) -> Huber:
  """Noise and ridge of loss='huber', and the epsilon that they give.

  Privacy: see `huber.huber_step`. One rating more or less moves the gradient
  of its item's objective by at most the knee, and its curvature by a
  factor of at most 1 + 1/ridge; what is found is within `tolerance` of the
  minimum for both neighbours.
  """
  epsilon = config.epsilon
  ridge = max(_LEAST_RIDGE, 1 / math.expm1(_RIDGE_SHARE * epsilon))
  bound, label = config.knee, config.label_bound
  cover_epsilon = _COVER_SHARE * epsilon
  noise = bound / (epsilon - cover_epsilon - math.log1p(1 / ridge))
  noise *= ROUNDED_UP
  farthest = label + tails.LAPLACE_END * noise / ridge
  error = HUBER_ERROR * (ridge * farthest + tails.LAPLACE_END * noise)
  error += tails.LAPLACE_ERROR * (1 + tails.LAPLACE_END) * noise
  tolerance = label * 2.0**-HUBER_BITS + error / ridge
  return Huber(
    noise=noise,
    ridge=ridge,
    tolerance=tolerance,
    cover=2 * tolerance / cover_epsilon * ROUNDED_UP,
  )


def dimension(config: ObjectivePMFConfig, rank: int) -> int:
  """How many numbers of an item get noise together."""
  if config.relation == 'replace':
    return rank
  return rank * (rank + 1) // 2 + rank


ADVERSARY = (
  'anyone who sees what is released and knows every other rating, the id '
  'lists, the user features, the code and its settings, but not the random key'
)
_GENERATOR = (
  'The random generator (Threefry, 64-bit key) is as good as random. Sums of '
  'ratings are exact, and '
)
ASSUMPTIONS = (
  assumptions.PUBLIC_FEATURES,
  assumptions.PUBLIC_IDS,
  assumptions.ONE_OF_DUPLICATES,
  assumptions.ONE_RELEASE,
  assumptions.SAME_FLOATS,
  _GENERATOR + 'noise is rounded to their lattice and dithered, but it is made '
  'of Gaussians evaluated in float32 from 64 random bits that end at 9.5 '
  'standard deviations; delta pays for the end of the tails. Timing and memory '
  'are not covered.',
  assumptions.ONE_RATING,
)
# For loss='huber': as above, but for what is said of the noise.
_HUBER_ASSUMPTIONS = tuple(
  text
  if not text.startswith(_GENERATOR)
  else _GENERATOR
  + 'errors of float32 in the noise of the objective and in the '
  'search for its minimum are covered by more noise. What float32 rounds off '
  'of that is taken to be hidden by a dither. A draw is a logarithm of 96 '
  'random bits and ends at 67; delta pays for the end of the tails. Timing and '
  'memory are not covered.'
  for text in ASSUMPTIONS
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
  if config.loss == 'huber':
    parts = huber_parts(config)
    return Guarantee(
      status='proved',
      adversary=ADVERSARY,
      released=('item factors', 'offset', 'id lists'),
      secret=('ratings', 'user factors', 'random key'),
      assumptions=_HUBER_ASSUMPTIONS,
      mechanism='for each item the minimum of a Huber loss (linear beyond '
      f'{config.knee:g}) with ridge {parts.ridge:.6g} and Laplace '
      f'noise of scale {parts.noise:.6g} in the objective, found to within '
      f'{parts.tolerance:.3g}, with Laplace noise of scale {parts.cover:.3g}; '
      'one rating moves the gradient of one item by at most '
      f'{config.knee:g}',
      event=accounting.Pure(
        config.epsilon, 1, tails.laplace_uncovered(config.epsilon)
      ),
      **common,
    )
  extra = ()
  if config.relation == 'replace':
    extra = (assumptions.PUBLIC_PAIRS,)
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
      # Noise over sensitivity is more, by 1e-6, which float32 may use up.
      (1 + 1e-12) / config.epsilon,
      1,
      dimension(config, rank),
      uncovered(config, rank),
    ),
    **common,
  )
