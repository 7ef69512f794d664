"""Means of rows (items or users) from noisy counts and sums.

Of a row with n ratings of mean m there are a count n + noise and a sum n m +
errors of the ratings + noise, and the variances of both noises are known. The
estimate is the posterior mean of m where

  log(1 + n) has Student's t over rows,
  m given n is normal around a straight line in log(1 + n),

and the five numbers of these two laws are those that fit the rows best (EM),
but that numbers of all rows are to sum to what noisy counts do.
With little noise this is the row's own mean, with much noise the line, whose
height is then the mean of all ratings. n is summed over by a rule of nodes of
each row's own, where the noisy count leaves it likely.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_NODES = 16
# Means of Gamma(3/2) variables of mean 1 between their quantiles, which are as
# many variances that are equally likely.
_PURE = 0.1893, 0.4761, 0.7933, 1.2356, 2.3058
_REACH = 5.0  # standard deviations of the count's noise that nodes cover
_ROUNDS = 20
# Degrees of freedom of the law of log(1 + n). With a normal one, whose spread
# is that of rows that are lost in noise, what is far more popular than these
# would be taken for less popular than it is, and for much better.
_TAIL = 4.0
# What the laws start from, and are held to by this many rows' worth of weight.
# In units of a quarter of the scale: 1 is the variance of a row's ratings.
_SPREAD, _SPREAD_ROWS = 1.0, 10.0
_VARIANCE, _VARIANCE_ROWS = 0.3, 20.0
_SLOPE_VARIANCE = 1 / 400.0
_LEAST_COUNT_VARIANCE = 1e-3
# Of the mean of all ratings around the middle of the scale; squared quarters.
_COMMON_VARIANCE = 0.5
# A bias with ridge k and n ratings is no worse than the mean of these where
# users' means vary by less than 2/k + 1/n of what ratings do. So where a user
# has few, as far as noisy counts tell, its ridge is less: by this share without
# any, and half of the way with so many.
_MIN_BIAS_RIDGE, _HALF_BIAS_RIDGE = 0.5, 20.0
# The part of a rating's variance that is its user's level differs by about this
# from one file to another, and what it may be.
_PART, _LEAST_PART, _MOST_PART = 0.15, 0.02, 0.8


class Means(NamedTuple):
  """Posterior means.

  Attributes:
    mean: [R] of a row's ratings.
    number: [R] how many they are.
    common: [] mean of all ratings.
    variance: [R] of the mean, as far as it is not known.
  """

  mean: jax.Array
  number: jax.Array
  common: jax.Array
  variance: jax.Array


class Pair(NamedTuple):
  """Noisy counts and sums of rows, and variances of the noise."""

  number: jax.Array  # [R]
  total: jax.Array  # [R]
  count_variance: jax.Array  # []
  total_variance: jax.Array  # []


class Laws(NamedTuple):
  """Of all rows: numbers of ratings, means by these, and what is left."""

  center: jax.Array  # [] of logarithms of numbers
  spread: jax.Array  # []
  height: jax.Array  # [] of means
  slope: jax.Array  # [] on logarithms of numbers, less `middle`
  variance: jax.Array  # [] of means
  middle: jax.Array  # []


def shrunk_means(
  number: jax.Array,
  total: jax.Array,
  *,
  count_variance: jax.Array,
  total_variance: jax.Array,
  most: int,
  pure: bool = False,
) -> Means:
  """Means of rows, in units in which ratings of a row have variance 1.

  Args:
    number: [R] noisy counts.
    total: [R] noisy sums.
    count_variance: [] of the noise of a count.
    total_variance: [] of the noise of a sum.
    most: the largest number of ratings that a row can have.
    pure: whether the noise is L2-Laplace in two dimensions: Gaussian with a
      variance of each row's own, which has a Gamma law of shape 3/2.

  Privacy: a function of its arguments, which are released with noise.
  """
  pair = Pair(number, total, count_variance, total_variance)
  laws = laws_of(pair, most=most, pure=pure)
  mean, number, variance = means_by(laws, pair, most=most, pure=pure)
  return Means(mean, number, (mean * number).sum() / number.sum(), variance)


def laws_of(pair: Pair, *, most: int, pure: bool = False) -> Laws:
  """What rows have in common; see `shrunk_means`."""
  nodes = _nodes(pair, most, pure)
  n, z = nodes.number, jnp.log1p(nodes.number)  # [G, R]
  rows, total = len(pair.number), pair.total
  every = jnp.maximum(pair.number.sum(), 1.0)
  average = jnp.maximum(pair.number.mean(), 1.0)
  middle = jnp.log1p(average)
  # Of the sum of all counts, which is known better than what a law of them, by
  # which no file was made, says of it.
  count_variance = jnp.maximum(pair.count_variance, _LEAST_COUNT_VARIANCE)
  known = every * every / (every * every + rows * count_variance)

  def improved(_, laws):
    chance, _, moved, gain, errors = _posterior(laws, nodes, total)
    variance = laws.variance
    off = jnp.square(z - laws.center) / laws.spread
    usual = chance * (_TAIL + 1) / (_TAIL + off)
    center = (usual * z).sum() / usual.sum()
    center = center + known * jnp.log(every / (chance * n).sum())
    spread = (usual * jnp.square(z - center)).sum() + _SPREAD * _SPREAD_ROWS
    left = jnp.square(moved) + variance * (1 - gain * n)
    left = (chance * left).sum() + _VARIANCE * _VARIANCE_ROWS
    # Weighted least squares of sums on n and n (z - middle).
    weight, tilt = chance / errors, n * (z - middle)
    a = (weight * n * n).sum() + 1e-6
    b = (weight * n * tilt).sum()
    c = (weight * tilt * tilt).sum() + 1 / _SLOPE_VARIANCE
    x = (weight * n * total[None]).sum()
    y = (weight * tilt * total[None]).sum()
    slope = (y - b / a * x) / (c - b / a * b)
    return Laws(
      center,
      jnp.maximum(spread / (rows + _SPREAD_ROWS), 0.05),
      (x - b * slope) / a,
      slope,
      jnp.clip(left / (rows + _VARIANCE_ROWS), 0.02, 1.0),
      middle,
    )

  first = pair.total.sum() / every
  start = middle - 0.5, _SPREAD, first, 0.0, _VARIANCE, middle
  start = Laws(*(jnp.asarray(law, jnp.float32) for law in start))
  return jax.lax.fori_loop(0, _ROUNDS, improved, start)


def means_by(
  laws: Laws, pair: Pair, *, most: int, pure: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Mean, number and variance of `Means`, each row by itself."""
  nodes = _nodes(pair, most, pure)
  chance, given, _, gain, _ = _posterior(laws, nodes, pair.total)
  mean = (chance * given).sum(axis=0)
  number = (chance * nodes.number).sum(axis=0)
  left = laws.variance * (1 - gain * nodes.number)
  left = left + jnp.square(given - mean[None])
  return mean, number, (chance * left).sum(axis=0)


