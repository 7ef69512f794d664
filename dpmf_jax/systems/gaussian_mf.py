"""Gaussian-mechanism matrix factorization, as published and as it is sound.

Reference: Mugdho and Imtiaz, Privacy-Preserving Matrix Factorization for
Recommendation Systems using Gaussian Mechanism, Algorithm 1 and Theorem 2.
Their X is our item factors, their Theta our user factors, n our rank.

Each step, with e the residuals on the rated pairs:
  grad_item = e^T clip(user) + ridge * item   (+ noise in the sound variant)
  grad_user = e clip(item) + ridge * user + noise
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax.accounting.events import Gaussian
from dpmf_jax.accounting.rounding import PRODUCT_BITS, rounded_up
from dpmf_jax.kernels import lattice
from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.mechanisms import noise
from dpmf_jax.mechanisms.clipping import clip_scale
from dpmf_jax.mechanisms.noisy_sum import Noisy
from dpmf_jax.plans.gaussian_mf import (
  GaussianMFConfig,
  lattice_spacing,
  plan,
  sensitivity,
)
from dpmf_jax.rows import Data, check_scale
from dpmf_jax.systems.traced import SGD, optimizer_or, optimizer_state, traced
from dpmf_jax.types import Factors, Relation, Release, System


class State(NamedTuple):
  factors: Factors
  optimizer: optax.OptState
  hyper: Any  # `traced`


def initial_factors(
  key: jax.Array, data: Data, rank: int, init: Literal['unit', 'bias']
) -> Factors:
  """Random factors that depend on the number of users and items only.

  'unit' is Alg. 1, line 1: entries N(0, 1), rows scaled to norm 1. In 'bias'
  rows have norm 0.1 and two columns are constants: a user starts as
  (b, 0, small) and an item as (0, b, small), with b^2 = 1/2, so that the
  first column of the items learns item biases and the second column of the
  users learns user biases.
  """
  user_key, item_key = jax.random.split(key)

  def side(key, num_rows, constant):
    rows = jax.random.normal(key, (num_rows, rank))
    rows = rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    if init == 'unit':
      return rows
    start = jnp.zeros(2).at[constant].set(0.5**0.5)
    return (0.1 * rows).at[:, :2].set(start)

  return Factors(
    user=side(user_key, data.by_user.num_rows, 0),
    item=side(item_key, data.by_item.num_rows, 1),
  )


def _update(optimizer, state: State, user, item) -> State:
  """The optimizer's step (lines 8 and 9) from gradients as they are used."""
  factors, ridge = state.factors, state.hyper.ridge
  gradient = Factors(user + ridge * factors.user, item + ridge * factors.item)
  updates, opt_state = optimizer.update(gradient, state.optimizer, factors)
  factors = cast(Factors, optax.apply_updates(factors, updates))
  return State(factors, opt_state, state.hyper)


@functools.lru_cache
def _paper_step(optimizer: optax.GradientTransformation):
  """Algorithm 1; one object for equal arguments, see `System.step`."""

  def step(key: jax.Array, state: State, data: Data) -> State:
    factors, hyper = state.factors, state.hyper
    # Lines 3 to 5. Predictions use the factors as they are; only the factor
    # that multiplies the residual is clipped.
    gradient = gradients(
      data,
      factors,
      offset=hyper.offset,
      user_scale=clip_scale(factors.user, hyper.clip_norm),
      item_scale=clip_scale(factors.item, hyper.clip_norm),
    )
    # Lines 6 and 7. There is no noise on the item gradient.
    (draws,) = noise.draws(key, [gradient.user.shape], data.by_user.mesh)
    user = gradient.user + hyper.noise.user * draws.value
    return _update(optimizer, state, user, gradient.item)

  return step


@functools.lru_cache
def _sound_step(optimizer: optax.GradientTransformation):
  """The step with noise on both gradients, exact sums and clipped residuals.

  Privacy: see `gaussian_mf`.
  """

  def step(key: jax.Array, state: State, data: Data) -> State:
    gradient = _noisy_gradients(key, data, state.factors, state.hyper)
    return _update(optimizer, state, *gradient)

  return step


def exact_gradients(data: Data, factors: Factors, hyper: Any) -> Factors:
  """Both gradients as they are before noise, in counts."""
  return lattice.gradients(
    data,
    factors,
    clip_norm=hyper.clip_norm,
    offset=hyper.offset,
    low=hyper.low,
    high=hyper.high,
    residual_bound=hyper.residual_bound,
    shift=hyper.shift,
  )


def _noisy_gradients(
  key: jax.Array, data: Data, factors: Factors, hyper: Any
) -> Factors:
  """Both gradients with noise, see `gaussian_mf`."""
  gradient = exact_gradients(data, factors, hyper)
  # Differs from the paper: line 4's gradient gets noise, too. Without it
  # the items carry raw ratings into the next user gradient.
  shapes = [side.shape for side in gradient]
  rows = data.by_user
  drawn = noise.draws(key, shapes, rows.mesh, spread=rows.spread)
  return Factors(
    *(
      own.add(side, draws)
      for own, side, draws in zip(hyper.noise, gradient, drawn, strict=True)
    )
  )


