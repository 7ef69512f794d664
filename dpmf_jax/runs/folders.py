"""A training run as a folder: callbacks, checkpoint, and what is written.

Nothing is released before the last step. A run that is interrupted keeps its
key and state in `private/` and goes on with the same noise, so that its
budget is spent once. After the last step the key is dropped, and the state
kept until everything is written: killed at any point, a run goes on to the
same files when the same call is made again.

With a ledger the order is: key and run id to the disk, then the ledger's row
with that id, then the first step. A run that is killed after the first is
charged when it goes on, after the second it finds itself charged; and since
the id is in the file of the key, it never stands for other noise.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax import files
from dpmf_jax.certificates import SOURCES, validate, versions
from dpmf_jax.certificates.signatures import SIGNATURE
from dpmf_jax.keys import key_words, source_of, words_key
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.rows import Data
from dpmf_jax.serving import models
from dpmf_jax.training import Progress
from dpmf_jax.types import Guarantee, Release, System, released

FINISHED = 'certificate.json'  # written last: it marks a finished run
OUTPUTS = (
  'model.safetensors',
  'ids.json',
  'metrics.json',
  'learning_curve.png',
  'error_cdf.png',
  SIGNATURE,
  FINISHED,
)
_CHECKPOINT = 'private/checkpoint.safetensors'
_SEEN = 'private/seen.safetensors'
_UNRELEASED = 'private/unreleased.safetensors'
# All that a run writes; what tells that there is one comes last.
_FILES = (
  _SEEN,
  _UNRELEASED,
  models.USERS,
  *OUTPUTS[:-1],
  _CHECKPOINT,
  FINISHED,
)
# What the bits of a run depend on.
_VERSIONED = ('dpmf_jax', 'jax', 'jaxlib')


def digest(ratings: Ratings) -> str:
  """A hash of the ratings, to tell whether a run goes on with the same."""
  return files.sha256(ratings.user, ratings.item, ratings.value)


@contextlib.contextmanager
def opened(folder: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
  """Yields the output folder, made if need be, to this process alone.

  Its `private/` is for the owner only, and what killed writes left is gone.
  Raises ValueError where it holds a finished run or something else, unless
  `overwrite`, or where another process has it.
  """
  if not isinstance(folder, str | os.PathLike):
    raise ValueError(f'output={folder!r} must be the path of a folder')
  folder = Path(folder)
  if folder.exists() and not folder.is_dir():
    raise ValueError(f'output={folder} is a file, not a folder')
  private = folder / 'private'
  if folder.is_dir() and not overwrite:
    _check_free(folder)
  private.mkdir(parents=True, exist_ok=True, mode=0o700)
  os.chmod(private, 0o700)  # mkdir leaves a folder that exists as it is
  with locked(private, f'output={folder}'):
    if not overwrite:
      _check_free(folder)  # what another process has finished meanwhile
    for name in _FILES:
      for path in files.partial_files(folder / name):
        path.unlink()
    yield folder


def _check_free(folder: Path) -> None:
  """Raises ValueError where a run would meet another one, or other files."""
  # With a checkpoint the end of the run was not reached.
  if (folder / FINISHED).exists() and not interrupted(folder):
    raise ValueError(
      f'output={folder} holds a finished run; choose another folder or '
      'pass overwrite=True'
    )
  ours = {*OUTPUTS, 'private'}
  for name in OUTPUTS:
    ours.update(path.name for path in files.partial_files(folder / name))
  others = sorted(p.name for p in folder.iterdir() if p.name not in ours)
  if others:
    raise ValueError(
      f'output={folder} holds other files ({others[0]}, ...); choose an '
      'empty or new folder, or pass overwrite=True to write beside them'
    )


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
  """Keeps other processes out; the system opens it when this one dies."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield
  except BlockingIOError:
    raise ValueError(
      f'{name} is being written by another process; wait for it, or choose '
      'another folder'
    ) from None
  finally:
    os.close(handle)


def clear(folder: Path) -> None:
  """Removes the run in `folder`, and no other files."""
  if (folder / FINISHED).exists():
    warnings.warn(
      f'replacing the finished run in {folder}: if its model was ever '
      'published, its epsilon and that of this run add up',
      stacklevel=2,
    )
  # The certificate first: without it there is no finished run.
  for name in reversed(_FILES):
    (folder / name).unlink(missing_ok=True)


def restore(
  folder: Path,
  system: System,
  data: Data,
  key: jax.Array,
  settings: dict,
  *,
  overwrite: bool = False,
) -> tuple[jax.Array, tuple[int, Any] | None]:
  """The key of the run and where to start: from a checkpoint if there is one.

  Raises ValueError where the checkpoint is of a run with other settings, or of
  other versions: their noise, or what they make of it, may be another, and the
  certificate would speak of this one's. With `overwrite` it is left alone.
  """
  path = folder / _CHECKPOINT
  if not path.is_file():
    return key, None
  try:
    return _restored(path, system, data, key, settings)
  except ValueError:
    if overwrite:
      return key, None
    raise


