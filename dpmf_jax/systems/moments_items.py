"""Means, factors and ridges of items, from the noisy sums of `moments`.

Rows of ratings are draws of one Gaussian: items have means, and a covariance.
What is released are factors V of the covariance, C = V V^T + ridge, beside
means. Given a user's own ratings, what that Gaussian expects of others is the
ridge regression on these factors (`types.Fit`), which users do at home; a
common scale of signal and noise cancels.

The noise of the second step is that of a Gaussian orthogonal ensemble, whose
effect on eigenvalues is known: `cleaned`. Where items were rated together too
little to tell from noise, there are no factors.

Privacy: of noisy sums, U, I and settings alone.

Reference: Bun, Allez, Bouchaud and Potters (2016), Rotational invariant
estimator for general noisy matrices, for the eigenvalues.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import LABEL_BITS
from dpmf_jax.kernels.dense import eigen
from dpmf_jax.plans.moments import ANSWERS
from dpmf_jax.systems.dpals_items import positive_counts
from dpmf_jax.systems.moments_levels import Left, Levels, Sent, levels
from dpmf_jax.systems.row_means import (
  common_fit,
  level_ridge,
  own_bias_ridge,
  shrunk_means,
)
from dpmf_jax.types import Factors, Unit

# Rows are shortened as if residuals were at least this, in 2^-9 of the scale.
LEAST_RESIDUAL = 16
# Of the noise, by which its effect on eigenvalues is smoothed, and what the
# effect is multiplied by: estimates of counts are noisy, too.
_SMOOTH, _MORE = 1.0, 1.2
# There are no vectors where the largest eigenvalue is less than so many times
# the most negative one: on the Netflix slice they do harm there.
_NEGATIVE = 2.0
# About the part of a residual's variance that no other rating tells, to begin
# with, and how often it is computed anew.
_OWN, _TIMES = 0.8, 4
# The least of it: where noise hides pairs it is found too small.
_LEAST_OWN = 0.3
# How far the mean of all ratings is from the scale's middle, about, in widths.
_COMMON = 0.25
# What a residual is about, before it is known, in 2^-9 of the scale.
_RESIDUAL = 0.2 * 2.0**LABEL_BITS
# By user, the part that the number of ratings which follows from it is off by.
_NUMBER_OFF = 0.4
# By user, the least part of all users that has ratings.
_LEAST_USERS = 0.1
# x_i^2 of a user's row is their number of ratings to minus this.
_ALONE: dict[Unit, float] = {'user': 1.0, 'rating': 0.5}
# Mean co-count over the noise of a sum of products, from which on there are
# factors; counts are at least this part of what independent items would have.
MIN_TOGETHER, _LEAST_COUNT = 2.0, 0.5
# By rating, the least that residuals are taken to be, over what they are
# clipped to.
_LEAST_SIZE = 0.05
# By rating, variances of users' biases differ by about this, in that of
# residuals, and what pairs have in common because biases are taken off is
# off by about this part of it, as numbers of ratings differ.
_BIASES, _OFF = 0.5, 0.3
# What they may be.
_LEAST_BIASES, _MOST_BIASES = 0.05, 2.0
# Variances of users' slopes on means in quarters of the scale are about this in
# that of residuals, differ by about that much, and are no less than the last.
_SLOPES, _SLOPES_OFF, _LEAST_SLOPES = 0.125, 0.1, 1e-3
# By rating, what the ridge of users' biases is multiplied by where sums tell
# nothing of it: on the Netflix slice and on `made-handful` 1 is too little.
_FEW_RIDGE = 1.4


class Sums(NamedTuple):
  """What the two steps released: sums with noise; zeros before."""

  first: jax.Array  # [I, 2]: counts and residuals
  second: jax.Array  # [2, I, I], symmetric: residuals and counts
  # In place of the second: counts and ratings, [I, 2], and users' levels, [2].
  ratings: jax.Array
  levels: jax.Array


class State(NamedTuple):
  factors: Factors  # users are not kept; items (V, mean, 1)
  sums: Sums
  number: jax.Array  # [I] how often items are rated, in any unit
  mean: jax.Array  # [I], less the center
  common: jax.Array  # [] what all means have in common, less the center
  ridge: jax.Array  # [] of users' vectors
  bias_ridge: jax.Array  # [] of users' biases, at home
  slope_ridge: jax.Array  # [] of users' slopes on means, less what is common
  done: jax.Array  # int32, steps so far
  hyper: Any


def finite(noisy: jax.Array) -> jax.Array:
  return jnp.where(jnp.isfinite(noisy), noisy, 0.0)


def with_means(state: State, noisy: jax.Array, unit: Unit) -> State:
  """The state with means alone."""
  hyper, sums = state.hyper, state.sums._replace(first=noisy)
  users = len(state.factors.user)
  own = ratings_of_a_user(noisy, hyper.counted, users, unit)
  if unit == 'rating':
    left = left_by_rating(own, hyper.sent_ridge)
    ridge = own_bias_ridge(hyper.home_ridge, own)
  else:
    left, variance = _levels(state._replace(sums=sums), own, None)
    ridge = 1 / variance
  std = hyper.means.std
  mean = item_means(noisy, hyper.counted, std, left) * hyper.width
  rank = state.factors.item.shape[1] - 2
  item = item_columns(jnp.zeros((len(mean), rank)), mean)
  factors = state.factors._replace(item=item)
  count = item_counts(noisy, hyper.counted, std)
  return state._replace(
    sums=sums, number=count, mean=mean, bias_ridge=ridge, factors=factors
  )


def with_items(state: State, unit: Unit) -> State:
  """The state with means, factors and the ridge that its sums give."""
  hyper, sums, count = state.hyper, state.sums, state.number
  rank = state.factors.item.shape[1] - 2
  std = hyper.moments.std / ANSWERS**0.5
  second, stds = sums.second, (std, std / hyper.count_weight)
  if unit == 'rating':
    second, stds = _in_own_units(second, stds)
  apart = (state.mean - _average(state.mean, count)) / hyper.quarter
  found = pairs_of(finite(second), count, stds, _ALONE[unit], apart)
  if unit == 'rating':
    left = left_by_rating(found.number, hyper.sent_ridge)
    ridge = found.ridge * own_bias_ridge(hyper.home_ridge, found.number)
    ridge = bias_ridge(found, hyper.sent_ridge, ridge)
  else:
    users = len(state.factors.user)
    own = ratings_of_a_user(sums.first, hyper.counted, users, unit)
    left, variance = _levels(state, own, found)
    ridge = found.ridge / variance
  mean = item_means(sums.first, hyper.counted, hyper.means.std, left)
  mean = mean * hyper.width
  common = _average(mean, count)
  item = item_columns(found.vector[:, -rank:], mean - common)
  return state._replace(
    factors=state.factors._replace(item=item),
    mean=mean,
    common=common,
    ridge=found.ridge,
    bias_ridge=ridge,
    slope_ridge=found.ridge / found.slope * jnp.square(hyper.quarter),
  )


def _average(mean: jax.Array, count: jax.Array) -> jax.Array:
  return jnp.sum(count * mean) / jnp.sum(count)


def with_ratings(state: State, std: jax.Array) -> State:
  """The state with means alone, of sums of ratings as they are, by rating.

  Counts were asked for in both steps, and are their mean by precision. What is
  made of them is what `power_mf` makes of such sums, but for ridges. `std` is
  of the noise on the means of all answers.
  """
  hyper, rated = state.hyper, state.sums.first[:, 0]
  noisy, levels = state.sums.ratings, state.sums.levels
  before, now = jnp.square(hyper.means.std), jnp.square(std)
  count = (rated * now + noisy[:, 0] * before) / (before + now)
  count_std = jnp.sqrt(before * now / (before + now))
  quarter, label = hyper.quarter, 2.0 ** (LABEL_BITS - 2)
  known = shrunk_means(
    count / hyper.counted,
    noisy[:, 1] / label,
    count_variance=jnp.square(count_std / hyper.counted),
    total_variance=now / label**2,
    most=len(state.factors.user),
  )
  own = known.number.sum() / len(state.factors.user)
  ridge = own_bias_ridge(hyper.home_ridge * _FEW_RIDGE, own)
  ridge = level_ridge(levels, jnp.broadcast_to(hyper.levels.std, 2), ridge)
  common, bias_ridge = common_fit(known, now / label**2, ridge)
  apart = (known.mean - known.common) * quarter
  rank = state.factors.item.shape[1] - 2
  item = item_columns(jnp.zeros((len(apart), rank)), apart)
  return state._replace(
    factors=state.factors._replace(item=item),
    number=item_counts(count[:, None], hyper.counted, count_std),
    mean=known.mean * quarter,
    common=common * quarter,
    bias_ridge=bias_ridge,
    slope_ridge=jnp.square(quarter) / _SLOPES,
  )


def ratings_of_a_user(
  noisy: jax.Array, counted: jax.Array, num_users: int, unit: Unit
) -> jax.Array:
  """[] about how many a user has, from the first sums.

  By user, n of them count sqrt(n) times what one does.
  """
  number = jnp.maximum(jnp.sum(noisy[:, 0]), 0.0) / num_users
  if unit == 'user':
    number = jnp.square(number * jnp.hypot(1.0, _RESIDUAL / counted))
  else:
    number = number / counted
  return jnp.clip(number, 1.0, len(noisy))


def item_counts(
  noisy: jax.Array, counted: jax.Array, std: jax.Array
) -> jax.Array:
  """Sums [I] of users' weights, above 0, from sums with counts first."""
  error = jnp.broadcast_to(std, noisy.shape[:1])
  count = positive_counts(noisy[:, 0], error) / counted
  return jnp.maximum(count, 1e-3 * jnp.max(count))


