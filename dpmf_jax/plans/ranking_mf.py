"""The settings of ranking MF, and what they are worth."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, cast

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.rounding import MAX_STD
from dpmf_jax.accounting.sensitivity import (
  ROUNDED_UP,
  interaction_sensitivity,
)
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Relation, Tails, Unit

MAX_RANK = 64
# Of so many numbers `mechanisms.clipping.slack` covers the norm.
MAX_KEPT = 100_000
MAX_ROUNDS = 8
MAX_BITS = 20
# What the last round gets of the squared loss, where each other gets 1.
LAST_WEIGHT = 3.0
# Noise of rounds is so much larger along popularity, in variance, which is
# known from the first release: users who are like it may then add more.
ALONG = 15.0
# But not more than so many times what they may add without it.
MOST_ALONG = 2.0
# So many draws of a step a user can move at most; `check_size` sees to it.
MAX_DRAWS = 2**20
# What is known of float32 where users' terms are computed; see `sensitivities`.
_ROUNDING = 1e-4
# The rule of `resolved`, chosen on MovieLens; see docs/results.md.
_MIN_STRENGTH = 240.0
_RATING_STRENGTH = 0.372
_KEPT = 0.5, 0.4, 0.45  # times powers of the number of items and of strength
_FACTORS = 4, 120.0  # at least, and one for each so much strength
_ITEMS_OF_FACTORS = 28.0, 1.3  # at most a power of kept items over this
_LEAST_ROOM = 3.5, 0.75  # none if less of the items have no room for so many
_POWERS = 0.05, 0.35
_POPULARITY = 0.1, 0.4
_POPULARITY_STRENGTH = 100.0


@declare.config
class RankingMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  What is left open (None) is chosen from the numbers of users and items,
  epsilon and delta; see `resolved`.

  Attributes:
    unit: What is protected. user: all that a user did, together. rating: one
      interaction of a user with an item, that it is there and its rating.
    rank: Number of factors at most; those that do not stand out of the noise
      are shrunk to nothing. 0 is popularity alone.
    kept_items: So many of the most popular items, by noisy counts, have
      factors; the others are listed by their popularity.
    rounds: How often the factors are asked for.
    popularity_share: Part of the squared privacy loss spent on popularity.
    least_weight: What an interaction with the lowest rating counts; more for
      higher ones, up to 1. 1 where ratings mean nothing, as for clicks.
    liked_from: Part of the scale from which on an interaction counts 1. At
      home users weigh theirs up to the top of the scale.
    popularity_power: Items count in users' profiles as their popularity to the
      power of minus this.
    full_profile: By rating: users with fewer than so many interactions weigh
      less in the factors.
    lattice_bits: Users' terms are rounded to 2^-this of the largest, for at
      most 2^(29 - this) users.
  """

  unit: Unit = declare.setting()
  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.delta(above=0, maximum=0.25)
  rank: int | None = declare.setting(default=None, minimum=0, maximum=MAX_RANK)
  kept_items: int | None = declare.setting(
    default=None, minimum=1, maximum=MAX_KEPT
  )
  rounds: int = declare.setting(default=3, minimum=1, maximum=MAX_ROUNDS)
  popularity_share: float | None = declare.setting(
    default=None, above=0, below=1
  )
  least_weight: float = declare.setting(default=0.1, minimum=0.01, maximum=1)
  liked_from: float = declare.setting(default=0.75, minimum=1e-3, maximum=1)
  popularity_power: float | None = declare.setting(
    default=None, minimum=0, maximum=1
  )
  full_profile: float = declare.setting(default=150.0, minimum=1, maximum=1e4)
  lattice_bits: int | None = declare.setting(
    default=None, minimum=4, maximum=MAX_BITS
  )

  def check(self):
    declare.check_scale_near_zero(self)
    _event(self)  # raises for an epsilon that no noise gives
    plan(self)

  @property
  def pure(self) -> bool:
    """Whether one interaction moves one number, once: Laplace is less noise."""
    return self.unit == 'rating' and self.rank == 0


