"""What is traced: changing a setting or a step size does not compile again."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.plans.settings import slope
from dpmf_jax.types import Counted

# The learning rate of these lives in their state, so that every step size
# shares one compiled step.
SGD = optax.inject_hyperparams(optax.sgd)(learning_rate=0.0)
ADAM = optax.inject_hyperparams(optax.adam)(learning_rate=0.0)
# The momentum of the classical PMF code; the papers give none.
MOMENTUM = optax.inject_hyperparams(optax.sgd)(learning_rate=0.0, momentum=0.8)


@dataclass(frozen=True)
class InFloat32:
  """A function that computes in float32, dots too, whatever JAX is set to.

  Privacy: what is proved is about the floats that it was proved for.
  """

  function: Callable[..., Any]

  def __call__(self, *args: Any) -> Any:
    with jax.enable_x64(False), jax.default_matmul_precision('highest'):
      return self.function(*args)


class MadeAlike:
  """An optax transformation that equals those that were made in the same way.

  `optax.adam(0.02)` is another object each time. Steps with one of them are
  compiled once, if they are equal.
  """

  def __init__(self, given: optax.GradientTransformation):
    self.init, self.update = given.init, given.update
    self._made = _made((given.init, given.update), ())

  def __eq__(self, other: Any) -> bool:
    return isinstance(other, MadeAlike) and self._made == other._made

  def __hash__(self) -> int:
    return hash(self._made)


class _Same:
  """What equals itself alone, and is kept, so that its id stays its own."""

  def __init__(self, value: Any):
    self.value = value

  def __eq__(self, other: Any) -> bool:
    return isinstance(other, _Same) and self.value is other.value

  def __hash__(self) -> int:
    return id(self.value)


def _made(value: Any, outer: tuple[Any, ...]) -> Any:
  """What equals that of another value which does the same.

  Functions of optax are their code and what it closes over. Other functions
  may read what changes without them, such as a variable of a notebook: they
  equal themselves alone, as does all that is not a number or a word.
  """
  for place, each in enumerate(outer):
    if value is each:  # a function that calls itself
      return _made, place
  inner = functools.partial(_made, outer=(*outer, value))
  if isinstance(value, tuple):
    return type(value), *map(inner, value)
  if isinstance(value, float):
    return type(value), value.hex()  # 0.0 equals -0.0
  if value is None or isinstance(value, str | int):
    return type(value), value
  if (
    not isinstance(value, types.FunctionType)
    # Not `__module__`, which `functools.wraps` takes from what is wrapped.
    or value.__globals__.get('__name__', '').split('.')[0] != 'optax'
    or value.__kwdefaults__
  ):
    return _Same(value)
  try:
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
  except ValueError:  # one that is empty yet
    return _Same(value)
  return value.__code__, inner(value.__defaults__), *map(inner, cells)


def optimizer_or(
  default: optax.GradientTransformation,
  given: optax.GradientTransformation | None,
) -> Any:
  """The optimizer that a config gives, or else the default."""
  return default if given is None else MadeAlike(given)


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


def counted(config: Any) -> Counted:
  """How much interactions count, by the settings of the config."""
  numbers = (config.scale[0], config.least_weight, slope(config))
  return Counted(*map(jnp.float32, numbers))


@functools.cache  # one for each place where `traced` is called
def _kind(names: tuple[str, ...]) -> Any:
  return collections.namedtuple('Traced', names)


def _arrays(value: Any) -> Any:
  if isinstance(value, int | float):
    return jnp.int32(value) if isinstance(value, int) else jnp.float32(value)
  return jax.tree.map(jnp.asarray, value)
