"""The kinds of steps of noisy power MF: what each of them asks for and makes.

Noise is in what `power_mf_sums` gives. All else is computed from it: row by row
where rows are, to the same bits wherever that is, or of all rows, or of some of
many users, on every device (`homes`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.homes import alike, by_block, by_home, some_rows
from dpmf_jax.plans import power_mf as settings
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.power_mf_sums import (
  State,
  Sums,
  labels,
  noisy_pair,
  noisy_sums,
  of_part,
  row_noise,
)
from dpmf_jax.systems.row_factors import (
  gauge_of,
  prior_of,
  second_moment,
  shortened,
  shrunk_rows,
)
from dpmf_jax.systems.row_means import (
  Means,
  laws_of,
  means_by,
  shrunk_means,
)
from dpmf_jax.types import Factors

# Rows that are computed at a time: about a sixteenth of all, but at least so
# many, and at most on a CPU and on wide hardware.
_LEAST, _MOST = 4, (2**9, 2**15)


def _each(function, rows: Rows, *tables: jax.Array) -> Any:
  """What `function` makes of tables of rows, row by row."""
  size = max(1 << (rows.num_rows // 16).bit_length() >> 1, _LEAST)
  cpu, wide = (min(size, most) for most in _MOST)
  return by_home(
    lambda *own: by_block(function, (cpu, wide), *own), rows, *tables
  )


def _of_all(function, state: State, rows: Rows, *tables: jax.Array) -> Any:
  """What `function` makes of tables of all rows, or of some of many users."""
  return alike(function, state.done, *some_rows(tables, rows))


def _rows(state: State, sides: tuple[Rows, Rows], noisy, own, other, counts):
  """Factors [R, D] of rows and their prior, from what `noisy_sums` gives.

  `sides` and `counts`, of numbers of ratings, are of the rows and of the other
  side.
  """
  hyper, (rows, others) = state.hyper, sides
  # Mixing with the old factors averages noise out.
  mixed = state.done - hyper.before >= hyper.full_steps
  gain = jnp.where(mixed, hyper.relaxation, 1.0)
  known = {
    'error': hyper.error_variance,
    'variance': jnp.square(row_noise(state).std),
  }
  moment = _of_all(second_moment, state, others, other, counts[1])
  # What own factors explain already is not in the residuals.
  target = _each(
    lambda own, noisy, count: count[:, None] * (own @ moment) - noisy,
    rows, own, noisy, counts[0],
  )  # fmt: skip
  prior = _of_all(
    lambda target, count: prior_of(
      target, count, moment, bound=hyper.residual_bound, **known
    ),
    state, rows, target, counts[0],
  )  # fmt: skip
  found = _each(
    lambda own, target, count: (
      (1 - gain) * own
      + gain * shrunk_rows(prior, target, count, kept=gain, **known)
    ),
    rows, own, target, counts[0],
  )  # fmt: skip
  return found, prior.covariance


def item_means(key, state: State, data: Data, how) -> State:
  rows, users = data.by_item, data.by_user.num_rows
  label = labels(rows, state.hyper, None)
  pair = noisy_pair(key, state, rows, users, label, how)
  item = alike(
    lambda pair: shrunk_means(**pair._asdict(), most=users, pure=how[0]),
    state.done,
    pair,
  )
  return state._replace(item=item, known=item, pair=pair)


def item_means_alone(key, state: State, data: Data, shift: int) -> State:
  """Item means as with rank 0, and no factors."""
  none = jax.tree.map(jnp.zeros_like, state.factors)
  return item_means(key, state, data, (True, shift))._replace(factors=none)


def user_biases(key, state: State, data: Data, how) -> State:
  rows, most = data.by_user, data.by_item.num_rows
  label = labels(rows, state.hyper, state.item.mean)
  pair = noisy_pair(key, state, rows, most, label, how)
  sums = pair.number, pair.total
  of = lambda number, total: pair._replace(number=number, total=total)
  laws = _of_all(
    lambda *sums: laws_of(of(*sums), most=most), state, rows, *sums
  )
  mean, number, variance = _each(
    lambda *sums: means_by(laws, of(*sums), most=most), rows, *sums
  )
  level = _of_all(
    lambda mean, variance: jnp.mean(jnp.square(mean) + variance),
    state, rows, mean, variance,
  )  # fmt: skip
  # The line's height is about what all of them have in common.
  user = Means(mean, number, laws.height, variance)
  return state._replace(user=user, level=level)


def _asked(
  key,
  state: State,
  sides: tuple[Rows, Rows],
  counts: tuple[jax.Array, jax.Array],
  *,
  apart: bool | None = None,
) -> tuple[jax.Array, ...]:
  """Noisy sums of rows, and how they were asked for.

  Args:
    sides: ratings by the rows and by the other side.
    counts: numbers of ratings, of the same.
    apart: of which part of all pairs (`of_part`); None is all of them.

  Returns:
    the sums; factors of the rows and of the other side in the gauge of these;
    and the way of the other side there.
  """
  hyper, (rows, others) = state.hyper, sides
  (own, other), quantile = state.factors, hyper.item_quantile
  means = state.user.mean, state.item.mean
  if rows.side == 'item':
    own, other, means = other, own, means[::-1]
    quantile = hyper.user_quantile
  gauge = _of_all(
    lambda *rows: gauge_of(*rows, quantile=quantile, power=hyper.gauge_power),
    state, others, other, counts[1],
  )  # fmt: skip
  other = _each(lambda rows: shortened(rows, gauge), others, other)
  own = _each(lambda rows: rows @ gauge.back, rows, own)
  label = labels(rows, state.hyper, *means[::-1])
  if apart is not None:
    label = of_part(rows, label, apart=apart)
  noisy = noisy_sums(key, state, rows, label, own, other)
  return noisy, own, other, gauge.there


def user_factors(key, state: State, data: Data, trial: bool = False) -> State:
  counts = _counts(state, trial)
  noisy, user, item, _ = _asked(
    key, state, data, counts, apart=False if trial else None
  )
  user, prior = _rows(state, data, noisy, user, item, counts)
  # The first item factors are random and no part of the model.
  item = jnp.where(state.done - state.hyper.before == 2, 0.0, item)
  return state._replace(factors=Factors(user, item), prior=prior)


def item_factors(key, state: State, data: Data, trial: bool = False) -> State:
  sides, (users, items) = (data.by_item, data.by_user), _counts(state, trial)
  counts = items, users
  noisy, item, user, there = _asked(
    key, state, sides, counts, apart=False if trial else None
  )
  item, _ = _rows(state, sides, noisy, item, user, counts)
  moved = lambda prior: there.T @ prior @ there
  prior = alike(moved, state.done, state.prior)
  return state._replace(factors=Factors(user, item), prior=prior)


def _counts(state: State, trial: bool) -> tuple[jax.Array, jax.Array]:
  """Numbers of ratings of users and items, of those that are asked for."""
  part = 1 - 1 / settings.TRIED_PART if trial else 1.0
  return state.user.number * part, state.item.number * part


def tried(key, state: State, data: Data) -> State:
  """Whether factors help with ratings that they were made without.

  Of predictions p and what means leave, y, the sum of p y, less its error, by
  noise and by ratings' own, and less what it would be if p, times whatever is
  best, explained so much of y that factors are worth it: early ones are shrunk
  much. Sums of p (p - y) are of (p - y) times user factors, and those of p p
  are found by numbers of ratings.
  """
  hyper, sides = state.hyper, (data.by_item, data.by_user)
  users, items = _counts(state, False)
  noisy, item, user, _ = _asked(key, state, sides, (items, users), apart=True)
  moment = _of_all(second_moment, state, data.by_user, user, users)

  def gain(noisy, item, items):
    # Sums are asked for with rows of norm 1 at most.
    item = item / jnp.maximum(jnp.linalg.norm(item, axis=1), 1.0)[:, None]
    number = jnp.maximum(items, 0.0) / settings.TRIED_PART
    squares = jnp.sum(number * jnp.sum(item * (item @ moment), axis=1))
    products = squares - jnp.sum(noisy * item)
    error = jnp.square(row_noise(state).std) * jnp.sum(jnp.square(item))
    error = jnp.sqrt(error + hyper.error_variance * squares)
    least = jnp.sqrt(hyper.least_taste * jnp.sum(number) * squares)
    return products - error - least

  found = alike(gain, state.done, noisy, item, items)
  return state._replace(gain=found)


def _known_items(state: State, users: int) -> Means:
  """Means of items by all that was asked for of counts and sums.

  A sum of clipped residuals is taken for n (share of those not clipped) times
  how far off the mean was, errors of ratings and noise.
  """
  hyper, (total, precision) = state.hyper, state.left
  pair, counted = state.pair, state.counted
  known = 1 / pair.count_variance
  every = known + counted.precision
  number = (known * pair.number + counted.total) / every
  pair = pair._replace(number=number, count_variance=1 / every)
  item = shrunk_means(**pair._asdict(), most=users)
  bound = hyper.residual_bound / jnp.sqrt(2 * hyper.error_variance)
  free = jax.scipy.special.erf(bound)  # of normal residuals
  error = hyper.error_variance * (
    free - 2 / jnp.sqrt(jnp.pi) * bound * jnp.exp(-jnp.square(bound))
  ) + jnp.square(hyper.residual_bound) * (1 - free)
  mass = free * item.number
  # Times the precision, which is 0 where none were asked for.
  rest = total - precision * mass * (item.mean - state.item.mean)
  spread = precision * (mass * mass * item.variance + item.number * error) + 1
  mean = item.mean + mass * item.variance * rest / spread
  common = (mean * item.number).sum() / item.number.sum()
  return item._replace(mean=mean, common=common)


def item_sums(key, state: State, data: Data) -> State:
  """More of the items' counts and sums, in turn, in place of factors.

  Privacy: `noisy_sums`, with factors that are 1 and, for counts, with labels so
  low that every residual is the bound.
  """
  hyper = state.hyper
  counts = (state.done - hyper.before) % 2 == 0
  user, item = (jnp.zeros_like(rows) for rows in state.factors)
  label = labels(data.by_item, state.hyper, state.user.mean, state.item.mean)
  label = jnp.where(counts, -2 * hyper.residual_bound, label)
  one = user.at[:, 0].set(1.0)
  noisy = noisy_sums(key, state, data.by_item, label, item, one)[:, 0]
  weight = 1 / jnp.square(row_noise(state).std)

  def with_more(sums: Sums, asked: jax.Array, unit: jax.Array) -> Sums:
    own = jnp.where(asked, weight * unit * unit, 0.0)
    return Sums(sums.total + own * noisy / unit, sums.precision + own)

  def more(state: State) -> tuple[Sums, Sums, Means]:
    state = state._replace(
      counted=with_more(state.counted, counts, hyper.residual_bound),
      left=with_more(state.left, ~counts, jnp.float32(-1)),
    )
    known = _known_items(state, data.by_user.num_rows)
    return state.counted, state.left, known

  # Of items alone.
  items = state._replace(factors=None, user=None)
  counted, left, known = alike(more, state.done, items)
  return state._replace(
    factors=Factors(user, item), counted=counted, left=left, known=known
  )
