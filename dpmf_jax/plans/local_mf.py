"""The settings of local MF, and what they are worth."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.accounting import records, tails
from dpmf_jax.accounting.events import checked_count
from dpmf_jax.accounting.rounding import MAX_STD
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.plans import assumptions
from dpmf_jax.plans.settings import require, scale_check
from dpmf_jax.types import Guarantee, Relation, Tails, Unit

# Parts of the scale. Fewer levels make fewer lies, and so less noise; what
# two levels lose of a rating is less than that up to this epsilon.
_COARSE, _FINE = (0.4, 0.85), (0.25, 0.5, 0.75, 1.0)
_FINE_FROM = 3.5
MOST_BITS = 10  # of a client's weight
# Sums of squares of a user who rated everything are exact up to here.
_MOST_SQUARES = 2**31


@dataclass(frozen=True, kw_only=True)
class LocalMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: 'sound'; there is no other.
    unit: 'rating' (each cell passes one randomized response on the client, and
      the server sees all answers) or 'user' (a client's whole contribution is
      clipped, and a secure sum of all gets Gaussian noise once).
    relation: 'add_remove', or 'replace' with unit 'rating', where both hold
      with the same epsilon: a cell may change from anything to anything.
    scale: (lowest, highest) possible rating.
    epsilon: of a record, pure; or of a user, at `delta`.
    delta: of unit 'user'; for 'rating' where the certificate states epsilon.
    levels: ratings that a client can answer with, ascending (rating); None is
      two levels up to epsilon 3.5, 2.6 and 4.4 of 1..5, then four, 2 to 5.
    rounding: how a rating becomes a level: 'nearest' or 'stochastic' (rating).
    rank: number of factors at most (rating); those that do not stand out of
      the noise are shrunk to nothing.
    clip_norm: of a client's contribution, in stars of a scale of five (user).
    count_scale: weight of a count against a star in it (user).
    prior_variance: of item means around `center`, in squared stars.
    bias_ridge, mean_ridge, vector_ridge: of the fit that each user makes of a
      bias, of a factor on item means (around 1) and of a vector. These stay
      with the user.
  """

  variant: Literal['sound']
  unit: Unit
  relation: Relation
  scale: tuple[float, float]
  epsilon: float
  delta: float = 0.0
  levels: tuple[float, ...] | None = None
  rounding: Literal['nearest', 'stochastic'] = 'nearest'
  rank: int = 8
  clip_norm: float = 6.0
  count_scale: float = 0.5
  prior_variance: float = 0.3
  bias_ridge: float = 4.0
  mean_ridge: float = 8.0
  vector_ridge: float = 150.0

  def __post_init__(self):
    checked_count('rank', self.rank)
    by_user = self.unit == 'user'
    relations = ('add_remove',) if by_user else ('replace', 'add_remove')
    positive = {
      name: (0 < getattr(self, name) < np.inf, 'positive and finite')
      for name in (
        'count_scale',
        'prior_variance',
        'bias_ridge',
        'mean_ridge',
        'vector_ridge',
      )
    }
    most = records.MAX_EPSILON
    require(
      self,
      variant=(self.variant == 'sound', "'sound'"),
      unit=(self.unit in ('rating', 'user'), "'rating' or 'user'"),
      relation=(
        self.relation in relations,
        f'one of {relations} for unit={self.unit!r}',
      ),
      scale=scale_check(self.scale),
      epsilon=(1e-4 <= self.epsilon <= most, f'in [1e-4, {most:g}]'),
      delta=(
        0 < self.delta <= 0.25 if by_user else 0 <= self.delta < 1,
        "in (0, 1/4] for unit='user', and in [0, 1) for 'rating'",
      ),
      rounding=(
        self.rounding in ('nearest', 'stochastic'),
        "'nearest' or 'stochastic'",
      ),
      rank=(0 <= self.rank <= 1_000, 'in 0..1000'),
      clip_norm=(0.01 <= self.clip_norm <= 1e4, 'in [0.01, 10000]'),
      **positive,
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
    event(self)  # raises for so little noise that the end of its tails tells

  @property
  def star(self) -> float:
    """A quarter of the scale: what variances and norms are counted in."""
    return (self.scale[1] - self.scale[0]) / 4

  @property
  def center(self) -> float:
    """What ratings are counted from: 5/8 of the scale, on the grid."""
    return self.scale[0] + 2.5 * self.star

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


def lie_coins(config: LocalMFConfig) -> int:
  """Of 2^32, those for each category that is not the truth (rating)."""
  categories = len(config.answer_levels) + 1
  return records.lie_coins(config.epsilon, categories)


def event(config: LocalMFConfig) -> accounting.Event:
  """What is spent, for the accountant."""
  if config.unit == 'user':
    # A user moves a count and a sum of each item, of which there are few
    # enough.
    draws = 2 * most_items(config)
    return accounting.drawn_gaussian(
      lambda multiplier: tails.uncovered_jointly(multiplier, draws),
      delta=config.delta,
      epsilon=config.epsilon,
    )
  categories = len(config.answer_levels) + 1
  epsilon = records.true_epsilon(lie_coins(config), categories)
  return accounting.RandomizedResponse(
    # Both are bounds; the second is the coins' own.
    min(config.epsilon, epsilon),
    categories=categories,
  )


def noise_multiplier(config: LocalMFConfig) -> float:
  """The noise over `clip_norm` as it is drawn (user)."""
  spent = cast(accounting.Gaussian, event(config))
  return spent.noise_multiplier * ROUNDED_UP


def most_items(config: LocalMFConfig) -> int:
  """How many items there may be: sums of squares fit into int32 (user)."""
  return (_MOST_SQUARES - 1) // (records.GRID**2 + config.count_steps**2)


def weight_bits(config: LocalMFConfig, num_users: int) -> int:
  """How fine a client's weight is: 2^-bits; sums and noise fit into int32.

  Raises ValueError where there is no room for a single bit.
  """
  # A term is at most this many steps of the grid, times 2^bits.
  largest = max(records.GRID, config.count_steps)
  room = math.floor(math.log2(2**30 / (largest * num_users)))
  spread = noise_multiplier(config) * config.clip_steps
  bits = min(MOST_BITS, room, math.floor(math.log2(MAX_STD / spread)))
  if bits < 1:
    raise ValueError(
      f'{num_users} users with noise of {spread:.3g} steps do not fit into '
      '32-bit sums: use a smaller clip_norm or count_scale, or a larger epsilon'
    )
  return bits


class Traffic(NamedTuple):
  """Bytes between one client and the server, for the whole run."""

  up: int
  down: int


def traffic(config: LocalMFConfig, num_items: int) -> Traffic:
  """Bytes that one client sends and gets, without framing or encryption.

  Up: an answer for every item, packed in as many bits as categories need; or
  two 32-bit integers for every item (what a secure sum adds is not counted).
  Down: the item factors in float32 and the offset.
  """
  if config.unit == 'user':
    return Traffic(up=8 * num_items, down=4 * (2 * num_items + 1))
  bits = len(config.answer_levels).bit_length()
  down = 4 * (num_items * (config.rank + 2) + 1)
  return Traffic(up=-(-num_items * bits // 8), down=down)


_COMMON = (
  assumptions.PUBLIC_SETTINGS,
  assumptions.PUBLIC_IDS,
)
_LOCAL = (
  *_COMMON,
  'A record is one (user, item) cell with all that it holds: nothing, or a '
  'rating. A value that changes is covered with the same epsilon as a rating '
  'that comes or goes.',
  'A client answers once about a cell and keeps the answer. A new answer, also '
  'one about a rating that was changed or added later, adds to the loss of '
  'that cell; whatever is computed from kept answers does not.',
  'Several ratings of one user together are protected less than one alone: k '
  'records have k times epsilon, and the profile of a user as a whole is '
  'hardly protected.',
  assumptions.SAME_FLOATS,
  'The random generator on the client (Threefry, 64-bit key, each client its '
  'own) is as good as random. Coins are integers, without floating point. '
  'Timing and memory are not covered.',
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


def guarantee(config: LocalMFConfig) -> Guarantee:
  """What is stated of a run."""
  common: dict[str, Any] = {
    'status': 'proved',
    'unit': config.unit,
    'relation': config.relation,
    'event': event(config),
  }
  if config.unit == 'user':
    deviation = noise_multiplier(config) * config.clip_norm
    # How many items there are is not known here: as many as a run may have.
    draws = 2 * most_items(config)
    return Guarantee(
      tails=Tails(noise_multiplier(config), draws, 1),
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
      f'with Gaussian noise of standard deviation {deviation:.6g} stars; one '
      f'user moves it by at most {config.clip_norm:g} in L2 norm',
      **common,
    )
  levels = len(config.answer_levels)
  lie = lie_coins(config)
  truth = 1 - levels * lie / records.COINS
  return Guarantee(
    adversary='the server itself, which sees every answer of every client, and '
    'anyone else who does; they may know every other record, the id lists, the '
    'code and its settings, but not the random keys of the clients',
    released=('answers of all clients', 'item factors', 'offset', 'id lists'),
    secret=('ratings', 'user factors', 'random keys of clients'),
    assumptions=_LOCAL,
    mechanism=f'one permanent {levels + 1}-ary randomized response for each '
    f'(user, item) cell, blank or one of {levels} levels, that tells the truth '
    f'with chance {truth:.6g}; all the rest is computed from the answers',
    **common,
  )
