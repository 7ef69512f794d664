"""Accuracy of secure distributed collaborative filtering, as published.

  python -m benchmarks.sdcf --data_dir=DIR --json=sdcf.json [--quick]

80/20 splits with seeds 0, 1, 2 (--seeds; --quick is one), 100 rounds, rank 50:
held-out RMSE of Langevin dynamics (SGLD), on perturbed ratings (ISGLD) and of
SDMF for 16 pairs (eps_g, eps_I) and alpha = inf, on MovieLens-100K; of the
four main settings on 1M. Then the AUC of SD-BPRMF, of BPR without privacy and
of popularity, one rating of each user left out, rank 10, on 100K. Part fm is
the RMSE of SD-FM on 100K, with and without attributes of users and items. Part
speed is the time of a round of SDMF after compilation, on both.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from dpmf_jax.commands import cli
from dpmf_jax.evaluation import metrics, ranking
from dpmf_jax.plans import SPECS
from dpmf_jax.ratings import attributes, catalog
from dpmf_jax.ratings.splits import hold_out_per_user, random_split
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Release

_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds 0 .. this - 1.', 1)
_QUICK = flags.DEFINE_bool('quick', False, 'One seed.')
_PARTS = flags.DEFINE_list(
  'parts', ['ml-100k', 'bpr', 'fm', 'ml-1m', 'speed'], 'Which.'
)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

EPSILONS = (4.0, 1.0, 0.25, 0.0625)
Row = tuple[str, str, str, dict[str, Any]]  # label, system, variant, settings


def main(argv: Sequence[str]) -> int:
  del argv
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
  figures: dict[str, dict[str, list[float]]] = {}
  for part in _PARTS.value:
    if part == 'speed':
      print_speed()
      continue
    run = bpr_figures if part == 'bpr' else rmse_figures
    name = part if part == 'ml-1m' else 'ml-100k'
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    rows = fm_rows(ratings, name) if part == 'fm' else main_rows(part)
    figures[part] = {}
    for label, values in run(ratings, rows):
      figures[part][label] = values
      print(
        f'{part:8} {label:36} {np.mean(values):.4f}  {np.round(values, 4)}',
        flush=True,
      )
      if _JSON.value:  # after each row: the whole takes long
        text = json.dumps(figures, indent=2)
        pathlib.Path(_JSON.value).write_text(text + '\n')
  return 0


def main_rows(part: str) -> list[Row]:
  """What to compare, in the order of the paper."""
  if part == 'bpr':
    rows: list[Row] = [('BPR, not private', 'sdbpr', 'none', {})]
    for sign in ('true', 'perturbed'):
      rows += [
        (
          f'SD-BPR, sign from {sign} bits, eps_I {e:g}',
          'sdbpr',
          'paper',
          {'epsilon_instant': e, 'gradient_sign': sign},
        )
        for e in EPSILONS
      ]
    return rows
  sdmf = lambda g, i: (
    f'SDMF, eps_g {g:g}, eps_I {i:g}' if g else f'SDMF, alpha inf, eps_I {i:g}',
    'sdmf',
    'paper',
    {'epsilon_value': g, 'epsilon_instant': i},
  )
  isgld = lambda e, clip: (
    f'ISGLD, eps {e:g}' + (', clipped' if clip else ''),
    'langevin',
    'paper',
    {'epsilon': e, 'clip': clip},
  )
  rows = [
    ('SGLD, not private', 'langevin', 'none', {}),
    isgld(4.0, False),
    isgld(2.0, False),
    isgld(2.0, True),
    sdmf(4.0, 4.0),
    sdmf(0.0, 4.0),
  ]
  if part == 'ml-1m':
    return rows
  pairs = [(g, i) for i in EPSILONS for g in (*EPSILONS, 0.0)]
  return rows[:-2] + [sdmf(g, i) for g, i in pairs]


def fm_rows(ratings, name: str) -> list[Row]:
  """The factorization machine, open and as published, and its parts."""
  folder = catalog.fetch(name, data_dir=_DATA_DIR.value, quiet=True)
  known = attributes.movielens(ratings, folder)
  rows: list[Row] = []
  for text, settings in (
    ('with features', {'attributes': known}),
    ('no features', {}),
    ('factors alone', {'side_step': 0.0}),
  ):
    private = {**settings, 'epsilon_value': 4.0, 'epsilon_instant': 4.0}
    rows += [
      (f'FM, not private, {text}', 'sdfm', 'none', settings),
      (f'SD-FM, eps_g 4, eps_I 4, {text}', 'sdfm', 'paper', private),
    ]
  return rows


def system_of(row: Row, ratings):
  _, name, variant, settings = row
  entry = SPECS[name]
  preset = {**entry.variants[variant], **settings}
  return build(name, entry.config(scale=ratings.scale, **preset))


def seeds() -> range:
  return range(1 if _QUICK.value else _SEEDS.value)


def rmse_figures(ratings, rows) -> Iterator[tuple[str, list[float]]]:
  splits = [random_split(ratings, 0.2, seed=seed) for seed in seeds()]
  for row in rows:
    values = []
    began = time.perf_counter()
    for seed, (train, test) in zip(seeds(), splits, strict=True):
      system = system_of(row, ratings)
      data = training_data(train, mesh=device_mesh())
      state = fit(system, jax.random.key(seed), data)
      model = jax.device_get(system.model(state, data))
      rows_of = training_data(test).by_user
      values.append(metrics.rmse(model, rows_of, ratings.scale))
    yield row[0], values
    spent = (time.perf_counter() - began) / len(values)
    yield f'{row[0]}: seconds a run', [spent]


def print_speed(rounds: int = 20) -> None:
  for name in ('ml-100k', 'ml-1m'):
    ratings = catalog.load(name, data_dir=_DATA_DIR.value, quiet=True)
    settings = {'epsilon_value': 4.0, 'epsilon_instant': 4.0, 'steps': rounds}
    system = system_of(('', 'sdmf', 'paper', settings), ratings)
    data = training_data(ratings, mesh=device_mesh())
    seconds = []
    for seed in range(4):  # the first one compiles
      start_key, key = jax.random.split(jax.random.key(seed))
      state = jax.block_until_ready(system.init(start_key, data))
      began = time.perf_counter()
      jax.block_until_ready(fit(system, key, data, start=(0, state)))
      seconds.append((time.perf_counter() - began) / rounds)
    print(f'speed    {name}, seconds a round: {np.round(seconds[1:], 3)}')


def auc(train, test, user, item) -> float:
  """Over the whole catalogue, for one left-out item of each user."""
  model = Release(Factors(user, item), jnp.float32(0))
  return ranking.ranking_metrics(model, train, test)['auc']


def bpr_figures(ratings, rows) -> Iterator[tuple[str, list[float]]]:
  splits = [hold_out_per_user(ratings, 1, seed=seed) for seed in seeds()]
  counts = lambda train: np.bincount(train.item, minlength=train.num_items)
  yield (
    'popularity',
    [
      auc(
        train,
        test,
        np.ones((train.num_users, 1), np.float32),
        counts(train)[:, None].astype(np.float32),
      )
      for train, test in splits
    ],
  )
  for row in rows:
    values = []
    for seed, (train, test) in zip(seeds(), splits, strict=True):
      system = system_of(row, ratings)
      data = training_data(train, mesh=device_mesh())
      state = fit(system, jax.random.key(seed), data)
      user, item = jax.device_get(system.model(state, data).factors)
      values.append(auc(train, test, user, item))
    yield row[0], values


if __name__ == '__main__':
  cli.run(main)
