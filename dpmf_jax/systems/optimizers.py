"""Optimizers whose step size is traced."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

# The learning rate of these lives in their state, so that every step size
# shares one compiled step.
SGD = optax.inject_hyperparams(optax.sgd)(learning_rate=0.0)
ADAM = optax.inject_hyperparams(optax.adam)(learning_rate=0.0)


def optimizer_state(
  optimizer: optax.GradientTransformation, params, step_size: float
) -> Any:
  """The initial state of `optimizer`, with `step_size` if it is SGD or ADAM."""
  state: Any = optimizer.init(params)
  if optimizer is SGD or optimizer is ADAM:
    rate = {'learning_rate': jnp.float32(step_size)}
    state = state._replace(hyperparams=state.hyperparams | rate)
  return state
