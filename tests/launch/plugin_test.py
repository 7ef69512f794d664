"""--plugin: a system of somebody else, found by every command."""

import json
from pathlib import Path

import forks
import pytest

FOLDER = str(Path(__file__).resolve().parents[1])
PLUGIN = ('--plugin=own_sums', '--system=own_sums')


def run(command, *flags):
  """As in the folder of the plugin, for what has the imports made already."""
  before = f'import sys; sys.path.append({FOLDER!r})'
  return forks.run(f'launch.{command}', *flags, before=before)


def test_account_says_stated():
  done = run('account', *PLUGIN, '--epsilon=1')
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert found['status'] == 'stated'
  assert found['epsilon'] == pytest.approx(1, rel=1e-6)


def test_a_flagfile_may_name_it(tmp_path):
  (tmp_path / 'flags').write_text('--plugin=own_sums\n--system=own_sums\n')
  done = run('account', f'--flagfile={tmp_path}/flags', '--epsilon=1')
  assert json.loads(done.stdout)['system'] == 'own_sums'


def test_help_has_its_settings():
  done = run('train', '--plugin', 'own_sums', '--system=own_sums', '--help')
  assert done.returncode == 0, done.stderr
  assert 'settings of own_sums:' in done.stdout
  assert '--drawn: part of the noise that is drawn' in done.stdout
  assert 'own_sums: Noisy sums, by somebody else.' in done.stdout


def test_train_certifies_what_is_stated(tmp_path):
  done = run(
    'train', *PLUGIN, '--dataset=synthetic-small', '--epsilon=1',
    '--drawn=0.5', f'--output={tmp_path}/run',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert 'stated epsilon 1' in done.stdout
  certificate = json.loads((tmp_path / 'run' / 'certificate.json').read_text())
  assert certificate['status'] == 'stated'
  assert certificate['parameters']['drawn'] == 0.5


def test_a_ledger_takes_only_what_is_proved(tmp_path):
  done = run(
    'train', *PLUGIN, '--dataset=synthetic-small', '--epsilon=1',
    f'--output={tmp_path}/run', f'--ledger={tmp_path}/ledger',
    '--budget_epsilon=3',
  )  # fmt: skip
  assert done.returncode == 2
  assert 'only stated' in done.stderr


@pytest.mark.slow
def test_audit_finds_it(tmp_path):
  done = run('audit', *PLUGIN, '--runs=4000', f'--output={tmp_path}/audit.json')
  assert done.returncode == 0, done.stderr
  report = json.loads((tmp_path / 'audit.json').read_text())
  assert report['stated'] == pytest.approx(1, rel=1e-6)
  assert report['proved'] is None
  assert {each['system'] for each in report['findings']} == {'own_sums'}


def test_without_it_the_system_is_not_known():
  done = run('account', '--system=own_sums', '--epsilon=1')
  assert done.returncode == 2
  assert 'own_sums' in done.stderr


def test_a_plugin_that_is_not_there_is_one_line():
  done = run('account', '--plugin=no_such_module', '--system=own_sums')
  assert done.returncode == 2
  said = 'error: --plugin=no_such_module cannot be imported: No module named'
  assert done.stderr.startswith(said)
  assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize('command', ['train', 'account'])
def test_no_flag_at_all_is_one_line(command):
  done = run(command)
  assert done.returncode == 2
  assert done.stderr.startswith('error: --')
  assert len(done.stderr.splitlines()) == 1


def test_the_current_folder_is_searched(tmp_path):
  (tmp_path / 'mine_here.py').write_text('FOUND = True\n')
  before = (
    f'import os, sys; os.chdir({str(tmp_path)!r}); '
    f'sys.path[:] = [p for p in sys.path if p]'
  )
  done = forks.run(
    'launch.account', '--plugin=mine_here', '--system=power_mf', '--epsilon=1',
    before=before,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
