"""User features from files."""

import numpy as np
import pytest

from dpmf_jax.ratings.features import read_user_features
from dpmf_jax.ratings.table import DataError, from_arrays

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
  found = read_user_features(RATINGS, path)
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
    read_user_features(RATINGS, path)
  assert '\n' not in str(error.value)
