"""Noisy power MF: item means and factors at rating level, users' side local.

Step by step, every sum over ratings with noise (Gaussian, one budget, but for
what is said below):

  0  counts and sums of items   -> item means (`row_means`)
  1  counts and sums of users, of what the means leave -> user biases
  2  B = sum of clipped residuals times item factors, for each user
  3  S = sum of clipped residuals times user factors, for each item
  4, 5, ..  the same again: power iteration on the residuals, in which B and S
     turn into factors by shrinkage under known noise (`row_factors`)

Where the noisy counts say that there are too few ratings for factors, the same
steps ask for counts and clipped residuals of items instead, which make the
means better (`item_sums` of `power_mf_steps`). Where they leave it open,
factors are made without an eighth of all pairs of users and items, and halfway
a step asks what they say of the ratings of these (`tried`), which decides
between the two.

With `number_share` a step before these asks for the number of ratings, with
integer noise. Where users and items have too few of them, item means are all
that is asked for then, as with rank 0. With `level_share` the step after item
means alone asks for how users differ in level, which says how far their biases
are shrunk.

The first item factors are random. Residuals are those of the model so far, so
a round corrects it, and rounds average noise out (`relaxation`). Each user at
last fits a bias, a slope on the item means and a vector to their own ratings
and the released item factors, and keeps them. With rank 0 only step 0 runs,
with L2-Laplace noise, which is smaller than Gaussian for one release, and what
`level_share` asks for.

Reference: Hardt and Price (2014), The noisy power method, for the idea; means,
residuals, shrinkage and the users' fit are not in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.accounting.rounding import PRODUCT_BITS
from dpmf_jax.kernels import lattice
from dpmf_jax.kernels.dense import eigen
from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.mechanisms import geometric, noise
from dpmf_jax.plans import power_mf as settings
from dpmf_jax.plans.power_mf import PowerMFConfig
from dpmf_jax.rows import Data
from dpmf_jax.systems import power_mf_steps as steps
from dpmf_jax.systems.power_mf_sums import (
  State,
  Sums,
  with_levels,
  with_number,
)
from dpmf_jax.systems.row_means import (
  Means,
  Pair,
  common_fit,
  level_ridge,
  own_bias_ridge,
)
from dpmf_jax.systems.traced import traced
from dpmf_jax.types import Factors, Fit, Kinds, Release, System


def _needed(state: State) -> tuple[jax.Array, jax.Array]:
  """Ratings that factors need, to be tried, and to be asked for untried.

  Factors are sought where noise leaves something of singular values of a table
  of random signs with so many entries, and where users and items have so many
  ratings that factors are not made of these ratings' own errors.
  """
  hyper = state.hyper
  users, items = (len(rows) for rows in state.factors)
  least = hyper.min_signal * jnp.sqrt(1.0 * users * items) / hyper.loss
  least = jnp.maximum(least, hyper.least_own * (users + items))
  sure = jnp.maximum(least, hyper.min_own * (users + items))
  return hyper.caution * least, hyper.caution * sure


def _nothing(key, state: State, data: Data) -> State:
  del key, data
  return state


@functools.cache
def _step(pure: bool, decides: bool, levels: bool, shift: int):
  """A step; one object for equal arguments. Privacy: see `power_mf`."""
  how = pure, shift
  item_means = lambda key, state, data: steps.item_means(key, state, data, how)
  user_biases = lambda key, state, data: steps.user_biases(
    key, state, data, how
  )
  alone = lambda key, state, data: steps.item_means_alone(
    key, state, data, shift
  )
  more = [with_levels] if levels else []
  if pure and not levels:
    return _counted(item_means)
  if pure:
    return _kinds([item_means, with_levels], lambda state: state.done)
  # In order, the last two in turn; then what there is instead of some.
  phases = [item_means, user_biases, steps.user_factors, steps.item_factors]
  phases = [with_number, *phases] if decides else phases
  trial = [
    functools.partial(steps.user_factors, trial=True),
    functools.partial(steps.item_factors, trial=True),
    steps.tried,
  ]
  hidden, tried = len(phases), len(phases) + 1
  instead = [alone, *more, _nothing] if decides else []

  def branch(state: State) -> jax.Array:
    """Which of them is next, by noisy sums."""
    first = len(phases) - 2
    done = state.done
    turn = jnp.maximum(done - first, 0)
    number, (least, sure) = state.item.number.sum(), _needed(state)
    lost = number < least
    tried_at = state.hyper.tried_at
    own = jnp.where(turn < tried_at, tried + turn % 2, tried + 2)
    unsure = (number < sure) & (done >= first)
    trying = unsure & (turn <= tried_at)
    lost = lost | (unsure & ~trying & ~(state.gain > 0))
    found = jnp.where(done < first, done, first + turn % 2)
    found = jnp.where(trying, own, found)
    found = jnp.where(lost & (done >= first), hidden, found)
    if not decides:
      return found
    # Users and items have too few ratings, by their number.
    is_few = (state.ratings < state.hyper.needed) & (done > 0)
    few = hidden + len(trial) + jnp.minimum(done, len(instead))
    return jnp.where(is_few, few, found)

  return _kinds([*phases, steps.item_sums, *trial, *instead], branch)


def _kinds(
  branches: Sequence[Callable[..., State]],
  branch: Callable[[State], jax.Array],
) -> Kinds:
  """A step that is one of `branches`, by the state."""
  each = tuple(map(_counted, branches))

  def step(key: jax.Array, state: State, data: Data) -> State:
    # One of them draws from the key, also where a batch computes all.
    kind, bits = jax.random.key_impl(key), jax.random.key_data(key)
    of = lambda each: (
      lambda bits, state: each(
        jax.random.wrap_key_data(bits, impl=kind), state, data
      )
    )
    # One switch and not several, so that nothing is compiled twice.
    return jax.lax.switch(branch(state), [*map(of, each)], bits, state)

  return Kinds(step, branch, each)


def _counted(step: Callable[..., State]) -> Callable[..., State]:
  """`step`, as one of the steps so far."""
  return lambda key, state, data: step(key, state, data)._replace(
    done=state.done + 1
  )


def _items(state: State) -> jax.Array:
  """What is released: (mean, 1, vector) of each item.

  Vectors are scaled so that users' vectors have a prior of variance 1.
  """
  quarter, known = state.hyper.quarter, state.known
  mean = quarter * (known.mean - known.common)
  columns = [mean[:, None], jnp.ones_like(mean)[:, None]]
  if state.factors.item.shape[1]:
    size, axes = eigen(state.prior)
    scale = quarter * jnp.sqrt(jnp.maximum(size, 0.0))
    columns.append(state.factors.item @ (axes * scale[None]))
  return jnp.concatenate(columns, axis=1)


def _model(state: State, data: Data) -> Release:
  """Item factors, and what each user fits to their own ratings."""
  return fitted_users(data.by_user, _released(state, data.by_user.num_rows))


# Every report of a run has one: many small operations.
@functools.partial(jax.jit, static_argnums=1)
def _released(state: State, num_users: int) -> Release:
  """Items; users fit around no bias, slope 1 and no vector."""
  hyper, known, item = state.hyper, state.known, _items(state)
  own = known.number.sum() / num_users
  ridge = own_bias_ridge(hyper.bias_ridge, own)
  # Where factors were tried in vain, users' biases say how far they differ, in
  # units in which ratings have variance 1; it may be less, so half of the way.
  ridge = jnp.where(state.gain < 0, jnp.sqrt(ridge / state.level), ridge)
  if len(hyper.level_coins):
    levels = state.levels.astype(jnp.float32)
    by_levels = level_ridge(levels, hyper.level_stds, ridge)
    ridge = jnp.where(state.levels.any(), by_levels, ridge)
  common, bias_ridge = common_fit(known, state.pair.total_variance, ridge)
  offset = (hyper.low + hyper.high) / 2 + hyper.quarter * common
  prior = jnp.zeros(item.shape[1]).at[0].set(1.0)
  ridge = jnp.full_like(prior, hyper.vector_ridge).at[0].set(hyper.slope_ridge)
  ridge = (ridge * jnp.square(hyper.quarter)).at[1].set(bias_ridge)
  fit = Fit(prior, ridge)
  return Release(Factors(None, item), offset, fit, known.number)


def _levels(key: jax.Array, state: State, data: Data) -> tuple[jax.Array, ...]:
  """What item means and users' levels are made of; the rest is made of these.

  In the release levels are one ridge, with much else.
  """
  del key, data
  known = state.known
  return known.mean, known.number, state.levels.astype(jnp.float32)


def power_mf(config: PowerMFConfig) -> System:
  """Item means and factors by noisy power iteration; users' side local.

  Privacy: each step, but for those of number_share and level_share, releases
  sums over ratings of functions of a rating and of what earlier steps released.
  One rating (u, i) is in the sums of one row only: item i or user u. A count
  and a sum move by at most `pair_sensitivity` (the label is clipped to half the
  scale's width), a sum of residuals times factors by at most `row_sensitivity`
  (|residual| <= residual_bound, norm of the factors <= 1). Sums are exact, so
  no other term moves. Step s is thus a Gaussian mechanism with multiplier m_s,
  and all of them, adaptively, one with 1/m^2 = sum of 1/m_s^2 (Dong, Roth and
  Su 2022, Corollary 3.3). Which steps there are, their shares, the rank and the
  rounds are settings; all that depends on data (quantiles, gauges, priors, laws
  of counts and means, and whether a step asks for sums of factors or of
  residuals, which have the same bound) is computed from noisy sums. With rank 0
  step 0 has L2-Laplace noise of scale pair_sensitivity over its epsilon, on a
  row: that epsilon, pure. With number_share the number of ratings, which a
  rating moves by 1, has integer noise, and it alone decides which of the two is
  run, with what it leaves of epsilon and delta (`accounting.Either`). With
  level_share two sums over users, which a rating moves by
  `plans.user_levels.sensitivities`, have integer noise after item means
  alone, whose epsilon is then what these leave. docs/privacy/power_mf.md has
  the proof.
  """
  plan, hyper = settings.plan(config), _hyper(config)

  def init(key: jax.Array, data: Data) -> State:
    if config.rank:
      lattice.check_size(data, config.lattice_bits)
    users, items = (rows.num_rows for rows in data)
    settings.check_levels(config, users, items)
    needed = jnp.float32(settings.needed_ratings(config, users, items))
    return _start(key, hyper._replace(needed=needed), config.rank, users, items)

  return System(
    init=init,
    step=_step(
      config.rank == 0,
      config.decides,
      config.level_share > 0,
      config.shift,
    ),
    model=_model,
    steps=plan.steps,
    guarantee=plan.guarantee,
    views={'levels': _levels} if config.level_share else {},
    scale=config.scale,
    users_apart=True,
  )


def _start(key: jax.Array, hyper: Any, rank: int, users: int, items: int):
  """The first state, most of it by NumPy: each array would be a program."""

  def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)

  means = lambda rows: Means(zeros(rows), zeros(rows) + 1, zeros(), zeros(rows))
  count = zeros(dtype=np.int32)
  state = State(
    factors=Factors(zeros(users, rank), None),
    user=means(users),
    item=means(items),
    known=means(items),
    prior=zeros(rank, rank),
    counted=Sums(zeros(items), zeros()),
    left=Sums(zeros(items), zeros()),
    pair=Pair(zeros(items), zeros(items), zeros() + 1, zeros() + 1),
    level=zeros(),
    ratings=count,
    levels=zeros(2, dtype=np.int32),
    gain=zeros(),
    done=count,
    hyper=hyper,
  )
  state = jax.device_put(state)
  item = _normal(key, (items, rank))
  return state._replace(factors=state.factors._replace(item=item))


@functools.partial(jax.jit, static_argnums=1)
def _normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  return jax.random.normal(noise.unrolled(key), shape)


def _hyper(config: PowerMFConfig) -> Any:
  scales = settings.plan(config).noise
  pairs, rows = scales['counts and sums'], scales['factors']
  # Of items, of users, and of items where means are all there is.
  alone = scales.get('counts and sums alone', pairs[-1:])
  pairs = (*pairs, *alone)[:2] + alone
  spacing = 2.0 ** (config.shift - PRODUCT_BITS)
  limit = f'shift={config.shift}: use a larger shift or epsilon'

  levels = settings.level_laws(config)
  laws = (levels.product, levels.square) if levels else ()

  def table(length: int, noises: Iterable[noise.LatticeNoise]) -> Any:
    # No step beyond the last, were there one, is without noise.
    noises = [*noises]
    noises += [noises[-1]] * (length - len(noises))
    return jax.tree.map(lambda *parts: jnp.asarray(np.stack(parts)), *noises)

  return traced(
    config,
    'scale',
    'quarter',
    'count_scale',
    'residual_bound',
    'relaxation',
    'caution',
    'bias_ridge',
    'vector_ridge',
    counts=table(
      3,
      (
        noise.lattice_noise(s / config.count_scale, spacing, limit=limit)
        for s in pairs
      ),
    ),
    totals=table(
      3,
      (
        noise.lattice_noise(s, spacing * settings.LABEL_BOUND, limit=limit)
        for s in pairs
      ),
    ),
    rows=table(
      2 * settings.MAX_ROUNDS,
      (
        lattice.gradient_noise(
          s, settings.lattice_spacing(config), config.lattice_bits
        )
        for s in rows
      ),
    )
    if rows
    else (),
    lattice_shift=PRODUCT_BITS - config.lattice_bits,
    full_steps=2 + 2 * settings.FULL_ROUNDS,
    user_quantile=settings.USER_QUANTILE,
    item_quantile=settings.ITEM_QUANTILE,
    gauge_power=settings.GAUGE_POWER,
    error_variance=settings.ERROR_VARIANCE,
    slope_ridge=settings.SLOPE_RIDGE,
    min_signal=settings.MIN_SIGNAL,
    min_own=settings.MIN_OWN,
    least_taste=settings.LEAST_TASTE,
    # Where it is 0, so many are sure as there must be at least: no trial.
    tried_at=config.tried_at,
    least_own=settings.LEAST_OWN if config.tried_at else settings.MIN_OWN,
    loss=settings.loss(config),
    before=int(config.decides),  # steps: the number of ratings
    coins=geometric.coin_words(settings.number_law(config))
    if config.decides
    else (),
    needed=0.0,
    level_coins=tuple(map(geometric.coin_words, laws)),
    # Of the difference of two geometric numbers, nearly.
    level_stds=np.array([2**0.5 / law.epsilon for law in laws], np.float32),
  )
