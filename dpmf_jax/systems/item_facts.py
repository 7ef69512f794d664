"""Item means around what is known of items without ratings: genres, a year.

The noisy counts and sums of `power_mf` or `dpals` are read once more, as in
`systems.public`: with features f of items, which are public,

  m = a + b log(1 + n) + <c, f> + N(0, t),   c ~ N(0, v),

whose numbers are those that fit the noisy sums best (EM), and means are the
posterior of that. Where the sums are not e^3 times as likely with features as
without, the system's own items are released to the bit.

Privacy: of noisy sums and of public numbers (docs/privacy/public.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.kernels.regression import fitted_users
from dpmf_jax.rows import Data
from dpmf_jax.systems.public import TOTALS, Totals
from dpmf_jax.types import Release, System

_ROUNDS = 20
# In squared quarters: of means around the line and of slopes, at first; and of
# heights and of the slope on popularity, always.
_SPREAD, _SLOPE, _LINE_VARIANCE = 0.2, 0.02, 10.0
_LEAST = 1e-6
_RATING = 1.0  # variance of a rating around its item's mean
_MORE_LIKELY = 3.0  # in logarithms


class Fitted(NamedTuple):
  """Posterior means of items, and the logarithm of how likely sums are."""

  mean: jax.Array  # [I] in quarters
  evidence: jax.Array  # []


@jax.jit  # Operation by operation it takes seconds the first time.
def means_by_facts(totals: Totals, features: jax.Array) -> Fitted:
  """Means around a line in features [I, F] and in log(1 + number).

  Privacy: a function of its arguments, which are public or with noise.
  """
  n, total = totals.number, totals.total
  noise = totals.variance + n * _RATING
  size = jnp.log1p(n)
  size = size - jnp.mean(size)
  line = jnp.stack([jnp.ones_like(size), size], axis=1)
  design = jnp.concatenate([line, features], axis=1)
  scaled = design * n[:, None]

  def fitted(spread, slope):
    both = jnp.square(n) * spread + noise
    weighted = (scaled / both[:, None]).T
    variance = jnp.full(design.shape[1], slope).at[:2].set(_LINE_VARIANCE)
    matrix = weighted @ scaled + jnp.diag(1 / variance)
    inverse, right = jnp.linalg.inv(matrix), weighted @ total
    slopes = inverse @ right
    evidence = jnp.sum(jnp.log(both) + jnp.square(total) / both)
    evidence += jnp.linalg.slogdet(matrix)[1] + jnp.sum(jnp.log(variance))
    evidence -= right @ slopes
    gain = n * spread / both
    moved = gain * (total - n * (design @ slopes))
    return moved, gain, slopes, inverse, -evidence / 2

  def improved(_, laws):
    moved, gain, slopes, inverse, _ = fitted(*laws)
    spread = jnp.mean(jnp.square(moved) + laws[0] * (1 - gain * n))
    square = (jnp.square(slopes) + jnp.diag(inverse))[2:]
    slope = jnp.sum(square) / max(1, features.shape[1])
    return jnp.maximum(spread, 1e-3), jnp.maximum(slope, _LEAST)

  laws = (jnp.float32(_SPREAD), jnp.float32(_SLOPE))
  laws = jax.lax.fori_loop(0, _ROUNDS, improved, laws)
  moved, _, slopes, _, evidence = fitted(*laws)
  return Fitted(design @ slopes + moved, evidence)


def with_facts(name: str, system: System, features: np.ndarray) -> System:
  """`system`, of that name, with means around public features of items.

  Privacy: what the system releases, and a function of its noisy sums and of
  what is public.
  """
  if name not in TOTALS:
    raise ValueError(
      f'system={name} takes no item_features: use {" or ".join(TOTALS)}'
    )
  return system._replace(model=_WithFacts(name, system, standard(features)))


def standard(features: np.ndarray) -> np.ndarray:
  """Columns with mean 0 and variance 1, without those that are all alike."""
  table = np.asarray(features, np.float64)
  if table.ndim != 2 or not np.isfinite(table).all():
    raise ValueError(
      f'item_features of shape {table.shape} must be finite numbers, a row for '
      'each item'
    )
  table = table - table.mean(axis=0)
  size = table.std(axis=0)
  return (table[:, size > 0] / size[size > 0]).astype(np.float32)


class _WithFacts:
  """The model of a system of ratings, with other means."""

  def __init__(self, name: str, system: System, features: np.ndarray):
    self._own, self._totals = system.model, TOTALS[name]
    self._features = jnp.asarray(features)

  def __call__(self, state: Any, data: Data) -> Release:
    own, totals = self._own(state, data), self._totals(state)
    found = means_by_facts(totals, self._features)
    plain = means_by_facts(totals, self._features[:, :0])
    good = found.evidence > plain.evidence + _MORE_LIKELY
    mean = totals.middle + totals.quarter * found.mean - own.offset
    assert own.fit is not None
    held = (jnp.asarray(own.fit.prior) != 0)[None]
    item = jnp.where(good & held, mean[:, None], own.factors.item)
    factors = own.factors._replace(user=None, item=item)
    return fitted_users(data.by_user, own._replace(factors=factors))
