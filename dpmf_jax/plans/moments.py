"""The settings of second moments, and what they are worth."""

from __future__ import annotations

import functools
import math

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.rounding import (
  LABEL_BITS,
  MAX_STD,
  smallest_spacing,
)
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Relation, Tails

STEPS = 2
# The second step draws noise so often, for as many answers that are averaged:
# less of the loss in each, so that the ends of the noise cost less.
ANSWERS = 4
# A user moves I (I + 1) sums at most, in the second step.
MAX_ITEMS = 1_000
MAX_DRAWS = MAX_ITEMS * (MAX_ITEMS + 1)
# Ratings are a table of so many cells at most.
MAX_CELLS = 2**28


@declare.config
class MomentsConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    rank: Number of factors at most, and never more than there are items; those
      that do not stand out of the noise are zero.
    means_share: Part of the squared privacy loss spent on items' means; the
      rest is for how items go together.
    count_scale: What a rating counts in the first sums, beside its residual, in
      widths of the scale.
    count_weight: Weight of how often items are rated together against how
      alike.
    bias_ridge: Ridge of users' biases, in what they send and at home.
  """

  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.delta(above=0, maximum=0.25)
  rank: int = declare.setting(default=64, minimum=1, maximum=128)
  means_share: float = declare.setting(default=0.2, above=0, below=1)
  count_scale: float = declare.setting(default=0.1, minimum=0.002, maximum=1)
  count_weight: float = declare.setting(default=0.16, minimum=1e-3, maximum=1e3)
  bias_ridge: float = declare.setting(default=2.0, minimum=1e-3, maximum=1e6)

  def check(self):
    low, high = self.scale
    if max(abs(low), abs(high)) > 64 * (high - low):
      raise ValueError(
        f'scale={self.scale!r} must be within 64 widths of 0, for float32: '
        'shift the ratings'
      )
    plan(self)  # raises for an epsilon that no noise gives

  @property
  def width(self) -> float:
    """Of the scale."""
    return self.scale[1] - self.scale[0]

  @property
  def center(self) -> float:
    """What ratings are counted from."""
    return self.scale[0] + self.width / 2


def check_size(num_users: int, num_items: int) -> None:
  """Refuses more items than are paid for, and tables that fit no memory."""
  if num_items > MAX_ITEMS:
    raise ValueError(
      f'num_items={num_items} must be at most {MAX_ITEMS} for system=moments, '
      'which has a sum for each pair of items; use dpals'
    )
  if num_users * num_items > MAX_CELLS:
    raise ValueError(
      f'num_users={num_users} times num_items={num_items} must be at most '
      f'{MAX_CELLS} for system=moments, which makes a table of them; use dpals'
    )


def ends_are_paid(epsilon: float, delta: float) -> bool:
  """Whether there is noise for that, with the settings by default."""
  try:
    MomentsConfig(
      relation='add_remove', scale=(0.0, 1.0), epsilon=epsilon, delta=delta
    )
  except ValueError:
    return False
  return True


def counted(config: MomentsConfig) -> int:
  """`count_scale` in the units of residuals."""
  return round(config.count_scale * 2**LABEL_BITS)


def sensitivities(config: MomentsConfig) -> dict[str, float]:
  """How far a user moves what a step releases, in L2 norm.

  Privacy: `kernels.moments` keeps a user's terms below these, in float32: the
  first sums have a norm of at most 1, of the second the residuals' at most 1
  and the counts' at most `count_weight`. docs/privacy/moments.md has the proof.
  """
  return {'means': 1.0, 'moments': math.hypot(1.0, config.count_weight)}


def lattice_spacings(config: MomentsConfig, num_users: int) -> dict[str, float]:
  """What terms of the two steps are cut to: sums and noise fit into int32."""
  # A user's numbers are at most 1, and at most their weight where they count.
  largest = {'means': 1.0, 'moments': max(1.0, config.count_weight)}
  return {
    name: max(
      smallest_spacing(num_users, largest[name]),
      math.ldexp(2.0, math.frexp(std / MAX_STD)[1]),
    )
    for name, std in plan(config).noise.items()
  }


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
    name: multiplier * moved[name]
    for name, multiplier in zip(moved, multipliers, strict=True)
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
  return Guarantee(
    status='proved',
    unit='user',
    relation=config.relation,
    adversary=assumptions.JOINT_ADVERSARY,
    released=(
      'item factors',
      'offset',
      'noisy counts of items',
      "prior and ridges of users' fits",
      'item ids',
    ),
    secret=('ratings', 'user factors', 'user ids', 'random key'),
    assumptions=assumptions.USERS_AT_HOME,
    mechanism='counts and sums of residuals of items with Gaussian noise of '
    f'standard deviation {noise["means"]:.6g} (a user moves them by at most '
    f'{moved["means"]:.6g} in L2 norm), then sums of products of residuals and '
    'of counts of all pairs of items, those of two different items times the '
    f'square root of 2, {ANSWERS} times, with {noise["moments"]:.6g} each time '
    f'(moved by at most {moved["moments"]:.6g})',
    event=event,
    tails=Tails(least, MAX_DRAWS, 1 + ANSWERS),
  )


_CASE = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'relation': 'add_remove',
  'rank': 2,
}
# Nearly all for means, or for moments; and counts that weigh as much.
_MEANS, _PAIRS = {'means_share': 0.98}, {'means_share': 0.02}
_COUNTS = {'means_share': 0.02, 'count_weight': 1.0}

SPEC = Spec(
  name='moments',
  help='Means of items and how pairs of items go together, for few items, '
  'which users turn into predictions at home; protects whole users.',
  config=MomentsConfig,
  plan=plan,
  variants={'sound': {'relation': 'add_remove'}},
  cases={
    'sound': tuple(
      # The attacker sees the noisy sums, which is more than what is released.
      Case({**_CASE, 'epsilon': epsilon, **more}, 'known', view='sums')
      for epsilon, more in (
        (1.0, _MEANS),
        (4.0, _MEANS),
        (1.0, _PAIRS),
        (4.0, _PAIRS),
        (4.0, _COUNTS),
      )
    )
  },
)
