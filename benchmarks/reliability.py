"""Kills runs at random moments, and soaks the library in random calls.

  python -m benchmarks.reliability --kills=300 --forked
  python -m benchmarks.reliability --soak_minutes=60

With --kills, `python -m launch.train` is killed (SIGKILL) at a random moment
between the opening of its folder and its end, sometimes twice, and repeated
until it ends: with a seed, which must come to the bits of a run that nobody
disturbed, or with a ledger that has room for one charge. A third of runs have
--overwrite, and a finished run to replace. With --forked its processes are
forks of this one, which has made the imports: most of a short run's time.

With --soak_minutes, random calls of the library over all systems and variants
are made in this process, and scripts are run as processes of their own. After
every kind of call was made once, memory, file descriptors and caches must be
flat: over the second half of what is measured the fitted line may grow by 2%,
or by one where things are counted.

It ends with code 1 if something does not hold.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from absl import flags

from benchmarks import soaking
from dpmf_jax import files, plans
from dpmf_jax.accounting import ledger
from dpmf_jax.commands import cli
from dpmf_jax.ratings import writing
from dpmf_jax.runs import folders

_KILLS = flags.DEFINE_integer('kills', 0, 'Kills of runs.', 0)
_MINUTES = flags.DEFINE_float('kill_minutes', None, 'No more kills after that.')
_FORKED = flags.DEFINE_bool('forked', False, 'Kill forks, with imports made.')
_SOAK = flags.DEFINE_float('soak_minutes', 0.0, 'Time of random calls.', 0)
_SYSTEMS = flags.DEFINE_list('systems', None, 'These alone; else all.')
_DRAW = flags.DEFINE_integer('draw', 0, 'Seed of what is killed and called.')

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Of many digits, so that no file holds its words by chance.
_SEED = 1_618_033_989
_TICK = 1 / os.sysconf('SC_CLK_TCK')
# What makes a run of each short. {epsilons} is a file of users' own.
_CASES = {
  'ranking_mf': '--epsilon=2 --unit=user --rank=1 --rounds=1 --test_fraction=0',
  'power_mf': '--epsilon=2 --rank=1 --rounds=2',
  'gaussian_mf': '--epsilon=2 --steps=5 --report_every=1',
  'dpals': '--epsilon=2 --rank=2 --steps=2 --test_fraction=0',
  'moments': '--epsilon=2 --rank=2 --test_fraction=0',
  'local_mf': '--epsilon=2 --rank=2 --test_fraction=0',
  'untrusted_pmf': '--epsilon=2 --test_fraction=0',
  'objective_pmf': '--epsilon=2 --rank=2 --test_fraction=0',
  'personalized_pmf': '--epsilon=2 --epsilon_file={epsilons} --rank=2',
  'local_ranking': '--epsilon=2 --rank=2 --test_fraction=0',
  'sdmf': '--variant=paper --epsilon=2 --rank=2 --steps=3',
  'sdbpr': '--variant=paper --epsilon=2 --rank=2 --steps=3',
  'sdfm': '--variant=paper --epsilon=2 --rank=2 --steps=3',
  'langevin': '--variant=paper --epsilon=2 --rank=2 --steps=3',
  'als': '--rank=2 --steps=3 --report_every=1',
  'ease': '--test_fraction=0',
  'nonprivate': '--rank=2 --steps=3 --test_fraction=0',
}


def main(argv: Sequence[str]) -> int:
  del argv
  if not (_KILLS.value or _SOAK.value):
    raise ValueError('--kills or --soak_minutes must be given')
  wrong, rng = [], random.Random(_DRAW.value)
  with tempfile.TemporaryDirectory(prefix='dpmf-reliability-') as name:
    if _KILLS.value:
      wrong += kills(
        _KILLS.value, pathlib.Path(name), rng, _SYSTEMS.value or list(_CASES)
      )
    if _SOAK.value:
      wrong += soaking.soak(
        _SOAK.value,
        pathlib.Path(name),
        rng,
        systems=_SYSTEMS.value or plans.NAMES,
      )
  for line in wrong:
    print(f'violation: {line}')
  print('all of it holds' if not wrong else f'{len(wrong)} violations')
  return int(bool(wrong))


# Kills.


class Whole(NamedTuple):
  """A run that nobody disturbed."""

  folder: pathlib.Path
  work: float  # seconds of processors from the opening of its folder


def kills(
  number: int,
  folder: pathlib.Path,
  rng: random.Random,
  systems: Sequence[str],
) -> list[str]:
  """What did not hold in runs that were killed so many times in all."""
  ratings = folder / 'ratings.csv'
  table = soaking.table(60, 40, 700)
  writing.write(table, ratings)
  ratings.with_name('epsilons.csv').write_text(
    ''.join(f'{user},{rng.choice((1, 2))}\n' for user in table.user_ids)
  )
  whole = {name: undisturbed(name, ratings, folder) for name in systems}
  counts, wrong, run = Counter(), [], 0
  end = time.monotonic() + 60 * (_MINUTES.value or math.inf)
  while counts['all', 'kills'] < number and time.monotonic() < end:
    name = systems[run % len(systems)]
    # No ledger takes a run without a proof.
    seeded = bool(run // len(systems) % 2) or not _proved(name)
    overwrite = rng.random() < 1 / 3
    place = folder / str(run)
    found, told = disturbed(
      name, ratings, place, whole[name], rng, seeded=seeded, overwrite=overwrite
    )
    for who in (name, 'all'):
      for what, more in found.items():
        counts[who, what] += more
    wrong += [f'run {run}, {name}: {line}' for line in told]
    shutil.rmtree(place)
    run += 1
  what = ('runs', 'kills', 'killed twice', 'overwriting', 'with a ledger')
  what = (*what, 'same bits', 'seconds')
  soaking.print_table(
    ('system', *what),
    [
      [name, *(counts[name, each] for each in what)]
      for name in (*systems, 'all')
    ],
  )
  return wrong


def undisturbed(name: str, ratings, folder: pathlib.Path) -> Whole:
  """A seeded run of a case; the first of two only compiles."""
  for place in (folder / f'{name} first', folder / name):
    place.mkdir()
    process = _started(_flags(name, ratings, place, seeded=True), place)
    _wait_for_folder(process, place / 'run', None)
    opened = _work(process)
    _, status, used = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
      raise ValueError(f'{name}, undisturbed, ends with {code}: {_said(place)}')
    work = used.ru_utime + used.ru_stime - opened
  return Whole(place / 'run', work)


def disturbed(
  name: str,
  ratings,
  place: pathlib.Path,
  whole: Whole,
  rng: random.Random,
  *,
  seeded: bool,
  overwrite: bool,
) -> tuple[dict[str, int], list[str]]:
  """Counts of a run that is killed and repeated, and what did not hold."""
  place.mkdir()
  folder, begun, old = place / 'run', time.monotonic(), None
  if overwrite:
    shutil.copytree(whole.folder, folder)
    old = _run_id(folder)
  argv = _flags(name, ratings, place, seeded=seeded)
  argv += ['--overwrite'] * overwrite
  killed, words, wrong = 0, set(), []
  for _ in range(rng.choice((1, 1, 2))):
    before = _changed(folder)
    process = _started(argv, place)
    _wait_for_folder(process, folder, before)
    # Not so many seconds later, in which a busy machine does this or that.
    last = _work(process) + rng.uniform(0, whole.work)
    while _work(process) < last and _runs(process):
      time.sleep(0.001)
    time.sleep(rng.uniform(0, _TICK))
    os.kill(process, signal.SIGKILL)
    code = _ended(process)
    killed += code == -signal.SIGKILL
    if code not in (0, -signal.SIGKILL):
      wrong.append(f'exit code {code}: {_said(place)}')
    if folders.interrupted(folder):
      path = folder / 'private' / 'checkpoint.safetensors'
      words.add(files.load_leaves(path)[0]['key'].tobytes())
    if _run_id(folder) not in (None, old):
      break  # it was killed after its end
  else:
    if code := _ended(_started(argv, place)):
      wrong.append(f'repeated, exit code {code}: {_said(place)}')
      return {'runs': 1, 'kills': killed}, wrong
  wrong += _differences(folder, whole.folder, bits=seeded)
  if any(word in content for word in words for content in _contents(place)):
    wrong.append('its key is left')
  if not seeded:
    entries = [entry.id for entry in ledger.entries(place / 'ledger.db')]
    if entries != [_run_id(folder)]:
      wrong.append(f'the ledger has {entries}, the run is {_run_id(folder)}')
  return {
    'runs': 1,
    'kills': killed,
    'killed twice': killed == 2,
    'overwriting': overwrite,
    'with a ledger': not seeded,
    'same bits': seeded and not wrong,
    'seconds': round(time.monotonic() - begun),
  }, wrong


def _proved(name: str) -> bool:
  return 'sound' in plans.SPECS[name].variants


def _flags(
  name: str, ratings: pathlib.Path, place: pathlib.Path, *, seeded: bool
) -> list:
  kept = (
    [f'--seed={_SEED}']
    if seeded
    else [f'--ledger={place / "ledger.db"}', '--budget_epsilon=3']
  )
  return [
    f'--ratings={ratings}', f'--system={name}', '--checkpoint_seconds=0',
    f'--output={place / "run"}', *kept,
    *_CASES[name].format(epsilons=ratings.with_name('epsilons.csv')).split(),
  ]  # fmt: skip


def _differences(folder, whole, *, bits: bool) -> Iterator[str]:
  """What is in the folder of a run that ended, and should not be."""
  names, wanted = _names(folder), _names(whole)
  if names != wanted:
    yield f'files differ: {sorted(names ^ wanted)}'
  page = (ROOT / 'docs' / 'reference' / 'commands.md').read_text()
  for name in names:
    if f'`{name.split("/")[0]}' not in page:
      yield f'{name} is not in docs/reference/commands.md'
  for path in folder.parent.iterdir():
    if path.name not in ('run', 'log', 'ledger.db'):
      yield f'{path.name} is left beside the run'
  for name in ('model.safetensors', 'ids.json') if bits else ():
    if (folder / name).read_bytes() != (whole / name).read_bytes():
      yield f'{name} has other bits'


def _names(folder: pathlib.Path) -> set[str]:
  return {
    path.relative_to(folder).as_posix()
    for path in folder.rglob('*')
    if path.is_file()
  }


def _contents(folder: pathlib.Path) -> list[bytes]:
  return [path.read_bytes() for path in folder.rglob('*') if path.is_file()]


def _run_id(folder: pathlib.Path) -> str | None:
  """The id of the finished run in a folder."""
  path = folder / folders.FINISHED
  if folders.interrupted(folder) or not path.exists():
    return None
  return json.loads(path.read_text())['run']


def _changed(folder: pathlib.Path) -> int | None:
  """When the folder was opened last: a run then sets the mode of private/."""
  try:
    return (folder / 'private').stat().st_ctime_ns
  except FileNotFoundError:
    return None


def _started(argv: Sequence[str], place: pathlib.Path) -> int:
  """The id of a process of `launch.train`, whose words are in `log`."""
  log = os.open(place / 'log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
  try:
    if _FORKED.value:
      return _fork(argv, log)
    return os.posix_spawn(
      sys.executable,
      [sys.executable, '-m', 'launch.train', *argv],
      os.environ,
      file_actions=[
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
      ],
    )
  finally:
    os.close(log)


def _fork(argv: Sequence[str], log: int) -> int:
  child = os.fork()
  if child:
    return child
  code: Any = 1
  try:
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ['launch.train', *argv]
    runpy.run_module('launch.train', run_name='__main__', alter_sys=True)
  except SystemExit as end:
    code = end.code or 0
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait_for_folder(process: int, folder, before: int | None) -> None:
  """Returns when the process has opened the folder, or ended without it."""
  while _changed(folder) == before and _runs(process):
    time.sleep(0.001)


def _runs(process: int) -> bool:
  options = os.WEXITED | os.WNOHANG | os.WNOWAIT
  return not os.waitid(os.P_PID, process, options)


def _work(process: int) -> float:
  """Seconds of processors that a process has used, up to a tick."""
  stat = pathlib.Path(f'/proc/{process}/stat').read_text()
  user, system = stat.rpartition(')')[2].split()[11:13]
  return (int(user) + int(system)) * _TICK


def _ended(process: int) -> int:
  return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _said(place: pathlib.Path) -> str:
  return ((place / 'log').read_text().splitlines() or [''])[-1]


def _share_compiled(folder: str) -> None:
  """What one process has compiled, the others need not."""
  for name, value in (
    ('jax_compilation_cache_dir', folder),
    ('jax_persistent_cache_min_compile_time_secs', 0.0),
  ):
    os.environ.setdefault(name.upper(), str(value))
    jax.config.update(name, type(value)(os.environ[name.upper()]))


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  with tempfile.TemporaryDirectory(prefix='dpmf-compiled-') as cache:
    _share_compiled(cache)
    cli.run(main)
