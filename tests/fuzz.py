"""Mutated input for every reader and decoder: only our own errors may come out.

  python -m tests.fuzz --seconds=3600 [--target=NAME ...] [--first=NUMBER]
    [--executions=NUMBER] [--limit=SECONDS] [--megabytes=NUMBER]

A target has inputs that are good, and a function that reads one. Each execution
takes a good input, changes it a few times and reads it. What is allowed is that
it is read, or an error of ours: a ValueError on one line that names the file.
Execution k of a target depends on k alone: what is found is found again by
--target and --first. Targets get the same time, so that fast ones are read more
often. One that takes the processor for longer than --limit is interrupted, and
that is a problem, too, as is a process that grows beyond --megabytes. Ctrl-C
ends it early.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import functools
import gzip
import io
import itertools
import json
import pathlib
import random
import resource
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing import util
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmf_jax import accounting, certificates, files, training
from dpmf_jax.accounting import encoding, ledger
from dpmf_jax.federated import checks, folders, journal, messages, sockets
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import RECOMMENDER, Node, Plan, read_plan
from dpmf_jax.federated.plan import write_plan as write_plan
from dpmf_jax.plans import SPECS
from dpmf_jax.ratings import attributes, formats, kept, specification, titles
from dpmf_jax.ratings.ids import DataError, OutsideScaleError
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.runs import folders as run_folders
from dpmf_jax.runs.train import train
from dpmf_jax.serving.models import load_model
from dpmf_jax.systems import made
from tests import fuzz_ledgers, fuzz_parties
from tests.mutations import (
  VALUES,
  Target,
  changed_bytes,
  changed_json,
  changed_leaves,
  file_target,
)

SCALE = (1.0, 5.0)
# Errors of ours; those of others that are ValueErrors, such as a broken UTF-8,
# say neither which file nor what to do.
OURS = (
  ValueError,
  DataError,
  OutsideScaleError,
  checks.RejectedError,
  checks.RefusedError,
  ledger.BudgetExceeded,
  OSError,  # of a database; those of files are more special
)


class TooLongError(BaseException):
  """An execution that does not end."""


def ratings_targets() -> Iterator[tuple[str, Target]]:
  lines = [b'1,10,4', b'1,11,5', b'2,10,1', b'x,12,3.5', b'003,10,2']
  table = b'\n'.join(lines)
  dated = b'user,item,rating,timestamp\n1,2,3,2005-09-06\n2,2,4,2005-09-07\n'
  quoted = b'"user","item","rating"\n"a ""b""","x,y",4\n"c","z",5\n'
  texts = {
    'text': [table, dated, quoted, gzip.compress(table), _zstd(table)],
    'u.data': [b'1\t10\t4\t881250949\n2\t11\t3\t881250950\n'],
    'ratings.dat': [b'1::10::4::978300760\n2::11::3::978302109\n'],
    'inter': [
      b'user_id:token\titem_id:token\trating:float\n1\ta\t4\n2\tb\t5\n'
    ],
    'netflix': [b'1:\n30,3,2005-09-06\n31,5,2005-05-13\n2:\n30,4,2005-10-19\n'],
    'dense': [b'4,,5\n,1,2\n', b'user,a,b\nu,4,\nv,,5\n'],
  }
  for kind, good in texts.items():
    for format in (kind, 'auto'):
      if (kind, format) == ('dense', 'auto'):
        continue
      read = functools.partial(formats.read, scale=SCALE, format=format)
      yield f'ratings, {kind} as {format}', file_target('r.txt', good, read)
  yield (
    'ratings, parquet',
    file_target(
      'r.parquet',
      _parquet(),
      functools.partial(formats.read, scale=SCALE),
    ),
  )
  yield 'ratings, kept', _kept_target(table)
  good = [
    b'movieId,title,year\n1,"Toy, Story",1995\n2,Heat &amp; Dust,1983\n',
    b'1|Toy Story (1995)|01-Jan-1995\n2|GoldenEye (1995)|x\n',
    b'1::Toy Story (1995)::Animation\n2::Jumanji (1995)::Fantasy\n',
    b'1,2003,Dinosaur Planet\n2,2004,Isle, of Man\n',
    b'item_id:token\tmovie_title:token_seq\n1\tToy Story\n2\tHeat\n',
  ]
  yield 'titles', file_target('titles.csv', good, titles.read_titles)
  good = [b'1\n2\n7\n', b'a\nb\nc d\n']
  yield (
    'ids',
    file_target(
      'ids.txt', good, functools.partial(formats.read_ids, role='item')
    ),
  )
  ratings = synthetic(num_users=3, num_items=4, num_ratings=8, seed=0)
  good = [b'user,epsilon\n1,0.5\n2,1\n3,2\n', b'1,.5\n2,1\n3,2\n']
  yield (
    'epsilons of users',
    file_target(
      'e.csv',
      good,
      lambda path: specification.from_user_table(
        ratings, specification.read_users(path), path
      ),
    ),
  )
  good = [b'user,item,rating,eps\n1,2,3,.5\n2,2,4,1\n']
  yield (
    'epsilons of ratings',
    file_target('e.csv', good, lambda path: formats.read_column(path, 'eps')),
  )
  good = [b'user,age,x\n1,20,.5\n2,30,1\n3,40,0\n', b'1,2\n2,3\n3,-4\n']
  yield (
    'features',
    file_target(
      'f.csv', good, functools.partial(attributes.read_user_features, ratings)
    ),
  )
  good = [
    b'1|24|M|technician|85711\n2|53|F|other|94043\n3|23|M|writer|32067\n',
  ]
  items = ''.join(
    f'{k}|T|d||u|' + '|'.join('01' * 9 + '0') + '\n' for k in range(1, 5)
  )

  def movielens(path: pathlib.Path) -> Any:
    (path.parent / 'u.item').write_text(items)
    return attributes.movielens(ratings, path.parent)

  yield 'attributes', file_target('u.user', good, movielens)


