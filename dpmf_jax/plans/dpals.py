"""The settings of user-level private ALS, and what they are worth."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.rounding import (
  MAX_STD,
  smallest_spacing,
  user_term_bound,
)
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.auto import rank_for
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Relation, Tails

MAX_RANK = 16
# What earlier sweeps weigh in the vectors' sums.
MEMORY = 0.4
# Of users' biases in their fits to what is released; less where they have few
# ratings (`row_means.own_bias_ridge`).
FINAL_BIAS_RIDGE = 5.0
# Ridges among which users vote: those of vectors, and of slopes on means and
# on popularity. The first are used where noise hides what is better.
_VECTOR_RIDGES = 1.0, 3.0, 0.4  # times that of the config
_SLOPE_RIDGES = (8.0, 60.0), (25.0, 200.0)
NEVER = 1e6
# Norm of a user's votes over that of their other terms.
VOTE_SHARE = 0.1
# Part of the sweeps that are of means alone, at first; after so many more,
# users' votes may end vectors.
_MEANS_FIRST = 0.1
ATTEMPTS = 4
# Part of delta that is kept for the end of the noise's tails. What they take
# depends on the number of items, which a guarantee does not look up.
TAIL_SHARE = 1e-4
# What is known of float32 where a bound is computed; see `_sensitivity`.
_ROUNDING = 1e-4


@declare.config
class DPALSConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Lengths in ratings are in quarters of the scale's width: 1 star of 1..5.

  Attributes:
    noise_multiplier: Noise over sensitivity of a whole step, instead of
      epsilon.
    rank: Number of factors; 0 is item means alone. By default it is chosen from
      the numbers of users and items.
    contribution: Bound on a user's terms in all items, in quarters of the
      scale.
    label_bound: Residuals are clipped to +- this, in quarters of the scale.
    count_scale: Weight of an item's count against its sum of residuals.
    vector_share: Bound on a user's vector in the sums, where a bias is 1.
    clip_norm: Users' vectors are clipped to this, and then scaled to
      vector_share.
    vectors_from: How much more than is worth it a first sweep has to promise of
      vectors; where it does not, there are none. 0 always tries them.
    adaptivity: How much more weight rare items get: weights are ~ (count + a
      third of the mean)^-adaptivity.
    bias_ridge: Ridge of users' biases in sweeps.
    vector_ridge: Ridge of users' vectors in sweeps.
  """

  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  delta: float = declare.delta(above=0, maximum=0.25)
  epsilon: float | None = declare.epsilon(default=None)
  noise_multiplier: float | None = declare.setting(default=None, above=0)
  rank: int | None = declare.setting(default=None, minimum=0, maximum=MAX_RANK)
  steps: int = declare.steps(default=12, maximum=1_000)
  contribution: float = declare.setting(default=4.0, minimum=1e-6, maximum=1e6)
  label_bound: float = declare.setting(default=2.0, above=0, maximum=16)
  count_scale: float = declare.setting(default=0.5, above=0)
  vector_share: float = declare.setting(default=1.2, minimum=1e-6, maximum=1e6)
  clip_norm: float = declare.setting(default=0.2, minimum=1e-6, maximum=1e6)
  vectors_from: float = declare.setting(default=1.0, minimum=0, maximum=1e6)
  adaptivity: float = declare.setting(default=0.4, minimum=0, maximum=1)
  bias_ridge: float = declare.setting(default=10.0, minimum=1e-6, maximum=1e6)
  vector_ridge: float = declare.setting(default=1.0, minimum=1e-6, maximum=1e6)
  final_vector_ridge: float = declare.own_ridge(
    default=5.0,
    what='a vector (times what users vote for)',
    above=None,
    minimum=1e-6,
    maximum=1e6,
  )

  def check(self):
    low, high = self.scale
    if self.count_scale > self.label_bound:
      raise ValueError(
        f'count_scale={self.count_scale!r} must be in (0, label_bound]'
      )
    if max(abs(low), abs(high)) > 64 * (high - low):
      raise ValueError(
        f'scale={self.scale!r} must be within 64 widths of 0, for float32'
      )
    if (self.epsilon is None) == (self.noise_multiplier is None):
      raise ValueError('give exactly one of epsilon and noise_multiplier')
    plan(self)  # raises for an epsilon that no noise gives

  @property
  def quarter(self) -> float:
    """Of the scale's width."""
    return (self.scale[1] - self.scale[0]) / 4

  @property
  def center(self) -> float:
    """What ratings are counted from; people rate more up than down."""
    return self.scale[0] + 0.625 * (self.scale[1] - self.scale[0])


