"""Tests of the tables that are kept of files that were read before."""

import stat
import warnings

import numpy as np
import pytest

from dpmf_jax.ratings import formats, kept

NAMES = ('user', 'item', 'value', 'user_ids', 'item_ids', 'timestamp')


@pytest.fixture
def file(tmp_path):
  path = tmp_path / 'r.csv'
  path.write_text('a,1,3,100\nb,1,4,200\na,2,5,300\na,1,1,400\n')
  return path


class Reader:
  """`kept.read`, what it said, and whether it read the file."""

  def __init__(self, folder, monkeypatch):
    self.folder, self.said, self.reads = folder, [], 0
    self.own = formats.read
    monkeypatch.setattr(formats, 'read', self.counted)

  def counted(self, *args, **options):
    self.reads += 1
    return self.own(*args, **options)

  def __call__(self, path, least=0, scale=(1, 5), **options):
    self.reads, self.said = 0, []
    say = self.said.append
    return kept.read(
      path, self.folder, say=say, least=least, scale=scale, **options
    )


@pytest.fixture
def read(tmp_path, monkeypatch):
  return Reader(tmp_path / 'cache' / 'tables', monkeypatch)


def test_the_second_time_the_same_table_is_there(read, file):
  tables, reads = [], []
  for _ in range(2):
    with pytest.warns(UserWarning, match=r'line 4: \(user, item\) rated'):
      tables.append(read(file))
    reads.append(read.reads)
  assert reads == [1, 0]
  assert read.said == []
  for name in NAMES:
    one, other = (getattr(table, name) for table in tables)
    assert np.array_equal(one, other)
    assert one.dtype == other.dtype
  for name in ('scale', 'clicks', 'name', 'titles'):
    assert getattr(tables[0], name) == getattr(tables[1], name)


@pytest.mark.filterwarnings('ignore:.*rated before')
def test_another_file_or_option_is_read(read, file):
  read(file)
  for options in ({'scale': (0, 5)}, {'duplicates': 'first'}):
    read(file, **options)
    assert read.reads == 1
  file.write_text('a,1,2,100\n')
  assert read(file).value.tolist() == [2]
  assert read.reads == 1


@pytest.mark.filterwarnings('ignore:.*rated before')
def test_what_is_kept_is_private_and_said(read, file):
  read(file)
  (path,) = read.folder.iterdir()
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert stat.S_IMODE(read.folder.stat().st_mode) == 0o700
  where = f'{file} in {read.folder}'
  assert read.said == [f'keeping what was read of {where}, which is private']


@pytest.mark.filterwarnings('ignore:.*rated before')
@pytest.mark.parametrize('place', [0, 40, -40])
def test_what_is_damaged_is_read_again(read, file, place):
  table = read(file)
  (path,) = read.folder.iterdir()
  content = bytearray(path.read_bytes())
  content[place] ^= 1
  path.write_bytes(content)
  again = read(file)
  assert read.reads == 1
  assert f'{path}: is damaged, ' in read.said[0]
  assert np.array_equal(again.value, table.value)
  read(file)
  assert read.reads == 0


@pytest.mark.filterwarnings('ignore:.*rated before')
def test_a_folder_that_others_may_open_is_not_used(read, file):
  read.folder.mkdir(parents=True)
  read.folder.chmod(0o755)
  read(file)
  assert 'others may open it; make it yours alone' in read.said[0]
  assert not list(read.folder.iterdir())


@pytest.mark.filterwarnings('ignore:.*rated before')
def test_small_files_are_not_kept(read, file):
  read(file, least=kept.LEAST)
  assert (read.said, read.folder.exists()) == ([], False)


def test_few_tables_are_kept_and_other_files_are(read, tmp_path):
  read.folder.mkdir(mode=0o700, parents=True)
  others = [f'{k}.txt' for k in range(12)]
  for name in others:
    (read.folder / name).touch()
  for number in range(10):
    path = tmp_path / f'{number}.csv'
    path.write_text(f'1,{number},3\n')
    read(path)
  assert len(list(read.folder.glob('*.table'))) == 8
  assert len(list(read.folder.iterdir())) == 8 + len(others)


def test_parts_are_kept_together(read, tmp_path):
  for number in range(2):
    (tmp_path / f'p{number}.csv').write_text(f'1,{number},3\n')
  for want in (1, 0):
    assert len(read(tmp_path / 'p*.csv')) == 2
    assert read.reads == want
  (tmp_path / 'p2.csv').write_text('2,1,3\n')
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert len(read(tmp_path / 'p*.csv')) == 3
