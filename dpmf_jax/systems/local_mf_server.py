"""What the server of local MF makes of the answers: means and factors.

It sees answers [U, I] and public settings, nothing else, so all of it is
post-processing. Answers are read in blocks of users; no other array has U * I
entries. Totals are counted in quarters from the center, see `LocalMFConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.dense import eigen, one_at_a_time
from dpmf_jax.mechanisms.records import Estimates

_BLOCK = 64  # users at a time
_SPARE = 8  # columns of the subspace that are not kept
_ROUNDS = 10  # of the subspace iteration
# In squared quarters of the scale: what ratings vary around their item, and
# users' means.
_RATING_VARIANCE = 1.0
_USER_VARIANCE = 0.2
_MIN_RATE = 1e-4
_COUNT_ERROR = 0.5  # relative, of counts as the product of rates has them


class Rates(NamedTuple):
  """A cell (u, j) is taken to be rated with chance user[u] * item[j]."""

  user: jax.Array  # [U]
  item: jax.Array  # [I]


def server_apply(
  key: jax.Array,
  answers: jax.Array,
  tables: Estimates,
  prior_variance: jax.Array,
  *,
  rank: int,
) -> tuple[jax.Array, jax.Array]:
  """Item means [I] and factors [I, rank], in quarters, from answers [U, I].

  Privacy: a function of the answers and of a key that has nothing to do with
  them; it costs nothing, however often it is done.
  """
  rates = answered_rates(answers, tables)
  mean = jnp.zeros(answers.shape[1])
  # Without users' means at first, then with those of the last item means.
  for known in (False, True, True):
    mean = item_means(
      answers, tables, rates, mean, prior_variance, known_means=known
    )
  return mean, item_factors(key, answers, tables, rates, mean, rank=rank)


def answered_rates(answers: jax.Array, tables: Estimates) -> Rates:
  """How likely cells are to be rated, from counts shrunk by their noise."""
  num_users, num_items = answers.shape

  def counts(block, alive):
    count = tables.rated[block] * alive[:, None]
    return count.sum(axis=0), count.sum(axis=1)

  by_item, by_user = over_blocks(counts, answers)
  user = _shrunk(by_user, num_items * tables.rated_variance)
  item = _shrunk(by_item, num_users * tables.rated_variance)
  total = (user.sum() + item.sum()) / 2
  return Rates(user, item / total)


def _shrunk(counts: jax.Array, variance: jax.Array) -> jax.Array:
  """Counts drawn to their mean by as much as is noise, and above 0."""
  mean = jnp.maximum(counts.mean(), 1e-3)
  own = jnp.maximum(counts.var() - variance, 0.0)
  shrunk = mean + own / (own + variance + 1e-9) * (counts - mean)
  return jnp.maximum(shrunk, 0.05 * mean)


def item_means(
  answers: jax.Array,
  tables: Estimates,
  rates: Rates,
  mean: jax.Array,
  prior_variance: jax.Array,
  *,
  known_means: bool,
) -> jax.Array:
  """Best linear estimates [I] of item means, with users' means off or not.

  Cells are weighted by what they tell: pi/(v + pi s), with pi the chance of a
  rating, v the noise of an answer and s the variance of ratings.

  Args:
    answers: [U, I].
    tables: of estimates.
    rates: of cells.
    mean: [I] an earlier estimate, from which users' means are taken.
    prior_variance: of means around 0.
    known_means: whether to take them off.
  """

  def sums(block, alive, rate):
    count = tables.rated[block]
    total = tables.total[block]
    if known_means:
      total = total - count * _user_means(count, total, tables, mean)[:, None]
    chance = _chances(rate, rates.item)
    weight = chance / (tables.total_variance + chance * _RATING_VARIANCE)
    weight = weight * alive[:, None]
    square = jnp.square(weight)
    own = square * (tables.total_variance + chance * _RATING_VARIANCE)
    parts = (weight * count, weight * chance, square, weight * total, own)
    return jnp.stack([part.sum(axis=0) for part in parts]), ()

  (count, expected, square, total, variance), _ = over_blocks(
    sums, answers, rates.user
  )
  # The count by rates has little noise, the one by answers no bias.
  own = jnp.square(_COUNT_ERROR * expected)
  own = own / (own + square * tables.rated_variance)
  count = jnp.maximum(expected + own * (count - expected), 0.0)
  scale = jnp.square(count) + variance / prior_variance
  return total * count / jnp.maximum(scale, 1e-30)


def _chances(user: jax.Array, item: jax.Array) -> jax.Array:
  return jnp.clip(user[:, None] * item[None], _MIN_RATE, 1.0)


def _user_means(count, total, tables: Estimates, mean) -> jax.Array:
  """Users' means [B] around item means, shrunk, from a block of estimates."""
  number = jnp.maximum(count.sum(axis=1), 0.0)
  rest = (total - count * mean[None]).sum(axis=1)
  noise = count.shape[1] * tables.total_variance + number * _RATING_VARIANCE
  return rest * number / (jnp.square(number) + noise / _USER_VARIANCE)


