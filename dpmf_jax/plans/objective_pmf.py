"""The settings of objective perturbation, and what they are worth."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.accounting.rounding import HUBER_BITS, HUBER_ERROR, PRODUCT_BITS
from dpmf_jax.accounting.sensitivity import ROUNDED_UP, equation_sensitivities
from dpmf_jax.plans import assumptions, gaussian_mf
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import SOUND, Case, Plan, Spec, plan_by_rank
from dpmf_jax.types import Guarantee, Relation


@declare.config
class ObjectivePMFConfig:
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: paper: both stages as published, with the claimed epsilon. sound:
      the exact solution against public user features, proved.
    objective: paper: whose objective and noise.
    noise: paper: when noise is drawn. Alg. 2 draws anew in every step, its
      theorem is about noise that is drawn once.
    pmf_steps: paper: k1, steps without noise.
    noise_steps: paper: k2, steps with noise.
    loss: sound: squared is solved from noisy normal equations. huber is
      objective perturbation of a loss that is linear beyond residual_bound,
      with less noise at a small epsilon, for add_remove alone.
    residual_bound: sound: where the Huber loss becomes linear; by default an
      eighth of the scale's width.
    feature_share: sound, squared: part of epsilon spent on learning `rank`
      features of users from the ratings, by sound gaussian_mf at delta; 0 takes
      the features as they are given.
    feature_steps: sound: steps that learn them.
    count_scale: Weight of the matrix A against the vector b in what is noised
      (sound, squared, add_remove).
    prior_variance: Of an item's vector around the common one (sound, squared).
    shift: Bits dropped from exact sums (sound, squared); more for more users.
  """

  variant: Literal['paper', 'sound'] = declare.setting(flag=False)
  relation: Relation = declare.relation()
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.pure_delta(default=0.0)
  objective: Literal['zhang', 'hua'] = declare.setting(default='zhang')
  noise: Literal['once', 'every_step'] = declare.setting(default='once')
  rank: int = declare.rank(default=20)
  ridge: float = declare.ridge(default=0.01)
  step_size: float = declare.step_size(default=50.0)
  pmf_steps: int = declare.setting(default=50)
  noise_steps: int = declare.setting(default=50, minimum=1)
  loss: Literal['squared', 'huber'] = declare.setting(default='squared')
  residual_bound: float | None = declare.setting(default=None, above=0)
  feature_share: float = declare.setting(default=0.0, minimum=0, below=1)
  feature_steps: int = declare.setting(default=60)
  count_scale: float = declare.setting(default=1.0, above=0)
  prior_variance: float = declare.setting(default=0.35, above=0)
  shift: int = declare.setting(default=6, minimum=0, maximum=PRODUCT_BITS)
  bias_ridge: float = declare.own_ridge(default=5.0, what='biases')
  vector_ridge: float = declare.own_ridge(default=8.0, what='vectors')

  def check(self):
    if not 0 < self.knee <= 2 * self.label_bound:
      raise ValueError(
        f'residual_bound={self.residual_bound!r} must be positive and at most '
        'the width of the scale'
      )
    if self.variant == 'sound' and self.loss == 'huber':
      declare.check_max_epsilon(self, tails.max_laplace_epsilon())
      declare.check_min_delta(self, tails.laplace_uncovered(self.epsilon))
    if self.objective == 'hua' and self.relation != 'replace':
      raise ValueError(
        "Hua et al. claim nothing for relation='add_remove'; use "
        "relation='replace' or objective='zhang'"
      )
    if self.feature_share and (
      self.variant == 'paper' or self.loss == 'huber' or not self.delta
    ):
      raise ValueError(
        "feature_share is for variant='sound', loss='squared' and delta > 0: "
        'features are learned with Gaussian noise'
      )
    if self.loss == 'huber' and self.relation != 'add_remove':
      raise ValueError(
        "loss='huber' is for relation='add_remove'; where only values change, "
        "loss='squared' needs less noise"
      )

  @property
  def center(self) -> float:
    """What labels are counted from (sound): the middle of the scale."""
    return sum(self.scale) / 2

  @property
  def label_bound(self) -> float:
    return (self.scale[1] - self.scale[0]) / 2

  @property
  def knee(self) -> float:
    """Where the Huber loss becomes linear."""
    if self.residual_bound is None:
      return self.label_bound / 4
    return self.residual_bound