def _restored(
  path: Path, system: System, data: Data, key: jax.Array, settings: dict
) -> tuple[jax.Array, tuple[int, Any]]:
  folder = path.parent.parent
  _, metadata = files.load_leaves(path)
  read = lambda name: files.parsed_json(
    metadata.get(name, '{}'), f'{path}, {name}'
  )
  saved = read('versions')
  for package, version in versioned().items():
    if (found := saved.get(package)) != version:
      raise ValueError(
        f'{folder} holds an interrupted run of {package} {found or "unknown"}, '
        f'this is {package} {version}; finish it with the version that began '
        'it, or begin a run of its own with another output, or with '
        'overwrite=True to drop it'
      )
  saved = read('settings')
  wanted = json.loads(json.dumps(settings))
  changed = sorted(
    name
    for name in saved.keys() | wanted.keys()
    if saved.get(name) != wanted.get(name)
  )
  if changed:
    name = 'system' if 'system' in changed else changed[0]
    was, now = _shown(name, saved.get(name), wanted.get(name))
    raise ValueError(
      f'{folder} holds an interrupted run with {was}, this one has {now}; use '
      'the same settings to finish it, another output, or overwrite=True to '
      'drop it'
    )
  state = jax.eval_shape(lambda key: system.init(key, data), key)
  like = {
    'key': key_words(key),
    'step': np.int32(0),
    'state': jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state),
  }
  saved = files.load_tree(path, like)
  state = jax.tree.map(jnp.asarray, saved['state'])
  if (source := metadata.get('source')) not in SOURCES:
    raise ValueError(f'{path}: does not say where its key is from')
  key = words_key(saved['key'], source)
  return key, (int(saved['step']), state)


def _shown(name: str, *values: Any) -> tuple[str, ...]:
  """Two values that differ, and of a config only what does."""
  if name == 'config':
    fields = [re.split(r'[(,] ?(?=[a-z]\w*=)', value[:-1]) for value in values]
    for pair in zip(*fields, strict=False):
      if len(set(pair)) > 1:
        return pair
  return tuple(f'{name}={value!r}' for value in values)


def versioned() -> dict[str, str]:
  """Versions of what the bits of a run depend on."""
  return {k: v for k, v in versions().items() if k in _VERSIONED}


def interrupted(folder: Path) -> bool:
  """Whether the folder holds a run that can go on."""
  return (folder / _CHECKPOINT).is_file()


def run_id(folder: Path | None) -> str:
  """The id of the interrupted run in the folder, or else a new one."""
  path = folder and folder / _CHECKPOINT
  metadata = files.load_leaves(path)[1] if path and path.is_file() else {}
  return metadata.get('run') or str(uuid.uuid4())


def checkpointer(
  folder: Path,
  key: jax.Array,
  settings: dict,
  *,
  run: str,
  steps: int,
  seconds: float,
  kept: Callable[[bool, Any], Any] = lambda due, state: state,
) -> Callable[[Progress], None]:
  """A callback that saves key and state at the start and every `seconds`.

  After the last of all `steps` it saves the state without the key: some words
  of no meaning are in its place. `kept` is told at every report whether the
  state is to be saved, and gives what is.
  """
  last = -math.inf

  def callback(report: Progress) -> None:
    nonlocal last
    words, ended = key_words(key), report.step == steps
    due = ended or time.monotonic() - last >= seconds
    state = kept(due, report.state)
    if not due:
      return
    if ended:
      words = np.frombuffer(secrets.token_bytes(words.nbytes), words.dtype)
    files.save_tree(
      folder / _CHECKPOINT,
      {
        'key': words,
        'step': np.int32(report.step),
        'state': state,
      },
      metadata={
        'settings': json.dumps(settings),
        'versions': json.dumps(versioned()),
        'run': run,
        'source': source_of(key),
      },
      mode=0o600,
    )
    last = time.monotonic()

  return callback


def charger(
  folder: Path | None, spend: Callable[[], Any], *, fresh: bool
) -> Callable[[Progress], None]:
  """A callback that charges the run before its first step, if it may run.

  It belongs right after the checkpointer. A `fresh` run that is refused has
  drawn no noise, so it is not kept as an interrupted one. Where a server does
  not answer any more the row may be there or not: the run is kept, with its id.
  """
  charged = False

  def callback(report: Progress) -> None:
    nonlocal charged
    if charged:
      return
    try:
      spend()
    except ValueError:  # refused, and nothing was written
      if fresh and folder is not None:
        _drop_checkpoint(folder)
      raise
    charged = True

  return callback


def write_release(folder: Path, release: Release, ids: dict[str, Any]) -> None:
  """Writes what may be published, from which `dpmf recommend` serves.

  Args:
    folder: which must be there.
    release: with item factors.
    ids: as `serving.models.ids_json` has them; without 'users' where they are
      not known or secret.
  """
  files.write_json(folder / 'ids.json', ids)
  files.save_tree(folder / 'model.safetensors', release)


def write_model(
  folder: Path, model: Release, guarantee: Guarantee, train: Ratings
) -> None:
  """Writes the release, the ids, and under private/ what must stay secret."""
  release = released(model, guarantee.released)
  covered = files.named_leaves(release)
  rest = {
    name: leaf
    for name, leaf in files.named_leaves(model).items()
    if name not in covered
  }
  if 'factors/user' in rest:  # without those who might be there
    rest['factors/user'] = rest['factors/user'][: len(train.user_ids)]
  if rest:
    files.save_tree(folder / _UNRELEASED, rest, mode=0o600)
  files.save_tree(folder / _SEEN, models.seen_leaves(train), mode=0o600)
  ids = models.ids_json(train)
  if 'user ids' in guarantee.secret:
    # Where whole users are protected, the list of them would tell.
    users = {'users': ids.pop('users')}
    files.write_json(folder / models.USERS, users, mode=0o600)
  write_release(folder, release, ids)


def finish(folder: Path, certificate: dict) -> None:
  """Writes the certificate, and drops the checkpoint, which ends the run.

  The certificate names the model that it is of by its SHA-256. If it is not
  valid, which raises ValueError, the run stays unfinished.
  """
  model = files.sha256(folder / 'model.safetensors')
  document = certificate | {'files': {'model.safetensors': model}}
  validate(document)
  files.write_json(folder / FINISHED, document)
  _drop_checkpoint(folder)


def _drop_checkpoint(folder: Path) -> None:
  (folder / _CHECKPOINT).unlink(missing_ok=True)