def item_means(
  noisy: jax.Array, counted: jax.Array, std: jax.Array, left: Left
) -> jax.Array:
  """Means [I] of residuals, in widths of the scale, from the first sums.

  They are shrunk to a common one by what is known of the noise; how far means
  vary is estimated from the sums themselves.

  Args:
    noisy, counted, std: the sums, what a rating counts, and their noise.
    left: of means after biases were taken off; the rest is put back.
  """
  count, total = item_counts(noisy, counted, std), noisy[:, 1]
  common = jnp.sum(total) / jnp.sum(count)
  apart = total - common * count
  spread = jnp.sum(jnp.square(apart)) - len(count) * jnp.square(std)
  spread = jnp.maximum(spread, 0.0) / jnp.sum(jnp.square(count))
  part = jnp.square(count) * spread
  apart = apart / count * part / (part + jnp.square(std))
  half = 2.0 ** (LABEL_BITS - 1)
  error = std * jnp.sqrt(1.0 * len(count)) / jnp.sum(count) / left.common
  kept = 1 / (1 + jnp.square(error / (_COMMON * 2 * half)))
  mean = common / left.common * kept + apart / left.own
  return jnp.clip(mean, -half, half) / 2.0**LABEL_BITS


def left_by_rating(number: jax.Array, ridge: jax.Array) -> Left:
  """Of n ratings and a ridge of r: of a common mean n / (n + r) went with the
  bias, of an item's own 1 / (n + r).
  """
  both = number + ridge
  return Left(ridge / both, 1 - 1 / both)