def resolved(
  config: RankingMFConfig, num_users: int, num_items: int
) -> RankingMFConfig:
  """`config` with what is used for so many users and items.

  How far factors stand out of noise grows with the number of users over the
  noise that one of them needs: `strength`. Below a bound popularity is all
  that is asked for; above, more factors of more items. What is given is used
  as it is, or refused, so that `plan` states what is drawn.
  """
  for name, size in (('num_users', num_users), ('num_items', num_items)):
    if size < 1:
      raise ValueError(f'{name}={size} must be at least 1: there is no list')
  mu = 1 / _multiplier(config)
  gain = 1.0
  if config.unit == 'rating':
    gain = _RATING_STRENGTH / interaction_sensitivity(config.full_profile)
  strength = gain * mu * num_users
  rank, kept = config.rank, config.kept_items
  if kept is None:
    few, by_items, power = _KEPT
    kept = round(few * num_items**by_items * strength**power)
    kept = max(kept, 1 + (rank or 0))
    kept = min(kept, MAX_KEPT, num_items)
  if kept > num_items:
    raise ValueError(
      f'kept_items={kept} must be at most {num_items}, as there are no more '
      'items; use a smaller one or leave it open'
    )
  if rank is None:
    few, each = _FACTORS
    many, power = _ITEMS_OF_FACTORS
    room = (kept / many) ** power
    rank = min(max(few, round(min(strength / each, room))), MAX_RANK, kept - 1)
    least, part = _LEAST_ROOM
    if strength < _MIN_STRENGTH or (room < least and kept < part * num_items):
      rank = 0
  if rank >= kept:
    raise ValueError(
      f'rank={rank} must be less than the number of items that have factors, '
      f'kept_items={kept}; use a smaller rank or leave it open'
    )
  share = config.popularity_share
  if share is None:
    least, most = _POPULARITY
    share = min(max(least, _POPULARITY_STRENGTH / strength), most)
    share = round(share, 2)  # certificates need not tell the number of users
  power = config.popularity_power
  if power is None:
    least, most = _POWERS
    power = 0.06 + 0.15 * math.log10(strength / 300)
    power = round(min(max(least, power), most), 2)
  used = replace(
    config,
    rank=rank,
    kept_items=kept,
    popularity_share=share,
    popularity_power=power,
  )
  if config.lattice_bits is None:
    used = replace(used, lattice_bits=_finest(used, num_users))
  return used


def is_open(config: RankingMFConfig) -> bool:
  """Whether something is left to `resolved`."""
  chosen = (config.rank, config.kept_items, config.popularity_share)
  return None in (*chosen, config.popularity_power, config.lattice_bits)


def check_size(config: RankingMFConfig, num_users: int, num_items: int) -> None:
  """Refuses sums that could overflow, and more of them than are paid for."""
  bits = cast(int, config.lattice_bits)
  if num_users > 2 ** (29 - bits):
    raise ValueError(
      f'lattice_bits={bits} allows {2 ** (29 - bits)} users, but there are '
      f'{num_users}; use lattice_bits={29 - (num_users - 1).bit_length()}'
    )
  rank, kept = cast(int, config.rank), cast(int, config.kept_items)
  # A user who did everything moves every sum of what is kept, and what is
  # drawn along popularity; or every count.
  draws = max(num_items, (kept + 1) * rank)
  if draws > MAX_DRAWS:
    raise ValueError(
      f'{num_items} items, of which kept_items={kept} have rank={rank} '
      f'factors, are {draws} sums: at most {MAX_DRAWS}; use a smaller rank'
    )


def lattice_spacing(config: RankingMFConfig) -> float:
  """What users' terms are rounded to, in rounds; see `largest_term`."""
  return largest_term(config) * 2.0 ** -cast(int, config.lattice_bits)


def largest_term(config: RankingMFConfig) -> float:
  """What one user adds to one sum of a round is at most twice this."""
  return 1.0 if config.unit == 'user' else config.full_profile**-0.5


def sensitivities(config: RankingMFConfig) -> dict[str, float]:
  """How far a user, or an interaction, moves what a step releases, in L2.

  Privacy: docs/privacy/ranking_mf.md has the proof, for integers. In exact
  arithmetic the sums of a round move by at most 1 (user), in the metric of
  their noise, or by `interaction_sensitivity` (rating), and popularity by 1.
  Each number of a user's terms is cut towards zero to whole spacings, which
  moves it by up to one more, of up to kept_items * rank numbers; those of
  popularity only become smaller. `_ROUNDING` covers float32: a term, whose
  norm is at most 1, is a product of few numbers that are each wrong by less
  than 1e-6 of themselves.
  """
  numbers = cast(int, config.kept_items) * cast(int, config.rank)
  cut = numbers**0.5 * lattice_spacing(config)
  if config.unit == 'user':
    return {'popularity': 1 + _ROUNDING, 'factors': 1 + _ROUNDING + cut}
  moved = interaction_sensitivity(config.full_profile)
  return {'popularity': 1.0, 'factors': moved + _ROUNDING + cut}


