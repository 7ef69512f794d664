"""Training by real processes, which talk over the loopback interface."""

import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from dpmf_jax import train
from dpmf_jax.accounting import ledger
from dpmf_jax.ratings import formats
from dpmf_jax.ratings.synthetic import synthetic

pytestmark = pytest.mark.slow

_SYSTEMS = {
  'power_mf': {'rank': 3},
  'dpals': {'rank': 3, 'steps': 3},
  'ranking_mf': {'rank': 3},
  'moments': {},
  'gaussian_mf': {'rank': 4, 'steps': 6},
}
# All systems in one group of processes: most of the time is theirs to start.
_ALL = """
import json, sys
import jax

jax.config.update('jax_num_cpu_devices', 1)

from dpmf_jax import train
from dpmf_jax.ratings import formats
from dpmf_jax.runs import processes

coordinator, count, number, parts, folder, systems = sys.argv[1:]
with processes.joined(coordinator, int(count), int(number)):
  ratings = formats.read(parts, scale=(1, 5), among=processes.among())
  for name, settings in json.loads(systems).items():
    train(
      ratings, system=name, epsilon=4, key=3, progress=False,
      output=f'{folder}/{name}', **settings,
    )
"""
# Ends a process as by SIGKILL after so many steps.
_KILLED = """
import os, signal
from dpmf_jax.runs import recording

report = recording.Recorder.__call__

def report_and_die(self, progress):
  report(self, progress)
  if progress.step >= int(os.environ['DIE_AT']):
    os.kill(os.getpid(), signal.SIGKILL)

recording.Recorder.__call__ = report_and_die
"""
_LAUNCH = """
import runpy, sys

sys.argv[0] = 'launch.train'
runpy.run_module('launch.train', run_name='__main__')
"""


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
  """The pattern of five part files, with a pair that is rated in two."""
  folder = tmp_path_factory.mktemp('parts')
  made = synthetic(num_users=90, num_items=40, num_ratings=1500, seed=2)
  lines = [
    f'user-{user},{item},{value:g}'
    for user, item, value in zip(made.user, made.item, made.value, strict=True)
  ]
  np.random.default_rng(0).shuffle(lines)
  lines.append(lines[0].rpartition(',')[0] + ',1')
  for number, part in enumerate(np.array_split(lines, 5)):
    text = '\n'.join(['user,item,rating', *part, ''])
    (folder / f'part-{number}.csv').write_text(text)
  return str(folder / 'part-*.csv')


def free_port():
  with socket.create_server(('127.0.0.1', 0)) as server:
    return server.getsockname()[1]


def is_free(port):
  try:
    socket.create_server(('127.0.0.1', port)).close()
  except OSError:
    return False
  return True


def started(code, *arguments, **environment):
  return subprocess.Popen(
    [sys.executable, '-c', code, *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, **environment},
  )


def ended(processes):
  """(exit code, stderr) of each."""
  found = [process.communicate() for process in processes]
  return [
    (process.returncode, said)
    for process, (_, said) in zip(processes, found, strict=True)
  ]


def launched(count, *flags, killed=None):
  """Those of `launch.train`; the process `killed` dies after two steps."""
  address = f'127.0.0.1:{free_port()}'
  return ended(
    [
      started(
        (_KILLED if number == killed else '') + _LAUNCH,
        f'--coordinator={address}',
        f'--num_processes={count}',
        f'--process_id={number}',
        '--devices=1',
        *flags,
        DIE_AT='2',
      )
      for number in range(count)
    ]
  )


def released(folder):
  return [
    (folder / name).read_bytes() for name in ('model.safetensors', 'ids.json')
  ]


@pytest.fixture(scope='module')
def alone(parts, tmp_path_factory):
  """System -> the folder with what one process releases on two devices."""
  folder = tmp_path_factory.mktemp('alone')
  with pytest.warns(UserWarning, match='rated before'):
    ratings = formats.read(parts, scale=(1, 5))

  def trained(name):
    if not (folder / name).exists():
      train(
        ratings, system=name, epsilon=4, key=3, devices=2, progress=False,
        output=folder / name, **_SYSTEMS[name],
      )  # fmt: skip
    return folder / name

  return trained


@pytest.mark.long
@pytest.mark.parametrize('count', [2, 4])
def test_processes_release_what_one_does(parts, alone, tmp_path, count):
  address = f'127.0.0.1:{free_port()}'
  systems = json.dumps(_SYSTEMS)
  for code, said in ended(
    [
      started(_ALL, address, str(count), str(k), parts, str(tmp_path), systems)
      for k in range(count)
    ]
  ):
    assert code == 0, said
  for name in _SYSTEMS:
    assert released(tmp_path / name) == released(alone(name)), name
    own, other = (
      json.loads((folder / 'metrics.json').read_text())
      for folder in (tmp_path / name, alone(name))
    )
    for key in ('num_train', 'num_test', 'baselines'):
      assert own.get(key) == pytest.approx(other.get(key)), (name, key)
    found = json.loads((tmp_path / name / 'certificate.json').read_text())
    assert found['parameters']['processes'] == count


