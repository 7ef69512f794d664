"""Public knowledge of items beside what a private system releases of them.

A system of this library that protects ratings or users computes its items from
noisy sums. Here the same sums are read once more, with public ratings
(`ratings.priors`) as the prior:

  power_mf, dpals   means of items are the posterior of the noisy sums around a
      line in the public means, whose slope and spread are those that fit the
      sums; public factors stand beside the system's own, and users fit both.
  ranking_mf        public factors of lists beside its own, in which items weigh
      by their noisy popularity over the public one.

Whether the public ratings are about the same items at all is seen in the noisy
sums, too: where the slope is far from 1, or popularities have little in common,
the system's own items are released as they are, to the bit.

Privacy: steps and noise are the system's own. All of the above is computed from
its noisy sums and from what is public, and costs nothing (docs/privacy/
public.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.ratings.priors import Matched
from dpmf_jax.rows import Data
from dpmf_jax.systems import dpals_items
from dpmf_jax.types import Factors, Fit, Release, Sum, System

# Slopes of the private means on the public ones from here on are those of the
# same items: this many standard errors, and never less than the first. Noise in
# counts makes slopes smaller than they are.
_LEAST_SLOPE, _ERRORS = 0.25, 4.0
# Variance of means around the line at first, in squared quarters, and how many
# items that counts for.
_SPREAD, _SPREAD_ITEMS = 0.1, 10.0
_ROUNDS = 20
# Of heights and of a slope, before sums are seen.
_LINE_VARIANCE = 1.0
# Correlations of popularities from here on are those of the same items: this
# many standard errors of unrelated ones, and never less than the first.
_LEAST_ALIKE = 0.1
# Popularity over the public one, to this power; with so much of an item's
# share added to both.
_POPULARITY_POWER, _FEW = 0.3, 0.03
# Of public factors of lists, over that of the system's own items.
_LIST_WEIGHT = 1.4
# Profiles that both are compared on: how many, and of how many items.
_PROFILES, _LENGTH = 64, 32


class Totals(NamedTuple):
  """Noisy sums of items: total = number * mean + errors, in quarters."""

  number: jax.Array  # [I]
  total: jax.Array  # [I]
  variance: jax.Array  # [I] of the noise of a total
  middle: jax.Array  # [] what means are counted from, as a rating
  quarter: jax.Array  # [] of the scale's width


class Line(NamedTuple):
  """What private means have in common with public ones.

  Attributes:
    mean: [I] posterior means, in quarters.
    slope: [] on public means.
    error: [] its standard error.
  """

  mean: jax.Array
  slope: jax.Array
  error: jax.Array


def _of_power_mf(state: Any) -> Totals:
  hyper, pair = state.hyper, state.pair
  middle = (hyper.low + hyper.high) / 2
  noise = jnp.broadcast_to(pair.total_variance, pair.total.shape)
  return Totals(state.item.number, pair.total, noise, middle, hyper.quarter)


def _of_dpals(state: Any) -> Totals:
  quarter, found = state.hyper.quarter, dpals_items.totals(state.items)
  return Totals(
    found.number,
    found.total / quarter,
    found.noise / jnp.square(quarter),
    state.hyper.center,
    quarter,
  )


TOTALS: dict[str, Callable[[Any], Totals]] = {
  'power_mf': _of_power_mf,
  'dpals': _of_dpals,
}
NAMES = (*TOTALS, 'ranking_mf')


@jax.jit  # Operation by operation it takes seconds the first time.
def posterior_means(
  totals: Totals,
  mean: jax.Array,
  variance: jax.Array,
  known: jax.Array,
  error: jax.Array,
) -> Line:
  """Means of items around a line in the public ones, by EM.

  Args:
    totals: noisy sums.
    mean: [I] public means, in quarters.
    variance: [I] of what is known of them.
    known: [I] whether an item has one; others have a height of their own.
    error: [] variance of a rating around its item's mean.

  Of items, m = a + b (public - their mean) + N(0, t + variance), or m = c +
  N(0, s) for those that are not known; a, b, c, t and s are fitted.

  Privacy: a function of its arguments, which are public or with noise.
  """
  n, noise = totals.number, totals.variance + totals.number * error
  share = jnp.where(known, n, 0.0)
  center = jnp.sum(share * mean) / jnp.maximum(jnp.sum(share), 1e-6)
  apart = jnp.where(known, mean - center, 0.0)
  groups = jnp.stack([known, ~known], axis=1).astype(jnp.float32)  # [I, 2]
  variance = jnp.where(known, variance, 0.0)
  design = jnp.concatenate([groups, apart[:, None]], axis=1)
  scaled = design * n[:, None]

  def fitted(spread):
    own = groups @ spread + variance
    both = jnp.square(n) * own + noise
    # Weighted least squares of totals on n times the design.
    weighted = (scaled / both[:, None]).T
    inverse = jnp.linalg.inv(weighted @ scaled + jnp.eye(3) / _LINE_VARIANCE)
    slopes = inverse @ (weighted @ totals.total)
    line, gain = design @ slopes, n * own / both
    return own, line, gain * (totals.total - n * line), gain, slopes, inverse

  def improved(_, spread):
    own, _, moved, gain, _, _ = fitted(spread)
    square = jnp.square(moved) + own * (1 - gain * n)
    sums = groups.T @ (square - jnp.minimum(variance, square))
    sums = sums + _SPREAD * _SPREAD_ITEMS
    return jnp.maximum(sums / (groups.sum(axis=0) + _SPREAD_ITEMS), 1e-4)

  spread = jax.lax.fori_loop(0, _ROUNDS, improved, jnp.full(2, _SPREAD))
  _, line, moved, _, slopes, inverse = fitted(spread)
  return Line(line + moved, slopes[-1], jnp.sqrt(inverse[-1, -1]))


def with_public(name: str, system: System, public: Matched) -> System:
  """`system`, of that name, with what public ratings say of its items.

  Privacy: what the system releases, and a function of its state, which holds
  noisy sums, and of public numbers: see the module.
  """
  if name not in NAMES:
    raise ValueError(
      f'system={name} takes no public_ratings: use {", ".join(TOTALS)} or '
      'ranking_mf'
    )
  if name == 'ranking_mf':
    return system._replace(model=_Listed(system, public))
  if not public.prior.has_ratings:
    raise ValueError(
      f'public_ratings={public.prior.name} are clicks, which say nothing of '
      'ratings: use task=ranking, or public ratings'
    )
  return system._replace(model=_Rated(name, system, public))


def public_columns_used(model: Release, public: Matched) -> bool:
  """Whether noisy sums had so much to do with what is public that it counts."""
  if isinstance(model.fit, Sum):
    columns = model.factors.item[:, -public.prior.listed.shape[1] :]
  else:
    columns = model.factors.item[:, : public.prior.factor.shape[1]]
  return bool(jnp.any(columns != 0))


class _Rated:
  """The model of a system of ratings, with public knowledge."""

  def __init__(self, name: str, system: System, public: Matched):
    self._own, self._totals, prior = system.model, TOTALS[name], public.prior
    self._known = jnp.asarray(public.place >= 0)
    self._mean, self._variance, self._factor = (
      jnp.asarray(public.taken(each)) for each in ('mean', 'variance', 'factor')
    )
    self._typical, self._spread, self._error = map(
      jnp.asarray, (prior.typical, prior.spread, prior.error)
    )

  def __call__(self, state: Any, data: Data) -> Release:
    own = self._own(state, data)
    return fitted_users(data.by_user, self.released(state, own))

  def released(self, state: Any, own: Release) -> Release:
    """Items: public factors, a mean, and the system's own columns."""
    totals = self._totals(state)
    line = posterior_means(
      totals, self._mean, self._variance, self._known, self._error
    )
    least = jnp.maximum(_LEAST_SLOPE, _ERRORS * line.error)
    good = line.slope > least
    # What is not known of an item goes with its mean as for other items.
    along = self._spread[1:, 0] / self._spread[0, 0]
    more = (line.mean - self._typical[0])[:, None] * along[None]
    factor = jnp.where(
      self._known[:, None], self._factor, self._typical[None, 1:] + more
    )
    quarter, fit = totals.quarter, cast(Fit, own.fit)
    mean = totals.middle + quarter * line.mean - own.offset
    # Its own means, which every user has, are in the new ones.
    held = jnp.asarray(fit.prior) != 0
    item = jnp.where(good & held[None], 0.0, own.factors.item)
    new = jnp.concatenate([quarter * factor, mean[:, None]], axis=1)
    columns = jnp.concatenate([jnp.where(good, new, 0.0), item], axis=1)
    rank = factor.shape[1]
    ridge = jnp.full(rank, self._error * jnp.square(quarter))
    prior = jnp.zeros(rank + 1).at[-1].set(1.0)
    return own._replace(
      factors=Factors(None, columns),
      fit=Fit(
        jnp.concatenate([prior, fit.prior]),
        jnp.concatenate([ridge, jnp.full(1, jnp.inf), fit.ridge]),
      ),
    )


