"""Tests of the epsilon that each rating is to have."""

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax import accounting
from dpmf_jax.ratings import formats, writing
from dpmf_jax.ratings import specification as s
from dpmf_jax.ratings.splits import random_split, uniforms
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import DataError, from_arrays


def from_user_file(ratings, path):
  return s.from_user_table(ratings, s.read_users(path), path)


@pytest.fixture(scope='module')
def many():
  return synthetic(num_users=600, num_items=370, num_ratings=60_000, seed=0)


def table(users=('a', 'a', 'b'), items=(1, 2, 2)):
  return from_arrays(list(users), list(items), [3.0] * len(users), scale=(1, 5))


def by_ids(ratings):
  users = ratings.user_ids[ratings.user].tolist()
  items = ratings.item_ids[ratings.item].tolist()
  return dict(
    zip(zip(users, items, strict=True), ratings.epsilon.tolist(), strict=True)
  )


def assert_uniform(part, low, high):
  # Kolmogorov-Smirnov: above 3/sqrt(n) with chance 2 exp(-18) < 4e-8.
  assert ((part >= low) & (part <= high)).all()
  place = (np.sort(part) - low) / (high - low)
  even = (np.arange(len(part)) + 0.5) / len(part)
  assert np.abs(place - even).max() < 3 / np.sqrt(len(part))


@pytest.mark.parametrize('seed', [0, 1, 2**64 - 1])
def test_fractions_come_out_as_asked(many, seed):
  epsilon = s.from_fractions(many, seed=seed).epsilon
  low, top = epsilon < 0.2, epsilon == 1.0
  middle = ~low & ~top
  # Each is off by five standard deviations with chance 6e-7: with three seeds
  # and three groups, one false alarm in 190,000 choices of the seeds.
  for group, part in ((low, 0.54), (middle, 0.37), (top, 0.09)):
    deviation = np.sqrt(part * (1 - part) / len(many))
    assert abs(group.mean() - part) < 5 * deviation
  assert_uniform(epsilon[low], 0.1, 0.2)
  assert_uniform(epsilon[middle], 0.2, 1.0)


def test_fractions_can_be_all_or_nothing(many):
  make = lambda **given: s.from_fractions(many, seed=0, **given).epsilon
  assert (make(conservative=0, moderate=0, highest=0.7) == 0.7).all()
  assert (make(conservative=1, moderate=0) < 0.2).all()
  assert (make(conservative=0, moderate=1) >= 0.2).all()
  assert (make(lowest=0.4, middle=0.4, highest=0.4) == 0.4).all()


@settings(max_examples=30)
@given(st.integers(0, 699), st.integers(0, 2**64 - 1))
def test_a_draw_depends_on_no_other_rating(small_ratings, index, seed):
  whole = s.from_fractions(small_ratings, seed=seed)
  users = small_ratings.user_ids[small_ratings.user]
  items = small_ratings.item_ids[small_ratings.item]
  keep = np.arange(700) != index
  # From scratch, so that the id lists may change, and with other values.
  fewer = from_arrays(
    users[keep][::-1], items[keep][::-1], np.full(699, 2.0), scale=(1, 5)
  )
  fewer = by_ids(s.from_fractions(fewer, seed=seed))
  more = by_ids(whole)
  assert len(fewer) == 699
  assert all(more[pair] == epsilon for pair, epsilon in fewer.items())


def test_a_split_says_nothing_about_the_draw(many):
  whole = s.from_fractions(many, seed=7)
  train, test = random_split(whole, 0.2, seed=7)
  np.testing.assert_array_equal(
    train.epsilon, s.from_fractions(train, seed=7).epsilon
  )
  # The mean of the test side (12,000 of standard deviation at most 0.45) is
  # within 6 of its standard deviations but for a chance of 2e-9.
  close = 6 * 0.45 / np.sqrt(len(test))
  assert abs(test.epsilon.mean() - train.epsilon.mean()) < close
  # Correlations of n independent pairs have standard deviation 1/sqrt(n).
  side = uniforms(many, 7)
  for other in (whole, s.from_fractions(many, seed=8)):
    assert abs(np.corrcoef(side, other.epsilon)[0, 1]) < 6 / np.sqrt(len(many))
  again = s.from_fractions(many, seed=8).epsilon
  assert (again != whole.epsilon).mean() > 0.9
  assert abs(np.corrcoef(again, whole.epsilon)[0, 1]) < 6 / np.sqrt(len(many))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'conservative': 0.7}, 'conservative=0.7 and moderate=0.37 must be'),
    ({'moderate': -0.1}, 'moderate=-0.1 must be fractions'),
    ({'conservative': np.nan}, 'must be fractions'),
    ({'lowest': 0.0}, 'lowest=0.0, .* must be positive'),
    ({'lowest': 0.3}, 'lowest=0.3, middle=0.2 .* in this order'),
    ({'highest': np.inf}, 'highest=inf must be .* finite'),
    ({'seed': -1}, 'seed=-1 is not in'),
    ({'seed': 2**64}, 'is not in'),
  ],
)
def test_wrong_fractions_are_named(changes, message):
  with pytest.raises(DataError, match=message):
    s.from_fractions(table(), **({'seed': 0} | changes))


