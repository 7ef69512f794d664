"""The keys of a run's parties: with a seed, those of the simulator."""

from __future__ import annotations

from typing import NamedTuple

import jax

from dpmf_jax.keys import random_key


class RunKeys(NamedTuple):
  """What `training.fit` makes of a run's key."""

  init: jax.Array
  steps: jax.Array


def fit_key(seed: int | None) -> jax.Array:
  """The key that a simulator hands to `training.fit`."""
  return jax.random.split(random_key(seed))[0]


def run_keys(seed: int | None) -> RunKeys:
  """Those of the simulator for a seed; without one from the system's entropy.

  Every party derives all of them and uses its own: users have the keys that
  they have in the simulator, by their numbers.
  """
  return RunKeys(*jax.random.split(fit_key(seed)))
