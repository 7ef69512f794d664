"""`launch.recommend` for new users and similar items, as people run it."""

import csv

import numpy as np
import pytest
import safetensors.numpy
from certified import make

from dpmf_jax import files
from dpmf_jax.ratings.table import from_arrays
from dpmf_jax.serving import models


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """What is published of a model of four films, and nothing else."""
  folder = tmp_path_factory.mktemp('published')
  rng = np.random.default_rng(0)
  ratings = from_arrays(
    ['ann', 'bob', 'cleo', 'ann'],
    ['m1', 'm2', 'm3', 'm4'],
    [5, 3, 1, 4],
    scale=(1, 5),
    titles={'m1': 'One, the first', 'm4': 'Four'},
  )
  item = np.array([[2, 0], [1.9, 0.1], [0, 1], [-1, 0.2]], np.float32)
  files.save_tree(
    folder / 'model.safetensors',
    {
      'factors': {'user': rng.normal(size=(3, 2)), 'item': item},
      'offset': np.float32(3),
    },
  )
  files.write_json(folder / 'ids.json', models.ids_json(ratings))
  files.write_json(folder / 'certificate.json', make(init='unit')[1])
  return folder


@pytest.fixture
def new_users(tmp_path):
  path = tmp_path / 'new.csv'
  path.write_text('user,item,rating\nzoe,m2,5\nyan,m2,1\nyan,m9,3\n')
  return path


def test_new_users_get_titles_and_nothing_they_rated(
  launch, folder, new_users, tmp_path
):
  output = tmp_path / 'top.csv'
  done = launch(
    'recommend', f'--model={folder}', f'--ratings={new_users}', '--k=2',
    f'--output={output}',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  warning = 'warning: new.csv: 1 of 3 ratings are left out, of 1 item(s)'
  assert done.stderr.startswith(warning)
  assert done.stderr.count('\n') == 1
  with output.open() as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0]) == ['user', 'item', 'score', 'rank', 'title']
  assert [(r['user'], r['rank']) for r in rows] == [
    ('yan', '1'), ('yan', '2'), ('zoe', '1'), ('zoe', '2'),
  ]  # fmt: skip
  assert all(r['item'] != 'm2' for r in rows)
  best = {r['user']: r for r in rows if r['rank'] == '1'}
  assert best['zoe']['item'] == 'm1'  # as m2, which zoe likes and yan does not
  assert best['zoe']['title'] == 'One, the first'
  assert best['yan']['item'] != 'm1'
  assert 1 <= float(best['yan']['score']) <= float(best['zoe']['score']) <= 5


def test_similar_items_as_table_and_parquet(launch, folder, tmp_path):
  import pyarrow.parquet

  done = launch('recommend', f'--model={folder}', '--similar_to=m1', '--k=1')
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines() == [
    'item One, the first [m1]',
    '    1. 1.00  m2',
  ]
  output = tmp_path / 'like.parquet'
  launch(
    'recommend', f'--model={folder}', '--similar_to=m1,m2', '--k=3',
    f'--output={output}',
  )  # fmt: skip
  table = pyarrow.parquet.read_table(output)
  names = ['item', 'similar', 'score', 'rank', 'title']
  assert table.column_names == names
  assert table['similar'].to_pylist() == ['m2', 'm3', 'm4', 'm1', 'm3', 'm4']
  assert table['title'].to_pylist()[:3] == [None, None, 'Four']


def test_reasons_are_the_users_own_items(launch, folder, new_users, tmp_path):
  flags = [f'--model={folder}', f'--ratings={new_users}', '--why=2']
  done = launch('recommend', *flags, '--k=1')
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[3].startswith('user zoe')
  assert lines[5].split() == ['because', 'of', 'm2']
  output = tmp_path / 'why.csv'
  launch('recommend', *flags, '--k=1', f'--output={output}')
  with output.open() as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0])[-1] == 'why'
  assert [row['why'] for row in rows if row['user'] == 'zoe'] == ['m2']


def test_a_model_of_one_number_says_that_lists_are_alike(
  launch, folder, new_users, tmp_path
):
  for name in ('ids.json', 'certificate.json'):
    (tmp_path / name).write_bytes((folder / name).read_bytes())
  item = np.array([[2, 1], [1, 1], [0.5, 1], [3, 1]], np.float32)
  files.save_tree(
    tmp_path / 'model.safetensors',
    {
      'factors': {'item': item},
      'fit': {'prior': np.float32([1, 0]), 'ridge': np.float32([9, 5])},
      'offset': np.float32(2),
    },
  )
  done = launch('recommend', f'--model={tmp_path}', f'--ratings={new_users}')
  assert done.returncode == 0, done.stderr
  assert 'note: this model has a single number for each item' in done.stderr
  again = launch('recommend', f'--model={folder}', f'--ratings={new_users}')
  assert 'note:' not in again.stderr


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    ([], 'pass one of --users'),
    (['--users=ann', '--similar_to=m1'], 'pass one of --users'),
    (['--users=ann', '--page=x.html'], 'and --page=FILE.html'),
    (['--page=x.html', '--output=x.csv'], '--output is for lists'),
    (['--users=ann'], 'which items were seen is not known'),
    (['--users=dan', '--nofilter_seen'], "user 'dan' is not in the model"),
    (['--similar_to=m1', '--output=x.txt'], 'must end in .csv or .parquet'),
    (['--ratings=absent.csv'], 'absent.csv: no such file'),
  ],
)
def test_wrong_flags_are_one_line(launch, folder, flags, words):
  done = launch('recommend', f'--model={folder}', *flags)
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) == 1, done.stderr
  assert words in done.stderr


