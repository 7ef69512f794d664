"""The settings of local MF, and what they are worth."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Literal, cast

from dpmf_jax import accounting
from dpmf_jax.accounting import records, tails
from dpmf_jax.accounting.rounding import MAX_STD
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Relation, Tails, Unit

# Parts of the scale. Fewer levels make fewer lies, and so less noise; what
# two levels lose of a rating is less than that up to this epsilon.
_COARSE, _FINE = (0.4, 0.85), (0.25, 0.5, 0.75, 1.0)
_FINE_FROM = 3.5
_MAX_BITS = 10  # of a client's weight
# Sums of squares of a user who rated everything are exact up to here.
_MAX_SQUARES = 2**31


@declare.config
class LocalMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  With unit 'rating' both relations hold with the same epsilon, as a cell may
  change from anything to anything, and delta is where the certificate states
  epsilon, which is pure. Lengths in ratings are in quarters of the scale.

  Attributes:
    variant: sound; there is no other.
    unit: What is protected. rating: one record, by randomized response on
      clients, and the server sees all answers. user: a whole user, whose
      contribution is clipped, by noise on a secure sum of all.
    levels: By rating: the ratings that clients can answer with, ascending. By
      default two up to epsilon 3.5, 2.6 and 4.4 of 1..5, then four, 2 to 5.
    rounding: By rating: how a rating becomes a level.
    rank: By rating: number of factors at most; those that do not stand out of
      the noise are shrunk to nothing.
    clip_norm: By user: bound on the norm of a client's contribution, in
      quarters of the scale.
    count_scale: By user: weight of a count against a quarter of the scale in
      it.
    prior_variance: Of item means around the center, in squared quarters of the
      scale.
  """

  variant: Literal['sound'] = declare.setting(flag=False)
  unit: Unit = declare.setting()
  relation: Relation = declare.relation()
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon(
    above=None, minimum=1e-4, maximum=records.MAX_EPSILON
  )
  delta: float = declare.pure_delta(default=0.0)
  levels: tuple[float, ...] | None = declare.setting(default=None)
  rounding: Literal['nearest', 'stochastic'] = declare.setting(
    default='nearest'
  )
  rank: int = declare.setting(default=8, minimum=0, maximum=1_000)
  clip_norm: float = declare.setting(default=6.0, minimum=0.01, maximum=1e4)
  count_scale: float = declare.setting(default=0.5, above=0)
  prior_variance: float = declare.setting(default=0.3, above=0)
  bias_ridge: float = declare.own_ridge(default=4.0, what='a bias')
  mean_ridge: float = declare.own_ridge(
    default=8.0, what='a factor on item means'
  )
  vector_ridge: float = declare.own_ridge(default=150.0, what='a vector')

  def check(self):
    if self.unit == 'user':
      if self.relation != 'add_remove':
        raise ValueError(
          f"relation={self.relation!r} must be 'add_remove' for unit='user'"
        )
      if not 0 < self.delta <= 0.25:
        raise ValueError(
          f"delta={self.delta!r} must be in (0, 1/4] for unit='user'"
        )
    low, high = self.scale
    levels = self.answer_levels
    if not (
      1 <= len(levels) <= records.MAX_LEVELS
      and all(a < b for a, b in itertools.pairwise(levels))
      and low <= levels[0]
      and levels[-1] <= high
    ):
      raise ValueError(
        f'levels={self.levels!r} must be 1 to {records.MAX_LEVELS} ratings '
        f'of {self.scale!r}, ascending'
      )
    if self.count_steps < 1:
      raise ValueError(f'count_scale={self.count_scale!r} is too small')
    plan(self)  # raises for so little noise that the end of its tails tells

  @property
  def quarter(self) -> float:
    """Of the scale's width: what variances and norms are counted in."""
    return (self.scale[1] - self.scale[0]) / 4

  @property
  def center(self) -> float:
    """What ratings are counted from: 5/8 of the scale, on the grid."""
    return self.scale[0] + 2.5 * self.quarter

  @property
  def answer_levels(self) -> tuple[float, ...]:
    """The levels that are used."""
    if self.levels is not None:
      return tuple(float(level) for level in self.levels)
    low, high = self.scale
    parts = _COARSE if self.epsilon <= _FINE_FROM else _FINE
    return tuple(low + part * (high - low) for part in parts)

  @property
  def count_steps(self) -> int:
    """A count in a client's contribution, in steps of the grid."""
    return round(self.count_scale * records.GRID / 4)

  @property
  def clip_steps(self) -> float:
    """The norm of a client's contribution, in steps of the grid."""
    return self.clip_norm * records.GRID / 4


