"""Flags that say how a file of ratings is written."""

import gzip
import json

import pytest


@pytest.fixture
def train(launch, tmp_path):
  def run(*flags):
    return launch(
      'train', '--system=gaussian_mf', '--epsilon=2', '--steps=1', '--rank=2',
      '--test_fraction=0', f'--output={tmp_path / "run"}', *flags,
    )  # fmt: skip

  return run


def ids(folder):
  found = json.loads((folder / 'run' / 'ids.json').read_text())
  return found['users'], found['items']


@pytest.mark.slow
def test_a_packed_matrix_is_trained_on_and_served(launch, train, tmp_path):
  path = tmp_path / 'jokes.csv.gz'
  rows = ('3,-9.5,99,4', '4,1,-2,3', '5,99,8.25,0.5')
  path.write_bytes(gzip.compress('\n'.join(rows).encode()))
  how = ('--format=dense', '--missing=99', '--columns=item=1')
  done = train(f'--ratings={path}', '--scale=-10,10', *how)
  assert done.returncode == 0, done.stderr
  assert ids(tmp_path) == ([1, 2, 3], [1, 2, 3])
  done = launch(
    'recommend', f'--model={tmp_path / "run"}', f'--ratings={path}', '--k=2',
    *how,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith('user 1\n    1. ')


@pytest.mark.slow
def test_columns_delimiter_and_encoding(train, tmp_path):
  path = tmp_path / 'a.txt'
  text = 'stars who what\n' + ''.join(
    f'{1 + u % 5} Zoë{u} {i}€\n' for u in range(4) for i in range(3)
  )
  path.write_bytes(text.encode('cp1252'))
  done = train(
    f'--ratings={path}', '--delimiter=space', '--encoding=cp1252',
    '--columns=user=who,item=2,rating=stars',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert ids(tmp_path) == (
    ['Zoë0', 'Zoë1', 'Zoë2', 'Zoë3'], ['0€', '1€', '2€'],
  )  # fmt: skip


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--columns=user'], '--columns=user must be such as user=userId'),
    (['--columns=user=0,user=1'], 'each once'),
    (['--columns=person=0'], "'person' is not one of user, item"),
    (['--missing=0'], '--missing=0 is for --format=dense alone'),
    (['--delimiter=abc'], '--delimiter=abc must be one or two characters'),
    (['--encoding=klingon'], '--encoding=klingon is not known to Python'),
  ],
)
def test_wrong_flags(train, tmp_path, flags, words):
  path = tmp_path / 'a.csv'
  path.write_text('1,2,3\n')
  done = train(f'--ratings={path}', *flags)
  assert done.returncode == 2
  assert done.stderr.startswith('error: ')
  assert words in done.stderr


def test_data_sets_have_their_own(train):
  done = train('--dataset=synthetic-small', '--delimiter=tab')
  assert done.returncode == 2
  assert '--delimiter is for --ratings=FILE, not for --dataset' in done.stderr