def _finest(config: RankingMFConfig, num_users: int) -> int:
  """As many lattice_bits as sums and noise leave room for."""
  # Sensitivities are below twice the largest terms, or a bit more.
  most = 4 * max(_multipliers(config))
  if config.pure:  # at a small epsilon and a large delta that is more
    most = max(most, *plan(config).noise['popularity'])
  room = math.floor(math.log2(MAX_STD / most))
  return max(4, min(MAX_BITS, 29 - (num_users - 1).bit_length(), room))


def _event(config: RankingMFConfig) -> accounting.Gaussian:
  """What all steps together spend, if they are Gaussian."""
  steps, most = 1 + config.rounds, _most(config)
  return accounting.drawn_gaussian(
    lambda multiplier: (
      steps * tails.uncovered_jointly(multiplier / most**0.5, MAX_DRAWS)
    ),
    delta=config.delta,
    epsilon=config.epsilon,
  )


def _multiplier(config: RankingMFConfig) -> float:
  return _event(config).noise_multiplier


def _shares(config: RankingMFConfig) -> tuple[float, ...]:
  """Parts of the squared privacy loss, one for each step; their sum is 1."""
  steps = 1 + config.rounds
  if not config.rank:  # popularity in every step
    return (1 / steps,) * steps
  first = cast(float, config.popularity_share)
  last = (1 - first) * _last(config)
  return (first, *(last / LAST_WEIGHT,) * (config.rounds - 1), last)


def _last(config: RankingMFConfig) -> float:
  """The part of what rounds spend that the last one does."""
  return LAST_WEIGHT / (config.rounds - 1 + LAST_WEIGHT)


def _most(config: RankingMFConfig) -> float:
  """The largest share of a step.

  It is that of the given share and of all that `resolved` may choose, so that
  an open config and what becomes of it state the same event.
  """
  least, most = _POPULARITY
  if config.popularity_share is not None:
    least = min(least, config.popularity_share)
    most = max(most, config.popularity_share)
  return max(most, (1 - least) * _last(config), 1 / (1 + config.rounds))


def _multipliers(config: RankingMFConfig) -> list[float]:
  """Noise over sensitivity of each step, as it is drawn."""
  more = _multiplier(config) * ROUNDED_UP
  return [more / share**0.5 for share in _shares(config)]


@functools.lru_cache
def plan(config: RankingMFConfig) -> Plan:
  """Noise of each step; without it where something is open (`resolved`)."""
  if config.pure:
    return _pure_plan(config)
  return _open_plan(config) if is_open(config) else _factors_plan(config)


def _pure_plan(config: RankingMFConfig) -> Plan:
  """Popularity, by rating, from the first step; the others do nothing."""
  # With a larger one the ends of the noise would tell.
  epsilon = min(config.epsilon, tails.max_l2_laplace_epsilon(1))
  ends = tails.l2_laplace_uncovered(epsilon, 1)
  declare.check_min_delta(config, ends)
  multiplier = ROUNDED_UP / epsilon
  scale = multiplier * ROUNDED_UP
  said = (
    f'weighted counts of items with Laplace noise of scale {scale:.6g}, once; '
    'a single interaction moves one of them by at most 1'
  )
  return Plan(
    guarantee=_guarantee(
      config, accounting.L2Laplace(multiplier, 1, 1, ends), said, None
    ),
    steps=1 + config.rounds,
    noise={'popularity': (scale,), 'factors': ()},
    sensitivity={'popularity': 1.0},
  )


def _open_plan(config: RankingMFConfig) -> Plan:
  """Privacy: of what `resolved` may choose.

  By rating that may be Laplace noise or Gaussian, and all that is stated is
  what holds for both: epsilon, but for delta.
  """
  event: Any = _event(config)
  noise = {'all steps together': event.noise_multiplier}
  if config.unit == 'rating' and config.rank is None:
    event, noise = accounting.Pure(config.epsilon, 1, config.delta), {}
  said = (
    'popularity, and factors as far as the numbers of users and items allow'
  )
  guarantee = _guarantee(config, event, said, None)
  moved = dict.fromkeys(noise, 1.0)
  return Plan(guarantee, 1 + config.rounds, noise, moved)


