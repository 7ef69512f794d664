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
  module = importlib.import_module(f'{__name__}.{name}')
  return getattr(module, name)(config, *features)


def made(name: str, variant: str, **settings: Any) -> System:
  """The system `name` as `variant`, with `settings` over those of it."""
  return build(name, config_of(name, variant, **settings))
