"""Gaussian MF with a bug planted in it: what the auditor must find.

Each system claims, and is believed to have, the guarantee of a sound one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from dpmf_jax.auditing import Target
from dpmf_jax.auditing.pairs import library_pairs
from dpmf_jax.kernels import lattice
from dpmf_jax.mechanisms import noise
from dpmf_jax.plans.gaussian_mf import (
  GaussianMFConfig,
  plan,
  sensitivity,
)
from dpmf_jax.systems import gaussian_mf
from dpmf_jax.systems.traced import SGD
from dpmf_jax.types import Relation, System


def planted(epsilon: float = 1.0, delta: float = 1e-5) -> dict[str, Target]:
  """Every bug by name; 'none' is the sound system itself."""
  common: dict[str, Any] = {
    'variant': 'sound',
    'rank': 1,
    'init': 'unit',
    'steps': 2,
    'step_size': 0.001,
    # Aligned factors then predict the middle of the scale.
    'offset': 2.0,
    'epsilon': epsilon,
    'delta': delta,
  }

  def config(relation: Relation, scale=(1.0, 5.0), **settings: Any):
    return GaussianMFConfig(
      relation=relation, scale=scale, **{**common, **settings}
    )

  def bug(config: GaussianMFConfig, system: System) -> Target:
    system = system._replace(guarantee=plan(config).guarantee)
    pair = library_pairs('rating', config.relation, config.scale)[0]
    return Target('planted', '', system, pair, 'aligned', delta)

  add_remove = config('add_remove')
  replace = config('replace')
  # With equal noise on both sides what a rating adds to aligned factors is
  # the same, too, and cancels where the noise does.
  uneven = config('add_remove', user_share=0.8)
  narrow = config(
    'add_remove', scale=(3.0, 3.5), offset=0.0, residual_bound=4.0
  )
  return {
    'none': bug(add_remove, gaussian_mf.gaussian_mf(add_remove)),
    'noise 30% too small': bug(add_remove, _scaled(add_remove, 0.7)),
    'clip forgotten': bug(replace, _unclipped(replace)),
    'noise key reused': bug(uneven, _one_key(uneven)),
    # What a value can change, 0.5, where what a rating adds is up to 4.
    'sensitivity of value change for removal': bug(
      narrow,
      _scaled(
        narrow,
        sensitivity(dataclasses.replace(narrow, relation='replace'))
        / sensitivity(narrow),
      ),
    ),
    'one statistic without noise': bug(add_remove, _quiet_items(add_remove)),
  }


def _quiet_items(config: GaussianMFConfig) -> System:
  """The system without noise on its items."""
  system = gaussian_mf.gaussian_mf(config)

  def init(key, data):
    state = system.init(key, data)
    noise = state.hyper.noise
    quiet = noise.item._replace(std=jnp.zeros_like(noise.item.std))
    hyper = state.hyper._replace(noise=noise._replace(item=quiet))
    return state._replace(hyper=hyper)

  return system._replace(init=init)


def _scaled(config: GaussianMFConfig, factor: float) -> System:
  spent: Any = plan(config).guarantee.event
  smaller = dataclasses.replace(
    config, epsilon=None, noise_multiplier=spent.noise_multiplier * factor
  )
  return gaussian_mf.gaussian_mf(smaller)


def _unclipped(config: GaussianMFConfig) -> System:
  """Residuals of any size, with the noise of residuals up to the bound."""
  wide = dataclasses.replace(config, residual_bound=8.0)
  spent: Any = plan(config).guarantee.event
  multiplier = spent.noise_multiplier * sensitivity(config) / sensitivity(wide)
  return gaussian_mf.gaussian_mf(
    dataclasses.replace(wide, epsilon=None, noise_multiplier=multiplier)
  )


def _one_key(config: GaussianMFConfig) -> System:
  """The noise of the items is that of the users, drawn again."""

  def step(key, state, data):
    hyper = state.hyper
    counts = lattice.gradients(
      data,
      state.factors,
      clip_norm=hyper.clip_norm,
      offset=hyper.offset,
      low=hyper.low,
      high=hyper.high,
      residual_bound=hyper.residual_bound,
      shift=hyper.shift,
    )
    user, item = (
      own.add(side, noise.draws(key, [side.shape])[0])
      for own, side in zip(hyper.noise, counts, strict=True)
    )
    return gaussian_mf._update(SGD, state, user, item)

  return gaussian_mf.gaussian_mf(config)._replace(step=step)
