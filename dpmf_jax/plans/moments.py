"""The settings of second moments, and what they are worth."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.rounding import (
  LABEL_BITS,
  MAX_STD,
  smallest_spacing,
)
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.plans import assumptions, user_levels
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Relation, Tails, Unit

STEPS = 2
# The second step draws noise so often, for as many answers that are averaged:
# less of the loss in each, so that the ends of the noise cost less.
ANSWERS = 4
# By rating, where ratings are asked for as they are, the last answer is instead
# how users differ in level.
RATING_ANSWERS = ANSWERS - 1
# A user, or one rating, moves I (I + 1) sums at most, in the second step.
MAX_ITEMS = 1_000
MAX_DRAWS = MAX_ITEMS * (MAX_ITEMS + 1)
# Ratings are a table of so many cells at most: for memory, and by rating for
# what is cut off products, and for sums of labels in int32.
MAX_CELLS: dict[Unit, int] = {'user': 2**28, 'rating': 2**25}
_LEAST_ITEMS = 32
# By rating, labels and what is left of them for means are at most half the
# width of the scale, in 2^-LABEL_BITS of it.
_HALF = 2 ** (LABEL_BITS - 1)
# So many times `bias_ridge` is in what users send, and in what they fit at
# home. By rating, the larger the former, the less a rating moves the user's
# others.
_RIDGES: dict[Unit, tuple[float, float]] = {
  'user': (1.0, 2.5),
  'rating': (5.0, 2.5),
}
# By rating, what cuts to the lattice and float32 add to the move of the second
# sums, over the largest term.
_CUTS, _FLOATS = 1 / 8, 1e-3


@declare.config
class MomentsConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    unit: What is protected. user: all ratings of a user, together. rating: one
      rating, its value and that it is there.
    rank: Number of factors at most, and never more than there are items; those
      that do not stand out of the noise are zero.
    means_share: Part of the squared privacy loss spent on items' means; the
      rest is for how items go together.
    count_scale: What a rating counts in the first sums, beside its residual, in
      widths of the scale.
    count_weight: Weight of how often items are rated together against how
      alike.
    bias_ridge: Ridge of users' biases in what they send, and by rating 5 times
      that; what it is at home is found in sums, by rating around 2.5 times.
    clip: By rating: residuals are clipped to this in products, in widths of the
      scale.
    pairs_from: By rating: how much more than is worth it noisy counts have to
      promise of pairs of items; where they do not, means are asked for, and
      how users differ in level.
      0 always asks for pairs.
  """

  unit: Unit = declare.setting()
  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.delta(above=0, maximum=0.25)
  rank: int = declare.setting(default=64, minimum=1, maximum=128)
  means_share: float = declare.setting(default=0.2, above=0, below=1)
  count_scale: float = declare.setting(default=0.1, minimum=0.002, maximum=1)
  count_weight: float = declare.setting(default=0.16, minimum=1e-3, maximum=1e3)
  bias_ridge: float = declare.setting(default=2.0, minimum=1e-3, maximum=1e6)
  clip: float = declare.setting(default=0.35, minimum=0.02, maximum=0.5)
  pairs_from: float = declare.setting(default=1.0, minimum=0, maximum=1e6)

  def check(self):
    declare.check_scale_near_zero(self)
    plan(self)  # raises for an epsilon that no noise gives

  @property
  def sent_ridge(self) -> float:
    """Of users' biases, in what they send."""
    return self.bias_ridge * _RIDGES[self.unit][0]

  @property
  def home_ridge(self) -> float:
    """Of users' biases, in what they fit at home."""
    return self.bias_ridge * _RIDGES[self.unit][1]

  @property
  def width(self) -> float:
    """Of the scale."""
    return self.scale[1] - self.scale[0]

  @property
  def quarter(self) -> float:
    """Of the scale's width."""
    return self.width / 4

  @property
  def center(self) -> float:
    """What ratings are counted from."""
    return self.scale[0] + self.width / 2


def check_size(unit: Unit, num_users: int, num_items: int) -> None:
  """Refuses more items than are paid for, and tables that are too large."""
  if num_items > MAX_ITEMS:
    raise ValueError(
      f'num_items={num_items} must be at most {MAX_ITEMS} for system=moments, '
      'which has a sum for each pair of items; use dpals'
    )
  most, wide = MAX_CELLS[unit], num_items
  if unit == 'rating':
    wide = max(num_items + 1, _LEAST_ITEMS)
  if num_users * wide > most:
    raise ValueError(
      f'num_users={num_users} times num_items={num_items} must be at most '
      f'{most // wide * num_items} for system=moments with unit={unit!r}, '
      f'which makes a table of them; use '
      f'{"dpals" if unit == "user" else "power_mf"}'
    )


