"""Item means by objective perturbation of a Huber loss, for add/remove.

With y = rating - center, an item has

  q = argmin sum h(y - q) + ridge/2 q^2 + eta q

where h is quadratic up to config.knee and linear beyond, and eta is Laplace
noise. A rating that is removed takes its curvature with it, which the papers
overlook; a ridge pays for that.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpmf_jax.accounting.rounding import HUBER_BITS, rounded_up
from dpmf_jax.accounting.tails import LAPLACE_END
from dpmf_jax.kernels import huber
from dpmf_jax.mechanisms import laplace, noise
from dpmf_jax.plans.objective_pmf import ObjectivePMFConfig, huber_parts
from dpmf_jax.rows import Data
from dpmf_jax.systems import noisy_equations
from dpmf_jax.systems.traced import traced

_LABEL_BITS = 9


def hyper_of(config: ObjectivePMFConfig) -> Any:
  """The traced settings, with what `noisy_equations.equations_model` reads."""
  parts, spacing = huber_parts(config), config.label_bound * 2.0**-HUBER_BITS
  if LAPLACE_END * parts.noise / parts.ridge > huber.MAX_PLACE / 4 * spacing:
    raise ValueError(
      f'epsilon={config.epsilon} needs noise of scale {parts.noise:.3g}, which '
      "is too large for loss='huber'"
    )
  limit = f"loss='huber': epsilon={config.epsilon} is too small"
  return traced(
    config,
    'center',
    'bias_ridge',
    'vector_ridge',
    noise=rounded_up(parts.noise),
    ridge=rounded_up(parts.ridge),
    cover=noise.lattice_noise(parts.cover, spacing, limit=limit),
    # Down: the gradient's sensitivity is what the noise was made for.
    bound=int(config.knee / spacing),
  )


def huber_step(
  key: jax.Array, state: noisy_equations.State, data: Data
) -> noisy_equations.State:
  """The one step: every item's perturbed minimum, and noise that covers it.

  Privacy: an item's gradient, g(q) = ridge q - sum clip(y - q) + eta, is 0 at
  the exact minimum q*, so that eta is a function of q* that falls with slope
  -(ridge + n), where n counts the ratings with |y - q*| < bound. The density
  of q* is that of eta times ridge + n. One rating more or less moves eta(q*)
  by at most the bound and n by at most 1: densities of neighbours are within
  exp(bound / noise) (1 + 1 / ridge). What is found is within `tolerance` of
  q*, for either neighbour, so that, q* being given, the difference between
  what is found and q* moves by at most 2 tolerance, and Laplace noise of scale
  `cover` on it costs 2 tolerance / cover more (Iyengar et al. 2019, Theorem 1,
  with Laplace noise). The tolerance holds for all ratings: sums are exact
  integers (`huber.balance`), and errors of float32 in eta count as errors of
  the gradient, which move the minimum by 1 / ridge times themselves at most.
  A rating is in one item, so items compose in parallel.
  """
  hyper, rows, spacing = state.hyper, data.by_item, state.hyper.cover.spacing
  huber.check_size(data.by_user.num_rows, rows.column.shape[-1])
  noise_key, cover_key = jax.random.split(key)
  # A label is a function of its own rating, counted in 2^-9 of the bound on
  # labels; q is counted in 2^-9 of that.
  finer = 2.0 ** (HUBER_BITS - _LABEL_BITS)
  label = jnp.round((rows.value - hyper.center) / (spacing * finer))
  label = jnp.clip(label, -(2**_LABEL_BITS), 2**_LABEL_BITS)
  label = jnp.where(jnp.isnan(label), 0.0, label) * finer
  eta = laplace.laplace(noise_key, (rows.num_rows,)).value * hyper.noise
  found = huber.balance(
    rows,
    label,
    bound=hyper.bound,
    slope=hyper.ridge,
    push=eta / spacing,
  )
  drawn = laplace.laplace(cover_key, (rows.num_rows,))
  means = hyper.cover.add(found, drawn)
  items = state.factors.item.at[:, 0].set(means)
  return state._replace(factors=state.factors._replace(item=items))