def resolved(
  config: DPALSConfig, num_users: int, num_items: int
) -> DPALSConfig:
  """`config` with the rank that is used for so many users and items.

  Its guarantee, and a certificate's parameters, then state what is run.
  """
  if config.rank is not None:
    return config
  mu = math.sqrt(config.steps) / _multiplier(config)
  return replace(config, rank=rank_for(mu, num_users, num_items))


def alternatives(config: DPALSConfig) -> list[tuple[float, float, float]]:
  """Ridges of vectors, slopes on means and slopes on popularity, to vote on.

  Privacy: of settings alone.
  """
  vectors = [config.final_vector_ridge * each for each in _VECTOR_RIDGES]
  return [
    (vector, *slopes)
    for vector in ((*vectors, NEVER) if config.rank else vectors[:1])
    for slopes in (*_SLOPE_RIDGES, (NEVER, NEVER))
  ]


def means_first(config: DPALSConfig) -> int:
  """How many sweeps are of means alone, before vectors."""
  return int(_MEANS_FIRST * config.steps)


def lattice_spacing(config: DPALSConfig, num_users: int) -> float:
  """What terms are cut to: sums and noise fit into integers.

  This and `check_tails` are for a config with a rank, see `resolved`.
  """
  largest = user_term_bound(
    config.label_bound * config.quarter,
    config.count_scale * config.quarter,
    config.vector_share,
  )
  largest = max(largest, vote_bound(config))
  spacing = smallest_spacing(num_users, largest)
  std = plan(config).noise['sums']
  return max(spacing, math.ldexp(2.0, math.frexp(std / MAX_STD)[1]))


def check_tails(config: DPALSConfig, num_items: int) -> None:
  """Refuses so little noise that the end of its tails would tell."""
  # A user who rated everything moves every sum in every sweep.
  votes = len(alternatives(config))
  draws = num_items * (2 + cast(int, config.rank)) + votes
  lost = config.steps * tails.uncovered_jointly(_multiplier(config), draws)
  if lost > TAIL_SHARE * config.delta:
    raise ValueError(
      f'delta={config.delta!r} is too small, or the noise too little, for '
      f'float32: the tails of {draws} draws in {config.steps} sweeps end with '
      f'a chance of {min(lost, 1):.2g}, and {TAIL_SHARE:g} of delta pays for '
      'that; use a smaller epsilon or a larger delta'
    )


def _multiplier(config: DPALSConfig) -> float:
  return cast(
    accounting.Gaussian, plan(config).guarantee.event
  ).noise_multiplier


def _sensitivity(config: DPALSConfig, vectors: bool) -> float:
  """How far one user moves a sweep's sums, over all items, in L2 norm.

  Privacy: `user_sums.item_sums` says contribution * sqrt(1 + vector_share^2)
  in exact arithmetic, and without vectors contribution alone; votes have a
  norm of VOTE_SHARE of that, in numbers of their own. Products of float32 are
  off by less than 1e-6 each, which `_ROUNDING` covers: a term has at most six
  of them, and bounds on weights and vectors have a slack of their own.
  """
  bound = terms_bound(config, vectors) * math.hypot(1.0, VOTE_SHARE)
  return bound * (1 + _ROUNDING)


