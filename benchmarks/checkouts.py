"""Compares what two checkouts of this repository compute, on one machine.

  python -m benchmarks.checkouts --before=DIR --after=DIR [--only=REGEX]

Scripts run in both at fixed seeds, and all that they write and print is
compared to the last bit: models, ids, certificates, metrics, lists, accounts,
audits, trials and refusals. The exit code is 1 if anything differs. This file
knows command lines and file formats, and nothing of what is behind them.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from absl import flags

from dpmf_jax.commands import cli

_BEFORE = flags.DEFINE_string(
  'before', None, 'A checkout without changes.', required=True
)
_AFTER = flags.DEFINE_string('after', None, 'Another one.', required=True)
_ONLY = flags.DEFINE_string('only', '', 'Cases in which this is found.')
_JOBS = flags.DEFINE_integer('jobs', 2, 'Cases at once.', lower_bound=1)
_WORK = flags.DEFINE_string(
  'work',
  os.path.join(tempfile.gettempdir(), 'dpmf-checkouts'),
  'Folder for inputs, compiled programs, what commits gave --before, and what '
  '--after gave last.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  os.environ.get('DPMF_DATA_DIR'),
  'Where ml-100k is; cases that need it are left out without.',
)

# Flags and scripts that have another name in `before`: {'--new': '--old'}.
RENAMED = {
  'benchmarks.federated.trial': 'launch.federated.trial',
  '--attendance': '--users',
  '--gradient_sign': '--sign',
}
# What is meant to differ: {pattern of where: why}, as in 'run/ids.json *' or
# 'ran.json [[]0].stdout*', where [[] stands for a bracket.
EXPECTED = {
  'run/certificate.json schema': 'certificates have version 2',
  'run/certificate.json event*': "the ledger's encoding, not a repr",
  '*.png *': 'titles and grids',
  **{
    f'*certificate.json parameters.{name}': 'a constant, not a setting'
    for name in (
      'growth',
      'first_weight',
      'full_rounds',
      'user_quantile',
      'item_quantile',
      'gauge_power',
      'error_variance',
      'slope_ridge',
      'memory',
      'final_bias_ridge',
      'init_size',
      'users',  # attendance
      'attendance',
    )
  },
}
# Fields that differ from run to run, in any JSON object.
_IGNORED = {'date', 'files', 'run', 'seconds', 'versions'}
# {what is found in a case: patterns of where its results are random}: what no
# seed reaches, and answers that nodes keep, with the id of the run in them.
_ENTROPY = ('*.safetensors *', '*rmse', '*error_cdf*', '*.png *', '*key')
_RANDOM = {
  '--ledger': (*_ENTROPY, 'ran.json [[][01]].stdout*', '*hash*', '*time*'),
  'trial .*sdmf': ('*/state.safetensors answer.[bv]*',),
  'trial .*untrusted': (*_ENTROPY, '*largest_difference'),
}
# First words of commands in checkouts.txt, which other flags follow.
SHORT = {
  'train': 'launch.train --ratings={inputs}/ratings.csv --seed=7 --devices=1 '
  '--output={out}/run',
  'users': 'launch.recommend --model={out}/run --users=all --k=5 '
  '--output={out}/users.csv',
  'new': 'launch.recommend --model={out}/run --ratings={inputs}/new.csv '
  '--output={out}/new.csv',
  'like': 'launch.recommend --model={out}/run --similar_to=i1,i2 '
  '--output={out}/like.csv',
  'trial': 'benchmarks.federated.trial --ratings={inputs}/ratings.csv --seed=3 '
  '--rounds=3 --rank=3 --transport=local --output={out}/trial',
}


def _work() -> Path:
  return Path(_WORK.value).resolve()


def _cases() -> list[str]:
  lines = Path(__file__).with_suffix('.txt').read_text().splitlines()
  return [line for line in lines if line and not line.startswith('#')]


def _inputs() -> dict[str, str]:
  """Made-up ratings and what goes with them: the texts of files by name."""
  rng = np.random.default_rng(0)
  users, items = 120, 60
  cells = rng.choice(users * items, 2000, replace=False)
  user, item = cells // items, cells % items
  taste = rng.normal(size=(users, 2)) @ rng.normal(size=(2, items))
  stars = np.clip(np.rint(3.4 + taste[user, item]), 1, 5).astype(int)
  levels = rng.choice([0.2, 0.5, 1.0], users)
  rows = zip(user, item, stars, levels[user], strict=True)
  lines = lambda words: ''.join(f'{word}\n' for word in words)
  return {
    'ratings.csv': 'user,item,rating,epsilon\n'
    + lines(f'u{u},i{i},{s},{e}' for u, i, s, e in rows),
    'new.csv': 'user,item,rating\n'
    + lines(f'n{k % 4},i{7 * k % items},{k % 5 + 1}' for k in range(30)),
    'features.csv': 'user,age,size\n'
    + lines(f'u{u},{u % 7},{u % 3}' for u in range(users)),
    'epsilons.csv': 'user,epsilon\n'
    + lines(f'u{u},{levels[u]}' for u in range(users)),
    'users.txt': lines(f'u{u}' for u in range(users + 5)),
    'items.txt': lines(f'i{i}' for i in range(items + 3)),
    'movies.dat': lines(f'i{i}::Film {i}::Drama' for i in range(items)),
  }


def _run(case: str, checkout: Path, folder: Path, old: bool) -> int:
  """The last exit code; `folder` gets what the commands write and ran.json."""
  folder.mkdir(parents=True)
  work = _work()
  environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'} | {
    'JAX_COMPILATION_CACHE_DIR': str(work / 'compiled'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  places = {'inputs': work / 'inputs', 'out': folder, 'data': _DATA_DIR.value}
  masks = {str(folder): '{out}', str(checkout): '{checkout}'}
  ran = []
  for command in _words(case, old):
    words = [word.format(**places) for word in command]
    done = subprocess.run(
      [sys.executable, '-m', *words],
      cwd=checkout, env=environment, capture_output=True, text=True,
      check=False,
    )  # fmt: skip
    ran.append({
      'code': done.returncode,
      'stdout': _parsed(_masked(done.stdout, masks)),
      # Without bars of progress, which say how long things took.
      'stderr': [
        line
        for line in re.split(r'[\r\n]+', _masked(done.stderr, masks))
        if '%|' not in line
      ],
    })  # fmt: skip
    if done.returncode:
      break
  (folder / 'ran.json').write_text(json.dumps(ran))
  return ran[-1]['code']


def _words(case: str, old: bool) -> list[list[str]]:
  """The words of each command, by the names that the checkout has for them."""

  def named(word: str) -> str:
    name, *value = word.split('=', 1)
    return '='.join([RENAMED.get(name, name) if old else name, *value])

  commands = []
  for command in case.split(' && '):
    first, *rest = command.split()
    words = [*SHORT.get(first, first).split(), *rest]
    commands.append([named(word) for word in words])
  return commands


def _masked(text: str, masks: Mapping[str, str]) -> str:
  """The text without what is another in every run."""
  for part, mask in masks.items():
    text = text.replace(part, mask)
  text = re.sub(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', '{run}', text)
  return re.sub(r'\d{4}-\d\d-\d\dT[\d:+.]+', '{date}', text)


def _parsed(text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError:
    return text.splitlines()


def _found(folder: Path) -> dict[str, str]:
  """All that is compared: 'file field' -> value."""
  found = {}
  for path in sorted(folder.rglob('*.*')):
    name = path.relative_to(folder).as_posix()
    if path.suffix == '.json':
      value = json.loads(path.read_text())
    elif path.suffix == '.safetensors':
      value = _tensors(path)
    elif path.suffix == '.png':
      value = _digest(path.read_bytes())
    elif path.suffix in ('.csv', '.html', '.md'):
      value = _masked(path.read_text(), {}).splitlines()
    else:  # logs, sockets, keys
      continue
    found |= {f'{name} {field}': leaf for field, leaf in _leaves(value)}
    found[f'{name} mode'] = oct(path.stat().st_mode)
  return found


def _tensors(path: Path) -> dict[str, Any]:
  """All that is in the file, as JSON values."""
  with safetensors.safe_open(path, 'numpy') as file:
    tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    found: dict[str, Any] = {'metadata': file.metadata()}
  for name, tensor in tensors.items():
    found[name] = {
      'type': f'{tensor.dtype}{list(tensor.shape)}',
      'values': tensor.tolist(),
      'bytes': _digest(tensor.tobytes()),
    }
  return found


def _digest(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()[:16]


def _leaves(value: Any, place: str = '') -> Iterator[tuple[str, str]]:
  """(field, how Python writes it) of everything in JSON values."""
  if value and isinstance(value, dict):
    for key, part in value.items():
      if key not in _IGNORED:
        yield from _leaves(part, f'{place}.{key}'.lstrip('.'))
  elif value and isinstance(value, list):
    for number, part in enumerate(value):
      yield from _leaves(part, f'{place}[{number}]')
  else:
    yield place, repr(value)


class Outcome(NamedTuple):
  """How a case went: a word, what to say of it, and what was expected."""

  word: str
  remarks: Sequence[str] = ()
  expected: Sequence[str] = ()  # keys of EXPECTED


def _compared(case: str, before: Path, after: Path) -> Outcome:
  """The outcome of a case, with the first difference in each file."""
  was, now = (json.loads((f / 'ran.json').read_text()) for f in (before, after))
  code = now[-1]['code']
  failed = bool(code and not was[-1]['code'])
  message = ([f'exit code {code}'] + list(filter(None, now[-1]['stderr'])))[-1]
  old, new = _found(before), _found(after)
  random = [ps for part, ps in _RANDOM.items() if re.search(part, case)]
  first, counts, expected = {}, collections.Counter(), []
  for place in [*old, *(place for place in new if place not in old)]:
    values = [side.get(place, 'nothing')[:160] for side in (old, new)]
    fits = lambda pattern, place=place: fnmatch.fnmatchcase(place, pattern)
    if old.get(place) == new.get(place) or any(map(fits, sum(random, ()))):
      continue
    if meant := [pattern for pattern in EXPECTED if fits(pattern)]:
      expected += meant
    elif not failed or place in new:
      file = place.split(' ')[0]
      first.setdefault(file, f'{place}: {" -> ".join(values)}')
      counts[file] += 1
  lines = [f'{line} ({counts[file]} in it)' for file, line in first.items()]
  if failed:
    return Outcome('FAILED', [message, *lines], expected)
  if lines:
    return Outcome('DIFFERENT', lines, expected)
  return Outcome('same', [f'refused: {message}'] if code else [], expected)


def _outcome(case: str, before: Path, after: Path, kept: str) -> Outcome:
  """Runs the case where it has to be, and compares."""
  work = _work()
  digest = lambda *parts: _digest(repr(parts).encode())
  old = work / 'before' / digest(kept, _words(case, old=True), _DATA_DIR.value)
  if not old.exists():
    with tempfile.TemporaryDirectory(dir=work) as scratch:
      made = Path(scratch) / 'made'
      code = _run(case, before, made, old=True)
      if code not in (0, 1, 2):  # stopped: not to be kept
        raise ChildProcessError(f'exit code {code} of {case}')
      with contextlib.suppress(OSError):  # somebody else was faster
        made.rename(old)
  new = work / 'after' / digest(after) / digest(case)
  shutil.rmtree(new, ignore_errors=True)
  _run(case, after, new, old=False)
  outcome = _compared(case, old, new)
  if outcome.word == 'same':
    return outcome
  return outcome._replace(remarks=[*outcome.remarks, f'in {old} and {new}'])


def _commit(checkout: Path) -> str:
  """The commit of a checkout without changes."""
  git = lambda *words: subprocess.run(
    ['git', '--no-optional-locks', *words],
    cwd=checkout, capture_output=True, text=True, check=False,
  )  # fmt: skip
  head, status = git('rev-parse', 'HEAD'), git('status', '--porcelain')
  if head.returncode or status.stdout.strip():
    raise ValueError(
      f'--before={checkout} must be a checkout without changes, since what it '
      'gives is kept by its commit'
    )
  return head.stdout.strip()


def main(argv: Sequence[str]) -> int:
  del argv
  began = time.monotonic()
  before, after = (Path(f.value).resolve() for f in (_BEFORE, _AFTER))
  work, files = _work(), _inputs()
  for name in ('inputs', 'before', 'after'):
    (work / name).mkdir(parents=True, exist_ok=True)
  for name, text in files.items():
    path = work / 'inputs' / name
    if not path.exists() or path.read_text() != text:  # others may read it
      path.write_text(text)
  packages = sorted(
    f'{p.name} {p.version}' for p in importlib.metadata.distributions()
  )
  kept = repr((_commit(before), files, packages, sys.version))
  chosen = [case for case in _cases() if re.search(_ONLY.value, case)]
  cases = [c for c in chosen if _DATA_DIR.value or '{data}' not in c]
  counts, expected = collections.Counter(), collections.Counter()
  with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as pool:
    run = lambda case: _outcome(case, before, after, kept)
    for case, outcome in zip(cases, pool.map(run, cases), strict=True):
      counts[outcome.word] += 1
      counts['refused'] += outcome.word == 'same' and bool(outcome.remarks)
      expected.update(set(outcome.expected))
      between = ': ' if outcome.word == 'same' else '\n  '
      print(
        f'{outcome.word}  {case}', *outcome.remarks, sep=between, flush=True
      )
  for pattern, why in EXPECTED.items():
    print(f'expected to differ: {pattern} ({why}): {expected[pattern]} cases')
  if left_out := len(chosen) - len(cases):
    print(f'{left_out} left out: no --data_dir')
  print(
    f'{len(cases)} cases in {time.monotonic() - began:.0f} s: '
    f'{counts["same"]} same ({counts["refused"]} refused by both), '
    f'{counts["DIFFERENT"]} different, {counts["FAILED"]} failed'
  )
  return 0 if counts['same'] == len(cases) else 1


if __name__ == '__main__':
  cli.run(main)
