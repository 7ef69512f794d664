"""Tests of a deployment on Flower: real processes, with faults.

Attempts are short and many, so that a slow machine asks more often and comes
to the same bits.
"""

import itertools
import json
import os
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from dpmf_jax import files
from dpmf_jax.data.synthetic import synthetic
from dpmf_jax.data.writing import write
from dpmf_jax.federated.journal import read_log, read_transcript
from dpmf_jax.sharding import training_data
from dpmf_jax.systems.sdmf import sdmf_by_messages
from dpmf_jax.training import fit

pytest.importorskip(
  'flwr', reason='Flower is not installed: requirements-federated.txt'
)
pytestmark = pytest.mark.slow

RATINGS = synthetic(
  num_users=32,
  num_items=24,
  num_ratings=300,
  rank=3,
  integer=False,
  seed=1,
)


def left_behind(folder) -> list[int]:
  """Processes that know of a folder, once those that end had time to."""
  for _ in range(100):
    found = []
    for process in Path('/proc').glob('[0-9]*'):
      try:
        environment = (process / 'environ').read_bytes()
        command = (process / 'cmdline').read_bytes()
      except OSError:
        continue
      if str(folder).encode() in environment + command:
        found.append(int(process.name))
    found = [number for number in found if number != os.getpid()]
    if not found:
      break
    time.sleep(0.2)
  return found


def rating_bytes(values):
  pairs = itertools.pairwise(values)
  return {np.array(pair, '<f4').tobytes() for pair in pairs}


def test_faulty_late_and_killed_nodes_come_to_the_same_bits(tmp_path):
  from launch.federated import parties
  from launch.federated.processes import processes
  from launch.federated.trial import prepared

  folder = tmp_path / 'run'
  folder.mkdir()
  plan = prepared(
    folder,
    RATINGS,
    system='sdmf',
    nodes=2,
    settings={'epsilon': 2.0, 'rank': 3, 'steps': 7},
    attempts=30,
    seconds=20.0,
  )
  state = folder / 'recommender' / 'state'
  sockets = Path('/tmp') / f'dpmf{os.getpid()}'
  sockets.mkdir(mode=0o700)
  settings = parties.Settings(folder, sockets, True, 5, True)
  faulty = (str(Path(__file__).parent / 'faulty_worker.py'), '--late=30')
  killed, end = False, time.monotonic() + 1200
  try:
    with processes(folder) as running:
      parties.start_all(running, plan, settings, workers={0: faulty})
      while time.monotonic() < end:
        time.sleep(0.3)
        running.check()
        log = read_log(state) if (state / 'log.jsonl').exists() else []
        done = [line for line in log if line['event'] == 'round done']
        if len(done) == 5 and not killed:
          killed = True
          parties.restart(running, settings, '1')
        if log and log[-1]['event'] in ('written', 'failed'):
          break
  finally:
    for path in sockets.iterdir():
      path.unlink()
    sockets.rmdir()
  assert log[-1]['event'] == 'written', log[-3:]
  assert killed
  # What happened is in the log.
  whys = [line['why'] for line in log if line['event'] == 'rejected']
  for why in ('wrong shape', 'not finite', 'unknown item', 'replayed'):
    assert any(why in line for line in whys), (why, whys)
  assert any(line['event'] == 'asked again' for line in log)
  assert any(line['event'] == 'came back' for line in log)
  assert not any(line['event'] == 'left out' for line in log)
  # Nothing counted twice, and no round answered twice.
  assert [line['round'] for line in log if line['event'] == 'round done'] == [
    *range(7)
  ]
  for number in range(2):
    own = read_log(folder / f'node-{number}' / 'state')
    answered = [line['round'] for line in own if line['event'] == 'answered']
    assert answered == [*range(7)]
  fit_key, _ = jax.random.split(jax.random.key(5))
  simulated = fit(
    sdmf_by_messages(plan.config), fit_key, training_data(RATINGS)
  )
  leaves, _ = files.load_leaves(state / 'items.safetensors')
  np.testing.assert_array_equal(leaves['item'], simulated.factors.item)
  # No ratings in anything that was sent.
  kept = b'\n'.join(data for _, _, data in read_transcript(state))
  for user in range(RATINGS.num_users):
    values = RATINGS.value[RATINGS.user == user]
    assert not any(word in kept for word in rating_bytes(values))
  assert left_behind(folder) == []


def test_sums_with_an_aggregator_that_is_killed(tmp_path, launch):
  write(RATINGS, tmp_path / 'ratings.csv')
  done = launch(
    'federated.trial',
    f'--ratings={tmp_path / "ratings.csv"}',
    '--system=untrusted_pmf',
    '--nodes=2',
    '--epsilon=4',
    '--seconds=20',
    '--attempts=20',
    '--kill=aggregator:0',
    f'--output={tmp_path / "trial"}',
    env={**os.environ, 'PYTHONUNBUFFERED': '1'},
  )
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / 'trial' / 'metrics.json').read_text())
  assert report['finished']
  assert report['test_rmse'] < 2
  third = read_log(tmp_path / 'trial' / 'aggregator' / 'state')
  events = [line['event'] for line in third]
  assert events.count('passed on') == 1
  assert events.count('started') == 2
  assert left_behind(tmp_path) == []
