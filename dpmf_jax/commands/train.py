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
from pathlib import Path
from typing import Any

from absl import flags

from dpmf_jax import plans
from dpmf_jax.commands import (
  cli,
  compiled,
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
_TASK = flags.DEFINE_enum(
  'task',
  None,
  ['rating', 'ranking'],
  'What --system=auto is to learn: ratings, the default where there are any, '
  'or which items come first.',
)
_VARIANT = settings.define_variant()
_DELTA = flags.DEFINE_float(
  'delta', None, 'Delta of the guarantee; 1e-6 by default.'
)
_ATTRIBUTES = flags.DEFINE_bool(
  'attributes',
  False,
  'sdfm: use genres, age, gender and occupation, which are then public, from '
  'the folder of --dataset=ml-100k or ml-1m.',
)

_TITLES = flags.DEFINE_string(
  'titles', None, 'A file with item titles for --ratings (movies.dat, u.item).'
)
_ITEM_IDS = flags.DEFINE_string(
  'item_ids',
  None,
  'A file with the id of every item there is, rated or not, one on each line, '
  'made without looking at the ratings. Without it that an item has a rating '
  'at all is not protected.',
)
_USER_IDS = flags.DEFINE_string(
  'user_ids',
  None,
  'The same for users. Without it that a user has a rating at all is not '
  'protected, or, where whole users are, how many there are.',
)
_NUM_USERS = flags.DEFINE_integer(
  'num_users',
  None,
  'Where whole users are protected, instead of --user_ids: as many users as '
  'there may be, a number that was not counted in the ratings.',
)
_USER_FEATURES = flags.DEFINE_string(
  'user_features',
  None,
  'objective_pmf and personalized_pmf, sound: a file of user,number,number,... '
  'with public facts of users, such as age. Never computed from the ratings.',
)
_ITEM_FEATURES = flags.DEFINE_string(
  'item_features',
  None,
  'A file of item,number,number,... with public facts of items, such as genres '
  'and a year, that means of items follow as far as noisy sums say so. For '
  'auto, power_mf and dpals.',
)
_PUBLIC_RATINGS = flags.DEFINE_string(
  'public_ratings',
  None,
  'Ratings that anyone may see, of items with the same titles or ids, which '
  'items start from: a file in the format and scale of --ratings, a named data '
  'set, or what --save_prior wrote. They are not protected, and must not be '
  'taken from the ratings. For auto, power_mf, dpals and ranking_mf.',
)
_PUBLIC_TITLES = flags.DEFINE_string(
  'public_titles', None, 'A file with item titles for --public_ratings.'
)
_SAVE_PRIOR = flags.DEFINE_string(
  'save_prior',
  None,
  'Where to write what --public_ratings say of items, so that the next '
  '--public_ratings can be this file (.safetensors).',
)
_OUTPUT = flags.DEFINE_string('output', None, 'Folder to write.', required=True)
_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace the run that --output holds.'
)
_TEST_FRACTION = flags.DEFINE_float(
  'test_fraction',
  None,
  'Part of the ratings held out to measure accuracy, 0.2 by default; 0 trains '
  'on all.',
)
_SPLIT = flags.DEFINE_enum(
  'split',
  'random',
  ['random', 'last'],
  'What is held out: random ratings, or the last one of each user, by '
  'timestamps, which nothing else looks at.',
)
_SEED = flags.DEFINE_integer(
  'seed',
  None,
  'FOR EXPERIMENTS: a fixed seed, with which the noise can be removed. '
  'Without it the key comes from the operating system.',
)
_SPLIT_SEED = flags.DEFINE_integer(
  'split_seed', 0, 'Public seed of the held-out split, and of ties in time.'
)
_DEVICES = flags.DEFINE_integer(
  'devices',
  None,
  'Devices to use, in each process; all by default, on a CPU one per core.',
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator',
  None,
  'Several processes train together: host:port of the first one, the same in '
  'all of them; auto where SLURM, Open MPI or a TPU say it all.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'How many there are; not with --coordinator=auto.'
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id', None, 'The number of this one, from 0.'
)
_REPORT_EVERY = flags.DEFINE_integer(
  'report_every', None, 'Steps between reports; 25 reports by default.'
)