def _check_tails(config: ObjectivePMFConfig, rank: int) -> None:
  """Raises ValueError where delta does not pay for ends of noise (sound)."""
  declare.check_max_epsilon(
    config, tails.max_l2_laplace_epsilon(dimension(config, rank))
  )
  declare.check_min_delta(config, uncovered(config, rank))


def uncovered(config: ObjectivePMFConfig, rank: int) -> float:
  """What the ends of the noise of loss='squared' cost, in delta (sound)."""
  return tails.l2_laplace_uncovered(config.epsilon, dimension(config, rank))


# Both stages as published, for `ObjectivePMFConfig(**PAPER, ...)`.
PAPER: dict[str, Any] = {'variant': 'paper', 'relation': 'add_remove'}


def paper_noise_scale(config: ObjectivePMFConfig) -> float:
  """b of the noise's density ~ exp(-||eta|| / b), as published."""
  return accounting.claimed_objective_scale(
    config.objective,
    config.epsilon,
    relation=config.relation,
    scale=config.scale,
  )


def sensitivity(config: ObjectivePMFConfig, rank: int) -> float:
  """How far one rating moves (count_scale * A, b) of its item, in L2 norm.

  With 'replace' only b moves, as who rated what is public, and so are the
  features.
  """
  bounds = equation_sensitivities(
    rank=rank,
    clip_norm=1.0,
    label_bound=config.label_bound,
    matrix_scale=config.count_scale,
    shift=config.shift,
  )
  return bounds.relabeled if config.relation == 'replace' else bounds.pair


def noise_scale(config: ObjectivePMFConfig, rank: int) -> float:
  """b of the L2-Laplace noise of the sound variant."""
  return sensitivity(config, rank) / config.epsilon * ROUNDED_UP


class Huber(NamedTuple):
  """How the epsilon of loss='huber' is spent.

  Attributes:
    noise: scale of the Laplace noise in the objective.
    ridge: lambda of the objective.
    tolerance: how far from the minimum its search may end.
    cover: scale of the Laplace noise on what the search found.
  """

  noise: float
  ridge: float
  tolerance: float
  cover: float


# The smallest ridge, so that the bound on the search's errors stays small;
# the part of epsilon that is spent on the ridge if it is larger; and the part
# spent on covering the search.
_MIN_RIDGE, _RIDGE_SHARE, _COVER_SHARE = 0.5, 0.3, 0.02


def huber_parts(config: ObjectivePMFConfig) -> Huber:
  """Noise and ridge of loss='huber', and the epsilon that they give.

  Privacy: see `huber.huber_step`. One rating more or less moves the gradient
  of its item's objective by at most the knee, and its curvature by a
  factor of at most 1 + 1/ridge; what is found is within `tolerance` of the
  minimum for both neighbours.
  """
  epsilon = config.epsilon
  ridge = max(_MIN_RIDGE, 1 / math.expm1(_RIDGE_SHARE * epsilon))
  bound, label = config.knee, config.label_bound
  cover_epsilon = _COVER_SHARE * epsilon
  noise = bound / (epsilon - cover_epsilon - math.log1p(1 / ridge))
  noise *= ROUNDED_UP
  farthest = label + tails.LAPLACE_END * noise / ridge
  error = HUBER_ERROR * (ridge * farthest + tails.LAPLACE_END * noise)
  error += tails.LAPLACE_ERROR * (1 + tails.LAPLACE_END) * noise
  tolerance = label * 2.0**-HUBER_BITS + error / ridge
  return Huber(
    noise=noise,
    ridge=ridge,
    tolerance=tolerance,
    cover=2 * tolerance / cover_epsilon * ROUNDED_UP,
  )


def dimension(config: ObjectivePMFConfig, rank: int) -> int:
  """How many numbers of an item get noise together."""
  if config.relation == 'replace':
    return rank
  return rank * (rank + 1) // 2 + rank


