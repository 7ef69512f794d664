"""The flags that say which system to run, and with which settings.

They are made of the settings that the systems' configs declare, so that a
setting has its bounds, its default and its help in one place, `plans/`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from absl import flags

from dpmf_jax import plans
from dpmf_jax.plans.settings import Setting, settings_of
from dpmf_jax.plans.spec import Spec

# The systems whose sound form has another name.
SOUND: dict[str, str] = dict.fromkeys(('sdmf', 'sdbpr', 'sdfm'), 'local_mf')
# What says how much noise there is; one of them is needed.
_AMOUNTS = {
  'epsilon',
  'epsilon_instant',
  'noise_multiplier',
  'epsilon_per_step',
}

SYSTEM_HELP = '\n'.join(
  f'  {name}: {spec.help}' for name, spec in plans.SPECS.items()
)


def fields(spec: Spec) -> set[str]:
  """The names of a system's settings."""
  return {each.name for each in settings_of(spec.config)}


def define_variant() -> flags.FlagHolder:
  """The flag --variant."""
  return flags.DEFINE_enum(
    'variant',
    'sound',
    ['sound', 'paper', 'none'],
    'sound: with a guarantee that is proved. paper: as published, with the '
    "paper's claim, which may not be true. none: without any.",
  )


def define(
  several: Collection[str] = (), own: Collection[str] = ()
) -> dict[str, flags.FlagHolder]:
  """A flag for every setting of any system, by name.

  Args:
    several: settings of which a script takes several values.
    own: settings for which it has a flag of its own.
  """
  found: dict[str, dict[str, Setting]] = {}
  for name, spec in plans.SPECS.items():
    for each in settings_of(spec.config):
      if each.declared.flag and each.name not in own:
        found.setdefault(each.name, {})[name] = each
  return {
    name: _defined(name, by_system, name in several)
    for name, by_system in found.items()
  }


def _defined(
  name: str, by_system: Mapping[str, Setting], several: bool
) -> flags.FlagHolder:
  text, first = _help(by_system), next(iter(by_system.values()))
  if several:
    return flags.DEFINE_list(name, None, f'{text} Several with --table={name}.')
  if first.kind is str:
    choices = sorted(
      {c for each in by_system.values() for c in each.choices or ()}
    )
    return flags.DEFINE_enum(name, None, choices, text)
  if first.kind is bool:
    return flags.DEFINE_bool(name, None, text)
  if first.kind is tuple:
    return flags.DEFINE_multi_float(name, None, text)
  kind = flags.DEFINE_integer if first.kind is int else flags.DEFINE_float
  return kind(name, None, text)


def _help(by_system: Mapping[str, Setting]) -> str:
  """What a setting is, and which systems have it with which default."""
  texts: dict[str, list[str]] = {}
  for system, each in by_system.items():
    texts.setdefault(each.help, []).append(system)
  said = (
    next(iter(texts))
    if len(texts) == 1
    else ' '.join(f'{", ".join(who)}: {text}' for text, who in texts.items())
  )
  defaults: dict[str, list[str]] = {}
  for system, each in by_system.items():
    none = each.default is dataclasses.MISSING or each.default is None
    value = '' if none else f'default {each.default}: '
    defaults.setdefault(value, []).append(system)
  shown = '; '.join(f'{v}{", ".join(who)}' for v, who in defaults.items())
  return f'{said} ({shown})'


class Chosen(NamedTuple):
  """What to run."""

  name: str
  variant: str
  spec: Spec
  config: Any


def chosen(
  name: str,
  variant: flags.FlagHolder,
  delta: flags.FlagHolder,
  given: Mapping[str, Any],
  **more: Any,
) -> Chosen:
  """What the flags say.

  Args:
    name: of the system.
    variant, delta: these flags.
    given: settings by name; None is not given.
    **more: settings that go before those of the flags, such as what `auto`
      chose, or have none, such as the scale.
  """
  if variant.value == 'sound':
    name = SOUND.get(name, name)
  spec = plans.SPECS[name]
  kind = _variant(name, spec, variant)
  known = fields(spec)
  settings = {**spec.variants[kind], **more}
  if delta.present or 'delta' in known:
    given = {**given, 'delta': delta.value}
  for setting, value in given.items():
    if value is None:
      continue
    if setting not in known:
      raise ValueError(f'--{setting} is not a setting of --system={name}')
    settings[setting] = value
  needed = 'epsilon' in known and kind != 'none'
  if needed and not settings.keys() & _AMOUNTS:
    raise ValueError(
      '--epsilon is missing: say how much privacy loss is allowed, for '
      'example --epsilon=1 (smaller is more private)'
      + ('; or --threshold=best' if spec.personalized else '')
    )
  return Chosen(name, kind, spec, spec.config(**settings))


def _variant(name: str, spec: Spec, flag: flags.FlagHolder) -> str:
  """The variant asked for; what only has 'none' is that."""
  asked, known = flag.value, spec.variants
  if asked in known:
    return asked
  if 'none' in known and len(known) == 1:
    return 'none'
  if flag.present or 'paper' not in known:
    raise ValueError(
      f'--variant={asked} is not one of --system={name}, which has '
      f'{", ".join(sorted(known))}'
    )
  raise ValueError(
    f'--system={name} has no sound variant: say --variant='
    f'{" or --variant=".join(sorted(known))}'
  )