def _factors_plan(config: RankingMFConfig) -> Plan:
  """Privacy: with m the event's, the sum of 1/m_s^2 is less than 1/m^2."""
  event, steps = _event(config), 1 + config.rounds
  multipliers, moved = _multipliers(config), sensitivities(config)
  kinds = ['popularity'] + ['factors' if config.rank else 'popularity'] * (
    config.rounds
  )
  scales = [
    each * moved[kind] for each, kind in zip(multipliers, kinds, strict=True)
  ]
  split = 1 if config.rank else steps
  noise = {
    'popularity': tuple(scales[:split]),
    'factors': tuple(scales[split:]),
  }
  said = (
    'weighted counts of items with Gaussian noise of standard deviation '
    f'{scales[0]:.6g} (a {_what(config)} moves them by at most '
    f'{moved["popularity"]:.6g} in L2 norm)'
  )
  if config.rank:
    said += (
      f', then {config.rounds} rounds of sums of profiles times projections '
      f'on {config.rank} factors, of {config.kept_items} items, with '
      f'{scales[1]:.6g} to {scales[-1]:.6g} (moved by at most '
      f'{moved["factors"]:.6g}'
    )
    more = ', in the metric of the noise, which is larger along popularity)'
    said += more if config.unit == 'user' else ')'
  else:
    said += f', {steps} times'
  return Plan(
    guarantee=_guarantee(
      config, event, said, Tails(min(multipliers), MAX_DRAWS, steps)
    ),
    steps=steps,
    noise=noise,
    sensitivity=moved,
    shares=_shares(config),
  )


def _what(config: RankingMFConfig) -> str:
  return 'user' if config.unit == 'user' else 'single interaction'


_AT_HOME = (
  'Each user sums up what is released of the items they interacted with, and '
  'keeps it: it is not covered.'
)
_RELEASED = ('item factors', 'offset', "prior and weights of users' sums")


def _guarantee(
  config: RankingMFConfig,
  event: Any,
  mechanism: str,
  ends: Tails | None,
) -> Guarantee:
  stated: dict[str, Any] = {
    'status': 'proved',
    'unit': config.unit,
    'relation': config.relation,
    'mechanism': mechanism,
    'event': event,
    'tails': ends,
  }
  if config.unit == 'user':
    return Guarantee(
      adversary=assumptions.JOINT_ADVERSARY,
      released=(*_RELEASED, 'item ids'),
      secret=('ratings', 'user factors', 'user ids', 'random key'),
      assumptions=assumptions.for_users(_AT_HOME),
      **stated,
    )
  return Guarantee(
    adversary=assumptions.RATING_ADVERSARY,
    released=(*_RELEASED, 'id lists'),
    secret=('ratings', 'user factors', 'random key'),
    assumptions=assumptions.for_ratings(_AT_HOME),
    **stated,
  )


_CASE = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'relation': 'add_remove',
  'kept_items': 3,
  'popularity_power': 0.3,
  'lattice_bits': 16,
}
# Little for popularity, or nearly all of it.
_LITTLE, _MOST = {'popularity_share': 0.02}, {'popularity_share': 0.98}

SPEC = Spec(
  name='ranking_mf',
  task='ranking',
  help='Lists of items from what users did: noisy popularity, and factors that '
  'stand out of the noise; protects whole users, or single interactions.',
  config=RankingMFConfig,
  plan=plan,
  variants={'sound': {'unit': 'user', 'relation': 'add_remove'}},
  cases={
    'sound': tuple(
      # The attacker sees the noisy sums, which is more than what is released.
      Case({**_CASE, 'unit': unit, **settings}, 'known', view='sums')
      for unit in ('user', 'rating')
      for settings in (
        {'epsilon': 1.0, 'rank': 0, 'rounds': 1, **_MOST},
        {'epsilon': 4.0, 'rank': 1, 'rounds': 1, **_MOST},
        {'epsilon': 4.0, 'rank': 1, 'rounds': 1, **_LITTLE},
        {'epsilon': 1.0, 'rank': 2, 'rounds': 2, **_LITTLE},
      )
    )
  },
  resolved=resolved,
)