def test_by_hand_and_by_user():
  assert s.with_epsilon(table(), 0.5).epsilon.tolist() == [0.5] * 3
  assert s.with_epsilon(table(), [1, 2, 3]).epsilon.tolist() == [1, 2, 3]
  level = {'a': 0.5, 'b': 2, 'unknown': 7.0}
  assert s.from_users(table(), level).epsilon.tolist() == [0.5, 0.5, 2.0]
  only_a = table().take(np.array([0]))
  assert s.from_users(only_a, {'a': 1.0}).epsilon.tolist() == [1.0]
  numbered = s.from_users(table((7, 7, 9)), {7: 1.0, 9: 2.0})
  assert numbered.epsilon.tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda t: s.with_epsilon(t, 0.0), 'row 0: epsilon 0.0 is not positive'),
    (lambda t: s.with_epsilon(t, [1.0]), 'epsilon has shape'),
    (lambda t: s.from_users(t, {'b': 1.0}), "1 user.* have no .* first is 'a'"),
    (lambda t: s.from_users(t, {'a': 1.0, 'b': -1.0}), "user 'b': epsilon -1"),
    (lambda t: s.from_users(t, {'a': 1.0, 'b': None}), 'not all .* numbers'),
  ],
)
def test_wrong_epsilons_are_named(make, message):
  with pytest.raises(DataError, match=message):
    make(table())


def write(folder, text, name='ratings.csv'):
  (folder / name).write_text(text)
  return folder / name


COLUMNS = """user,level,item,rating
a,0.5,1,3
b,2,2,4
a,1e-1,2,5
"""


def test_epsilons_from_a_column(tmp_path):
  path = write(tmp_path, COLUMNS)
  ratings = formats.read(path, scale=(1, 5))
  found = s.from_column(ratings, path, 'level')
  wanted = {('a', 1): 0.5, ('b', 2): 2.0, ('a', 2): 0.1}
  assert by_ids(found) == wanted
  part = s.from_column(ratings.take(np.array([2])), path, 'level')
  assert by_ids(part) == {('a', 2): 0.1}
  quoted = write(tmp_path, COLUMNS.replace('a,', '"a",'), 'quoted.csv')
  assert by_ids(s.from_column(ratings, quoted, 'level')) == wanted
  tabs = write(tmp_path, COLUMNS.replace(',', '\t'), 'ratings.tsv')
  assert by_ids(s.from_column(ratings, tabs, 'level', format='tsv')) == wanted


def test_the_last_epsilon_of_a_pair_counts(tmp_path):
  path = write(tmp_path, COLUMNS + 'a,0.7,1,2\nb,3,2,1\na,0.25,1,1\n')
  with pytest.warns(UserWarning, match='keeping the last'):
    ratings = formats.read(path, scale=(1, 5))
  found = s.from_column(ratings, path, 'level')
  assert by_ids(found) == {('a', 1): 0.25, ('b', 2): 3.0, ('a', 2): 0.1}


def test_ids_are_compared_as_text(tmp_path):
  text = 'user,item,rating,level\n7,1,3,0.5\nx,1,4,2\n'
  ratings = from_arrays([7], [1], [3], scale=(1, 5))
  found = s.from_column(ratings, write(tmp_path, text), 'level')
  assert found.epsilon.tolist() == [0.5]
  users = write(tmp_path, '7,0.5\nx,2\n', 'users.csv')
  assert from_user_file(ratings, users).epsilon.tolist() == [0.5]


