"""Outputs of many runs of a mechanism on either of two data sets.

A run is what a user gets: `init`, all steps, `release`. Runs are vmapped over
keys in batches that fit into memory, through the same block of steps, or kinds
of steps, as `training.fit`. Only the layout differs: slices of one rating each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax import training
from dpmf_jax.auditing.statistics import Block, Blocks, Score
from dpmf_jax.plans.spec import Start
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import AXIS, Data, training_data
from dpmf_jax.systems import gaussian_mf
from dpmf_jax.types import Factors, Kinds, Release, System, released

# Floats of all runs in a batch together, in the largest of its arrays.
_BATCH_FLOATS = 2**20
_BATCH_RUNS = 2**14


class Sampler(NamedTuple):
  """A mechanism on two neighbouring data sets, as the auditor sees it.

  Attributes:
    draw: (keys [N], which data set, 0 or 1) -> outputs [N, F].
    batch: the number of keys that `draw` is to be given.
    blocks: which columns of an output are which released matrix.
    log_ratio: the log likelihood ratio of an output, where it is known.
  """

  draw: Callable[[jax.Array, int], Any]
  batch: int
  blocks: Blocks
  log_ratio: Score | None = None


def tiny_data(first: Ratings, second: Ratings) -> tuple[Data, Data]:
  """Both as device data of one and the same shape, in a single chunk.

  A slice is a single rating: rows of few ratings would be mostly padding.
  There is room for 12 ratings at least, so that most pairs have that shape.
  """
  slices = max(len(first), len(second), 12)
  one, other = (
    training_data(ratings, slots=1, slices=slices, least_chunks=1)
    for ratings in (first, second)
  )
  return one, other


# Thousands of runs at once: steps and what is seen of them in one program.
@functools.partial(jax.jit, static_argnames=('step', 'seen', 'axes'))
def _outputs(step, seen, axes, keys, states, data, steps):
  """Outputs [N, F] of N runs.

  `axes` has 0 for a leaf of `states` that each run has of its own, None for
  one that all share.
  """

  def run(key, state):
    steps_key, release_key = jax.random.split(key)
    # Out of the loop, the last step computes no more than a view needs.
    last = seen.view is not None
    state = training._block(step, steps_key, state, data, 0, steps - last)
    if last:
      state = step(jax.random.fold_in(steps_key, steps - 1), state, data)
    return _observed(seen, release_key, state, data)

  return jax.vmap(run, (0, _like(states, axes)))(keys, states)


def _outputs_by_kind(step, seen, axes, keys, states, data, steps):
  """`_outputs` by those kinds of steps alone that some of the runs take.

  One program of all runs would compute every kind for each of them.
  """
  steps_keys, release_keys = _two_keys(keys)
  leaves = zip(jax.tree.leaves(states), axes, strict=True)
  ranks = [leaf.ndim - (axis == 0) for leaf, axis in leaves]
  for number in range(steps):
    kinds = np.asarray(_kinds(step.which, axes, steps_keys, states))
    for kind in np.unique(kinds):
      # Others wait: what they are next was found above.
      states = _moved(
        step.each[kind], axes, steps_keys, states, data, number, kinds == kind
      )
      leaves = zip(jax.tree.leaves(states), ranks, strict=True)
      axes = tuple(0 if leaf.ndim > rank else None for leaf, rank in leaves)
  return _seen_of(seen, axes, release_keys, states, data)


@jax.jit
def _two_keys(keys):
  """Keys [N] of all steps, and of the release."""
  both = jax.vmap(jax.random.split)(keys)
  return both[:, 0], both[:, 1]


@functools.partial(jax.jit, static_argnames=('which', 'axes'))
def _kinds(which, axes, keys, states):
  """The kind of step [N] that is next in each run; no key is used."""
  own = lambda key, state: which(state)
  return jax.vmap(own, (0, _like(states, axes)))(keys, states)


@functools.partial(jax.jit, static_argnames=('each', 'axes'))
def _moved(each, axes, keys, states, data, number, chosen):
  """States after a step of the runs that are `chosen` [N].

  Leaves that the step leaves alone, such as settings, stay as they are.
  """
  old, tree = jax.tree.flatten(states)
  moves: list[bool] = []

  def run(key, chosen, leaves):
    state = jax.tree.unflatten(tree, leaves)
    state = each(jax.random.fold_in(key, number), state, data)
    pairs = [*zip(jax.tree.leaves(state), leaves, strict=True)]
    moves[:] = [new is not old for new, old in pairs]
    return [
      jnp.where(chosen, *pair) for pair in pairs if pair[0] is not pair[1]
    ]

  new = iter(jax.vmap(run, (0, 0, [*axes]))(keys, chosen, old))
  leaves = [next(new) if m else o for m, o in zip(moves, old, strict=True)]
  return jax.tree.unflatten(tree, leaves)


@functools.partial(jax.jit, static_argnames=('seen', 'axes'))
def _seen_of(seen, axes, keys, states, data):
  """Outputs [N, F] of runs that have made all steps."""
  own = lambda key, state: _observed(seen, key, state, data)
  return jax.vmap(own, (0, _like(states, axes)))(keys, states)


def _like(states: Any, axes: tuple[int | None, ...]) -> Any:
  return jax.tree.unflatten(jax.tree.structure(states), axes)


class _Seen(NamedTuple):
  """What is made of the state; equal ones share what is compiled."""

  view: Callable[..., Any] | None
  model: Callable[..., Release]
  covered: tuple[str, ...]


def _observed(seen: _Seen, key: jax.Array, state: Any, data: Data) -> Any:
  """What `_arrays` has, as one array [F]."""
  leaves = _arrays(seen, key, state, data)
  return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])


def _arrays(seen: _Seen, key: jax.Array, state: Any, data: Data) -> list[Any]:
  """The arrays of a view, or of a release but for how users are fitted.

  A system that asks for what only that fit tells of has a view of it.
  """
  if seen.view is not None:
    return jax.tree.leaves(seen.view(key, state, data))
  release = released(seen.model(state, data), seen.covered)
  return jax.tree.leaves(release._replace(fit=None))


def _state_axes(init, key: jax.Array, data: Data) -> tuple[int | None, ...]:
  """0 for each leaf of the initial state that depends on the key.

  The others, such as settings and counters, stay one for all runs: a branch
  on a counter is then taken, and not both branches computed.
  """
  jaxpr = jax.make_jaxpr(lambda key: init(key, data))(key).jaxpr
  reached = set(jaxpr.invars)
  for equation in jaxpr.eqns:
    if any(isinstance(v, Var) and v in reached for v in equation.invars):
      reached.update(equation.outvars)
  return tuple(
    0 if isinstance(v, Var) and v in reached else None for v in jaxpr.outvars
  )


def sampler(
  system: System,
  data: tuple[Data, Data],
  *,
  start: Start,
  start_key: jax.Array,
  view: str | None = None,
  mesh: Mesh | None = None,
) -> Sampler:
  """Runs of `system` on either of `data`.

  Args:
    system: what to attack.
    data: neighbours, of the same shape.
    start: 'random': every run has an initial state of its own, as in use.
      'known': all runs have the one that `start_key` gives, which is then
      known to the attacker; a guarantee must hold for it, since it does not
      depend on ratings. 'aligned': the same, with all factors along the
      first axis, of norm 1.
    start_key: of the initial state.
    view: which of `System.views` the attacker has; the release where it is
      none of them.
    mesh: devices that share the runs of a batch.
  """
  for table in data:
    training.check_data(system, table)
  init_key, ratio_key = jax.random.split(start_key)
  # The same start for both: it does not depend on the data.
  states = [
    _aligned(system.init(jax.random.clone(init_key), d), start) for d in data
  ]
  if view not in (None, 'public', *system.views):
    raise ValueError(f'view={view!r} must be one of {sorted(system.views)}')
  seen = _Seen(
    system.views.get(view or ''), system.model, system.guarantee.released
  )
  leaves = jax.eval_shape(
    functools.partial(_arrays, seen),
    jax.random.clone(ratio_key),
    states[0],
    data[0],
  )
  blocks, place = [], 0
  for leaf in leaves:
    # The last axis is the rank of a matrix; a vector is one column.
    width = leaf.shape[-1] if leaf.ndim > 1 else 1
    blocks.append(Block(place, leaf.size // width, width))
    place += leaf.size
  floats = place + sum(rows.column.size for rows in data[0])
  rank = max(block.width for block in blocks)
  batch = int(np.clip(_BATCH_FLOATS // (floats * rank), 64, _BATCH_RUNS))
  batch = 1 << (batch.bit_length() - 1)
  if mesh is not None:
    batch = -(-batch // mesh.size) * mesh.size
  axes: tuple[int | None, ...] = (None,) * len(jax.tree.leaves(states[0]))
  if start == 'random':
    axes = _state_axes(system.init, jax.random.clone(init_key), data[0])

  def draw(keys: jax.Array, side: int):
    if mesh is not None:
      keys = jax.device_put(keys, NamedSharding(mesh, Spec(AXIS)))
    state = states[side]
    if start == 'random':
      splits = jax.vmap(jax.random.split)(keys)
      many = jax.vmap(system.init, (0, None))(splits[:, 1], data[side])
      leaves = zip(
        jax.tree.leaves(many), jax.tree.leaves(state), axes, strict=True
      )
      state = jax.tree.unflatten(
        jax.tree.structure(many),
        [own if axis == 0 else common for own, common, axis in leaves],
      )
      keys = splits[:, 0]
    run = _outputs_by_kind if isinstance(system.step, Kinds) else _outputs
    return run(system.step, seen, axes, keys, state, data[side], system.steps)

  ratio = None
  if start != 'random':
    ratio = _log_ratio(ratio_key, system, states, data)
  return Sampler(draw, batch, tuple(blocks), ratio)


def _aligned(state: Any, start: Start) -> Any:
  """The state with every factor row (1, 0, ..), if so asked."""
  if start != 'aligned':
    return state
  factors = Factors(
    *(jnp.zeros_like(side).at[:, 0].set(1.0) for side in state.factors)
  )
  return state._replace(factors=factors)


@functools.partial(jax.jit, static_argnums=0)
def _stepped(step, key, state, data):
  """A step; made outside of jit it would compile its loops in every call."""
  return step(key, state, data)


def _log_ratio(
  key: jax.Array, system: System, states: list[Any], data: tuple[Data, Data]
) -> Score | None:
  """log(p_second / p_first) of an output, or None where it is not known.

  Known for one SGD step of sound Gaussian MF from a known start: the factors
  are then Gaussian around those of a step without noise. The dither, whose
  variance is below 1/4000 of the noise's, is left out.
  """
  ours = isinstance(states[0], gaussian_mf.State) and system.steps == 1
  if not ours or system.guarantee.status not in ('proved', 'stated'):
    return None
  hyper = states[0].hyper
  optimizer: Any = states[0].optimizer
  rate = optimizer.hyperparams['learning_rate']
  stds = [float(rate * side.std) for side in hyper.noise]
  if min(stds) <= 0:
    return None
  means = []
  for state, table in zip(states, data, strict=True):
    quiet = (
      side._replace(
        std=jnp.zeros_like(side.std), dither=jnp.zeros_like(side.dither)
      )
      for side in hyper.noise
    )
    silent = hyper._replace(noise=Factors(*quiet))
    # The key is of noise that is multiplied by zero.
    silenced = state._replace(hyper=silent)
    after = _stepped(system.step, jax.random.clone(key), silenced, table)
    means.append([np.asarray(side, np.float64) for side in after.factors])
  shape = lambda side: np.full(means[0][side].size, stds[side])
  std = np.concatenate([shape(0), shape(1)])
  first, second = (
    np.concatenate([side.ravel() for side in mean]) for mean in means
  )

  def score(outputs: np.ndarray) -> np.ndarray:
    factors = np.asarray(outputs, np.float64)[:, : std.size]
    middle = (factors - (first + second) / 2) / std
    return middle @ ((second - first) / std)

  return score
