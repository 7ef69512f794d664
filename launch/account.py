"""Prints how private a run is, or would be, as one JSON object.

No data and no JAX are needed. Examples:

What the paper claims for 1250 steps, and its noise:

  python -m launch.account --system=gaussian_mf --variant=paper --steps=1250 \\
    --epsilon_per_step=0.3 --delta_per_step=0.01 --delta=1e-5

The noise that is needed for epsilon = 1, where the value of a rating is
protected and who rated what is public:

  python -m launch.account --system=gaussian_mf --relation=replace \\
    --steps=100 --epsilon=1 --delta=1e-6

The epsilon of given noise, where it is also protected that a rating exists:

  python -m launch.account --system=gaussian_mf --relation=add_remove \\
    --residual_bound=2 --steps=100 --sigma=60 --delta=1e-6

Settings that are not given are those of launch.train.

`sigma` is the standard deviation of the noise per entry of the user gradient.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from absl import flags

from dpmf_jax import accounting
from launch import cli

_SYSTEM = flags.DEFINE_enum('system', None, ['gaussian_mf'], 'What is run.')
_VARIANT = flags.DEFINE_enum(
  'variant',
  'sound',
  ['sound', 'paper'],
  'sound: proved, noise on both gradients. paper: claimed, noise on the user '
  'gradient only.',
)
_STEPS = flags.DEFINE_integer('steps', None, 'How many steps, fixed before.')
_DELTA = flags.DEFINE_float('delta', 1e-6, 'Overall delta, in (0, 1).')
_EPSILON = flags.DEFINE_float(
  'epsilon', None, 'Overall epsilon; the noise is calibrated to it.'
)
_SIGMA = flags.DEFINE_float(
  'sigma', None, 'sound: noise of the user gradient, instead of --epsilon.'
)
_RELATION = flags.DEFINE_enum(
  'relation',
  None,
  ['replace', 'add_remove'],
  'Which data sets are neighbours. replace: one rating has another value, who '
  'rated what is public (the only one in the paper). add_remove: one rating '
  'is there or not (as launch.train has it for sound, unless told otherwise).',
)
_SCALE = flags.DEFINE_list('scale', ['1', '5'], 'Lowest and highest rating.')
_CLIP_NORM = flags.DEFINE_float(
  'clip_norm', 1.0, 'Largest norm of a factor row inside a gradient.'
)
_RESIDUAL_BOUND = flags.DEFINE_float(
  'residual_bound',
  None,
  'sound: where residuals are clipped; 1 if unset.',
)
_RANK = flags.DEFINE_integer(
  'rank', 4, 'sound: number of factors; terms are rounded in each of them.'
)
_LATTICE_BITS = flags.DEFINE_integer(
  'lattice_bits', 10, 'sound: terms are rounded to 2^-this of their bound.'
)
_USER_SHARE = flags.DEFINE_float(
  'user_share', 0.5, 'sound: part of mu^2 that the user gradient gets.'
)
_EPSILON_PER_STEP = flags.DEFINE_float(
  'epsilon_per_step', None, 'paper: eps_i, in (0, 1), instead of --epsilon.'
)
_DELTA_PER_STEP = flags.DEFINE_float(
  'delta_per_step', None, 'paper: its delta, in (0, 1); 0.01 if unset.'
)


def paper_gaussian_mf() -> dict[str, Any]:
  """What the paper claims, and what its noise would be worth."""
  _refuse('--variant=paper', _SIGMA, _RESIDUAL_BOUND)
  if _USER_SHARE.value != _USER_SHARE.default:
    raise ValueError(
      '--user_share is not for --variant=paper: it noises the user gradient '
      'only'
    )
  if _RELATION.value not in (None, 'replace'):
    raise ValueError(
      f'--relation must be replace for --variant=paper, got {_RELATION.value}: '
      'the paper takes who rated what as public'
    )
  steps, delta = _steps(), _given(_DELTA)
  delta_per_step = _DELTA_PER_STEP.value
  delta_per_step = 0.01 if delta_per_step is None else delta_per_step
  if _one_of(_EPSILON_PER_STEP, _EPSILON) is _EPSILON:
    epsilon_per_step = accounting.claimed_gaussian_mf_epsilon_per_step(
      epsilon=_given(_EPSILON),
      steps=steps,
      delta_per_step=delta_per_step,
      delta=delta,
    )
  else:
    epsilon_per_step = _given(_EPSILON_PER_STEP)
  event = accounting.ClaimedGaussianMF(epsilon_per_step, delta_per_step, steps)
  multiplier = accounting.claimed_gaussian_mf_noise_multiplier(
    epsilon_per_step, delta_per_step
  )
  sensitivity = _sensitivity('replace', None, None)
  curve = accounting.rdp.gaussian(multiplier, steps)
  return {
    'status': 'claimed',
    'epsilon': accounting.epsilon(event, delta),
    'delta': delta,
    'steps': steps,
    'order': accounting.claimed_gaussian_mf_order(
      steps=steps,
      epsilon_per_step=epsilon_per_step,
      delta_per_step=delta_per_step,
      delta=delta,
    ),
    'epsilon_per_step': epsilon_per_step,
    'delta_per_step': delta_per_step,
    'sigma': multiplier * sensitivity,
    'noise_multiplier': multiplier,
    'sensitivity': sensitivity,
    'unit': 'rating',
    'relation': 'replace',
    # The paper's item gradient has no noise, so none of these covers it.
    'same_noise_if_only_the_noised_gradient_leaked': {
      'exact': accounting.epsilon(
        accounting.Gaussian(multiplier, steps), delta
      ),
      'rdp_optimal': accounting.rdp.epsilon_optimal(curve, delta),
      'rdp_mironov': accounting.rdp.epsilon_mironov(curve, delta),
    },
  }


def sound_gaussian_mf() -> dict[str, Any]:
  """What is proved when both gradients are noised."""
  _refuse('--variant=sound', _EPSILON_PER_STEP, _DELTA_PER_STEP)
  steps, delta = _steps(), _given(_DELTA)
  relation = _RELATION.value or 'add_remove'
  bound, share = _RESIDUAL_BOUND.value, _USER_SHARE.value
  bound = 1.0 if bound is None else bound
  sensitivity = _sensitivity(relation, bound, _LATTICE_BITS.value)
  if _one_of(_EPSILON, _SIGMA) is _EPSILON:
    multiplier = accounting.calibrate_noise_multiplier(
      epsilon=_given(_EPSILON), delta=delta, count=steps
    )
  else:
    sigma = _given(_SIGMA)
    if not sigma > 0:
      raise ValueError(
        f'--sigma must be > 0, got {sigma}: without noise there is no epsilon'
      )
    per_unit, _ = accounting.split_noise_multiplier(1.0, share)
    multiplier = sigma / sensitivity / per_unit
  user, item = accounting.split_noise_multiplier(multiplier, share)
  event = accounting.Gaussian(multiplier, steps)
  return {
    'status': 'proved',
    'epsilon': accounting.epsilon(event, delta),
    'delta': delta,
    'steps': steps,
    'sigma': user * sensitivity,
    'sigma_item': item * sensitivity,
    'noise_multiplier': multiplier,
    'sensitivity': sensitivity,
    'unit': 'rating',
    'relation': relation,
    'mu': accounting.gaussian_mu(event),
    'user_share': share,
  }


def main(_: Sequence[str]) -> None:
  system = _given(_SYSTEM)
  account = {'sound': sound_gaussian_mf, 'paper': paper_gaussian_mf}
  result = account[_VARIANT.value]()
  head = {'system': system, 'variant': _VARIANT.value}
  # allow_nan=False: an epsilon past the largest float is an error, not 'NaN'.
  print(json.dumps(head | result, indent=2, allow_nan=False))


def _sensitivity(
  relation: str, residual_bound: float | None, lattice_bits: int | None
) -> float:
  low, high = cli.scale(_SCALE.value)
  return accounting.rating_gradient_sensitivity(
    relation=relation,
    rating_range=high - low,
    clip_norm=_CLIP_NORM.value,
    residual_bound=residual_bound,
    rank=_RANK.value,
    lattice_bits=lattice_bits,
  )


def _steps() -> int:
  steps = _given(_STEPS)
  if steps < 1:
    raise ValueError(f'--steps must be >= 1, got {steps}')
  return steps


def _given(flag: flags.FlagHolder[Any]) -> Any:
  if flag.value is None:
    raise ValueError(f'--{flag.name} must be given (see --help)')
  return flag.value


def _one_of(
  first: flags.FlagHolder[Any], second: flags.FlagHolder[Any]
) -> flags.FlagHolder[Any]:
  if (first.value is None) == (second.value is None):
    count = 'neither' if first.value is None else 'both'
    raise ValueError(
      f'exactly one of --{first.name} and --{second.name} must be given, got '
      f'{count}'
    )
  return first if second.value is None else second


def _refuse(variant: str, *unused: flags.FlagHolder[Any]) -> None:
  for flag in unused:
    if flag.value is not None:
      raise ValueError(f'--{flag.name} is not for {variant}')


if __name__ == '__main__':
  cli.run(main)
