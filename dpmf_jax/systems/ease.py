"""EASE: each item from all others, by one linear regression; not private.

X [U, I] is what interactions count (`types.Counted`), Y = diag(a) X diag(g)
with a a power of how much users did and g one of how popular items are. The
weights B minimise ||Y - Y B||^2 + ridge ||B||^2 with a diagonal of zeros, and a
user's scores are x diag(g) B diag(1/g). With the eigenvalues s and vectors V of
Y^T Y and h = s / (s + ridge), off the diagonal

  B_ij = (V diag(h) V^T)_ij / d_j,    d_j = 1 - (V diag(h) V^T)_jj,

so that items have rows V_j diag(h)^(1/2) / (d_j g_j), and users the sum of
those of their own items times x d g^2, like those of `ranking_mf`. The columns
where h is largest are kept (`rank`); with all of them, lists of items that the
user does not have are those of B, to rounding. An item that they have gets
x (1 - d) / d more than B gives it.

Reference: Steck (2019), Embarrassingly Shallow Autoencoders for Sparse Data,
eq. (8). Not in it: what ratings count, both powers, and `rank`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.dense import eigen
from dpmf_jax.kernels.profiles import counts
from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.kernels.slices import Chunk, sum_over_slices
from dpmf_jax.plans.ease import SPEC, EASEConfig, check_items
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.traced import counted, traced
from dpmf_jax.types import Counted, Factors, Release, Sum, System

_COLUMNS = 256  # of Y^T Y that are computed at a time
# Popularity in rows of items, so little that it orders only what is equal
# otherwise: all items, for users without interactions.
_POPULARITY = 1e-4


class State(NamedTuple):
  factors: Factors  # no users; see `_model`
  weight: jax.Array  # [I], of `types.Sum`
  hyper: Any


def _times(rows: Rows, table: jax.Array, counted: Counted) -> jax.Array:
  """X times `table` [I, N] for rows of users, or X^T times [U, N]."""

  def slice_sums(chunk: Chunk, counted):
    x = jnp.where(chunk.mask, counts(chunk.value, counted), 0.0)
    return jnp.einsum('sl,sln->sn', x, chunk.column)

  return sum_over_slices(slice_sums, rows, table, (), counted)


def _squares(rows: Rows, counted: Counted) -> jax.Array:
  """The sum of x^2 of each row, [R]."""

  def slice_sums(chunk: Chunk, counted):
    x = jnp.where(chunk.mask, counts(chunk.value, counted), 0.0)
    return jnp.square(x).sum(axis=1)

  return sum_over_slices(slice_sums, rows, (), (), counted)


def _gram(data: Data, user: jax.Array, counted: Counted) -> jax.Array:
  """X^T diag(user) X, [I, I], with work interactions times items."""
  items = data.by_item.num_rows
  blocks = -(-items // _COLUMNS)

  def columns(block: jax.Array) -> jax.Array:
    place = jnp.arange(_COLUMNS)[None] + block * _COLUMNS
    chosen = (jnp.arange(items)[:, None] == place).astype(jnp.float32)
    own = _times(data.by_user, chosen, counted) * user[:, None]
    return _times(data.by_item, own, counted)

  found = jax.lax.map(columns, jnp.arange(blocks))  # [blocks, I, columns]
  return found.swapaxes(0, 1).reshape(items, -1)[:, :items]


def _step(key: jax.Array, state: State, data: Data) -> State:
  del key  # Nothing is drawn.
  hyper, rank = state.hyper, state.factors.item.shape[1] - 1
  did = _squares(data.by_user, hyper.counted)
  user = jnp.where(did > 0, did ** (-2 * hyper.user_power), 0.0)
  ones = jnp.ones((data.by_user.num_rows, 1))
  popularity = _times(data.by_item, ones, hyper.counted)[:, 0]
  most = jnp.maximum(jnp.max(popularity), 1e-6)
  # One that nobody has is like one that somebody has a little.
  scale = (most / jnp.maximum(popularity, 0.5)) ** hyper.popularity_power
  gram = _gram(data, user, hyper.counted) * scale[:, None] * scale[None]
  size, vector = eigen(gram)
  size = jnp.maximum(size, 0.0)
  part = size / (size + hyper.ridge * jnp.maximum(jnp.sum(user), 1e-6))
  left = 1 - jnp.square(vector) @ part
  rows = vector[:, -rank:] * jnp.sqrt(part[-rank:])[None]  # the largest
  rows = rows / (left * scale)[:, None]
  first = (_POPULARITY / most * popularity)[:, None]
  item = jnp.concatenate([first, rows], axis=1)
  return State(Factors(None, item), left * jnp.square(scale), hyper)


def _model(state: State, data: Data) -> Release:
  item = state.factors.item
  prior = jnp.zeros(item.shape[1]).at[0].set(1.0)
  fit = Sum(prior, state.weight, state.hyper.counted)
  return fitted_users(
    data.by_user, Release(Factors(None, item), jnp.float32(0), fit)
  )


def ease(config: EASEConfig) -> System:
  """A linear model of all pairs of items without any privacy.

  Privacy: none. Everything it releases is computed from ratings as they are.
  """

  def init(key: jax.Array, data: Data) -> State:
    del key
    items = data.by_item.num_rows
    check_items(items)
    return State(
      Factors(None, jnp.zeros((items, 1 + min(config.rank, items)))),
      jnp.zeros(items),
      traced(
        config,
        'ridge',
        'user_power',
        'popularity_power',
        counted=counted(config),
      ),
    )

  return SPEC.plan(config).system(init, _step, _model, scale=config.scale)
