"""The flags of `launch.train` that say which system to train, and how."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from absl import flags

from launch import attributes, specifications

# The systems whose sound form has another name.
_SOUND: dict[str, str] = dict.fromkeys(('sdmf', 'sdbpr', 'sdfm'), 'local_mf')

SYSTEM = flags.DEFINE_enum(
  'system',
  'gaussian_mf',
  [
    'gaussian_mf',
    'objective_pmf',
    'personalized_pmf',
    'power_mf',
    'dpals',
    'local_mf',
    'sdmf',
    'sdbpr',
    'sdfm',
    'langevin',
    'untrusted_pmf',
    'als',
    'auto',
    'nonprivate',
  ],
  'What to train. auto: what is best for this --unit and --epsilon and so many '
  'users and items, and how, by a rule that looks at no rating '
  '(plans/choice.py). personalized_pmf needs a specification of each '
  "rating's epsilon; dpals protects whole users; local_mf needs no trusted "
  'curator (sdmf, sdbpr and sdfm with --variant=sound are that); als and '
  'nonprivate are baselines without any guarantee.',
)
_VARIANT = flags.DEFINE_enum(
  'variant',
  'sound',
  ['sound', 'paper', 'none'],
  'sound: with a guarantee that is proved. paper: as published, with the '
  "paper's claim, which may not be true. none: without any (sdbpr, langevin).",
)

# Settings of the systems. None leaves the system's own default.
_SETTINGS = {
  'epsilon': flags.DEFINE_float(
    'epsilon', None, 'Target epsilon; noise is calibrated to it.'
  ),
  'delta': flags.DEFINE_float('delta', 1e-6, 'Delta of the guarantee.'),
  'relation': flags.DEFINE_enum(
    'relation',
    None,
    ['replace', 'add_remove'],
    'Neighbouring relation. replace: the value of a rating is protected, who '
    'rated what is public. add_remove: that a rating exists is protected, too '
    '(what the sound variant does unless told otherwise).',
  ),
  'unit': flags.DEFINE_enum(
    'unit',
    None,
    ['rating', 'user'],
    'auto and local_mf: what is protected, one rating (for local_mf a record, '
    'by randomized response on clients) or a whole user.',
  ),
  'levels': flags.DEFINE_multi_float(
    'levels',
    None,
    'local_mf, by rating: the ratings that clients can answer with, ascending, '
    'as in --levels=1 --levels=5.',
  ),
  'rounding': flags.DEFINE_enum(
    'rounding',
    None,
    ['nearest', 'stochastic'],
    'local_mf, by rating: how a rating becomes a level.',
  ),
  'noise_multiplier': flags.DEFINE_float(
    'noise_multiplier', None, 'Noise over sensitivity, instead of --epsilon.'
  ),
  'epsilon_per_step': flags.DEFINE_float(
    'epsilon_per_step', None, "paper: the paper's eps_i, instead of --epsilon."
  ),
  'delta_per_step': flags.DEFINE_float(
    'delta_per_step', None, "paper: the paper's delta of a step."
  ),
  'rank': flags.DEFINE_integer('rank', None, 'Number of factors.'),
  'mean_share': flags.DEFINE_float(
    'mean_share', None, 'power_mf: part of the budget spent on item means.'
  ),
  'bias_share': flags.DEFINE_float(
    'bias_share', None, 'power_mf: part of the budget spent on user biases.'
  ),
  'steps': flags.DEFINE_integer('steps', None, 'Number of steps.'),
  'step_size': flags.DEFINE_float('step_size', None, 'Step size.'),
  'ridge': flags.DEFINE_float('ridge', None, 'L2 penalty.'),
  'clip_norm': flags.DEFINE_float(
    'clip_norm', None, 'Largest norm of a factor inside a gradient.'
  ),
  'residual_bound': flags.DEFINE_float(
    'residual_bound', None, 'Residuals are clipped to +- this.'
  ),
  'offset': flags.DEFINE_float(
    'offset', None, 'A public constant added to every prediction.'
  ),
  'init': flags.DEFINE_enum(
    'init', None, ['bias', 'unit'], 'How factors start; the paper has unit.'
  ),
  'lattice_bits': flags.DEFINE_integer(
    'lattice_bits', None, 'Terms of a gradient are rounded to 2^-this.'
  ),
  'user_share': flags.DEFINE_float(
    'user_share', None, "Part of a step's budget spent on the user gradient."
  ),
  'objective': flags.DEFINE_enum(
    'objective', None, ['zhang', 'hua'], 'objective_pmf, paper: whose.'
  ),
  'loss': flags.DEFINE_enum(
    'loss',
    None,
    ['squared', 'huber'],
    'objective_pmf, sound: huber is objective perturbation of a loss that is '
    'linear beyond --residual_bound, with less noise at a small epsilon.',
  ),
  'feature_share': flags.DEFINE_float(
    'feature_share',
    None,
    'objective_pmf, sound: part of epsilon spent on learning --rank features '
    'of users from the ratings.',
  ),
  'feature_steps': flags.DEFINE_integer(
    'feature_steps', None, 'objective_pmf, sound: steps that learn them.'
  ),
  'noise': flags.DEFINE_enum(
    'noise',
    None,
    ['once', 'every_step'],
    'objective_pmf and personalized_pmf, paper: when noise is drawn.',
  ),
  'method': flags.DEFINE_enum(
    'method',
    None,
    ['weights', 'sampling'],
    'personalized_pmf: how ratings get an epsilon below --epsilon or '
    '--threshold.',
  ),
  'pmf_steps': flags.DEFINE_integer(
    'pmf_steps', None, 'objective_pmf, paper: k1, steps without noise.'
  ),
  'noise_steps': flags.DEFINE_integer(
    'noise_steps', None, 'objective_pmf, paper: k2, steps with noise.'
  ),
  'epsilon_instant': flags.DEFINE_float(
    'epsilon_instant',
    None,
    "sdmf and sdbpr, paper: the paper's eps_I of one round, instead of "
    '--epsilon, which is its eps_P of all rounds.',
  ),
  'epsilon_value': flags.DEFINE_float(
    'epsilon_value', None, "sdmf, paper: the paper's eps_g; 0 is alpha = inf."
  ),
  'sign': flags.DEFINE_enum(
    'sign',
    None,
    ['true', 'perturbed'],
    'sdbpr, paper: the bits that the sign of a gradient comes from.',
  ),
  'sent': flags.DEFINE_float(
    'sent', None, 'sdmf and sdbpr: items that a client sends, on average.'
  ),
  'online': flags.DEFINE_float(
    'online', None, 'sdmf, sdbpr and untrusted_pmf: part of users in a round.'
  ),
  'tolerance': flags.DEFINE_float(
    'tolerance', None, 'sdmf and sdbpr: a move that counts as converged.'
  ),
  'decay': flags.DEFINE_float(
    'decay', None, 'sdmf, sdbpr and langevin: power of the step size decay.'
  ),
  'side_step': flags.DEFINE_float(
    'side_step', None, 'sdfm: step of linear and feature weights, relative.'
  ),
  'clip': flags.DEFINE_bool(
    'clip', None, 'langevin, paper: clip perturbed ratings to the scale.'
  ),
  'colluders': flags.DEFINE_integer(
    'colluders',
    None,
    'untrusted_pmf, sound: how many users may collude; each has a device.',
  ),
  'dropouts': flags.DEFINE_integer(
    'dropouts',
    None,
    'untrusted_pmf, sound: how many reports may not arrive.',
  ),
  'users': flags.DEFINE_enum(
    'users',
    None,
    ['static', 'dynamic'],
    'untrusted_pmf, paper: whether the same users are online in all rounds.',
  ),
  'rounds': flags.DEFINE_integer(
    'rounds', None, 'power_mf and untrusted_pmf: rounds.'
  ),
  'biases': flags.DEFINE_bool(
    'biases', None, 'nonprivate and als: whether users and items have biases.'
  ),
  'contribution': flags.DEFINE_float(
    'contribution',
    None,
    "dpals: bound on a user's terms in all items, in quarters of the scale.",
  ),
  'label_bound': flags.DEFINE_float(
    'label_bound',
    None,
    'dpals: residuals are clipped to +- this, in quarters of the scale.',
  ),
  'vector_share': flags.DEFINE_float(
    'vector_share', None, 'dpals: how much vectors weigh against biases.'
  ),
  'adaptivity': flags.DEFINE_float(
    'adaptivity', None, 'dpals: how much more weight rare items get, 0 to 1.'
  ),
  'feedback': flags.DEFINE_enum(
    'feedback',
    None,
    ['explicit', 'implicit'],
    'als: predict ratings, or rank items by whether users know them.',
  ),
  'alpha': flags.DEFINE_float(
    'alpha', None, 'als, implicit: confidence of a rating.'
  ),
  'solver': flags.DEFINE_enum(
    'solver', None, ['cholesky', 'cg'], 'als: how equations are solved.'
  ),
}


class Chosen(NamedTuple):
  """What to train."""

  name: str
  variant: str
  entry: Any  # of dpmf_jax.systems.SYSTEMS
  config: Any


def chosen(
  ratings, *, dataset: str | None = None, data_dir: str | None = None
) -> Chosen:
  """What the flags say, for these ratings' numbers of users and items.

  Args:
    ratings: of which no rating is looked at.
    dataset, data_dir: where attributes of users and items are.
  """
  from dpmf_jax.systems import SYSTEMS

  name, settings = _named(ratings)
  if _VARIANT.value == 'sound':
    name = _SOUND.get(name, name)
  entry = SYSTEMS[name]
  variant = _variant(name, entry)
  settings |= attributes.settings(
    _fields(entry), ratings, dataset=dataset, data_dir=data_dir
  )
  config = _config(name, variant, entry, ratings.scale, settings)
  if entry.resolved:
    config = entry.resolved(config, ratings.num_users, ratings.num_items)
  return Chosen(name, variant, entry, config)


def _named(ratings) -> tuple[str, dict[str, Any]]:
  """The system's name, and for --system=auto its settings."""
  from dpmf_jax.plans.choice import choice

  if SYSTEM.value != 'auto':
    return SYSTEM.value, {}
  epsilon, delta = (_SETTINGS[name].value for name in ('epsilon', 'delta'))
  if epsilon is None:
    raise ValueError('--system=auto needs --epsilon, such as --epsilon=1')
  return choice(
    _SETTINGS['unit'].value or 'rating',
    num_users=ratings.num_users,
    num_items=ratings.num_items,
    epsilon=epsilon,
    delta=delta,
  )


