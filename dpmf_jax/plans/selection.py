"""Which system to run, and how, of what somebody asks for by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dpmf_jax import plans
from dpmf_jax.plans import auto
from dpmf_jax.plans.settings import settings_of
from dpmf_jax.plans.spec import Spec, Task

DELTA = 1e-6  # where none is asked for
# The systems whose sound form has another name.
_SOUND = {'sdmf': 'local_mf', 'sdfm': 'local_mf', 'sdbpr': 'local_ranking'}
# What says how much noise there is; one of them is needed.
_AMOUNTS = {
  'epsilon',
  'epsilon_instant',
  'noise_multiplier',
  'epsilon_per_step',
}

_NEEDED = (
  'say how much privacy loss is allowed, for example epsilon=1 (smaller is '
  'more private)'
)


class Selected(NamedTuple):
  """What to run."""

  name: str
  variant: str
  spec: Spec
  config: Any


def spec_of(name: str) -> Spec:
  """The spec of a system; ValueError names those that there are."""
  if name not in plans.SPECS:
    raise ValueError(
      f'system={name} is not one of {", ".join(plans.SPECS)} and auto'
    )
  return plans.SPECS[name]


def fields(spec: Spec) -> set[str]:
  """The names of a system's settings."""
  return {each.name for each in settings_of(spec.config)}


def run_as(name: str, variant: str | None) -> str:
  """The name of the system that a variant of this one is."""
  return _SOUND.get(name, name) if variant in (None, 'sound') else name


def selected(
  name: str,
  given: Mapping[str, Any],
  *,
  variant: str | None = None,
  delta: float | None = None,
  **more: Any,
) -> Selected:
  """The system that is asked for, with its config.

  Args:
    name: of the system.
    given: settings by name; None is not given.
    variant: sound by default, where there is such a one.
    delta: of the guarantee; `DELTA` by default where the system has one.
    **more: settings that go before those, such as what `auto` chose, or that
      nobody types, such as the scale of ratings.
  """
  name = run_as(name, variant)
  spec = spec_of(name)
  variant = _variant(name, spec, variant)
  known = fields(spec)
  if delta is None and 'delta' in known:
    delta = DELTA
  settings = dict(more)
  for setting, value in {**given, 'delta': delta}.items():
    if value is None:
      continue
    if setting not in known:
      raise ValueError(
        f'{setting}={value} is not a setting of system={name}'
        f'{_meant(setting, known)}'
      )
    settings[setting] = value
  needed = 'epsilon' in known and variant != 'none'
  preset = spec.variants[variant].keys()
  if needed and not (settings.keys() | preset) & _AMOUNTS:
    rest = '; or threshold=best' if spec.personalized else ''
    raise ValueError(f'{_NEEDED}{rest}')
  config = plans.config_of(name, variant, **settings)
  return Selected(name, variant, spec, config)


def _meant(setting: str, known: Iterable[str]) -> str:
  found = difflib.get_close_matches(setting.lower(), known, 1)
  return f'; did you mean {found[0]}?' if found else ''


def _variant(name: str, spec: Spec, asked: str | None) -> str:
  """The variant asked for; what only has 'none' is that."""
  known = spec.variants
  if (asked or 'sound') in known:
    return asked or 'sound'
  if list(known) == ['none'] and asked in (None, 'sound'):
    return 'none'
  if asked is not None or 'paper' not in known:
    raise ValueError(
      f'variant={asked} is not one of system={name}, which has '
      f'{", ".join(sorted(known))}'
    )
  raise ValueError(
    f'system={name} has no sound variant: say variant='
    f'{" or variant=".join(sorted(known))}'
  )


def automatic(
  given: Mapping[str, Any],
  *,
  task: Task,
  delta: float | None = None,
  num_users: int,
  num_items: int,
  items_known: bool = False,
  in_ledger: bool = False,
) -> tuple[str, dict[str, Any], dict[str, Any]]:
  """(system, what is left of `given`, settings) that `auto` chooses."""
  rest = dict(given)
  if rest.get('epsilon') is None:
    known = set().union(*map(fields, plans.SPECS.values()))
    for setting in rest.keys() - known:
      if rest[setting] is None:
        continue
      raise ValueError(
        f'{setting}={rest[setting]} is not a setting of any system'
        f'{_meant(setting, known)}'
      )
    raise ValueError(_NEEDED)
  unit = rest.pop('unit', None) or 'rating'
  if task == 'ranking':
    return 'ranking_mf', rest, {'unit': unit}
  name, settings = auto.recommended(
    unit,
    num_users=num_users,
    num_items=num_items,
    epsilon=rest['epsilon'],
    delta=DELTA if delta is None else delta,
    items_known=items_known,
    in_ledger=in_ledger,
  )
  return name, rest, settings