_KILLABLE = (
  '--scale=1,5',
  '--system=gaussian_mf',
  '--rank=4',
  '--steps=6',
  '--epsilon=4',
  '--report_every=1',
  '--checkpoint_seconds=0',
)


def check_killed(found, killed):
  """One was killed, and the others say so in a line."""
  for number, (code, said) in enumerate(found):
    if number == killed:
      assert code == -signal.SIGKILL
    else:
      assert code == 3, said
      assert said.count('error') == 1, said
      gone = f'error: process {killed} of {len(found)} is gone; give all'
      assert gone in said


def test_a_run_with_one_killed_goes_on_to_the_same_bits(parts, alone, tmp_path):
  output = tmp_path / 'run'
  flags = (f'--ratings={parts}', *_KILLABLE, '--seed=3', f'--output={output}')
  check_killed(launched(4, *flags, killed=2), 2)
  assert (output / 'private' / 'checkpoint.safetensors').exists()
  for code, said in launched(4, *flags):
    assert code == 0, said
  assert released(output) == released(alone('gaussian_mf'))


def test_items_that_are_spread_release_the_same_bits(parts, alone, tmp_path):
  spread, output = '--item_tables=spread', tmp_path / 'run'
  flags = (f'--ratings={parts}', *_KILLABLE, '--seed=3', f'--output={output}')
  check_killed(launched(2, *flags, spread, killed=1), 1)
  for code, said in launched(2, *flags):  # goes on without
    assert code == 0, said
  assert released(output) == released(alone('gaussian_mf'))
  flags = (*flags[:-1], f'--output={tmp_path / "spread"}', spread)
  for code, said in launched(2, *flags):
    assert code == 0, said
  assert released(tmp_path / 'spread') == released(alone('gaussian_mf'))


def test_a_run_with_the_first_killed_is_charged_once(parts, tmp_path):
  book = tmp_path / 'ledger.db'
  flags = (
    f'--ratings={parts}', *_KILLABLE, f'--output={tmp_path / "run"}',
    f'--ledger={book}', '--budget_epsilon=9',
  )  # fmt: skip
  check_killed(launched(2, *flags, killed=0), 0)
  assert len(ledger.entries(book)) == 1
  for code, said in launched(2, *flags):
    assert code == 0, said
  assert len(ledger.entries(book)) == 1


def test_slurm_says_who_is_there(parts, alone, tmp_path):
  # JAX takes the port from the number of the job.
  job = next(k for k in range(2**12) if is_free(65535 - 2**12 + 1 + k))
  flags = (f'--ratings={parts}', *_KILLABLE, '--seed=3')
  found = ended(
    [
      started(
        _LAUNCH,
        '--coordinator=auto',
        '--devices=1',
        *flags,
        f'--output={tmp_path}/run',
        SLURM_JOB_ID=str(job),
        SLURM_STEP_NODELIST='127.0.0.1',
        SLURM_STEP_NUM_NODES='1',
        SLURM_NTASKS='2',
        SLURM_PROCID=str(number),
        SLURM_LOCALID=str(number),
      )
      for number in range(2)
    ]
  )
  for code, said in found:
    assert code == 0, said
  assert released(tmp_path / 'run') == released(alone('gaussian_mf'))


def test_an_error_of_one_is_told_to_all(parts, tmp_path):
  for number in range(2):
    text = 'user,item,rating\n' + ''.join(f'{u},{number},3\n' for u in range(9))
    (tmp_path / f'{number}.csv').write_text(text)
  with (tmp_path / '1.csv').open('a') as file:
    file.write('7,7,6\n')
  found = launched(
    2, f'--ratings={tmp_path}/*.csv', *_KILLABLE, f'--output={tmp_path}/run'
  )
  wrong = '1.csv, line 11: rating 6 is outside the scale 1..5'
  assert found[1][0] == 2, found
  assert f'{tmp_path}/{wrong}' in found[1][1]
  assert found[0][0] == 3, found
  assert 'error: process 1 of 2 stopped: ' in found[0][1]
  assert wrong in found[0][1]


def test_other_systems_are_refused(parts, tmp_path):
  found = launched(
    2, f'--ratings={parts}', '--system=als', f'--output={tmp_path}/run'
  )
  for code, said in found:
    assert code != 0
    assert '--system=als' in said or 'system=als' in said
  assert not (tmp_path / 'run').exists()
