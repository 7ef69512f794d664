"""The settings of Gaussian-mechanism MF, and what they are worth.

Everything that a proof needs to know of a run is computed here from public
settings: sensitivity, noise, the accountant's event and the statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.events import checked_count
from dpmf_jax.plans import assumptions
from dpmf_jax.plans.settings import (
  relation_check,
  require,
  scale_check,
  variant_check,
)
from dpmf_jax.types import Guarantee, Relation, Tails

if TYPE_CHECKING:
  import optax


@dataclass(frozen=True, kw_only=True)
class GaussianMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: 'paper' is Algorithm 1 to the letter with its claimed epsilon;
      'sound' has noise on both gradients and a proved epsilon.
    relation: 'replace' (the value of one rating changes; who rated what is
      public) or 'add_remove' (one rating is there or not). The paper has
      only 'replace'.
    scale: (lowest, highest) possible rating.
    delta: of the overall (epsilon, delta) guarantee.
    epsilon: target of the overall guarantee, to which noise is calibrated.
    noise_multiplier: instead of `epsilon`: for a whole step, the noise over
      the sensitivity of both gradients together (sound).
    epsilon_per_step, delta_per_step: instead of `epsilon`, the paper's eps_i
      and delta (paper); delta_per_step is used with `epsilon` too.
    rank, steps, step_size, ridge, clip_norm: n, J, mu, lambda and C.
    residual_bound: clip residuals to +- this (sound). The paper has none.
    lattice_bits: gradients are exact sums, rounded to multiples of
      residual_bound * clip_norm / 2^lattice_bits (sound), for
      at most 2^(30 - lattice_bits) users and items.
    offset: a public constant added to every prediction; None is 5/8 of the
      way up the scale, as people rate more up than down. The paper has 0.
    init: 'unit' (Alg. 1, line 1: random rows of norm 1) or 'bias' (one
      column constant for users, one for items, so that the first steps fit
      item and user biases; the other columns small and random).
    user_share: part of a step's squared privacy loss that is spent on the
      user gradient (sound).
    optimizer: an optax transformation that replaces SGD with `step_size`.
  """

  variant: Literal['paper', 'sound']
  relation: Relation
  scale: tuple[float, float]
  delta: float
  epsilon: float | None = None
  noise_multiplier: float | None = None
  epsilon_per_step: float | None = None
  delta_per_step: float = 0.01
  rank: int = 4
  steps: int = 60
  step_size: float = 0.001
  ridge: float = 0.0
  clip_norm: float = 1.0
  residual_bound: float | None = 1.0
  offset: float | None = None
  lattice_bits: int = 10
  init: Literal['unit', 'bias'] = 'bias'
  user_share: float = 0.5
  optimizer: optax.GradientTransformation | None = None

  def __post_init__(self):
    for field in ('rank', 'steps', 'lattice_bits'):
      # 10.5 bits would pass every bound and be cut to 10 further on.
      checked_count(field, getattr(self, field))
    require(
      self,
      variant=variant_check(self.variant),
      relation=relation_check(self.relation),
      scale=scale_check(self.scale),
      delta=(0 < self.delta <= 0.25, 'in (0, 1/4]'),
      rank=(
        (2 if self.init == 'bias' else 1) <= self.rank <= 10_000,
        "at least 1, at least 2 with init='bias', and at most 10000",
      ),
      steps=(self.steps >= 1, 'at least 1'),
      step_size=(0 < self.step_size < np.inf, 'positive and finite'),
      ridge=(0 <= self.ridge < np.inf, 'at least 0 and finite'),
      offset=(np.isfinite(self.center), 'finite, or None'),
      clip_norm=(0 < self.clip_norm < np.inf, 'positive and finite'),
      init=(self.init in ('unit', 'bias'), "'unit' or 'bias'"),
      user_share=(0 < self.user_share < 1, 'in (0, 1)'),
      lattice_bits=(4 <= self.lattice_bits <= 18, 'in 4..18'),
    )
    paper = self.variant == 'paper'
    ways = ('epsilon', 'epsilon_per_step' if paper else 'noise_multiplier')
    given = [
      way
      for way in ('epsilon', 'epsilon_per_step', 'noise_multiplier')
      if getattr(self, way) is not None
    ]
    if len(given) != 1 or given[0] not in ways:
      raise ValueError(
        f'variant={self.variant!r} takes exactly one of {ways[0]} and '
        f'{ways[1]}; got {given or "none"}'
      )
    if paper and self.relation != 'replace':
      raise ValueError(
        "the paper claims nothing for relation='add_remove'; use "
        "relation='replace' or variant='sound'"
      )
    if not paper:
      self._check_arithmetic()
      event(self)  # raises for so little noise that the end of its tails tells
    for field in ('residual_bound', 'offset', 'init') if paper else ():
      if getattr(self, field) != PAPER[field]:
        raise ValueError(
          f'{field}={getattr(self, field)!r} is not in the paper; '
          f"variant='paper' has {PAPER[field]!r} (see plans.gaussian_mf.PAPER)"
        )

  def _check_arithmetic(self):
    """Refuses settings for which float32 residuals are not exact enough.

    r and r' that are tau apart must give residuals that are at most
    tau * (1 + 1e-5) apart, the slack of `lattice.columns`. Where they are not
    clipped, |e| <= residual_bound, and float32 rounds at 2^-24 of the
    largest number involved. Where that is not enough, the last rounding has
    room: it moves a coordinate by at most 1 - 2^-shift units, and one is paid.
    """
    low, high = self.scale
    largest = 64 * (high - low)
    bound = self.residual_bound
    for field, value in (
      ('clip_norm', self.clip_norm),
      ('residual_bound', bound),
      ('the width of scale', high - low),
    ):
      if value is not None and not 1e-6 <= value <= 1e6:
        raise ValueError(
          f'{field} is {value!r}, but float32 needs it in [1e-6, 1e6]'
        )
    if bound is None or not 0 < bound <= largest:
      raise ValueError(
        f'residual_bound={bound!r} must be in (0, {largest:g}] for '
        "variant='sound'"
      )
    if max(abs(low), abs(high), abs(self.center)) > largest:
      raise ValueError(
        f'scale={self.scale!r} with offset={self.center!r} is too far from 0 '
        f'for its width {high - low:g}: shift the ratings towards 0'
      )

  @property
  def center(self) -> float:
    """The offset that is used."""
    if self.offset is not None:
      return self.offset
    low, high = self.scale
    return low + 0.625 * (high - low)


