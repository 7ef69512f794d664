"""launch.audit: its table, its JSON and its exit codes."""

import json

import pytest


@pytest.mark.slow
def test_a_refuted_claim_that_was_asked_for_exits_with_one(launch, tmp_path):
  path = tmp_path / 'audit.json'
  done = launch(
    'audit', '--system=gaussian_mf', '--variant=paper', '--runs=8000',
    '--seed=1', f'--output={path}',
  )  # fmt: skip
  assert done.returncode == 1, done.stderr
  head, *rows, foot = done.stdout.splitlines()
  assert head.split()[:4] == ['system', 'variant', 'unit', 'relation']
  assert len(rows) == 1
  assert 'claimed 0.33' in rows[0]
  assert 'refuted' in rows[0]
  assert '99.9% confidence' in foot
  report = json.loads(path.read_text())
  assert abs(report['claimed'] - 0.33) < 1e-6
  assert report['lower_bound'] > 4
  assert report['verdict'] == 'refuted'
  assert len(report['findings']) >= 6  # five pairs, and what was found


@pytest.mark.slow
def test_canaries_and_what_is_not_private(launch, tmp_path):
  path = tmp_path / 'audit.json'
  done = launch(
    'audit', '--system=nonprivate', '--canaries=400', '--runs=8000',
    '--dataset=synthetic-small', '--seed=1', f'--output={path}',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert 'nothing stated' in done.stdout
  report = json.loads(path.read_text())
  assert report['findings'][0]['pair'].startswith('400 canaries in')


def test_an_unknown_system_is_one_line(launch):
  done = launch('audit', '--system=no_such')
  assert done.returncode == 2
  assert done.stderr.startswith('error: there is no --system=no_such; there')
  assert len(done.stderr.splitlines()) == 1
