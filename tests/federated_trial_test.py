"""Trials without Flower: all parties as processes, over sockets."""

import json

import pytest
from deployments import RATINGS, left_behind

from dpmf_jax.data.writing import write

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('system', ['sdmf', 'untrusted_pmf'])
def test_trial_without_flower(system, tmp_path, launch):
  if system == 'untrusted_pmf':
    pytest.importorskip(
      'cryptography', reason='sealed messages need the package cryptography'
    )
  write(RATINGS, tmp_path / 'ratings.csv')
  killed, seed = ('1:1', '3') if system == 'sdmf' else ('aggregator:0', None)
  done = launch(
    'federated.trial',
    f'--ratings={tmp_path / "ratings.csv"}',
    f'--system={system}',
    *([] if seed is None else [f'--seed={seed}']),
    '--nodes=2',
    '--rounds=3',
    '--rank=3',
    '--epsilon=4',
    '--transport=local',
    f'--kill={killed}',
    f'--output={tmp_path / "trial"}',
  )
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / 'trial' / 'metrics.json').read_text())
  assert report['finished']
  assert report['same_bits' if system == 'sdmf' else 'same_sums']
  assert 0 < report['test_rmse'] < 5
  assert left_behind(tmp_path) == []