class _Listed:
  """The model of a system of rankings, with public knowledge."""

  def __init__(self, system: System, public: Matched):
    self._own = system.model
    self._known = jnp.asarray(public.place >= 0)
    self._popularity, self._factor, scale = (
      jnp.asarray(public.taken(each))
      for each in ('popularity', 'listed', 'list_scale')
    )
    self._scale = jnp.where(self._known, scale, 1.0)

  def __call__(self, state: Any, data: Data) -> Release:
    own = self._own(state, data)
    return fitted_users(data.by_user, self.released(state, own))

  def released(self, state: Any, own: Release) -> Release:
    """Items: the system's own columns, and public ones."""
    fit, item = cast(Sum, own.fit), own.factors.item
    share = lambda number: (
      number / jnp.maximum(jnp.sum(jnp.where(self._known, number, 0.0)), 1e-20)
    )
    few = _FEW / jnp.maximum(jnp.sum(self._known), 1)
    popularity = state.known.popularity
    ratio = (share(popularity) + few) / (share(self._popularity) + few)
    out = ratio**_POPULARITY_POWER / self._scale
    public = self._factor * out[:, None]
    # A user's row has the factors times the scale.
    weight = jnp.broadcast_to((self._scale / out)[:, None], public.shape)
    own_weight = jnp.broadcast_to(fit.weight[:, None], item.shape)
    size = _LIST_WEIGHT * _sizes(
      popularity, (item, item * own_weight), (public, public * weight)
    )
    good = _alike(state.known.total, self._popularity, self._known)
    public = jnp.where(good, public * jnp.sqrt(size), 0.0)
    return own._replace(
      factors=Factors(None, jnp.concatenate([item, public], axis=1)),
      fit=fit._replace(
        prior=jnp.concatenate([fit.prior, jnp.zeros(public.shape[1])]),
        weight=jnp.concatenate([own_weight, weight], axis=1),
      ),
    )


