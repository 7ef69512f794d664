"""Systems by name: `systems/NAME.py` has a function NAME of its config."""

from __future__ import annotations

import importlib
from typing import Any

from dpmf_jax.plans import config_of
from dpmf_jax.types import System


def build(name: str, config: Any, *features: Any) -> System:
  """The system `name`, for a config of it; see `plans.SPECS`.

  `features` of users are for systems whose spec says that they take them.
  """
  from dpmf_jax.systems.traced import InFloat32

  module = importlib.import_module(f'{__name__}.{name}')
  system = InFloat32(getattr(module, name))(config, *features)
  return system._replace(
    init=InFloat32(system.init), model=InFloat32(system.model)
  )


def made(name: str, variant: str, **settings: Any) -> System:
  """The system `name` as `variant`, with `settings` over those of it."""
  return build(name, config_of(name, variant, **settings))
