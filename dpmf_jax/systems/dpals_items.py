"""Item counts, means and vectors from sums with noise of a known size.

Everything here is computed from what a sweep releases: it costs nothing. With
sums x = (n, s, B) of an item, noise of variance e^2 in each and item weights
a taken off again:

  counts   n is a count plus noise; the prior is exponential.
  means    s = n m + errors; how much m varies around a common mean is estimated
           from s (`spread_of_means`).
  vectors  B = n S q + errors, S the users' covariance, which all items share;
           the covariance of S q over items is estimated from B itself.

Differs from Chien et al. (2021): their A_j = sum p p^T of each item has noise
in D (D + 1) / 2 numbers. n_j S has it in one, and S need not be known: it is
the same linear map for all items, which the scaling of vectors takes up.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from dpmf_jax.accounting.rounding import MAX_ITEM_WEIGHT
from dpmf_jax.kernels.dense import eigen, one_at_a_time
from dpmf_jax.mechanisms.clipping import clip_rows

# Of ratings in quarters, a quarter of the scale's width; from MovieLens.
SPREAD = 0.25  # variance of item means, before sums are seen
_SPREAD_ITEMS = 20.0  # how many items' worth of weight that has
_SPREADS = 0.02, 1.0  # what it may be
RATING = 0.8  # variance of a rating around mean and bias
_COMMON = 0.5  # variance of the mean of all ratings around the center
_SCALE = 0.3  # root mean square of a coordinate of a vector
# Bounds on what is public, so that users' equations fit into integers.
MAX_NORM = 2.0  # of a vector
MAX_MEAN = 3.0
# Part of the mean count that is added before weights are computed.
_MIN_COUNT = 0.3
_LEAST_SIZE = 0.05
# Added to counts before their logarithm is taken.
_FEW = 0.3
_ROUNDS = 10


class Sums(NamedTuple):
  """Sums of sweeps so far: precision, and values times precision."""

  precision: jax.Array  # [I] of a coordinate
  counts: jax.Array  # [I]
  residual: jax.Array  # [I] of what `reference` leaves of ratings
  reference: jax.Array  # [I] means that residuals were taken from
  vector: jax.Array  # [I, D], a mean and no sum
  vector_variance: jax.Array  # [I]


class Items(NamedTuple):
  """What is known of items; all of it is released or computed from that."""

  mean: jax.Array  # [I] less the center
  counts: jax.Array  # [I] sums of weights
  weight: jax.Array  # [I] for the next sweep
  vector: jax.Array  # [I, D]
  size: jax.Array  # [D] of users' coordinates, against one another
  own: jax.Array  # [] ratings of a user, about
  weighed: jax.Array  # [] what a rating counts in sums, about
  sums: Sums


def start(
  key: jax.Array, num_items: int, rank: int, quarter: jax.Array
) -> Items:
  """Items before any sweep: random vectors, no means, equal weights."""
  zero = jnp.zeros(num_items)
  vector = _SCALE * jax.random.normal(key, (num_items, rank)) * quarter
  vector = clip_rows(vector, MAX_NORM * quarter)
  sums = Sums(zero, zero, zero, zero, jnp.zeros((num_items, rank)), zero)
  one = jnp.ones(())
  return Items(zero, zero, zero + 1.0, vector, jnp.ones(rank), one, one, sums)


def updated(
  items: Items,
  noisy: jax.Array,
  std: jax.Array,
  *,
  num_users: int,
  quarter: jax.Array,
  count_scale: jax.Array,
  contribution: jax.Array,
  vector_share: jax.Array,
  adaptivity: jax.Array,
  memory: jax.Array,
) -> Items:
  """Items after a sweep that released `noisy` [I, 2 + D] with noise `std`.

  The settings are those of the sweep, in units of ratings, not of quarters;
  a vector_share of 0 is a sweep of means alone, which leaves vectors as they
  are.
  """
  noisy = jnp.where(jnp.isfinite(noisy), noisy, 0.0) / items.weight[:, None]
  variance = jnp.square(std / items.weight)  # [I]
  sums, precision = items.sums, 1.0 / variance
  sums = sums._replace(
    precision=sums.precision + precision,
    counts=sums.counts + precision * noisy[:, 0] / count_scale,
    residual=sums.residual + precision * noisy[:, 1],
    reference=sums.reference + precision * items.mean,
  )
  error = jnp.sqrt(1.0 / sums.precision)
  count = positive_counts(sums.counts / sums.precision, error / count_scale)
  own = _own_ratings(sums, count_scale, num_users)
  # Of one rating's terms. A user of n ratings has a weight of contribution /
  # (length sqrt(n)), or 1 if that is less, and `own` is n times that.
  length = jnp.hypot(quarter * RATING**0.5, count_scale)
  own = own * jnp.maximum(1.0, own * jnp.square(length / contribution))
  room = contribution / (length * jnp.sqrt(own))
  weighed = jnp.minimum(1.0, room)
  rating = RATING * weighed
  # Residuals are count * (mean - reference) with the true count in all sweeps,
  # so the reference is put back once, with the best estimate of it.
  total = (sums.residual + count * sums.reference) / sums.precision
  of_total = jnp.square(error) + count * rating * jnp.square(quarter)
  spread = spread_of_means(total, count, of_total, SPREAD * quarter**2)
  mean = shrunk_means(total, count, of_total, spread)
  mean = jnp.clip(mean, -MAX_MEAN * quarter, MAX_MEAN * quarter)
  vector, size = items.vector, items.size
  if rank := vector.shape[1]:
    more = _with_vectors(sums, noisy[:, 2:], variance, memory)
    spread = rating * jnp.square(vector_share * quarter) / rank
    found, sizes = scaled_vectors(
      more.vector,
      count,
      more.vector_variance + count * spread,
      _SCALE * quarter,
    )
    found = clip_rows(found, MAX_NORM * quarter)
    # Sweeps of means alone have noise and nothing else in sums of vectors.
    there = vector_share > 0
    sums = jax.tree.map(lambda a, b: jnp.where(there, a, b), more, sums)
    vector = jnp.where(there, found, vector)
    size = jnp.where(there, sizes, size)
  weight = (count / jnp.mean(count) + _MIN_COUNT) ** -adaptivity
  typical = jnp.sum(count * jnp.square(weight)) / jnp.sum(count)
  # Where users have few ratings, terms may be longer.
  weight = weight / jnp.sqrt(typical) * jnp.maximum(room, 1.0)
  weight = jnp.minimum(weight, MAX_ITEM_WEIGHT)
  return Items(mean, count, weight, vector, size, own, weighed, sums)


def _own_ratings(
  sums: Sums, count_scale: jax.Array, num_users: int
) -> jax.Array:
  """[] sum of weights of a user's ratings, and a standard error; at least 1."""
  number = jnp.sum(sums.counts / sums.precision)
  error = jnp.sqrt(jnp.sum(1.0 / sums.precision)) / count_scale
  return jnp.maximum((number + error) / num_users, 1.0)