def test_a_rating_outside_the_scale_is_located(launch, folder, tmp_path):
  path = tmp_path / 'new.csv'
  path.write_text('user,item,rating\nzoe,m1,4\nzoe,m2,7\n')
  done = launch('recommend', f'--model={folder}', f'--ratings={path}')
  assert done.returncode == 2
  assert 'line 3: rating 7 is outside the scale 1..5' in done.stderr


def test_a_model_that_releases_users_only_says_so(
  launch, folder, new_users, tmp_path
):
  leaves, _ = files.load_leaves(folder / 'model.safetensors')
  item = leaves.pop('factors/item')
  for name in ('ids.json', 'certificate.json'):
    (tmp_path / name).write_bytes((folder / name).read_bytes())
  files.save_tree(
    tmp_path / 'model.safetensors',
    {'factors': {'user': leaves['factors/user']}, 'offset': leaves['offset']},
  )
  (tmp_path / 'private').mkdir()
  files.save_tree(
    tmp_path / 'private' / 'unreleased.safetensors', {'factors': {'item': item}}
  )
  files.write_json(tmp_path / 'certificate.json', make()[1])
  page = tmp_path / 'page.html'
  for asked in (f'--ratings={new_users}', f'--page={page}'):
    done = launch('recommend', f'--model={tmp_path}', asked)
    assert done.returncode == 2
    assert 'its system releases no item factors' in done.stderr
    assert len(done.stderr.splitlines()) == 1
  assert not page.exists()


@pytest.mark.parametrize(
  ('name', 'content', 'words'),
  [
    ('ids.json', b'{', 'ids.json, line 1'),
    ('ids.json', b'[]', 'ids.json: is a list in JSON'),
    ('ids.json', b'{"users": []}', "ids.json: has no 'items'"),
    ('ids.json', b'{"items": 3}', "'items' must be a list of ids"),
    (
      'ids.json',
      b'{"users": [1, 2, 3], "items": [1, 2, 3, 4], "titles": 3}',
      "ids.json: 'titles' must be an object of texts",
    ),
    ('ids.json', b'\xff', 'ids.json: is not UTF-8 text'),
    ('certificate.json', b'[]', 'certificate.json: is a list in JSON'),
    ('model.safetensors', b'x', 'not a whole safetensors file'),
    ('model.safetensors', None, 'model.safetensors: has no offset'),
    (
      'model.safetensors',
      safetensors.numpy.save({'factors/item': np.ones(4, np.float32)}),
      r'leaf factors/item: has shape \[4\], not \[items, columns\]',
    ),
  ],
)
def test_a_broken_folder_is_named(folder, tmp_path, name, content, words):
  for path in folder.iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  if content is None:
    leaves, _ = files.load_leaves(folder / name)
    sides = {s: leaves[f'factors/{s}'] for s in ('user', 'item')}
    files.save_tree(tmp_path / name, {'factors': sides})
  else:
    (tmp_path / name).write_bytes(content)
  with pytest.raises(ValueError, match=words):
    models.load_model(tmp_path)


def test_a_page_is_of_what_is_published(launch, folder, tmp_path):
  published, page = tmp_path / 'published', tmp_path / 'page.html'
  published.mkdir()
  for name in ('ids.json', 'model.safetensors'):
    (published / name).write_bytes((folder / name).read_bytes())
  flags = (f'--model={published}', f'--page={page}', '--k=3')
  done = launch('recommend', flags[0], '--page=page.txt')
  assert '--page=page.txt must end in .html' in done.stderr
  done = launch('recommend', *flags)
  assert (done.returncode, done.stderr.count('\n')) == (2, 1)
  assert 'certificate.json: No such file' in done.stderr
  files.write_json(published / 'certificate.json', make()[1])
  done = launch('recommend', *flags)
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout.startswith('4 items, ')
  content = page.read_text(encoding='utf-8')
  assert '"names": ["One, the first", "m2", "m3", "Four"]' in content
  assert '"k": 3' in content
  (published / 'ids.json').write_text('{')
  done = launch('recommend', *flags)
  assert (done.returncode, done.stderr.count('\n')) == (2, 1)
  assert page.read_text(encoding='utf-8') == content
