"""Trains a recommender on a ratings file and certifies what it releases.

Example, on MovieLens-100K (fetched if need be):

  python -m launch.train --dataset=ml-100k --epsilon=4 --output=runs/first

and on a file of your own, with lines of user, item, rating:

  python -m launch.train --ratings=ratings.csv --scale=1,5 --epsilon=4 \\
    --output=runs/mine

The folder gets model.safetensors (what the guarantee covers, and nothing
else), certificate.json, ids.json, metrics.json, learning_curve.png,
error_cdf.png and private/ (keep it secret). A run that was interrupted goes on
from its last checkpoint when the same command is given again.

With --ledger=FILE the run is put down in the data set's ledger before any
noise is drawn, and refused (exit code 1) if all runs together would cost more
than the budget that the ledger was begun with:

  python -m launch.train --dataset=ml-100k --epsilon=1 --output=runs/first \\
    --ledger=ml-100k.ledger --budget_epsilon=3

The budget holds even if runs are chosen after seeing what earlier ones
released. It must be named at the ledger's first use and cannot be changed. With
--budget_epsilon=unlimited nothing is refused; the total that is then printed is
not valid if later runs were chosen after seeing earlier ones.

A personalized system needs the epsilon that each rating is to have, a public
fact: --epsilon_column=NAME (of the --ratings file), --epsilon_file=FILE (lines
of user,epsilon) or --specification=fractions (drawn as published). In place of
--epsilon it may have --threshold=best, mean or max of what may be asked for:

  python -m launch.train --dataset=ml-100k --system=personalized_pmf \\
    --specification=fractions --threshold=best --method=sampling \\
    --output=runs/own

Settings that a system has and that are not given keep its own default; see
docs/systems.md.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from typing import Any

from absl import flags

from dpmf_jax import plans
from launch import cli, settings, specifications

_SETTINGS = settings.define(own={'delta'})
# So that --help shows them.
flags.adopt_module_key_flags(settings)
flags.adopt_module_key_flags(specifications)

_SYSTEM = flags.DEFINE_enum(
  'system',
  'gaussian_mf',
  [*plans.SPECS, 'auto'],
  'What to train. auto: what is best for this --unit and --epsilon and so many '
  'users and items, and how, by a rule that looks at no rating '
  '(plans/auto.py). sdmf, sdbpr and sdfm with --variant=sound are local_mf.\n'
  + settings.SYSTEM_HELP,
)
_VARIANT = settings.define_variant()
_DELTA = flags.DEFINE_float('delta', 1e-6, 'Delta of the guarantee.')
_ATTRIBUTES = flags.DEFINE_bool(
  'attributes',
  False,
  'sdfm: use genres, age, gender and occupation, which are then public, from '
  'the folder of --dataset=ml-100k or ml-1m.',
)

_DATASET = flags.DEFINE_string(
  'dataset', None, 'A named data set, such as ml-100k, ml-1m or synthetic-1m.'
)
_RATINGS = flags.DEFINE_string('ratings', None, 'A ratings file, instead.')
_FORMAT = flags.DEFINE_string(
  'format', 'auto', 'Format of --ratings; auto goes by name and content.'
)
_SCALE = flags.DEFINE_list(
  'scale',
  ['1', '5'],
  'Lowest and highest rating that --ratings can hold. A public fact: it is '
  'never taken from the data.',
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
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Where data sets are looked for first.'
)
_OUTPUT = flags.DEFINE_string('output', None, 'Folder to write.', required=True)
_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace the run that --output holds.'
)
_TEST_FRACTION = flags.DEFINE_float(
  'test_fraction',
  0.2,
  'Part of the ratings held out to measure accuracy; 0 trains on all.',
)
_SEED = flags.DEFINE_integer(
  'seed',
  None,
  'FOR EXPERIMENTS: a fixed seed, with which the noise can be removed. '
  'Without it the key comes from the operating system.',
)
_SPLIT_SEED = flags.DEFINE_integer(
  'split_seed', 0, 'Public seed of the held-out split.'
)
_DEVICES = flags.DEFINE_integer(
  'devices', None, 'Devices to use; all by default, on a CPU one per core.'
)
_REPORT_EVERY = flags.DEFINE_integer(
  'report_every', None, 'Steps between reports; 25 reports by default.'
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
  'The least rating that counts as relevant in these; all by default.',
)

_LEDGER = flags.DEFINE_string(
  'ledger',
  None,
  'File in which everything spent on this data set is put down; made at its '
  'first use. Keep it, and keep it private.',
)
_BUDGET_EPSILON = flags.DEFINE_string(
  'budget_epsilon',
  None,
  'The most that all runs in --ledger may cost together, at --delta. Needed '
  'at its first use only. unlimited: they are only added up, and the total is '
  'not valid if later runs were chosen after seeing earlier ones.',
)


def _chosen(ratings) -> settings.Chosen:
  """What the flags say, for these ratings' numbers of users and items."""
  from dpmf_jax.plans import auto

  name = _SYSTEM.value
  given = {key: flag.value for key, flag in _SETTINGS.items()}
  more: dict[str, Any] = {}
  if name == 'auto':
    if given['epsilon'] is None:
      raise ValueError('--system=auto needs --epsilon, such as --epsilon=1')
    name, more = auto.recommended(
      given.pop('unit') or 'rating',
      num_users=ratings.num_users,
      num_items=ratings.num_items,
      epsilon=given['epsilon'],
      delta=_DELTA.value,
    )
  spec = plans.SPECS[name]
  if spec.personalized:
    method: Any = given['method'] or getattr(spec.config, 'method', 'weights')
    given['epsilon'] = specifications.threshold(method) or given['epsilon']
  if _ATTRIBUTES.value:
    more['attributes'] = _attributes(spec, ratings)
  chosen = settings.chosen(
    name, _VARIANT, _DELTA, given, scale=ratings.scale, **more
  )
  if not chosen.spec.resolved:
    return chosen
  config = chosen.spec.resolved(
    chosen.config, ratings.num_users, ratings.num_items
  )
  return chosen._replace(config=config)


