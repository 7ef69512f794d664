"""How far users differ in level, and what is left of means in what they send.

What a user of n ratings sends has the bias taken off, with a ridge r, and the
norm 1. So little of a common mean c is left in it, and less than in proportion,
as rows that are longer weigh less; and what two ratings of a user have in
common is little, and not of levels alone. What is expected of a row is known,
though, if ratings are c + level + rest, both of them Gaussian: with the mean m
of the user's labels and the square q of what is left of them around it,

  sum of residuals = n m s,  square of their norm = q + n m^2 s^2,  s = r/(n+r),

where m and q are independent. So for each size of levels one finds the c and
the size of the rest that what was released has, and which size of levels goes
with what pairs of ratings have in common. Where noise hides that, levels are of
a usual size.

Privacy: of noisy sums, U, I and settings alone.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from dpmf_jax.accounting.rounding import LABEL_BITS

_WIDTH = 2.0**LABEL_BITS
# Standard deviations of levels that are compared, in widths of the scale; what
# they usually are, and the logarithm of how far they differ from that.
_SIZES = np.geomspace(0.02, 0.3, 10)
_USUAL, _APART = 0.1, 0.35
# What products are off by as ratings are not Gaussian, nor of all sizes.
_OFF = 0.04
# What levels leave of ratings usually is, and may be, in widths.
_REST, _RESTS = 0.2, (0.12, 0.32)
# The part that numbers of ratings are off by where half of that is left to it.
_UNSURE = 0.2
# Times that what is not known is computed anew.
_ROUNDS = 8
# Numbers of ratings, means of users and squares that are averaged over: few, as
# audits have thousands of runs.
_POINTS = 6, 6, 4


class Sent(NamedTuple):
  """What was released of users' rows, in 2^-LABEL_BITS of the scale."""

  number: jax.Array  # [] ratings of a user, about
  unsure: jax.Array  # [] the part that this is off by
  ridge: jax.Array  # [] of biases that were taken off
  counted: jax.Array  # [] k, what a rating counts beside its residual
  weight: jax.Array  # [] of a user's row: sum of k over its norm, k included
  mean: jax.Array  # [] of residuals by these weights
  reference: jax.Array  # [] what is taken off ratings before products
  product: jax.Array  # [] of two residuals of a user over their mean square
  error: jax.Array  # [] of that, by noise
  least: float  # residuals are taken to be at least so large in products


class Left(NamedTuple):
  """What is left of items' means in residuals."""

  common: jax.Array  # [] part of a common mean
  own: jax.Array  # [] of an item's own


class Levels(NamedTuple):
  """What explains it."""

  left: Left
  variance: jax.Array  # [] of users' levels, in that of the rest


def levels(sent: Sent) -> Levels:
  """What is left of means, and how far users differ from a common one."""
  size = jnp.asarray(_SIZES * _WIDTH, jnp.float32)
  lowest, highest = (jnp.square(each * _WIDTH) for each in _RESTS)
  half, usual = _WIDTH / 2, jnp.square(_REST * _WIDTH)
  times = (sent.number + sent.ridge) / sent.ridge
  of_sizes = jax.vmap(expected, (None, 0, 0, 0))

  def closer(_, found):
    mean, rest = found
    now = of_sizes(sent, mean, size, rest)
    rest = rest * jnp.square(now.weight / jnp.maximum(sent.weight, 1e-3))
    rest = jnp.clip(rest, lowest, highest)
    mean = mean + (sent.mean - now.mean) * times
    return jnp.clip(mean, -half, half), rest

  start = sent.mean * times * jnp.ones_like(size)
  start = jnp.clip(start, -half, half), jnp.full_like(size, usual)
  mean, rest = jax.lax.fori_loop(0, _ROUNDS, closer, start)
  known = 1 / (1 + jnp.square(sent.unsure / _UNSURE))
  rest = usual * (rest / usual) ** known
  found = of_sizes(sent, mean, size, rest)
  error = jnp.hypot(sent.error, _OFF)
  fits = -jnp.square((found.product - sent.product) / error)
  fits = fits - jnp.square(jnp.log(size / (_USUAL * _WIDTH)) / _APART)
  part = jax.nn.softmax(fits / 2)
  variance = jnp.exp(jnp.sum(part * jnp.log(jnp.square(size) / rest)))
  # Of a mean of 0 nothing is left, but of one close to it.
  some = jnp.maximum(jnp.abs(mean), 1.0)
  common = of_sizes(sent, some, size, rest).mean / some
  left = Left(jnp.sum(part * common), jnp.sum(part * found.own))
  return Levels(left, variance)


class Expected(NamedTuple):
  """Of what is sent: see `Sent`, and `Left.own`."""

  weight: jax.Array
  mean: jax.Array
  product: jax.Array
  own: jax.Array


def expected(
  sent: Sent, mean: jax.Array, size: jax.Array, rest: jax.Array
) -> Expected:
  """What users send on average.

  Args:
    sent: its settings, and numbers of ratings.
    mean: of all ratings.
    size: standard deviation of users' levels.
    rest: variance of a user's ratings.
  """
  of_numbers, of_means, of_squares = map(_middles, _POINTS)
  of_means, of_squares = norm.ppf(of_means), norm.ppf(of_squares)
  # Beyond the first, numbers of ratings are about exponential.
  spread = -jnp.log1p(-of_numbers)
  spread = spread / jnp.mean(spread)
  number = (1 + (sent.number - 1) * spread)[:, None, None]
  square = rest * _squares(number - 1, of_squares[None, None])
  left = sent.ridge / (number + sent.ridge)
  own = jnp.sqrt(jnp.square(size) + rest / number) * of_means[None, :, None]
  along = number * jnp.square((mean + own) * left)
  weight = 1 / jnp.sqrt(number * jnp.square(sent.counted) + square + along)
  counts = jnp.mean(number * weight)
  total = number * (mean + own) * left
  sums = jnp.mean(total * weight)
  # A residual that is larger makes the row longer, which so weighs less, and
  # counts for less.
  shorter = square + along - sums / counts * total
  kept = number - shorter * jnp.square(weight)
  kept = jnp.mean(kept * (1 - left / sent.ridge) * weight)
  along = number * jnp.square((mean + own - sent.reference) * left)
  norm_square = jnp.maximum(square + along, number * sent.least**2)
  products = jnp.mean((number * along - square - along) / norm_square)
  pairs = jnp.maximum(jnp.mean(number - 1), 1e-6)
  return Expected(
    counts * sent.counted, sums / counts, products / pairs, kept / counts
  )


def _middles(points: int) -> jax.Array:
  """[N] the middles of so many equal parts of 0..1."""
  return (jnp.arange(points) + 0.5) / points


def _squares(freedom: jax.Array, normal: jax.Array) -> jax.Array:
  """Quantiles of chi squared (Wilson and Hilferty 1931), of `normal` ones."""
  part = 2 / (9 * jnp.maximum(freedom, 1e-3))
  return freedom * jnp.maximum(1 - part + normal * jnp.sqrt(part), 0.0) ** 3
