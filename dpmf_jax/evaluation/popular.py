"""Popularity, which lists are compared with, and what counts as relevant.

Privacy: for the curator alone, as all metrics.
"""

from __future__ import annotations

import jax
import numpy as np

from dpmf_jax import keys
from dpmf_jax.plans import selection
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Release, Unit

# The part of the scale from which on a held-out rating is one that should have
# been listed.
_RELEVANT = 2 / 3


def relevant_from(ratings: Ratings) -> float | None:
  """The least rating that is relevant: the upper third of the scale.

  None is any: of clicks, and where nobody gave such a rating.
  """
  if ratings.clicks:
    return None
  low, high = ratings.scale
  liked = low + _RELEVANT * (high - low)
  return liked if (ratings.value >= liked).any() else None


def popularity(train: Ratings) -> Release:
  """What gives everybody the same scores: how often items were rated."""
  counts = np.bincount(train.item, minlength=train.num_items)
  ones = np.ones((train.num_users, 1), np.float32)
  item = counts[:, None].astype(np.float32)
  return Release(Factors(ones, item), np.float32(0))


def noisy_popularity(
  train: Ratings,
  data: Data,
  *,
  system: str,
  unit: Unit,
  epsilon: float,
  delta: float,
) -> Release | None:
  """The same with the noise that a guarantee takes, to compare with.

  It is a run of its own, of clients' answers where `system` has no curator.
  None where there is no such noise for this budget, or for so many users.
  """
  name, given = 'ranking_mf', {'unit': unit}
  if system == 'local_ranking':
    name, given = system, {}
  try:
    selected = selection.selected(
      name,
      {**given, 'epsilon': epsilon},
      delta=delta,
      scale=train.scale,
      rank=0,
    )
    config = selected.config
    if selected.spec.resolved:
      resolved = selected.spec.resolved
      config = resolved(config, train.num_users, train.num_items)
    noisy = build(name, config)
    state = fit(noisy, keys.random_key(), data)
  except ValueError:
    return None
  return jax.device_get(noisy.model(state, data))