def item_factors(
  key: jax.Array,
  answers: jax.Array,
  tables: Estimates,
  rates: Rates,
  mean: jax.Array,
  *,
  rank: int,
) -> jax.Array:
  """Factors [I, rank]: top right singular vectors of the estimated residuals.

  Of length sqrt(I) times sqrt(1 - (edge/s)^2) s/s_0, with s the singular value
  and edge what noise alone has, sqrt(variance) (sqrt(U) + sqrt(I)): what does
  not stand out of the noise is 0. Subspace iteration over blocks of users.

  Reference: Halko, Martinsson and Tropp (2011), Algorithm 4.4; Benaych-Georges
  and Nadakuditi (2012) for the edge.
  """
  num_users, num_items = answers.shape
  if rank == 0:
    return jnp.zeros((num_items, 0))

  def product(basis):
    def one(block, alive):
      count = tables.rated[block]
      total = tables.total[block]
      user = _user_means(count, total, tables, mean)
      rest = total - count * (mean[None] + user[:, None])
      rest = rest * alive[:, None]
      return rest.T @ (rest @ basis), ()

    return over_blocks(one, answers)[0]

  values, vectors = top_vectors(key, product, num_items, rank)
  kept = len(values)
  size = jnp.sqrt(jnp.maximum(values, 1e-20))
  chance = rates.user.mean() * rates.item.mean()
  variance = tables.total_variance + chance * _RATING_VARIANCE
  edge = jnp.sqrt(variance) * (num_users**0.5 + num_items**0.5)
  stands_out = jnp.sqrt(jnp.maximum(1 - jnp.square(edge / size), 0.0))
  length = num_items**0.5 * stands_out * size / size[0]
  return jnp.pad(vectors * length[None], ((0, 0), (0, rank - kept)))


def top_vectors(
  key: jax.Array,
  product: Callable[[jax.Array], jax.Array],
  num_items: int,
  rank: int,
) -> tuple[jax.Array, jax.Array]:
  """The largest eigenvalues [D], descending, and vectors [I, D] of a matrix.

  Args:
    key: of the start.
    product: of the matrix [I, I], symmetric and positive, with columns [I, N].
    num_items: I.
    rank: D, or all of them if there are fewer.
  """
  width = min(rank + _SPARE, num_items)

  def turn(_, basis):
    return _orthonormal(product(basis))

  basis = _orthonormal(jax.random.normal(key, (num_items, width)))
  basis = jax.lax.fori_loop(0, _ROUNDS, turn, basis)
  inner = basis.T @ product(basis)
  values, vectors = eigen(inner)
  kept = min(rank, width)
  return values[::-1][:kept], basis @ vectors[:, ::-1][:, :kept]


def _orthonormal(matrix: jax.Array) -> jax.Array:
  return one_at_a_time(lambda a: jnp.linalg.qr(a)[0])(matrix)


def over_blocks(
  function: Callable[..., Any], answers: jax.Array, *by_user: jax.Array
) -> tuple[Any, Any]:
  """(sum over blocks, rows of all users) of what `function` gives.

  Args:
    function: (answers [B, I], alive [B], *by_user [B]) -> (sums, rows [B]);
      users that are not there have alive = 0.
    answers: [U, I].
    *by_user: [U].
  """
  num_users = answers.shape[0]
  size = min(_BLOCK, num_users)
  number = -(-num_users // size)

  def cut(x):
    rest = ((0, number * size - num_users),) + ((0, 0),) * (x.ndim - 1)
    return jnp.pad(x, rest).reshape(number, size, *x.shape[1:])

  parts = (cut(answers), cut(jnp.ones(num_users)), *map(cut, by_user))

  def body(carry, part):
    sums, rows = function(*part)
    return jax.tree.map(jnp.add, carry, sums), rows

  shapes = jax.eval_shape(function, *(part[0] for part in parts))[0]
  zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  sums, rows = jax.lax.scan(body, zero, parts)
  join = lambda x: x.reshape(number * size, *x.shape[2:])[:num_users]
  return sums, jax.tree.map(join, rows)