def _zstd(data: bytes) -> bytes:
  return pa.compress(data, codec='zstd', asbytes=True)


def _kept_target(ratings: bytes) -> Target:
  """Of the table that was kept when a file was read before."""

  def read(content: bytes, folder: pathlib.Path) -> Any:
    table = table_of(folder)
    whole = table.read_bytes()
    table.write_bytes(content)
    try:
      return again(folder)
    finally:
      table.write_bytes(whole)

  def table_of(folder: pathlib.Path) -> pathlib.Path:
    if not (folder / 'kept').exists():
      (folder / 'r.csv').write_bytes(ratings)
      again(folder)
    (table,) = (folder / 'kept').iterdir()
    return table

  def again(folder: pathlib.Path) -> Any:
    place, silent = folder / 'kept', lambda _: None
    return kept.read(folder / 'r.csv', place, say=silent, least=0, scale=SCALE)

  with tempfile.TemporaryDirectory() as name:
    good = [table_of(pathlib.Path(name)).read_bytes()]
  return Target(good, read, True, changed_bytes)


def _parquet() -> list[bytes]:
  good = []
  for user in ([1, 2, 2], ['a', 'b', 'b']):
    file = io.BytesIO()
    columns = {'user': user, 'item': [1, 1, 2], 'rating': [1.0, 5.0, 3.0]}
    pq.write_table(pa.table(columns), file)
    good.append(file.getvalue())
  return good