def _attributes(spec, ratings) -> Any:
  from dpmf_jax.ratings import attributes, catalog

  if 'attributes' not in settings.fields(spec):
    raise ValueError('--attributes is for --system=sdfm alone')
  if _DATASET.value is None:
    raise ValueError('--attributes needs --dataset=ml-100k or ml-1m')
  folder = catalog.fetch(_DATASET.value, data_dir=_DATA_DIR.value, quiet=True)
  return attributes.movielens(ratings, folder)


def _features(spec, ratings) -> tuple[Any, ...]:
  """The user features that the flags name, for `entry.build`; () if none."""
  path = _USER_FEATURES.value
  if path is None:
    return ()
  if not spec.takes_features:
    raise ValueError(f'--system={_SYSTEM.value} takes no --user_features')
  from dpmf_jax.ratings.attributes import read_user_features

  return (read_user_features(ratings, path),)


def _cutoffs() -> list[int]:
  """The values of --ranking_k; none without it."""
  words = _RANKING_K.value or []
  if not all(word.isdecimal() and int(word) >= 1 for word in words):
    raise ValueError(
      f'--ranking_k={",".join(words)} must be numbers of at least 1'
    )
  if words and _TEST_FRACTION.value == 0:
    raise ValueError('--ranking_k needs held-out ratings: --test_fraction > 0')
  if not words and _RANKING_THRESHOLD.value is not None:
    raise ValueError('--ranking_threshold needs --ranking_k')
  return [int(word) for word in words]


def _load():
  """The ratings that the flags name."""
  from dpmf_jax.ratings import catalog, formats

  dataset, path = _DATASET.value, _RATINGS.value
  if dataset is not None and path is None:
    return catalog.load(dataset, data_dir=_DATA_DIR.value)
  if path is None or dataset is not None:
    raise ValueError('pass one of --dataset=NAME and --ratings=FILE')
  titles = formats.read_titles(_TITLES.value) if _TITLES.value else None
  return formats.read(
    path,
    format=_FORMAT.value,
    scale=cli.scale(_SCALE.value),
    titles=titles,
  )


def _with_public_ids(ratings):
  """`ratings` in the lists that the flags name."""
  from dpmf_jax.ratings import formats
  from dpmf_jax.ratings.table import with_public_ids

  listed = lambda path, role: path and formats.read_ids(path, role)
  return with_public_ids(
    ratings,
    users=listed(_USER_IDS.value, 'user'),
    items=listed(_ITEM_IDS.value, 'item'),
    num_users=_NUM_USERS.value,
  )


def _public_features() -> dict[str, str]:
  """What a certificate says of --user_features: a hash of the file."""
  if _USER_FEATURES.value is None:
    return {}
  with open(_USER_FEATURES.value, 'rb') as file:
    digest = hashlib.file_digest(file, 'sha256').hexdigest()
  return {'user_features': f'sha256 {digest}'}


