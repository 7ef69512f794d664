"""Trains a recommender on a ratings file and certifies what it releases.

Example, on MovieLens-100K (fetched if need be):

  python -m launch.train --dataset=ml-100k --epsilon=4 --output=runs/first

and on a file of your own, with lines of user, item, rating:

  python -m launch.train --ratings=ratings.csv --scale=1,5 --epsilon=4 \\
    --output=runs/mine

The folder gets model.safetensors (what the guarantee covers, and nothing
else), certificate.json, ids.json, metrics.json, learning_curve.png and
private/ (keep it secret). A run that was interrupted goes on from its last
checkpoint when the same command is given again.

With --ledger=FILE the run is put down in the data set's ledger before any
noise is drawn, and refused (exit code 1) if all runs together would cost more
than the budget that the ledger was begun with:

  python -m launch.train --dataset=ml-100k --epsilon=1 --output=runs/first \\
    --ledger=ml-100k.ledger --budget_epsilon=3

A personalized system needs the epsilon that each rating is to have, a public
fact: --epsilon_column=NAME (of the --ratings file), --epsilon_file=FILE (lines
of user,epsilon) or --specification=fractions (drawn as published).

Settings that a system has and that are not given keep its own default; see
docs/design.md and the config classes in dpmf_jax/systems/.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any

from absl import flags

from launch import cli, specifications

_SYSTEM = flags.DEFINE_enum(
  'system',
  'gaussian_mf',
  [
    'gaussian_mf',
    'objective_pmf',
    'personalized_pmf',
    'sdmf',
    'sdbpr',
    'langevin',
    'untrusted_pmf',
    'nonprivate',
  ],
  "What to train. personalized_pmf needs a specification of each rating's "
  'epsilon; nonprivate is a baseline without any guarantee.',
)
_VARIANT = flags.DEFINE_enum(
  'variant',
  'sound',
  ['sound', 'paper', 'none'],
  'sound: with a guarantee that is proved. paper: as published, with the '
  "paper's claim, which may not be true. none: without any (sdbpr, langevin).",
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

_LEDGER = flags.DEFINE_string(
  'ledger',
  None,
  'File in which everything spent on this data set is put down; made at its '
  'first use. Keep it, and keep it private.',
)
_BUDGET_EPSILON = flags.DEFINE_float(
  'budget_epsilon',
  None,
  'The most that all runs in --ledger may cost together, at --delta. Needed '
  'at its first use only.',
)

# Settings of the systems. None leaves the system's own default.
_SETTINGS = {
  'epsilon': flags.DEFINE_float(
    'epsilon', None, 'Target epsilon; noise is calibrated to it.'
  ),
  'delta': flags.DEFINE_float('delta', 1e-6, 'Delta of the guarantee.'),
  'relation': flags.DEFINE_enum(
    'relation',
    None,
    ['replace', 'add_remove'],
    'Neighbouring relation. replace: the value of a rating is protected, who '
    'rated what is public. add_remove: that a rating exists is protected, too '
    '(what the sound variant does unless told otherwise).',
  ),
  'noise_multiplier': flags.DEFINE_float(
    'noise_multiplier', None, 'Noise over sensitivity, instead of --epsilon.'
  ),
  'epsilon_per_step': flags.DEFINE_float(
    'epsilon_per_step', None, "paper: the paper's eps_i, instead of --epsilon."
  ),
  'delta_per_step': flags.DEFINE_float(
    'delta_per_step', None, "paper: the paper's delta of a step."
  ),
  'rank': flags.DEFINE_integer('rank', None, 'Number of factors.'),
  'steps': flags.DEFINE_integer('steps', None, 'Number of steps.'),
  'step_size': flags.DEFINE_float('step_size', None, 'Step size.'),
  'ridge': flags.DEFINE_float('ridge', None, 'L2 penalty.'),
  'clip_norm': flags.DEFINE_float(
    'clip_norm', None, 'Largest norm of a factor inside a gradient.'
  ),
  'residual_bound': flags.DEFINE_float(
    'residual_bound', None, 'Residuals are clipped to +- this.'
  ),
  'offset': flags.DEFINE_float(
    'offset', None, 'A public constant added to every prediction.'
  ),
  'init': flags.DEFINE_enum(
    'init', None, ['bias', 'unit'], 'How factors start; the paper has unit.'
  ),
  'lattice_bits': flags.DEFINE_integer(
    'lattice_bits', None, 'Terms of a gradient are rounded to 2^-this.'
  ),
  'user_share': flags.DEFINE_float(
    'user_share', None, "Part of a step's budget spent on the user gradient."
  ),
  'objective': flags.DEFINE_enum(
    'objective', None, ['zhang', 'hua'], 'objective_pmf, paper: whose.'
  ),
  'noise': flags.DEFINE_enum(
    'noise',
    None,
    ['once', 'every_step'],
    'objective_pmf and personalized_pmf, paper: when noise is drawn.',
  ),
  'method': flags.DEFINE_enum(
    'method',
    None,
    ['weights', 'sampling'],
    'personalized_pmf: how ratings get an epsilon below --epsilon.',
  ),
  'pmf_steps': flags.DEFINE_integer(
    'pmf_steps', None, 'objective_pmf, paper: k1, steps without noise.'
  ),
  'noise_steps': flags.DEFINE_integer(
    'noise_steps', None, 'objective_pmf, paper: k2, steps with noise.'
  ),
  'epsilon_instant': flags.DEFINE_float(
    'epsilon_instant',
    None,
    "sdmf and sdbpr, paper: the paper's eps_I of one round, instead of "
    '--epsilon, which is its eps_P of all rounds.',
  ),
  'epsilon_value': flags.DEFINE_float(
    'epsilon_value', None, "sdmf, paper: the paper's eps_g; 0 is alpha = inf."
  ),
  'sign': flags.DEFINE_enum(
    'sign',
    None,
    ['true', 'perturbed'],
    'sdbpr, paper: the bits that the sign of a gradient comes from.',
  ),
  'sent': flags.DEFINE_float(
    'sent', None, 'sdmf and sdbpr: items that a client sends, on average.'
  ),
  'online': flags.DEFINE_float(
    'online',
    None,
    'sdmf, sdbpr and untrusted_pmf (paper, dynamic): chance of a client to be '
    'online in a round.',
  ),
  'tolerance': flags.DEFINE_float(
    'tolerance', None, 'sdmf and sdbpr: a move that counts as converged.'
  ),
  'decay': flags.DEFINE_float(
    'decay', None, 'sdmf, sdbpr and langevin: power of the step size decay.'
  ),
  'clip': flags.DEFINE_bool(
    'clip', None, 'langevin, paper: clip perturbed ratings to the scale.'
  ),
  'colluders': flags.DEFINE_integer(
    'colluders',
    None,
    'untrusted_pmf, sound: how many users may collude.',
  ),
  'dropouts': flags.DEFINE_integer(
    'dropouts',
    None,
    'untrusted_pmf, sound: how many reports may not arrive.',
  ),
  'users': flags.DEFINE_enum(
    'users',
    None,
    ['static', 'dynamic'],
    'untrusted_pmf, paper: whether the same users are online in all rounds.',
  ),
  'rounds': flags.DEFINE_integer(
    'rounds', None, 'untrusted_pmf, paper: rounds of gradients.'
  ),
  'biases': flags.DEFINE_bool(
    'biases', None, 'nonprivate: whether users and items have biases.'
  ),
}


def _config(entry, variant: str, scale) -> Any:
  """The config of the system from the flags."""
  import dataclasses

  fields = {field.name for field in dataclasses.fields(entry.config)}
  settings = {**entry.variants[variant], 'scale': scale}
  for name, flag in _SETTINGS.items():
    if flag.value is None:
      continue
    if name in fields:
      settings[name] = flag.value
    elif flag.present:
      raise ValueError(f'--{name} is not a setting of --system={_SYSTEM.value}')
  needed = 'epsilon' in fields and variant != 'none'
  if needed and not settings.keys() & {
    'epsilon',
    'epsilon_instant',
    'noise_multiplier',
    'epsilon_per_step',
  }:
    raise ValueError(
      '--epsilon is missing: say how much privacy loss is allowed, for '
      'example --epsilon=1 (smaller is more private)'
    )
  return entry.config(**settings)


def _variant(entry) -> str:
  """The variant asked for; what only has 'none' is that."""
  asked, known = _VARIANT.value, entry.variants
  if asked in known:
    return asked
  if 'none' in known and len(known) == 1:
    return 'none'
  if _VARIANT.present or 'paper' not in known:
    raise ValueError(
      f'--variant={asked} is not one of --system={_SYSTEM.value}, which has '
      f'{", ".join(sorted(known))}'
    )
  raise ValueError(
    f'--system={_SYSTEM.value} has no sound variant: say --variant='
    f'{" or --variant=".join(sorted(known))}'
  )


def _personalized(name: str, entry) -> bool:
  """Whether a system reads the epsilon of each rating."""
  import dataclasses

  fields = {field.name for field in dataclasses.fields(entry.config)}
  return name.startswith('personalized') or 'personalized' in fields


def _load():
  """The ratings that the flags name."""
  from dpmf_jax.data import catalog, formats

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


def _spend(system, config, variant: str, ratings):
  """What puts this run into the ledger; None without one."""
  from dpmf_jax import runs
  from dpmf_jax.accounting import ledger

  if _LEDGER.value is None:
    if _BUDGET_EPSILON.value is not None:
      raise ValueError(
        '--budget_epsilon needs --ledger=FILE, where what is spent is put down'
      )
    return None
  return functools.partial(
    ledger.spend,
    _LEDGER.value,
    ledger.proved_event(system.guarantee),
    budget_epsilon=_BUDGET_EPSILON.value,
    delta=config.delta,
    unit=system.guarantee.unit,
    relation=system.guarantee.relation,
    dataset=ratings.name,
    digest=runs.digest(ratings),
    system=_SYSTEM.value,
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

  from dpmf_jax import certificate, files, metrics, plots, runs
  from dpmf_jax.accounting import ledger
  from dpmf_jax.data.splits import random_split
  from dpmf_jax.sharding import device_mesh, training_data
  from dpmf_jax.systems import SYSTEMS
  from dpmf_jax.training import fit

  fraction = _TEST_FRACTION.value
  if not 0 <= fraction < 1:
    raise ValueError(f'--test_fraction={fraction} must be in [0, 1)')
  entry = SYSTEMS[_SYSTEM.value]
  variant = _variant(entry)
  specifications.check(
    system=_SYSTEM.value,
    personalized=_personalized(_SYSTEM.value, entry),
    path=_RATINGS.value,
  )
  ratings = specifications.attach(
    _load(), path=_RATINGS.value, format=_FORMAT.value
  )
  config = _config(entry, variant, ratings.scale)
  system = entry.build(config)
  spend = _spend(system, config, variant, ratings)
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

  public = {
    'dataset': ratings.name,
    'num_users': ratings.num_users,
    'num_items': ratings.num_items,
    'test_fraction': fraction,
    'split_seed': split_seed,
    'devices': 1 if mesh is None else mesh.size,
    **specifications.public(),
  }
  settings = {
    **public,
    'system': _SYSTEM.value,
    'config': repr(config),
    'seed': seed,
    'ratings': runs.digest(train),
    **specifications.digest(train),
    'jax': jax.__version__,
  }
  delta = getattr(config, 'delta', None)
  key, start = runs.restore(
    folder, system, data, runs.random_key(seed), settings
  )
  if start:
    print(f'going on from step {start[0]} of {system.steps}')
  run = runs.run_id(folder)
  callbacks = [
    runs.checkpointer(
      folder, key, settings, run=run, seconds=_CHECKPOINT_SECONDS.value
    )
  ]
  if spend:
    charge = functools.partial(spend, entry_id=run)
    callbacks.append(runs.charger(folder, charge, fresh=start is None))
  fit_key, release_key = jax.random.split(key)
  curve, record = runs.curve_recorder(system, data, test_rows, ratings.scale)
  bar, show = runs.progress(system, curve, delta=delta)
  with bar:
    state = fit(
      system,
      fit_key,
      data,
      report_every=_REPORT_EVERY.value or max(1, -(-system.steps // 25)),
      callbacks=(*callbacks, record, show),
      start=start,
    )

  runs.write_model(folder, system, release_key, state, data, train)
  lines = {} if test is None else metrics.baselines(train, test)
  document = certificate.certificate(
    system.guarantee,
    system=_SYSTEM.value,
    config=config,
    delta=delta,
    seed=seed,
    parameters=public,
  )
  report = {
    'note': 'computed from the ratings without noise: not covered by the '
    'certificate, for the curator only',
    'system': _SYSTEM.value,
    'variant': variant,
    'status': document['status'],
    'train_rmse': curve[-1]['train_rmse'],
    'test_rmse': curve[-1].get('test_rmse'),
    'baselines': lines,
    'epsilon': document['epsilon'],
    'delta': document['delta'],
    'steps': system.steps,
    'seed': seed,
    'num_train': len(train),
    'num_test': 0 if test is None else len(test),
    'seconds': round(time.monotonic() - began, 3),
    'curve': curve,
  }
  if _SYSTEM.value == 'untrusted_pmf':
    from dpmf_jax.systems.untrusted_protocol import communication

    report['bytes_per_user'] = communication(
      config,
      num_items=ratings.num_items,
      ratings_per_user=len(train) / ratings.num_users,
    )
  files.write_json(folder / 'metrics.json', report, mode=0o600)
  name = f'{_SYSTEM.value} ({variant}) on {ratings.name}'
  if document['epsilon'] is not None:
    name += f', {document["status"]} epsilon {document["epsilon"]:.3g}'
  plots.learning_curve(folder / 'learning_curve.png', curve, lines, title=name)
  runs.finish(folder, document)

  print(f'\n{name}')
  rows = {'this model, held out': report['test_rmse']} | {
    f'{key.replace("_", " ")} (not private)': value
    for key, value in lines.items()
  }
  for label, value in rows.items():
    if value is not None:
      print(f'  RMSE {value:.4f}  {label}')
  print(f'  RMSE {report["train_rmse"]:.4f}  this model, training ratings\n')
  print(certificate.text(document))
  if _LEDGER.value is not None:
    print(f'\n{ledger.summary(_LEDGER.value)}')
  print(f'\nwritten to {folder}/: {", ".join(runs.OUTPUTS)}, private/')


if __name__ == '__main__':
  cli.run(main)
