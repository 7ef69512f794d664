"""`train`: from ratings to a certified run, in one call."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from dpmf_jax import accounting, certificates, keys, plans
from dpmf_jax.accounting import ledger as ledgers
from dpmf_jax.certificates import wording
from dpmf_jax.evaluation import metrics, ranking
from dpmf_jax.plans import selection
from dpmf_jax.plans.spec import Plan, Spec, Task
from dpmf_jax.ratings.given import ratings_of
from dpmf_jax.ratings.specification import AskedEpsilons, summary
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.table import Ratings, with_public_ids
from dpmf_jax.rows import Data, Rows, device_mesh, training_data
from dpmf_jax.runs import folders, recording
from dpmf_jax.runs.run import Run
from dpmf_jax.systems import build
from dpmf_jax.training import fit
from dpmf_jax.types import Factors, Release, System

_READ = 'dpmf_jax.read and from_dataframe take it, and make Ratings for train'
# Names that people try -> what there is.
_ELSEWHERE = {
  'columns': _READ,
  'duplicates': _READ,
  'seed': 'key is the seed of noise, for experiments, split_seed that of the '
  'held-out ratings',
}

Threshold = float | Literal['mean', 'max', 'best']
# Of lists, where nothing else is asked for: their length, and the part of the
# scale from which on a held-out rating is one that should have been listed.
_LISTED = 10
_RELEVANT = 2 / 3


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
  user_ids: Sequence[Any] | None = None,
  item_ids: Sequence[Any] | None = None,
  num_users: int | None = None,
  user_features: np.ndarray | None = None,
  threshold: Threshold | None = None,
  asked: AskedEpsilons | None = None,
  test_fraction: float = 0.2,
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
      item and rating, a sparse [U, I] matrix, or the name of a data set.
    epsilon: how much privacy loss is allowed; smaller is more private.
    delta: of the guarantee; 1e-6 by default.
    task: what lists are judged by: 'rating' (the default) predicts ratings,
      'ranking' says which items come first. A system by name has its own.
    system: 'auto' chooses one by public facts; or a name of
      `dpmf_jax.plans.NAMES`; or a `System` of your own, whose guarantee is
      then called stated, not proved.
    variant: 'sound' (the default), 'paper' or 'none'.
    unit: what is protected, 'rating' (the default) or 'user', where the system
      leaves the choice.
    scale: smallest and largest rating that can be given, a public fact; 1 to 5
      by default where the ratings do not say it.
    user_ids, item_ids: every id that there is, rated or not, made without
      looking at the ratings. Without them that an id has a rating is not
      protected.
    num_users: where whole users are protected, instead of `user_ids`: as many
      as there may be, not counted in the ratings.
    user_features: [U, F] public facts of users in the order of
      `ratings.user_ids`, for systems that take them.
    threshold: personalised systems, in place of epsilon: the epsilon that
      noise is made for, or a rule for it that looks at `asked`.
    asked: personalised systems: the public distribution of epsilons that may
      be asked for. Those of the ratings are `ratings.epsilon`.
    test_fraction: part of the ratings held out to measure accuracy.
    split_seed: public seed of that split.
    ranking_k: lengths of lists, for ranking metrics.
    ranking_threshold: the least rating that counts as relevant in them.
    key: None draws one from the operating system. A number is a seed, and a
      key of one's own is as good as its source: both are FOR EXPERIMENTS, and
      the certificate says so. One of `random_key()` is for a single run.
    output: a folder to write. A run that was interrupted goes on from there
      when the same call is made again.
    overwrite: replace the run that is in `output`.
    ledger: file in which everything spent on this data is put down.
    budget_epsilon: the most that all runs in the ledger may cost together, or
      'unlimited'; needed at its first use only.
    devices: how many to use; all by default.
    report_every: steps between points of the curve; 25 points by default.
    checkpoint_seconds: least time between two checkpoints in `output`.
    progress: whether to show a bar.
    public: further public facts, for the certificate.
    **settings: of the system; see docs/systems.md.

  Privacy: the certificate says what is covered. With a ledger the run is put
  down there before any noise is drawn, and refused (BudgetExceeded) if it
  would cost too much.
  """
  began = time.monotonic()
  _check_evaluation(test_fraction, split_seed, ranking_k, ranking_threshold)
  if not isinstance(overwrite, bool):
    raise ValueError(f'overwrite={overwrite!r} must be True or False')
  _check_elsewhere(settings)
  table = with_public_ids(
    ratings_of(ratings, scale=scale),
    users=user_ids,
    items=item_ids,
    num_users=num_users,
  )
  given = {'epsilon': epsilon, 'unit': unit, **settings}
  chosen = _chosen(
    system, given, task, variant, delta, threshold, asked, table, user_features
  )
  made = chosen.system
  if chosen.task == 'ranking' and test_fraction > 0:
    ranking_k = ranking_k or (_LISTED,)
    low, high = table.scale
    liked = low + _RELEVANT * (high - low)
    # Of clicks, which are all alike, every one counts.
    if ranking_threshold is None and (table.value >= liked).any():
      ranking_threshold = liked
  if table.most_users and made.guarantee.unit != 'user':
    raise ValueError(
      f'num_users={table.most_users} is for what protects whole users, and '
      f'system={chosen.name} protects single ratings here: use user_ids'
    )
  first_key = _first_key(key)
  spend = _spend(chosen, table, first_key, ledger, budget_epsilon, output)
  folder = None
  if output is not None:
    if spend and overwrite:
      spend(dry_run=True)  # before the run that was there is gone
    folder = folders.prepare(output, overwrite=overwrite)

  learned, test = table, None
  if test_fraction > 0:
    learned, test = random_split(table, test_fraction, seed=split_seed)
  mesh = device_mesh(devices)
  data = training_data(learned, mesh=mesh)
  test_rows = None if test is None else training_data(test, mesh=mesh).by_user
  lists = certificates.id_lists(table, made.guarantee)
  facts = {
    'dataset': table.name,
    'num_items': table.num_items,
    'test_fraction': test_fraction,
    'split_seed': split_seed,
    'devices': 1 if mesh is None else mesh.size,
    **({} if threshold is None else {'threshold': str(threshold)}),
  }
  further = _further(public or {}, {*facts, 'num_users'}, chosen)
  # A hash of the file that features are from says more than one of an array.
  facts |= {**_stated_features(user_features), **further}
  if lists['users'] != wording.SECRET_COUNTED:
    facts['num_users'] = table.num_users
  identity = {
    **facts,
    'system': chosen.name,
    'config': repr(chosen.config or made.guarantee),
    'key': _identity_of(first_key, key),
    'ratings': folders.digest(learned),
    'epsilons': _digest(learned.epsilon),
    'features': _digest(user_features),
  }

  start, run_id = None, folders.run_id(folder)
  callbacks: list[Callable] = []
  if folder is not None:
    first_key, start = folders.restore(folder, made, data, first_key, identity)
    if start and progress:
      print(f'going on from step {start[0]} of {made.steps}')
    callbacks.append(
      folders.checkpointer(
        folder, first_key, identity, run=run_id, seconds=checkpoint_seconds
      )
    )
  if start is None:
    keys.begin(first_key)
  if spend:
    charge = functools.partial(spend, entry_id=run_id)
    callbacks.append(folders.charger(folder, charge, fresh=start is None))
  # The other half drew masks for releases once: steps keep their noise.
  fit_key, _ = jax.random.split(first_key)
  recorder = recording.Recorder(
    made, data, test_rows, table.scale, task=chosen.task
  )
  bar, show = recording.progress(
    chosen.plan, recorder.curve, delta=chosen.delta, disable=not progress
  )
  with bar:
    fit(
      made,
      fit_key,
      data,
      report_every=report_every or max(1, -(-made.steps // 25)),
      callbacks=(*callbacks, recorder, show),
      start=start,
    )

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
  )
  report = _facts(chosen, recorder, learned, test)
  if chosen.task == 'rating':
    report |= _accuracy(recorder, data.by_user, test_rows, learned, test)
  report |= {
    'status': certificate['status'],
    'epsilon': certificate['epsilon'],
    'delta': certificate['delta'],
    'seed': int(key) if isinstance(key, int | np.integer) else None,
  }
  if test is not None and ranking_k:
    measured = functools.partial(
      ranking.ranking_metrics,
      train=learned,
      test=test,
      k=ranking_k,
      threshold=ranking_threshold,
    )
    report['ranking'] = measured(jax.device_get(recorder.model)) | {
      'threshold': ranking_threshold,
      'baselines': {
        name: measured(model)
        for name, model in _popular(certificate, learned, data).items()
      },
    }
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
  return run


def _popular(
  certificate: dict[str, Any], train: Ratings, data: Data
) -> dict[str, Release]:
  """What gives everybody the same list: counts, and with the noise of epsilon.

  Privacy: for the curator alone, as all metrics. The noise of the second, of a
  run of its own, is there to compare with.
  """
  counts = np.bincount(train.item, minlength=train.num_items)
  ones = np.ones((train.num_users, 1), np.float32)
  item = counts[:, None].astype(np.float32)
  found = {'popularity': Release(Factors(ones, item), np.float32(0))}
  if not certificate['epsilon']:
    return found
  # Of the curator, or of the clients where there is none.
  system, given = 'ranking_mf', {'unit': certificate['unit']}
  if certificate['system'] == 'local_ranking':
    system, given = 'local_ranking', {}
  try:
    selected = selection.selected(
      system,
      {**given, 'epsilon': certificate['epsilon']},
      delta=certificate['delta'],
      scale=train.scale,
      rank=0,
    )
    config = selected.config
    if selected.spec.resolved:
      resolved = selected.spec.resolved
      config = resolved(config, train.num_users, train.num_items)
    noisy = build(system, config)
    state = fit(noisy, keys.random_key(), data)
  except ValueError:  # no such noise for this budget, or for so many users
    return found
  name = 'noisy popularity, same budget'
  return found | {name: jax.device_get(noisy.model(state, data))}


def _accuracy(
  recorder: recording.Recorder,
  rows: Rows,
  test_rows: Rows | None,
  train: Ratings,
  test: Ratings | None,
) -> dict[str, Any]:
  """What metrics.json has of errors of predicted ratings."""
  curve, scale = recorder.curve, train.scale
  errors = metrics.error_grid(scale)
  shares = {
    part: metrics.error_cdf(each, recorder.model, errors, scale).tolist()
    for part, each in (('train', rows), ('test', test_rows))
    if each is not None
  }
  return {
    'train_rmse': curve[-1]['train_rmse'],
    'test_rmse': curve[-1].get('test_rmse'),
    'baselines': {} if test is None else metrics.baselines(train, test),
    'error_cdf': {'errors': errors.tolist(), **shares},
  }


def _facts(
  chosen: _Chosen,
  recorder: recording.Recorder,
  train: Ratings,
  test: Ratings | None,
) -> dict[str, Any]:
  """What metrics.json has of the run itself."""
  found = {
    'note': 'computed from the ratings without noise: not covered by the '
    'certificate, for the curator only',
    'system': chosen.name,
    'variant': chosen.variant,
    'task': chosen.task,
    'steps': chosen.system.steps,
    'num_train': len(train),
    'num_test': 0 if test is None else len(test),
    'curve': recorder.curve,
  }
  own = chosen.system.personal
  if own and train.epsilon is not None:
    found['accounted_epsilons'] = _spread(own.accounted(train.epsilon))
  if chosen.spec and chosen.spec.traffic:
    # Bytes of the mean client in a round.
    found['communication'] = chosen.spec.traffic(
      chosen.config,
      num_users=train.num_users,
      num_items=train.num_items,
      num_ratings=len(train),
    )
  return found


class _Chosen(NamedTuple):
  """A system, and what is known of it."""

  name: str
  variant: str
  system: System
  plan: Plan
  delta: float | None
  config: Any = None
  spec: Spec | None = None
  features: tuple[int, ...] = ()  # what the plan took besides the config

  @property
  def task(self) -> Task:
    return self.spec.task if self.spec else 'rating'


def _chosen(
  asked_for: str | System,
  given: dict[str, Any],
  task: Task | None,
  variant: str | None,
  delta: float | None,
  threshold: Threshold | None,
  asked: AskedEpsilons | None,
  ratings: Ratings,
  features: np.ndarray | None,
) -> _Chosen:
  """What to run on these ratings."""
  if isinstance(asked_for, System):
    if named := [name for name, value in given.items() if value is not None]:
      raise ValueError(
        f'{named[0]}={given[named[0]]} is a setting of systems by name; the '
        'system given has its own'
      )
    stated = plans.as_stated(asked_for.guarantee)
    own = asked_for._replace(guarantee=stated)
    delta = selection.DELTA if delta is None else delta
    return _Chosen('own system', 'own', own, Plan(stated, own.steps), delta)
  name, more = asked_for, {}
  if name == 'auto':
    name, given, more = selection.automatic(
      given,
      task=task or 'rating',
      delta=delta,
      num_users=ratings.num_users,
      num_items=ratings.num_items,
    )
  spec = selection.spec_of(selection.run_as(name, variant))
  if task not in (None, spec.task):
    raise ValueError(
      f'task={task} is not what system={name} is for, which is {spec.task}'
    )
  if ratings.epsilon is not None and not spec.personalized:
    raise ValueError(
      f'{ratings.name} has an epsilon for each rating, which system={name} '
      'does not read: use system=personalized_pmf, or ratings without them'
    )
  if threshold is not None:
    method = given.get('method') or getattr(spec.config, 'method', 'weights')
    given = given | {
      'epsilon': _threshold(threshold, asked, method, spec, given['epsilon'])
    }
  name, variant, spec, config = selection.selected(
    name, given, variant=variant, delta=delta, scale=ratings.scale, **more
  )
  if spec.resolved:
    config = spec.resolved(config, ratings.num_users, ratings.num_items)
  if features is not None and not spec.takes_features:
    raise ValueError(f'system={name} takes no user_features')
  taken = () if features is None else (features,)
  ranks = tuple(np.shape(each)[1] for each in taken)
  return _Chosen(
    name,
    variant,
    build(name, config, *taken),
    spec.plan(config, *ranks),
    getattr(config, 'delta', None),
    config,
    spec,
    ranks,
  )


def _threshold(
  rule: Threshold,
  asked: AskedEpsilons | None,
  method: Any,
  spec: Spec,
  epsilon: float | None,
) -> float:
  """The epsilon that noise is made for, without a look at ratings."""
  if not spec.personalized:
    raise ValueError(
      f'threshold={rule} is for personalized systems: system={spec.name} gives '
      'every rating the same epsilon'
    )
  if epsilon is not None:
    raise ValueError('pass only one of epsilon and threshold')
  if not isinstance(rule, str):
    return float(rule)
  if asked is None:
    raise ValueError(
      f'threshold={rule} needs the public distribution of epsilons (asked)'
    )
  return accounting.personal_threshold(
    asked.epsilon, rule, asked.share, method=method
  )


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


def _check_evaluation(
  fraction: float,
  seed: int,
  cutoffs: Sequence[int],
  threshold: float | None,
) -> None:
  real = isinstance(fraction, Real) and not isinstance(fraction, bool)
  if not (real and 0 <= fraction < 1):
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


def _spend(
  chosen: _Chosen,
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
    digest=folders.digest(ratings),
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
  public: Mapping[str, str], known: set[str], chosen: _Chosen
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


def _stated_features(features: np.ndarray | None) -> dict[str, str]:
  digest = _digest(features)
  return {'user_features': f'sha256 {digest}'} if digest else {}


def _digest(array: Any) -> str | None:
  if array is None:
    return None
  return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _spread(epsilons: np.ndarray) -> dict[str, Any]:
  """Of the epsilons that training ratings have: for the curator only."""
  values, counts = np.unique(epsilons, return_counts=True)
  share = counts / counts.sum()
  return summary(AskedEpsilons(values, share, 'the training ratings'))
