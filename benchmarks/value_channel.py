"""What a server learns about SDMF's clients from the gradients they send.

  python -m benchmarks.value_channel --data_dir=DIR --plot=roc.png

Trains SDMF as published on MovieLens-100K, reads the messages of some clients
(`sdmf.client_report`) after the first third of the rounds, and gives them to
`benchmarks.value_attack`, which knows what the server knows. Prints, for each
pair (eps_g, eps_I) of claims, the area under the curve of rated against unrated
items, among those sent twice or more, how well the client's vector is known,
and how many ratings are read to the star. The bits alone are beside it: how
often an item was sent.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from absl import flags

from benchmarks import value_attack
from dpmf_jax.commands import cli
from dpmf_jax.plans.sdmf import SDMFConfig
from dpmf_jax.ratings import catalog
from dpmf_jax.rows import training_data
from dpmf_jax.systems import sdmf
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf.client_blocks import Profile

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
  truth = np.full((len(users), ratings.num_items), np.nan)
  for row, user in enumerate(users):
    own = ratings.user == user
    truth[row, ratings.item[own]] = ratings.value[own]
  figures, curves = {}, {}
  for pair in _PAIRS.value:
    value, instant = map(float, pair.split(':'))
    config = SDMFConfig(
      scale=ratings.scale, epsilon_value=value, epsilon_instant=instant
    )
    label = f'eps_g {value:g}, eps_I {instant:g}'
    row, curves[label] = attacked(config, ratings, users, truth, label)
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
    value_attack.draw(_PLOT.value, curves, title=title)
  return 0


def attacked(config, ratings, users, truth, label: str) -> tuple[Any, Any]:
  """Figures over all attacked clients, and the curve of all their items."""
  item, upload, items, vector = transcript(config, ratings, users, truth, label)
  levels = sorted(set(ratings.value.tolist()))
  found, scores, rated, bits = [], [], [], []
  for client, rating in enumerate(truth):
    sent, seen = by_item(item[:, client], upload[:, client], ratings.num_items)
    one = value_attack.attack(
      sent, seen, items, levels=levels, rating=rating, user=vector[:, client]
    )
    known = ~np.isnan(one.score)
    # Items are compared with others of the same client.
    scores.append(one.score[known] - np.median(one.score[known]))
    rated.append(~np.isnan(rating[known]))
    bits.append(value_attack.roc(seen.sum(axis=0)[known], rated[-1]).area)
    found.append(one)
  figures = {
    'area': float(np.mean([one.rated.area for one in found])),
    'area of bits': float(np.mean(bits)),
    'cosine': float(np.median([one.cosine for one in found])),
    'recovered': float(np.mean([one.recovered for one in found])),
  }
  return figures, value_attack.roc(
    np.concatenate(scores), np.concatenate(rated)
  )


def by_item(item, upload, num_items: int) -> tuple[np.ndarray, np.ndarray]:
  """Messages [T, M] and [T, M, D] laid out by item: [T, I, D], [T, I]."""
  rounds, slot = np.nonzero(item < num_items)
  at = rounds, item[rounds, slot]
  sent = np.zeros((len(item), num_items, upload.shape[-1]), np.float32)
  seen = np.zeros(sent.shape[:2], bool)
  sent[at], seen[at] = upload[rounds, slot], True
  return sent, seen


def transcript(config, ratings, users, truth, label: str):
  """(item, sent, items, vector) of the attacked clients, by round.

  The server knows the items, the step size and the ridge, and takes them off.
  """
  data = training_data(ratings)
  system = sdmf.sdmf(config)
  capacity = sdcf.message_capacity(data.by_user, ratings.num_items, config.sent)
  own = Profile(
    value=jnp.asarray(np.nan_to_num(truth), jnp.float32),
    rated=jnp.asarray(~np.isnan(truth)),
  )
  report = functools.partial(sdmf.client_report, capacity=capacity)

  @jax.jit
  def messages(key, state):
    """What the attacked clients send in the next round."""
    public = sdcf.public_of(state)
    clients = jax.tree.map(lambda x: x[users], sdcf.clients_of(state))
    keys = jax.random.split(key, len(users))
    upload = jax.vmap(report, (0, 0, 0, None))(keys, clients, own, public)[1]
    q = public.item
    drift = upload.gradient / public.step_size
    drift -= (
      q[jnp.minimum(upload.item, len(q) - 1)] * public.langevin.item_ridge
    )
    return upload.item, drift / public.langevin.likelihood, q, clients.factors

  step = jax.jit(system.step)
  init_key, run_key = jax.random.split(jax.random.key(_SEED.value))
  state = system.init(init_key, data)
  parts = []
  for number in tqdm.trange(config.steps, desc=label, leave=False):
    step_key, key = jax.random.split(jax.random.fold_in(run_key, number))
    if number >= config.steps // 3:  # before, residuals still move
      parts.append(jax.device_get(messages(key, state)))
    state = step(step_key, state, data)
  return [np.stack(part) for part in zip(*parts, strict=True)]


if __name__ == '__main__':
  cli.run(main)
