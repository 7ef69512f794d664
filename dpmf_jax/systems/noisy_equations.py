"""Item factors from noisy normal equations against public user features.

For item j, with p_u the features of its raters, y = rating - center and w the
weights of ratings: A = sum w p p^T and b = sum w y p. A rating is in the
equations of one item only, so items compose in parallel. What is released is
computed from (count_scale * A, b) + noise, or from A and b + noise where who
rated what is public. Users fit a bias and a vector of their own to what is
released; that stays with them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpmf_jax.accounting.rounding import PRODUCT_BITS
from dpmf_jax.kernels import normal
from dpmf_jax.kernels.dense import eigen
from dpmf_jax.kernels.regression import ridge_fit
from dpmf_jax.mechanisms import laplace, noise
from dpmf_jax.mechanisms.clipping import clip_rows
from dpmf_jax.plans.objective_pmf import (
  ObjectivePMFConfig,
  plan,
)
from dpmf_jax.rows import Data
from dpmf_jax.systems.traced import traced
from dpmf_jax.types import Factors, Fit, Relation, Release

# Up to here an item's noise is made of 1,121 Gaussian draws at most, each of
# which ends, or has gaps, with a chance of exp(-REACH^2 / 2) = 2.6e-18.
MAX_RANK = 32


class State(NamedTuple):
  factors: Factors  # users: features and 0; items: vector and 1
  weight: jax.Array | None  # of ratings by item, as Rows.value
  hyper: Any  # `traced`, with what `equations_model` reads


def start(
  data: Data,
  features: ArrayLike | None,
  hyper: Any,
  weight: jax.Array | None = None,
) -> State:
  """The state before the one step: no rating has been looked at.

  Args:
    data: for the numbers of users and items only.
    features: [U, D] public; None is a constant 1, with which an item's
      vector is its mean.
    hyper: settings.
    weight: of ratings by item.
  """
  num_users = data.by_user.num_rows
  given = np.ones((num_users, 1)) if features is None else features
  features = jnp.asarray(given, jnp.float32)
  if features.shape[0] != data.by_user.num_rows or features.ndim != 2:
    raise ValueError(
      f'features of shape {features.shape} must have a row for each of the '
      f'{data.by_user.num_rows} users'
    )
  items = jnp.zeros((data.by_item.num_rows, features.shape[1] + 1))
  items = items.at[:, -1].set(1.0)
  return State(Factors(user_rows(features), items), weight, hyper)


def user_rows(features: jax.Array) -> jax.Array:
  """User factors [U, D + 1]: shortened features, and a bias of 0."""
  features = clip_rows(features, 1.0)
  return jnp.concatenate([features, jnp.zeros_like(features[:, :1])], axis=1)


# Settings that an item's equations are made and solved with, and users fitted.
SOLVED_WITH = (
  'label_bound', 'center', 'prior_variance', 'bias_ridge', 'vector_ridge',
)  # fmt: skip


def hyper_of(config: ObjectivePMFConfig, rank: int) -> Any:
  """The traced settings for features of that rank."""
  if rank > MAX_RANK:
    raise ValueError(f'features of rank {rank} must have at most {MAX_RANK}')
  spacing = 2.0 ** (config.shift - PRODUCT_BITS)
  limit = f'shift={config.shift}: use a larger shift or epsilon'
  # In float32, to the nearest: the scale has room for it (ROUNDED_UP). Off the
  # diagonal an entry of A stands for two, and has sqrt(1/2) of the noise.
  scale = np.float32(plan(config, rank).noise['equations'])
  row, column = np.triu_indices(rank)
  share = np.where(row == column, 1.0, 0.5**0.5).astype(np.float32)
  matrix = scale / np.float32(config.count_scale) * share
  return traced(
    config,
    *SOLVED_WITH,
    matrix=noise.lattice_noise(matrix[None], spacing, limit=limit),
    vector=noise.lattice_noise(
      float(scale), spacing * config.label_bound, limit=limit
    ),
  )


@functools.cache
def equations_step(relation: Relation, shift: int):
  """The one step; one object for equal arguments.

  Privacy: see the module. `lattice_equations` are exact sums of terms of one
  rating each, of which `equation_sensitivities` bounds the norm; off the
  diagonal an entry of A stands for two, so its noise is sqrt(1/2) as large.
  All the rest, down to the item factors, is computed from noisy sums and from
  what is public.
  """

  def step(key: jax.Array, state: State, data: Data) -> State:
    hyper, rows = state.hyper, data.by_item
    features = state.factors.user[:, :-1]
    rank = features.shape[1]
    counts = normal.lattice_equations(
      rows,
      features,
      rows.value - hyper.center,
      state.weight,
      clip_norm=1.0,
      label_bound=hyper.label_bound,
      shift=shift,
    )
    size = counts.matrix.shape[1]
    noised = rank if relation == 'replace' else size + rank
    draws = laplace.l2_laplace(key, (rows.num_rows, noised), data.by_user.mesh)
    vector = hyper.vector.add(
      counts.vector, _columns(draws, noised - rank, noised)
    )
    if relation == 'replace':
      matrix = counts.matrix * counts.matrix_spacing
    else:
      matrix = hyper.matrix.add(counts.matrix, _columns(draws, 0, size))
    # The variance of a coordinate of L2-Laplace noise in n dimensions.
    variance = jnp.square(hyper.vector.std) * (noised + 1)
    vectors = shrunk_solution(
      normal.symmetric(matrix), vector, variance, hyper.prior_variance
    )
    items = state.factors.item.at[:, :-1].set(vectors)
    return state._replace(factors=state.factors._replace(item=items))

  return step


def _columns(draws: noise.Draws, start: int, stop: int) -> noise.Draws:
  return noise.Draws(*(part[:, start:stop] for part in draws))


def shrunk_solution(
  matrix: jax.Array,
  vector: jax.Array,
  variance: jax.Array,
  prior_variance: jax.Array,
) -> jax.Array:
  """The best linear estimate [I, D] of q from A and b = A q + errors.

  Errors are the ratings' own (covariance A, for a variance of 1) and noise of
  `variance`; q varies by `prior_variance` around a common vector, which is
  solved for from the sums over all items. Eigenvalues below 0 count as 0.
  """
  total, sums = matrix.sum(axis=0), vector.sum(axis=0)
  if vector.shape[1] == 1:
    # Without LAPACK, which takes vmapped runs one at a time.
    common = sums / (jnp.maximum(total[0], 0.0) + 1.0)
    size = jnp.maximum(matrix[:, :, 0], 0.0)
    rotated = lambda rows, back=False: rows
  else:
    common = normal.solve(_floored(total)[None], sums[None], 1.0)[0]
    size, basis = jax.vmap(eigen)(matrix)
    size = jnp.maximum(size, 0.0)

    def rotated(rows, back=False):
      return jnp.einsum('jab,jb->ja' if back else 'jab,ja->jb', basis, rows)

  gain = prior_variance * size
  gain = gain / (gain * size + size + variance)
  rest = rotated(vector - matrix @ common)
  return common[None] + rotated(gain * rest, back=True)


def _floored(matrix: jax.Array) -> jax.Array:
  values, vectors = eigen(matrix)
  return (vectors * jnp.maximum(values, 0.0)[None]) @ vectors.T


def equations_model(state: State, data: Data) -> Release:
  """Item factors, and users fitted around the features and no bias.

  A new user has the mean of all users' features.
  """
  (features, item), hyper = state.factors, state.hyper
  ridge = jnp.full(item.shape[1], hyper.vector_ridge)
  ridge = ridge.at[-1].set(hyper.bias_ridge)
  user = ridge_fit(
    data.by_user, features, item, offset=hyper.center, ridge=ridge
  )
  fit = Fit(features.mean(axis=0), ridge)
  return Release(Factors(user, item), hyper.center, fit)
