"""The public functions of systems: settings, as keywords, -> System.

They are made of what `plans/` declares, one for each system there.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from dpmf_jax.plans import SPECS, config_of
from dpmf_jax.plans.auto import recommended
from dpmf_jax.plans.settings import settings_of
from dpmf_jax.systems import build
from dpmf_jax.types import System, Unit


def factory(name: str) -> Callable[..., System]:
  """A function of the settings of system `name`, which returns the system.

  What is not given is as in the variant's settings, and else as in the config.
  """
  if name not in SPECS:
    raise ValueError(f'system={name!r} is not one of {", ".join(SPECS)}')
  signature = _signature(name)

  def system(**settings: Any) -> System:
    # Before what is missing: a name that was meant for it says more.
    if unknown := settings.keys() - signature.parameters.keys():
      raise TypeError(
        f'{name}: got an unexpected keyword argument {min(unknown)!r}'
      )
    try:
      given = signature.bind(**settings).arguments
    except TypeError as error:
      raise TypeError(f'{name}: {error}') from None
    features = given.pop('features', None)
    variant = given.pop('variant', signature.parameters['variant'].default)
    if variant not in (known := SPECS[name].variants):
      raise ValueError(f'{name}: {variant=} must be {_either(known)}')
    config = config_of(name, variant, **given)
    return build(name, config, *(() if features is None else (features,)))

  system.__name__ = system.__qualname__ = name
  system.__module__ = 'dpmf_jax'
  system.__doc__ = _docstring(name)
  setattr(system, '__signature__', signature)  # noqa: B010
  return system


def _signature(name: str) -> inspect.Signature:
  """With the defaults of the first variant, which is the sound one if any."""
  spec, needed = SPECS[name], inspect.Parameter.empty
  variant = next(iter(spec.variants))
  defaults = {
    each.name: needed if each.default is dataclasses.MISSING else each.default
    for each in settings_of(spec.config)
  }
  defaults |= spec.variants[variant]
  # A paper's claim, which may not be true, has to be asked for.
  defaults['variant'] = needed if variant == 'paper' else variant
  if spec.takes_features:
    defaults['features'] = None
  return inspect.Signature(
    [
      inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default)
      for each, default in defaults.items()
    ],
    return_annotation=System,
  )


def _docstring(name: str) -> str:
  spec = SPECS[name]
  said = {
    each.name: f'{each.help} Must be {each.bound}.' if each.bound else each.help
    for each in settings_of(spec.config)
  }
  said.setdefault('variant', f'{_either(spec.variants)}.')
  if spec.takes_features:
    said['features'] = '[U, D], of users, made without looking at the ratings.'
  lines = (
    textwrap.fill(
      f'{each}: {text}', 76, initial_indent='  ', subsequent_indent='    '
    )
    for each, text in said.items()
  )
  return '\n'.join(
    [
      spec.help,
      '\nArgs:',
      *lines,
      f'\nPrivacy: `guarantee` of the result states it, and the proof is in\n'
      f'`dpmf_jax.systems.{name}`.',
    ]
  )


def _either(names) -> str:
  return ' or '.join(map(repr, names))


def auto(
  *,
  epsilon: float,
  delta: float,
  scale: tuple[float, float],
  num_users: int,
  num_items: int,
  unit: Unit = 'rating',
) -> System:
  """The system that is best for these facts, by the rule of `plans.auto`.

  Args:
    epsilon, delta: of the guarantee.
    scale: (lowest, highest) possible rating.
    num_users, num_items: lengths of the id lists, which are public.
    unit: what is protected: one 'rating', or all those of a 'user'.

  Privacy: chosen from public facts; no rating is looked at.
  """
  name, settings = recommended(
    unit,
    num_users=num_users,
    num_items=num_items,
    epsilon=epsilon,
    delta=delta,
  )
  return factory(name)(epsilon=epsilon, delta=delta, scale=scale, **settings)