def run_targets(folder: pathlib.Path) -> Iterator[tuple[str, Target]]:
  """Of the files that a run writes, and reads."""
  ratings = synthetic(num_users=6, num_items=5, num_ratings=16, seed=0)
  settings = {'epsilon': 2, 'delta': 1e-6, 'key': 0, 'test_fraction': 0}
  cases = {
    'power_mf': {'rank': 2, 'rounds': 1, **settings},
    'ranking_mf': {'rank': 2, 'unit': 'user', **settings},
    'als': {'rank': 2, 'steps': 1, 'key': 0, 'test_fraction': 0},
  }
  good = []
  for system, given in cases.items():
    run = folder / system
    train(ratings, system=system, output=run, progress=False, **given)
    # Without hashes, or no changed model would be looked at.
    whole = certificates.read(run)
    files.write_json(run / 'certificate.json', whole | {'files': {}})
    good.append(json.dumps(whole).encode())
    for name in sorted(
      p.relative_to(run) for p in run.rglob('*') if p.is_file()
    ):
      if name.suffix in ('.json', '.safetensors') and name.stem != 'metrics':
        yield f'{name} of {system}', _model_target(run, name)
  yield (
    'certificate',
    file_target('c.json', good, certificates.read, changed_json),
  )
  data = training_data(ratings)
  for name, variant, more in (
    ('als', 'none', {'steps': 2}),
    ('gaussian_mf', 'sound', {'steps': 2, 'epsilon': 2.0, 'delta': 1e-6}),
  ):
    system = made(name, variant, scale=SCALE, rank=2, **more)
    yield (
      f'checkpoint of {name}',
      _checkpoint_target(folder, name, system, data),
    )


def _checkpoint_target(folder: pathlib.Path, name: str, system, data) -> Target:
  """Of a run that was interrupted, and goes on."""
  key, saved = jax.random.key(0), folder / f'interrupted {name}'
  (saved / 'private').mkdir(parents=True)
  keep = run_folders.checkpointer(
    saved, key, {'a': 1}, run='r', steps=9, seconds=0
  )
  training.fit(system, key, data, callbacks=[keep])
  (checkpoint,) = (saved / 'private').glob('checkpoint*')

  def restored(content: bytes, folder: pathlib.Path) -> Any:
    (folder / 'private').mkdir(exist_ok=True)
    (folder / 'private' / checkpoint.name).write_bytes(content)
    return run_folders.restore(folder, system, data, key, {'a': 1})

  return Target([checkpoint.read_bytes()], restored, True, changed_leaves)


def _model_target(run: pathlib.Path, name: pathlib.Path) -> Target:
  """Of one file of a model's folder, beside the others as they are."""

  def read(content: bytes, folder: pathlib.Path) -> Any:
    for path in run.rglob('*'):
      there = folder / path.relative_to(run)
      if path.is_dir():
        there.mkdir(exist_ok=True)
      elif not there.exists() and path.suffix != '.png':
        there.write_bytes(path.read_bytes())
    (folder / name).write_bytes(content)
    try:
      return load_model(folder)
    finally:
      (folder / name).unlink()

  changed = changed_json if name.suffix == '.json' else changed_leaves
  return Target([(run / name).read_bytes()], read, True, changed)


def example_plan() -> Plan:
  """Of a deployment of three users."""
  return Plan(
    run='00' * 16,
    system='untrusted_pmf',
    settings={
      'variant': 'paper',
      'relation': 'replace',
      'scale': [1.0, 5.0],
      'epsilon': 1.0,
      'rank': 2,
    },
    item_ids=('a', 'b'),
    nodes=(Node(0, 2), Node(2, 1)),
  )


def federated_targets(folder: pathlib.Path) -> Iterator[tuple[str, Target]]:
  plan = example_plan()
  write_plan(folder / 'plan.json', plan)
  good = [(folder / 'plan.json').read_bytes()]
  yield 'plan', file_target('plan.json', good, read_plan, changed_json)
  state = {'round': np.int32(1), 'answer': np.zeros(3, np.uint8)}
  folders.save(folder, plan, state)
  good = [(folder / 'state.safetensors').read_bytes()]
  yield (
    'state of a party',
    file_target(
      'state.safetensors',
      good,
      lambda path: folders.saved(path.parent, plan),
      changed_leaves,
    ),
  )
  book = journal.journal(folder, transcript=True)
  book.log('began', round=1)
  book.log('answered', round=1)
  book.keep('sent', 3, b'abc')
  book.keep('received', 3, b'defg')
  for name, read in (
    ('log.jsonl', journal.read_log),
    ('transcript.bin', lambda folder: list(journal.read_transcript(folder))),
  ):
    good = [(folder / name).read_bytes()]
    yield (
      name,
      file_target(name, good, lambda path, read=read: read(path.parent)),
    )
  item = np.zeros((2, 2), np.float32)
  good = [
    messages.to_bytes(
      Message(Kind.PUBLIC, 1, RECOMMENDER, (plan.run_words, item))
    ),
  ]
  shapes = ('items float32[I,D]',)

  def parsed(data: bytes, folder: pathlib.Path) -> Any:
    del folder
    messages.from_bytes(data)
    return checks.opened(data, plan, Kind.PUBLIC, RECOMMENDER, shapes)

  yield 'messages', Target(good, parsed, False, changed_bytes)
  yield 'frames of sockets', _socket_target()