def _budget() -> Any:
  """The value of --budget_epsilon: a number, 'unlimited' or None."""
  value = _BUDGET_EPSILON.value
  if value in (None, 'unlimited'):
    return value
  try:
    return float(value)
  except ValueError:
    raise ValueError(
      f"--budget_epsilon={value} must be a number or 'unlimited'"
    ) from None


def _spend(name: str, system, config, variant: str, ratings):
  """What puts this run into the ledger; None without one."""
  from dpmf_jax import runs
  from dpmf_jax.accounting import ledger

  if _LEDGER.value is None:
    if _BUDGET_EPSILON.value is not None:
      raise ValueError(
        '--budget_epsilon needs --ledger=FILE, where what is spent is put down'
      )
    return None
  if _SEED.value is not None:
    raise ValueError(
      '--seed is for experiments: noise that whoever knows the seed can remove '
      'is no protection that a --ledger could count; leave one of them out'
    )
  return functools.partial(
    ledger.spend,
    _LEDGER.value,
    ledger.proved_event(system.guarantee),
    budget_epsilon=_budget(),
    delta=config.delta,
    unit=system.guarantee.unit,
    relation=system.guarantee.relation,
    dataset=ratings.name,
    digest=runs.digest(ratings),
    system=name,
    variant=variant,
    what=os.path.abspath(_OUTPUT.value),
  )


def main(argv) -> int:
  del argv
  from dpmf_jax.accounting.ledger import BudgetExceeded

  try:
    _train()
  except BudgetExceeded as error:
    print(f'refused: {error}', file=sys.stderr)
    return 1
  return 0