def _variant(name: str, entry) -> str:
  """The variant asked for; what only has 'none' is that."""
  asked, known = _VARIANT.value, entry.variants
  if asked in known:
    return asked
  if 'none' in known and len(known) == 1:
    return 'none'
  if _VARIANT.present or 'paper' not in known:
    raise ValueError(
      f'--variant={asked} is not one of --system={name}, which has '
      f'{", ".join(sorted(known))}'
    )
  raise ValueError(
    f'--system={name} has no sound variant: say --variant='
    f'{" or --variant=".join(sorted(known))}'
  )


def _fields(entry) -> set[str]:
  """The settings that its config has."""
  return {field.name for field in dataclasses.fields(entry.config)}


def _config(name: str, variant: str, entry, scale, chosen) -> Any:
  """The config of the system from the flags, over what was `chosen`."""
  fields = _fields(entry)
  settings = {**entry.variants[variant], **chosen, 'scale': scale}
  for setting, flag in _SETTINGS.items():
    if flag.value is None:
      continue
    if setting in fields:
      value = flag.value
      settings[setting] = tuple(value) if isinstance(value, list) else value
    elif flag.present and not (setting == 'unit' and SYSTEM.value == 'auto'):
      raise ValueError(f'--{setting} is not a setting of --system={name}')
  if personalized(name):
    method = settings.get('method', getattr(entry.config, 'method', 'weights'))
    t = specifications.threshold(method=method)
    settings |= {} if t is None else {'epsilon': t}
  needed = 'epsilon' in fields and variant != 'none'
  if needed and not settings.keys() & {
    'epsilon',
    'epsilon_instant',
    'noise_multiplier',
    'epsilon_per_step',
  }:
    raise ValueError(
      '--epsilon is missing: say how much privacy loss is allowed, for '
      'example --epsilon=1 (smaller is more private)'
      + ('; or --threshold=best' if 'method' in fields else '')
    )
  return entry.config(**settings)


def personalized(name: str) -> bool:
  """Whether a system reads the epsilon of each rating."""
  from dpmf_jax.systems import SYSTEMS

  return name != 'auto' and SYSTEMS[name].personal is not None


def epsilon() -> float | None:
  """The value of --epsilon."""
  return _SETTINGS['epsilon'].value