def _socket_target() -> Target:
  """A worker that answers whatever came before."""
  folder = tempfile.mkdtemp(prefix='fuzz')  # paths of sockets are short
  # After the listener, which removes the socket when the process ends.
  util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-100)
  path = pathlib.Path(folder) / 'socket'
  serve = functools.partial(sockets.serve, path, lambda data: data[::-1])
  thread = threading.Thread(target=serve, daemon=True)
  thread.start()

  def read(data: bytes, folder: pathlib.Path) -> None:
    del folder
    while True:  # it is about to listen
      try:
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(path))
        break
      except OSError:
        link.close()
        if not thread.is_alive():
          raise
    with link, contextlib.suppress(OSError):  # it may have had enough
      link.sendall(data)
    assert sockets.asked(path, b'abc', 600) == b'cba'

  good = [
    struct.pack('!i', 3) + b'abc',
    struct.pack('!iQ', -1, 3) + b'abc',
    b'',
  ]
  return Target(good, read, False, changed_bytes)


def settings_targets() -> Iterator[tuple[str, Target]]:
  """Of every system's settings, and of events."""
  for name, spec in SPECS.items():
    for variant, preset in spec.variants.items():
      fields = spec.config.__dataclass_fields__
      common = {'scale': SCALE, 'epsilon': 1.0, 'delta': 1e-6}
      good = {k: v for k, v in common.items() if k in fields} | dict(preset)
      yield (
        f'settings of {name}, {variant}',
        Target(
          [good],
          lambda given, folder, spec=spec: spec.plan(spec.config(**given)),
          False,
          functools.partial(_changed_settings, sorted(fields)),
        ),
      )
  event = accounting.Composed(
    (
      accounting.Gaussian(noise_multiplier=2.0, count=3),
      accounting.Gaussian(noise_multiplier=1.0),
    )
  )
  yield (
    'events',
    Target(
      [json.dumps(encoding.encode(event)).encode()],
      lambda data, folder: encoding.decode(files.parsed_json(data, 'event')),
      False,
      changed_json,
    ),
  )


def _changed_settings(names, rng: random.Random, given: dict[str, Any]):
  given = dict(given)
  for _ in range(rng.randint(1, 2)):
    given[rng.choice(names)] = copy.deepcopy(rng.choice(VALUES))
  return given


def targets(folder: pathlib.Path) -> dict[str, Target]:
  """All of them by name; files that they need are in `folder`."""
  return {
    **dict(ratings_targets()),
    **dict(run_targets(folder)),
    **dict(federated_targets(folder)),
    **dict(fuzz_parties.targets(folder)),
    **dict(fuzz_ledgers.targets(folder)),
    **dict(settings_targets()),
  }


