"""Seconds of all steps of systems on ML-1M, for comparing two checkouts.

  python -m benchmarks.steps --data_dir=DIR

What `auto` picks for whole users (`dpals`), and `ranking_mf` for both units, at
epsilon 5 on two CPU devices. The first time compiles and stands apart. To
compare, run it in turn in both checkouts (copy this file into an old one).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from dpmf_jax import training
from dpmf_jax.commands import cli
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.auto import recommended
from dpmf_jax.plans.ranking_mf import RankingMFConfig, resolved
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import device_mesh, put_replicated, training_data
from dpmf_jax.systems import build
from dpmf_jax.systems.ranking_mf import ranking_mf
from dpmf_jax.types import System, Unit

_ROUNDS = flags.DEFINE_integer('rounds', 3, 'After the first.', 1)
_DATASET = flags.DEFINE_string('dataset', 'ml-1m', 'Which.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')

EPSILON, DELTA = 5.0, 1e-6


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', 2)
  jax.config.update('jax_enable_compilation_cache', False)
  ratings = catalog.load(_DATASET.value, data_dir=_DATA_DIR.value, quiet=True)
  mesh = device_mesh()
  data, key = training_data(ratings, mesh=mesh), jax.random.key(0)
  for name, system in systems(ratings).items():
    state = put_replicated(system.init(key, data), mesh)
    seconds = []
    for _ in range(1 + _ROUNDS.value):
      began = time.perf_counter()
      arguments = (system.step, key, state, data, 0, system.steps)
      jax.block_until_ready(training._block(*arguments))
      seconds.append(time.perf_counter() - began)
    first, *rest = seconds
    print(
      f'{name}: {system.steps} steps, {min(rest):.3f} to {max(rest):.3f} s; '
      f'the first time {first:.2f} s',
      flush=True,
    )
  return 0


def systems(ratings: Ratings) -> dict[str, System]:
  users, items = ratings.num_users, ratings.num_items
  budget: dict[str, Any] = {'epsilon': EPSILON, 'delta': DELTA}
  name, settings = recommended(
    'user', num_users=users, num_items=items, **budget
  )
  config = SPECS[name].config(scale=ratings.scale, **budget, **settings)
  units: tuple[Unit, Unit] = ('rating', 'user')
  return {f'{name}, one user': build(name, config)} | {
    f'ranking_mf, one {unit}': ranking_mf(
      resolved(
        RankingMFConfig(
          unit=unit, relation='add_remove', scale=ratings.scale, **budget
        ),
        users,
        items,
      )
    )
    for unit in units
  }


if __name__ == '__main__':
  cli.run(main)