def runs(
  unit: Unit,
  num_users: int,
  num_items: int,
  epsilon: float,
  delta: float,
  **settings: Any,
) -> bool:
  """Whether there is noise for that, with other settings by default."""
  try:
    config = MomentsConfig(
      unit=unit, relation='add_remove', scale=(0.0, 1.0), epsilon=epsilon,
      delta=delta, **settings,
    )  # fmt: skip
    lattice_spacings(config, num_users, num_items)
  except ValueError:
    return False
  return True


def counted(config: MomentsConfig) -> int:
  """`count_scale` in the units of residuals."""
  return round(config.count_scale * 2**LABEL_BITS)


class Bounds(NamedTuple):
  """Largest sizes, in 2^-LABEL_BITS of the scale."""

  label: int
  means: int  # residuals in the first sums
  moments: int  # residuals in the second sums


def bounds(config: MomentsConfig) -> Bounds:
  """What labels and residuals are clipped to.

  By user a residual is a label less a bias that is no larger.
  """
  if config.unit == 'user':
    return Bounds(2**LABEL_BITS, 2 ** (LABEL_BITS + 1), 2 ** (LABEL_BITS + 1))
  return Bounds(_HALF, _HALF, round(config.clip * 2**LABEL_BITS))


def sensitivities(config: MomentsConfig) -> dict[str, float]:
  """How far a unit of privacy moves what a step releases, in L2 norm.

  Privacy: by user, `kernels.moments` keeps their terms below these, in float32:
  the first sums have a norm of at most 1, of the second the residuals' at most
  1 and the counts' at most `count_weight`. By rating, e e^T / ||e|| moves by at
  most sqrt 2 times what e moves by, which is `residual_move`, and so do counts,
  whose row moves by 1. Ratings as they are move by one, and by its count, and
  users' levels by both of their moves (`user_levels.sensitivities`).
  docs/privacy/moments.md has the proof.
  """
  weight = config.count_weight
  if config.unit == 'user':
    return {'means': 1.0, 'moments': math.hypot(1.0, weight)}
  label, bound, clip = bounds(config)
  means = math.hypot(counted(config), residual_move(config, bound))
  rows = math.hypot(residual_move(config, clip) / clip, weight)
  moments = 2**0.5 * rows + (_CUTS + _FLOATS) * max(1.0, weight)
  instead = math.hypot(counted(config), label)
  levels = math.hypot(*user_levels.sensitivities())
  return {
    'means': means, 'moments': moments, 'ratings': instead, 'levels': levels
  }  # fmt: skip


def residual_move(config: MomentsConfig, bound: int) -> float:
  """How far a rating more moves its user's row of residuals, in L2 norm.

  Privacy: with n others of at most Y in size, the bias t / (n + r) of their sum
  t moves by (y - t / (n + r)) / (n + 1 + r), which is at most Y (1 + n / (n +
  r)) / (n + 1 + r), and by 1 more as it is rounded, with a thousandth for
  float32. So far each of the n residuals moves at most, clipped or not, and the
  new one is at most `bound`.
  """
  label, ridge = bounds(config).label, config.sent_ridge
  others = max(
    n * (label * (1 + n / (n + ridge)) / (n + 1 + ridge) + 1.001) ** 2
    for n in range(MAX_ITEMS)
  )
  return math.sqrt(bound**2 + others)


def lattice_spacings(
  config: MomentsConfig, num_users: int, num_items: int
) -> dict[str, float]:
  """What terms of the two steps are cut to: sums and noise fit into int32."""
  check_size(config.unit, num_users, num_items)
  # By user all numbers of the first step are at most 1, and by rating they are
  # integers; of the second they are at most 1, or their weight if they count.
  largest = max(1.0, config.count_weight)
  noise = plan(config).noise
  spacings = {
    name: max(
      smallest_spacing(num_users, size),
      math.ldexp(2.0, math.frexp(noise[name] / MAX_STD)[1]),
    )
    for name, size in (('means', 1.0), ('moments', largest))
  }
  if config.unit == 'user':
    return spacings
  cut = spacings['moments'] * (num_items + 1) > _CUTS * largest
  integers = 'means', 'ratings', 'levels'
  if cut or max(noise[name] for name in integers) > MAX_STD:
    raise ValueError(
      f'epsilon={config.epsilon!r} needs more noise than int32 has room for '
      f'with num_items={num_items}: use a larger epsilon'
    )
  return {**spacings, **dict.fromkeys(integers, 1.0)}


def _shares(config: MomentsConfig) -> tuple[float, float]:
  """Parts of the squared privacy loss, one for each step; their sum is 1."""
  return config.means_share, 1 - config.means_share


def _event(config: MomentsConfig) -> accounting.Gaussian:
  """What both steps together spend."""
  first, second = _shares(config)
  most = max(first, second / ANSWERS)
  return accounting.drawn_gaussian(
    lambda multiplier: (
      (1 + ANSWERS) * tails.uncovered_jointly(multiplier / most**0.5, MAX_DRAWS)
    ),
    delta=config.delta,
    epsilon=config.epsilon,
  )


