"""One secure sum of every item's normal equations: the sound untrusted form.

For item j, with integer features p_u of its raters and labels y: A = sum p p^T
and b = sum y p, in integers. Every user of the public list reports
(A, b) for all items, with zeros where they rated nothing, plus a share of
noise and a mask. Nobody sees who rated what. The sum is all there is: users
fit their own side to the items that are computed from it.

Shapes: T = D (D + 1) / 2, W = T + D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from dpmf_jax.kernels import normal
from dpmf_jax.kernels.slices import Chunk, sum_over_slices, take
from dpmf_jax.mechanisms import secure_sum, shares
from dpmf_jax.plans.untrusted_pmf import (
  FEATURE_BITS,
  UntrustedPMFConfig,
  sizes_of,
)
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems import noisy_equations
from dpmf_jax.systems.traced import traced
from dpmf_jax.systems.untrusted.views import (
  PublicView,
  RecommenderView,
  ThirdPartyView,
)
from dpmf_jax.types import Factors, Relation, Release

_MAX_RANK = 16
# The third party's view holds all reports: for the auditor's few users.
_MAX_REPORTED = 2**22


class State(NamedTuple):
  factors: Factors  # users: features and 0; items: vector and 1
  features: jax.Array  # [U, D] int32
  sums: jax.Array  # [I, W] int32, as the recommender gets them
  more: jax.Array  # [I, W] int32, what the shares of c users add to the noise
  hyper: Any  # `traced`


def width(rank: int) -> int:
  """W, numbers in an item's sum."""
  return rank * (rank + 3) // 2


def feature_counts(features: ArrayLike) -> np.ndarray:
  """Features [U, D] as int32 in units of 2^-8, with an L1 norm of at most 1.

  Privacy: rows that are longer are shortened, and entries rounded towards
  zero, so that the integers of a row add up to at most 2^8 in size.
  """
  features = np.asarray(features, np.float64)
  if features.ndim != 2 or not np.isfinite(features).all():
    raise ValueError('features must be finite, with a row for each user')
  if not 1 <= features.shape[1] <= _MAX_RANK:
    raise ValueError(f'features must have 1..{_MAX_RANK} columns')
  norm = np.abs(features).sum(axis=1, keepdims=True)
  shrunk = features / np.maximum(norm, 1.0)
  counts = np.trunc(shrunk * 2**FEATURE_BITS).astype(np.int32)
  if (np.abs(counts).sum(axis=1) > 2**FEATURE_BITS).any():
    raise ValueError('features are longer than 1 after rounding')
  return counts


def hyper_of(config: UntrustedPMFConfig, num_users: int) -> Any:
  """The traced settings for that many users.

  Also integers, the sizes of counts and labels; `noise_variance` of a
  coordinate of the sums; and `more_shape` of noise beyond what is needed.

  Raises:
    ValueError: where sums could wrap, or nobody is left to add noise.
  """
  sizes, c = sizes_of(config), config.unneeded
  if c >= num_users:
    raise ValueError(
      f'colluders + dropouts = {c} must be below the number of users, '
      f'{num_users}'
    )
  more = c / (num_users - c)
  # Noise of which the tail is beyond that wraps: a wrong sum, no leak.
  spare = int(np.ceil((1 + more) * shares.reach(config.noise_bits)))
  secure_sum.check_headroom(num_users, max(sizes), spare)
  return traced(
    config,
    *noisy_equations.SOLVED_WITH,
    count_size=sizes.counts,
    label_size=sizes.labels,
    noise_variance=shares.variance(config.noise_bits) * (1 + more),
    more_shape=more,
  )


def start(data: Data, features: np.ndarray, hyper: Any) -> State:
  """The state before the one step: no rating has been looked at."""
  num_items, rank = data.by_item.num_rows, features.shape[1]
  counts = jnp.asarray(features, jnp.int32)
  user = counts.astype(jnp.float32) * 2.0**-FEATURE_BITS
  user = jnp.concatenate([user, jnp.zeros_like(user[:, :1])], axis=1)
  items = jnp.zeros((num_items, rank + 1)).at[:, -1].set(1.0)
  sums = jnp.zeros((num_items, width(rank)), jnp.int32)
  return State(Factors(user, items), counts, sums, sums, hyper)


def rating_terms(
  features: jax.Array, value: jax.Array, hyper: Any
) -> jax.Array:
  """What ratings [...] of users with features [..., D] add: int32 [..., W].

  Privacy: |l| <= label_size for the label's integer l, whatever the value,
  NaN included. With integers of L1 norm at most 2^8 for p, and every entry
  rounded towards zero, the triangle of A adds at most count_size in L1 norm,
  as (|p|_1^2 + |p|_2^2) / 2 <= |p|_1^2, and b at most |l|.
  """
  row, column = np.triu_indices(features.shape[-1])
  scaled = (value - hyper.center) / hyper.label_bound
  scaled = jnp.where(jnp.isnan(scaled), 0.0, jnp.clip(scaled, -1.0, 1.0))
  label = jnp.round(scaled * hyper.label_size.astype(jnp.float32))
  label = label.astype(jnp.int32)
  label = jnp.clip(label, -hyper.label_size, hyper.label_size)[..., None]
  matrix = features[..., row] * features[..., column] * hyper.count_size
  toward_zero = lambda x, bits: jnp.sign(x) * (jnp.abs(x) >> bits)
  return jnp.concatenate(
    [
      toward_zero(matrix, 2 * FEATURE_BITS),
      toward_zero(label * features, FEATURE_BITS),
    ],
    axis=-1,
  )


