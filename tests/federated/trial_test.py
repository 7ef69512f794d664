"""Trials without Flower: all parties as processes, over sockets."""

import json

import pytest
from deployments import RATINGS, left_behind

from dpmf_jax import certificates
from dpmf_jax.ratings.writing import write

pytestmark = pytest.mark.slow


@pytest.fixture
def trial(tmp_path, launch):
  """Runs a trial on RATINGS in a process of its own."""

  def run(*flags):
    write(RATINGS, tmp_path / 'ratings.csv')
    return launch(
      'federated.trial',
      f'--ratings={tmp_path / "ratings.csv"}',
      '--transport=local',
      f'--output={tmp_path / "trial"}',
      *flags,
      room='benchmarks',
    )

  return run


@pytest.mark.parametrize('system', ['sdmf', 'untrusted_pmf'])
def test_trial_without_flower(system, tmp_path, trial):
  if system == 'untrusted_pmf':
    pytest.importorskip(
      'cryptography', reason='sealed messages need the package cryptography'
    )
  killed, seed = ('1:1', '3') if system == 'sdmf' else ('aggregator:0', None)
  done = trial(
    f'--system={system}',
    *([] if seed is None else [f'--seed={seed}']),
    '--nodes=2',
    '--rounds=3',
    '--rank=3',
    '--epsilon=4',
    f'--kill={killed}',
  )
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / 'trial' / 'metrics.json').read_text())
  assert report['finished']
  assert report['same_bits' if system == 'sdmf' else 'same_sums']
  assert 0 < report['test_rmse'] < 5
  if system == 'untrusted_pmf':
    # Of 36 users on two nodes.
    stated = report['privacy']
    assert json.loads(done.stdout)['privacy'] == stated
    assert (stated['status'], stated['delta']) == ('proved', 0)
    assert 3.99 < stated['epsilon'] <= 4
    counts = [stated[k] for k in ('colluders', 'dropouts', 'largest_node')]
    assert counts == [18, 0, 18]
    assert 'together with up to 18 users' in stated['adversary']
    assert 'a node counts as all of its users' in stated['adversary']
    state = tmp_path / 'trial' / 'recommender' / 'state'
    document = certificates.read(state / 'model')
    assert document['adversary'] == stated['adversary']
    assert document['parameters']['colluders'] == 18
  assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
  ('flags', 'why'),
  [
    (['--nodes=2', '--colluders=1'], 'colluders=1 must be at least 18'),
    (['--nodes=1'], 'use more nodes'),
    (['--nodes=3', '--dropouts=24'], 'use more nodes'),
    (['--nodes=3', '--dropouts=1'], 'leave room for no node'),
  ],
)
def test_trial_in_which_a_node_knows_too_much_is_refused(
  flags, why, tmp_path, trial
):
  done = trial('--system=untrusted_pmf', *flags)
  assert done.returncode == 2
  assert why in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1
  assert not (tmp_path / 'trial').exists()