def noise_multiplier(config: LocalMFConfig) -> float:
  """The noise over `clip_norm` as it is drawn (user)."""
  return cast(Tails, plan(config).guarantee.tails).noise_multiplier


def max_items(config: LocalMFConfig) -> int:
  """How many items there may be: sums of squares fit into int32 (user)."""
  return (_MAX_SQUARES - 1) // (records.GRID**2 + config.count_steps**2)


def weight_bits(config: LocalMFConfig, num_users: int) -> int:
  """How fine a client's weight is: 2^-bits; sums and noise fit into int32.

  Raises ValueError where there is no room for a single bit.
  """
  # A term is at most this many steps of the grid, times 2^bits.
  largest = max(records.GRID, config.count_steps)
  room = math.floor(math.log2(2**30 / (largest * num_users)))
  spread = noise_multiplier(config) * config.clip_steps
  bits = min(_MAX_BITS, room, math.floor(math.log2(MAX_STD / spread)))
  if bits < 1:
    raise ValueError(
      f'{num_users} users with noise of {spread:.3g} steps do not fit into '
      '32-bit sums: use a smaller clip_norm or count_scale, or a larger epsilon'
    )
  return bits


def traffic(
  config: LocalMFConfig, *, num_items: int, **_: int
) -> dict[str, float]:
  """Bytes that one client sends and gets, without framing or encryption.

  Up: an answer for every item, packed in as many bits as categories need; or
  two 32-bit integers for every item (what a secure sum adds is not counted).
  Down: the item factors in float32 and the offset.
  """
  if config.unit == 'user':
    up, rank = 8 * num_items, 0
  else:
    bits = len(config.answer_levels).bit_length()
    up, rank = -(-num_items * bits // 8), config.rank
  down = 4 * (num_items * (rank + 2) + 1)
  return {'bytes_up': float(up), 'bytes_down': float(down)}


_COMMON = (
  assumptions.PUBLIC_SETTINGS,
  assumptions.PUBLIC_IDS,
)
_LOCAL = (
  *_COMMON,
  'A record is one (user, item) cell with all that it holds: nothing, or a '
  'rating. A value that changes is covered with the same epsilon as a rating '
  'that comes or goes.',
  *assumptions.ANSWERS,
)
_SUMMED = (
  _COMMON[0],
  'The list of item ids and the number of users are public, and the same '
  'whether or not a user is there: a user who is not there is one without '
  'ratings, who takes part in the sums all the same. Where these were taken '
  'from the ratings file, an item that a single user rated tells of that user, '
  'and so does the number of users to someone who knows all the others.',
  'The list of user ids is not released.',
  assumptions.SAME_FLOATS,
  'The sums are computed by secure aggregation: nobody sees a contribution or '
  'a partial sum, and clients compute theirs as told.',
  'Noise is added to the sums inside of the secure aggregation, once in total, '
  'by a party that does not tell it and shows nothing but the noisy sums. The '
  'protocol is not part of this.',
  assumptions.ONE_RELEASE,
  'The random generator (Threefry, 64-bit key) is as good as random. Sums are '
  'exact, and noise is rounded to their lattice and dithered, but each '
  'Gaussian is evaluated in float32, from 64 random bits for the radius of a '
  'pair and 32 for its angle, and ends at 9.5 standard deviations; delta pays '
  'for the end of the tails. Timing and memory are not covered.',
)


@functools.lru_cache
def plan(config: LocalMFConfig) -> Plan:
  """The one round's noise.

  By rating, how many of 2^32 coins answer each category that is not the truth;
  by user, the standard deviation on sums, in quarters of the scale.
  """
  by_user = config.unit == 'user'
  return _sums_plan(config) if by_user else _answers_plan(config)


def _answers_plan(config: LocalMFConfig) -> Plan:
  levels = len(config.answer_levels)
  lie = records.lie_coins(config.epsilon, levels + 1)
  truth = 1 - levels * lie / records.COINS
  guarantee = Guarantee(
    status='proved',
    unit='rating',
    relation=config.relation,
    event=accounting.RandomizedResponse(
      # Both are bounds; the second is the coins' own.
      min(config.epsilon, records.true_epsilon(lie, levels + 1)),
      categories=levels + 1,
    ),
    adversary=assumptions.ANSWERS_ADVERSARY,
    released=('answers of all clients', 'item factors', 'offset', 'id lists'),
    secret=('ratings', 'user factors', 'random keys of clients'),
    assumptions=_LOCAL,
    mechanism=f'one permanent {levels + 1}-ary randomized response for each '
    f'(user, item) cell, blank or one of {levels} levels, that tells the truth '
    f'with chance {truth:.6g}; all the rest is computed from the answers',
  )
  return Plan(guarantee=guarantee, steps=1, noise={'answers': lie})


def _sums_plan(config: LocalMFConfig) -> Plan:
  # A user moves a count and a sum of each item. How many items there are is
  # not known here: as many as a run may have.
  draws = 2 * max_items(config)
  event = accounting.drawn_gaussian(
    lambda multiplier: tails.uncovered_jointly(multiplier, draws),
    delta=config.delta,
    epsilon=config.epsilon,
  )
  multiplier = event.noise_multiplier * ROUNDED_UP
  deviation = multiplier * config.clip_norm
  guarantee = Guarantee(
    status='proved',
    unit='user',
    relation=config.relation,
    event=event,
    tails=Tails(multiplier, draws, 1),
    adversary='anyone, the server included, who sees the noisy sums and all '
    'that is computed from them and knows every other user, the item ids, '
    'the number of users, the code and its settings, but not the random key '
    'of the noise',
    released=('noisy sums', 'item factors', 'offset', 'item ids'),
    secret=(
      'ratings',
      'contributions',
      'user factors',
      'user ids',
      'random key',
    ),
    assumptions=_SUMMED,
    mechanism='one secure sum over users of (count, rating) for each item, '
    f'with Gaussian noise of standard deviation {deviation:.6g} quarters of '
    f'the scale; one user moves it by at most {config.clip_norm:g} in L2 norm',
  )
  return Plan(
    guarantee=guarantee,
    steps=1,
    noise={'sums': deviation},
    sensitivity={'sums': config.clip_norm},
  )


_RATING = {
  'scale': (1.0, 5.0),
  'delta': 0.0,
  'unit': 'rating',
  'relation': 'add_remove',
  'rank': 0,
}
_STARS = (1.0, 2.0, 3.0, 4.0, 5.0)
# So small a norm that every user is clipped, and moves sums by all of it.
_USER = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'unit': 'user',
  'relation': 'add_remove',
  'clip_norm': 1.0,
}
# The server sees the answers, or the noisy sums, themselves. Without factors
# the release is made of few numbers, which a discriminant can learn.
_CASES: tuple[tuple[dict[str, Any], str | None], ...] = (
  ({**_RATING, 'epsilon': 1.0}, 'transcript'),
  ({**_RATING, 'epsilon': 1.0, 'relation': 'replace'}, 'transcript'),
  (
    {**_RATING, 'epsilon': 2.0, 'levels': (1.0, 5.0), 'rounding': 'stochastic'},
    'transcript',
  ),
  ({**_RATING, 'epsilon': 4.0, 'levels': _STARS}, 'transcript'),
  ({**_RATING, 'epsilon': 1.0}, None),
  ({**_USER, 'epsilon': 1.0}, 'transcript'),
  ({**_USER, 'epsilon': 4.0}, 'transcript'),
  ({**_USER, 'epsilon': 1.0}, None),
)

SPEC = Spec(
  name='local_mf',
  help='No trusted curator: randomized response for each record, or secure '
  'sums for whole users.',
  config=LocalMFConfig,
  plan=plan,
  variants={
    'sound': {'variant': 'sound', 'unit': 'rating', 'relation': 'add_remove'}
  },
  cases={
    'sound': tuple(
      Case(settings, 'known', view=view) for settings, view in _CASES
    )
  },
  traffic=traffic,
)