def terms_bound(config: DPALSConfig, vectors: bool) -> float:
  """Norm of a user's terms in the sums of items, in exact arithmetic."""
  share = config.vector_share if vectors else 0.0
  return config.contribution * config.quarter * math.hypot(1.0, share)


def vote_bound(config: DPALSConfig) -> float:
  """Norm of a user's votes, in exact arithmetic; the config has a rank."""
  return VOTE_SHARE * terms_bound(config, bool(config.rank))


@functools.lru_cache
def plan(config: DPALSConfig) -> Plan:
  """The standard deviation of the noise on every sum of a sweep.

  For either case where the rank is still open; see `resolved`.
  """
  event = accounting.drawn_gaussian(
    lambda _: TAIL_SHARE * config.delta,
    delta=config.delta,
    count=config.steps,
    epsilon=config.epsilon,
    noise_multiplier=config.noise_multiplier,
  )
  # It matters whether there are vectors, not how long they are.
  cases = {'sums': bool(config.rank)}
  if config.rank is None:
    cases = {'sums (rank 0)': False, 'sums (above 0)': True}
  moved = {name: _sensitivity(config, has) for name, has in cases.items()}
  more = event.noise_multiplier * ROUNDED_UP
  noise = {name: more * each for name, each in moved.items()}
  return Plan(
    guarantee=_guarantee(config, event, moved, noise),
    steps=config.steps,
    noise=noise,
    sensitivity=moved,
  )


def _guarantee(
  config: DPALSConfig,
  event: accounting.Gaussian,
  moved: Mapping[str, float],
  noise: Mapping[str, float],
) -> Guarantee:
  rank = config.rank
  sums = 'counts, sums of residuals and sums of residuals times user vectors'
  if rank == 0:
    sums = 'counts and sums of residuals'
  elif rank is None:
    rank = 'chosen from the numbers of users and items'
  # How many items there are is not known here: as many draws as `check_tails`
  # lets pass.
  draws = tails.max_draws(TAIL_SHARE * config.delta / config.steps)
  return Guarantee(
    status='proved',
    unit='user',
    relation=config.relation,
    adversary=assumptions.JOINT_ADVERSARY,
    released=(
      'item factors',
      'offset',
      'noisy counts of items',
      "ridges of users' fits",
      'item ids',
    ),
    secret=('ratings', 'user factors', 'user ids', 'random key'),
    assumptions=assumptions.USERS_AT_HOME,
    mechanism=f'{config.steps} adaptive sweeps of rank {rank}, each of which '
    f'releases {sums} of all items, and sums of votes on how to use them, with '
    f'Gaussian noise; a user moves all of them together by at most '
    f'{_figures(moved)} in L2 norm, and the noise has a standard deviation of '
    f'{_figures(noise)}',
    event=event,
    tails=Tails(event.noise_multiplier, draws, config.steps),
  )


def _figures(values: Mapping[str, float]) -> str:
  """For the config's rank, or for any that may be chosen."""
  return ' or '.join(
    f'{value:.6g}{name.removeprefix("sums")}' for name, value in values.items()
  )


# A user with one rating reaches the bound on contributions, and vectors theirs.
_CASE = {
  'scale': (1.0, 5.0),
  'delta': 1e-5,
  'contribution': 0.5,
  'clip_norm': 1e-3,
  'count_scale': 0.2,
  # A few ratings may promise too little: vectors were in one sweep alone.
  'vectors_from': 0.0,
}

SPEC = Spec(
  name='dpals',
  help='Alternating least squares that protects whole users.',
  config=DPALSConfig,
  plan=plan,
  variants={'sound': {'relation': 'add_remove'}},
  cases={
    'sound': tuple(
      Case({**_CASE, 'epsilon': epsilon, 'rank': rank, 'steps': steps}, 'known')
      for epsilon, rank, steps in (
        (1.0, 0, 1),
        (4.0, 0, 2),
        (1.0, 1, 2),
        (4.0, 2, 2),
      )
    )
  },
  resolved=resolved,
)