def _train() -> None:
  began = time.monotonic()
  import jax

  # One device per core: a chunk of ratings is summed on each.
  jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)

  from dpmf_jax import certificates, files, runs
  from dpmf_jax.accounting import ledger
  from dpmf_jax.certificates import wording
  from dpmf_jax.evaluation import metrics, plots, ranking
  from dpmf_jax.ratings.splits import random_split
  from dpmf_jax.rows import device_mesh, training_data
  from dpmf_jax.systems import build
  from dpmf_jax.training import fit

  fraction = _TEST_FRACTION.value
  if not 0 <= fraction < 1:
    raise ValueError(f'--test_fraction={fraction} must be in [0, 1)')
  cutoffs = _cutoffs()
  asked = _SYSTEM.value
  specifications.check(
    system=asked,
    personalized=asked != 'auto' and plans.SPECS[asked].personalized,
    path=_RATINGS.value,
    epsilon=_SETTINGS['epsilon'].value,
  )
  ratings = specifications.attach(
    _load(), path=_RATINGS.value, format=_FORMAT.value
  )
  ratings = _with_public_ids(ratings)
  name, variant, spec, config = _chosen(ratings)
  features = _features(spec, ratings)
  system = build(name, config, *features)
  if ratings.most_users and system.guarantee.unit != 'user':
    raise ValueError(
      f'--num_users is for what protects whole users, and --system={name} '
      'protects single ratings here: use --user_ids=FILE'
    )
  spend = _spend(name, system, config, variant, ratings)
  if spend and _OVERWRITE.value:
    spend(dry_run=True)  # before the run that was there is gone
  folder = runs.prepare(_OUTPUT.value, overwrite=_OVERWRITE.value)

  seed = _SEED.value
  split_seed = _SPLIT_SEED.value
  train, test = ratings, None
  if fraction > 0:
    train, test = random_split(ratings, fraction, seed=split_seed)
  mesh = device_mesh(_DEVICES.value)
  data = training_data(train, mesh=mesh)
  test_rows = None if test is None else training_data(test, mesh=mesh).by_user

  lists = certificates.id_lists(ratings, system.guarantee)
  public = {
    'dataset': ratings.name,
    'num_items': ratings.num_items,
    'test_fraction': fraction,
    'split_seed': split_seed,
    'devices': 1 if mesh is None else mesh.size,
    **specifications.public(),
    **_public_features(),
  }
  if lists['users'] != wording.SECRET_COUNTED:
    public['num_users'] = ratings.num_users
  identity = {
    **public,
    'system': name,
    'config': repr(config),
    'seed': seed,
    'ratings': runs.digest(train),
    **specifications.digest(train),
  }
  delta = getattr(config, 'delta', None)
  key, start = runs.restore(
    folder, system, data, runs.random_key(seed), identity
  )
  if start:
    print(f'going on from step {start[0]} of {system.steps}')
  run = runs.run_id(folder)
  callbacks = [
    runs.checkpointer(
      folder, key, identity, run=run, seconds=_CHECKPOINT_SECONDS.value
    )
  ]
  if spend:
    charge = functools.partial(spend, entry_id=run)
    callbacks.append(runs.charger(folder, charge, fresh=start is None))
  # The other half drew masks for releases once: steps keep their noise.
  fit_key, _ = jax.random.split(key)
  recorder = runs.Recorder(system, data, test_rows, ratings.scale)
  ranks = [matrix.shape[1] for matrix in features]
  bar, show = runs.progress(
    spec.plan(config, *ranks), recorder.curve, delta=delta
  )
  with bar:
    fit(
      system,
      fit_key,
      data,
      report_every=_REPORT_EVERY.value or max(1, -(-system.steps // 25)),
      callbacks=(*callbacks, recorder, show),
      start=start,
    )

  model, curve = recorder.model, recorder.curve
  runs.write_model(folder, model, system.guarantee, train)
  lines = {} if test is None else metrics.baselines(train, test)
  errors = metrics.error_grid(ratings.scale)
  shares = {
    part: metrics.error_cdf(rows, model, errors, ratings.scale).tolist()
    for part, rows in (('train', data.by_user), ('test', test_rows))
    if rows is not None
  }
  own = system.personal
  document = certificates.certificate(
    system.guarantee,
    system=name,
    config=config,
    delta=delta,
    seed=seed,
    generator=runs.generator(key),
    run=run,
    parameters=public,
    lists=lists,
    personal=own and own.statement(specifications.asked()),
  )
  report = {
    'note': 'computed from the ratings without noise: not covered by the '
    'certificate, for the curator only',
    'system': name,
    'variant': variant,
    'status': document['status'],
    'train_rmse': curve[-1]['train_rmse'],
    'test_rmse': curve[-1].get('test_rmse'),
    'baselines': lines,
    'error_cdf': {'errors': errors.tolist(), **shares},
    'epsilon': document['epsilon'],
    'delta': document['delta'],
    'steps': system.steps,
    'seed': seed,
    'num_train': len(train),
    'num_test': 0 if test is None else len(test),
    'seconds': round(time.monotonic() - began, 3),
    'curve': curve,
  }
  if own and train.epsilon is not None:
    accounted = own.accounted(train.epsilon)
    report['accounted_epsilons'] = specifications.summary(accounted)
  if test is not None and cutoffs:
    report['ranking'] = ranking.ranking_metrics(
      jax.device_get(model),
      train,
      test,
      cutoffs,
      threshold=_RANKING_THRESHOLD.value,
    )
  if spec.traffic:
    # Bytes of the mean client in a round.
    report['communication'] = spec.traffic(
      config,
      num_users=ratings.num_users,
      num_items=ratings.num_items,
      num_ratings=len(train),
    )
  files.write_json(folder / 'metrics.json', report, mode=0o600)
  title = f'{name} ({variant}) on {ratings.name}'
  if document['epsilon'] is not None:
    title += f', {document["status"]} epsilon {document["epsilon"]:.3g}'
  plots.learning_curve(folder / 'learning_curve.png', curve, lines, title=title)
  labels = {'train': 'training', 'test': 'held out'}
  plots.error_cdf(
    folder / 'error_cdf.png',
    errors.tolist(),
    {labels[part]: values for part, values in shares.items()},
    title=title,
  )
  runs.finish(folder, document)

  print(f'\n{title}')
  rows = {'this model, held out': report['test_rmse']} | {
    f'{key.replace("_", " ")} (not private)': value
    for key, value in lines.items()
  }
  for label, value in rows.items():
    if value is not None:
      print(f'  RMSE {value:.4f}  {label}')
  print(f'  RMSE {report["train_rmse"]:.4f}  this model, training ratings\n')
  if 'ranking' in report:
    print(f'{ranking.text(report["ranking"])}\n')
  print(wording.summary(document))
  if _LEDGER.value is not None:
    print(f'\n{ledger.summary(_LEDGER.value)}')
  print(f'\nwritten to {folder}/: {", ".join(runs.OUTPUTS)}, private/')


if __name__ == '__main__':
  cli.run(main)
