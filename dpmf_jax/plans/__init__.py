"""Every system by name: its settings, what they cost, and what is stated."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from dpmf_jax.plans.settings import settings_of
from dpmf_jax.plans.spec import Plan, Spec
from dpmf_jax.types import Guarantee

# A new system is a line here, `plans/NAME.py` with a SPEC and `systems/NAME.py`
# with a function of that name; docs/contributing.md has a guide. What else is
# in SPECS was registered by others, who state and do not prove.
NAMES = (
  'gaussian_mf',
  'objective_pmf',
  'personalized_pmf',
  'power_mf',
  'dpals',
  'moments',
  'ranking_mf',
  'local_mf',
  'local_ranking',
  'sdmf',
  'sdbpr',
  'sdfm',
  'langevin',
  'untrusted_pmf',
  'als',
  'ease',
  'nonprivate',
)
SPECS: dict[str, Spec] = {
  name: importlib.import_module(f'{__name__}.{name}').SPEC for name in NAMES
}

# What scripts call something else, or several of them.
_TAKEN = (
  *NAMES,
  'all',
  'auto',
  'gaussian',
  'subsampled_gaussian',
  'laplace',
  'randomized_response',
)
VARIANTS = ('sound', 'paper', 'none')


def add(spec: Spec) -> None:
  """Puts the spec of another system into SPECS; see `systems.register`.

  What it calls proved is 'stated' there.
  """
  if not spec.name.isidentifier() or spec.name in _TAKEN:
    raise ValueError(
      f'name={spec.name!r} must be a Python name other than '
      f'{", ".join(sorted(_TAKEN))}'
    )
  if not spec.variants or not {*spec.variants} <= {*VARIANTS}:
    raise ValueError(
      f'variants={[*spec.variants]} must be some of {", ".join(VARIANTS)}'
    )
  kinds = {
    each.name: (each.kind, name)
    for name in NAMES
    for each in settings_of(SPECS[name].config)
  }
  for each in settings_of(spec.config):
    kind, name = kinds.get(each.name, (each.kind, spec.name))
    if kind is not each.kind:
      raise ValueError(
        f'{each.name!r} of {spec.name} must be {kind.__name__}, as in {name}, '
        f'or have another name: got {each.kind.__name__}'
      )

  def plan(*args: Any, **options: Any) -> Plan:
    made = spec.plan(*args, **options)
    return dataclasses.replace(made, guarantee=as_stated(made.guarantee))

  SPECS[spec.name] = spec._replace(plan=plan)


def as_stated(guarantee: Guarantee) -> Guarantee:
  """The guarantee as that of a system which is not of this library."""
  if guarantee.status != 'proved':
    return guarantee
  return dataclasses.replace(guarantee, status='stated')


def config_of(name: str, variant: str, **settings: Any) -> Any:
  """The config of a system's variant, with `settings` over those of it."""
  spec = SPECS[name]
  preset = dict(spec.variants[variant])
  if settings.get('optimizer') is not None:
    preset.pop('step_size', None)  # is not for another optimizer
  return spec.config(**{**preset, **settings})
