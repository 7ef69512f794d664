"""Tests of the named data sets: search order, checksums, cache."""

import http.server
import io
import threading
import zipfile

import numpy as np
import pytest

from dpmf_jax import files
from dpmf_jax.ratings import catalog, sources
from dpmf_jax.ratings.table import DataError

SIZES = {
  'ml-100k': (943, 1682, 100000),
  'ml-1m': (6040, 3706, 1000209),
  'netflix-slice': (90619, 91, 242480),
  'anime-slice': (4714, 7157, 419943),
  'jester-1': (24983, 100, 1810455),
}
U_DATA = b'1\t2\t3\t4\n5\t2\t4\t4\n'
U_ITEM = b'2|Some Film (1999)|x\n'


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch, request):
  """No test reads or writes the user's cache; DPMF_DATA_DIR is put back."""
  if 'data_dir' in request.fixturenames:
    request.getfixturevalue('data_dir')  # before the variable goes
  monkeypatch.setenv('DPMF_CACHE', str(tmp_path / 'cache'))
  monkeypatch.delenv('DPMF_DATA_DIR', raising=False)


@pytest.fixture
def tiny(monkeypatch):
  """Makes two lines pass for ML-100K."""
  for name, content in (('u.data', U_DATA), ('u.item', U_ITEM)):
    monkeypatch.setitem(catalog._SHA256, name, files.sha256(content))


@pytest.fixture
def server(monkeypatch):
  """A real web server in GroupLens' place; `pages` is what it serves."""
  pages: dict[str, bytes] = {}

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      body = pages.get(self.path)
      self.send_response(404 if body is None else 200)
      self.send_header('Content-Length', str(len(body or b'')))
      self.end_headers()
      self.wfile.write(body or b'')

    def log_message(self, *args):
      pass

  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as web:
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    url = f'http://127.0.0.1:{web.server_port}/ml-100k.zip'
    spec = catalog._FILES['ml-100k']._replace(archive=url)
    monkeypatch.setitem(catalog._FILES, 'ml-100k', spec)
    # pip must not be reached, and says so at once.
    monkeypatch.setattr(sources, '_WHEEL', 'no-such-file.whl')
    yield pages
    web.shutdown()
    thread.join()


def archive(data=U_DATA, item=U_ITEM):
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, 'w') as file:
    file.writestr('ml-100k/u.data', data)
    file.writestr('ml-100k/u.item', item)
  return buffer.getvalue()


@pytest.mark.parametrize('name', SIZES)
def test_real_data_sets(name, data_dir):
  ratings = catalog.load(name, data_dir=data_dir, quiet=True)
  assert (ratings.num_users, ratings.num_items, len(ratings)) == SIZES[name]
  assert ratings.name == name
  scales = {'anime-slice': (1, 10), 'jester-1': (-10, 10)}
  assert ratings.scale == scales.get(name, (1, 5))
  assert ratings.value.max() == ratings.scale[1]
  if name == 'jester-1':  # in steps, none of which is -10; without titles
    assert ratings.value.min() == np.float32(-9.95)
    assert ratings.item_ids.tolist() == list(range(1, 101))
    return
  assert ratings.value.min() == ratings.scale[0]
  assert all(str(item) in ratings.titles for item in ratings.item_ids)


def test_titles_of_the_two_movielens(data_dir):
  small = catalog.load('ml-100k', data_dir=data_dir / 'ml-100k', quiet=True)
  assert small.titles['50'] == 'Star Wars (1977)'
  large = catalog.load('ml-1m', data_dir=data_dir / 'ml-1m', quiet=True)
  assert large.titles['260'] == 'Star Wars: Episode IV - A New Hope (1977)'
  assert large.titles['73'] == 'Misérables, Les (1995)'


def test_small_synthetic_is_the_same_every_time():
  one, two = catalog.load('synthetic-small'), catalog.load('synthetic-small')
  np.testing.assert_array_equal(one.item, two.item)
  assert (one.num_users, one.num_items, len(one)) == (200, 100, 4000)
  with pytest.raises(DataError, match='nothing to fetch'):
    catalog.fetch('synthetic-small')


def test_unknown_names_and_places(tmp_path):
  with pytest.raises(DataError, match="'ml-2' is not one of ml-100k, ml-1m"):
    catalog.load('ml-2')
  with pytest.raises(DataError, match='name is a dict, but must be one of ml-'):
    catalog.load({'me': {'50': 5}})
  with pytest.raises(DataError, match=r'data_dir=.*gone is not a directory'):
    catalog.fetch('ml-1m', data_dir=tmp_path / 'gone')


