"""Tests of a deployment on Flower: real processes, with faults.

Attempts are short and many, so that a slow machine asks more often and comes
to the same bits.
"""

import signal
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from deployments import (
  FAULTY,
  KILLED,
  RATINGS,
  SEED,
  SUMS_TRIAL,
  check_killed_sums,
  left_behind,
  prepared_trial,
  rating_bytes,
)

from benchmarks.federated import parties
from benchmarks.federated.processes import processes
from dpmf_jax import files
from dpmf_jax.federated.journal import read_log, read_transcript
from dpmf_jax.federated.plan import AGGREGATOR
from dpmf_jax.rows import training_data
from dpmf_jax.systems.sdmf import sdmf_by_messages
from dpmf_jax.training import fit

pytest.importorskip(
  'flwr', reason='Flower is not installed: requirements-federated.txt'
)
pytestmark = pytest.mark.slow


def run_with_faults(folder, plan, settings, workers):
  """The recommender's log, after parties that were killed are started again."""
  state = folder / 'recommender' / 'state'
  log = []
  names = {str(number): f'node-{number}' for number in range(len(plan.nodes))}
  if plan.system == 'untrusted_pmf':
    names['aggregator'] = 'aggregator'
  with processes(folder) as running:
    parties.start_all(running, plan, settings, workers=workers)
    while not (log and log[-1]['event'] in ('written', 'failed')):
      time.sleep(0.3)
      for party, name in names.items():
        if running.running[name].poll() == -signal.SIGKILL:
          parties.restart(running, settings, party)
      running.check()
      log = read_log(state) if (state / 'log.jsonl').exists() else []
  assert log[-1]['event'] == 'written', log[-3:]
  return log


def test_faulty_late_and_killed_nodes_come_to_the_same_bits(tmp_path):
  rounds = 7
  settings = {'epsilon': 2.0, 'rank': 3, 'steps': rounds}
  folder, plan = prepared_trial(
    tmp_path, system='sdmf', settings=settings, attempts=30
  )
  faults = '--faults=shape,nan,item,replayed,late,killed'
  with tempfile.TemporaryDirectory(prefix='dpmf') as sockets:
    settings = parties.Settings(folder, Path(sockets), True, SEED, True)
    log = run_with_faults(
      folder, plan, settings, {0: (FAULTY, faults, '--late=30')}
    )
  # What happened is in the log.
  whys = [line['why'] for line in log if line['event'] == 'rejected']
  for why in ('wrong shape', 'not finite', 'unknown item', 'replayed'):
    assert any(why in line for line in whys), (why, whys)
  assert any(line['event'] == 'asked again' for line in log)
  assert any(line['event'] == 'came back' for line in log)
  assert not any(line['event'] == 'left out' for line in log)
  # Nothing counted twice, and no round answered twice.
  done = [line['round'] for line in log if line['event'] == 'round done']
  assert done == [*range(rounds)]
  for number in range(2):
    own = read_log(folder / f'node-{number}' / 'state')
    answered = [line['round'] for line in own if line['event'] == 'answered']
    assert answered == [*range(rounds)]
    assert sum(line['event'] == 'started' for line in own) == 2 - number
  fit_key, _ = jax.random.split(jax.random.key(SEED))
  system = sdmf_by_messages(plan.config)
  simulated = fit(system, fit_key, training_data(RATINGS))
  state = folder / 'recommender' / 'state'
  leaves, _ = files.load_leaves(state / 'model' / 'model.safetensors')
  np.testing.assert_array_equal(leaves['factors/item'], simulated.factors.item)
  # No ratings in anything that was sent.
  kept = b'\n'.join(data for _, _, data in read_transcript(state))
  assert not any(word in kept for word in rating_bytes())
  assert left_behind(folder) == []


def test_sums_with_a_node_and_an_aggregator_that_are_killed(tmp_path):
  folder, plan = prepared_trial(tmp_path, attempts=30, **SUMS_TRIAL)
  with tempfile.TemporaryDirectory(prefix='dpmf') as sockets:
    settings = parties.Settings(folder, Path(sockets), True, None, True)
    log = run_with_faults(
      folder, plan, settings, {1: KILLED, AGGREGATOR: KILLED}
    )
  assert sum(line['event'] == 'round done' for line in log) == 1
  check_killed_sums(folder, plan, 'node-1')
  assert left_behind(folder) == []
