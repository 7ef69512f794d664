"""Tests the auditor itself: its speed, its power and its false alarms.

  python -m benchmarks.audit --json=audit_power.json

It ends with code 1 if a target is missed, unless with --quick. The peer for
speed is a loop that calls `fit` and `release` once for each run.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from absl import flags

from benchmarks import planted
from dpmf_jax import accounting, auditing
from dpmf_jax.auditing import bounds, pairs, sampling
from dpmf_jax.auditing.distinguishing import CONFIDENCE, RUNS, measure
from dpmf_jax.auditing.statistics import Block
from dpmf_jax.commands import cli
from dpmf_jax.plans import SPECS
from dpmf_jax.rows import device_mesh
from dpmf_jax.systems import made
from dpmf_jax.training import fit

_QUICK = flags.DEFINE_bool('quick', False, 'Few repetitions: a smoke test.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of everything.')

DELTA = 1e-5


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  keys = jax.random.split(jax.random.key(_SEED.value), 3)
  figures: dict[str, Any] = {'cores': os.cpu_count(), 'jax': jax.__version__}
  figures['speed'] = speed(keys[0], 20_000 if _QUICK.value else 400_000)
  print('speed:', figures['speed'])
  repeats = 1 if _QUICK.value else 20
  figures['gaussian'] = tightness(keys[1], 1 if _QUICK.value else 5)
  for row in figures['gaussian']:
    print('exact Gaussian mechanism:', row)
  figures['power'] = power(keys[2], repeats, 40_000 if _QUICK.value else RUNS)
  for row in figures['power']:
    print('planted:', row)
  figures['alarms'] = alarms(_SEED.value, 100 if _QUICK.value else 20_000)
  for row in figures['alarms']:
    print('false alarms:', row)
  missed = [
    *(['speed'] if figures['speed']['seconds'] > 20 else []),
    *(r['epsilon'] for r in figures['gaussian'] if r['least'] < r['target']),
    *(
      row['bug']
      for row in figures['power']
      if row['refuted'] != 0
      if row['bug'] == 'none'
    ),
    *(
      row['bug']
      for row in figures['power']
      if row['bug'] != 'none' and row['refuted'] < 0.95 * row['audits']
    ),
    *(
      row['confidence']
      for row in figures['alarms']
      if row['alarms'] > (1 - row['confidence']) * row['audits']
    ),
  ]
  print(f'missed: {missed or "nothing"}')
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  return 1 if missed and not _QUICK.value else 0


def speed(key: jax.Array, runs: int) -> dict[str, float]:
  """Seconds for `runs` runs of 100 users, one item and two steps."""
  system = made(
    'gaussian_mf',
    'sound',
    **{**SPECS['gaussian_mf'].cases['sound'][0].settings, 'steps': 2},
  )
  pair = next(
    pair
    for pair in pairs.library_pairs('rating', 'replace', (1.0, 5.0))
    if pair.name == 'popular item'
  )
  data = sampling.tiny_data(pair.first, pair.second)
  one_key, warm_key, run_key, loop_key = jax.random.split(key, 4)
  sampler = sampling.sampler(
    system, data, start='random', start_key=one_key, mesh=device_mesh()
  )
  jax.block_until_ready(
    sampler.draw(jax.random.split(warm_key, sampler.batch), 0)
  )
  began = time.perf_counter()
  batches = -(-runs // sampler.batch)
  for number in tqdm.tqdm(range(batches), unit='batch', desc='speed'):
    batch_key = jax.random.fold_in(run_key, number)
    np.asarray(sampler.draw(jax.random.split(batch_key, sampler.batch), 0))
  seconds = time.perf_counter() - began
  # The peer: one run after the other.
  fit(system, jax.random.clone(loop_key), data[0])
  began = time.perf_counter()
  for number in range(20):
    jax.block_until_ready(
      fit(system, jax.random.fold_in(loop_key, number), data[0])
    )
  alone = (time.perf_counter() - began) / 20
  rate = batches * sampler.batch / seconds
  return {
    'runs': runs,
    'seconds': seconds * runs / (batches * sampler.batch),
    'runs_per_second': rate,
    'times_faster_than_a_loop': alone * rate,
  }


def tightness(key: jax.Array, repeats: int) -> list[dict[str, float]]:
  """Lower bounds for the exact Gaussian mechanism, by epsilon."""
  rows = []
  for place, (epsilon, target) in enumerate(((1.0, 0.8), (4.0, 3.0))):
    mu = accounting.gaussian.mu_of(epsilon, DELTA)

    def draw(keys, side, mu=mu):
      noise = jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys)
      return np.asarray(noise) + side * mu * np.array([1.0, 0, 0, 0])

    sampler = sampling.Sampler(draw, 2**14, (Block(0, 4, 1),))
    found = [
      measure(
        sampler, jax.random.fold_in(key, 100 * place + number), delta=DELTA
      )
      for number in range(repeats)
    ]
    rows.append(
      {
        'epsilon': epsilon,
        'audits': repeats,
        'least': min(m.gaussian for m in found),
        'most': max(max(m.gaussian, m.epsilon) for m in found),
        'target': target,
      }
    )
  return rows


def power(key: jax.Array, repeats: int, runs: int) -> list[dict[str, Any]]:
  """How often each planted bug is found."""
  rows = []
  mesh = device_mesh()
  bar = tqdm.tqdm(
    total=2 * runs * repeats * len(planted.planted()),
    unit='run',
    unit_scale=True,
    desc='power',
  )
  for place, (name, target) in enumerate(planted.planted().items()):
    findings = list(
      auditing.findings(
        jax.random.fold_in(key, place),
        [target] * repeats,
        runs=runs,
        mesh=mesh,
        progress=bar.update,
      )
    )
    measured = sorted(finding.lower_bound for finding in findings)
    rows.append(
      {
        'bug': name,
        'audits': repeats,
        'refuted': sum(finding.refuted for finding in findings),
        'stated': findings[0].stated,
        'least': measured[0],
        'median': measured[repeats // 2],
        'runs': runs,
      }
    )
  bar.close()
  return rows


def alarms(seed: int, repeats: int) -> list[dict[str, float]]:
  """How often a bound is above the epsilon of the exact Gaussian mechanism.

  With one statistic, the likelihood ratio, which leaves least room: more
  statistics share the same significance. Audits of 400 runs on each side.
  """
  rows = []
  rng = np.random.default_rng(seed)
  for confidence in (0.9, CONFIDENCE):
    for epsilon in (0.5, 1.0, 4.0):
      mu = accounting.gaussian.mu_of(epsilon, DELTA)
      share = (1 - confidence) / 2
      count = 0
      for _ in tqdm.trange(repeats // 6, desc='alarms'):
        chosen, counted = (
          (rng.normal(size=200), rng.normal(size=200) + mu) for _ in range(2)
        )
        event = bounds.best_event(chosen, share, DELTA)
        limits = bounds.limits_of(event, counted, share)
        middle = bounds.best_event(chosen, share, None)
        largest = max(
          float(bounds.epsilon_bound(limits, DELTA)),
          bounds.gaussian_epsilon(middle, counted, share, DELTA),
        )
        count += largest > epsilon
      rows.append(
        {
          'confidence': confidence,
          'epsilon': epsilon,
          'audits': repeats // 6,
          'alarms': count,
        }
      )
  return rows


if __name__ == '__main__':
  cli.run(main)
