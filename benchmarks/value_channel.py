"""What a server learns about SDMF's clients from the gradients they send.

  python -m benchmarks.value_channel --data_dir=DIR --plot=roc.png

Trains SDMF as published on MovieLens-100K, reads the messages of some clients
after the first third of the rounds (`dpmf_jax.auditing.value_channel`), with
what the server knows. Prints, for each pair (eps_g, eps_I) of claims, the area
under the curve of rated against unrated items, among those sent twice or more,
how well the client's vector is known, and how many ratings are read to the
star. The bits alone are beside it: how often an item was sent.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tqdm
from absl import flags

from dpmf_jax.auditing import value_channel
from dpmf_jax.commands import cli
from dpmf_jax.evaluation import plots
from dpmf_jax.plans.sdmf import SDMFConfig
from dpmf_jax.ratings import catalog

_DATASET = flags.DEFINE_string('dataset', 'ml-100k', 'Which.')
_CLIENTS = flags.DEFINE_integer('clients', 30, 'How many are attacked.', 1)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the run and of who is attacked.')
_PAIRS = flags.DEFINE_list(
  'pairs', ['4:4', '1:1', '0.25:0.25', '0.0625:0.0625'], 'eps_g:eps_I.'
)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')
_PLOT = flags.DEFINE_string('plot', None, 'PNG of the curves.')


def main(argv: Sequence[str]) -> int:
  del argv
  ratings = catalog.load(_DATASET.value, data_dir=_DATA_DIR.value, quiet=True)
  rng = np.random.default_rng(_SEED.value)
  users = rng.choice(ratings.num_users, _CLIENTS.value, replace=False)
  figures, curves = {}, {}
  for pair in _PAIRS.value:
    value, instant = map(float, pair.split(':'))
    config = SDMFConfig(
      scale=ratings.scale, epsilon_value=value, epsilon_instant=instant
    )
    label = f'eps_g {value:g}, eps_I {instant:g}'
    row, curves[label] = attacked(config, ratings, users, label)
    figures[label] = row
    print(
      f'{label:26} rated or not: AUC {row["area"]:.3f} by values, '
      f'{row["area of bits"]:.3f} by bits; vector: cosine {row["cosine"]:.4f}; '
      f'ratings read to the star: {row["recovered"]:.1%}',
      flush=True,
    )
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + '\n')
  if _PLOT.value:
    title = f'SDMF on {_DATASET.value}: rated items, by what clients send'
    draw(_PLOT.value, curves, title=title)
  return 0


def attacked(config, ratings, users, label: str) -> tuple[Any, Any]:
  """Figures over all attacked clients, and the curve of all their items."""
  seen = value_channel.transcript(
    config,
    ratings,
    users,
    key=_SEED.value,
    progress=functools.partial(tqdm.tqdm, desc=label, leave=False),
  )
  levels = sorted(set(ratings.value.tolist()))
  found = value_channel.findings(seen, levels=levels)
  scores, rated = [], []
  for one, rating in zip(found, seen.rating, strict=True):
    known = ~np.isnan(one.score)
    # Items are compared with others of the same client.
    scores.append(one.score[known] - np.median(one.score[known]))
    rated.append(~np.isnan(rating[known]))
  figures = {
    'area': float(np.mean([one.rated.area for one in found])),
    'area of bits': float(np.mean([one.bits.area for one in found])),
    'cosine': float(np.median([one.cosine for one in found])),
    'recovered': float(np.mean([one.recovered for one in found])),
  }
  return figures, value_channel.roc(
    np.concatenate(scores), np.concatenate(rated)
  )


def draw(
  path: str, curves: Mapping[str, value_channel.Curve], *, title: str
) -> None:
  """Writes a PNG of the curves by label."""
  axes = plots.axes_of(5, 4.6)
  axes.plot(
    [0, 1], [0, 1], color='#999999', linewidth=1, label='a guess, area 0.500'
  )
  for label, curve in curves.items():
    axes.plot(
      curve.false_positive,
      curve.true_positive,
      label=f'{label}, area {curve.area:.3f}',
    )
  plots.write(
    path,
    axes,
    x_label='share of unrated items taken for rated',
    y_label='share of rated items found',
    title=title,
    loc='lower right',
  )


if __name__ == '__main__':
  cli.run(main)
