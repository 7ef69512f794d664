"""Genres, age groups, genders and occupations of MovieLens."""

import numpy as np
import pytest

from dpmf_jax.ratings import attributes, catalog
from dpmf_jax.ratings.table import DataError, from_arrays

FLAGS = {'1': (3, 4, 5), '2': (16,), '9': ()}


def flags(places):
  return '|'.join('1' if k in places else '0' for k in range(19))


@pytest.fixture
def ratings():
  return from_arrays([5, 7], [2, 1], [3, 4], scale=(1, 5))


@pytest.fixture
def folder(tmp_path):
  items = [f'{k}|T\xe9|d||u|{flags(v)}' for k, v in FLAGS.items()]
  (tmp_path / 'u.item').write_bytes('\n'.join(items).encode('latin-1'))
  (tmp_path / 'u.user').write_text(
    '5|17|F|student|1\r\n7|56|M|writer|2\r\n8|18|M|none|3\r\n'
  )
  return tmp_path


def names_of(row, names):
  return [name for name, value in zip(names, row, strict=True) if value]


def test_rows_are_those_of_the_ratings_ids_and_have_norm_one(ratings, folder):
  made = attributes.movielens(ratings, folder)
  assert [names_of(row, made.item_names) for row in made.item] == [
    ['Animation', "Children's", 'Comedy'],
    ['Thriller'],
  ]
  assert [names_of(row, made.user_names) for row in made.user] == [
    ['age 1+', 'gender F', 'student'],
    ['age 56+', 'gender M', 'writer'],
  ]
  for table in (made.user, made.item):
    np.testing.assert_allclose((table**2).sum(axis=1), 1, rtol=1e-6)
    assert not table.flags.writeable


def test_an_item_without_genres_has_none(folder):
  ratings = from_arrays([5], [9], [3], scale=(1, 5))
  assert not attributes.movielens(ratings, folder).item.any()


def test_movielens_1m(tmp_path, ratings):
  (tmp_path / 'users.dat').write_text('5::F::1::10::x\n7::M::25::20::x\n')
  (tmp_path / 'movies.dat').write_text('1::A::War\n2::B::Drama|War\n')
  made = attributes.movielens(ratings, tmp_path)
  assert names_of(made.item[1], made.item_names) == ['Drama', 'War']
  assert names_of(made.user[1], made.user_names) == [
    'age 25+',
    'gender M',
    'occupation 20',
  ]


@pytest.mark.parametrize(
  ('file', 'text', 'message'),
  [
    ('u.user', '5|x|F|student|1\n', r"u.user, line 1: age 'x'"),
    ('u.user', '5|20|F|king|1\n', r"line 1: occupation 'king' is not known"),
    ('u.user', '5|20|F\n', r'line 1: has 3 column'),
    ('u.user', '5|20|F|none|1\n', r'nothing is known of user 7'),
    ('u.item', '1|T|d||u|' + flags(()).replace('0', '2') + '\n', 'not 0 or 1'),
  ],
)
def test_what_is_wrong_is_named(ratings, folder, file, text, message):
  (folder / file).write_text(text)
  with pytest.raises(DataError, match=message):
    attributes.movielens(ratings, folder)


def test_a_folder_without_attributes_is_named(ratings, tmp_path):
  with pytest.raises(DataError, match=r'neither u.user nor users.dat'):
    attributes.movielens(ratings, tmp_path)


def test_how_it_is_written_tells_tables_apart():
  make = lambda value: attributes.Attributes(
    user=np.full((2, 1), value),
    item=np.zeros((3, 0)),
    user_names=('x',),
    item_names=(),
  )
  assert repr(make(1.0)) == repr(make(1.0)) != repr(make(2.0))
  assert len(repr(make(1.0))) < 100
  with pytest.raises(DataError, match='not all finite'):
    make(np.nan)


@pytest.mark.parametrize('name', ['ml-100k', 'ml-1m'])
def test_the_real_files(name, data_dir):
  if not (data_dir / name).is_dir():
    pytest.skip(f'{name} not found in DPMF_DATA_DIR')
  ratings = catalog.load(name, data_dir=data_dir, quiet=True)
  made = attributes.movielens(ratings, catalog.fetch(name, data_dir=data_dir))
  assert made.user.shape == (ratings.num_users, 7 + 2 + 21)
  assert made.item.shape == (ratings.num_items, 19)
  assert ((made.user > 0).sum(axis=1) == 3).all()
  assert (made.item > 0).any(axis=1).all()


# User features from files.

RATINGS = from_arrays(
  ['a', 'b', 'c'], ['x', 'x', 'y'], [1, 2, 3], scale=(1.0, 5.0)
)


@pytest.mark.parametrize(
  'text',
  [
    'user,age,income\nc,3,4\na,1,0\nother,6,8\nb,0,2\n',
    'c;3;4\na;1;0\nother;6;8\nb;0;2\n',
  ],
)
def test_features_are_by_user_with_a_constant(tmp_path, text):
  path = tmp_path / 'users.csv'
  path.write_text(text)
  found = attributes.read_user_features(RATINGS, path)
  # 10 is the norm of the line of a user without ratings.
  want = np.array([[1, 0.1, 0], [1, 0, 0.2], [1, 0.3, 0.4]]) * np.sqrt(0.5)
  np.testing.assert_allclose(found, want)
  assert np.linalg.norm(found, axis=1).max() <= 1


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('user,age\na,1\nb,2\n', r'users.csv: 1 user\(s\) have no line, .* is c'),
    ('a,1\nb,2\nc,3\na,4\n', 'users.csv, line 4: user a is there before'),
    ('user,age\na,1\nb,old\nc,3\n', "users.csv, line 3: age 'old'"),
    ('a,1\nb,nan\nc,3\n', 'users.csv, line 2'),
    ('a\nb\nc\n', r'users.csv'),
  ],
)
def test_bad_files_get_one_clear_line(tmp_path, text, message):
  path = tmp_path / 'users.csv'
  path.write_text(text)
  with pytest.raises(DataError, match=message) as error:
    attributes.read_user_features(RATINGS, path)
  assert '\n' not in str(error.value)
