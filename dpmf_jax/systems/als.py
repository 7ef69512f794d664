"""Plain alternating least squares: the baseline of `dpals`, not private.

Explicit: ratings are predicted, with biases as further columns: a user row is
(p_u, b_u, 1) and an item row (q_i, 1, b_i), with the ones held fixed.

Reference: Zhou, Wilkinson, Schreiber and Pan (2008), Large-scale Parallel
Collaborative Filtering for the Netflix Prize, section 3. Differs from the
paper: the ridge grows with the square root of the number of ratings and not
with that number, which has a lower held-out error on MovieLens.

Implicit: what is predicted is how much an interaction counts, x (`Counted`),
with confidence 1 + alpha x, and 0 with confidence 1 for all the rest.

Reference: Hu, Koren and Volinsky (2008), Collaborative Filtering for Implicit
Feedback Datasets, eq. (3) to (5): with Y^T Y computed once for all users, the
work is proportional to the ratings and not to users times items. Differs from
the paper: low ratings count less and not 1 with less confidence, and the ridge
grows as above; both make better lists on MovieLens.

A side's equations are solved by a few conjugate gradient iterations from where
the sweep before ended. On MovieLens that is as accurate as exact solutions.

Reference: Takacs, Pilaszy and Tikk (2011), Applications of the Conjugate
Gradient Method for Implicit Feedback Collaborative Filtering.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.kernels import conjugate, normal
from dpmf_jax.kernels.profiles import counts
from dpmf_jax.kernels.slices import row_counts, take
from dpmf_jax.plans.als import SPEC, ALSConfig
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.traced import counted, traced
from dpmf_jax.types import Factors, Release, System

# Least confidence of an implicit rating, which is divided by.
_MIN_CONFIDENCE = 1e-3


class State(NamedTuple):
  factors: Factors
  hyper: Any  # `traced`


def _solved(
  rows: Rows,
  factors: jax.Array,
  label: jax.Array,
  ridge: jax.Array,
  start: jax.Array,
  iterations: int | None,
  *,
  weight: jax.Array | None = None,
  common: jax.Array | None = None,
  constant: jax.Array | None = None,
) -> jax.Array:
  """`conjugate.solution`, or the exact one where `iterations` is None."""
  if iterations is not None:
    return conjugate.solution(
      rows,
      factors,
      label,
      ridge,
      start,
      weight=weight,
      common=common,
      constant=constant,
      iterations=iterations,
    )
  if constant is not None:
    column = jnp.full((len(factors), 1), constant)
    factors = jnp.concatenate([factors, column], axis=1)
  matrix, vector = normal.equations(rows, factors, label, weight)
  if common is not None:
    matrix = matrix + common[None]
  return normal.solve(matrix, vector, ridge)


def _ridge(rows: Rows, hyper: Any) -> jax.Array:
  """[R], growing with numbers of ratings."""
  # A row without ratings is 0, whatever its ridge.
  return hyper.ridge * jnp.sqrt(
    jnp.maximum(row_counts(rows).astype(jnp.float32), 1.0)
  )


def explicit_side(
  rows: Rows,
  own: jax.Array,
  other: jax.Array,
  other_bias: jax.Array | None,
  hyper: Any,
  iterations: int | None,
) -> jax.Array:
  """Factors [R, D] or [R, D + 1], the bias last, that fit a side best.

  Args:
    rows: the ratings by the rows that are solved for.
    own: [R, D] or [R, D + 1] to start from.
    other: [num_columns, D], the other side's factors.
    other_bias: [num_columns], or None without biases.
    hyper: settings.
    iterations: of conjugate gradients; None for the exact solution.
  """
  label, scale = rows.value - hyper.offset, None
  if other_bias is not None:
    label = label - take(other_bias, rows.column)
    # One ridge for all, on a column that is scaled to have its own.
    scale = jnp.sqrt(hyper.ridge / hyper.bias_ridge)
    own = own.at[:, -1].divide(scale)
  ridge = _ridge(rows, hyper)
  found = _solved(rows, other, label, ridge, own, iterations, constant=scale)
  return found if scale is None else found.at[:, -1].multiply(scale)


def implicit_side(
  rows: Rows,
  own: jax.Array,
  other: jax.Array,
  hyper: Any,
  iterations: int | None,
) -> jax.Array:
  """Factors [R, D] by Hu et al., eq. (4): (Y^T Y + Y^T (C - 1) Y + ridge)^-1
  Y^T C p, with p = x for what was rated."""
  x = counts(rows.value, hyper.counted)
  weight = jnp.maximum(hyper.alpha * x, _MIN_CONFIDENCE)  # c - 1
  return _solved(
    rows,
    other,
    (1.0 + weight) / weight * x,  # times the weight it is c p
    _ridge(rows, hyper),
    own,
    iterations,
    weight=weight,
    common=other.T @ other,
  )


@functools.cache
def _explicit_step(biases: bool, iterations: int | None):
  """One sweep; one object for equal arguments."""

  def step(key: jax.Array, state: State, data: Data) -> State:
    del key  # Nothing is drawn.
    user, item = state.factors
    hyper = state.hyper
    if not biases:
      user = explicit_side(data.by_user, user, item, None, hyper, iterations)
      item = explicit_side(data.by_item, item, user, None, hyper, iterations)
    else:
      found = explicit_side(
        data.by_user, user[:, :-1], item[:, :-2], item[:, -1], hyper, iterations
      )
      user = user.at[:, :-1].set(found)
      own = jnp.concatenate([item[:, :-2], item[:, -1:]], axis=1)
      found = explicit_side(
        data.by_item, own, user[:, :-2], user[:, -2], hyper, iterations
      )
      item = item.at[:, :-2].set(found[:, :-1]).at[:, -1].set(found[:, -1])
    return State(Factors(user, item), hyper)

  return step


@functools.cache
def _implicit_step(iterations: int | None):
  """One sweep; one object for equal arguments."""

  def step(key: jax.Array, state: State, data: Data) -> State:
    del key  # Nothing is drawn.
    user, item = state.factors
    user = implicit_side(data.by_user, user, item, state.hyper, iterations)
    item = implicit_side(data.by_item, item, user, state.hyper, iterations)
    return State(Factors(user, item), state.hyper)

  return step


# Operation by operation it takes a second the first time.
@functools.partial(jax.jit, static_argnums=(3, 4))
def _start(
  key: jax.Array, data: Data, init_std: float, width: int, biases: bool
) -> tuple[Factors, jax.Array]:
  """Factors to start from, and the mean of the ratings."""
  user_key, item_key = jax.random.split(key)

  def side(key, num_rows, one):
    rows = jax.random.normal(key, (num_rows, width)) * init_std
    if not biases:
      return rows
    extra = jnp.zeros((num_rows, 2)).at[:, one].set(1.0)
    return jnp.concatenate([rows, extra], axis=1)

  total = jnp.sum(data.by_user.value)  # padding has value 0
  mean = total / jnp.maximum(jnp.sum(data.by_user.length), 1)
  start = Factors(
    side(user_key, data.by_user.num_rows, 1),
    side(item_key, data.by_item.num_rows, 0),
  )
  return start, mean


def _model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, state.hyper.offset)


def als(config: ALSConfig) -> System:
  """Alternating least squares without any privacy, to compare with.

  Privacy: none. Everything it releases is computed from ratings as they are.
  """
  implicit = config.feedback == 'implicit'
  biases = config.biases and not implicit

  def init(key: jax.Array, data: Data) -> State:
    start, mean = _start(key, data, config.init_std, config.width, biases)
    return State(
      start,
      traced(
        config,
        'ridge',
        'bias_ridge',
        'alpha',
        offset=0.0 if implicit else mean,
        counted=counted(config),
      ),
    )

  if implicit:
    step = _implicit_step(config.iterations)
  else:
    step = _explicit_step(biases, config.iterations)
  return SPEC.plan(config).system(init, step, _model, scale=config.scale)
