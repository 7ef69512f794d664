"""Random calls of the library and its scripts, and what they leave behind."""

from __future__ import annotations

import functools
import gc
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

import dpmf_jax
from dpmf_jax import accounting, auditing, plans
from dpmf_jax.accounting import events
from dpmf_jax.plans import selection
from dpmf_jax.ratings import writing
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import Ratings

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What the number of steps comes from.
_COUNTS = ('steps', 'iterations', 'epochs', 'rounds', 'sweeps', 'pmf_steps')
_COMMAND_EVERY = 15

# What comes of a call, in a word.
Call = Callable[[random.Random], str]


def soak(
  minutes: float,
  folder: pathlib.Path,
  rng: random.Random,
  *,
  systems: Sequence[str],
) -> list[str]:
  """What was not flat, or ended in another way than it should."""
  programs = Counter()
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: programs.update([event])
  )
  end = time.monotonic() + 60 * minutes
  calls = _calls(folder, systems)
  commands = _commands(folder)
  # All of them first, which fills caches; then any.
  warm = list(calls)
  counts, wrong, seen = Counter(), [], []
  while warm or time.monotonic() < end or len(seen) < 2 * _COMMAND_EVERY:
    alone = len(seen) % _COMMAND_EVERY == 0
    warming = bool(warm)
    call = warm.pop() if warming else rng.choice(commands if alone else calls)
    counts[_outcome(call, rng, wrong)] += 1
    if not warming:
      seen.append(_state(programs))
    elif not warm:
      left = (end - time.monotonic()) / 60
      print(f'all {len(calls)} calls made once, {left:.0f} minutes left')
  print(
    f'{counts.total()} calls, {len(seen)} of them measured: '
    + ', '.join(f'{n:,} {what}' for what, n in sorted(counts.items()))
  )
  if 2 * counts['refused'] > counts.total():
    wrong.append('most calls were refused')
  return wrong + _not_flat(seen)