# The published settings, for `GaussianMFConfig(**PAPER, ...)`.
PAPER: dict[str, Any] = {
  'variant': 'paper',
  'relation': 'replace',
  'rank': 20,
  'steps': 1000,
  'step_size': 0.0005,
  'ridge': 0.0,
  'clip_norm': 1.0,
  'residual_bound': None,
  'offset': 0.0,
  'init': 'unit',
}


def lattice_unit(config: GaussianMFConfig) -> float:
  """What gradients are rounded to in the sound variant."""
  return accounting.lattice_unit(
    cast(float, config.residual_bound), config.clip_norm, config.lattice_bits
  )


def sensitivity(config: GaussianMFConfig) -> float:
  """How far one rating can move either gradient, in L2 norm."""
  return accounting.rating_gradient_sensitivity(
    relation=config.relation,
    rating_range=config.scale[1] - config.scale[0],
    clip_norm=config.clip_norm,
    residual_bound=config.residual_bound,
    rank=config.rank,
    lattice_bits=config.lattice_bits if config.variant == 'sound' else None,
  )


def event(
  config: GaussianMFConfig,
) -> accounting.Gaussian | accounting.ClaimedGaussianMF:
  """What `config.steps` steps spend, for the accountant."""
  if config.variant == 'paper':
    per_step = config.epsilon_per_step
    if config.epsilon is not None:
      per_step = accounting.claimed_gaussian_mf_epsilon_per_step(
        epsilon=config.epsilon,
        steps=config.steps,
        delta_per_step=config.delta_per_step,
        delta=config.delta,
      )
    return accounting.ClaimedGaussianMF(
      cast(float, per_step), config.delta_per_step, config.steps
    )
  # One rating moves a row of either gradient, in every step.
  draws = 2 * config.steps * config.rank
  return accounting.drawn_gaussian(
    lambda multiplier: tails.uncovered(multiplier, draws),
    delta=config.delta,
    count=config.steps,
    epsilon=config.epsilon,
    noise_multiplier=config.noise_multiplier,
  )


