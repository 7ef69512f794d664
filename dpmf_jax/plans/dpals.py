"""The settings of user-level private ALS, and what they are worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.events import checked_count
from dpmf_jax.accounting.rounding import (
  MAX_STD,
  least_spacing,
  user_term_bound,
)
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.plans import assumptions
from dpmf_jax.plans.choice import rank_for
from dpmf_jax.plans.settings import require, scale_check
from dpmf_jax.types import Guarantee, Relation, Tails

MOST_RANK = 16
# Part of delta that is kept for the end of the noise's tails. What they take
# depends on the number of items, which a guarantee does not look up.
TAIL_SHARE = 1e-4
# What is known of float32 where a bound is computed; see `sensitivity`.
_ROUNDING = 1e-4


@dataclass(frozen=True, kw_only=True)
class DPALSConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Lengths in ratings are in quarters of the scale's width: 1 star of 1..5.

  Attributes:
    relation: 'add_remove': all ratings of a user are there or not.
    scale: (lowest, highest) possible rating.
    delta: of the overall (epsilon, delta) guarantee.
    epsilon: target of the overall guarantee, to which noise is calibrated.
    noise_multiplier: instead of `epsilon`: of each sweep, the noise over the
      sensitivity.
    rank: number of factors; 0 is item means alone, None is what
      `user_choice.rank_for` says of the numbers of users and items.
    steps: sweeps.
    contribution: bound on a user's terms in all items together.
    label_bound: residuals are clipped to +- this.
    count_scale: weight of an item's count against its sum of residuals.
    vector_share: bound on a user's vector in the sums, where a bias is 1.
    clip_norm: users' vectors are clipped to this, and then scaled to
      `vector_share`.
    adaptivity: items get weights ~ (count + a third of the mean)^-adaptivity.
    memory: what earlier sweeps weigh in the vectors' sums.
    bias_ridge, vector_ridge: of users' fits in sweeps.
    final_bias_ridge, final_vector_ridge: of users' fits to what is released.
  """

  relation: Relation
  scale: tuple[float, float]
  delta: float
  epsilon: float | None = None
  noise_multiplier: float | None = None
  rank: int | None = None
  steps: int = 12
  contribution: float = 4.0
  label_bound: float = 2.0
  count_scale: float = 0.5
  vector_share: float = 1.2
  clip_norm: float = 0.2
  adaptivity: float = 0.4
  memory: float = 0.4
  bias_ridge: float = 10.0
  vector_ridge: float = 1.0
  final_bias_ridge: float = 5.0
  final_vector_ridge: float = 5.0

  def __post_init__(self):
    checked_count('steps', self.steps)
    if self.rank is not None:
      checked_count('rank', self.rank)
    positive = (
      'contribution',
      'vector_share',
      'clip_norm',
      'bias_ridge',
      'vector_ridge',
      'final_bias_ridge',
      'final_vector_ridge',
    )
    require(
      self,
      relation=(self.relation == 'add_remove', "'add_remove'"),
      scale=scale_check(self.scale),
      delta=(0 < self.delta <= 0.25, 'in (0, 1/4]'),
      rank=(0 <= (self.rank or 0) <= MOST_RANK, f'in 0..{MOST_RANK}, or None'),
      steps=(1 <= self.steps <= 1_000, 'in 1..1000'),
      label_bound=(0 < self.label_bound <= 16, 'in (0, 16]'),
      count_scale=(
        0 < self.count_scale <= self.label_bound,
        'in (0, label_bound]',
      ),
      adaptivity=(0 <= self.adaptivity <= 1, 'in [0, 1]'),
      memory=(0 <= self.memory <= 1, 'in [0, 1]'),
      **{
        field: (1e-6 <= getattr(self, field) <= 1e6, 'in [1e-6, 1e6]')
        for field in positive
      },
    )
    width = self.scale[1] - self.scale[0]
    if not 1e-6 <= width <= 1e6 or max(map(abs, self.scale)) > 64 * width:
      raise ValueError(
        f'scale={self.scale!r} must have a width in [1e-6, 1e6] and be within '
        '64 widths of 0, for float32'
      )
    if (self.epsilon is None) == (self.noise_multiplier is None):
      raise ValueError('give exactly one of epsilon and noise_multiplier')
    event(self)  # raises for an epsilon that no noise gives

  @property
  def star(self) -> float:
    """A quarter of the scale's width."""
    return (self.scale[1] - self.scale[0]) / 4

  @property
  def center(self) -> float:
    """What ratings are counted from; people rate more up than down."""
    return self.scale[0] + 0.625 * (self.scale[1] - self.scale[0])


def event(config: DPALSConfig) -> accounting.Gaussian:
  """What `config.steps` sweeps spend, for the accountant."""
  return accounting.drawn_gaussian(
    lambda _: TAIL_SHARE * config.delta,
    delta=config.delta,
    count=config.steps,
    epsilon=config.epsilon,
    noise_multiplier=config.noise_multiplier,
  )


def rank_of(config: DPALSConfig, num_users: int, num_items: int) -> int:
  """The rank that is used."""
  if config.rank is not None:
    return config.rank
  mu = math.sqrt(config.steps) / event(config).noise_multiplier
  return rank_for(mu, num_users, num_items)