_CURVES = flags.DEFINE_string(
  'curves',
  None,
  'A CSV file for the errors on training and held-out ratings after each round '
  'that is reported, written while it trains. Not private: for you alone.',
)
_TENSORBOARD = flags.DEFINE_string(
  'tensorboard',
  None,
  'A folder for the same, for TensorBoard, such as logs/mine. It needs '
  'tensorboardX, or torch with tensorboard. Not private either.',
)
_CHECKPOINT_SECONDS = flags.DEFINE_float(
  'checkpoint_seconds',
  5.0,
  'Least time between two checkpoints; an interrupted run goes on from the '
  'last one.',
)

_RANKING_K = flags.DEFINE_list(
  'ranking_k',
  None,
  'Lengths of lists, such as 10 or 5,10: metrics.json then has Recall, NDCG, '
  'MAP, MRR and AUC of the held-out ratings over all items, too.',
)
_RANKING_THRESHOLD = flags.DEFINE_float(
  'ranking_threshold',
  None,
  'The least rating that counts as relevant in these. By default all do, or '
  'those in the upper third of the scale where a ranking is learned from '
  'ratings.',
)

_LEDGER = flags.DEFINE_string(
  'ledger',
  None,
  'SQLite file, or postgresql://user@host/database, in which everything spent '
  'on this data set is put down; begun at its first use. Keep it, and keep it '
  'private.',
)
_BUDGET_EPSILON = flags.DEFINE_string(
  'budget_epsilon',
  None,
  'The most that all runs in --ledger may cost together, at --delta. Needed '
  'at its first use only. unlimited: they are only added up, and the total is '
  'not valid if later runs were chosen after seeing earlier ones.',
)


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
    'jax_num_cpu_devices', (coordinator and _DEVICES.value) or cores
  )

  from dpmf_jax.accounting import ledger
  from dpmf_jax.runs import processes

  many = contextlib.nullcontext()
  if coordinator is not None:
    many = processes.joined(
      coordinator, _NUM_PROCESSES.value, _PROCESS_ID.value, words=cli.line
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
  address = _COORDINATOR.value
  count, number = _NUM_PROCESSES.value, _PROCESS_ID.value
  if address in (None, 'auto'):
    for flag in (_NUM_PROCESSES, _PROCESS_ID):
      if flag.value is not None:
        raise ValueError(f'--{flag.name} needs --coordinator=HOST:PORT')
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
  if _LEDGER.value is not None:
    print(f'\n{ledger.summary(_LEDGER.value)}')
    print(f'its last hash is {ledger.statement(_LEDGER.value)["head"]}')
  folder = Path(_OUTPUT.value)
  written = [name for name in folders.OUTPUTS if (folder / name).exists()]
  print(f'\nwritten to {folder}/: {", ".join(written)}, private/')


def _shared_flags() -> list[flags.Flag]:
  """Those that all processes have to give alike."""
  every = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
  own = ('process_id', 'data_dir', 'ratings_cache')
  return [each for each in every if each.name not in own]


def _arguments() -> dict[str, Any]:
  """The flags as arguments of `dpmf_jax.train`."""
  from dpmf_jax.ratings.table import with_public_ids

  if _SEED.value is not None and _LEDGER.value is not None:
    raise ValueError(
      '--seed is for experiments: noise that whoever knows the seed can remove '
      'is no protection that a --ledger could count; leave one of them out'
    )
  asked_for = _SYSTEM.value
  personalized = asked_for != 'auto' and plans.SPECS[asked_for].personalized
  specifications.check(
    system=asked_for,
    personalized=personalized,
    path=sources.RATINGS.value,
    epsilon=_SETTINGS['epsilon'].value,
  )
  ratings = with_public_ids(
    specifications.attach(
      sources.load(_TITLES.value),
      path=sources.RATINGS.value,
      **reading.layout(),
    ),
    users=_ids(_USER_IDS, 'user'),
    items=_ids(_ITEM_IDS, 'item'),
    num_users=_NUM_USERS.value,
  )
  given = {name: flag.value for name, flag in _SETTINGS.items()}
  if _ATTRIBUTES.value:
    if asked_for != 'sdfm':
      raise ValueError('--attributes is for --system=sdfm alone')
    given['attributes'] = _attributes(ratings)
  features, hashed = _features(ratings, _USER_FEATURES)
  item_features, hashed_items = _features(ratings, _ITEM_FEATURES)
  return given | {
    'ratings': ratings,
    'scale': sources.scale(),
    'delta': _DELTA.value,
    'task': _TASK.value,
    'system': asked_for,
    'variant': _VARIANT.value,
    'user_features': features,
    'item_features': item_features,
    'public_ratings': _prior(),
    'threshold': specifications.threshold(),
    'asked': specifications.asked(),
    'split': _SPLIT.value,
    'test_fraction': _TEST_FRACTION.value,
    'split_seed': _SPLIT_SEED.value,
    'ranking_k': _cutoffs(),
    'ranking_threshold': _RANKING_THRESHOLD.value,
    'key': _SEED.value,
    'output': _OUTPUT.value,
    'overwrite': _OVERWRITE.value,
    'ledger': _LEDGER.value,
    'budget_epsilon': ledgers.budget(_BUDGET_EPSILON),
    'devices': _DEVICES.value,
    'report_every': _REPORT_EVERY.value,
    'checkpoint_seconds': _CHECKPOINT_SECONDS.value,
    'curves': _CURVES.value,
    'tensorboard': _TENSORBOARD.value,
    'public': specifications.public() | hashed | hashed_items,
  }


def _ids(flag: flags.FlagHolder, role: str) -> Any:
  from dpmf_jax.ratings import formats

  return flag.value and formats.read_ids(flag.value, role)


def _attributes(ratings) -> Any:
  from dpmf_jax.ratings import attributes, catalog

  if sources.DATASET.value is None:
    raise ValueError('--attributes needs --dataset=ml-100k or ml-1m')
  folder = catalog.fetch(
    sources.DATASET.value, data_dir=sources.DATA_DIR.value, quiet=True
  )
  return attributes.movielens(ratings, folder)


def _features(ratings, flag) -> tuple[Any, dict[str, str]]:
  """The features that a flag names, and what a certificate says of them."""
  from dpmf_jax import files
  from dpmf_jax.ratings import attributes

  path = flag.value
  if path is None:
    return None, {}
  read = {
    _USER_FEATURES.name: attributes.read_user_features,
    _ITEM_FEATURES.name: attributes.read_item_features,
  }[flag.name]
  return read(ratings, path), {flag.name: f'sha256 {files.sha256(Path(path))}'}


def _prior() -> Any:
  """What --public_ratings say of items; None without them."""
  from dpmf_jax.ratings import catalog, formats, priors

  path, titles, saved = (
    flag.value for flag in (_PUBLIC_RATINGS, _PUBLIC_TITLES, _SAVE_PRIOR)
  )
  if path is None:
    for flag in (_PUBLIC_TITLES, _SAVE_PRIOR):
      if flag.value is not None:
        raise ValueError(f'--{flag.name} needs --public_ratings')
    return None
  if path in (sources.DATASET.value, sources.RATINGS.value):
    raise ValueError(
      f'--public_ratings={path} are the ratings themselves, which are private: '
      'give others, that anyone may see'
    )
  ratings: Any = path
  if path in catalog.NAMES and not Path(path).exists():
    ratings = catalog.load(path, data_dir=sources.DATA_DIR.value)
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


def _cutoffs() -> list[int]:
  """The values of --ranking_k; none without it."""
  words = _RANKING_K.value or []
  if not all(word.isdecimal() for word in words):
    raise ValueError(
      f'--ranking_k={",".join(words)} must be numbers of at least 1'
    )
  return [int(word) for word in words]