def statistic(rows: Rows, features: jax.Array, hyper: Any) -> jax.Array:
  """The sum of all users' terms, [I, W] int32, without noise; by item."""

  def slice_sums(chunk: Chunk, hyper):
    terms = rating_terms(chunk.column, chunk.value, hyper)
    return jnp.where(chunk.mask[..., None], terms, 0).sum(
      axis=1, dtype=jnp.int32
    )

  return sum_over_slices(slice_sums, rows, features, (), hyper)


def noised_columns(rank: int, relation: Relation) -> slice:
  """Which of the W columns get noise: with 'replace' A is public."""
  return slice(rank * (rank + 1) // 2 if relation == 'replace' else 0, None)


def item_vectors(sums: jax.Array, hyper: Any) -> jax.Array:
  """Item vectors [I, D] from noisy sums [I, W]: the recommender's work."""
  # W = D (D + 3) / 2
  rank = int((np.sqrt(9 + 8 * sums.shape[1]) - 3) / 2 + 0.5)
  size = sums.shape[1] - rank
  label_spacing = hyper.label_bound / hyper.label_size
  matrix = sums[:, :size].astype(jnp.float32) / hyper.count_size
  vector = sums[:, size:].astype(jnp.float32) * label_spacing
  return noisy_equations.shrunk_solution(
    normal.symmetric(matrix),
    vector,
    hyper.noise_variance * jnp.square(label_spacing),
    hyper.prior_variance,
  )


@dataclass(frozen=True)
class SumsStep:
  """The one step; equal where its settings are.

  Privacy: see `untrusted_pmf`. The noise is that of the U - c shares which
  nobody else knows. What the other c add to it is drawn in floats: it is
  independent of all else, so that no proof leans on its law.
  """

  relation: Relation
  noise_bits: int
  colluding: bool

  def __call__(self, key: jax.Array, state: State, data: Data) -> State:
    noise_key, more_key = jax.random.split(key)
    exact = statistic(data.by_item, state.features, state.hyper)
    noised = noised_columns(state.features.shape[1], self.relation)
    shape = exact[:, noised].shape
    noise = shares.two_sided_geometric(noise_key, shape, self.noise_bits)
    more = state.more
    if self.colluding:
      drawn = _more(more_key, shape, state.hyper.more_shape, self.noise_bits)
      more = more.at[:, noised].set(drawn)
    sums = exact.at[:, noised].add(noise) + more
    vectors = item_vectors(sums, state.hyper)
    items = state.factors.item.at[:, :-1].set(vectors)
    factors = state.factors._replace(item=items)
    return state._replace(factors=factors, sums=sums, more=more)


def _more(key, shape, more_shape, noise_bits):
  """What the shares of c users add, with their mean and variance only.

  Laplace with a chance of `more_shape`, else 0. Their own law, negative
  binomial, is as spiky; drawing it takes far longer, and nothing leans on it.
  """
  coin_key, size_key = jax.random.split(key)
  scale = 2.0**noise_bits * jnp.sqrt(jnp.maximum(more_shape, 1.0))
  drawn = jnp.round(scale * jax.random.laplace(size_key, shape))
  there = jax.random.uniform(coin_key, shape) < more_shape
  return jnp.where(there, drawn, 0.0).astype(jnp.int32)


def sums_model(state: State, data: Data) -> Release:
  """Item factors and what each user fits to their own ratings."""
  return noisy_equations.equations_model(cast(Any, state), data)


def views(colluding: bool) -> dict[str, Callable[..., Any]]:
  """What parties see, together with c users or alone, for the auditor."""

  def public(state: State) -> PublicView:
    return PublicView(state.factors.item, state.hyper.center)

  def recommender(key: jax.Array, state: State, data: Data) -> RecommenderView:
    del key, data
    return RecommenderView(
      public(state),
      sums=state.sums,
      noise_scales=None,
      colluders_shares=state.more if colluding else None,
    )

  def third_party(key: jax.Array, state: State, data: Data) -> ThirdPartyView:
    return ThirdPartyView(
      public(state),
      reports=_masked_reports(key, state, data),
      colluders_shares=state.more if colluding else None,
    )

  return {'recommender': recommender, 'third_party': third_party}


def _masked_reports(key: jax.Array, state: State, data: Data) -> jax.Array:
  """All users' reports [U, I, W] as uint32, under simulated masks."""
  rows, (num_items, width) = data.by_user, state.sums.shape
  shape = (rows.num_rows, num_items, width)
  if np.prod(shape) > _MAX_REPORTED:
    raise ValueError(
      f'reports of shape {shape} are for the auditor, on few ratings'
    )
  features = take(state.features, rows.row)[:, :, None]  # [C, S, 1, D]
  features = jnp.broadcast_to(features, (*rows.value.shape, features.shape[-1]))
  terms = rating_terms(features, rows.value, state.hyper)
  used = jnp.arange(rows.value.shape[-1])[None, None] < rows.length[..., None]
  terms = jnp.where(used[..., None], terms, 0)
  row = jnp.broadcast_to(rows.row[..., None], rows.column.shape)
  reports = jnp.zeros(shape, jnp.int32).at[row, rows.column].add(terms)
  # Under masks it makes no difference whose report the noise is in.
  noise = state.sums - reports.sum(axis=0)
  reports = reports.at[0].add(noise)
  words = jax.lax.bitcast_convert_type(reports, jnp.uint32)
  return words + jax.random.bits(key, shape, 'uint32')