class Totals(NamedTuple):
  """Noisy sums of items: total = number * mean + errors, less the center."""

  number: jax.Array  # [I] sums of weights, estimated
  total: jax.Array  # [I]
  noise: jax.Array  # [I] variance of what was added to the total


def totals(items: Items) -> Totals:
  """What all sweeps together released of items' means, in ratings.

  Privacy: of noisy sums alone.
  """
  count, sums = items.counts, items.sums
  precision = jnp.maximum(sums.precision, 1e-30)  # 0 before the first
  total = (sums.residual + count * sums.reference) / precision
  return Totals(count, total, 1 / precision)


def common_mean(items: Items) -> jax.Array:
  """[] the mean of all ratings, less the center."""
  return mean_over_ratings(items.mean, items.counts)


def known_common(
  items: Items, count_scale: jax.Array, quarter: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """What noise leaves of `common_mean`, [], and its variance in quarters^2.

  Sums of all items over their number, both with noise: with many items and
  few users that is more than means of ratings differ between data sets.
  """
  common = common_mean(items)
  noise = jnp.sum(1 / jnp.maximum(items.sums.precision, 1e-30))
  number = jnp.maximum(jnp.sum(items.counts), 1e-6)
  relative = 1 + jnp.square(common / count_scale)  # numbers have noise, too
  known = jnp.square(number) / (noise * relative)
  variance = 1 / (1 / (_COMMON * jnp.square(quarter)) + known)
  return variance * known * common, variance / jnp.square(quarter)


def popularity(items: Items) -> jax.Array:
  """[I] logarithms of counts, less their mean over ratings."""
  size = jnp.log(items.counts + _FEW)
  return size - mean_over_ratings(size, items.counts)


def mean_over_ratings(values: jax.Array, counts: jax.Array) -> jax.Array:
  """[] of `values` [I]; before any sweep counts are 0."""
  return jnp.sum(values * counts) / jnp.maximum(jnp.sum(counts), 1e-6)


def positive_counts(noisy: jax.Array, error: jax.Array) -> jax.Array:
  """The mean [I] of x >= 0 given x + N(0, error^2), x exponential.

  The prior's mean is that of all of `noisy`, or its error if that is larger.
  """
  size = jnp.sqrt(float(len(noisy)))
  prior = jnp.maximum(jnp.mean(noisy), jnp.mean(error) / size)
  z = noisy / error - error / prior
  # Far below 0 the mean is 1 / |z|, and float32 would take a difference.
  near = jnp.maximum(z, -10.0)
  tail = near + jnp.exp(norm.logpdf(near) - norm.logcdf(near))
  return error * jnp.where(z < -10.0, -1.0 / z, tail)


def spread_of_means(
  sums: jax.Array, count: jax.Array, variance: jax.Array, usual: jax.Array
) -> jax.Array:
  """[] the variance of m over items, where sums = count * m + errors.

  Errors have `variance` [I]. The likeliest one (Fisher scoring), held to the
  `usual` one by a few items' worth of weight.
  """
  low, high = (usual / SPREAD * each for each in _SPREADS)
  held = _SPREAD_ITEMS / jnp.square(usual)

  def improved(_, spread):
    total = jnp.square(count) * spread + variance
    common = jnp.sum(sums * count / total) / jnp.sum(jnp.square(count) / total)
    weight = jnp.square(count / total)
    found = weight * (jnp.square(sums - common * count) - variance)
    known = jnp.sum(weight * jnp.square(count))
    return jnp.clip((jnp.sum(found) + held * usual) / (known + held), low, high)

  return jax.lax.fori_loop(0, _ROUNDS, improved, usual)


def shrunk_means(
  sums: jax.Array, count: jax.Array, variance: jax.Array, spread: jax.Array
) -> jax.Array:
  """The best linear estimate [I] of m from sums = count * m + errors.

  Errors have `variance` [I], and m varies by `spread` around a common mean.
  """
  total = jnp.square(count) * spread + variance
  common = jnp.sum(sums * count / total) / jnp.sum(jnp.square(count) / total)
  return common + (sums - common * count) * count * spread / total


def _with_vectors(
  sums: Sums, noisy: jax.Array, variance: jax.Array, memory: jax.Array
) -> Sums:
  """Sums with those of a sweep, earlier ones turned to fit and weighing less.

  Users' vectors turn with the items', so the earlier sums are turned by the
  rotation that brings them closest to the new ones.
  """
  before = jnp.maximum(sums.vector_variance, 1e-30)  # 0 before the first
  earlier = jnp.where(sums.vector_variance > 0, memory / before, 0.0)
  precision = 1.0 / variance
  cross = (sums.vector / jnp.sqrt(before * variance)[:, None]).T @ noisy
  turned = sums.vector @ _rotation(jnp.where(jnp.isfinite(cross), cross, 0.0))
  total = earlier + precision
  vector = earlier[:, None] * turned + precision[:, None] * noisy
  spread = jnp.square(earlier) * sums.vector_variance + precision
  return sums._replace(
    vector=vector / total[:, None], vector_variance=spread / jnp.square(total)
  )


def scaled_vectors(
  sums: jax.Array, count: jax.Array, variance: jax.Array, scale: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Vectors [I, D], shrunk by what is known of their errors, of one `scale`.

  `sums` = count * vector + errors of `variance` [I] in each coordinate. The
  covariance of vectors is estimated by moments. The result has uncorrelated
  columns, whose mean squares over ratings are scale^2. What they are scaled
  from are vectors times the variances of users' coordinates: [D] root mean
  squares of these against their mean are returned, too.
  """
  rank = sums.shape[1]
  moment = (sums / variance[:, None]).T @ sums - len(sums) * jnp.eye(rank)
  moment = moment / jnp.sum(jnp.square(count) / variance)
  size, basis = eigen(moment)
  size = jnp.maximum(size, 1e-3 * jnp.maximum(size[-1], 1e-12))
  gain = count[:, None] * size[None]
  gain = gain / (gain * count[:, None] + variance[:, None])
  vector = (sums @ basis) * gain
  cover = (vector * count[:, None]).T @ vector / jnp.sum(count)
  size, basis = eigen(cover)
  size = jnp.sqrt(jnp.maximum(size, 1e-12))
  vector = vector @ basis * (scale / size)[None]
  return vector, jnp.maximum(size / jnp.mean(size), _LEAST_SIZE)


def _rotation(matrix: jax.Array) -> jax.Array:
  """The orthogonal matrix closest to `matrix` [D, D]."""
  if len(matrix) == 1:
    return jnp.where(matrix < 0, -1.0, 1.0)

  def one(a):
    left, _, right = jnp.linalg.svd(a)
    return left @ right

  return one_at_a_time(one)(matrix)
