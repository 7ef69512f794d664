"""What noisy power MF asks of ratings: sums over them, or users, with noise.

What is released depends on ratings through these alone; `power_mf_steps` says
what is made of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.kernels import lattice, normal
from dpmf_jax.kernels.slices import each_rating, take
from dpmf_jax.mechanisms import geometric, laplace, noise
from dpmf_jax.plans import power_mf as settings
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.row_means import Means, Pair
from dpmf_jax.systems.user_levels import levels_of_users
from dpmf_jax.types import Factors


class Sums(NamedTuple):
  """Noisy sums of items that several steps have asked for."""

  total: jax.Array  # [I], weighted by precision
  precision: jax.Array  # [] of the noise


class State(NamedTuple):
  """All of it is computed from noisy sums."""

  factors: Factors  # [U, D], [I, D]
  user: Means  # biases and counts
  item: Means  # means, from the middle of the scale, and counts
  known: Means  # the same, by all that was asked for of items
  prior: jax.Array  # [D, D] covariance of users' vectors
  # Of items, where these are asked for instead of factors.
  counted: Sums  # ratings
  left: Sums  # what the means leave of them, clipped
  pair: Pair  # what `item` is made of, from the middle of the scale
  level: jax.Array  # [] mean square of users' biases
  ratings: jax.Array  # int32, how many; 0 before they are asked for
  levels: jax.Array  # int32 [2], of `levels_of_users`; 0 as long as not asked
  gain: jax.Array  # [] of factors where they were tried, above 0 if they help
  done: jax.Array  # int32, steps so far
  hyper: Any  # `traced`


def labels(rows: Rows, hyper: Any, column_mean, row_mean=None) -> jax.Array:
  """What the means leave of each rating, [C, S, L], in quarters.

  Privacy: of a rating, its own value and means alone, elementwise.
  """
  middle = (hyper.low + hyper.high) / 2

  def left(rows: Rows, column: jax.Array, row: jax.Array, *means) -> jax.Array:
    column_mean, row_mean = means
    label = jnp.clip(rows.value, hyper.low, hyper.high) - middle
    label = label / hyper.quarter
    if column_mean is not None:
      label = label - take(column_mean, column)
    if row_mean is not None:
      label = label - take(row_mean, row)[..., None]
    return label

  return each_rating(left, rows, column_mean, row_mean)


def of_part(rows: Rows, label: jax.Array, *, apart: bool) -> jax.Array:
  """`label`, NaN, which counts as nothing, but for a part of all pairs.

  Privacy: which pairs of a user and an item are `apart` is a function of their
  places in the lists, so that a rating is in sums of its own part alone.
  """
  row = jnp.broadcast_to(rows.row[..., None], rows.column.shape)
  user, item = (row, rows.column) if rows.side == 'user' else (rows.column, row)
  mixed = user.astype(jnp.uint32) * np.uint32(0x9E3779B1)
  mixed = (mixed ^ (mixed >> 15)) + item.astype(jnp.uint32)
  mixed = mixed * np.uint32(0x85EBCA77)
  mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE3D)
  of_it = (mixed >> 16) % np.uint32(settings.TRIED_PART) == 0
  return jnp.where(of_it == apart, label, jnp.nan)


def noisy_pair(key, state: State, rows: Rows, others: int, label, how):
  """Noisy counts and sums of rows, a `Pair` for `shrunk_means`.

  Privacy: `normal.lattice_equations` with factors that are all 1 has exact
  sums; one rating moves (count_scale * count, sum) of its row by at most
  `pair_sensitivity`, and no other row.
  """
  pure, shift = how
  hyper, shape = state.hyper, (rows.num_rows, 2)
  counts = normal.lattice_equations(
    rows,
    jnp.ones((others, 1)),
    label,
    clip_norm=1.0,
    label_bound=settings.LABEL_BOUND,
    shift=shift,
  )
  if pure:
    draws = laplace.l2_laplace(key, shape, rows.mesh)
  else:
    (draws,) = noise.draws(key, [shape], rows.mesh, spread=[_apart(rows)])
  # Those of means alone are the last.
  place = -1 if pure else state.done - hyper.before
  of_count, of_total = (_at(own, place) for own in (hyper.counts, hyper.totals))
  column = lambda k: noise.Draws(*(part[:, k] for part in draws))
  count = of_count.add(counts.matrix[:, 0], column(0))
  total = of_total.add(counts.vector[:, 0], column(1))
  # Of a coordinate of L2-Laplace noise in two dimensions, or of Gaussian.
  variance = jnp.square(of_total.std) * (3.0 if pure else 1.0)
  return Pair(count, total, variance / jnp.square(hyper.count_scale), variance)


def noisy_sums(key, state: State, rows: Rows, label, own, other):
  """Noisy sums [R, D] of (prediction - label) times `other`, over ratings.

  Args:
    own: factors of the rows, for predictions.
    other: factors of the other side, shortened to norm 1.

  Privacy: given both sides' factors, which earlier releases gave, one rating
  moves the exact sum of its row by at most `row_sensitivity`, and no other.
  """
  hyper = state.hyper
  sums = lattice.row_gradient(
    dataclasses.replace(rows, value=label),
    lattice.columns(own, jnp.float32(1)),
    lattice.columns(other, jnp.float32(1)),
    offset=jnp.float32(0),
    low=jnp.float32(-np.inf),
    high=jnp.float32(np.inf),
    residual_bound=hyper.residual_bound,
    shift=hyper.lattice_shift,
  )
  (draws,) = noise.draws(key, [sums.shape], rows.mesh, spread=[_apart(rows)])
  return row_noise(state).add(sums, draws)


def _apart(rows: Rows) -> bool:
  """Whether each device has rows of its own."""
  return rows.homes and rows.side == 'user'


def row_noise(state: State) -> noise.LatticeNoise:
  """Of sums of factors, which are asked for after counts and sums."""
  return _at(state.hyper.rows, state.done - state.hyper.before - 2)


def _at(table: noise.LatticeNoise, step: jax.Array | int) -> noise.LatticeNoise:
  return jax.tree.map(lambda column: column[step], table)


def with_number(key, state: State, data: Data) -> State:
  """How many ratings there are, noisy.

  Privacy: one rating moves the exact integer by 1; see `geometric_noise`.
  """
  exact = jnp.sum(data.by_user.length, dtype=jnp.int32)
  noisy = exact + geometric.geometric_noise(key, state.hyper.coins)
  return state._replace(ratings=noisy)


def with_levels(key, state: State, data: Data) -> State:
  """How users differ in level, noisy.

  Privacy: given item means, which an earlier step released, one rating moves
  the exact integers by `plans.user_levels.sensitivities`; see
  `geometric_noise`.
  """
  exact = levels_of_users(
    data.by_user, labels(data.by_user, state.hyper, state.item.mean)
  )
  keys = jax.random.split(noise.unrolled(key))
  noisy = [
    geometric.geometric_noise(own, coins)
    for own, coins in zip(keys, state.hyper.level_coins, strict=True)
  ]
  return state._replace(levels=exact + jnp.stack(noisy))