def _outcome(call: Call, rng: random.Random, wrong: list[str]) -> str:
  """What came of a call, where a refusal in one line is fine."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      return call(rng)
  except ValueError as error:
    if len(str(error).splitlines()) == 1:
      return 'refused'
    wrong.append(repr(error))
  except Exception as error:
    wrong.append(repr(error))
  return 'failed'


# Calls.


def table(users: int, items: int, ratings: int) -> Ratings:
  """Made-up ratings, always the same."""
  return synthetic(
    num_users=users, num_items=items, num_ratings=ratings, rank=3, seed=1
  )


def _calls(folder: pathlib.Path, systems: Sequence[str]) -> list[Call]:
  """One for each system and variant, and some of each other kind."""
  tables = [table(60, 40, 700), table(90, 30, 900)]
  # What shapes depend on is not drawn, so that each is compiled beforehand.
  trained = [
    functools.partial(_train, name, variant, ratings, fraction, folder)
    for name in systems
    for variant in plans.SPECS[name].variants
    for ratings in tables
    for fraction in (0, 0.2)
  ]
  return [*trained, _audit, _account]


def _train(name, variant, ratings, fraction, folder, rng: random.Random) -> str:
  """Trains, serves, writes, reads and folds in."""
  spec = plans.SPECS[name]
  known = selection.fields(spec)
  settings: dict[str, Any] = {c: 2 for c in _COUNTS if c in known}
  if 'epsilon' in known:
    settings['epsilon'] = rng.uniform(0.5, 4)
  if spec.personalized:
    ratings = with_epsilon(ratings, settings.get('epsilon', 1.0))
  place = folder / 'trained'
  ledger = None
  if variant == 'sound' and rng.random() < 0.5:
    ledger = {'ledger': folder / 'ledger.db', 'budget_epsilon': 9}
  try:
    run = dpmf_jax.train(
      ratings, system=name, variant=variant, test_fraction=fraction,
      output=rng.choice((None, place)), progress=False, **settings,
      **(ledger or {}),
    )  # fmt: skip
    users = [str(user) for user in rng.sample(list(ratings.user_ids), 3)]
    run.recommend(users, k=3)
    if place.exists():
      dpmf_jax.recommend(dpmf_jax.load_model(place), users, k=3)
    if run.release.factors.item is not None and name != 'ease':
      items = [str(item) for item in rng.sample(list(ratings.item_ids), 3)]
      new = dpmf_jax.fold_in(run.model, {'new': dict.fromkeys(items, 4)})
      dpmf_jax.recommend(new, 'new', k=3)
  finally:
    shutil.rmtree(place, ignore_errors=True)
    (folder / 'ledger.db').unlink(missing_ok=True)
  return 'trained'


def _audit(rng: random.Random) -> str:
  """One of the attacks of an audit, at its smallest."""
  attack = list(auditing.targets('gaussian_mf', 'sound'))[:1]
  key = dpmf_jax.random_key(rng.randrange(2**31))
  list(auditing.findings(key, attack, runs=400))
  return 'audited'


def _account(rng: random.Random) -> str:
  part = events.Gaussian(rng.uniform(1, 50), rng.randrange(1, 100))
  pure = events.Pure(rng.uniform(0.01, 1))
  accounting.epsilon(events.Composed((part, pure)), 10 ** rng.uniform(-9, -5))
  return 'accounted'


# Scripts.


def _commands(folder: pathlib.Path) -> list[Call]:
  """Each runs a script as a process of its own, on a model made here."""
  ratings, new, model = (folder / n for n in ('soak.csv', 'new.csv', 'model'))
  book, page = folder / 'book.db', folder / 'page.html'
  writing.write(table(60, 40, 700), ratings)
  new.write_text('user,item,rating\nme,3,5\nme,4,1\n')
  # Its factors are never all zero, so that items can be compared.
  run = {'system': 'gaussian_mf', 'rank': 4, 'steps': 5}
  dpmf_jax.train(
    ratings, epsilon=10, output=model, ledger=book, budget_epsilon=12,
    progress=False, **run,
  )  # fmt: skip
  report = f'--output={folder / "audit.json"}'
  small = '--test_fraction=0 --overwrite --output=' + str(folder / 'again')
  return [
    functools.partial(_command, folder, line.split())
    for line in (
      f'train --ratings={ratings} --epsilon=2 {small}',
      f'train --ratings={ratings} --epsilon=2 --unit=user {small}',
      f'train --ratings={ratings} --epsilon=2 --task=ranking {small}',
      f'recommend --model={model} --users=all --k=3',
      f'recommend --model={model} --ratings={new}',
      f'recommend --model={model} --similar_to=3,4',
      f'recommend --model={model} --page={page}',
      f'account --certificate={model} --html={page}',
      f'account --ledger={book}',
      f'account --ledger={book} --format=html',
      'account --system=power_mf --epsilon=2 --delta=1e-6',
      f'audit --system=gaussian_mf --variant=sound --runs=400 {report}',
      'fetch_data --dataset=synthetic-small',
      # federated.worker, two of them, and federated.recommender.
      f'trial --ratings={ratings} --transport=local --nodes=2 --rounds=2 '
      f'--rank=2 --output={folder / "trial"} --overwrite',
    )
  ]


def _command(folder: pathlib.Path, words: Sequence[str], _) -> str:
  """Runs a script, which must end with 0 and leave nothing in TMPDIR."""
  temporary = folder / 'temporary'
  temporary.mkdir(exist_ok=True)
  room = 'benchmarks.federated' if words[0] == 'trial' else 'launch'
  done = subprocess.run(
    [sys.executable, '-m', f'{room}.{words[0]}', *words[1:]],
    cwd=ROOT,
    env=os.environ | {'TMPDIR': str(temporary)},
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    raise RuntimeError(f'{" ".join(words)}: {done.stderr}')
  if left := os.listdir(temporary):
    raise RuntimeError(f'{" ".join(words)} left {left} in TMPDIR')
  return 'scripts'


# What is left behind.


def _state(programs: Counter) -> dict[str, float]:
  """What a process has now."""
  gc.collect()
  bounded, unbounded = _cached()
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return {
    'resident memory, MB': pages * os.sysconf('SC_PAGE_SIZE') / 1e6,
    'file descriptors': len(os.listdir('/proc/self/fd')),
    'threads': len(os.listdir('/proc/self/task')),
    'arrays of JAX': len(jax.live_arrays()),
    'programs compiled': programs['/jax/core/compile/backend_compile_duration'],
    'entries of caches without a bound': unbounded,
    'entries of caches with one (may fill up)': bounded,
  }


def _cached() -> tuple[int, int]:
  """How much is in the library's caches: with a bound, and without."""
  bounded = unbounded = 0
  for found in gc.get_objects():
    if not isinstance(found, functools._lru_cache_wrapper):
      continue
    if not (found.__module__ or '').startswith('dpmf_jax'):
      continue
    info = found.cache_info()
    if info.maxsize is None:
      unbounded += info.currsize
    else:
      bounded += info.currsize
  return bounded, unbounded


def _not_flat(seen: Sequence[dict[str, float]]) -> list[str]:
  """Prints all slopes; what grew by more than 2% or one is returned."""
  wrong, rows = [], []
  half = seen[len(seen) // 2 :]
  for name in seen[0]:
    values = np.array([state[name] for state in half])
    slope = np.polyfit(np.arange(len(values)), values, 1)[0]
    growth = slope * len(values)
    rows.append(
      [name, *(f'{x:,.1f}' for x in (seen[0][name], values[0], values[-1]))]
      + [f'{100 * slope:.3f}']
    )
    if growth > max(1, 0.02 * values.mean()) and 'may fill up' not in name:
      wrong.append(f'{name} grew by {growth:.1f} in {len(values)} calls')
  print_table(('what', 'first', 'half', 'last', 'per 100 calls'), rows)
  return wrong


def print_table(head: Sequence[str], rows: Iterable[Sequence]) -> None:
  """Prints rows under a head, as Markdown."""
  for row in (head, ['---'] * len(head), *rows):
    print('| ' + ' | '.join(map(str, row)) + ' |')
