"""Runs that are killed at every point: the same call ends them, once."""

import contextlib
import os
import sys
import warnings

import numpy as np
import pytest

import dpmf_jax
from dpmf_jax import files, keys, plans
from dpmf_jax.accounting import ledger as ledgers
from dpmf_jax.plans import selection
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.runs import folders

# What asks the file system for something, and which arguments are paths.
CALLS = {
  'open': 1,
  'os.rename': 2,
  'os.remove': 1,
  'os.mkdir': 1,
  'os.chmod': 1,
}


class KilledError(BaseException):
  """In place of the signal: nothing may handle it."""


class Killer:
  """Ends what runs before one of its calls to the file system.

  From then on every call fails and does nothing, as after a SIGKILL: what
  `finally` would clean up stays.
  """

  def __init__(self):
    self.folder, self.last, self.calls = None, None, 0
    sys.addaudithook(self._hook)  # for as long as the process lives

  def _hook(self, event, args):
    if self.folder is None or event not in CALLS:
      return
    paths = [
      p for p in args[: CALLS[event]] if isinstance(p, str | os.PathLike)
    ]
    if not any(os.fspath(p).startswith(self.folder) for p in paths):
      return
    if self.last is not None and self.calls >= self.last:
      raise KilledError
    self.calls += 1

  @contextlib.contextmanager
  def after(self, calls, folder):
    """Lets so many calls about `folder` pass; all of them if None."""
    self.folder, self.last, self.calls = str(folder), calls, 0
    try:
      yield self
    finally:
      self.folder = None


@pytest.fixture(scope='session')
def killer():
  return Killer()


# Few files and few steps: there are two runs for each point.
QUICK = {
  'system': 'ranking_mf', 'unit': 'user', 'epsilon': 2, 'rank': 1, 'rounds': 1,
  'test_fraction': 0, 'checkpoint_seconds': 0, 'report_every': 1,
  'progress': False,
}  # fmt: skip
# What the number of steps comes from.
COUNTS = ('steps', 'iterations', 'epochs', 'rounds', 'sweeps')


# Every so many points: all of them take a minute.
EVERY = pytest.mark.parametrize(
  'every', [12, pytest.param(1, marks=(pytest.mark.slow, pytest.mark.long))]
)


def names(folder):
  return {str(path.relative_to(folder)) for path in folder.rglob('*')}


def killed(killer, calls, folder, **arguments):
  """Whether the run was killed after so many calls."""
  with contextlib.suppress(KilledError), killer.after(calls, folder.parent):
    dpmf_jax.train(output=folder, **arguments)
    return False
  return True


def points(killer, folder, **arguments):
  """How many calls a run makes, whose folder is there afterwards."""
  with killer.after(None, folder) as seen:
    dpmf_jax.train(output=folder, **arguments)
  return seen.calls


def check_point(killer, calls, whole, folder, **arguments):
  """Kills a run there and ends it; `whole` is what it should come to."""
  folder.parent.mkdir()
  assert killed(killer, calls, folder, **arguments)
  dpmf_jax.train(output=folder, **arguments)
  assert names(folder) == names(whole), calls
  for name in ('model.safetensors', 'ids.json'):
    assert (folder / name).read_bytes() == (whole / name).read_bytes(), calls


@EVERY
def test_it_goes_on_to_the_same_files(killer, tmp_path, small_ratings, every):
  run = {'ratings': small_ratings, 'key': 3, **QUICK}
  whole = tmp_path / 'whole'
  calls = points(killer, whole, **run)
  assert calls > 30
  for point in range(0, calls, every):
    folder = tmp_path / str(point) / 'run'
    check_point(killer, point, whole, folder, **run)


@pytest.mark.slow
@pytest.mark.parametrize('name', plans.NAMES)
def test_so_does_every_system(killer, tmp_path, small_ratings, name):
  spec = plans.SPECS[name]
  known = selection.fields(spec)
  small = {count: 2 for count in COUNTS if count in known}
  private = {'epsilon': 2} if 'epsilon' in known else {}
  ratings = small_ratings
  if spec.personalized:
    ratings = with_epsilon(ratings, 1.0)
  run = {
    'ratings': ratings, 'key': 3, 'system': name, 'test_fraction': 0,
    'variant': next(iter(spec.variants), None), 'checkpoint_seconds': 0,
    'progress': False, **private, **small,
  }  # fmt: skip
  whole = tmp_path / 'whole'
  calls = points(killer, whole, **run)
  for point in np.random.default_rng(0).choice(calls, 3, replace=False):
    folder = tmp_path / str(point) / 'run'
    check_point(killer, int(point), whole, folder, **run)


@EVERY
@pytest.mark.parametrize('overwrite', [False, True])
def test_it_is_charged_once_wherever_it_is_killed(
  killer, tmp_path, small_ratings, overwrite, every
):
  run = {'ratings': small_ratings, **QUICK}
  calls = points(killer, tmp_path / 'whole', **run)
  for point in range(1, calls, every):
    folder = tmp_path / str(point) / 'run'
    folder.parent.mkdir()
    if overwrite:  # a finished run, of which nothing is known here
      dpmf_jax.train(output=folder, **run)
    charged = run | {
      'ledger': folder.parent / 'ledger', 'budget_epsilon': 3,
      'overwrite': overwrite,
    }  # fmt: skip
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # that a finished run is replaced
      assert killed(killer, point, folder, **charged)
      dpmf_jax.train(output=folder, **charged)
    (entry,) = ledgers.entries(folder.parent / 'ledger')
    certificate = files.read_json(folder / folders.FINISHED)
    assert entry.id == certificate['run']


@EVERY
def test_no_key_is_left_once_all_steps_are_done(
  killer, tmp_path, small_ratings, every
):
  run = {'ratings': small_ratings, 'key': 3, **QUICK}
  words = keys.key_words(keys.random_key(3)).tobytes()
  calls = points(killer, tmp_path / 'whole', **run)
  left = []
  for point in range(0, calls, every):
    folder = tmp_path / str(point) / 'run'
    folder.parent.mkdir()
    assert killed(killer, point, folder, **run)
    found = [p.read_bytes() for p in folder.rglob('*') if p.is_file()]
    left.append(any(words in each for each in found))
    assert not (left[-1] and (folder / 'model.safetensors').exists())
  assert any(left)


def test_two_runs_do_not_share_a_folder(tmp_path, small_ratings):
  with (
    folders.opened(tmp_path / 'run'),
    pytest.raises(ValueError, match='run is being written by another process'),
  ):
    dpmf_jax.train(small_ratings, output=tmp_path / 'run', **QUICK)
  dpmf_jax.train(small_ratings, output=tmp_path / 'run', **QUICK)