def problem(
  name: str, target: Target, number: int, folder: pathlib.Path
) -> str | None:
  """What is wrong with execution `number` of a target, or None."""
  rng = random.Random(f'{name} {number}')
  content = rng.choice(target.good)
  if target.changed and number:  # the first is as it is
    content = target.changed(rng, content)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      target.read(content, folder)
    return None
  except TooLongError:
    return f'takes too long\n{traceback.format_exc()}'
  except Exception as error:
    said = f'{type(error).__name__}: {str(error)[:300]!r}'
    if type(error) not in OURS or not number:
      return f'{said}\n{traceback.format_exc()}'
    if '\n' in str(error) or '\r' in str(error):
      return f'more than a line: {said}'
    if target.named and folder.name not in str(error):
      return f'does not name the file: {said}\n{traceback.format_exc()}'
    return None


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
  """Raises `TooLongError` inside after so much time of the processor."""

  def stop(number: int, frame: Any) -> None:
    raise TooLongError

  before = signal.signal(signal.SIGPROF, stop)
  signal.setitimer(signal.ITIMER_PROF, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def found(
  chosen: dict[str, Target],
  numbers: Iterator[int],
  work: pathlib.Path,
  limit: float = 0,
) -> Iterator[tuple[str, int, str | None, float]]:
  """(target, number, problem or None, seconds) of every execution.

  A limit of so many seconds of processors is for `main` alone: 0 is none.
  """
  for number in numbers:
    for place, (name, target) in enumerate(chosen.items()):
      folder = work / f'target{place}'
      folder.mkdir(exist_ok=True)
      start = time.monotonic()
      with limited(limit) if limit else contextlib.nullcontext():
        said = problem(name, target, number, folder)
      yield name, number, said, time.monotonic() - start


def fairly(
  chosen: dict[str, Target], first: int, work: pathlib.Path, limit: float
) -> Iterator[tuple[str, int, str | None, float]]:
  """As `found` without an end, where all targets get the same time."""
  each = {}
  for place, (name, target) in enumerate(chosen.items()):
    folder = work / f'place{place}'
    folder.mkdir()
    each[name] = found({name: target}, itertools.count(first), folder, limit)
  spent = dict.fromkeys(chosen, 0.0)
  while True:
    name = min(spent, key=lambda name: spent[name])
    execution = next(each[name])
    spent[name] += execution[-1]
    yield execution


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--seconds', type=float, default=60)
  parser.add_argument('--executions', type=int, default=None)
  parser.add_argument('--target', action='append', default=[])
  parser.add_argument('--first', type=int, default=0)
  parser.add_argument('--limit', type=float, default=30)
  parser.add_argument('--megabytes', type=float, default=2000)
  given = parser.parse_args()
  with tempfile.TemporaryDirectory(prefix='fuzz') as made_here:
    work = pathlib.Path(made_here)
    chosen = {
      name: target
      for name, target in targets(work).items()
      if not given.target or name in given.target
    }
    end = time.monotonic() + given.seconds
    counts, bad, slowest, seen = Counter(), 0, (0.0, '', 0), set()
    executions = fairly(chosen, given.first, work, given.limit)
    while time.monotonic() < end and counts.total() != given.executions:
      # What waits for ever uses no processor: the process ends, and says where.
      faulthandler.dump_traceback_later(60 * given.limit, exit=True)
      try:
        name, number, said, took = next(executions)
      except KeyboardInterrupt:
        break
      counts[name] += 1
      slowest = max(slowest, (took, name, number))
      if said is None and megabytes() > given.megabytes:
        given.megabytes *= 2
        said = f'the process has {megabytes():.0f} MB'
      if said is not None:
        bad += 1
        # One of each kind.
        kind = (name, said.splitlines()[-1][:80])
        if kind not in seen:
          seen.add(kind)
          print(f'{name}, {number}: {said}\n', flush=True)
    faulthandler.cancel_dump_traceback_later()
  least = min(chosen, key=lambda name: counts[name])
  print(
    f'{counts.total()} executions of {len(chosen)} targets, at least '
    f'{counts[least]} of each ({least}), {bad} problems; the slowest took '
    f'{slowest[0]:.2f} s ({slowest[1]}, {slowest[2]}); {megabytes():.0f} MB'
  )
  return 1 if bad else 0


def megabytes() -> float:
  """The most that this process has had."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == '__main__':
  raise SystemExit(main())
