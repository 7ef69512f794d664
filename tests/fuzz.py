"""Mutated input for every reader and decoder: only our own errors may come out.

  python -m tests.fuzz --seconds=3600 [--target=NAME ...] [--first=NUMBER]

A target has inputs that are good, and a function that reads one. Each execution
takes a good input, changes it a few times and reads it. What is allowed is that
it is read, or an error of ours: a ValueError on one line that names the file.
Execution k of a target depends on k alone: what is found is found again by
--target and --first.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gzip
import io
import json
import math
import pathlib
import random
import resource
import shutil
import socket
import struct
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import util
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy

from dpmf_jax import accounting, certificates, files, training
from dpmf_jax.accounting import encoding
from dpmf_jax.federated import checks, folders, journal, messages, sockets
from dpmf_jax.federated.messages import Kind, Message
from dpmf_jax.federated.plan import RECOMMENDER, Node, Plan, read_plan
from dpmf_jax.federated.plan import write_plan as write_plan
from dpmf_jax.plans import SPECS
from dpmf_jax.ratings import attributes, formats, specification, titles
from dpmf_jax.ratings.ids import DataError
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import training_data
from dpmf_jax.runs import folders as run_folders
from dpmf_jax.runs.train import train
from dpmf_jax.serving.models import load_model
from dpmf_jax.systems import made

SCALE = (1.0, 5.0)
# Errors of ours; those of others that are ValueErrors, such as a broken UTF-8,
# say neither which file nor what to do.
OURS = (ValueError, DataError, checks.RejectedError, checks.RefusedError)
# Bytes that parsers trip over.
TOKENS = (
  b'', b'\0', b'\r', b'\n', b'\r\n', b'"', b'""', b'\\', b',', b';', b'::',
  b':', b'\t', b'|', b' ', b'-', b'+', b'.', b'e', b'0', b'1', b'-1', b'007',
  b'1e9', b'1e309', b'1e200', b'nan', b'inf', b'-inf', b'NULL', b'null',
  b'true', b'{', b'}', b'[', b']', b'9' * 25, b'9' * 5000, b'[' * 3000,
  b'{"a":' * 500,
  b'\xff', b'\xfe\xff', b'\xef\xbb\xbf', b'\xc3', b'\xed\xa0\x80', b'\\ud800',
  '\u2028'.encode(), '\u0663'.encode(), b'x' * 300, b'A' * 140_000, b'PAR1',
  b'\x1f\x8b', b'user', b'item', b'rating', b'epsilon', b'18446744073709551616',
  b'\x7f\xff\xff\xff', b'\xff\xff\xff\xff', b'\0\0\0\0\0\0\0\0',
)  # fmt: skip
VALUES = (
  None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5,
  1e-300, 1e300, math.nan, math.inf, -math.inf, '', 'x', '7', 'nan', [], [1],
  [[1]], [None], {}, {'a': 1}, (1.0, 5.0), [5, 1], [1, 5], 'sound', 'user',
)  # fmt: skip


class Target(NamedTuple):
  """Something that reads.

  Attributes:
    good: inputs that are read without an error.
    read: of one that was changed; the path is a folder of its own.
    named: whether errors name the file, which is in that folder.
    changed: (random, input) -> another one.
  """

  good: list[Any]
  read: Callable[[Any, pathlib.Path], Any]
  named: bool = True
  changed: Callable[[random.Random, Any], Any] | None = None


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
  """`data` after one to four changes."""
  content = bytearray(data)
  for _ in range(rng.randint(1, 4)):
    size = len(content)
    start = rng.randint(0, size)
    stop = min(size, start + rng.choice((0, 1, 1, 2, 4, 16, 64)))
    kind = rng.randrange(8)
    if kind == 0 and size:
      content[start % size] ^= 1 << rng.randrange(8)
    elif kind == 1 and size:
      content[start % size] = rng.randrange(256)
    elif kind == 2:
      del content[start:stop]
    elif kind == 3:
      content[start:start] = content[start:stop] * rng.choice((1, 2, 50))
    elif kind == 4:
      content = content[:start] if rng.random() < 0.5 else content[start:]
    elif kind == 5:
      other = rng.randint(0, size)
      content[start:stop] = content[other : other + stop - start]
    else:
      content[start:stop] = rng.choice(TOKENS)
  return bytes(content)


def places(value: Any) -> list[tuple[Any, Any]]:
  """(container, key) of everything in a JSON value."""
  found, stack = [], [value]
  while stack:
    each = stack.pop()
    keys = each if isinstance(each, dict) else range(len(each))
    for key in keys:
      found.append((each, key))
      if isinstance(each[key], dict | list):
        stack.append(each[key])
  return found


def changed_json(rng: random.Random, data: bytes) -> bytes:
  """JSON with other values in places, or other bytes."""
  if rng.random() < 0.4:
    return changed_bytes(rng, data)
  value = json.loads(data)
  for _ in range(rng.randint(1, 3)):
    found = places(value)
    if not found:
      break
    container, key = rng.choice(found)
    other = rng.choice(found)
    kind = rng.randrange(4)
    if kind == 0:
      container.pop(key)
    elif kind == 1:
      container[key] = copy.deepcopy(other[0][other[1]])
    else:
      container[key] = copy.deepcopy(rng.choice(VALUES))
  return json.dumps(value).encode()


def changed_leaves(rng: random.Random, data: bytes) -> bytes:
  """A safetensors file with other arrays, another header or other bytes."""
  if rng.random() < 0.4:
    return changed_bytes(rng, data)
  (size,) = struct.unpack('<Q', data[:8])
  header = changed_json(rng, data[8 : 8 + size])
  body = data[8 + size :]
  if rng.random() < 0.5:
    leaves = safetensors.numpy.load(data)
    name = rng.choice(sorted(leaves))
    shape = tuple(rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(4)))
    kind = rng.choice((np.float32, np.int32, np.float64, np.uint8, bool))
    leaves[name] = np.full(shape, rng.choice((0, 1, -1, 7)), float).astype(kind)
    if rng.random() < 0.3:
      leaves[rng.choice(sorted(leaves))].fill(0)
    if rng.random() < 0.3:
      leaves.pop(rng.choice(sorted(leaves)))
    keep = json.loads(data[8 : 8 + size]).get('__metadata__')
    return safetensors.numpy.save(leaves, metadata=keep)
  return struct.pack('<Q', len(header)) + header + body


def file_target(
  name: str,
  good: list[bytes],
  read: Callable[[pathlib.Path], Any],
  changed: Callable[[random.Random, bytes], bytes] = changed_bytes,
) -> Target:
  """Of a reader of one file, called `name`."""

  def write_and_read(data: bytes, folder: pathlib.Path) -> Any:
    path = folder / name
    path.write_bytes(data)
    return read(path)

  return Target(good, write_and_read, True, changed)


def ratings_targets() -> Iterator[tuple[str, Target]]:
  lines = [b'1,10,4', b'1,11,5', b'2,10,1', b'x,12,3.5', b'003,10,2']
  table = b'\n'.join(lines)
  dated = b'user,item,rating,timestamp\n1,2,3,2005-09-06\n2,2,4,2005-09-07\n'
  quoted = b'"user","item","rating"\n"a ""b""","x,y",4\n"c","z",5\n'
  texts = {
    'text': [table, dated, quoted, gzip.compress(table)],
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
      'e.csv', good, functools.partial(specification.from_user_file, ratings)
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
  for system, given in cases.items():
    run = folder / system
    train(ratings, system=system, output=run, progress=False, **given)
    # Without hashes, or no changed model would be looked at.
    whole = certificates.read(run)
    files.write_json(run / 'certificate.json', whole | {'files': {}})
    for name in sorted(
      p.relative_to(run) for p in run.rglob('*') if p.is_file()
    ):
      if name.suffix in ('.json', '.safetensors') and name.stem != 'metrics':
        yield f'{name} of {system}', _model_target(run, name)
  good = [json.dumps(whole).encode()]
  yield (
    'certificate',
    file_target('c.json', good, certificates.read, changed_json),
  )
  data = training_data(ratings)
  system = made('als', 'none', scale=SCALE, rank=2, steps=2)
  key = jax.random.key(0)
  saved = folder / 'interrupted'
  (saved / 'private').mkdir(parents=True)
  training.fit(
    system,
    key,
    data,
    callbacks=[
      run_folders.checkpointer(
        saved, key, {'a': 1}, run='r', steps=9, seconds=0
      )
    ],
  )
  (checkpoint,) = (saved / 'private').glob('checkpoint*')

  def restored(content: bytes, folder: pathlib.Path) -> Any:
    (folder / 'private').mkdir(exist_ok=True)
    (folder / 'private' / checkpoint.name).write_bytes(content)
    return run_folders.restore(folder, system, data, key, {'a': 1})

  yield (
    'checkpoint',
    Target([checkpoint.read_bytes()], restored, True, changed_leaves),
  )


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
  except Exception as error:
    said = f'{type(error).__name__}: {str(error)[:300]!r}'
    if type(error) not in OURS or not number:
      return f'{said}\n{traceback.format_exc()}'
    if '\n' in str(error) or '\r' in str(error):
      return f'more than a line: {said}'
    if target.named and folder.name not in str(error):
      return f'does not name the file: {said}\n{traceback.format_exc()}'
    return None


def found(
  chosen: dict[str, Target], numbers: Iterator[int], work: pathlib.Path
) -> Iterator[tuple[str, int, str | None, float]]:
  """(target, number, problem or None, seconds) of every execution."""
  for number in numbers:
    for place, (name, target) in enumerate(chosen.items()):
      folder = work / f'target{place}'
      folder.mkdir(exist_ok=True)
      start = time.monotonic()
      said = problem(name, target, number, folder)
      yield name, number, said, time.monotonic() - start


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--seconds', type=float, default=60)
  parser.add_argument('--target', action='append', default=[])
  parser.add_argument('--first', type=int, default=0)
  given = parser.parse_args()
  with tempfile.TemporaryDirectory(prefix='fuzz') as made_here:
    work = pathlib.Path(made_here)
    chosen = {
      name: target
      for name, target in targets(work).items()
      if not given.target or name in given.target
    }
    end = time.monotonic() + given.seconds
    count, bad, slowest, seen = 0, 0, (0.0, '', 0), set()
    for name, number, said, took in found(chosen, _from(given.first), work):
      count += 1
      slowest = max(slowest, (took, name, number))
      if said is not None:
        bad += 1
        # One of each kind.
        kind = (name, said.splitlines()[-1][:80])
        if kind not in seen:
          seen.add(kind)
          print(f'{name}, {number}: {said}\n', flush=True)
      if time.monotonic() > end:
        break
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  print(
    f'{count} executions of {len(chosen)} targets, {bad} problems; the slowest '
    f'took {slowest[0]:.2f} s ({slowest[1]}, {slowest[2]}); {most:.0f} MB'
  )
  return 1 if bad else 0


def _from(first: int) -> Iterator[int]:
  while True:
    yield first
    first += 1


if __name__ == '__main__':
  raise SystemExit(main())
