"""`launch.compare` as people run it."""

import csv
import signal

import forks
import pytest

from dpmf_jax.evaluation.comparison import NOTE
from dpmf_jax.ratings import writing

SYSTEMS = '--systems=gaussian_mf:steps=2,nonprivate:steps=2:rank=2'


@pytest.fixture(scope='module')
def ratings_file(tmp_path_factory, small_ratings):
  path = tmp_path_factory.mktemp('compare') / 'mine.csv'
  writing.write(small_ratings, path)
  return path


# Ends the process as by SIGKILL, right after its third run is kept.
_KILLED = """
import os, signal
from dpmf_jax import files

write = files.write_bytes

def write_and_die(path, content, **options):
  write(path, content, **options)
  if path.name == 'cells.jsonl' and content.count(b'\\n') == 3:
    os.kill(os.getpid(), signal.SIGKILL)

files.write_bytes = write_and_die
"""


def flags(path, output, *more):
  return (
    f'--ratings={path}', f'--output={output}', SYSTEMS, '--epsilons=1,4',
    '--seeds=2', '--devices=1', *more,
  )  # fmt: skip


@pytest.mark.slow
def test_a_killed_comparison_goes_on(launch, ratings_file, tmp_path):
  output = tmp_path / 'out'
  given = flags(ratings_file, output)
  killed = forks.run('launch.compare', *given, before=_KILLED)
  assert killed.returncode == -signal.SIGKILL
  before = (output / 'cells.jsonl').read_text()
  assert len(before.splitlines()) == 3
  assert [path.name for path in output.iterdir()] == ['cells.jsonl']
  done = launch('compare', *given)
  assert (done.returncode, done.stderr) == (0, '')
  after = (output / 'cells.jsonl').read_text()
  assert after.startswith(before)
  assert len(after.splitlines()) == 8
  # It says first what it is, and only once.
  said = ' '.join(done.stdout.split())
  assert said.startswith(NOTE)
  assert said.count(NOTE) == 1
  assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
  with (output / 'table.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [row['epsilon'] for row in rows[:3]] == ['1.0', '4.0', '']
  for row in rows:
    assert f'{float(row["rmse"]):.4f}' in done.stdout


@pytest.mark.parametrize(
  ('flag', 'said'),
  [
    ('--epsilons=1,x', '--epsilons=1,x must be positive numbers, such as'),
    ('--epsilons=0', '--epsilons=0 must be positive numbers, such as'),
    ('--folds=1', '--folds=1 must be an integer from 2'),
    ('--seeds=0', '--seeds=0 must be an integer from 1'),
    ('--systems=gaussian_mf,gaussian_mf', "has 'gaussian_mf' twice"),
    ('--systems=powr', '--systems=powr cannot be run: system=powr is'),
    ('--test_fraction=2', '--test_fraction=2.0 must be in (0, 1)'),
    ('--split=last', 'mine.csv has no timestamps, which --split=last needs'),
    ('--dataset=ml-100k', 'pass one of --dataset=NAME and --ratings=FILE'),
  ],
)
def test_errors_are_one_line_that_names_flags(
  launch, ratings_file, tmp_path, flag, said
):
  done = launch('compare', *flags(ratings_file, tmp_path / 'out', flag))
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) == 1
  assert said in done.stderr
