"""Ranking MF: lists of items from what users did, private for users or clicks.

A model of which items go together, not of stars: an interaction counts x in
(0, 1], more for a higher rating, and what is not there counts nothing. Step by
step, every sum with Gaussian noise (one budget):

  0       popularity c: sums of users' profiles, of all items. The T items with
          the largest get scales g = c^-s, and the direction p ~ c^(1-s), which
          is known from here on.
  1, 2, ..  M = sum over users of y z^T, subspace iteration: y is a user's row
          (x_i g_i) shortened to norm 1, z its projection on the factors so
          far, shortened to norm 1, too. p is taken out of M, the singular
          vectors of what is left are the next factors, and how far their
          singular values stand out of the noise, which is known, is what they
          weigh in the end: nothing, where they do not.

The first factors are random. What is released are rows of items (popularity,
then factors) and how users fit themselves at home (`types.Sum`). With rank 0
every step asks for popularity, and the answers are averaged; but where single
interactions are protected it is one answer, with Laplace noise.

Reference: Hardt and Price (2014), The noisy power method, for the idea; scales,
the known direction, normalisation of projections and weights are not in it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.kernels.dense import eigen
from dpmf_jax.kernels.profiles import item_sums, profiles
from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.mechanisms import laplace, noise
from dpmf_jax.mechanisms.clipping import SLACK, clip_scale, slack
from dpmf_jax.plans.ranking_mf import (
  ALONG,
  MOST_ALONG,
  RankingMFConfig,
  check_size,
  lattice_spacing,
  plan,
  resolved,
)
from dpmf_jax.rows import Data
from dpmf_jax.systems.dpals_items import positive_counts
from dpmf_jax.systems.traced import counted, traced
from dpmf_jax.types import Counted, Factors, Release, Sum, System

# 1 gives all factors the same weight in projections, 0 leaves them as they are.
_GAUGE_POWER = 0.5
# Weaker factors count as if their singular value, squared, were this much of
# the largest.
_WEAKEST = 0.05
# Of rows' norms: longer ones are shortened, where interactions are protected.
_ROW_QUANTILE = 0.5
# A factor whose strength is this, and this part of the strongest, has half the
# weight that it could have; all of it is this, where popularity weighs 1.
_HALF_WEIGHT = 1.0, 0.02
_MOST_WEIGHT = 1.25
# Of the strongest factor, its correlation with popularity, both squared, from
# which on factors have no weight, and up to which they have all of it; the part
# of the items it is made of, up to which and from which on the same holds; and
# that part over the part that popularity is made of. See `_told_apart`.
_ALIKE, _SPREAD, _AS_POPULAR = (0.7, 0.62), (0.05, 0.15), (0.75, 0.95)
# Popularity in the row of a user without interactions.
_COLD = 1e-3


class Known(NamedTuple):
  """What is known of items, all of it computed from noisy sums."""

  total: jax.Array  # [I] noisy popularity, times precision
  precision: jax.Array  # []
  scale: jax.Array  # [I] g in [0, 1], 0 where an item is not kept
  direction: jax.Array  # [I] p, of norm 1 and never more, where it is kept
  popularity: jax.Array  # [I] c, in units of that with the largest scale
  vector: jax.Array  # [I, D] factors, of norm 1 each
  # [D] variance of their entries over that of the noise; below 0 by chance.
  strength: jax.Array


class State(NamedTuple):
  factors: Factors
  known: Known
  done: jax.Array  # int32, steps so far
  hyper: Any


def _popularity(
  key: jax.Array, state: State, data: Data, by_user: bool
) -> Known:
  """After one more release of popularity.

  Privacy: a user's terms are x / ||x||, of norm at most 1 (`by_user`), or an
  interaction adds x <= 1 to one item; integers are no larger than the terms.
  In the second case, where nothing else is asked for, noise is Laplace.
  """
  hyper, known = state.hyper, state.known
  ones = jnp.ones_like(known.scale)
  own = profiles(data.by_user, ones, ones[:, None][:, :0], hyper.counted)
  sent = jnp.ones_like(own.square)
  if by_user:
    sent = _inverse(own.square)
  at = _at(hyper.counts, state.done)
  sums = item_sums(data.by_item, ones, sent[:, None], hyper.counted, at.spacing)
  pure = not by_user and not len(known.strength)
  if pure:
    draws = laplace.l2_laplace(key, sums.shape, data.by_user.mesh)
  else:
    (draws,) = noise.draws(key, [sums.shape], data.by_user.mesh)
  noisy = at.add(sums, draws)[:, 0]
  noisy = jnp.where(jnp.isfinite(noisy), noisy, 0.0)
  precision = 1 / jnp.square(at.std) / (2.0 if pure else 1.0)
  known = known._replace(
    total=known.total + precision * noisy,
    precision=known.precision + precision,
  )
  return _scaled(known, hyper)


def _scaled(known: Known, hyper: Any) -> Known:
  """With scales and the direction that popularity, as it is known, gives."""
  error = jax.lax.rsqrt(known.precision)
  count = positive_counts(
    known.total / known.precision, jnp.broadcast_to(error, known.total.shape)
  )
  count = jnp.maximum(count, 1e-6 * jnp.max(count))
  # No more than are paid for, also where counts on a lattice are equal.
  order, number = jnp.argsort(-count), jnp.arange(len(count))
  kept = jnp.zeros_like(number, bool).at[order].set(number < hyper.kept)
  kept &= count > 0  # which NaN is not
  least = jnp.min(count, where=kept, initial=jnp.inf)
  count = count / least
  popular = jnp.where(kept, count ** (1 - hyper.power), 0.0)
  # Zeros add nothing to what the norm is wrong by.
  popular = popular / jnp.linalg.norm(popular) * (1 - slack(hyper.kept))
  return known._replace(
    popularity=count,
    scale=jnp.where(kept, jnp.minimum(count**-hyper.power, 1.0), 0.0),
    direction=popular,
    vector=_without(popular, jnp.where(kept[:, None], known.vector, 0.0)),
  )


def _without(direction: jax.Array, columns: jax.Array) -> jax.Array:
  """`columns` [I, D] less what they have of a direction [I] of norm 1."""
  parts = jnp.sum(direction[:, None] * columns, axis=0, keepdims=True)
  return columns - direction[:, None] * parts


def sent_by_users(known: Known, hyper: Any, data: Data, by_user: bool):
  """What each user sends to their items, [U, D]: z, over the norm of the row.

  Privacy: of the user's own interactions and of what is known. By user, the
  row r of a user times what they send has norm at most 1 in the metric of
  `_drawn`: ||r||^2 - f <r, p>^2 is at most `own.square` less f times the
  square of a sum that is not more than <r, p>, and z is at most 1. By
  interaction it is y z^T of `accounting.interaction_sensitivity`.
  """
  table = jnp.concatenate(
    [known.direction[:, None], _encoder(known, by_user)], 1
  )
  own = profiles(data.by_user, known.scale, table, hyper.counted)
  along, projected = own.sums[:, 0], own.sums[:, 1:]
  norm = jnp.linalg.norm(projected, axis=1)
  if by_user:
    left = own.square - ALONG / (1 + ALONG) * jnp.square(along)
    left = jnp.maximum(left, own.square / MOST_ALONG**2)
    one = jnp.where(norm > 0, 1 / norm, 0.0) * (1 - slack(len(known.strength)))
    return projected * (one * _inverse(left))[:, None]
  row = jnp.sqrt(own.square)
  longest = jnp.maximum(norm, row)
  y = 1 / jnp.maximum(row, jnp.sqrt(hyper.full_profile))
  z = jnp.where(longest > 0, 1 / longest, 0.0)
  return projected * (y * z)[:, None]


def _inverse(square: jax.Array) -> jax.Array:
  """1 / sqrt, or less in its last digits; 0 of 0."""
  root = jnp.sqrt(square) * (1 + SLACK)
  return jnp.where(root > 0, 1 / root, 0.0)


def _encoder(known: Known, by_user: bool) -> jax.Array:
  """Factors [I, D] that users project on, with entries of at most 1.

  Privacy: where interactions are protected, rows have norms of at most 1.
  """
  size = jnp.maximum(known.strength, _WEAKEST * jnp.max(known.strength))
  size = jnp.where(size > 0, size / jnp.max(size), 1.0)
  vector = known.vector * (size ** (-_GAUGE_POWER / 2))[None]
  vector = jnp.where(jnp.isfinite(vector), vector, 0.0)
  if by_user:
    return vector / jnp.maximum(jnp.max(jnp.abs(vector)), 1e-20)
  norms = jnp.linalg.norm(vector, axis=1)
  kept = known.scale > 0
  typical = jnp.nanquantile(jnp.where(kept, norms, jnp.nan), _ROW_QUANTILE)
  vector = vector / jnp.maximum(typical, 1e-20)
  return vector * clip_scale(vector, 1.0)[:, None]


def _drawn(
  key: jax.Array, known: Known, by_user: bool, mesh: Any
) -> noise.Draws:
  """Draws [I, D] of a round.

  Privacy: by user their covariance over items is 1 + ALONG p p^T. Terms that
  move by d then move the draws by (||d||^2 - f ||p^T d||^2)^(1/2) in all, with
  f = ALONG / (1 + ALONG): d = d' + sqrt(ALONG) p h with h = sqrt(ALONG) p^T d
  / (1 + ALONG), of which d' and h get draws of their own.
  """
  items, rank = known.vector.shape
  if not by_user:
    return noise.draws(key, [(items, rank)], mesh)[0]
  draws, along = noise.draws(key, [(items, rank), (1, rank)], mesh)
  more = (ALONG**0.5 * known.direction)[:, None] * along.value
  return draws._replace(value=draws.value + more)


def _round(key: jax.Array, state: State, data: Data, by_user: bool) -> Known:
  """After one more release of M.

  Privacy: given what is known, which earlier steps released, one user, or one
  interaction, moves the integer sums by at most `Plan.sensitivity`.
  """
  hyper, known = state.hyper, state.known
  at = _at(hyper.sums, state.done - 1)
  sent = sent_by_users(known, hyper, data, by_user)
  sums = item_sums(data.by_item, known.scale, sent, hyper.counted, at.spacing)
  noisy = at.add(sums, _drawn(key, known, by_user, data.by_user.mesh))
  kept = (known.scale > 0)[:, None]
  noisy = jnp.where(kept & jnp.isfinite(noisy), noisy, 0.0) / at.std
  return factored(known, noisy)


def factored(known: Known, noisy: jax.Array) -> Known:
  """With the factors of M [I, D], given with noise of variance 1."""
  noisy = _without(known.direction, noisy)
  size, axes = eigen(noisy.T @ noisy)
  size = jnp.maximum(size, 1e-12)
  vector = (noisy @ axes) * jax.lax.rsqrt(size)[None]
  items = jnp.sum(known.scale > 0)
  return known._replace(vector=vector, strength=size / items - 1.0)


def _at(table: noise.LatticeNoise, step: jax.Array) -> noise.LatticeNoise:
  return table._replace(std=table.std[step])


@dataclasses.dataclass(frozen=True)
class Step:
  """A step; equal for equal units. Privacy: see `ranking_mf`."""

  by_user: bool

  def __call__(self, key: jax.Array, state: State, data: Data) -> State:
    first = lambda: _popularity(key, state, data, self.by_user)
    if len(state.known.strength):
      later = lambda: _round(key, state, data, self.by_user)
    else:
      later = first if self.by_user else lambda: state.known
    known = jax.lax.cond(state.done == 0, first, later)
    item = _items(known, state.hyper)
    factors = state.factors._replace(item=item)
    return state._replace(factors=factors, known=known, done=state.done + 1)


def _items(known: Known, hyper: Any) -> jax.Array:
  """Rows [I, 1 + D] of items: popularity, and factors by what they weigh."""
  # What p is where items are kept, and goes on in the same way elsewhere.
  kept = jnp.where(known.scale > 0, known.popularity ** (1 - hyper.power), 0.0)
  columns = [(known.popularity / jnp.linalg.norm(kept))[:, None]]
  strength = jnp.maximum(known.strength, 0.0)
  alone, part = _HALF_WEIGHT
  half = alone + part * jnp.max(strength, initial=0.0)
  weight = _MOST_WEIGHT * strength / (strength + half)
  if len(strength):
    weight *= _told_apart(known)
  power = known.popularity**hyper.power
  columns.append(known.vector * power[:, None] * jnp.sqrt(weight)[None])
  return jnp.concatenate(columns, axis=1)


def _told_apart(known: Known) -> jax.Array:
  """[] in [0, 1]: how far factors are more than popularity.

  Each interaction also goes with itself. Where users choose items one by one,
  without regard to the others, that is all there is: the strongest factor is
  then made of the most popular items, and of few of them, and lists are best
  made by popularity. If it is made of as many items as popularity is, there
  are groups of users who like parts of what is popular.
  """
  kept = known.scale > 0
  strongest = known.vector[:, jnp.argmax(known.strength)]
  squares = jnp.square(jnp.stack([strongest, known.direction]))
  mean = jnp.mean(squares, axis=1, where=kept, keepdims=True)
  fourth = jnp.mean(jnp.square(squares), axis=1, where=kept)
  spread = jnp.square(mean[:, 0]) / jnp.maximum(fourth, 1e-20)
  apart = jnp.where(kept, squares - mean, 0.0)
  norms = jnp.linalg.norm(apart, axis=1)
  alike = jnp.dot(*apart) / jnp.maximum(norms[0] * norms[1], 1e-20)
  part = lambda x, none, all_: jnp.clip((x - none) / (all_ - none), 0.0, 1.0)
  groups = part(spread[0] / jnp.maximum(spread[1], 1e-20), *_AS_POPULAR)
  return jnp.maximum(part(alike, *_ALIKE) * part(spread[0], *_SPREAD), groups)


def _model(state: State, data: Data) -> Release:
  """Items, and what each user sums up of their own.

  Privacy: all numbers of items are of the state, so that no program, which
  depends on how many interactions there are, rounds them in its own way.
  """
  known, item = state.known, state.factors.item
  prior = jnp.zeros(item.shape[1]).at[0].set(_COLD)
  # A user's row is x g, and what `item` has of factors is over g.
  fit = Sum(prior, jnp.square(known.scale), state.hyper.at_home)
  items = Release(Factors(None, item), jnp.float32(0), fit)
  return fitted_users(data.by_user, items)


def _sums(key: jax.Array, state: State, data: Data) -> tuple[jax.Array, ...]:
  """The noisy sums that everything is computed from, up to a rotation."""
  del key, data
  known = state.known
  if not len(known.strength):
    return (known.total,)
  size = (known.strength + 1.0) * jnp.sum(known.scale > 0)
  return known.total, known.vector * jnp.sqrt(size)[None]


def ranking_mf(config: RankingMFConfig) -> System:
  """Popularity and factors by noisy subspace iteration; users stay at home.

  Privacy: each step releases sums over users of terms that are functions of
  their own interactions and of what earlier steps released: by user a Gaussian
  mechanism whose unit is a user, by interaction one whose unit is a single
  one, with multiplier m_s. All of them, adaptively, are one with 1/m^2 = sum
  of 1/m_s^2 (Dong, Roth and Su 2022, Corollary 3.3). Which steps there are,
  their shares, the rank and how many items are kept depend on public facts
  alone; which items are kept, scales, factors and weights are computed from
  noisy sums. What a user sums up of the released items goes to that user only:
  joint differential privacy, as for `dpals`.
  """

  def init(key: jax.Array, data: Data) -> State:
    users, items = (rows.num_rows for rows in data)
    used = resolved(config, users, items)
    check_size(used, users, items)
    rank = used.rank or 0
    hyper = _hyper(used)
    ones = jnp.ones(items)
    start = jax.random.normal(key, (items, rank))
    known = Known(
      total=jnp.zeros(items),
      precision=jnp.float32(0),
      scale=ones,
      direction=ones / np.sqrt(items),
      popularity=ones,
      vector=start,
      strength=jnp.zeros(rank),
    )
    factors = Factors(jnp.zeros((users, 1 + rank)), _items(known, hyper))
    return State(factors, known, jnp.int32(0), hyper)

  return plan(config).system(
    init,
    Step(config.unit == 'user'),
    _model,
    views={'sums': _sums},
    scale=config.scale,
    users_apart=True,
  )


def _hyper(config: RankingMFConfig) -> Any:
  scales, bits = plan(config).noise, config.lattice_bits
  assert bits is not None
  limit = f'lattice_bits={bits}: use fewer bits or a larger epsilon'

  def table(stds: tuple[float, ...], spacing: float) -> noise.LatticeNoise:
    # No step beyond the last, were there one, is without noise.
    padded = np.array([*stds, *[stds[-1]] * (9 - len(stds))])
    return noise.lattice_noise(padded, spacing, limit=limit)

  (low, high), least = config.scale, config.least_weight**2
  return traced(
    config,
    'full_profile',
    counted=counted(config),
    # To count 1 before the top pays where there is noise, and not here.
    at_home=Counted(
      *map(jnp.float32, (low, least, (1 - least) / (high - low)))
    ),
    kept=config.kept_items,
    power=cast(float, config.popularity_power),
    counts=table(scales['popularity'], 2.0**-bits),
    sums=table(scales['factors'], lattice_spacing(config))
    if scales['factors']
    else (),
  )