def noise_stds(config: GaussianMFConfig) -> tuple[float, float]:
  """Standard deviation of the noise on the user and the item gradient."""
  spent = event(config)
  if isinstance(spent, accounting.ClaimedGaussianMF):
    # Line 6; the paper adds none to the item gradient.
    multiplier = accounting.claimed_gaussian_mf_noise_multiplier(
      spent.epsilon_per_step, spent.delta_per_step
    )
    return multiplier * sensitivity(config), 0.0
  user, item = accounting.split_noise_multiplier(
    spent.noise_multiplier, config.user_share
  )
  return user * sensitivity(config), item * sensitivity(config)


def _tails(config: GaussianMFConfig) -> Tails:
  """Of the sound variant: a row of either gradient, in every step."""
  spent = cast(accounting.Gaussian, event(config))
  return Tails(spent.noise_multiplier, 2 * config.rank, config.steps)


_ADVERSARY = (
  'anyone who sees what is released and knows every other rating, the id '
  'lists, the code and its settings, but not the random key'
)
_ASSUMPTIONS = (
  assumptions.PUBLIC_SETTINGS,
  assumptions.PUBLIC_IDS,
  assumptions.ONE_OF_DUPLICATES,
  assumptions.ONE_RELEASE,
  assumptions.SAME_FLOATS,
  'The random generator (Threefry, 64-bit key) is as good as random. Sums of '
  'ratings are exact, and noise is rounded to their lattice and dithered, but '
  'each Gaussian is evaluated in float32, from 64 random bits for the radius '
  'of a pair and 32 for its angle, and ends at 9.5 standard deviations; delta '
  'pays for the end of the tails. Timing and memory are not covered.',
)


def guarantee(config: GaussianMFConfig) -> Guarantee:
  user, item = noise_stds(config)
  mechanism = (
    f'{config.steps} adaptive steps, each of which adds Gaussian noise of '
    f'standard deviation {user:.6g} to the user gradient and '
    f'{f"{item:.6g}" if item else "none"} to the item gradient; one rating '
    f'moves either gradient by at most {sensitivity(config):.6g} in L2 norm'
  )
  if config.variant == 'paper':
    return Guarantee(
      status='claimed',
      unit='rating',
      relation='replace',
      adversary='not stated in the paper; taken to be a reader of the user '
      'factors',
      released=('user factors',),
      secret=('ratings', 'item factors', 'random key'),
      assumptions=(
        'This is what the paper claims, not what is true: item factors are '
        'updated from ratings without noise and feed the next user gradient, '
        'which its composition leaves out.',
        'Who rated what is public.',
      ),
      mechanism=mechanism,
      event=event(config),
    )
  extra = (assumptions.ONE_RATING,)
  if config.relation == 'replace':
    extra += (assumptions.PUBLIC_PAIRS,)
  return Guarantee(
    status='proved',
    unit='rating',
    relation=config.relation,
    adversary=_ADVERSARY,
    released=('user factors', 'item factors', 'offset', 'id lists'),
    secret=('ratings', 'random key'),
    assumptions=_ASSUMPTIONS + extra,
    mechanism=mechanism,
    event=event(config),
    tails=_tails(config),
  )
