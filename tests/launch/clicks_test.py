"""Files of clicks through the commands, as people type them."""

import json

import numpy as np
import pytest

QUICK = ('--unit=user', '--epsilon=5', '--rank=0', '--devices=1')


@pytest.fixture(scope='module')
def folder(small_ratings, tmp_path_factory):
  """plain.csv (user,item), plays.csv and visits.csv (with times)."""
  made, rng = small_ratings.columns(), np.random.default_rng(0)
  folder = tmp_path_factory.mktemp('clicks')
  tables = {
    'plain.csv': ('', ()),
    'plays.csv': ('user,item,plays', rng.integers(1, 9, len(made['user']))),
    'visits.csv': ('user,item,timestamp', rng.permutation(len(made['user']))),
  }
  for name, (header, more) in tables.items():
    columns = [made['user'], made['item'], more][: 3 if header else 2]
    lines = [','.join(map(str, row)) for row in zip(*columns, strict=True)]
    text = '\n'.join([*filter(None, [header]), *lines])
    (folder / name).write_text(text + '\n')
  return folder


def trained(launch, folder, name, *flags, **options):
  return launch(
    'train', f'--ratings={folder / name}', *QUICK,
    f'--output={folder / "runs" / name}', '--overwrite', *flags, **options,
  )  # fmt: skip


def test_a_file_of_clicks_becomes_lists(launch, folder):
  (folder / 'runs').mkdir(exist_ok=True)
  done = trained(launch, folder, 'visits.csv', '--split=last', alone=True)
  assert done.returncode == 0, done.stderr
  assert 'RMSE' not in done.stdout
  assert 'this model  popularity  noisy popularity' in done.stdout
  run = folder / 'runs' / 'visits.csv'
  certificate = json.loads((run / 'certificate.json').read_text())
  facts = certificate['parameters']
  assert certificate['system'] == 'ranking_mf'
  assert facts['split'].startswith('last: ')
  assert facts['max_count'] == 1
  assert json.loads((run / 'metrics.json').read_text())['num_test'] == 60
  (folder / 'new.csv').write_text('me,1\nme,2\nyou,3\n')
  lists = launch(
    'recommend', f'--model={run}', f'--ratings={folder / "new.csv"}', '--k=2'
  )
  assert lists.returncode == 0, lists.stderr
  assert lists.stdout.count('user ') == 2


def test_counts_count_up_to_a_public_number(launch, folder):
  (folder / 'runs').mkdir(exist_ok=True)
  done = trained(launch, folder, 'plays.csv', '--max_count=4')
  assert done.returncode == 0, done.stderr
  run = folder / 'runs' / 'plays.csv'
  certificate = json.loads((run / 'certificate.json').read_text())
  assert certificate['parameters']['max_count'] == 4
  assert certificate['parameters']['scale'] == [0, 4]


@pytest.mark.parametrize(
  ('name', 'flags', 'line'),
  [
    ('plain.csv', ['--task=rating'],
     '--task=rating is to predict ratings, and plain.csv has clicks: use '
     '--task=ranking, or leave it out'),
    ('plain.csv', ['--split=last'],
     "plain.csv has no timestamps, which --split='last' needs: use "
     "--split='random', or name their column"),
    ('plain.csv', ['--scale=1,5'],
     '--scale=(1.0, 5.0) is for ratings, and plain.csv has clicks: leave it '
     'out'),
    ('visits.csv', ['--split=last', '--test_fraction=0.5'],
     "--test_fraction=0.5 is for --split='random': 'last' holds out the last "
     'of each user'),
  ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_line(launch, folder, name, flags, line):
  done = trained(launch, folder, name, *flags)
  assert done.returncode == 2
  assert done.stderr == f'error: {line}\n'
