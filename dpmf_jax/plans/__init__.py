"""Every system by name: its settings, what they cost, and what is stated."""

from __future__ import annotations

import importlib
from typing import Any

from dpmf_jax.plans.spec import Spec

# A new system is a line here, `plans/NAME.py` with a SPEC and `systems/NAME.py`
# with a function of that name; docs/design.md has a guide.
NAMES = (
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
  'nonprivate',
)
SPECS: dict[str, Spec] = {
  name: importlib.import_module(f'{__name__}.{name}').SPEC for name in NAMES
}


def config_of(name: str, variant: str, **settings: Any) -> Any:
  """The config of a system's variant, with `settings` over those of it."""
  spec = SPECS[name]
  preset = dict(spec.variants[variant])
  if settings.get('optimizer') is not None:
    preset.pop('step_size', None)  # is not for another optimizer
  return spec.config(**{**preset, **settings})
