"""Times the masked-gradient step against its peers, and checks the targets.

All in one process, contenders interleaved, so that the ratios hold on a
machine whose speed changes while this runs. From the root of the checkout:

  python -m benchmarks.kernels --data_dir=DIR --json=kernels.json

It ends with code 1 if a target is missed, unless with --quick. Numba is
needed here, and nowhere else.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numba
import numpy as np
import tqdm
from absl import flags

from benchmarks.contenders import (
  NUMBA,
  RANK,
  REFERENCE,
  STEP_SIZE,
  STEPS,
  VIEWS,
  Run,
  numba_run,
  ours_run,
  peers,
  start_factors,
)
from benchmarks.private_steps import block_arguments, plain_step, private_system
from dpmf_jax import training
from dpmf_jax.commands import cli
from dpmf_jax.plans.nonprivate import NonprivateConfig
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data, device_mesh, training_data
from dpmf_jax.systems.nonprivate import nonprivate

_ROUNDS = flags.DEFINE_integer('rounds', 40, 'Rounds over all contenders.', 1)
_QUICK = flags.DEFINE_bool('quick', False, 'Small sizes: a smoke test.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  'Has ml-1m/ratings.dat; $DPMF_DATA_DIR by default, else made-up ratings.',
)

TOLERANCE = 1e-3  # of what the steps change, in norm
PAUSE = 0.02  # seconds, for the last contender's threads to go to sleep
ML_1M = (6_040, 3_706, 1_000_209)
SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
QUICK_SIZES = (100_000, 200_000)

Times = dict[str, list[float]]  # contender -> seconds per step, by round


class Target(NamedTuple):
  """A figure and the most, or the least, that it may be."""

  what: str
  figures: list[float]  # of all rounds, or the only one
  bound: float
  at_least: bool = False

  @property
  def figure(self) -> float:
    return statistics.median(self.figures)

  @property
  def met(self) -> bool:
    if self.at_least:
      return self.figure >= self.bound
    return self.figure <= self.bound

  @property
  def spread(self) -> str:
    """Quartiles over rounds."""
    if len(self.figures) < 2:
      return ''
    low, _, high = statistics.quantiles(self.figures, method='inclusive')
    return f' ({low:.2f} to {high:.2f})'


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', 2)
  jax.config.update('jax_enable_compilation_cache', False)
  numba.set_num_threads(min(2, numba.get_num_threads()))
  one, two = None, device_mesh(2)
  sizes = QUICK_SIZES if _QUICK.value else SIZES
  machine = {
    'cores': os.cpu_count(),
    'processor': _processor(),
    'load': os.getloadavg()[0],
    'jax': jax.__version__,
    'numba': numba.__version__,
    'devices': [str(device) for device in jax.devices()],
  }

  with tqdm.tqdm(total=5 + len(sizes), unit='stage') as bar:

    def stage(name: str) -> None:
      bar.set_description(name)
      bar.refresh()

    stage('ratings')
    ratings = _ratings()
    data = {mesh: training_data(ratings, mesh=mesh) for mesh in (one, two)}
    bar.update()
    stage('compiling')
    compiling = {
      f'{what}, {n}': seconds
      for n, mesh in zip(DEVICES, (one, two), strict=True)
      for what, seconds in compile_seconds(ratings, data[mesh]).items()
    }
    bar.update()
    stage('checking and timing the peers')
    runs = peers(ratings, data[one], data[two])
    errors = check(runs)
    step_times = interleave(runs, _ROUNDS.value)
    bar.update()
    stage('private and not')
    privacy_times = interleave(
      privacy_runs(data[one], '1 device')
      | privacy_runs(data[two], '2 devices'),
      _ROUNDS.value,
    )
    bar.update()
    runs, bytes_per_rating = {}, {}
    for size in sizes:
      stage(f'{size:,} ratings')
      new, bytes_per_rating[size] = scaling_runs(size)
      runs |= new
      bar.update()
    stage('scaling')
    scaling_times = interleave(runs, _ROUNDS.value)
    slopes = {name: log_slope(name, scaling_times) for name in SCALED}
    bar.update()

  ratios = lambda a, b: paired_ratios(step_times, a, b)
  overhead = {
    n: paired_ratios(privacy_times, f'private, {n}', f'nonprivate, {n}')
    for n in DEVICES
  }
  targets = [
    *(
      Target(f'ours on {n} / {peer}', ratios(f'ours, {n}', peer), bound)
      for peer in (NUMBA, VIEWS)
      for n, bound in zip(DEVICES, (1.3, 0.9), strict=True)
    ),
    Target(
      'COO segment_sum / ours on 1 device',
      ratios('COO segment_sum', 'ours, 1 device'),
      4.0,
      at_least=True,
    ),
    *(
      Target(
        f'seconds to compile, {n}', [compiling[f'gradient step, {n}']], 1.5
      )
      for n in DEVICES
    ),
    Target('log-log slope of time in ratings', [slopes['ours']], 1.05),
    Target('device bytes per rating', [max(bytes_per_rating.values())], 20.0),
    *(
      Target(f'private / nonprivate step, {n}', overhead[n], 1.1)
      for n in DEVICES
    ),
  ]
  print(
    f'{machine["cores"]} cores, {machine["processor"]}, load '
    f'{machine["load"]:.1f}, jax {machine["jax"]}, numba {machine["numba"]}'
  )
  print(
    f'{ratings.name}: {len(ratings.value):,} ratings, {ratings.num_users:,} x '
    f'{ratings.num_items:,}, rank {RANK}, {_ROUNDS.value} rounds'
  )
  show('one step', step_times, 'ours, 1 device')
  show('a step of a system', privacy_times, 'plain, 1 device')
  show('by number of ratings', scaling_times, f'ours, {sizes[0]}')
  for name, seconds in compiling.items():
    print(f'compiling, {name}: {seconds:.2f} s')
  for name, size in bytes_per_rating.items():
    print(f'device bytes per rating, {name:,} ratings: {size:.1f}')
  for name, slope in slopes.items():
    print(f'log-log slope, {name}: {slope:.2f}')
  print(f'largest relative difference: {max(errors.values()):.1e}\n')
  for target in targets:
    print(
      f'{"PASS" if target.met else "FAIL"}  {target.what}: '
      f'{target.figure:.2f}{target.spread}, '
      f'{"at least" if target.at_least else "at most"} {target.bound:g}'
    )
  if _JSON.value:
    figures = {
      'machine': machine,
      'data': ratings.name,
      'quick': _QUICK.value,
      'seconds_per_step': step_times,
      'relative_difference': errors,
      'privacy_seconds_per_step': privacy_times,
      'scaling_seconds_per_step': scaling_times,
      'slopes': slopes,
      'compile_seconds': compiling,
      'bytes_per_rating': bytes_per_rating,
      'targets': [
        t._asdict() | {'figure': t.figure, 'met': t.met} for t in targets
      ],
    }
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 0 if _QUICK.value or all(target.met for target in targets) else 1


# Measuring.

DEVICES = ('1 device', '2 devices')


def interleave(runs: dict[str, Callable[[], Any]], rounds: int) -> Times:
  """Seconds per step of every run in every round, after a round unmeasured."""
  times: Times = {name: [] for name in runs}
  for number in range(rounds + 1):
    for name, run in runs.items():
      time.sleep(PAUSE)
      start = time.perf_counter()
      run()
      if number:
        times[name].append((time.perf_counter() - start) / STEPS)
  return times


def median(times: list[float]) -> float:
  return statistics.median(times)


def paired_ratios(times: Times, one: str, other: str) -> list[float]:
  """The ratio of two contenders in each round."""
  pairs = zip(times[one], times[other], strict=True)
  return [a / b for a, b in pairs]


def show(title: str, times: Times, base: str) -> None:
  """Prints a table of `times`; ratios are to the contender `base`."""
  print(f'\n{title:<28}{"median":>10}{"min":>10}{"ratio":>8}{"of min":>8}')
  for name, seconds in times.items():
    print(
      f'{name:<28}{1e3 * median(seconds):>7.1f} ms{1e3 * min(seconds):>7.1f} ms'
      f'{median(seconds) / median(times[base]):>8.2f}'
      f'{min(seconds) / min(times[base]):>8.2f}'
    )
  print()


def check(runs: dict[str, Run]) -> dict[str, float]:
  """How far each run is from float64, or AssertionError if it is too far."""
  names = [name for name in runs if name != REFERENCE]
  want = runs.pop(REFERENCE)()
  start = start_factors(len(want.user), len(want.item))
  errors = {}
  for name in names:
    errors[name] = 0.0
    for got, w, s in zip(runs[name](), want, start, strict=True):
      distance = np.linalg.norm(np.asarray(got, np.float64) - w)
      error = float(distance / np.linalg.norm(w - s))
      errors[name] = max(errors[name], error)
    if not errors[name] <= TOLERANCE:
      raise AssertionError(f'{name} is off by {errors[name]:.1e} of the change')
  return errors


# The system's step, with and without privacy.


def privacy_runs(data: Data, devices: str) -> dict[str, Callable[[], Any]]:
  def run(system, step=None):
    arguments = block_arguments(system, data, step)
    return lambda: jax.block_until_ready(training._block(*arguments))

  private = private_system(rank=RANK, steps=STEPS, step_size=STEP_SIZE)
  baseline = nonprivate(
    NonprivateConfig(scale=(1.0, 5.0), rank=RANK, steps=STEPS)
  )
  return {
    f'plain, {devices}': run(private, plain_step),
    f'nonprivate, {devices}': run(baseline),
    f'private, {devices}': run(private),
  }


def compile_seconds(ratings: Ratings, data: Data) -> dict[str, float]:
  """Seconds to trace, compile and run the first time, caches cleared."""
  start = start_factors(ratings.num_users, ratings.num_items)
  private = private_system(rank=RANK, steps=STEPS, step_size=STEP_SIZE)
  arguments = block_arguments(private, data)
  seconds = {}
  for name, run in (
    ('gradient step', ours_run(start, data)),
    ('fit, private', lambda: training._block(*arguments)),
  ):
    jax.clear_caches()
    began = time.perf_counter()
    jax.block_until_ready(run())
    seconds[name] = time.perf_counter() - began
  return seconds


# Scaling.


SCALED = ('ours', 'numba')  # one device and two threads


def scaling_runs(num_ratings: int) -> tuple[dict[str, Run], float]:
  """Our step and Numba's at a size, and our device bytes per rating.

  Numba is there to tell what the caches do from what we do: the factors grow
  from the first-level cache out of the second.
  """
  num_users, num_items = num_ratings // 165, num_ratings // 270
  ratings = synthetic(
    num_users=num_users, num_items=num_items, num_ratings=num_ratings, seed=1
  )
  start, data = start_factors(num_users, num_items), training_data(ratings)
  runs = {
    f'ours, {num_ratings}': ours_run(start, data),
    f'numba, {num_ratings}': numba_run(start, ratings),
  }
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
  return runs, size / num_ratings


def log_slope(contender: str, times: Times) -> float:
  """The exponent of the number of ratings in the contender's time."""
  sizes, logs = [], []
  for name, seconds in times.items():
    who, _, size = name.partition(', ')
    if who == contender:
      sizes.append(math.log(int(size)))
      logs.append(math.log(median(seconds)))
  return float(np.polyfit(sizes, logs, 1)[0])


# What this runs on.


def _processor() -> str:
  info = pathlib.Path('/proc/cpuinfo')
  lines = info.read_text().splitlines() if info.is_file() else []
  names = [line.partition(':')[2] for line in lines if 'model name' in line]
  return names[0].strip() if names else platform.processor()


def _ratings() -> Ratings:
  """ML-1M if it is there (nothing is fetched), else ratings of its shape."""
  folder = _DATA_DIR.value or os.environ.get('DPMF_DATA_DIR')
  if _QUICK.value:
    users, items, count = 600, 400, 50_000
  else:
    users, items, count = ML_1M
    if folder and pathlib.Path(folder, 'ml-1m', 'ratings.dat').is_file():
      return catalog.load('ml-1m', data_dir=folder, quiet=True)
  return synthetic(num_users=users, num_items=items, num_ratings=count, seed=1)


if __name__ == '__main__':
  cli.run(main)
