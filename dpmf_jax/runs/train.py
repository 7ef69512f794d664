"""`train`: from ratings to a certified run, in one call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from dpmf_jax import certificates, files, keys
from dpmf_jax.certificates import wording
from dpmf_jax.evaluation import popular
from dpmf_jax.homes import data_at_home, spread_items, whole_items
from dpmf_jax.plans.spec import Task
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.priors import matched
from dpmf_jax.ratings.priors import public_prior as prior_of_public
from dpmf_jax.ratings.specification import AskedEpsilons
from dpmf_jax.ratings.splits import hold_out_last, random_split
from dpmf_jax.ratings.table import Ratings, with_public_ids
from dpmf_jax.rows import device_mesh, training_data
from dpmf_jax.runs import (
  arguments,
  choosing,
  folders,
  measuring,
  processes,
  recording,
  running,
  timing,
)
from dpmf_jax.runs.choosing import Chosen, Threshold
from dpmf_jax.runs.run import Run
from dpmf_jax.systems.item_facts import with_facts
from dpmf_jax.systems.public import with_public
from dpmf_jax.types import System

Split = Literal['random', 'last']
# What a certificate says of the second.
_LAST = {
  'split': 'last: the latest of each user is held out to measure accuracy; '
  'timestamps are used for that alone'
}


def train(
  ratings: Any,
  *,
  epsilon: float | None = None,
  delta: float | None = None,
  task: Task | None = None,
  system: str | System = 'auto',
  variant: str | None = None,
  unit: str | None = None,
  scale: tuple[float, float] | None = None,
  max_count: int | None = None,
  user_ids: Sequence[Any] | None = None,
  item_ids: Sequence[Any] | None = None,
  num_users: int | None = None,
  user_features: np.ndarray | None = None,
  item_features: np.ndarray | None = None,
  public_ratings: Any = None,
  threshold: Threshold | None = None,
  asked: AskedEpsilons | None = None,
  split: Split = 'random',
  test_fraction: float | None = None,
  split_seed: int = 0,
  ranking_k: Sequence[int] = (),
  ranking_threshold: float | None = None,
  key: jax.Array | int | None = None,
  output: str | Path | None = None,
  overwrite: bool = False,
  ledger: str | Path | None = None,
  budget_epsilon: float | Literal['unlimited'] | None = None,
  devices: int | None = None,
  item_tables: Literal['everywhere', 'spread'] = 'everywhere',
  report_every: int | None = None,
  checkpoint_seconds: float = 5.0,
  curves: str | Path | None = None,
  tensorboard: str | Path | None = None,
  progress: bool = True,
  public: Mapping[str, str] | None = None,
  **settings: Any,
) -> Run:
  """A recommender trained on `ratings`, with its certificate and accuracy.

    run = dpmf_jax.train('ratings.csv', epsilon=2)
    print(run)
    run.recommend(users=['7'], k=5)

  Args:
    ratings: `Ratings`, a path, a pandas DataFrame with columns such as user,
      item and rating, a sparse [U, I] matrix, or the name of a data set. Files
      and frames without a rating, and matrices of True, are clicks. Of several
      processes each gives those of its own users (`runs.processes`).
    epsilon: how much privacy loss is allowed; smaller is more private.
    delta: of the guarantee; 1e-6 by default.
    task: what lists are judged by: 'rating' predicts ratings, the default
      where there are any; 'ranking' says which items come first. A system by
      name has its own.
    system: 'auto' chooses one by public facts; or a name of
      `dpmf_jax.plans.NAMES`; or a `System` of your own, whose guarantee is
      then called stated, not proved.
    variant: 'sound' (the default), 'paper' or 'none'.
    unit: what is protected, 'rating' (the default) or 'user', where the system
      leaves the choice.
    scale: smallest and largest rating that can be given, a public fact; 1 to 5
      by default where the ratings do not say it.
    max_count: says that what would be ratings are counts, of which so many
      count at most, a public fact. 1, the default for clicks, makes all
      interactions alike.
    user_ids, item_ids: every id that there is, rated or not, made without
      looking at the ratings. Without them that an id has a rating is not
      protected.
    num_users: where whole users are protected, instead of `user_ids`: as many
      as there may be, not counted in the ratings.
    user_features: [U, F] public facts of users in the order of
      `ratings.user_ids`, for systems that take them.
    item_features: [I, F] public facts of items in the order of
      `ratings.item_ids`, such as genres and a year, that means of items follow
      as far as noisy sums say so. For power_mf and dpals.
    public_ratings: ratings that anyone may see, of the same items by title or
      id, which items start from: what `ratings` may be, or a `Prior` or the
      file of one (`save_prior`). For power_mf, dpals and ranking_mf.
      They are not protected, and must not be taken from `ratings`.
    threshold: personalised systems, in place of epsilon: the epsilon that
      noise is made for, or a rule for it that looks at `asked`.
    asked: personalised systems: the public distribution of epsilons that may
      be asked for. Those of the ratings are `ratings.epsilon`.
    split: what is held out to measure accuracy: 'random' ratings, or the
      'last' one of each user, by timestamps, which nothing else looks at.
    test_fraction: part of the ratings held out at random; 0.2 by default, and
      0 trains on all.
    split_seed: public seed of that split, and of ties in timestamps.
    ranking_k: lengths of lists, for ranking metrics; 10 for a ranking.
    ranking_threshold: the least rating that counts as relevant in them. By
      default all do, or those in the upper third of the scale where a ranking
      is learned from ratings.
    key: None draws one from the operating system. A number is a seed, and a
      key of one's own is as good as its source: both are FOR EXPERIMENTS, and
      the certificate says so. One of `random_key()` is for a single run.
    output: a folder to write. A run that was interrupted goes on from there
      when the same call is made again.
    overwrite: replace the run that is in `output`; one that was interrupted
      goes on if it is of the same call.
    ledger: file in which everything spent on this data is put down.
    budget_epsilon: the most that all runs in the ledger may cost together, or
      'unlimited'; needed at its first use only.
    devices: how many to use, of each process; all by default.
    item_tables: where tables of items are while several devices train: on all
      of them, or each has its part between programs, for less memory. They are
      then gathered in each program, which sends more, but less with
      gaussian_mf (docs/performance.md). The release is the same, to the bit.
    report_every: steps between points of the curve; 25 points by default.
    checkpoint_seconds: least time between two checkpoints in `output`.
    curves: a CSV file for the errors after each round that is reported,
      written while it trains. It is not private: for the curator only.
    tensorboard: a folder for the same as TensorBoard reads it, not private
      either. It needs tensorboardX, or torch with tensorboard.
    progress: whether to show a bar.
    public: further public facts, for the certificate.
    **settings: of the system; see docs/systems.md.

  Privacy: the certificate says what is covered. With a ledger the run is put
  down there before any noise is drawn, and refused (BudgetExceeded) if it
  would cost too much.
  """
  began, lap = time.monotonic(), timing.laps()
  test_fraction = arguments.held_out_share(split, test_fraction)
  arguments.check_evaluation(
    test_fraction, split_seed, ranking_k, ranking_threshold
  )
  arguments.check_reports(report_every, checkpoint_seconds)
  if not isinstance(overwrite, bool):
    raise ValueError(f'overwrite={overwrite!r} must be True or False')
  arguments.check_elsewhere(settings)
  table = ratings_of(ratings, scale=scale, max_count=max_count)
  if scale is not None and table.clicks:
    raise ValueError(
      f'scale={tuple(scale)} is for ratings, and {table.name} has clicks: '
      'leave it out'
    )
  table = with_public_ids(
    table,
    users=user_ids,
    items=item_ids,
    num_users=num_users,
  )
  given = {'epsilon': epsilon, 'unit': unit, **settings}
  chosen = choosing.chosen(
    system,
    given,
    table,
    task=task,
    variant=variant,
    delta=delta,
    threshold=threshold,
    asked=asked,
    features=user_features,
    items_known=public_ratings is not None or item_features is not None,
    in_ledger=ledger is not None,
  )
  public_prior = None
  if public_ratings is not None:
    arguments.check_apart(ratings, public_ratings)
    public_prior = matched(prior_of_public(public_ratings), table)
    system_of_both = with_public(chosen.name, chosen.system, public_prior)
    chosen = chosen._replace(system=system_of_both)
    if progress:
      shown = np.mean(public_prior.place[table.item] >= 0)
      print(f'{public_prior} (not for publication: {shown:.0%} of the ratings)')
  if item_features is not None:
    chosen = chosen._replace(
      system=_with_item_features(chosen, table, item_features, public_ratings)
    )
  made = chosen.system
  processes.check_system(chosen.name, chosen.variant)
  processes.check_item_tables(item_tables, chosen.name, chosen.variant)
  if not processes.first():
    progress, curves, tensorboard = False, None, None
  arguments.check_logs(chosen, curves, tensorboard, output, overwrite)
  lap('system chosen')
  if table.most_users and made.guarantee.unit != 'user':
    raise ValueError(
      f'num_users={table.most_users} is for what protects whole users, and '
      f'system={chosen.name} protects single ratings here: use user_ids'
    )
  first_key = arguments.first_key(key)
  spend = running.spending(
    chosen, table, first_key, ledger, budget_epsilon, output
  )
  folder_of = contextlib.nullcontext()
  if output is not None and processes.first():
    folder_of = folders.opened(output, overwrite=overwrite)
  with folder_of as folder:
    mesh = device_mesh(devices)
    table = processes.at_home(table, mesh)
    learned, test = table, None
    if test_fraction is None:
      learned, test = hold_out_last(table, seed=split_seed)
    elif test_fraction > 0:
      learned, test = random_split(table, test_fraction, seed=split_seed)
    laid_out = data_at_home if processes.count() > 1 else training_data
    data = laid_out(learned, mesh=mesh)
    if item_tables == 'spread':
      data = spread_items(data)
    test_rows = None
    if test is not None:
      test_rows = laid_out(test, mesh=mesh).by_user
    lap('ratings split and laid out')
    lists = certificates.id_lists(table, made.guarantee)
    facts = {
      'dataset': table.name,
      'num_items': table.num_items,
      **(_LAST if test_fraction is None else {'test_fraction': test_fraction}),
      'split_seed': split_seed,
      'devices': 1 if mesh is None else mesh.size,
      **({'processes': many} if (many := processes.count()) > 1 else {}),
      **({'max_count': int(table.scale[1])} if table.clicks else {}),
      **({} if threshold is None else {'threshold': str(threshold)}),
    }
    stated = None if public_prior is None else public_prior.stated
    known = {*facts, 'num_users', 'public_ratings'}
    further = arguments.further(public or {}, known, chosen)
    # A hash of the file that features are from says more than one of an array.
    facts |= {
      **_stated_features('user_features', user_features),
      **_stated_features('item_features', item_features),
      **further,
    }
    if lists['users'] != wording.SECRET_COUNTED:
      facts['num_users'] = table.num_users
    hashed = {'epsilons': learned.epsilon, 'features': user_features}
    identity = {
      **facts,
      'system': chosen.name,
      'config': repr(chosen.config or made.guarantee),
      'key': _identity_of(first_key, key),
      'ratings': processes.digest(folders.digest(learned)),
      **{
        name: None if array is None else files.sha256(array)
        for name, array in hashed.items()
      },
      'public_ratings': stated,
    }
    processes.check_same({**identity, 'item_tables': item_tables})

    recorder = recording.Recorder(
      made,
      data,
      test_rows,
      table.scale,
      task=chosen.task,
      rounds=chosen.plan.rounds,
    )
    first_key, run_id = running.fitted(
      chosen,
      data,
      recorder,
      first_key,
      folder=folder,
      overwrite=overwrite,
      identity=identity,
      spend=spend,
      report_every=report_every or max(1, -(-made.steps // 25)),
      checkpoint_seconds=checkpoint_seconds,
      curves=curves,
      tensorboard=tensorboard,
      progress=progress,
    )

    lap('steps done')
    recorder.model = whole_items(recorder.model, data)
    if processes.count() > 1:
      learned = processes.whole(learned)
      test = None if test is None else processes.whole(test)
    own = made.personal
    certificate = certificates.certificate(
      made.guarantee,
      system=chosen.name,
      config=chosen.config,
      delta=chosen.delta,
      randomness=keys.stated(first_key),
      features=chosen.features,
      run=run_id,
      parameters=facts,
      lists=lists,
      personal=own and own.statement(asked),
      public_ratings=stated,
    )
    report = measuring.facts(chosen, recorder, learned, test)
    if public_prior is not None:
      report['public_ratings'] = measuring.matched(
        public_prior, learned, recorder.model
      )
      if progress and not report['public_ratings']['used']:
        print('they are not used: noisy sums have too little to do with them')
    if chosen.task == 'rating':
      report |= measuring.accuracy(
        recorder, data.by_user, test_rows, learned, test
      )
    recorder.model = processes.on_first(recorder.model, data)
    report |= {
      'status': certificate['status'],
      'epsilon': certificate['epsilon'],
      'delta': certificate['delta'],
      'seed': int(key) if isinstance(key, int | np.integer) else None,
    }
    listed = processes.first() and (ranking_k or chosen.task == 'ranking')
    if test is not None and listed:
      if ranking_threshold is None and chosen.task == 'ranking':
        ranking_threshold = popular.relevant_from(table)
      report['ranking'] = measuring.lists(
        recorder,
        certificate,
        learned,
        test,
        data if mesh is None or not mesh.is_multi_process else None,
        ranking_k,
        ranking_threshold,
        progress=progress,
      )
    lap('accuracy measured')
    report['seconds'] = round(time.monotonic() - began, 3)
    run = Run(
      whole=recorder.model,
      guarantee=made.guarantee,
      certificate=certificate,
      metrics=report,
      train=learned,
      folder=folder,
    )
    if folder is not None:
      run.write(folder)
      lap('files written')
    return run


def _identity_of(key: jax.Array, given: jax.Array | int | None) -> Any:
  """What a run that goes on must have the same of: not the key itself."""
  if given is None or isinstance(given, int):
    return given
  return files.sha256(keys.key_words(key))


def _with_item_features(
  chosen: Chosen, ratings: Ratings, features: np.ndarray, public: Any
) -> System:
  """The system with means around public facts of items."""
  if public is not None:
    raise ValueError(
      'item_features and public_ratings both say what means of items are '
      'around: give one of them'
    )
  if len(np.shape(features)) != 2 or len(features) != ratings.num_items:
    raise ValueError(
      f'item_features of shape {np.shape(features)} must have a row for each '
      f'of the {ratings.num_items} items'
    )
  return with_facts(chosen.name, chosen.system, features)


def _stated_features(name: str, features: np.ndarray | None) -> dict[str, str]:
  return {} if features is None else {name: f'sha256 {files.sha256(features)}'}
