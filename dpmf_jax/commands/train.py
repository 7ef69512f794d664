"""Trains a recommender on a ratings file and certifies what it releases.

Example, on MovieLens-100K (fetched if need be):

  dpmf train --dataset=ml-100k --epsilon=4 --output=runs/first

and on a file of your own, with lines of user, item, rating:

  dpmf train --ratings=ratings.csv --scale=1,5 --epsilon=4 \\
    --output=runs/mine

A file without ratings, with lines of user,item or a header such as
user,item,plays, has clicks, and what is learned of it is which items come
first.

The folder gets model.safetensors (what the guarantee covers, and nothing
else), certificate.json, ids.json, metrics.json, learning_curve.png,
error_cdf.png and private/ (keep it secret). A run that was interrupted goes on
from its last checkpoint when the same command is given again.

With --ledger=FILE the run is put down in the data set's ledger before any
noise is drawn, and refused (exit code 1) if all runs together would cost more
than its budget:

  dpmf train --dataset=ml-100k --epsilon=1 --output=runs/first \\
    --ledger=ml-100k.db --budget_epsilon=3

The budget holds even if runs are chosen after seeing what earlier ones
released. It must be named at the ledger's first use; dpmf account --set_budget
changes it. With --budget_epsilon=unlimited nothing is refused; the total that
is then printed is not valid if later runs were chosen after seeing earlier
ones. People on several hosts use --ledger=postgresql://user@host/database, with
the password in ~/.pgpass.

A personalized system needs the epsilon that each rating is to have, a public
fact: --epsilon_column=NAME (of the --ratings file), --epsilon_file=FILE (lines
of user,epsilon) or --specification=fractions (drawn as published). In place of
--epsilon it may have --threshold=best, mean or max of what may be asked for:

  dpmf train --dataset=ml-100k --system=personalized_pmf \\
    --specification=fractions --threshold=best --method=sampling \\
    --output=runs/own

With --verbosity=1 it is said where the seconds go. What JAX compiles is kept in
$DPMF_CACHE, $XDG_CACHE_HOME/dpmf_jax or ~/.cache/dpmf_jax, unless
JAX_COMPILATION_CACHE_DIR names another folder.

Settings that a system has and that are not given keep its own default; see
docs/systems.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from absl import flags

from dpmf_jax import plans
from dpmf_jax.commands import (
  cli,
  compiled,
  declaring,
  ledgers,
  plugins,
  reading,
  settings,
  sources,
  specifications,
)

_SETTINGS = settings.define()
flags.adopt_module_key_flags(sources)
flags.adopt_module_key_flags(reading)
flags.adopt_module_key_flags(specifications)
flags.adopt_module_key_flags(plugins)

_SYSTEM = flags.DEFINE_enum(
  'system',
  'auto',
  [*plans.SPECS, 'auto'],
  'What to train. auto: what is best for this --unit and --epsilon and so many '
  'users and items, and how, by a rule that looks at no rating '
  '(plans/auto.py). sdmf and sdfm with --variant=sound are local_mf, '
  'sdbpr is local_ranking.\n' + settings.SYSTEM_HELP,
)


class _Declared(settings.Variant):
  """What to train, on what, and what to write.

  Attributes:
    task: What --system=auto is to learn: ratings, the default where there are
      any, or which items come first.
    delta: Delta of the guarantee; 1e-6 by default.
    attributes: sdfm: use genres, age, gender and occupation, which are then
      public, from the folder of --dataset=ml-100k or ml-1m.
    titles: A file with item titles for --ratings (movies.dat, u.item).
    item_ids: A file with the id of every item there is, rated or not, one on
      each line, made without looking at the ratings. Without it that an item
      has a rating at all is not protected.
    user_ids: The same for users. Without it that a user has a rating at all is
      not protected, or, where whole users are, how many there are.
    num_users: Where whole users are protected, instead of --user_ids: as many
      users as there may be, a number that was not counted in the ratings.
    user_features: objective_pmf and personalized_pmf, sound: a file of
      user,number,number,... with public facts of users, such as age. Never
      computed from the ratings.
    item_features: A file of item,number,number,... with public facts of items,
      such as genres and a year, that means of items follow as far as noisy sums
      say so. For auto, power_mf and dpals.
    public_ratings: Ratings that anyone may see, of items with the same titles
      or ids, which items start from: a file in the format and scale of
      --ratings, a named data set, or what --save_prior wrote. They are not
      protected, and must not be taken from the ratings. For auto, power_mf,
      dpals and ranking_mf.
    public_titles: A file with item titles for --public_ratings.
    save_prior: Where to write what --public_ratings say of items, so that the
      next --public_ratings can be this file (.safetensors).
    output: Folder to write.
    overwrite: Replace the run that --output holds.
    test_fraction: Part of the ratings held out to measure accuracy, 0.2 by
      default; 0 trains on all.
    split: What is held out: random ratings, or the last one of each user, by
      timestamps, which nothing else looks at.
    seed: FOR EXPERIMENTS: a fixed seed, with which the noise can be removed.
      Without it the key comes from the operating system.
    split_seed: Public seed of the held-out split, and of ties in time.
    devices: Devices to use, in each process; all by default, on a CPU one per
      core.
    item_tables: Where tables of items are on several devices: on all of them,
      or spread, each having its part between programs, for less memory. They
      are then gathered in each program, which sends more, but less with
      gaussian_mf. The release is the same.
    coordinator: Several processes train together: host:port of the first one,
      the same in all of them; auto where SLURM, Open MPI or a TPU say it all.
    num_processes: How many there are; not with --coordinator=auto.
    process_id: The number of this one, from 0.
    report_every: Steps between reports; 25 reports by default.
    curves: A CSV file for the errors on training and held-out ratings after
      each round that is reported, written while it trains. Not private: for you
      alone.
    tensorboard: A folder for the same, for TensorBoard, such as logs/mine. It
      needs tensorboardX, or torch with tensorboard. Not private either.
    checkpoint_seconds: Least time between two checkpoints; an interrupted run
      goes on from the last one.
    ranking_k: Lengths of lists, such as 10 or 5,10: metrics.json then has
      Recall, NDCG, MAP, MRR and AUC of the held-out ratings over all items,
      too.
    ranking_threshold: The least rating that counts as relevant in these. By
      default all do, or those in the upper third of the scale where a ranking
      is learned from ratings.
    ledger: SQLite file, or postgresql://user@host/database, in which everything
      spent on this data set is put down; begun at its first use. Keep it, and
      keep it private.
    budget_epsilon: The most that all runs in --ledger may cost together, at
      --delta. Needed at its first use only. unlimited: they are only added up,
      and the total is not valid if later runs were chosen after seeing earlier
      ones.
  """

  task: Literal['rating', 'ranking'] | None = None
  delta: float | None = None
  attributes: bool = False
  titles: str | None = None
  item_ids: str | None = None
  user_ids: str | None = None
  num_users: int | None = None
  user_features: str | None = None
  item_features: str | None = None
  public_ratings: str | None = None
  public_titles: str | None = None
  save_prior: str | None = None
  output: str
  overwrite: bool = False
  test_fraction: float | None = None
  split: Literal['random', 'last'] = 'random'
  seed: int | None = None
  split_seed: int = 0
  devices: int | None = None
  item_tables: Literal['everywhere', 'spread'] = 'everywhere'
  coordinator: str | None = None
  num_processes: int | None = None
  process_id: int | None = None
  report_every: int | None = None
  curves: str | None = None
  tensorboard: str | None = None
  checkpoint_seconds: float = 5.0
  ranking_k: Sequence[str] | None = None
  ranking_threshold: float | None = None
  ledger: str | None = None
  budget_epsilon: str | None = None


_FLAGS = declaring.define(_Declared)
# Those that are read here, and not by `dpmf_jax.train`.
_READ = (
  'attributes', 'titles', 'item_ids', 'user_ids', 'num_users', 'public_titles',
  'save_prior', 'seed', 'coordinator', 'num_processes', 'process_id',
)  # fmt: skip


# What --help shows together, and what not every system reads.
GROUPS = {
  'data': (
    *sources.FLAGS, *reading.FLAGS, 'titles', 'item_ids', 'user_ids',
    'num_users',
    'user_features', 'item_features', 'public_ratings', 'public_titles',
    'save_prior', 'attributes', 'split', 'test_fraction', 'split_seed',
  ),
  'privacy': (
    'epsilon', 'delta', 'unit', 'relation', 'variant', *specifications.FLAGS,
    'ledger', 'budget_epsilon', 'seed',
  ),
  'system': ('system', 'task', 'plugin'),
  'output': (
    'output', 'overwrite', 'ranking_k', 'ranking_threshold', 'curves',
    'tensorboard',
  ),
}  # fmt: skip
ONLY = {
  'attributes': ('sdfm',),
  **dict.fromkeys(
    ('public_ratings', 'public_titles', 'save_prior'),
    ('power_mf', 'dpals', 'ranking_mf'),
  ),
  'item_features': ('power_mf', 'dpals'),
  'user_features': tuple(n for n, s in plans.SPECS.items() if s.takes_features),
  **dict.fromkeys(
    specifications.FLAGS,
    tuple(n for n, s in plans.SPECS.items() if s.personalized),
  ),
}


def main(argv) -> int:
  del argv
  compiled.keep()
  import jax

  coordinator = _coordinator()
  cores = os.cpu_count() or 1
  # One device per core: a chunk of ratings is summed on each.
  jax.config.update(
    'jax_num_cpu_devices', (coordinator and _FLAGS.devices) or cores
  )

  from dpmf_jax.accounting import ledger
  from dpmf_jax.runs import processes

  many = contextlib.nullcontext()
  if coordinator is not None:
    many = processes.joined(
      coordinator, _FLAGS.num_processes, _FLAGS.process_id, words=cli.line
    )
  try:
    with many:
      _train()
  except ledger.BudgetExceeded as error:
    print(f'refused: {error}', file=sys.stderr)
    return 1
  return 0


def _coordinator() -> str | None:
  """The address of --coordinator; None where this is the only process."""
  address = _FLAGS.coordinator
  count, number = _FLAGS.num_processes, _FLAGS.process_id
  if address in (None, 'auto'):
    for name, value in (('num_processes', count), ('process_id', number)):
      if value is not None:
        raise ValueError(f'--{name} needs --coordinator=HOST:PORT')
    return address
  if not re.fullmatch(r'.+:\d+', address):
    raise ValueError(f'--coordinator={address} must be HOST:PORT, or auto')
  if count is None or count < 1:
    raise ValueError(f'--num_processes={count} must be at least 1')
  if number is None or not 0 <= number < count:
    raise ValueError(
      f'--process_id={number} must be in 0..{count - 1}, below --num_processes'
    )
  return None if count == 1 else address


def _train() -> None:
  """Trains, and prints what came of it."""
  from dpmf_jax.accounting import ledger
  from dpmf_jax.runs import folders, processes, timing
  from dpmf_jax.runs.train import train

  lap, spent = timing.laps(), timing.compiling()
  own = {flag.name: str(flag.value) for flag in _shared_flags()}
  processes.check_same(own)
  arguments = _arguments()
  lap('ratings read')
  run = train(**arguments)
  lap(f'trained, with {spent():.2f} s for compiling')
  if not processes.first():
    return
  print(f'\n{run}')
  if _FLAGS.ledger is not None:
    print(f'\n{ledger.summary(_FLAGS.ledger)}')
    print(f'its last hash is {ledger.statement(_FLAGS.ledger)["head"]}')
  folder = Path(_FLAGS.output)
  written = [name for name in folders.OUTPUTS if (folder / name).exists()]
  print(f'\nwritten to {folder}/: {", ".join(written)}, private/')


def _shared_flags() -> list[flags.Flag]:
  """Those that all processes have to give alike."""
  every = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
  own = ('process_id', 'data_dir', 'ratings_cache')
  return [each for each in every if each.name not in own]


def _arguments() -> dict[str, Any]:
  """The flags as arguments of `dpmf_jax.train`."""
  from dpmf_jax import files
  from dpmf_jax.ratings import attributes
  from dpmf_jax.ratings.table import with_public_ids

  if _FLAGS.seed is not None and _FLAGS.ledger is not None:
    raise ValueError(
      '--seed is for experiments: noise that whoever knows the seed can remove '
      'is no protection that a --ledger could count; leave one of them out'
    )
  asked_for = _SYSTEM.value
  personalized = asked_for != 'auto' and plans.SPECS[asked_for].personalized
  specifications.check(
    system=asked_for,
    personalized=personalized,
    path=sources.GIVEN.ratings,
    epsilon=_SETTINGS['epsilon'].value,
  )
  ratings = with_public_ids(
    specifications.attach(
      sources.load(_FLAGS.titles),
      path=sources.GIVEN.ratings,
      **reading.layout(),
    ),
    users=_ids(_FLAGS.user_ids, 'user'),
    items=_ids(_FLAGS.item_ids, 'item'),
    num_users=_FLAGS.num_users,
  )
  passed = declaring.values(_Declared)
  for name in _READ:
    del passed[name]
  passed |= {name: flag.value for name, flag in _SETTINGS.items()}
  if _FLAGS.attributes:
    if asked_for != 'sdfm':
      raise ValueError('--attributes is for --system=sdfm alone')
    passed['attributes'] = _attributes(ratings)
  public = specifications.public()
  for name, read in (
    ('user_features', attributes.read_user_features),
    ('item_features', attributes.read_item_features),
  ):
    if (path := passed[name]) is not None:
      passed[name] = read(ratings, path)
      public[name] = f'sha256 {files.sha256(Path(path))}'
  return passed | {
    'ratings': ratings,
    'scale': sources.scale(),
    'system': asked_for,
    'public_ratings': _prior(),
    'threshold': specifications.threshold(),
    'asked': specifications.asked(),
    'ranking_k': [
      int(word) if word.isdecimal() else word for word in _FLAGS.ranking_k or ()
    ],
    'key': _FLAGS.seed,
    'budget_epsilon': ledgers.budget('budget_epsilon'),
    'public': public,
  }


def _ids(path: str | None, role: str) -> Any:
  from dpmf_jax.ratings import formats

  return path and formats.read_ids(path, role)


def _attributes(ratings) -> Any:
  from dpmf_jax.ratings import attributes, catalog

  if sources.GIVEN.dataset is None:
    raise ValueError('--attributes needs --dataset=ml-100k or ml-1m')
  folder = catalog.fetch(
    sources.GIVEN.dataset, data_dir=sources.GIVEN.data_dir, quiet=True
  )
  return attributes.movielens(ratings, folder)


def _prior() -> Any:
  """What --public_ratings say of items; None without them."""
  from dpmf_jax.ratings import catalog, formats, priors

  path, titles, saved = (
    _FLAGS.public_ratings, _FLAGS.public_titles, _FLAGS.save_prior,
  )  # fmt: skip
  if path is None:
    for name, value in (('public_titles', titles), ('save_prior', saved)):
      if value is not None:
        raise ValueError(f'--{name} needs --public_ratings')
    return None
  if path in (sources.GIVEN.dataset, sources.GIVEN.ratings):
    raise ValueError(
      f'--public_ratings={path} are the ratings themselves, which are private: '
      'give others, that anyone may see'
    )
  ratings: Any = path
  if path in catalog.NAMES and not Path(path).exists():
    ratings = catalog.load(path, data_dir=sources.GIVEN.data_dir)
  elif not path.endswith('.safetensors'):
    ratings = formats.read(
      path,
      titles=formats.read_titles(titles) if titles else None,
      **sources.options(),
    )
  prior = priors.public_prior(ratings)
  if saved is not None:
    priors.save_prior(prior, saved)
  return prior
