"""A private system to time, and what `fit` makes of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.plans.gaussian_mf import GaussianMFConfig
from dpmf_jax.rows import Data, put_replicated
from dpmf_jax.systems.gaussian_mf import gaussian_mf
from dpmf_jax.systems.traced import SGD
from dpmf_jax.types import System


def private_system(**settings: Any) -> System:
  """A sound `gaussian_mf` with these settings."""
  return gaussian_mf(
    GaussianMFConfig(
      variant='sound',
      relation='add_remove',
      scale=(1.0, 5.0),
      delta=1e-6,
      noise_multiplier=50.0,
      residual_bound=1.0,
      **settings,
    )
  )


def plain_step(key: jax.Array, state: Any, data: Data):
  """gaussian_mf's step without clipping, residual bound and noise."""
  del key
  factors, hyper = state.factors, state.hyper
  gradient = gradients(data, factors, offset=hyper.offset)
  ridged = jax.tree.map(lambda g, f: g + hyper.ridge * f, gradient, factors)
  updates, opt_state = SGD.update(ridged, state.optimizer, factors)
  factors: Any = optax.apply_updates(factors, updates)
  return state._replace(factors=factors, optimizer=opt_state)


def block_arguments(
  system: System, data: Data, step: Callable | None = None
) -> tuple:
  """What `fit` calls its jitted block of steps with."""
  key = jax.random.key(0)
  state = put_replicated(system.init(key, data), data.by_user.mesh)
  return step or system.step, key, state, data, 0, system.steps