def _levels(state: State, own: jax.Array, found: Pairs | None) -> Levels:
  """How users differ in level, if they have about `own` ratings, by user."""
  hyper, (first, second, *_) = state.hyper, state.sums
  users = having = len(state.factors.user)
  number, error = own, _NUMBER_OFF * own
  product, unknown = jnp.float32(0), jnp.float32(1e6)
  if found is not None:
    # Rows have norm 1, so that this is how many users have any ratings.
    trace = jnp.maximum(jnp.trace(second[0]), 1.0)
    having = jnp.clip(trace, _LEAST_USERS * users, users)
    others = jnp.square(found.number_error * trace / having / error)
    by_pairs = 1 + (found.number - 1) * trace / having
    number = (own * others + by_pairs) / (others + 1)
    number = jnp.clip(number, 1.0, len(first))
    error = error * jnp.sqrt(others / (others + 1))
    product, unknown = found.common, found.error
  means_std = hyper.means.std
  count = item_counts(first, hyper.counted, means_std)
  reference = _average(state.mean, count) / hyper.width
  weight = jnp.sum(count)
  # A mean that is noise would be thought one of which little is left.
  noise = means_std * jnp.sqrt(1.0 * len(count)) / weight
  usual = _COMMON * 2**LABEL_BITS * left_by_rating(number, hyper.sent_ridge)[0]
  mean = jnp.sum(first[:, 1]) / weight
  # Counts have as much noise as what is over them.
  more = 1 + jnp.square(noise / usual * mean / hyper.counted)
  explained = levels(
    Sent(
      number=number,
      unsure=error / number,
      ridge=hyper.sent_ridge,
      counted=hyper.counted,
      weight=weight * hyper.counted / having,
      mean=mean / (more + jnp.square(noise / usual)),
      reference=reference * 2**LABEL_BITS,
      product=product,
      error=unknown,
      least=LEAST_RESIDUAL,
    )
  )
  left = explained.left
  return explained._replace(left=left._replace(common=left.common * more))


class Pairs(NamedTuple):
  """What products and counts of pairs tell."""

  vector: jax.Array  # [I, I] V, its columns by size; 0 where noise hides them
  ridge: jax.Array  # [] of users' vectors: what V leaves of a residual's square
  number: jax.Array  # [] ratings of a user, about
  number_error: jax.Array  # [] what noise makes that be off by
  common: jax.Array  # [] of a residual's square: product of any two of a user
  error: jax.Array  # [] what noise makes that be off by
  slope: jax.Array  # [] of a residual's square: variance of slopes on means