@pytest.mark.parametrize('format', ['csv', 'tsv', 'inter'])
def test_what_is_written_is_read_back(tmp_path, small_ratings, format):
  given = s.from_fractions(small_ratings, seed=3)
  path = writing.write(given, tmp_path / f'ratings.{format}', format)
  plain = formats.read(path, scale=(1, 5))
  assert plain.epsilon is None
  assert by_ids(s.from_column(plain, path, 'epsilon')) == by_ids(given)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (COLUMNS.replace('1e-1', ''), r'ratings.csv, line 4: the level is empty'),
    (COLUMNS.replace('1e-1', 'low'), "line 4: level 'low' is not a number"),
    (COLUMNS.replace('1e-1', 'nan'), "line 4: level 'nan' is not a finite"),
    (COLUMNS.replace('1e-1', '1e999'), 'line 4: level inf is not positive'),
    (COLUMNS.replace('2,2', '0,2'), 'line 3: level 0.0 is not positive'),
    (COLUMNS.replace('2,2', '-2,2'), 'line 3: level -2.0 is not positive'),
    (COLUMNS.replace('level', 'lvl'), "line 1: no column 'level'; there are"),
    (COLUMNS.replace('\n', ',1\n').replace('rating,1', 'rating,level'),
     "line 1: more than one column 'level'"),
    ('a,1,3,0\n', "line 1: no column 'level'; it has no header"),
    (COLUMNS.replace('b,', 'c,'), 'no line for user b and item 2'),
    ('user,item,rating,level\nz,9,3,1\n', 'no line for user a and item 1'),
  ],
)  # fmt: skip
def test_wrong_columns_are_located(tmp_path, text, message):
  ratings = table()
  with pytest.raises(DataError, match=message):
    s.from_column(ratings, write(tmp_path, text), 'level')


@pytest.mark.parametrize(
  'text',
  ['a,0.5\nb,2\n', 'user,epsilon\na,0.5\nz,1\nb,2', 'a\t.5\r\nb\t2.0\r\n',
   'who,Epsilon\n"a",0.5\n"b",2\n', 'userId;budget\nb;2\na;0.5\n'],
)  # fmt: skip
def test_epsilons_from_a_file_of_users(tmp_path, text):
  found = from_user_file(table(), write(tmp_path, text, 'users.csv'))
  assert by_ids(found) == {('a', 1): 0.5, ('a', 2): 0.5, ('b', 2): 2.0}


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('a,0.5\n', "1 user.* have no epsilon, the first is 'b'"),
    ('a,0.5\nb,\n', 'users.csv, line 2: the epsilon is empty'),
    ('user,epsilon\na,0.5\nb,x\n', "line 3: epsilon 'x' is not a number"),
    ('a,high\nb,2\n', "line 1: epsilon 'high' is not a number"),
    ('a,0.5\nb,-1\n', 'line 2: epsilon -1.0 is not positive'),
    ('a,1\nb,2\na,3\nb,4\n', 'line 3: user a is there before'),
    ('a,1,3\nb,1,3\n', r'line 1: has 3 column\(s\), expected user, epsilon'),
    ('a,1\nb\n', r'line 2: has 1 column\(s\), expected 2'),
    ('', 'the file is empty'),
  ],
)
def test_wrong_files_of_users_are_located(tmp_path, text, message):
  path = write(tmp_path, text, 'users.csv')
  with pytest.raises(DataError, match=message):
    from_user_file(table(), path)


@pytest.mark.parametrize(
  'fractions',
  [{}, {'conservative': 0.1, 'middle': 0.5}, {'moderate': 0.46, 'lowest': 0.2},
   {'conservative': 0, 'moderate': 0, 'highest': 2}],
)  # fmt: skip
def test_the_distribution_is_that_of_the_draws(many, fractions):
  levels = s.asked_by_fractions(**fractions)
  drawn = np.sort(s.from_fractions(many, seed=0, **fractions).epsilon)
  assert levels.share.sum() == pytest.approx(1)
  assert levels.epsilon.min() <= drawn[0]
  assert levels.epsilon.max() == pytest.approx(drawn[-1], abs=1e-4)
  for point in np.linspace(0.05, 2.0, 40):
    want = levels.share[levels.epsilon <= point].sum()
    # Kolmogorov-Smirnov, as above; 1e-3 is the grid.
    assert abs((drawn <= point).mean() - want) < 3 / np.sqrt(len(many)) + 1e-3
  # 60,000 draws of standard deviation at most 0.5.
  assert levels.share @ levels.epsilon == pytest.approx(
    drawn.mean(), abs=5 * 0.5 / np.sqrt(len(many))
  )