class _Nodes(NamedTuple):
  """Numbers of ratings that rows may have, [G, R].

  Rows last: sums over nodes then are in one order, however many rows there are.
  """

  number: jax.Array
  log_weight: jax.Array  # of node weight x chance of the count
  total_variance: jax.Array  # [G, 1]


def _posterior(laws: Laws, nodes: _Nodes, total: jax.Array):
  """Chances of numbers [G, R], means, how far they moved, gains, errors."""
  n, z = nodes.number, jnp.log1p(nodes.number)
  center, spread, height, slope, variance, middle = laws
  mean = height + slope * (z - middle)
  errors = n * n * variance + n + nodes.total_variance
  rest = total[None] - n * mean
  log_chance = (
    nodes.log_weight
    - z
    - 0.5
    * (
      jnp.square(rest) / errors
      + jnp.log(errors)
      + (_TAIL + 1) * jnp.log1p(jnp.square(z - center) / (_TAIL * spread))
    )
  )
  chance = jax.nn.softmax(log_chance, axis=0)
  gain = n * variance / errors
  return chance, mean + gain * rest, gain * rest, gain, errors


def common_fit(
  known: Means, total_variance: jax.Array, ridge: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """[] the common mean as far as it is known, and the ridge of users' biases.

  `ridge` is what it would be if the common mean were known.
  """
  number = known.number.sum()
  # Of the mean of all ratings, as far as noise leaves it unknown.
  noise_left = len(known.number) * total_variance / jnp.square(number)
  gain = 1 / (1 + noise_left / _COMMON_VARIANCE)
  # Biases make up for that, too.
  return gain * known.common, 1 / (1 / ridge + gain * noise_left)


def own_bias_ridge(ridge: jax.Array, ratings: jax.Array) -> jax.Array:
  """`ridge` of users' biases where a user has about so many ratings."""
  few = _MIN_BIAS_RIDGE * _HALF_BIAS_RIDGE
  return ridge * (few + ratings) / (_HALF_BIAS_RIDGE + ratings)


def level_ridge(
  levels: jax.Array, stds: jax.Array, ridge: jax.Array
) -> jax.Array:
  """The ridge of users' biases that sums over users ask for.

  A product of two of a user's ratings is the variance of users' levels, a
  square that of ratings, and a bias is best shrunk with k = (square - product)
  / product.

  Args:
    levels: [2] noisy sums of products and of squares, as of so many ratings.
    stds: [2] of the noise.
    ridge: as far as these do not tell.
  """
  square = jnp.maximum(levels[1], stds[1])
  found = jnp.clip(levels[0] / square, 0.0, 1.0)
  variance = jnp.square(stds[0]) + jnp.square(found * stds[1])
  known = _PART**2 / (_PART**2 + variance / jnp.square(square))
  usual = 1 / (1 + ridge)
  part = jnp.clip(usual + known * (found - usual), _LEAST_PART, _MOST_PART)
  return 1 / part - 1


def _nodes(pair: Pair, most: int, pure: bool) -> _Nodes:
  """For pure noise each of its variances, which are equally likely, in turn."""
  times = _PURE if pure else (1.0,)
  variance = jnp.maximum(pair.count_variance, _LEAST_COUNT_VARIANCE)
  parts = [_nodes_of(pair.number, variance * each, most) for each in times]
  n, chance = (jnp.concatenate(part) for part in zip(*parts, strict=True))
  of_totals = (
    pair.total_variance * jnp.repeat(jnp.array(times), _NODES)[:, None]
  )
  return _Nodes(n, chance, of_totals)


def _nodes_of(
  count: jax.Array, variance: jax.Array, most: int
) -> tuple[jax.Array, jax.Array]:
  """Numbers n [G, R] and the log of (node weight x chance of the count)."""
  reach = _REACH * jnp.sqrt(variance)
  low = jnp.clip(count - reach, 0.0, most)
  high = jnp.maximum(jnp.clip(count + reach, 1.0, most), low + 1.0)
  width = (high - low)[None]
  # Closer together towards `low`: most rows are short.
  place = (jnp.arange(_NODES, dtype=jnp.float32) + 0.5)[:, None] / _NODES
  n = low[None] + width * jnp.square(place)
  chance = -jnp.square(count[None] - n) / (2 * variance)
  chance = chance - 0.5 * jnp.log(variance)
  return n, jnp.log(2 * place) + jnp.log(width) + chance