def bias_ridge(pairs: Pairs, sent: jax.Array, usual: jax.Array) -> jax.Array:
  """[] of users' biases in their fits, by what is left of them in residuals.

  With y = b + e of a user's n ratings, residuals are y less n / (n + r) of
  their mean. If b has k times the variance of e, two of them have a product of
  k (r / (n + r))^2 + n / (n + r)^2 - 2 / (n + r), and a square of 1 more. Where
  n is large, nothing is left of b, and the ridge is the usual one.

  Args:
    pairs: of residuals.
    sent: r, the ridge of what was taken off.
    usual: the ridge as far as that does not tell.
  """
  both = pairs.number + sent
  seen = jnp.square(sent / both)
  apart = pairs.number / jnp.square(both) - 2 / both
  product = seen * pairs.ridge / usual + apart
  expected = product / (1 + product)
  # How far this varies with k, against errors.
  known = jnp.square(_BIASES * seen)
  error = jnp.square(pairs.error) + jnp.square(_OFF * apart)
  known = known / (known + error)
  found = expected + known * (pairs.common - expected)
  variance = (found / jnp.maximum(1 - found, 0.1) - apart) / seen
  return pairs.ridge / jnp.clip(variance, _LEAST_BIASES, _MOST_BIASES)


def pairs_of(
  second: jax.Array,
  count: jax.Array,
  stds: tuple[jax.Array, jax.Array],
  alone: float,
  mean: jax.Array,
) -> Pairs:
  """Factors V of the covariance V V^T + ridge of a user's row of residuals.

  Products are P = T * C plus errors: T are counts of pairs, and C is what is
  looked for. Errors are noise, and chance where users are few: if residuals
  were independent, a product's variance would be T over a power of the number
  of ratings. Rows and columns are scaled so that errors are alike, eigenvalues
  `cleaned`, and the scale is taken off again, item by item as far as
  eigenvectors are known there.

  Args:
    second: [2, I, I] noisy sums of x x^T and a a^T.
    count: [I] how often items are rated, in any unit.
    stds: of the noise on a diagonal entry of each; it is less by the square
      root of 2 off the diagonal.
    alone: x_i^2 is about the number of a user's ratings to minus this.
    mean: [I] of items, less what they have in common, in quarters of the scale.
  """
  products, together = second
  items, diagonal = len(count), jnp.eye(len(count), dtype=bool)
  part = count / jnp.sum(count)
  errors = [std * 0.5**0.5 for std in stds]
  # Items that are rated independently have co-counts of this form, and what is
  # beyond it is kept as far as it stands out of the noise.
  independent = jnp.where(diagonal, 0.0, part[:, None] * part[None])
  square = jnp.maximum(jnp.sum(jnp.square(independent)), 1e-30)
  factor = jnp.sum(independent * together) / square
  spread = jnp.sum(independent)
  independent = independent * factor
  rest = jnp.where(diagonal, 0.0, together - independent)
  size, axes = eigen(rest)
  edge = 2 * errors[1] * items**0.5
  size = jnp.sign(size) * jnp.sqrt(
    jnp.maximum(jnp.square(size) - jnp.square(edge), 0.0)
  )
  together = independent + (axes * size[None]) @ axes.T
  together = jnp.maximum(together, _LEAST_COUNT * independent)
  pairs = max(items * (items - 1), 1)
  told = jnp.sum(independent) / pairs > MIN_TOGETHER * errors[0]
  # By user rows have norm 1, so that this is the number of users, about; by
  # rating it is the sum of the norms of their residuals.
  trace = jnp.maximum(jnp.trace(products), 1.0)
  number = jnp.clip(1 + jnp.sum(independent) / trace, 1.0, items)
  number_error = errors[1] * (2 / square) ** 0.5 * spread / trace
  # What all pairs have in common is the users' biases, which are taken off, and
  # by too much where they have few ratings.
  off = jnp.where(diagonal, 0.0, together)
  every = jnp.maximum(jnp.sum(off), 1e-30)
  common = jnp.sum(jnp.where(diagonal, 0.0, products)) / every
  error = errors[0] * (2.0 * pairs) ** 0.5 / every
  rated = jnp.sqrt(jnp.maximum(factor, 1e-30)) * part
  shared = (
    (products - common * off)
    * independent
    / jnp.where(told & ~diagonal, together, 1.0)
  )
  few = jnp.square(rated) * number**-alone
  scale = (jnp.square(errors[0]) + few) ** -0.25
  seen = scale * rated

  def factors(part_shared):
    """V, if such parts [I] of items' variances are shared with others.

    None where the matrix is more negative than a covariance can be: what stands
    out of the noise is then how numbers of ratings differ.
    """
    of_item = jnp.diag(part_shared * jnp.square(rated))
    matrix = jnp.where(diagonal, of_item, shared)
    size, axes = cleaned(matrix * (scale[:, None] * scale[None]), 1.0)
    size = jnp.maximum(
      jnp.where(size[-1] > -_NEGATIVE * size[0], size, 0.0), 0.0
    )
    # An eigenvector has errors of 1 / size in every entry.
    known = jnp.square(size[None] * seen[:, None])
    axes = axes * known / (known + jnp.sum(jnp.square(seen)) + 1e-30)
    length = jnp.sqrt(jnp.sum(jnp.square(axes), axis=0))
    vector = axes * (jnp.sqrt(size) / jnp.maximum(length, 1e-9))[None]
    return finite(vector / seen[:, None])

  def again(_, part_shared):
    explained = jnp.sum(jnp.square(factors(part_shared)), axis=1)
    return jnp.clip(explained, 0.0, 1 - _LEAST_OWN)

  # A diagonal entry is mostly a rating's own, which tells nothing of others:
  # what is not is what the factors explain, as in principal factor analysis.
  part_shared = jnp.full(items, 1 - _OWN)
  part_shared = jax.lax.fori_loop(0, _TIMES, again, part_shared)
  vector = jnp.where(told, factors(part_shared), 0.0)
  own = 1 - jnp.sum(part[:, None] * jnp.square(vector))
  own = jnp.maximum(own, _LEAST_OWN)
  # Slopes on means would give products of means, beside common and V.
  means = jnp.where(diagonal, 0.0, mean[:, None] * mean[None])
  rest = products - off * (common + vector @ vector.T)
  # Its square is above 0, too.
  known = jnp.maximum(jnp.sum(off * jnp.square(means)), 1e-12)
  # Where noise makes counts negative, this is anything.
  slope = jnp.clip(finite(jnp.sum(rest * means) / known), -1.0, 1.0)
  unsure = 2 * jnp.sum(jnp.square(means / (scale[:, None] * scale[None])))
  unsure = unsure / jnp.square(known * _SLOPES_OFF)
  slope = _SLOPES + (slope - _SLOPES) / (1 + unsure)
  slope = jnp.maximum(slope, _LEAST_SLOPES)
  return Pairs(vector, own, number, number_error, common, error, slope)


