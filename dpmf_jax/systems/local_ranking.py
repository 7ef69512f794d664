"""Lists of items without a trusted curator: clients say what they did, or lie.

The sound form of what Jiang, Li and Lin call SD-BPRMF. Each client answers
once, for every item, whether there is an interaction with it, by a coin at
times with the opposite (`mechanisms.records`, as `local_mf` does). What a
rating is, is never sent. The server has the answers [U, I] and nothing else,
estimates B of what is there that are right on average, and v, the variance of
the coins. From these it computes

  popularity  c, the column sums of B, drawn to their mean by as much as is
              noise, and likewise n, the sums of rows;
  scales      g of items and r of users: rare items, whose columns are mostly
              noise, count less, and cells with more variance, v and what a
              rated cell has itself, do so, too;
  factors     singular vectors of Y = diag(r) B diag(g), without the direction
              p ~ c g, which is known, each shrunk by how far it is from the
              true one, given how far its singular value is above the largest
              that noise alone has: to nothing, where it is not.

What is released beside the answers are rows of items, popularity and then
factors. Users sum them up at home, by what their own ratings are
(`types.Sum`), as for `ranking_mf`.

Reference: Warner (1965); Bai and Silverstein (1998) for the largest singular
value; Benaych-Georges and Nadakuditi (2012) for how far vectors are off.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.mechanisms import records
from dpmf_jax.plans.local_ranking import LocalRankingConfig, plan
from dpmf_jax.rows import Data
from dpmf_jax.systems.local_mf_server import (
  answered_rates,
  over_blocks,
  top_vectors,
)
from dpmf_jax.systems.traced import counted, traced
from dpmf_jax.types import Factors, Release, Sum, System

# Powers of a cell's variance in scales: 1/2 would make all alike.
_ITEM_POWER, _USER_POWER = 0.15, 0.25
_GRID = 256  # of numbers tried in `noise_edge`
# Popularity in the row of a user without interactions.
_COLD = 1e-3


class State(NamedTuple):
  """Attributes:
  factors: users: zeros; items: popularity and factors.
  weight: [I] of items in users' own sums.
  observed: what the adversary sees, answers [U, I] uint8.
  hyper: settings.
  """

  factors: Factors
  weight: jax.Array
  observed: jax.Array
  hyper: Any


def server_rows(
  key: jax.Array, answers: jax.Array, tables: records.Estimates, *, rank: int
) -> tuple[jax.Array, jax.Array]:
  """Rows of items [I, 1 + rank] and their weights [I], from answers [U, I].

  Privacy: a function of the answers and of a key that has nothing to do with
  them; it costs nothing, however often it is done.
  """
  num_users, num_items = answers.shape
  rates, lied = answered_rates(answers, tables), tables.rated_variance
  number = rates.user  # of a user's interactions
  chance = rates.item * number.mean()  # of an item, with an average user
  seen = chance * jax.lax.rsqrt(jnp.square(chance) + lied / num_users)
  scale = _largest_1(seen * (lied + chance) ** -_ITEM_POWER)
  user_scale = _largest_1((lied + number / num_items) ** -_USER_POWER)
  popular = chance * scale
  size = jnp.linalg.norm(popular)
  columns, weight = [(chance / size)[:, None]], jnp.square(scale)
  if rank == 0:
    return columns[0], weight
  popular = popular / size
  without = lambda basis: basis - popular[:, None] * (popular @ basis)[None]

  def product(basis):
    basis = scale[:, None] * without(basis)

    def one(block, alive, user_scale):
      rows = tables.rated[block] * (user_scale * alive)[:, None]
      return rows.T @ (rows @ basis), ()

    sums, _ = over_blocks(one, answers, user_scale)
    return without(scale[:, None] * sums)

  squares, vectors = top_vectors(key, product, num_items, rank)
  by_lies = lied * jnp.mean(jnp.square(user_scale)) * weight
  by_nature = jnp.mean(jnp.square(user_scale) * number) * rates.item * weight
  kept = trust(squares, by_lies + by_nature.mean(), num_users)
  factors = vectors * jnp.sqrt(kept)[None] / scale[:, None]
  columns.append(jnp.pad(factors, ((0, 0), (0, rank - len(squares)))))
  return jnp.concatenate(columns, axis=1), weight


def _largest_1(x: jax.Array) -> jax.Array:
  return x / jnp.max(x)


def noise_edge(variance: jax.Array, num_users: int) -> jax.Array:
  """The square of the largest singular value of noise [U, I], for large U, I.

  Columns have `variance` [I]. It is U times the least of
  -1/m + 1/U sum_j v_j / (1 + v_j m) over m between -1 / max v and 0.

  Reference: Bai and Silverstein (1998), No eigenvalues outside the support.
  """
  largest = jnp.max(variance)
  share = variance / largest
  m = jnp.arange(1, _GRID) / _GRID  # -m times `largest`
  sums = jnp.sum(share[None] / (1 - share[None] * m[:, None]), axis=1)
  return largest * jnp.min(num_users / m + sums)


def trust(squares: jax.Array, variance: jax.Array, num_users: int) -> jax.Array:
  """Squared cosines [D] of right singular vectors with those without noise.

  Args:
    squares: [D] of singular values.
    variance: [I] of noise, by column.
    num_users: rows that there are.

  As for noise of one variance in as many columns as have the same mean square,
  which is such that its largest singular value is that of this noise.
  """
  columns = jnp.square(variance.sum()) / jnp.square(variance).sum()
  edge = noise_edge(variance, num_users)
  both = num_users * columns
  unit = edge / jnp.square(jnp.sqrt(columns) + num_users**0.5)
  rest = squares / unit - num_users - columns
  root = jnp.sqrt(jnp.maximum(jnp.square(rest) - 4 * both, 0.0))
  signal = jnp.maximum(rest + root, 1e-9) / 2  # squared, without noise
  cosine = (jnp.square(signal) - both) / (signal * (signal + columns))
  return jnp.where(squares > edge, jnp.clip(cosine, 0.0, 1.0), 0.0)


@functools.cache
def _step(rank: int):
  """The one round; one object for equal arguments.

  Privacy: all is computed from `records.all_answers`.
  """

  def step(key: jax.Array, state: State, data: Data) -> State:
    clients_key, server_key = jax.random.split(key)
    hyper = state.hyper
    answers = records.all_answers(
      clients_key, data, hyper.response, hyper.low, hyper.high
    )
    item, weight = server_rows(server_key, answers, hyper.tables, rank=rank)
    factors = state.factors._replace(item=item)
    return state._replace(factors=factors, weight=weight, observed=answers)

  return step


def _model(state: State, data: Data) -> Release:
  """Items, and what each user sums up of their own."""
  item = state.factors.item
  prior = jnp.zeros(item.shape[1]).at[0].set(_COLD)
  fit = Sum(prior, state.weight, state.hyper.counted)
  items = Release(Factors(None, item), jnp.float32(0), fit)
  return fitted_users(data.by_user, items)


def transcript(key: jax.Array, state: State, data: Data) -> jax.Array:
  """All that the adversary sees, for audits: the answers."""
  del key, data
  return state.observed.astype(jnp.float32)


def local_ranking(config: LocalRankingConfig) -> System:
  """Popularity and factors from randomized answers; users stay at home.

  Privacy: see `records.answers`: every cell has one answer of pure epsilon, of
  two categories, and the server works with the answers alone. What users sum
  up at home is not released.
  """

  def init(key: jax.Array, data: Data) -> State:
    del key
    users, items = (rows.num_rows for rows in data)
    return State(
      factors=Factors(
        jnp.zeros((users, 1 + config.rank)), jnp.zeros((items, 1 + config.rank))
      ),
      weight=jnp.zeros(items),
      observed=jnp.zeros((users, items), jnp.uint8),
      hyper=_hyper(config),
    )

  return plan(config).system(
    init,
    _step(config.rank),
    _model,
    views={'transcript': transcript},
    scale=config.scale,
  )


def _hyper(config: LocalRankingConfig) -> Any:
  low = config.scale[0]
  lie = plan(config).noise['answers']
  return traced(
    config,
    'scale',
    # One level: whatever the rating is, the cell has category 1.
    response=records.response(
      (low,), scale=config.scale, rounding='nearest', epsilon=config.epsilon
    ),
    tables=records.estimates((1.0,), lie, center=0.0, spacing=1.0),
    counted=counted(config),
  )
