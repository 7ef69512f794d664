"""Likelihood ratios of outputs, where they are known.

The best score there is, by Neyman and Pearson; learned ones come close.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dpmf_jax.auditing.statistics import Score
from dpmf_jax.rows import Data
from dpmf_jax.systems import gaussian_mf
from dpmf_jax.types import System


def log_ratio(
  key: jax.Array, system: System, states: list[Any], data: tuple[Data, Data]
) -> Score | None:
  """log(p_second / p_first) of an output, or None where it is not known.

  Known for one SGD step of sound Gaussian MF from a known start: the factors
  are then Gaussian around those of a step without noise. The dither, whose
  variance is below 1/4000 of the noise's, is left out.
  """
  hyper = getattr(states[0], 'hyper', None)
  if not isinstance(hyper, gaussian_mf.Hyper) or system.steps != 1:
    return None
  rate = states[0].optimizer.hyperparams['learning_rate']
  stds = (float(rate * hyper.user_noise), float(rate * hyper.item_noise))
  if system.guarantee.status != 'proved' or min(stds) <= 0:
    return None
  means = []
  for state, table in zip(states, data, strict=True):
    silent = hyper._replace(
      **{
        name: jax.numpy.zeros_like(getattr(hyper, name))
        for name in ('user_noise', 'item_noise', 'user_dither', 'item_dither')
      }
    )
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
