"""What is traced: changing a setting or a step size does not compile again."""

from __future__ import annotations

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

# The learning rate of these lives in their state, so that every step size
# shares one compiled step.
SGD = optax.inject_hyperparams(optax.sgd)(learning_rate=0.0)
ADAM = optax.inject_hyperparams(optax.adam)(learning_rate=0.0)
# The momentum of the classical PMF code; the papers give none.
MOMENTUM = optax.inject_hyperparams(optax.sgd)(learning_rate=0.0, momentum=0.8)


def optimizer_state(
  optimizer: optax.GradientTransformation, params, step_size: Any
) -> Any:
  """The initial state of `optimizer`, with `step_size` if it is one of ours."""
  state: Any = optimizer.init(params)
  if optimizer in (SGD, ADAM, MOMENTUM):
    rate = {'learning_rate': jnp.float32(step_size)}
    state = state._replace(hyperparams=state.hyperparams | rate)
  return state


def traced(config: Any, *names: str, **others: Any) -> Any:
  """A NamedTuple of arrays: settings of the config, and others, by name.

  Args:
    config: whose settings become float32; 'scale' becomes `low` and `high`.
    *names: of these settings, or of properties.
    **others: floats become float32 and integers int32; trees of arrays stay.
  """
  if 'scale' in names:
    low, high = config.scale
    others |= {'low': float(low), 'high': float(high)}
  settings = {n: float(getattr(config, n)) for n in names if n != 'scale'}
  settings |= others
  return _kind(tuple(settings))(*map(_arrays, settings.values()))


@functools.cache  # one for each place where `traced` is called
def _kind(names: tuple[str, ...]) -> Any:
  return collections.namedtuple('Traced', names)


def _arrays(value: Any) -> Any:
  if isinstance(value, int | float):
    return jnp.int32(value) if isinstance(value, int) else jnp.float32(value)
  return jax.tree.map(jnp.asarray, value)
