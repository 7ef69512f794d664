"""Likelihood ratios of outputs, where they are known.

The best score there is, by Neyman and Pearson; learned ones come close.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.auditing.statistics import Score
from dpmf_jax.rows import Data
from dpmf_jax.systems import gaussian_mf
from dpmf_jax.types import Factors, System


def log_ratio(
  key: jax.Array, system: System, states: list[Any], data: tuple[Data, Data]
) -> Score | None:
  """log(p_second / p_first) of an output, or None where it is not known.

  Known for one SGD step of sound Gaussian MF from a known start: the factors
  are then Gaussian around those of a step without noise. The dither, whose
  variance is below 1/4000 of the noise's, is left out.
  """
  ours = isinstance(states[0], gaussian_mf.State) and system.steps == 1
  if not ours or system.guarantee.status != 'proved':
    return None
  hyper = states[0].hyper
  optimizer: Any = states[0].optimizer
  rate = optimizer.hyperparams['learning_rate']
  stds = [float(rate * side.std) for side in hyper.noise]
  if min(stds) <= 0:
    return None
  means = []
  for state, table in zip(states, data, strict=True):
    quiet = (
      side._replace(
        std=jnp.zeros_like(side.std), dither=jnp.zeros_like(side.dither)
      )
      for side in hyper.noise
    )
    silent = hyper._replace(noise=Factors(*quiet))
    # The key is of noise that is multiplied by zero.
    silenced = state._replace(hyper=silent)
    after = system.step(jax.random.clone(key), silenced, table)
    means.append([np.asarray(side, np.float64) for side in after.factors])
  shape = lambda side: np.full(means[0][side].size, stds[side])
  std = np.concatenate([shape(0), shape(1)])
  first, second = (
    np.concatenate([side.ravel() for side in mean]) for mean in means
  )

  def score(outputs: np.ndarray) -> np.ndarray:
    factors = np.asarray(outputs, np.float64)[:, : std.size]
    middle = (factors - (first + second) / 2) / std
    return middle @ ((second - first) / std)

  return score
