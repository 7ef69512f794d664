"""Systems by name: `systems/NAME.py` has a function NAME of its config.

Those of others are registered: `register(spec, factory)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dpmf_jax import plans
from dpmf_jax.plans import SPECS, config_of
from dpmf_jax.plans.spec import Spec
from dpmf_jax.types import System

_REGISTERED: dict[str, Callable[..., System]] = {}


def register(spec: Spec, factory: Callable[..., System]) -> None:
  """Makes a system of one's own known by its name, in this process.

    dpmf_jax.register(SPEC, my_system)
    run = dpmf_jax.train(ratings, system='my_system', epsilon=2)
    dpmf_jax.audit('my_system')

  Args:
    spec: its name, config and plan; `plans/` has examples.
    factory: config (and features of users, where the spec takes them) ->
      System with the guarantee of that plan.

  `train`, `audit` and all that goes by names know it from then on; scripts do
  with `--plugin=MODULE`, a module that registers it when it is imported. A name
  may be registered again, in place of what it was.

  Privacy: what the plan calls proved is 'stated' wherever it is shown, and
  goes into no ledger: nobody but its author answers for it.
  """
  if not isinstance(spec, Spec):
    raise ValueError(
      f'spec of type {type(spec).__name__} must be a Spec; dpmf_jax/plans has '
      'examples'
    )
  if not callable(factory):
    raise ValueError(f'factory={factory!r} must be a function of a config')
  plans.add(spec)
  _REGISTERED[spec.name] = factory


def build(name: str, config: Any, *features: Any) -> System:
  """The system `name`, for a config of it; see `plans.SPECS`.

  `features` of users are for systems whose spec says that they take them.
  """
  from dpmf_jax.systems.traced import InFloat32

  if name in _REGISTERED:
    return _registered(name, config, *features)
  module = importlib.import_module(f'{__name__}.{name}')
  system = InFloat32(getattr(module, name))(config, *features)
  return system._replace(
    init=InFloat32(system.init), model=InFloat32(system.model)
  )


def _registered(name: str, config: Any, *features: Any) -> System:
  system = _REGISTERED[name](config, *features)
  stated = plans.as_stated(system.guarantee)
  planned = SPECS[name].plan(config)
  same = (stated, system.steps) == (planned.guarantee, planned.steps)
  # With features there is a plan for each number of them.
  if not same and not features:
    raise ValueError(
      f'the system {name!r} must have the guarantee and the steps of its plan, '
      f'got {system.steps} steps of {system.guarantee.mechanism!r}, planned '
      f'{planned.steps} of {planned.guarantee.mechanism!r}'
    )
  return system._replace(guarantee=stated)


def made(name: str, variant: str, **settings: Any) -> System:
  """The system `name` as `variant`, with `settings` over those of it."""
  return build(name, config_of(name, variant, **settings))