def test_the_mean_of_fractions_is_exact():
  by_hand = 0.54 * 0.15 + 0.37 * 0.6 + 0.09 * 1
  levels = s.asked_by_fractions()
  assert levels.share @ levels.epsilon == pytest.approx(by_hand, rel=1e-12)
  assert (levels.epsilon.min(), levels.epsilon.max()) == (0.1, 1.0)
  # Nobody asks for the highest: the largest is the end of the last range.
  assert s.asked_by_fractions(conservative=1, moderate=0).epsilon.max() == 0.2
  with pytest.raises(DataError, match='must be fractions'):
    s.asked_by_fractions(conservative=0.7)
  with pytest.raises(TypeError, match='seed'):
    s.asked_by_fractions(seed=0)


def test_users_of_a_file_count_once_with_ratings_or_without(tmp_path):
  users = write(tmp_path, 'a,0.5\nz,1\nb,2\nc,2\n', 'users.csv')
  levels = s.asked_by_users(s.read_users(users))
  assert levels.epsilon.tolist() == [0.5, 1.0, 2.0]
  assert levels.share.tolist() == [0.25, 0.25, 0.5]
  with pytest.raises(DataError, match='is there before'):
    s.read_users(write(tmp_path, 'a,1\na,2\n', 'twice.csv'))


def test_a_distribution_in_a_few_numbers():
  levels = s.AskedEpsilons(
    np.array([2.0, 0.5, 1.0]), np.array([0.5, 0.25, 0.25]), 'three'
  )
  assert s.summary(levels, bins=4) == {
    'of': 'three',
    'least': 0.5,
    'quartiles': [0.5, 1.0, 2.0],
    'largest': 2.0,
    'mean': 1.375,
    'histogram': {
      'edges': [0.0, 0.5, 1.0, 1.5, 2.0],
      'shares': [0.25, 0.25, 0.0, 0.5],
    },
  }
  alone = s.summary(s.AskedEpsilons(np.array([0.3]), np.array([1.0]), 'one'))
  assert alone['quartiles'] == [0.3] * 3
  assert alone['histogram']['shares'][-1] == 1
  nothing = s.summary(s.AskedEpsilons(np.zeros(2), np.full(2, 0.5), 'left out'))
  assert (nothing['mean'], nothing['histogram']['shares'][0]) == (0, 1)


def test_the_ratings_are_not_changed(small_ratings):
  given = s.from_fractions(small_ratings, seed=0)
  may_be_none = 'timestamp', 'most_users'
  for field in dataclasses.fields(given):
    if field.name != 'epsilon':
      assert getattr(given, field.name) is not None or field.name in may_be_none
      np.testing.assert_array_equal(
        getattr(given, field.name), getattr(small_ratings, field.name)
      )
  assert small_ratings.epsilon is None


# The flags.


@contextlib.contextmanager
def flagsaver_of(words=()):
  """The module `launch.specifications` with flags as on a command line."""
  from absl import flags
  from absl.testing import flagsaver

  from dpmf_jax.commands import specifications

  with flagsaver.flagsaver():
    flags.FLAGS(['train', *words])
    yield specifications


@pytest.fixture
def with_flags():
  """Sets the flags of `launch.specifications` for the whole test."""
  with contextlib.ExitStack() as stack:
    yield lambda *words: stack.enter_context(flagsaver_of(words))


def test_no_flag_leaves_the_ratings_alone(with_flags):
  module, ratings = with_flags(), table()
  module.check(system='gaussian_mf', personalized=False, path=None)
  assert module.attach(ratings, path=None, format='auto') is ratings
  assert module.public() == {}


def test_fractions_by_flags(with_flags, many):
  module = with_flags('--specification=fractions')
  module.check(system='personalized_pmf', personalized=True, path=None)
  found = module.attach(many, path=None, format='auto')
  wanted = s.from_fractions(many, seed=0)
  np.testing.assert_array_equal(found.epsilon, wanted.epsilon)
  words = 'fractions: conservative 0.54, moderate 0.37, lowest 0.1, middle 0.2'
  assert module.public()['specification'].startswith(words)
  module = with_flags(
    '--specification=fractions', '--conservative=0.2', '--moderate=0.3',
    '--lowest=0.3', '--middle=0.4', '--highest=2', '--specification_seed=5',
  )  # fmt: skip
  found = module.attach(many, path=None, format='auto')
  wanted = s.from_fractions(
    many, conservative=0.2, moderate=0.3, lowest=0.3, middle=0.4, highest=2,
    seed=5,
  )  # fmt: skip
  np.testing.assert_array_equal(found.epsilon, wanted.epsilon)


