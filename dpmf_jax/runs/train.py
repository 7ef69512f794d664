"""`train`: from ratings to a certified run, in one call."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from dpmf_jax import certificates, files, keys
from dpmf_jax.accounting import ledger as ledgers
from dpmf_jax.certificates import wording
from dpmf_jax.evaluation import popular
from dpmf_jax.plans import selection
from dpmf_jax.plans.spec import Task
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.priors import matched
from dpmf_jax.ratings.priors import public_prior as prior_of_public
from dpmf_jax.ratings.specification import AskedEpsilons
from dpmf_jax.ratings.splits import hold_out_last, random_split
from dpmf_jax.ratings.table import Ratings, with_public_ids
from dpmf_jax.rows import Data, device_mesh, training_data
from dpmf_jax.runs import (
  choosing,
  folders,
  logs,
  measuring,
  processes,
  recording,
  timing,
)
from dpmf_jax.runs.choosing import Chosen, Threshold
from dpmf_jax.runs.run import Run
from dpmf_jax.systems.item_facts import with_facts
from dpmf_jax.systems.public import with_public
from dpmf_jax.training import fit
from dpmf_jax.types import System

Split = Literal['random', 'last']
# What a certificate says of the second.
_LAST = {
  'split': 'last: the latest of each user is held out to measure accuracy; '
  'timestamps are used for that alone'
}
_READ = 'dpmf_jax.read and from_dataframe take it, and make Ratings for train'
# Names that people try -> what there is.
_ELSEWHERE = {
  'columns': _READ,
  'duplicates': _READ,
  'seed': 'key is the seed of noise, for experiments, split_seed that of the '
  'held-out ratings',
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
  test_fraction = _share(split, test_fraction)
  _check_evaluation(test_fraction, split_seed, ranking_k, ranking_threshold)
  _check_reports(report_every, checkpoint_seconds)
  if not isinstance(overwrite, bool):
    raise ValueError(f'overwrite={overwrite!r} must be True or False')
  _check_elsewhere(settings)
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
    _check_apart(ratings, public_ratings)
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
  if not processes.first():
    progress, curves, tensorboard = False, None, None
  _check_logs(chosen, curves, tensorboard, output, overwrite)
  lap('system chosen')
  if table.most_users and made.guarantee.unit != 'user':
    raise ValueError(
      f'num_users={table.most_users} is for what protects whole users, and '
      f'system={chosen.name} protects single ratings here: use user_ids'
    )
  first_key = _first_key(key)
  spend = _spend(chosen, table, first_key, ledger, budget_epsilon, output)
  folder_of = contextlib.nullcontext()
  if output is not None and processes.first():
    folder_of = folders.opened(output, overwrite=overwrite)
  with folder_of as folder:
    learned, test = table, None
    if test_fraction is None:
      learned, test = hold_out_last(table, seed=split_seed)
    elif test_fraction > 0:
      learned, test = random_split(table, test_fraction, seed=split_seed)
    mesh = device_mesh(devices)
    data = training_data(learned, mesh=mesh)
    test_rows = None if test is None else training_data(test, mesh=mesh).by_user
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
    further = _further(public or {}, known, chosen)
    # A hash of the file that features are from says more than one of an array.
    facts |= {
      **_stated_features('user_features', user_features),
      **_stated_features('item_features', item_features),
      **further,
    }
    if lists['users'] != wording.SECRET_COUNTED:
      facts['num_users'] = table.num_users
    identity = {
      **facts,
      'system': chosen.name,
      'config': repr(chosen.config or made.guarantee),
      'key': _identity_of(first_key, key),
      'ratings': processes.digest(folders.digest(learned)),
      'epsilons': _digest(learned.epsilon),
      'features': _digest(user_features),
      'public_ratings': stated,
    }
    processes.check_same(identity)

    recorder = recording.Recorder(
      made,
      data,
      test_rows,
      table.scale,
      task=chosen.task,
      rounds=chosen.plan.rounds,
    )
    first_key, run_id = _fitted(
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
    if processes.count() > 1:
      recorder.model = jax.device_get(recorder.model)
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


def _fitted(
  chosen: Chosen,
  data: Data,
  recorder: recording.Recorder,
  key: jax.Array,
  *,
  folder: Path | None,
  overwrite: bool,
  identity: dict[str, Any],
  spend: Callable[..., Any] | None,
  report_every: int,
  checkpoint_seconds: float,
  curves: str | Path | None,
  tensorboard: str | Path | None,
  progress: bool,
) -> tuple[jax.Array, str]:
  """The key and the id of the run, when all steps are done and recorded.

  Both are those of the interrupted run in `folder`, if there is one.
  """
  made, run_id = chosen.system, folders.run_id(None)
  start, callbacks = None, []
  if folder is not None:
    key, start = folders.restore(
      folder, made, data, key, identity, overwrite=overwrite
    )
    if start and progress:
      print(f'going on from step {start[0]} of {made.steps}')
    if overwrite and not start:
      if spend:
        spend(dry_run=True)  # before the run that was there is gone
      folders.clear(folder)
    run_id = folders.run_id(folder)
  like = lambda: jax.eval_shape(lambda key: made.init(key, data), key)
  key, run_id, start = processes.of_first(key, run_id, start, like)
  if folder is not None:
    callbacks.append(
      folders.checkpointer(
        folder,
        key,
        identity,
        run=run_id,
        steps=made.steps,
        seconds=checkpoint_seconds,
      )
    )
  if start is None:
    keys.begin(key)
  if spend and processes.first():
    charge = functools.partial(spend, entry_id=run_id)
    callbacks.append(folders.charger(folder, charge, fresh=start is None))
  # The other half drew masks for releases once: steps keep their noise.
  fit_key, _ = jax.random.split(key)
  bar, show = recording.progress(
    chosen.plan, recorder.curve, delta=chosen.delta, disable=not progress
  )
  with bar, logs.logged(recorder.curve, curves, tensorboard) as log:
    fit(
      made,
      fit_key,
      data,
      report_every=report_every,
      callbacks=(*callbacks, recorder, log, show),
      start=start,
    )
  return key, run_id


def _first_key(key: jax.Array | int | None) -> jax.Array:
  if isinstance(key, jax.Array):
    return key
  whole = isinstance(key, int | np.integer) and not isinstance(key, bool)
  if not (key is None or whole):
    raise ValueError(
      f'key={key!r} must be None, an integer as a seed, or a key of JAX'
    )
  return keys.random_key(key)


def _check_elsewhere(settings: Mapping[str, Any]) -> None:
  """Raises ValueError for what is no setting, but is said in another way."""
  for name in settings.keys() & _ELSEWHERE.keys():
    raise ValueError(
      f'{name}={settings[name]!r} is not an argument of train: '
      f'{_ELSEWHERE[name]}'
    )


def _share(split: str, fraction: float | None) -> float | None:
  """The part of the ratings that is held out; None is the last of each user."""
  if split not in ('random', 'last'):
    raise ValueError(f"split={split!r} must be 'random' or 'last'")
  if split == 'random':
    return 0.2 if fraction is None else fraction
  if fraction is not None:
    raise ValueError(
      f"test_fraction={fraction} is for split='random': 'last' holds out the "
      'last of each user'
    )
  return None


def _check_evaluation(
  fraction: float | None,
  seed: int,
  cutoffs: Sequence[int],
  threshold: float | None,
) -> None:
  if fraction is not None and not (
    _is_number(fraction, Real) and 0 <= fraction < 1
  ):
    raise ValueError(f'test_fraction={fraction!r} must be in [0, 1)')
  if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**64):
    raise ValueError(f'split_seed={seed!r} must be an integer in 0..2^64-1')
  if isinstance(cutoffs, int | str):
    raise ValueError(f'ranking_k={cutoffs!r} must be a list, such as [5, 10]')
  if not all(isinstance(k, int) and k >= 1 for k in cutoffs):
    shown = ','.join(map(str, cutoffs))
    raise ValueError(f'ranking_k={shown} must be numbers of at least 1')
  if cutoffs and fraction == 0:
    raise ValueError('ranking_k needs held-out ratings: test_fraction above 0')
  if not cutoffs and threshold is not None:
    raise ValueError(f'ranking_threshold={threshold} needs ranking_k')


def _check_reports(every: Any, seconds: Any) -> None:
  if every is not None and not (_is_number(every, int) and every >= 1):
    raise ValueError(f'report_every={every!r} must be an integer from 1')
  if not (_is_number(seconds, Real) and seconds >= 0):
    raise ValueError(f'checkpoint_seconds={seconds!r} must be at least 0')


def _check_logs(
  chosen: Chosen,
  curves: Any,
  tensorboard: Any,
  output: str | Path | None,
  overwrite: bool,
) -> None:
  given = {'curves': curves, 'tensorboard': tensorboard}
  given = {name: value for name, value in given.items() if value is not None}
  if not given:
    return
  if chosen.task == 'ranking':
    name, value = next(iter(given.items()))
    raise ValueError(
      f'{name}={value} is for errors of ratings, and system={chosen.name} '
      'makes lists, which are measured at the end: leave it out'
    )
  goes_on = output is not None and folders.interrupted(Path(output))
  logs.check(curves, tensorboard, output=output, replace=overwrite or goes_on)


def _is_number(given: Any, kind: type) -> bool:
  return isinstance(given, kind) and not isinstance(given, bool)


def _spend(
  chosen: Chosen,
  ratings: Ratings,
  key: jax.Array,
  ledger: str | Path | None,
  budget: Any,
  output: str | Path | None,
) -> Callable[..., Any] | None:
  """What puts this run into the ledger; None without one."""
  if ledger is None:
    if budget is not None:
      raise ValueError(
        f'budget_epsilon={budget} needs a ledger, where what is spent is put '
        'down'
      )
    return None
  if (source := keys.source_of(key)) != certificates.ENTROPY:
    raise ValueError(
      f'the key is for experiments ({source}): noise that whoever knows it can '
      'remove is no protection that a ledger could count; leave one of them out'
    )
  guarantee = chosen.system.guarantee
  return functools.partial(
    ledgers.spend,
    ledger,
    ledgers.proved_event(guarantee),
    budget_epsilon=budget,
    delta=chosen.delta or 0.0,
    unit=guarantee.unit,
    relation=guarantee.relation,
    dataset=ratings.name,
    digest=processes.digest(folders.digest(ratings)),
    system=chosen.name,
    variant=chosen.variant,
    what=os.path.abspath(output) if output else 'a run without a folder',
  )


def _identity_of(key: jax.Array, given: jax.Array | int | None) -> Any:
  """What a run that goes on must have the same of: not the key itself."""
  if given is None or isinstance(given, int):
    return given
  return _digest(keys.key_words(key))


def _further(
  public: Mapping[str, str], known: set[str], chosen: Chosen
) -> Mapping[str, str]:
  """`public`, none of which is said already, maybe in another way."""
  if chosen.spec:
    known = known | selection.fields(chosen.spec)
  if twice := sorted(public.keys() & known):
    raise ValueError(
      f'public has {twice[0]!r}, which the certificate says itself: use '
      'another name'
    )
  return public


def _check_apart(ratings: Any, public: Any) -> None:
  """Refuses ratings that are given as private and as public, by name alone."""
  named = all(isinstance(x, str | os.PathLike) for x in (ratings, public))
  if public is ratings or (named and os.fspath(ratings) == os.fspath(public)):
    raise ValueError(
      'public_ratings are the ratings themselves, which are private: give '
      'others, that anyone may see'
    )


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
  digest = _digest(features)
  return {name: f'sha256 {digest}'} if digest else {}


def _digest(array: Any) -> str | None:
  if array is None:
    return None
  return files.sha256(np.ascontiguousarray(array).tobytes())