ADVERSARY = (
  'anyone who sees what is released and knows every other rating, the id '
  'lists, the user features, the code and its settings, but not the random key'
)
_GENERATOR = (
  'The random generator (Threefry, 64-bit key) is as good as random. Sums of '
  'ratings are exact, and '
)
ASSUMPTIONS = (
  assumptions.PUBLIC_FEATURES,
  assumptions.PUBLIC_IDS,
  assumptions.ONE_OF_DUPLICATES,
  assumptions.ONE_RELEASE,
  assumptions.SAME_FLOATS,
  _GENERATOR + 'noise is rounded to their lattice and dithered, but it is made '
  'of Gaussians evaluated in float32 from 64 random bits that end at 9.5 '
  'standard deviations; delta pays for the end of the tails. Timing and memory '
  'are not covered.',
  assumptions.ONE_RATING,
)
# For loss='huber': as above, but for what is said of the noise.
_HUBER_ASSUMPTIONS = tuple(
  text
  if not text.startswith(_GENERATOR)
  else _GENERATOR
  + 'errors of float32 in the noise of the objective and in the '
  'search for its minimum are covered by more noise. What float32 rounds off '
  'of that is taken to be hidden by a dither. A draw is a logarithm of 96 '
  'random bits and ends at 67; delta pays for the end of the tails. Timing and '
  'memory are not covered.'
  for text in ASSUMPTIONS
)
CLAIM = (
  'This is what the paper claims, not what is true: user factors are trained '
  'on the same ratings and taken as constants, the minimum is not reached, and '
  'the second stage starts from item factors that were trained without noise.',
)


def learning_parts(
  config: ObjectivePMFConfig,
) -> tuple[gaussian_mf.GaussianMFConfig, ObjectivePMFConfig]:
  """What learns the features, and what takes them as public (feature_share).

  Privacy: both compose. The first has feature_share * epsilon, and delta less
  what the ends of the second's noise cost; the second has the rest of epsilon,
  whatever the features are.
  """
  share = config.feature_share
  rest = dataclasses.replace(
    config, epsilon=(1 - share) * config.epsilon, feature_share=0.0
  )
  _check_tails(rest, config.rank)  # or they would cost more than there is
  first = gaussian_mf.GaussianMFConfig(
    variant='sound',
    relation=config.relation,
    scale=config.scale,
    epsilon=share * config.epsilon,
    delta=config.delta - uncovered(rest, config.rank),
    rank=config.rank,
    steps=config.feature_steps,
  )
  return first, rest


@plan_by_rank
def plan(config: ObjectivePMFConfig, rank: int) -> Plan:
  """Scales of the noise, and what is stated with features of that rank."""
  if config.variant == 'paper':
    noise, moved = {'objective': paper_noise_scale(config)}, {}
    steps = config.pmf_steps + config.noise_steps
    return Plan(_claim(config), steps, noise, moved)
  if config.feature_share:
    learning, rest = learning_parts(config)
    first, second = gaussian_mf.plan(learning), plan(rest, config.rank)
    return Plan(
      _both(first.guarantee, second.guarantee),
      first.steps + 1,
      {**first.noise, **second.noise},
      {**first.sensitivity, **second.sensitivity},
    )
  if config.loss == 'huber':
    parts = huber_parts(config)
    return Plan(
      _huber_guarantee(config, parts),
      1,
      {'objective': parts.noise, 'minimum': parts.cover},
      {'objective': config.knee, 'minimum': 2 * parts.tolerance},
    )
  _check_tails(config, rank)
  return Plan(
    _squared_guarantee(config, rank),
    1,
    {'equations': noise_scale(config, rank)},
    {'equations': sensitivity(config, rank)},
  )


def _both(first: Guarantee, second: Guarantee) -> Guarantee:
  """What is stated of learned features and of what is made with them."""
  assert first.event is not None
  assert second.event is not None
  taken = tuple(
    text
    for text in second.assumptions
    if text != assumptions.PUBLIC_FEATURES and text not in first.assumptions
  )
  return dataclasses.replace(
    second,
    assumptions=first.assumptions + taken,
    mechanism=f'user features by {first.mechanism}; then {second.mechanism}',
    event=accounting.Composed((first.event, second.event)),
    tails=first.tails,
  )


SECRET = ('ratings', 'user factors', 'random key')


def _common(config: ObjectivePMFConfig) -> dict[str, Any]:
  return {'unit': 'rating', 'relation': config.relation, 'secret': SECRET}


