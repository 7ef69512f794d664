"""The settings of Gaussian-mechanism MF, and what they are worth.

Everything that a proof needs to know of a run is computed here from public
settings: sensitivity, noise, the accountant's event and the statement.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, cast

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import SOUND, Case, Plan, Spec, Start
from dpmf_jax.types import Guarantee, Optimizer, Relation, Tails


@declare.config
class GaussianMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: paper: Algorithm 1 to the letter, with its claimed epsilon. sound:
      noise on both gradients, and a proved epsilon.
    noise_multiplier: Noise over sensitivity of a whole step, instead of
      epsilon.
    epsilon_per_step: paper: the paper's eps_i, instead of epsilon.
    delta_per_step: paper: the paper's delta of a step.
    clip_norm: Largest norm of a factor inside a gradient.
    residual_bound: Residuals are clipped to +- this; the paper has no bound.
    offset: A public constant added to every prediction; by default 5/8 of the
      way up the scale, as people rate more up than down. The paper has 0.
    lattice_bits: Sums are rounded to 2^-this of the largest term, for at most
      2^(30 - this) users and items.
    init: How factors start. unit: random rows of norm 1 (Alg. 1, line 1). bias:
      one column constant for users, one for items, so that the first steps fit
      biases; the others small and random.
    user_share: Part of a step's squared privacy loss spent on the user
      gradient.
  """

  variant: Literal['paper', 'sound'] = declare.setting(flag=False)
  relation: Relation = declare.relation()
  scale: tuple[float, float] = declare.scale()
  delta: float = declare.delta(above=0, maximum=0.25)
  epsilon: float | None = declare.epsilon(default=None)
  noise_multiplier: float | None = declare.setting(default=None, above=0)
  epsilon_per_step: float | None = declare.setting(default=None)
  delta_per_step: float = declare.setting(default=0.01)
  rank: int = declare.rank(default=4, maximum=10_000)
  steps: int = declare.steps(default=60)
  step_size: float = declare.step_size(default=0.001)
  ridge: float = declare.ridge(default=0.0)
  clip_norm: float = declare.setting(default=1.0, above=0)
  residual_bound: float | None = declare.setting(default=1.0)
  offset: float | None = declare.setting(default=None)
  lattice_bits: int = declare.setting(default=10, minimum=4, maximum=18)
  init: Literal['unit', 'bias'] = declare.setting(default='bias')
  user_share: float = declare.setting(default=0.5, above=0, below=1)
  optimizer: Optimizer | None = declare.optimizer(
    default=None, instead_of='SGD with step_size'
  )

  def check(self):
    declare.check_one_step_size(self)
    if self.init == 'bias' and self.rank < 2:
      raise ValueError(f"rank={self.rank} must be at least 2 with init='bias'")
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
      plan(self)  # raises for so little noise that the end of its tails tells
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
    room: it moves a coordinate by at most 1 - 2^-shift of a spacing, and a
    whole one is paid for.
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


def lattice_spacing(config: GaussianMFConfig) -> float:
  """What gradients are rounded to in the sound variant."""
  return accounting.lattice_spacing(
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


def _claimed_event(config: GaussianMFConfig) -> accounting.ClaimedGaussianMF:
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


def _proved_event(config: GaussianMFConfig) -> accounting.Gaussian:
  # One rating moves a row of either gradient, in every step.
  draws = 2 * config.steps * config.rank
  return accounting.drawn_gaussian(
    lambda multiplier: tails.uncovered(multiplier, draws),
    delta=config.delta,
    count=config.steps,
    epsilon=config.epsilon,
    noise_multiplier=config.noise_multiplier,
  )


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


@functools.lru_cache
def plan(config: GaussianMFConfig) -> Plan:
  """Standard deviations of the noise on both gradients, and the statement."""
  moved = sensitivity(config)
  if config.variant == 'paper':
    event = _claimed_event(config)
    # Line 6; the paper adds none to the item gradient.
    multiplier = accounting.claimed_gaussian_mf_noise_multiplier(
      event.epsilon_per_step, event.delta_per_step
    )
    user, item = multiplier * moved, 0.0
  else:
    event = _proved_event(config)
    user, item = (
      part * moved
      for part in accounting.split_noise_multiplier(
        event.noise_multiplier, config.user_share
      )
    )
  return Plan(
    guarantee=_guarantee(config, event, user, item, moved),
    steps=config.steps,
    noise={'user gradient': user, 'item gradient': item},
    sensitivity={'user gradient': moved, 'item gradient': moved},
  )


def _guarantee(
  config: GaussianMFConfig,
  event: accounting.Gaussian | accounting.ClaimedGaussianMF,
  user: float,
  item: float,
  moved: float,
) -> Guarantee:
  mechanism = (
    f'{config.steps} adaptive steps, each of which adds Gaussian noise of '
    f'standard deviation {user:.6g} to the user gradient and '
    f'{f"{item:.6g}" if item else "none"} to the item gradient; one rating '
    f'moves either gradient by at most {moved:.6g} in L2 norm'
  )
  if isinstance(event, accounting.ClaimedGaussianMF):
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
      event=event,
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
    event=event,
    # A row of either gradient, in every step.
    tails=Tails(event.noise_multiplier, 2 * config.rank, config.steps),
  )


# Few steps, rank 1 or 2, factors of norm 1, and an offset with which aligned
# factors predict the middle of the scale: then one rating moves a gradient by
# all of its sensitivity. Small step sizes keep it so for all steps.
_CASE = {
  'scale': (1.0, 5.0),
  'offset': 2.0,
  'delta': 1e-5,
  'init': 'unit',
  'step_size': 0.001,
}
_SOUND: tuple[tuple[dict[str, Any], Start], ...] = (
  ({'epsilon': 1.0, 'rank': 1, 'steps': 1}, 'aligned'),
  ({'epsilon': 4.0, 'rank': 2, 'steps': 3}, 'aligned'),
  ({'epsilon': 1.0, 'rank': 2, 'steps': 3, 'step_size': 1.0}, 'random'),
)
_RANGES = {'step_size': (1e-3, 1e4), 'steps': (1, 4)}

SPEC = Spec(
  name='gaussian_mf',
  help='Gradient descent with Gaussian noise on gradients.',
  config=GaussianMFConfig,
  plan=plan,
  variants={'sound': SOUND, 'paper': PAPER},
  cases={
    'sound': tuple(
      Case({**_CASE, 'relation': relation, **settings}, start, _RANGES)
      for relation in ('replace', 'add_remove')
      for settings, start in _SOUND
    ),
    # A step size that carries what one step put into the items into the users.
    'paper': (
      Case(
        {
          'scale': (0.0, 4.0),
          'delta': 1e-5,
          'epsilon': 0.33,
          'rank': 1,
          'steps': 2,
          'step_size': 1000.0,
        },
        'random',
        _RANGES,
      ),
    ),
  },
)
