"""benchmarks.reliability at its smallest: some kills, and a short soak."""

import pytest


@pytest.mark.slow
@pytest.mark.parametrize('forked', [[], ['--forked']], ids=['alone', 'forked'])
def test_killed_runs_end_as_others_do(launch, forked):
  done = launch(
    'reliability', '--kills=3', '--systems=ranking_mf,power_mf', *forked,
    room='benchmarks', alone=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
  head, _, *rows, end = done.stdout.splitlines()
  assert head.startswith('| system | runs | kills |')
  assert len(rows) == 3
  assert end == 'all of it holds'


@pytest.mark.slow
@pytest.mark.long
def test_a_soak_leaves_no_files_open(launch):
  done = launch(
    'reliability', '--soak_minutes=0.01', '--systems=power_mf',
    room='benchmarks', alone=True,
  )  # fmt: skip
  # Memory of so few calls says nothing: the exit code may be 1.
  assert 'failed' not in done.stdout, done.stdout
  assert 'file descriptors grew' not in done.stdout
  assert 'programs compiled grew' not in done.stdout
  assert 'arrays of JAX grew' not in done.stdout
  assert '| resident memory, MB |' in done.stdout, done.stderr
