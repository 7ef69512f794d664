"""The flags that say which system to run, and with which settings.

They are made of the settings that the systems' configs declare, so that a
setting has its bounds, its default and its help in one place, `plans/`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from absl import flags

from dpmf_jax import plans
from dpmf_jax.commands import (
  declaring,
  plugins,  # noqa: F401, before flags are made
)
from dpmf_jax.plans.settings import Setting, settings_of

# What is defined here belongs to the command that asks for it.
flags.disclaim_key_flags()

SYSTEM_HELP = '\n'.join(
  f'  {name}: {spec.help}' for name, spec in plans.SPECS.items()
)


class Variant:
  """Which of what a system's paper and this library have.

  Attributes:
    variant: sound, the default: with a guarantee that is proved. paper: as
      published, with the paper's claim, which may not be true. none: without
      any.
  """

  variant: Literal['sound', 'paper', 'none'] | None = None


@functools.cache
def _declared() -> dict[str, dict[str, Setting]]:
  """Settings that get a flag here: name -> system -> how it declares it.

  For delta scripts have one of their own, with a default.
  """
  found: dict[str, dict[str, Setting]] = {}
  for name, spec in plans.SPECS.items():
    for each in settings_of(spec.config):
      if each.declared.flag and each.name != 'delta':
        found.setdefault(each.name, {})[name] = each
  return found


def define(several: Collection[str] = ()) -> dict[str, flags.FlagHolder]:
  """A flag for every setting of any system, by name.

  Args:
    several: settings of which a script takes several values.
  """
  return {
    name: _defined(name, by_system, name in several)
    for name, by_system in _declared().items()
  }


def texts(system: str | None = None) -> dict[str, str]:
  """What `--help` says of each setting of a system, by name.

  Of no system in particular: what the first that has the setting says.
  """
  declared = _declared()
  if system is None:
    return {k: next(iter(v.values())).help for k, v in declared.items()}
  return {
    each.name: _text(each)
    for each in settings_of(plans.SPECS[system].config)
    if each.name in declared
  }


def _text(each: Setting) -> str:
  bound = each.bound.removesuffix(', or None')  # which is no flag at all
  facts = [bound] if bound else []
  if each.default is not dataclasses.MISSING and each.default is not None:
    facts.append(f'default {each.default}')
  return f'{each.help} ({"; ".join(facts)})' if facts else each.help


def _defined(
  name: str, by_system: Mapping[str, Setting], several: bool
) -> flags.FlagHolder:
  text, first = _help(by_system), next(iter(by_system.values()))
  if several:
    return declaring.flag(
      name, Sequence, f'{text} Several with --table={name}.'
    )
  choices = {c for each in by_system.values() for c in each.choices or ()}
  return declaring.flag(name, first.kind, text, sorted(choices))


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
