"""The settings of noisy power MF, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.events import checked_count
from dpmf_jax.accounting.rounding import PRODUCT_BITS
from dpmf_jax.accounting.sensitivity import ROUNDED_UP, equation_sensitivities
from dpmf_jax.plans import assumptions
from dpmf_jax.plans.settings import (
  check_least_delta,
  check_most_epsilon,
  require,
  scale_check,
)
from dpmf_jax.types import Guarantee, Relation, Tails

MOST_ROUNDS = 32
MOST_RANK = 64
LABEL_BOUND = 2.0  # half the scale's width, in units


@dataclass(frozen=True, kw_only=True)
class PowerMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  `choice.choice` has a rule for `rank` and `rounds`. A quarter of the width of
  the scale is called a unit; noise and sensitivities are in units.

  Attributes:
    relation: 'add_remove' only: one rating is there or not.
    scale: (lowest, highest) possible rating.
    epsilon: of the overall guarantee, to which noise is calibrated.
    delta: of the overall guarantee. With rank 0 it pays for the ends of the
      noise alone, and 0 is as much as they cost.
    rank: number of factors; 0 releases item means alone, with L2-Laplace
      noise.
    rounds: how often both sides' factors are asked for.
    mean_share, bias_share: parts of the squared privacy loss that are spent
      on counts and sums of items and of users. The factors share the rest.
    growth: how much more than the first the last release of factors gets;
      those between grow evenly.
    first_weight, last_weight: besides, for the first and the last one.
    count_scale: weight of a count against a sum, in units, in what is noised.
    residual_bound: residuals are clipped to +- this many units.
    full_rounds, relaxation: after so many rounds new factors are mixed with
      the old ones, with this weight.
    user_quantile, item_quantile: of the norms of rows, above which they are
      shortened.
    gauge_power: 1/2 gives all directions the same weight in sums, 0 leaves
      them as they are.
    error_variance: of a rating, in units; more shrinks more.
    bias_ridge, slope_ridge, vector_ridge: of what each user fits to their own
      ratings: a bias, a slope on item means, a vector.
    shift: bits dropped from exact counts and sums; more for more users.
    lattice_bits: sums of factors are rounded to 2^-this of their largest
      term, for at most 2^(30 - this) users and items.
  """

  relation: Relation
  scale: tuple[float, float]
  epsilon: float
  delta: float
  rank: int = 6
  rounds: int = 8
  mean_share: float = 0.2
  bias_share: float = 0.05
  growth: float = 2.0
  first_weight: float = 0.5
  last_weight: float = 2.0
  count_scale: float = 1.0
  residual_bound: float = 0.6
  full_rounds: int = 2
  relaxation: float = 0.5
  user_quantile: float = 0.6
  item_quantile: float = 0.2
  gauge_power: float = 0.35
  error_variance: float = 0.8
  bias_ridge: float = 5.0
  slope_ridge: float = 4.0
  vector_ridge: float = 1.5
  shift: int = 6
  lattice_bits: int = 10

  def __post_init__(self):
    for field in ('rank', 'rounds', 'full_rounds', 'shift', 'lattice_bits'):
      checked_count(field, getattr(self, field))
    positive = (
      'epsilon',
      'growth',
      'first_weight',
      'last_weight',
      'count_scale',
      'residual_bound',
      'error_variance',
      'bias_ridge',
      'slope_ridge',
      'vector_ridge',
    )
    require(
      self,
      relation=(self.relation == 'add_remove', "'add_remove'"),
      scale=scale_check(self.scale),
      delta=(0 <= self.delta <= 0.25, 'in [0, 1/4]'),
      rank=(0 <= self.rank <= MOST_RANK, f'in 0..{MOST_RANK}'),
      rounds=(1 <= self.rounds <= MOST_ROUNDS, f'in 1..{MOST_ROUNDS}'),
      mean_share=(0 < self.mean_share < 1, 'in (0, 1)'),
      bias_share=(
        0 < self.bias_share < 1 - self.mean_share,
        'in (0, 1 - mean_share)',
      ),
      relaxation=(0 < self.relaxation <= 1, 'in (0, 1]'),
      full_rounds=(self.full_rounds >= 1, 'at least 1'),
      user_quantile=(0 <= self.user_quantile <= 1, 'in [0, 1]'),
      item_quantile=(0 <= self.item_quantile <= 1, 'in [0, 1]'),
      gauge_power=(0 <= self.gauge_power <= 0.5, 'in [0, 1/2]'),
      shift=(0 <= self.shift <= PRODUCT_BITS, 'in 0..18'),
      lattice_bits=(4 <= self.lattice_bits <= 18, 'in 4..18'),
      **{
        field: (0 < getattr(self, field) < np.inf, 'positive and finite')
        for field in positive
      },
    )
    self._check_arithmetic()
    if self.rank and not self.delta > 0:
      raise ValueError('delta=0 needs rank=0: Gaussian noise has no pure form')
    if not self.rank:
      check_most_epsilon(self, tails.most_l2_laplace_epsilon(2))
      check_least_delta(self, tails.l2_laplace_uncovered(self.epsilon, 2))
    event(self)  # raises for so little noise that the end of its tails tells

  def _check_arithmetic(self):
    """Refuses scales that float32 cannot tell apart well enough."""
    low, high = self.scale
    if max(abs(low), abs(high)) > 64 * (high - low):
      raise ValueError(
        f'scale={self.scale!r} is too far from 0 for float32: shift the ratings'
      )
    if not 1e-3 <= self.residual_bound <= 16:
      raise ValueError(
        f'residual_bound={self.residual_bound!r} must be in [1e-3, 16] units'
      )

  @property
  def unit(self) -> float:
    """A quarter of the scale's width."""
    return (self.scale[1] - self.scale[0]) / 4

  @property
  def steps(self) -> int:
    return 2 + 2 * self.rounds if self.rank else 1