@functools.lru_cache
def plan(config: MomentsConfig) -> Plan:
  """Noise of the first answer and of each of the others.

  Privacy: with m the event's, the sum of 1/m_s^2 over all answers is less than
  1/m^2.
  """
  event, shares = _event(config), _shares(config)
  more = event.noise_multiplier * ROUNDED_UP
  moved = sensitivities(config)
  first, second = shares
  multipliers = more / first**0.5, more / (second / ANSWERS) ** 0.5
  noise = {
    name: multipliers[name != 'means'] * move for name, move in moved.items()
  }
  return Plan(
    guarantee=_guarantee(config, event, noise, moved, min(multipliers)),
    steps=STEPS,
    noise=noise,
    sensitivity=moved,
    shares=shares,
  )


def _guarantee(
  config: MomentsConfig,
  event: accounting.Gaussian,
  noise: dict[str, float],
  moved: dict[str, float],
  least: float,
) -> Guarantee:
  who = 'a user' if config.unit == 'user' else 'one rating'
  stated: dict[str, Any] = {
    'status': 'proved',
    'unit': config.unit,
    'relation': config.relation,
    'mechanism': 'counts and sums of residuals of items'
    + _units(config)
    + ' with Gaussian noise of '
    f'standard deviation {noise["means"]:.6g} ({who} moves them by at most '
    f'{moved["means"]:.6g} in L2 norm), then sums of products of residuals and '
    'of counts of all pairs of items, those of two different items times the '
    f'square root of 2, {ANSWERS} times, with {noise["moments"]:.6g} each time '
    f'(moved by at most {moved["moments"]:.6g})' + _instead(noise, moved),
    'event': event,
    'tails': Tails(least, MAX_DRAWS, 1 + ANSWERS),
  }
  released = (
    'item factors',
    'offset',
    'noisy counts of items',
    "prior and ridges of users' fits",
  )
  if config.unit == 'user':
    return Guarantee(
      adversary=assumptions.JOINT_ADVERSARY,
      released=(*released, 'item ids'),
      secret=('ratings', 'user factors', 'user ids', 'random key'),
      assumptions=assumptions.USERS_AT_HOME,
      **stated,
    )
  return Guarantee(
    adversary=assumptions.RATING_ADVERSARY,
    released=(*released, 'id lists'),
    secret=('ratings', 'user factors', 'random key'),
    assumptions=assumptions.for_ratings(assumptions.OWN_VECTORS),
    **stated,
  )


def _instead(noise: dict[str, float], moved: dict[str, float]) -> str:
  if 'ratings' not in noise:
    return ''
  return (
    ', or, where noisy counts say that there are too few ratings for these, '
    'counts and sums of ratings as they are, less the middle of the scale, '
    f'{RATING_ANSWERS} times, with {noise["ratings"]:.6g} (moved by at most '
    f'{moved["ratings"]:.6g}), and two integers, sums over users of products '
    'of two and of squares of what means leave of their ratings, in '
    f'{user_levels.STEPS * 4}ths of the scale and at most {user_levels.BOUND} '
    f'of these, as of {user_levels.RATINGS} ratings at most, with '
    f'{noise["levels"]:.6g} (moved by at most {moved["levels"]:.6g})'
  )


def _units(config: MomentsConfig) -> str:
  """Of the first sums, and of residuals in products."""
  if config.unit == 'user':
    return ''
  return (
    f' in 2^-{LABEL_BITS} of the scale (those of products are in '
    f'{bounds(config).moments} of these)'
  )


_CASE = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'relation': 'add_remove',
  'rank': 2,
}
# Nearly all for means, or for moments; and counts that weigh as much.
_MEANS = {'means_share': 0.98}
_PAIRS = {'means_share': 0.02, 'pairs_from': 0.0}
_COUNTS = {**_PAIRS, 'count_weight': 1.0}
# By rating, nearly all for ratings as they are, which are asked for then.
_RATINGS = {'means_share': 0.02, 'pairs_from': 1e6}

SPEC = Spec(
  name='moments',
  help='Means of items and how pairs of items go together, for few items, '
  'which users turn into predictions at home; protects whole users, or single '
  'ratings.',
  config=MomentsConfig,
  plan=plan,
  variants={'sound': {'unit': 'user', 'relation': 'add_remove'}},
  cases={
    'sound': tuple(
      # The attacker sees the noisy sums, which is more than what is released.
      Case(
        {**_CASE, 'unit': unit, 'epsilon': epsilon, **more},
        'known',
        view='sums',
      )
      for unit in ('user', 'rating')
      for epsilon, more in (
        (1.0, _MEANS),
        (4.0, _MEANS),
        (1.0, _PAIRS),
        (4.0, _PAIRS),
        (4.0, _COUNTS),
        *([(1.0, _RATINGS), (4.0, _RATINGS)] if unit == 'rating' else []),
      )
    )
  },
)
