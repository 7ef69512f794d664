"""Accuracy over epsilons and keys, for experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from dpmf_jax.evaluation.metrics import release_rmse
from dpmf_jax.keys import random_key
from dpmf_jax.ratings.table import Ratings, check_ratings
from dpmf_jax.rows import training_data
from dpmf_jax.systems.factories import factory
from dpmf_jax.training import fit
from dpmf_jax.types import System


def sweep(
  system: str | Callable[..., System],
  train: Ratings,
  test: Ratings,
  *,
  epsilons: Sequence[float],
  keys: Iterable[jax.Array | int],
  **settings: Any,
) -> np.ndarray:
  """RMSE [epsilons, keys] of a system on `test`, trained on `train`.

    sweep('power_mf', train, test, epsilons=[1, 2], keys=range(5), delta=1e-6)

  It is compiled once: noise is no part of what is compiled, nor are keys.

  Args:
    system: its name, or a function of `epsilon`, `scale` and settings.
    train, test: with the same id lists, as of `random_split`.
    epsilons: of the runs.
    keys: of the runs, as keys or as seeds; every epsilon has all of them.
    **settings: of the system, such as delta, besides its scale.

  Privacy: none. Errors on ratings are not private, and runs with the same key
  must not be published: without their noise they are the same.
  """
  check_ratings(train, 'train')
  check_ratings(test, 'test')
  epsilons = _several('epsilons', epsilons, '[1, 2]')
  keys = _several('keys', keys, 'range(5)')
  make = factory(system) if isinstance(system, str) else system
  systems = [
    make(epsilon=epsilon, scale=train.scale, **settings) for epsilon in epsilons
  ]
  data, held_out = training_data(train), training_data(test).by_user
  keys = [k if isinstance(k, jax.Array) else random_key(int(k)) for k in keys]

  def error(made: System, key: jax.Array) -> jax.Array:
    state = fit(made, jax.random.clone(key), data)
    return release_rmse(made.model(state, data), held_out, train.scale)

  found = [[error(made, key) for key in keys] for made in systems]
  return np.array(found, np.float64).reshape(len(systems), len(keys))


def _several(name: str, values: Any, such: str) -> list[Any]:
  """The values as a list; ValueError where there is but one, or a text."""
  if isinstance(values, str) or not isinstance(values, Iterable):
    raise ValueError(f'{name}={values!r} must be several, such as {such}')
  return list(values)