def _claim(config: ObjectivePMFConfig) -> Guarantee:
  return Guarantee(
    status='claimed',
    released=('item factors',),
    adversary='not stated in the paper; taken to be a reader of the item '
    'factors',
    assumptions=CLAIM,
    mechanism=f'{config.pmf_steps} steps of plain PMF, then '
    f'{config.noise_steps} steps on an objective with L2-Laplace noise of '
    f'scale {paper_noise_scale(config):.6g}, drawn {config.noise}',
    event=accounting.ClaimedPure(config.epsilon),
    **_common(config),
  )


def _huber_guarantee(config: ObjectivePMFConfig, parts: Huber) -> Guarantee:
  return Guarantee(
    status='proved',
    adversary=ADVERSARY,
    released=('item factors', 'offset', 'id lists'),
    assumptions=_HUBER_ASSUMPTIONS,
    mechanism='for each item the minimum of a Huber loss (linear beyond '
    f'{config.knee:g}) with ridge {parts.ridge:.6g} and Laplace '
    f'noise of scale {parts.noise:.6g} in the objective, found to within '
    f'{parts.tolerance:.3g}, with Laplace noise of scale {parts.cover:.3g}; '
    'one rating moves the gradient of one item by at most '
    f'{config.knee:g}',
    event=accounting.Pure(
      config.epsilon, 1, tails.laplace_uncovered(config.epsilon)
    ),
    **_common(config),
  )


def _squared_guarantee(config: ObjectivePMFConfig, rank: int) -> Guarantee:
  extra = ()
  if config.relation == 'replace':
    extra = (assumptions.PUBLIC_PAIRS,)
  moved = 'b' if config.relation == 'replace' else '(count_scale A, b)'
  return Guarantee(
    status='proved',
    adversary=ADVERSARY,
    released=('item factors', 'offset', 'id lists'),
    assumptions=ASSUMPTIONS + extra,
    mechanism=f'for each item one release of {moved}, of its normal equations '
    'against public user features, with L2-Laplace noise of scale '
    f'{noise_scale(config, rank):.6g} in {dimension(config, rank)} dimensions; '
    f'one rating moves {moved} of one item by at most '
    f'{sensitivity(config, rank):.6g} in L2 norm',
    event=accounting.L2Laplace(
      # Noise over sensitivity is more, by 1e-6, which float32 may use up.
      (1 + 1e-12) / config.epsilon,
      1,
      dimension(config, rank),
      uncovered(config, rank),
    ),
    **_common(config),
  )


_PURE = {'scale': (1.0, 5.0), 'delta': 0.0}
# Few small steps: what the first stage learned is still in the items.
PAPER_CASE = {
  **_PURE,
  'rank': 2,
  'step_size': 0.5,
  'pmf_steps': 12,
  'noise_steps': 1,
}
_SOUND = (
  *(
    Case({**_PURE, 'relation': relation, 'epsilon': epsilon}, 'known')
    for relation in ('replace', 'add_remove')
    for epsilon in (1.0, 4.0)
  ),
  *(
    Case(
      {
        **_PURE,
        'relation': 'add_remove',
        'epsilon': epsilon,
        'loss': 'huber',
        # Where no residual is clipped, and where most are.
        'residual_bound': bound,
      },
      'known',
    )
    for epsilon, bound in ((1.0, 4.0), (1.0, 0.5), (4.0, 4.0))
  ),
  *(
    Case(
      {
        'scale': (1.0, 5.0),
        'delta': 1e-5,
        'rank': 2,
        'feature_steps': 2,
        'relation': relation,
        'epsilon': 2.0,
        'feature_share': 0.5,
      },
      'random',
    )
    for relation in ('replace', 'add_remove')
  ),
)

SPEC = Spec(
  name='objective_pmf',
  help='Objective perturbation of probabilistic MF.',
  config=ObjectivePMFConfig,
  plan=plan,
  variants={'sound': SOUND, 'paper': PAPER},
  cases={
    'sound': _SOUND,
    'paper': tuple(
      Case({**PAPER_CASE, 'relation': relation, 'epsilon': 1.0}, 'random')
      for relation in ('replace', 'add_remove')
    ),
  },
  takes_features=True,
)
