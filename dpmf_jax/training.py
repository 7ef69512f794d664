"""`fit`: the jit around steps. They run in blocks, with callbacks between.

The loop inside a block has a traced length, so one compilation serves every
block length, noise level and step size of a data shape.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from dpmf_jax.homes import (
  everywhere,
  gathered,
  map_tables,
  padded,
  put_homes,
  spread_items,
  trimmed,
)
from dpmf_jax.rows import Data, check_scale, check_side, put_replicated
from dpmf_jax.types import Kinds, System


class Progress(NamedTuple):
  """What callbacks get at a block boundary."""

  step: int  # steps done so far
  state: Any


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
  """What is proved is about float32, which by default not all dots have.

  Fewer bits would save little: steps wait for memory, on all platforms.
  """
  with jax.enable_x64(False), jax.default_matmul_precision('highest'):
    yield


@functools.partial(jax.jit, static_argnames=('step',))
def _block(step, key, state, data, first, length):
  """State after `length` steps from number `first`."""

  def body(number, state):
    # The key of a step depends on its number alone: a resumed run draws the
    # noise that the interrupted one would have drawn.
    state = step(jax.random.fold_in(key, number), state, data)
    return _inside(state, data)

  state = jax.lax.fori_loop(first, first + length, body, _inside(state, data))
  return _between(state, data)


def _tables(data: Data, user: Any, item: Any, state: Any) -> Any:
  """`state` with functions of those tables that are spread."""
  rows = data.by_user
  if rows.homes:
    state = map_tables(state, user=lambda x: user(x, rows.num_rows, rows.mesh))
  if rows.items != 'everywhere':
    state = map_tables(state, item=lambda x: item(x, rows.num_items, rows.mesh))
  return state


def _inside(state: Any, data: Data) -> Any:
  """`state` as steps have it."""
  whole = data.by_user.items == 'between'
  return _tables(data, trimmed, gathered if whole else trimmed, state)


def _between(state: Any, data: Data) -> Any:
  """`state` as it is between programs."""
  return _tables(data, padded, padded, state)


@functools.partial(jax.jit, static_argnames=('which',))
def _next(which, key, state, data, number):
  """The kind and the key of step `number`."""
  return which(_inside(state, data)), jax.random.fold_in(key, number)


@functools.partial(jax.jit, static_argnames=('step',))
def _one(step, key, state, data):
  state = step(key, _inside(state, data), data)
  return _between(_inside(state, data), data)


def _steps(step, key, state, data, first, length):
  """`_block`; where there are kinds of steps, of those alone that are run."""
  if not isinstance(step, Kinds):
    return _block(step, key, state, data, first, length)
  for number in range(first, first + length):
    kind, own_key = _next(step.which, key, state, data, number)
    state = _one(step.each[int(kind)], own_key, state, data)
  return state


def _put(state: Any, data: Data) -> Any:
  """`state` where steps take it."""
  rows = data.by_user
  if not rows.homes and rows.items == 'everywhere':
    return put_replicated(state, rows.mesh)
  whole = lambda leaf: put_replicated(leaf, rows.mesh)
  put = lambda size: lambda table: put_homes(table, size, rows.mesh)
  return map_tables(
    state,
    user=put(rows.num_rows) if rows.homes else whole,
    item=whole if rows.items == 'everywhere' else put(rows.num_items),
    others=whole,
  )


def data_for(system: System, data: Data) -> Data:
  """`data` with tables where the steps of `system` can have them."""
  if not system.users_apart:
    data = everywhere(data)
  if data.by_user.items == 'spread' and not system.items_apart:
    data = spread_items(data, 'between')
  return data


def check_data(system: System, data: Data) -> None:
  """Raises ValueError where `system` is not for such data."""
  if not isinstance(system, System):
    raise ValueError(
      f'system of type {type(system).__name__} must be a System, such as '
      'dpmf_jax.power_mf(...) returns'
    )
  if not isinstance(data, Data):
    raise ValueError(
      f'data of type {type(data).__name__} must be Data, which '
      'dpmf_jax.training_data(ratings) makes'
    )
  check_side(data.by_user, 'user')
  check_side(data.by_item, 'item')
  check_scale(data, system.scale)


def fit(
  system: System,
  key: jax.Array,
  data: Data,
  *,
  report_every: int | None = None,
  callbacks: Iterable[Callable[[Progress], None]] = (),
  start: tuple[int, Any] | None = None,
) -> Any:
  """The state after all `system.steps` steps.

  Args:
    system: what to train.
    key: the run's key, consumed here: one subkey for `init`, one for each
      step.
    data: `rows.training_data(ratings)`.
    report_every: steps in a block; all of them by default.
    callbacks: called with a `Progress` before the first and after each block.
    start: (steps done, state) of an interrupted run with the same key, to go
      on from there.

  Privacy: runs exactly the number of steps that the guarantee covers, no
  matter what the callbacks see. Callbacks that publish anything but the
  state's released part are outside the guarantee.
  """
  check_data(system, data)
  data = data_for(system, data)
  if not isinstance(key, jax.Array):
    raise ValueError(
      f'key={key!r} must be a key of JAX, such as dpmf_jax.random_key() draws'
    )
  with in_float32():
    init_key, steps_key = jax.random.split(key)
    done, state = start or (0, system.init(init_key, data))
  if not 0 <= done <= system.steps:
    raise ValueError(f'start at step {done}, but there are {system.steps}')
  block = system.steps if report_every is None else report_every
  if not isinstance(block, int) or block < 1:
    raise ValueError(f'report_every={report_every!r} must be at least 1')
  state = _put(state, data)
  callbacks = tuple(callbacks)
  for callback in callbacks:
    callback(Progress(done, state))
  while done < system.steps:
    # Boundaries are multiples of the block, wherever the run started.
    length = min(block - done % block, system.steps - done)
    with in_float32():
      state = _steps(system.step, steps_key, state, data, done, length)
    done += length
    for callback in callbacks:
      callback(Progress(done, state))
  return state