# Operation by operation they take seconds the first time.
_jitted = jax.jit(_noisy_gradients)


def noisy_gradients(
  key: jax.Array,
  data: Data,
  factors: Factors,
  *,
  relation: Relation,
  scale: tuple[float, float],
  offset: float,
  noise_multiplier: float,
  clip_norm: float = 1.0,
  residual_bound: float = 1.0,
  user_share: float = 0.5,
  lattice_bits: int = 10,
) -> Noisy:
  """Gradients of half the squared error on both sides, with noise on both.

  They are those of one step of `gaussian_mf`: sums over ratings of
  clip(offset + <p, q> - r) clip(q) and of the same with clip(p).

  Args:
    key: used for this once and never again.
    data: of `training_data`, `coo_data` or `dense_data`.
    factors: [U, D] and [I, D], made of what is public or was released.
    relation, scale, clip_norm, residual_bound, user_share, lattice_bits: see
      `GaussianMFConfig`; Python numbers.
    offset: a public constant added to every prediction.
    noise_multiplier: noise over sensitivity of both sides together.

  Privacy: one rating's value ('replace'), or that it is there ('add_remove'),
  moves a row of each side by at most `sensitivity`; see `gaussian_mf` for the
  proof and `Noisy.event` for one release of both sides.

  >>> data = coo_data([0, 0, 1], [2, 0, 1], [5.0, 3.0, 4.0],
  ...                 num_users=2, num_items=3)
  >>> noisy = noisy_gradients(
  ...   jax.random.key(0), data, Factors(jnp.ones((2, 1)), jnp.ones((3, 1))),
  ...   relation='add_remove', scale=(1, 5), offset=3.0, noise_multiplier=2.0)
  >>> [f'{x:.2f}' for x in noisy.value.item.ravel()], noisy.event.count
  (['1.60', '1.19', '2.72'], 1)
  """
  config = GaussianMFConfig(
    variant='sound',
    relation=relation,
    scale=scale,
    delta=0.25,  # not stated: what the ends of the noise cost is in the event
    noise_multiplier=noise_multiplier,
    rank=factors.item.shape[-1],
    steps=1,
    init='unit',
    clip_norm=clip_norm,
    residual_bound=residual_bound,
    offset=offset,
    lattice_bits=lattice_bits,
    user_share=user_share,
  )
  check_scale(data, config.scale)
  hyper = _hyper(config, data)
  value = _jitted(key, data, factors, hyper)
  event = cast(Gaussian, plan(config).guarantee.event)
  return Noisy(value, event, sensitivity(config))


def _hyper(config: GaussianMFConfig, data: Data) -> Any:
  """The traced settings, with the noise."""
  stds, bits = plan(config).noise.values(), config.lattice_bits
  noise = map(rounded_up, stds)
  if config.variant == 'sound':
    lattice.check_size(data, bits)
    spacing = lattice_spacing(config)
    noise = (lattice.gradient_noise(std, spacing, bits) for std in stds)
  return traced(
    config,
    'scale',
    'ridge',
    'clip_norm',
    offset=float(config.center),
    residual_bound=float(config.residual_bound or np.inf),
    shift=PRODUCT_BITS - bits,
    noise=Factors(*noise),
  )


def _model(state: State, data: Data) -> Release:
  """Both sides; as published (Alg. 1, line 11) only users are released."""
  del data
  return Release(state.factors, state.hyper.offset)


def gaussian_mf(config: GaussianMFConfig) -> System:
  """Gaussian-mechanism MF with the guarantee that `config.variant` has.

  Privacy (sound): given the factors so far, which earlier steps released,
  one rating (u, i) enters row u of the user gradient as clip(e) clip(q_i)
  and row i of the item gradient as clip(e) clip(p_u), rounded to a lattice.
  Changing its value moves e by at most r_max - r_min, and clip(e) by at most
  2 * residual_bound; adding or removing it adds or removes its term, with
  |clip(e)| <= residual_bound. The clipped factors have norm <= C. Sums are
  exact, so no other term moves. So each gradient has L2 sensitivity
  `sensitivity(config)`, a step is one Gaussian mechanism on both gradients
  together with multiplier m, 1/m^2 = 1/m_user^2 + 1/m_item^2, and `steps`
  adaptive steps are Gaussian DP with mu = sqrt(steps)/m (Dong, Roth and Su
  2022, Corollary 3.3). The number of steps is fixed beforehand, initial
  factors do not depend on ratings, ridge and optimizer only post-process.
  """
  optimizer = optimizer_or(SGD, config.optimizer)
  sound = config.variant == 'sound'
  # An optimizer of one's own may do with rows what it likes.
  apart = sound and config.optimizer is None

  def init(key: jax.Array, data: Data) -> State:
    factors = initial_factors(key, data, config.rank, config.init)
    opt_state = optimizer_state(optimizer, factors, config.step_size)
    return State(factors, opt_state, _hyper(config, data))

  return plan(config).system(
    init,
    (_sound_step if sound else _paper_step)(optimizer),
    _model,
    scale=config.scale,
    users_apart=apart,
    items_apart=apart,
  )