def cleaned(
  noisy: jax.Array, std: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
  """Eigenvalues [I], ascending, and -vectors [I, I] of `noisy` without noise.

  `std` is that off the diagonal. The eigenvectors are kept, and an eigenvalue
  is less by what noise adds to it on average, which all eigenvalues tell.
  """
  size, axes = eigen(noisy)
  apart = size[:, None] - size[None]
  push = apart / (jnp.square(apart) + jnp.square(_SMOOTH * std) + 1e-30)
  size = size - 2 * _MORE * jnp.square(std) * jnp.sum(push, axis=1)
  return ascending(size), axes


def ascending(values: jax.Array) -> jax.Array:
  """The ascending numbers [N] closest to `values`: isotonic regression."""
  size = len(values)
  sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(values)])
  first, last = jnp.arange(size)[:, None], jnp.arange(size)[None]
  mean = (sums[None, 1:] - sums[:-1, None]) / jnp.maximum(last - first + 1, 1)
  mean = jnp.where(first <= last, mean, jnp.inf)
  least = jax.lax.cummin(mean, axis=1, reverse=True)
  return jnp.max(jnp.where(first <= last, least, -jnp.inf), axis=0)


def _in_own_units(
  second: jax.Array, stds: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  """The second sums, and `stds`, as if residuals were 1 in size on average.

  Users' rows of norm 1 are so in any case; where they are longer, the traces of
  the two matrices tell the size.
  """
  products, together = (jnp.trace(matrix) for matrix in second)
  size = products / jnp.maximum(together, stds[1])
  size = jnp.clip(size, _LEAST_SIZE, 1.0)
  return second.at[0].divide(size), (stds[0] / size, stds[1])


def item_columns(vector: jax.Array, mean: jax.Array) -> jax.Array:
  """[I, D + 2]: vector, mean and a 1 for the user's bias."""
  mean = mean[:, None]
  return jnp.concatenate([vector, mean, jnp.ones_like(mean)], axis=1)