@jax.jit
def _alike(noisy: jax.Array, public: jax.Array, known: jax.Array) -> jax.Array:
  """[] whether popularities have so much in common that items are the same.

  Those of unrelated items have a correlation of about 0, give or take 1 over
  the root of their number; noise makes it smaller.
  """
  number = jnp.maximum(jnp.sum(known), 1)
  centered = lambda x: jnp.where(
    known, x - jnp.sum(jnp.where(known, x, 0.0)) / number, 0.0
  )
  a, b = centered(noisy), centered(jnp.sqrt(public))
  size = jnp.linalg.norm(a) * jnp.linalg.norm(b)
  least = jnp.maximum(_LEAST_ALIKE, _ERRORS / jnp.sqrt(number))
  return jnp.dot(a, b) > least * size


@jax.jit
def _sizes(popularity: jax.Array, first: Any, second: Any) -> jax.Array:
  """[] how much wider the first's scores are spread than the second's.

  Both are (items, items as they are summed in users' rows), and the users are
  made up: they have items by chance, as popular ones as `popularity` has.
  """
  chance = jnp.log(jnp.maximum(popularity, 1e-20))
  drawn = jax.random.categorical(
    jax.random.key(0), chance, shape=(_PROFILES, _LENGTH)
  )
  spread = lambda item, added: jnp.median(
    jnp.std(added[drawn].sum(axis=1) @ item.T, axis=1)
  )
  return spread(*first) / jnp.maximum(spread(*second), 1e-20)