def shares(config: PowerMFConfig) -> tuple[float, ...]:
  """Parts of the squared privacy loss, one for each step; their sum is 1."""
  if not config.rank:
    return (1.0,)
  weight = np.geomspace(1.0, config.growth, 2 * config.rounds)
  weight[0] *= config.first_weight
  weight[-1] *= config.last_weight
  left = 1 - config.mean_share - config.bias_share
  weight = weight / weight.sum() * left
  return (config.mean_share, config.bias_share, *(float(w) for w in weight))


def event(config: PowerMFConfig) -> accounting.Gaussian | accounting.L2Laplace:
  """What all steps together spend, for the accountant."""
  if not config.rank:
    scale = noise_scales(config)[0]
    ends = tails.l2_laplace_uncovered(config.epsilon, 2)
    return accounting.L2Laplace(scale / pair_sensitivity(config), 1, 2, ends)
  # A rating moves a count and a sum on either side, and a row in each of the
  # releases of factors. The step with the largest share has the least noise.
  draws, most = 4 + 2 * config.rounds * config.rank, max(shares(config))
  return accounting.drawn_gaussian(
    lambda multiplier: tails.uncovered(multiplier / most**0.5, draws),
    delta=config.delta,
    epsilon=config.epsilon,
  )


def multipliers(config: PowerMFConfig) -> tuple[float, ...]:
  """Noise over sensitivity of each step; rank > 0.

  Privacy: with m that of `event`, the sum of 1/m_s^2 is less than 1/m^2.
  """
  total = cast(accounting.Gaussian, event(config)).noise_multiplier
  more = total * ROUNDED_UP
  return tuple(more / share**0.5 for share in shares(config))


def pair_sensitivity(config: PowerMFConfig) -> float:
  """How far one rating moves (count_scale * count, sum) of its row, in L2."""
  return equation_sensitivities(
    rank=1,
    clip_norm=1.0,
    label_bound=LABEL_BOUND,
    matrix_scale=config.count_scale,
    shift=config.shift,
  ).pair


def row_sensitivity(config: PowerMFConfig) -> float:
  """How far one rating moves its row's sum of residuals times factors."""
  return accounting.rating_gradient_sensitivity(
    relation='add_remove',
    rating_range=2 * LABEL_BOUND,
    clip_norm=1.0,
    residual_bound=config.residual_bound,
    rank=config.rank,
    lattice_bits=config.lattice_bits,
  )


def lattice_unit(config: PowerMFConfig) -> float:
  """What sums of residuals times factors are rounded to."""
  return accounting.lattice_unit(
    config.residual_bound, 1.0, config.lattice_bits
  )


def noise_scales(config: PowerMFConfig) -> tuple[float, ...]:
  """Of each step: standard deviation, or b of L2-Laplace noise at rank 0."""
  pair = pair_sensitivity(config)
  if not config.rank:
    return (pair / config.epsilon * ROUNDED_UP,)
  first, second, *rest = multipliers(config)
  row = row_sensitivity(config)
  return (first * pair, second * pair, *(each * row for each in rest))


def _tails(config: PowerMFConfig) -> Tails:
  """Of rank > 0: a count and a sum of a row, or the row of factors."""
  draws = max(2, config.rank)
  return Tails(min(multipliers(config)), draws, config.steps)


_ADVERSARY = (
  'anyone who sees what is released and knows every other rating, the id '
  'lists, the code and its settings, but not the random key; a user who also '
  'sees their own predictions is covered for the ratings of all others'
)
_ASSUMPTIONS = (
  'The rating scale and all settings, the rank and the number of rounds among '
  'them, are public and were not chosen by looking at the ratings.',
  assumptions.PUBLIC_IDS,
  assumptions.ONE_OF_DUPLICATES,
  assumptions.ONE_RELEASE,
  assumptions.SAME_FLOATS,
  'Each user fits a bias, a slope and a vector to their own ratings and keeps '
  'them: they are not covered.',
  'The random generator (Threefry, 64-bit key) is as good as random. Sums of '
  'ratings are exact, and noise is rounded to their lattice and dithered, but '
  'it is evaluated in float32 from 64 random bits and ends at 9.5 standard '
  'deviations; delta pays for the end of the tails. Timing and memory are not '
  'covered.',
  assumptions.ONE_RATING,
)


def guarantee(config: PowerMFConfig) -> Guarantee:
  scales, pair = noise_scales(config), pair_sensitivity(config)
  if config.rank:
    mechanism = (
      'in units of a quarter of the scale: counts and sums of items, then of '
      'users, with Gaussian noise of '
      f'standard deviation {scales[0]:.6g} and {scales[1]:.6g} (one rating '
      f'moves them by at most {pair:.6g} in L2 norm), then {config.rounds} '
      'rounds of sums of clipped residuals times factors, of users and of '
      f'items, with {scales[2]:.6g} to {scales[-1]:.6g} (one rating moves them '
      f'by at most {row_sensitivity(config):.6g})'
    )
  else:
    mechanism = (
      'in units of a quarter of the scale: for each item one release of '
      '(count_scale count, sum) with L2-Laplace noise of scale '
      f'{scales[0]:.6g} in 2 dimensions; one rating moves it by at most '
      f'{pair:.6g} in L2 norm'
    )
  return Guarantee(
    status='proved',
    unit='rating',
    relation='add_remove',
    adversary=_ADVERSARY,
    released=('item factors', 'offset', 'id lists'),
    secret=('ratings', 'user factors', 'random key'),
    assumptions=_ASSUMPTIONS,
    mechanism=mechanism,
    event=event(config),
    tails=_tails(config) if config.rank else None,
  )