def test_files_by_flags(with_flags, tmp_path):
  path = str(write(tmp_path, COLUMNS))
  ratings = formats.read(path, scale=(1, 5))
  module = with_flags('--epsilon_column=level')
  module.check(system='personalized_pmf', personalized=True, path=path)
  found = module.attach(ratings, path=path, format='auto')
  assert found.epsilon.tolist() == [0.5, 2.0, 0.1]
  assert module.public() == {'specification': 'column level of the ratings'}


def test_a_file_of_users_by_flag(with_flags, tmp_path):
  users = write(tmp_path, 'a,0.5\nb,2\n', 'users.csv')
  module = with_flags(f'--epsilon_file={users}')
  found = module.attach(table(), path=None, format='auto')
  assert found.epsilon.tolist() == [0.5, 0.5, 2.0]
  assert module.public() == {'specification': 'a file of users'}


@pytest.mark.parametrize(
  ('words', 'personalized', 'message'),
  [
    (['--epsilon_column=x'], False, '--epsilon_column is for personalized'),
    (['--specification=fractions'], False, '--system=some gives every rating'),
    (['--epsilon_column=x'], True, 'is a column of --ratings=FILE'),
    (['--epsilon_file=x', '--specification=fractions'], True,
     'only one of --epsilon_file and --specification'),
    (['--specification_seed=3'], True, 'needs --specification=fractions'),
    (['--epsilon_file=x', '--lowest=0.1'], True, '--lowest needs'),
    (['--threshold=1'], False, '--threshold is for personalized systems'),
    (['--threshold=1', '--specification=fractions', '--lowest=0.1'], True,
     'only one of --epsilon and --threshold'),
  ],
)  # fmt: skip
def test_flags_that_do_not_fit(with_flags, words, personalized, message):
  module = with_flags(*words)
  with pytest.raises(ValueError, match=message):
    module.check(
      system='some', personalized=personalized, path=None, epsilon=0.5
    )


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['--threshold=mean'], 'needs --epsilon_file or --specification'),
    (['--threshold=half'], '--threshold=half must be mean, max, best or a'),
    (['--threshold='], 'must be mean, max, best or a'),
    (['--threshold=0'], 'positive number'),
    (['--threshold=nan'], 'positive number'),
    (['--threshold=inf'], 'positive number'),
    (['--threshold=max', '--epsilon_column=x'], 'would tell which ratings'),
    (['--threshold=mean', '--epsilon_column=x'], 'would tell which ratings'),
    (['--threshold=best', '--epsilon_column=x'], 'would tell which ratings'),
  ],
)
def test_thresholds_that_cannot_be(with_flags, words, message):
  module = with_flags(*words)
  with pytest.raises(ValueError, match=message):
    module.check(system='some', personalized=True, path='ratings.csv')


def test_thresholds_by_flags(with_flags, tmp_path):
  module = with_flags()
  assert module.threshold() is None
  assert module.asked() is None
  users = write(tmp_path, 'a,0.5\nz,7\nb,1.5\n', 'users.csv')
  for words, t in (
    (['--threshold=0.25', '--epsilon_column=x'], 0.25),
    (['--threshold=mean', '--specification=fractions'], 0.393),
    (['--threshold=max', '--specification=fractions', '--highest=3'], 3.0),
    (['--threshold=mean', f'--epsilon_file={users}'], 3.0),
    (['--threshold=max', f'--epsilon_file={users}'], 7.0),
  ):
    with flagsaver_of(words) as module:
      module.check(system='p', personalized=True, path='ratings.csv')
      rule, public = module.threshold(), module.asked()
      if isinstance(rule, str):
        rule = accounting.personal_threshold(
          public.epsilon, rule, public.share, method='sampling'
        )
      assert rule == pytest.approx(t)


def test_other_systems_refuse_a_specification(launch, tmp_path):
  done = launch(
    'train', '--dataset=ml-100k', '--epsilon=1', '--specification=fractions',
    f'--output={tmp_path / "run"}',
  )  # fmt: skip
  assert done.returncode == 2
  assert done.stderr.splitlines() == [
    'error: --specification is for personalized systems: --system=auto '
    'gives every rating the same epsilon'
  ]
  assert not (tmp_path / 'run').exists()
