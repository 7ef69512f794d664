"""Matrix factorization by Langevin dynamics, and on perturbed ratings (ISGLD).

Reference: Jiang, Li and Lin (2019), eq. (5), and the two baselines of their
section 4.1: 'Non-private MF' and 'Input Perturbation SGLD', which adds Laplace
noise to every rating, once.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpmf_jax import accounting
from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.mechanisms.noise import coarse_normal
from dpmf_jax.mechanisms.sampling import cell_words
from dpmf_jax.plans import assumptions
from dpmf_jax.plans.settings import no_guarantee, require
from dpmf_jax.rows import Data, Rows
from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.types import Factors, Guarantee, Release, System


@dataclass(frozen=True, kw_only=True)
class LangevinConfig(sgld.LangevinSettings):
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    variant: 'none' (ratings as they are) or 'paper' (Laplace noise on them).
    epsilon: of each rating's value (paper); the noise has scale tau/epsilon.
    clip: whether perturbed ratings are clipped to the scale (paper).
  """

  variant: Literal['none', 'paper']
  epsilon: float | None = None
  clip: bool = False

  def __post_init__(self):
    super().__post_init__()
    given = self.epsilon is not None or self.variant == 'none'
    require(
      self,
      variant=(self.variant in ('none', 'paper'), "'none' or 'paper'"),
      epsilon=(
        given and (self.epsilon is None or 0 < self.epsilon < np.inf),
        'positive and finite',
      ),
    )


NONE: dict[str, Any] = {'variant': 'none'}
PAPER: dict[str, Any] = {'variant': 'paper'}


class State(NamedTuple):
  factors: Factors
  optimizer: Any  # of optax
  values: Factors | None  # perturbed ratings by user and by item
  round: jax.Array  # int32, steps done
  langevin: sgld.Langevin


class Info(NamedTuple):
  unsafe_user_gradient_norm: jax.Array
  unsafe_item_gradient_norm: jax.Array


def perturbed(
  key: jax.Array, rows: Rows, scale: float, *, by_user: bool
) -> jax.Array:
  """Ratings with Laplace noise of `scale`, laid out as `rows.value`.

  A rating's noise depends on the key and on its user and item alone, so that
  both orientations have the same.

  Privacy: each value is epsilon-DP with epsilon = tau / scale for exact
  Laplace noise, on its own and for all that is computed from it; this one is
  float32, from 32 bits, and ends at 22 times its scale.
  """
  words = cell_words(key, rows, by_user=by_user)
  size = -jnp.log(((words >> 1).astype(jnp.float32) + 1) * 2.0**-31)
  return rows.value + scale * jnp.where(words & 1, size, -size)


@functools.cache
def _step(optimizer: optax.GradientTransformation, average: sgld.Average):
  """The step function; one object for equal arguments, see `System.step`."""

  def step(key: jax.Array, state: State, data: Data) -> tuple[State, Info]:
    if state.values is not None:
      data = Data(
        *(
          dataclasses.replace(rows, value=value)
          for rows, value in zip(data, state.values, strict=True)
        )
      )
    user_key, item_key = jax.random.split(key)
    factors, langevin = state.factors, state.langevin
    eta = jnp.asarray(sgld.schedule(langevin)(state.round))
    sums = gradients(data, factors)
    users = jnp.maximum(sgld.counts(data.by_user), 1)[:, None]
    items = sgld.counts(data.by_item)[:, None]
    total = jnp.maximum(items.sum(keepdims=True), 1)
    parts = jnp.maximum(items, 1) if average == 'item' else total

    def mean(key, sums, factors, ridge, count, parts):
      """Of `count` gradients of eq. (6), each with noise of its own."""
      drift = langevin.likelihood * sums + count * factors * ridge[None, :]
      drawn = jnp.sqrt(count * eta) * coarse_normal(key, factors.shape)
      return (eta * drift - drawn) / parts

    user = mean(
      user_key, sums.user, factors.user, langevin.user_ridge, users, users
    )
    item = mean(
      item_key, sums.item, factors.item, langevin.item_ridge, items, parts
    )
    updates, opt_state = optimizer.update(item, state.optimizer, factors.item)
    moved: Any = optax.apply_updates(factors.item, updates)
    info = Info(jnp.linalg.norm(user), jnp.linalg.norm(item))
    return state._replace(
      factors=Factors(factors.user - user, moved),
      optimizer=opt_state,
      round=state.round + 1,
    ), info

  return step


def _model(state: State, data: Data) -> Release:
  del data
  return Release(state.factors, jnp.float32(0))


def _release(key: jax.Array, state: State, data: Data) -> Release:
  """Both sides: they are computed from perturbed ratings, where any are."""
  del key
  return _model(state, data)


def langevin(config: LangevinConfig) -> System:
  """Langevin dynamics on ratings, perturbed ('paper') or not ('none').

  Privacy (paper): one Laplace draw for each rating, which is epsilon-DP for
  its value; training only post-processes. It is a claim here and not proved,
  because the noise is added in float32.
  """
  optimizer = sgld.optimizer_of(config)
  low, high = config.scale

  def init(key: jax.Array, data: Data) -> State:
    factor_key, noise_key, ridge_key = jax.random.split(key, 3)
    sizes = data.by_user.num_rows, data.by_item.num_rows
    factors = sgld.uniform_factors(factor_key, sizes, config)
    values = None
    if config.variant == 'paper':
      assert config.epsilon is not None  # checked by the config
      values = Factors(
        *(
          perturbed(each, rows, (high - low) / config.epsilon, by_user=by_user)
          for each, rows, by_user in (
            (noise_key, data.by_user, True),
            (jax.random.clone(noise_key), data.by_item, False),
          )
        )
      )
      if config.clip:
        values = Factors(*(jnp.clip(side, low, high) for side in values))
    return State(
      factors=factors,
      optimizer=optimizer.init(factors.item),
      values=values,
      round=jnp.int32(0),
      langevin=sgld.langevin(ridge_key, config, data.by_user),
    )

  return System(
    init=init,
    step=_step(optimizer, config.average),
    model=_model,
    release=_release,
    steps=config.steps,
    guarantee=guarantee(config),
  )


def guarantee(config: LangevinConfig) -> Guarantee:
  """The paper's claim for perturbed ratings, or that there is none."""
  if config.variant == 'none':
    return no_guarantee(
      'replace',
      ('user factors', 'item factors'),
      'none: the noise of a sampler is not calibrated to anything',
    )
  assert config.epsilon is not None  # checked by the config
  tau = config.scale[1] - config.scale[0]
  return Guarantee(
    status='claimed',
    unit='rating',
    relation='replace',
    adversary='anyone who sees what is released',
    released=('user factors', 'item factors'),
    secret=('ratings', 'random key'),
    assumptions=(
      assumptions.PUBLIC_PAIRS,
      'The noise is as good as exact Laplace noise; it is float32.',
    ),
    mechanism=f'Laplace noise of scale {tau / config.epsilon:g} on each '
    f'rating, once; then {config.steps} steps of Langevin dynamics',
    event=accounting.ClaimedPure(config.epsilon),
  )
