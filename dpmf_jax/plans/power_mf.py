"""The settings of noisy power MF, and what they are worth."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.accounting import geometric, tails
from dpmf_jax.accounting.rounding import PRODUCT_BITS
from dpmf_jax.accounting.sensitivity import ROUNDED_UP, equation_sensitivities
from dpmf_jax.plans import assumptions, user_levels
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec, Start
from dpmf_jax.types import Guarantee, Relation, Tails

MAX_ROUNDS = 32
MAX_RANK = 64
LABEL_BOUND = 2.0  # half the scale's width, in quarters of it

# How much more than the first the last release of factors gets; those between
# grow evenly. The first has FIRST_WEIGHT besides, the last `last_weight`.
GROWTH = 2.0
FIRST_WEIGHT = 0.5
# After so many rounds new factors are mixed with the old ones.
FULL_ROUNDS = 2
# Of the norms of rows: those above it are shortened.
USER_QUANTILE = 0.6
ITEM_QUANTILE = 0.2
# 1/2 gives all directions the same weight in sums, 0 leaves them as they are.
GAUGE_POWER = 0.35
# Of a rating, in squared quarters of the scale; more shrinks more.
ERROR_VARIANCE = 0.8
# Of the slope on item means that each user fits to their own ratings.
SLOPE_RIDGE = 4.0
# Where there are fewer ratings, item means are asked for instead of factors: mu
# N / sqrt(U I), and N / (U + I). A rating's own error is in both of the vectors
# that are to predict it, and with few ratings of a row it is most of them: if
# MovieLens-1M is thinned out to N / (U + I) of 25 and 13, factors lose 0.01 and
# 0.04 at epsilon 20, and on MovieLens-100K, which has 30, they gain 0.02.
MIN_SIGNAL = 27.0
MIN_OWN = 26.0
# Strong taste shows with less. From so many ratings on factors are tried: they
# are made without one of TRIED_PART of all pairs of users and items, and a step
# asks what they say of these.
LEAST_OWN = 5.0
TRIED_PART = 8
# What factors have to explain of a rating by then, in squared quarters.
LEAST_TASTE = 0.0035
# In so many rounds; with fewer what comes after would be too little.
_LEAST_TRIED_ROUNDS = 6
# Part of what levels may spend that goes to products; the rest is for squares.
_PRODUCTS = 2 / 3


@declare.config
class PowerMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  `auto.recommended` has a rule for `rank` and `rounds`. Noise and sensitivities
  are in quarters of the scale's width. With rank 0 delta pays for the ends of
  the noise alone, and 0 is as much as they cost.

  Attributes:
    rank: Number of factors; 0 releases item means alone, with L2-Laplace noise
      (and, with level_share, how biases are shrunk).
    rounds: How often both sides' factors are asked for.
    mean_share: Part of the squared privacy loss spent on item means.
    bias_share: Part of the squared privacy loss spent on user biases; factors
      share what is left.
    last_weight: How much more of it the last release of factors gets.
    count_scale: Weight of a count against a sum, which is in quarters of the
      scale, in what gets noise.
    residual_bound: Residuals are clipped to +- this many quarters of the scale.
    relaxation: Weight of new factors, from the third round on, when they are
      mixed with the old ones.
    caution: Factors are asked for where there are, by noisy counts, this many
      times the ratings that they are thought to need, and more of item means
      elsewhere; in between they are tried on ratings that they were made
      without. With 0 factors are asked for everywhere.
    number_share: Part of epsilon for the number of ratings, which is asked for
      before all else. Where there are fewer than factors are thought to need,
      item means alone are released, with L2-Laplace noise as with rank 0. With
      0 it is not asked for and all noise is Gaussian, of which more runs fit
      into the budget of a ledger.
    level_share: Part of epsilon, where item means alone are released, for how
      much users differ in level, which says how their biases are shrunk. With
      0 it is not asked for.
    shift: Bits dropped from exact counts and sums; more for more users.
    lattice_bits: Sums of factors are rounded to 2^-this of their largest term,
      for at most 2^(30 - this) users and items.
  """

  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.delta(minimum=0, maximum=0.25)
  rank: int = declare.setting(default=6, minimum=0, maximum=MAX_RANK)
  rounds: int = declare.setting(default=8, minimum=1, maximum=MAX_ROUNDS)
  mean_share: float = declare.setting(default=0.2, above=0, below=1)
  bias_share: float = declare.setting(default=0.05, above=0, below=1)
  last_weight: float = declare.setting(default=2.0, above=0)
  count_scale: float = declare.setting(default=1.0, above=0)
  residual_bound: float = declare.setting(default=0.6, minimum=1e-3, maximum=16)
  relaxation: float = declare.setting(default=0.5, above=0, maximum=1)
  caution: float = declare.setting(default=1.0, minimum=0)
  number_share: float = declare.setting(default=0.0, minimum=0, maximum=0.5)
  level_share: float = declare.setting(default=0.0, minimum=0, maximum=0.5)
  bias_ridge: float = declare.own_ridge(default=5.0, what='a bias')
  vector_ridge: float = declare.own_ridge(default=1.5, what='a vector')
  shift: int = declare.setting(default=6, minimum=0, maximum=PRODUCT_BITS)
  lattice_bits: int = declare.setting(default=10, minimum=4, maximum=18)

  def check(self):
    if not self.bias_share < 1 - self.mean_share:
      raise ValueError(
        f'bias_share={self.bias_share!r} must be in (0, 1 - mean_share)'
      )
    declare.check_scale_near_zero(self)
    if self.rank and not self.delta > 0:
      raise ValueError('delta=0 needs rank=0: Gaussian noise has no pure form')
    if self.level_share and self.rank and not self.number_share:
      raise ValueError(
        f'level_share={self.level_share!r} needs rank=0 or a number_share: '
        'levels are asked for where item means are all there is'
      )
    if not self.rank:
      declare.check_max_epsilon(self, tails.max_l2_laplace_epsilon(2))
      declare.check_min_delta(self, _means_ends(self))
    plan(self)  # raises for so little noise that the end of its tails tells

  @property
  def quarter(self) -> float:
    """Of the scale's width."""
    return (self.scale[1] - self.scale[0]) / 4

  @property
  def tried_at(self) -> int:
    """The step that says whether factors help, of all that are for factors.

    In place of one for items, in the middle; 0 where rounds are too few.
    """
    tries = self.rounds >= _LEAST_TRIED_ROUNDS
    return 2 * (self.rounds // 2) + 1 if tries else 0

  @property
  def decides(self) -> bool:
    """Whether the number of ratings decides between factors and means alone."""
    return bool(self.rank and self.number_share)


class _Parts(NamedTuple):
  """What the number of ratings, and then all that it decides on, may spend."""

  number: geometric.Law
  epsilon: float
  delta: float


def _parts(config: PowerMFConfig) -> _Parts:
  # More than 1 would tell nothing more.
  number = geometric.law(min(config.number_share * config.epsilon, 1.0))
  # A bit less, so that sums of floats are no more than what is stated.
  return _Parts(
    number,
    (config.epsilon - number.epsilon) * (1 - 1e-12),
    (config.delta - number.uncovered) * (1 - 1e-12),
  )


class _Levels(NamedTuple):
  """Noise on how users differ in level, and what that spends."""

  product: geometric.Law
  square: geometric.Law
  epsilon: float
  uncovered: float


def level_laws(config: PowerMFConfig) -> _Levels | None:
  """Of the noise on both integers, where users' levels are asked for."""
  if not config.level_share:
    return None
  epsilon = _parts(config).epsilon if config.rank else config.epsilon
  # More than 1 would tell nothing more.
  spent = min(config.level_share * epsilon, 1.0)
  moves = product, square = user_levels.sensitivities()
  each = spent * _PRODUCTS / product, spent * (1 - _PRODUCTS) / square
  if min(each) < geometric.LEAST:
    least = spent * geometric.LEAST / min(each)
    raise ValueError(
      f'level_share={config.level_share!r} of epsilon={epsilon!r} is less than '
      f'{least:.3g}, which has as much noise as there is room for: use a '
      'larger one, or 0'
    )
  laws = geometric.law(each[0]), geometric.law(each[1])
  # A count that moves by several is as one that moves by 1 so many times.
  costs = [
    (moved * law.epsilon, moved * math.exp(moved * law.epsilon) * law.uncovered)
    for moved, law in zip(moves, laws, strict=True)
  ]
  epsilons, ends = zip(*costs, strict=True)
  return _Levels(*laws, sum(epsilons), sum(ends))


def check_levels(config: PowerMFConfig, num_users: int, num_items: int) -> None:
  """Refuses sizes for which integers of users' levels have no room."""
  if not config.level_share:
    return
  for what, number, most in (
    ('users', num_users, user_levels.MAX_USERS),
    ('items', num_items, user_levels.MAX_ITEMS),
  ):
    if number > most:
      raise ValueError(
        f'level_share needs at most {most:,} {what}, for int32, and there are '
        f'{number:,}: set it to 0'
      )


def _shares(config: PowerMFConfig) -> tuple[float, ...]:
  """Parts of the squared privacy loss, one for each step; their sum is 1."""
  weight = np.geomspace(1.0, GROWTH, 2 * config.rounds)
  weight[0] *= FIRST_WEIGHT
  weight[-1] *= config.last_weight
  left = 1 - config.mean_share - config.bias_share
  weight = weight / weight.sum() * left
  return (config.mean_share, config.bias_share, *(float(w) for w in weight))


def _event(config: PowerMFConfig, most: float) -> accounting.Gaussian:
  """What all steps together spend; `most` is the largest share of one."""
  # A rating moves a count and a sum on either side, and a row in each of the
  # releases of factors. The step with the largest share has the least noise.
  draws = 4 + 2 * config.rounds * config.rank
  epsilon, delta, ends = config.epsilon, config.delta, 0.0
  if config.decides:
    _, epsilon, delta = _parts(config)
    # What delta pays for is the worse of the two that are chosen from.
    ends = _means_ends(config)
  return accounting.drawn_gaussian(
    lambda multiplier: max(
      tails.uncovered(multiplier / most**0.5, draws), ends
    ),
    delta=delta,
    epsilon=epsilon,
  )


def _means_epsilon(config: PowerMFConfig) -> float:
  """Of item means alone: no more than L2-Laplace noise can be drawn for.

  It is what users' levels leave, where they are asked for.

  Where these are one of two, its ends cost less than a hundredth of delta, as
  those of the other do.
  """
  levels = level_laws(config)
  asked = levels.epsilon if levels else 0.0
  if not config.rank:
    return (config.epsilon - asked) * (1 - 1e-12 if levels else 1)
  _, epsilon, delta = _parts(config)
  epsilon = (epsilon - asked) * (1 - 1e-12)
  lost = min(delta / 200, tails.UNCOVERED)
  most = min(epsilon, tails.max_l2_laplace_epsilon(2, lost))
  if not most > 0:
    raise ValueError(
      f'delta={config.delta!r} is too small for item means, which number_share='
      f'{config.number_share!r} may choose: use a larger one, or 0'
    )
  return most


def _means_ends(config: PowerMFConfig) -> float:
  """What the ends of the noise of item means alone, and of levels, cost."""
  levels = level_laws(config)
  ends = tails.l2_laplace_uncovered(_means_epsilon(config), 2)
  return ends + (levels.uncovered if levels else 0.0)


def loss(config: PowerMFConfig) -> float:
  """mu of all steps with Gaussian noise, or epsilon where there are none."""
  if not config.rank:
    return config.epsilon
  return 1 / _event(config, max(_shares(config))).noise_multiplier


def needed_ratings(
  config: PowerMFConfig, num_users: int, num_items: int
) -> float:
  """With fewer item means are all that is asked for, if they are counted.

  Users and items with a few ratings each are worth no factors, nor are tables
  whose singular values noise hides: means then are best off with all of a pure
  epsilon, whose noise is less than half.

  Privacy: of settings and of the lengths of the lists of users and items.
  """
  of_rows, of_cells = _needed(config)
  cells = num_users * num_items
  return max(of_rows * (num_users + num_items), of_cells * cells**0.5)


def _needed(config: PowerMFConfig) -> tuple[float, float]:
  """For each user and item, and for the square root of the number of cells."""
  of_cells = MIN_SIGNAL / loss(config)
  own = LEAST_OWN if config.tried_at else MIN_OWN
  return config.caution * own, config.caution * of_cells


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


def lattice_spacing(config: PowerMFConfig) -> float:
  """What sums of residuals times factors are rounded to."""
  return accounting.lattice_spacing(
    config.residual_bound, 1.0, config.lattice_bits
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
  'deviations; delta pays for the end of the tails. The noise of the number of '
  "ratings and of users' levels, where these are asked for, is of integers "
  "throughout; a user's part in levels is computed in float32 and rounded to "
  'an integer. Timing and memory are not covered.',
  assumptions.ONE_RATING,
)


@functools.lru_cache
def plan(config: PowerMFConfig) -> Plan:
  """Noise of each step, on counts and sums and then on factors' sums.

  It has these standard deviations, or this b of L2-Laplace noise at rank 0; for
  integers, the number of ratings and users' levels, it is 1 / epsilon.
  """
  if not config.rank:
    return _means_plan(config)
  return _decided_plan(config) if config.decides else _factors_plan(config)


def _means_plan(config: PowerMFConfig) -> Plan:
  pair, epsilon = pair_sensitivity(config), _means_epsilon(config)
  scale = pair / epsilon * ROUNDED_UP
  ends = tails.l2_laplace_uncovered(epsilon, 2)
  means = Plan(
    guarantee=_guarantee(
      event=accounting.L2Laplace(scale / pair, 1, 2, ends),
      mechanism='in units of a quarter of the scale: for each item one release '
      'of (count_scale count, sum) with L2-Laplace noise of scale '
      f'{scale:.6g} in 2 dimensions; one rating moves it by at most '
      f'{pair:.6g} in L2 norm',
    ),
    steps=1,
    noise={'counts and sums': (scale,), 'factors': ()},
    sensitivity={'counts and sums': pair},
  )
  levels = level_laws(config)
  return _with_levels(means, levels) if levels else means


def _with_levels(means: Plan, levels: _Levels) -> Plan:
  """Item means, and then how users differ in level.

  Privacy: what means leave of ratings is a function of a rating and of noisy
  sums; given these, one rating moves two integers by what
  `user_levels.sensitivities` says.
  """
  moved, laws = user_levels.sensitivities(), (levels.product, levels.square)
  names = 'products of a user', 'squares of a user'
  spent = accounting.Pure(levels.epsilon, 1, levels.uncovered)
  stated = means.guarantee
  assert stated.event is not None
  return dataclasses.replace(
    means,
    guarantee=dataclasses.replace(
      stated,
      event=accounting.compose(stated.event, spent),
      mechanism=f'{stated.mechanism}; then two integers, sums over users of '
      'products of two and of squares of what means leave of their ratings, '
      f'in steps of 1/{user_levels.STEPS} and at most {user_levels.BOUND} of '
      f'these, as of {user_levels.RATINGS} ratings at most, with the '
      'difference of two geometric '
      f'numbers, which are {levels.epsilon:.6g}-DP together but for a delta of '
      f'{levels.uncovered:.2g}; one rating moves them by at most {moved[0]} '
      f'and {moved[1]}',
    ),
    steps=means.steps + 1,
    noise={
      **means.noise,
      **{
        name: (1 / law.epsilon,) for name, law in zip(names, laws, strict=True)
      },
    },
    sensitivity={
      **means.sensitivity,
      **dict(zip(names, map(float, moved), strict=True)),
    },
  )


def _factors_plan(config: PowerMFConfig) -> Plan:
  """Privacy: with m the event's, the sum of 1/m_s^2 is less than 1/m^2."""
  shares, steps = _shares(config), 2 + 2 * config.rounds
  event = _event(config, max(shares))
  more = event.noise_multiplier * ROUNDED_UP
  multipliers = [more / share**0.5 for share in shares]
  pair, row = pair_sensitivity(config), row_sensitivity(config)
  pairs = tuple(each * pair for each in multipliers[:2])
  rows = tuple(each * row for each in multipliers[2:])
  return Plan(
    guarantee=_guarantee(
      event=event,
      mechanism='in units of a quarter of the scale: counts and sums of items, '
      'then of users, with Gaussian noise of '
      f'standard deviation {pairs[0]:.6g} and {pairs[1]:.6g} (one rating '
      f'moves them by at most {pair:.6g} in L2 norm), then {config.rounds} '
      'rounds of sums of clipped residuals times factors, of users and of '
      'items (over a fixed part of all pairs of a user and an item, where '
      'they are tried), or, where what is released says that factors are not '
      'worth it, of counts and clipped residuals of items, with '
      f'{rows[0]:.6g} to {rows[-1]:.6g} (one rating moves them by at most '
      f'{row:.6g})',
      # A count and a sum of a row, or the row of factors.
      tails=Tails(min(multipliers), max(2, config.rank), steps),
    ),
    steps=steps,
    noise={'counts and sums': pairs, 'factors': rows},
    sensitivity={'counts and sums': pair, 'factors': row},
    shares=shares,
    first_round=2,
    round_steps=2,
  )


def _decided_plan(config: PowerMFConfig) -> Plan:
  """Factors, or means alone, as the noisy number of ratings says.

  Privacy: an integer that a rating moves by 1 has noise of `geometric.law`.
  Given it, all that follows is one of the two, both calibrated to what it
  leaves of epsilon and delta: `accounting.Either`.
  """
  number, factors = _parts(config).number, _factors_plan(config)
  means = _means_plan(config)
  events = factors.guarantee.event, means.guarantee.event
  of_rows, of_cells = _needed(config)
  return dataclasses.replace(
    factors,
    guarantee=dataclasses.replace(
      factors.guarantee,
      event=accounting.compose(
        accounting.Pure(number.epsilon, 1, number.uncovered),
        accounting.Either(tuple(event for event in events if event)),
      ),
      mechanism='the number of ratings with the difference of two geometric '
      f'numbers, which is {number.epsilon:.6g}-DP but for a delta of '
      f'{number.uncovered:.2g}; where that is at least {of_rows:g} for each '
      f'user and item and {of_cells:.6g} times the square root of the number '
      'of pairs of a user and an item, '
      f'{factors.guarantee.mechanism}; and where it is not, in place of all '
      f'this, {means.guarantee.mechanism}',
    ),
    steps=factors.steps + 1,
    noise={
      **means.noise,
      **factors.noise,
      'number of ratings': (1 / number.epsilon,),
      'counts and sums alone': means.noise['counts and sums'],
    },
    sensitivity={
      **means.sensitivity,
      **factors.sensitivity,
      'number of ratings': 1.0,
      'counts and sums alone': means.sensitivity['counts and sums'],
    },
    shares=None,
    first_round=factors.first_round + 1,
  )


def number_law(config: PowerMFConfig) -> geometric.Law:
  """Of the noise on the number of ratings, where it is asked for."""
  return _parts(config).number


def _guarantee(**stated: Any) -> Guarantee:
  return Guarantee(
    status='proved',
    unit='rating',
    relation='add_remove',
    adversary=assumptions.RATING_ADVERSARY,
    released=(
      'item factors',
      'offset',
      'noisy counts of items',
      "ridges of users' fits",
      'id lists',
    ),
    secret=('ratings', 'user factors', 'random key'),
    assumptions=_ASSUMPTIONS,
    **stated,
  )


_CASE = {'scale': (1.0, 5.0), 'delta': 1e-5, 'relation': 'add_remove'}
# Little for means and biases, and much for the last release.
_LITTLE = {'mean_share': 0.02, 'bias_share': 0.02, 'last_weight': 10.0}
_CASES: tuple[tuple[dict[str, Any], Start], ...] = (
  ({'epsilon': 1.0, 'rank': 0}, 'known'),
  ({'epsilon': 4.0, 'rank': 0}, 'known'),
  # Nearly all for the item means; and a first or a last release of factors that
  # has as much as it can get.
  ({'epsilon': 4.0, 'rank': 1, 'rounds': 1, 'mean_share': 0.9}, 'known'),
  (
    {'epsilon': 4.0, 'rank': 1, 'rounds': 1, 'caution': 0.0, **_LITTLE},
    'aligned',
  ),
  ({'epsilon': 1.0, 'rank': 2, 'rounds': 2, 'caution': 0.0}, 'random'),
  # Users' levels, which the attacker sees as they are released: what is made of
  # them is a ridge, of which no other case tells.
  ({'epsilon': 4.0, 'rank': 0, 'level_share': 0.5}, 'known'),
  # A few ratings are too few: means alone, after the number of ratings.
  ({'epsilon': 4.0, 'rank': 1, 'rounds': 1, 'number_share': 0.1}, 'known'),
)

SPEC = Spec(
  name='power_mf',
  help='Item means and factors by noisy rounds of both sides, shrunk by the '
  'known noise.',
  config=PowerMFConfig,
  plan=plan,
  variants={'sound': {'relation': 'add_remove'}},
  cases={
    'sound': tuple(
      Case(
        {**_CASE, **settings},
        start,
        view='levels' if 'level_share' in settings else None,
      )
      for settings, start in _CASES
    )
  },
)