def test_environment_and_argument_order(tmp_path, monkeypatch, tiny):
  for place in ('one', 'two'):
    (tmp_path / place / 'ml-100k').mkdir(parents=True)
    (tmp_path / place / 'ml-100k' / 'u.data').write_bytes(U_DATA)
  monkeypatch.setenv('DPMF_DATA_DIR', str(tmp_path / 'two'))
  assert catalog.fetch('ml-100k') == tmp_path / 'two' / 'ml-100k'
  found = catalog.fetch('ml-100k', data_dir=tmp_path / 'one')
  assert found == tmp_path / 'one' / 'ml-100k'
  ratings = catalog.load('ml-100k', data_dir=found)
  assert (len(ratings), ratings.titles) == (2, {})


@pytest.mark.parametrize('file', ['u.data', 'u.item'])
def test_a_wrong_file_in_a_data_directory_is_an_error(tmp_path, tiny, file):
  (tmp_path / 'u.data').write_bytes(U_DATA)
  (tmp_path / 'u.item').write_bytes(U_ITEM)
  with (tmp_path / file).open('ab') as handle:
    handle.write(b'x')
  want = catalog._SHA256[file]
  with pytest.raises(DataError, match=f'{file}: SHA-256 is .* expected {want}'):
    catalog.fetch('ml-100k', data_dir=tmp_path)


def test_slices_are_not_fetched(tmp_path):
  with pytest.raises(DataError, match='no public address') as caught:
    catalog.fetch('anime-slice', data_dir=tmp_path, quiet=True)
  assert str(tmp_path) in str(caught.value)
  assert 'data_dir or DPMF_DATA_DIR to DIR' in str(caught.value)


def test_download_enters_the_cache_whole(tmp_path, tiny, server, capsys):
  server['/ml-100k.zip'] = archive()
  ratings = catalog.load('ml-100k')
  assert ratings.titles == {'2': 'Some Film (1999)'}
  cache = tmp_path / 'cache'
  assert sorted(p.name for p in cache.iterdir()) == [
    '.licence-movielens-shown',
    'ml-100k',
  ]
  assert capsys.readouterr().err.count('Harper and Konstan') == 1
  server.clear()  # the second time comes from the cache, without the note
  assert len(catalog.load('ml-100k')) == 2
  assert capsys.readouterr().err == ''


def test_a_wrong_file_in_the_cache_is_moved_aside(
  tmp_path, tiny, server, capsys
):
  server['/ml-100k.zip'] = archive()
  folder = catalog.fetch('ml-100k')
  (folder / 'u.data').write_bytes(b'1\t1\t1\t1\n')
  assert len(catalog.load('ml-100k')) == 2
  assert 'moved to' in capsys.readouterr().err
  aside = tmp_path / 'cache' / 'ml-100k.bad-1' / 'u.data'
  assert aside.read_bytes() == b'1\t1\t1\t1\n'


@pytest.mark.parametrize(
  ('page', 'reason'),
  [
    (None, 'Not Found'),
    (b'<html>captive portal</html>', 'not the archive expected'),
    (archive(data=b'1\t1\t1\t1\n'), 'u.data: SHA-256 is'),
    (archive()[:100], 'not the archive expected'),
  ],
  # Archives have a time in them, and names of tests must not.
  ids=['missing', 'a page', 'other ratings', 'cut short'],
)
def test_a_failed_source_is_named_and_the_next_tried(
  tmp_path, tiny, server, capsys, page, reason
):
  if page is not None:
    server['/ml-100k.zip'] = page
  with pytest.raises(DataError, match='ml-100k was not found') as caught:
    catalog.fetch('ml-100k')
  lines = capsys.readouterr().err.splitlines()
  assert reason in lines[1]
  assert lines[1].endswith('trying the RecBole wheel on the package index')
  assert lines[-1].startswith('pip download')
  assert reason in str(caught.value)
  assert 'pip download' in str(caught.value)
  assert not (tmp_path / 'cache' / 'ml-100k').exists()


def test_install_loses_a_race_gracefully(tmp_path):
  folder = tmp_path / 'set'
  sources.install(folder, {'a': b'first'})
  sources.install(folder, {'a': b'second'})
  assert (folder / 'a').read_bytes() == b'first'
  assert [p.name for p in tmp_path.iterdir()] == ['set']


def test_the_real_wheel_gives_the_real_ratings(tmp_path, monkeypatch):
  """Downloads 2 MB from the package index, where there is one."""
  try:
    files = sources.recbole_wheel(quiet=True)
  except sources.SourceError as error:
    pytest.skip(f'no package index here: {error}')
  for name, content in files.items():
    assert sources.mismatch(name, content, catalog._SHA256[name]) == ''
  folder = tmp_path / 'cache' / 'ml-100k'
  sources.install(folder, files)
  ratings = catalog.load('ml-100k', quiet=True)
  assert (ratings.num_users, ratings.num_items, len(ratings)) == SIZES[
    'ml-100k'
  ]
  assert ratings.titles['50'] == 'Star Wars (1977)'
  assert all(str(item) in ratings.titles for item in ratings.item_ids)