def resolved(
  config: DPALSConfig, num_users: int, num_items: int
) -> DPALSConfig:
  """`config` with the rank that is used for so many users and items.

  Its guarantee, and a certificate's parameters, then state what is run.
  """
  return replace(config, rank=rank_of(config, num_users, num_items))


def sensitivity(config: DPALSConfig, rank: int) -> float:
  """How far one user moves a sweep's sums, over all items, in L2 norm.

  Privacy: `user_sums.item_sums` says contribution * sqrt(1 + vector_share^2)
  in exact arithmetic, and without vectors contribution alone. Products of
  float32 are off by less than 1e-6 each, which `_ROUNDING` covers: a term
  has at most six of them, and bounds on weights and vectors have a slack of
  their own.
  """
  share = config.vector_share if rank else 0.0
  bound = config.contribution * config.star * math.hypot(1.0, share)
  return bound * (1 + _ROUNDING)


def noise_std(config: DPALSConfig, rank: int) -> float:
  """The standard deviation of the noise on every sum of a sweep."""
  more = event(config).noise_multiplier * ROUNDED_UP
  return more * sensitivity(config, rank)


def lattice_unit(config: DPALSConfig, num_users: int, rank: int) -> float:
  """What terms are cut to: sums and noise fit into integers."""
  largest = user_term_bound(
    config.label_bound * config.star,
    config.count_scale * config.star,
    config.vector_share,
  )
  unit = least_spacing(num_users, largest)
  std = noise_std(config, rank)
  return max(unit, math.ldexp(2.0, math.frexp(std / MAX_STD)[1]))


def check_tails(config: DPALSConfig, num_items: int, rank: int) -> None:
  """Refuses so little noise that the end of its tails would tell."""
  # A user who rated everything moves every sum in every sweep.
  draws = num_items * (2 + rank)
  multiplier = event(config).noise_multiplier
  lost = config.steps * tails.uncovered_jointly(multiplier, draws)
  if lost > TAIL_SHARE * config.delta:
    raise ValueError(
      f'delta={config.delta!r} is too small, or the noise too little, for '
      f'float32: the tails of {draws} draws in {config.steps} sweeps end with '
      f'a chance of {lost:.2g}, and {TAIL_SHARE:g} of delta pays for that; '
      'use a smaller epsilon or a larger delta'
    )


ADVERSARY = (
  "anyone who sees what is released and knows all other users' ratings, the "
  'item ids, the number of users, the code and its settings, but not the '
  'random key; also all other users together, with what they compute from '
  'their own ratings (joint differential privacy)'
)
ASSUMPTIONS = (
  assumptions.PUBLIC_SETTINGS,
  'The list of item ids and the number of users are public, and the same '
  'whether or not a user is there: a user who is not there is one without '
  'ratings. Where these were taken from the ratings file, an item that a '
  'single user rated tells of that user, and so does the number of users to '
  'someone who knows all the others.',
  'The list of user ids is not released.',
  'A user is all ratings under one user id: a person with two ids is '
  'protected less.',
  'Each user sees only their own vector and bias; these are computed from '
  'their own ratings and are not covered.',
  assumptions.ONE_RELEASE,
  assumptions.SAME_FLOATS,
  'The random generator (Threefry, 64-bit key) is as good as random. Terms of '
  'users are integers and their sums exact. Noise is rounded to the lattice of '
  'the sums and dithered, but each Gaussian is evaluated in float32 from 64 '
  'random bits and ends at 9.5 standard deviations; delta pays for the end of '
  'the tails. Timing and memory are not covered.',
)


def guarantee(config: DPALSConfig) -> Guarantee:
  """What is stated of a run, for either case where the rank is still open."""
  rank = config.rank
  sums = 'counts, sums of residuals and sums of residuals times user vectors'
  if rank == 0:
    sums = 'counts and sums of residuals'
  elif rank is None:
    rank = 'chosen from the numbers of users and items'
  return Guarantee(
    status='proved',
    unit='user',
    relation=config.relation,
    adversary=ADVERSARY,
    released=('item factors', 'offset', 'item ids'),
    secret=('ratings', 'user factors', 'user ids', 'random key'),
    assumptions=ASSUMPTIONS,
    mechanism=f'{config.steps} adaptive sweeps of rank {rank}, each of which '
    f'releases {sums} of all items with Gaussian noise; a user moves all of '
    f'them together by at most {_figure(config, sensitivity)} in L2 norm, and '
    f'the noise has a standard deviation of {_figure(config, noise_std)}',
    event=event(config),
    tails=_tails(config),
  )


def _tails(config: DPALSConfig) -> Tails:
  # How many items there are is not known here: as many draws as `check_tails`
  # lets pass.
  draws = tails.most_draws(TAIL_SHARE * config.delta / config.steps)
  return Tails(event(config).noise_multiplier, draws, config.steps)


def _figure(
  config: DPALSConfig, of: Callable[[DPALSConfig, int], float]
) -> str:
  """What `of` is for the config's rank, or for any that may be chosen."""
  if config.rank is not None:
    return f'{of(config, config.rank):.6g}'
  # It depends on whether there are vectors, not on how long they are.
  return f'{of(config, 0):.6g} (rank 0) or {of(config, 1):.6g} (above 0)'
