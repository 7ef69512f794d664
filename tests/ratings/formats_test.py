"""Tests of the readers and writers, on small files and on the real ones."""

import gzip
import os
import time
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpmf_jax import files
from dpmf_jax.ratings import formats, tokens, writing
from dpmf_jax.ratings.table import DataError, from_arrays
from dpmf_jax.ratings.titles import read_titles

SCALE = (1, 5)


@pytest.fixture
def save(tmp_path):
  def write(content, name='table.txt'):
    path = tmp_path / name
    path.write_bytes(
      content if isinstance(content, bytes) else content.encode()
    )
    return path

  return write


def triples(ratings):
  return list(
    zip(
      ratings.user_ids[ratings.user].tolist(),
      ratings.item_ids[ratings.item].tolist(),
      ratings.value.tolist(),
      strict=True,
    )
  )


ROWS = [(7, 20, 3.0), (7, 3, 4.5), (12, 20, 1.0)]
PLAIN = '7,20,3\n7,3,4.5\n12,20,1\n'


@pytest.mark.parametrize(
  ('name', 'content'),
  [
    ('a.csv', PLAIN),
    ('a.csv', PLAIN.rstrip('\n')),
    ('a.csv', PLAIN + '\n \r\n\n'),
    ('a.csv', PLAIN.replace('\n', '\r\n')),
    ('a.csv', '\ufeff' + PLAIN),
    ('a.csv', '\ufeffuserId,movieId,rating\r\n' + PLAIN.replace('\n', '\r\n')),
    ('a.txt', PLAIN.replace(',', ';')),
    ('a.tsv', PLAIN.replace(',', '\t')),
    ('u.data', PLAIN.replace(',', '\t')),
    ('ratings.dat', PLAIN.replace(',', '::')),
    ('a.csv', 'Rating,extra,ITEM_ID,uid\n3,x,20,7\n4.5,,3,7\n1,z,20,12\n'),
    ('a.csv', '"7","20","3"\n7,3,4.5\n"12",20,1\n\n'),
    ('a.inter', 'user_id:token\titem_id:token\trating:float\n'
     + PLAIN.replace(',', '\t')),
    ('b.txt', 'item_id:token\trating:float\tuser_id:token\n'
     '20\t3\t7\n3\t4.5\t7\n20\t1\t12\n'),
    ('b.csv', '"User-ID";"ISBN";"Book-Rating"\n'
     '"7";"20";"3"\n"7";"3";"4.5"\n"12";"20";"1"\n'),
    ('a.csv', '7,20, 3 \n7,3,4.5\n12,20,1e0\n'),
  ],
)  # fmt: skip
def test_one_table_in_many_formats(save, name, content):
  ratings = formats.read(save(content, name), scale=SCALE)
  assert triples(ratings) == ROWS
  assert ratings.user_ids.dtype == ratings.item_ids.dtype == np.int64
  assert ratings.timestamp is None


def test_ids_are_kept_exactly(save):
  ratings = formats.read(save('007,a b,3\n7,é,4\n70, x,5\n'), scale=SCALE)
  assert triples(ratings) == [('007', 'a b', 3), ('7', 'é', 4), ('70', ' x', 5)]


def test_latin_1_is_recognised_and_can_be_named(save):
  path = save('Zoë,1,3\nAna,1,4\n'.encode('latin-1'))
  for encoding in ('auto', 'latin-1'):
    ratings = formats.read(path, scale=SCALE, encoding=encoding)
    assert ratings.user_ids.tolist() == ['Ana', 'Zoë']
  path = save('Zoë€,1,3\nAna,1,4\n'.encode('cp1252'))
  ratings = formats.read(path, scale=SCALE, encoding='cp1252')
  assert ratings.user_ids.tolist() == ['Ana', 'Zoë€']


def test_delimiters_in_quotes_and_in_ids(save):
  ratings = formats.read(save('"a\tb\nc",2,3\n"d ""e""",2,4\n'), scale=SCALE)
  assert triples(ratings) == [('a\tb\nc', 2, 3), ('d "e"', 2, 4)]
  ratings = formats.read(save('a;b,2,3\n'), scale=SCALE)
  assert triples(ratings) == [('a;b', 2, 3)]
  ratings = formats.read(save('a:::b::3\n:a::b::4\n'), scale=SCALE)
  assert triples(ratings) == [('a', ':b', 3), (':a', 'b', 4)]


def test_an_error_is_one_line_whatever_is_in_an_id(save):
  with pytest.raises(ValueError, match=r'item b\\r\\t d is in line 1, too'):
    formats.read_ids(save('b\r\t d\nb\r\t d\n'), role='item')


def test_long_ids(save):
  long = 'x' * 100
  ratings = formats.read(save(f'{long},1,3\nb,1,4\n{long},2,5\n'), scale=SCALE)
  assert triples(ratings) == [(long, 1, 3), ('b', 1, 4), (long, 2, 5)]


def test_columns_can_be_given(save):
  path = save('5,when,1,9\n4,when,2,9\n')
  ratings = formats.read(
    path, scale=SCALE, columns={'user': 2, 'item': 3, 'rating': 0}
  )
  assert triples(ratings) == [(1, 9, 5), (2, 9, 4)]
  path = save('who,what,how much\n1,2,3\n')
  names = {'user': 'who', 'item': 'what', 'rating': 'how much'}
  assert triples(formats.read(path, scale=SCALE, columns=names)) == [(1, 2, 3)]
  path = save('a|b|3\n')
  assert triples(formats.read(path, scale=SCALE, delimiter='|')) == [
    ('a', 'b', 3)
  ]


def test_gzip_is_unpacked(save):
  packed = gzip.compress(PLAIN.replace(',', '\t').encode())
  for name in ('u.data.gz', 'a.tsv.gz', 'a'):
    assert triples(formats.read(save(packed, name), scale=SCALE)) == ROWS
  for broken in (packed[:-9], packed[:20] + b'x' + packed[21:]):
    with pytest.raises(DataError, match='is not whole gzip'):
      formats.read(save(broken, 'a.tsv.gz'), scale=SCALE)


def test_zstd_is_unpacked(save):
  packed = pa.compress(PLAIN.encode(), 'zstd', asbytes=True)
  for name in ('a.csv.zst', 'a'):
    assert triples(formats.read(save(packed, name), scale=SCALE)) == ROWS
  with pytest.raises(DataError, match='is not whole zstd'):
    formats.read(save(packed[:-6], 'a.csv.zst'), scale=SCALE)


@pytest.mark.parametrize('suffix', ['csv', 'csv.gz', 'parquet'])
def test_parts_are_one_table(tmp_path, suffix):
  ids = ['7', '9', '007', '10', '7', '12', 'é', '9']
  rows = [(user, k + 8, 1 + k % 5) for k, user in enumerate(ids)]
  text = lambda rows: ''.join(f'{u},{i},{v}\n' for u, i, v in rows)
  for part in range(3):
    some = rows[3 * part : 3 * part + 3]
    path = tmp_path / f'part-{part}.{suffix}'
    if suffix == 'parquet':
      users, items, values = zip(*some, strict=True)
      columns = {'user': users, 'item': items, 'rating': values}
      pq.write_table(pa.table(columns), path)
    else:
      packed = gzip.compress if suffix.endswith('gz') else bytes
      path.write_bytes(packed(f'user,item,rating\n{text(some)}'.encode()))
  whole = tmp_path / 'whole.csv'
  whole.write_text(text(rows))
  want = formats.read(whole, scale=SCALE)
  found = formats.read(tmp_path / f'part-*.{suffix}', scale=SCALE)
  assert found.name == f'part-*.{suffix}'
  same_table(found, want)
  assert triples(found) == [(u, i, float(v)) for u, i, v in rows]


def test_mistakes_in_parts_name_the_file(save, tmp_path):
  save('1,2,3\n', 'a-1.csv')
  save('1,3,4\n2,3,9\n', 'a-2.csv')
  with pytest.raises(DataError, match=r'a-2.csv, line 2: rating 9 is outside'):
    formats.read(tmp_path / 'a-*.csv', scale=SCALE)
  save('2,1,5\n1,2,5\n', 'a-2.csv')
  with pytest.warns(
    UserWarning, match=r'a-2.csv, line 2: \(user, item\) rated'
  ):
    ratings = formats.read(tmp_path / 'a-*.csv', scale=SCALE)
  assert triples(ratings) == [(2, 1, 5), (1, 2, 5)]
  save('1,3,4,5\n', 'a-2.csv')
  with pytest.raises(
    DataError, match=r'a-2\.csv, line 1: has other columns than'
  ):
    formats.read(tmp_path / 'a-*.csv', scale=SCALE)
  with pytest.raises(DataError, match=r'b-\*.csv: no such files'):
    formats.read(tmp_path / 'b-*.csv', scale=SCALE)
  odd = save('1,2,3\n', 'a[1].csv')
  assert len(formats.read(odd, scale=SCALE)) == 1


def same_table(found, want):
  for name in ('user', 'item', 'value', 'user_ids', 'item_ids', 'timestamp'):
    one, other = getattr(found, name), getattr(want, name)
    assert np.array_equal(one, other) if one is not None else other is None
    assert getattr(one, 'dtype', None) == getattr(other, 'dtype', None)


FIELDS = [
  '1', '7', '007', '-3', '-0', '0', ' 4 ', '+5', '3.5', '.5', '5.', '1e0',
  '0x10', 'nan', 'inf', '1e999', '1_0', '9' * 25, 'x', 'é', '\u2028', '٣', '',
  ' ', ':', ':::', '\t', '2005-09-06', 'x' * 70, '"', '"q"', '"a""b"', '\\',
]  # fmt: skip
PLAIN_FIELDS = st.sampled_from(['1', '2', '3', '4', '5'])
ANY_FIELDS = st.one_of(PLAIN_FIELDS, st.sampled_from(FIELDS))


@settings(
  max_examples=400,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
  deadline=None,
)
@given(st.data())
def test_both_readers_give_the_same_table(save, data):
  draw = data.draw
  fields = draw(st.sampled_from([PLAIN_FIELDS, ANY_FIELDS, ANY_FIELDS]))
  width = draw(st.integers(2, 5))
  lines = draw(
    st.lists(st.lists(fields, min_size=width, max_size=width), min_size=1)
  )
  head = ['user', 'item', 'rating', 'timestamp', '"else"'][:width]
  mark = draw(st.sampled_from([',', '\t', '::', ';', '|', ' ', ',;']))
  end = draw(st.sampled_from(['\n', '\r\n', '\n\n', '\r', '\r\r\n']))
  plain = draw(st.booleans())
  text = ('\n' if plain else end).join(
    mark.join(line) for line in [head] * draw(st.integers(0, 1)) + lines
  )
  text += draw(st.sampled_from(['', '\n', '\r\n', '\r', ' \n\n', mark, '\n,,']))
  path = save(text, draw(st.sampled_from(['a.csv', 'u.data', 'a.inter'])))
  options = draw(
    st.sampled_from([{}, {'delimiter': mark}, {'encoding': 'utf-8'}])
  )

  def outcome():
    with warnings.catch_warnings(record=True) as warned:
      warnings.simplefilter('always')
      try:
        table = formats.read(path, scale=(-10, 1e30), **options)
      except DataError as error:
        return None, str(error), []
    return table, '', [str(warning.message) for warning in warned]

  by_arrow, *said = outcome()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tokens, '_by_arrow', lambda *_: None)
    by_line, *also = outcome()
  assert said == also
  if by_arrow is not None:
    same_table(by_arrow, by_line)


def test_plain_files_are_cut_by_arrow(save, monkeypatch):
  monkeypatch.setattr(tokens, 'from_records', None)
  for text in (
    PLAIN,
    'user,item,rating\r\n' + PLAIN.replace('\n', '\r\n'),
    '"user","item","rating"\n' + PLAIN + ' \n',
    PLAIN.replace(',', '::'),
    '\ufeff' + PLAIN.replace(',', '\t'),
  ):
    assert triples(formats.read(save(text), scale=SCALE)) == ROWS


def test_quotes_after_a_backslash(save):
  text = 'user;item;rating;title\n1;2;3;"a \\"b\\" c"\n"d\\\\";2;4;"\\"e"\n'
  ratings = formats.read(save(text), scale=SCALE)
  assert triples(ratings) == [('1', 2, 3), ('d\\', 2, 4)]
  # Where doubled quotes can be read, a backslash is only that.
  ratings = formats.read(save('"a\\",2,3\n"b ""c""",2,4\n'), scale=SCALE)
  assert triples(ratings) == [('a\\', 2, 3), ('b "c"', 2, 4)]


MATRIX = [(1, 2, 3.0), (1, 3, 4.5), (3, 1, 1.0)]


@pytest.mark.parametrize(
  ('text', 'options'),
  [
    ('0 3 4.5\n0 0 0\n1 0 0.0\n', {'missing': 0}),
    ('0 3 4.5\n0 0 0\n1 0 0.0\n', {'missing': '0'}),
    (',3,4.5\n,,\n1,,\n', {}),
    (' ,3, 4.5\n,,\n1,,\n', {'missing': ''}),
    ('NA\t3\t4.5\r\nNA\tNA\tNA\r\n1\tNA\tNA\r\n', {'missing': 'NA'}),
    ('2;99;3;4.5\n0;99;99;99\n1;1;99;99\n',
     {'missing': 99, 'columns': {'item': 1}}),
    ('userId,1,2,3\n1,,3,4.5\n2,,,\n3,1,,\n', {}),
    ('3,1,2\n4.5,,3\n,,\n,1,\n', {'header': True}),
    ('1,x,,3,4.5\n2,y,,,\n3,z,1,,\n', {'columns': {'user': 0, 'item': 2}}),
    ('age,who,1,2,3\n9,1,,3,4.5\n9,3,1,,\n',
     {'columns': {'user': 'who', 'item': '1'}}),
    ('user,"1","2","3"\n1,,3,4.5\n3,1,,\n', {}),
  ],
)  # fmt: skip
def test_a_matrix_in_many_ways(save, text, options):
  ratings = formats.read(save(text), scale=SCALE, format='dense', **options)
  assert sorted(triples(ratings)) == MATRIX


def test_names_in_a_matrix(save):
  path = save('user,b,a\nx,3,\ny,,4\n')
  ratings = formats.read(path, scale=SCALE, format='dense')
  assert triples(ratings) == [('x', 'b', 3), ('y', 'a', 4)]


@pytest.mark.parametrize(
  ('text', 'options', 'message'),
  [
    ('1,2\n3,x\n', {}, "line 2, field 2: rating 'x' is not a number"),
    ('1,2\n3,0\n', {}, r'line 2, field 2: rating 0 is outside the scale 1'),
    ('1,2\n3,\n', {'missing': 0}, 'line 2, field 2: the rating is empty'),
    ('1,2\n3\n', {}, r'line 2: has 1 column\(s\), expected 2'),
    ('0,0\n0,0\n', {'missing': 0}, 'every rating is missing=0'),
    ('1,2\n', {'columns': {'rating': 0}}, "'rating' is not one of user, item"),
    ('1,2\n', {'columns': {'item': 2}}, 'no item column 2'),
    ('1,2\n', {'columns': {'user': 1}}, 'must come before those of items'),
    ('user,\n1,2\n', {}, 'line 1, field 2: empty item id'),
    ('1,2,3\n', {'format': 'csv', 'missing': 0}, "for format='dense' alone"),
  ],
)
def test_mistakes_in_a_matrix(save, text, options, message):
  with pytest.raises(DataError, match=message):
    formats.read(save(text), **({'scale': SCALE, 'format': 'dense'} | options))


def test_the_netflix_matrix(data_dir):
  path = data_dir / 'netflix' / 'netflix_dense_1200x1200.txt'
  ratings = formats.read(path, scale=SCALE, format='dense', missing=0)
  assert (ratings.num_users, ratings.num_items) == (1200, 1200)
  assert len(ratings) == 1_111_768
  assert triples(ratings)[:3] == [(1, 1, 2), (1, 2, 4), (1, 3, 5)]


def test_timestamps(save):
  read = lambda text: formats.read(save(text), scale=SCALE).timestamp
  np.testing.assert_array_equal(read('1,2,3,978300760\n'), [978300760])
  np.testing.assert_array_equal(read('1,2,3,1.5\n2,2,3,2\n'), [1.5, 2.0])
  np.testing.assert_array_equal(
    read('1,2,3,1970-01-02\n2,2,3,2005-09-06\n'), [86400, 1125964800]
  )


def test_netflix(save):
  text = '1:\n10,3,2005-09-06\n11,5,2005-05-13\n2:\n3:\r\n10,4,1970-01-01\n'
  ratings = formats.read(save(text), scale=SCALE)
  assert triples(ratings) == [(10, 1, 3), (11, 1, 5), (10, 3, 4)]
  assert ratings.timestamp is not None
  assert ratings.timestamp[2] == 0


GOOD = '1,2,3\n'


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('a.csv', '', 'a.csv: the file is empty'),
    ('a.csv', '\n \n', 'a.csv: the file is empty'),
    ('a.csv', 'user,item,rating\n', 'a.csv: has a header but no ratings'),
    ('a.csv', GOOD + '1,3\n', r'line 2: has 2 column\(s\), expected 3'),
    ('a.csv', GOOD + '1,3,4,5\n', r'line 2: has 4 column\(s\), expected 3'),
    ('a.csv', GOOD + '1\n2,3,4,5,6\n', r'line 2: has 1 column\(s\), expected'),
    ('a.csv', GOOD + '\n2,2,4\n', 'line 2: is blank'),
    ('a.csv', '1,2,3,4,5\n', r'line 1: has 5 column\(s\), .*columns='),
    ('a.csv', '1\n', 'line 1: unknown format'),
    ('a.csv', 'person,thing\n1,2\n', "line 1: 'person' is the only user that"),
    ('a.csv', 'user,item,plays\n1,2,-1\n', 'line 2: count -1 is below 0'),
    ('a.csv', 'user,item,plays\n1,2,0\n', 'line 2: count 0, as everywhere'),
    ('a.csv', 'user,item,plays\n1,2,x\n', "line 2: count 'x' is not a number"),
    ('a.csv', GOOD + '1,3,good\n', "line 2: rating 'good' is not a number"),
    ('a.csv', GOOD + '1,3,1-2\n', "line 2: rating '1-2' is not a number"),
    ('a.csv', GOOD + '1,3,1_0\n', "line 2: rating '1_0' is not a number"),
    ('a.csv', GOOD + '1,3,\n', 'line 2: the rating is empty'),
    ('a.csv', GOOD + '1,3,NaN\n', "line 2: rating 'NaN' is not a finite"),
    ('a.csv', GOOD + '1,3,-inf\n', "line 2: rating '-inf' is not a finite"),
    ('a.csv', GOOD + '1,3,1e999\n', 'line 2: rating inf is not a finite'),
    ('a.csv', GOOD + '1,3,6\n', r'line 2: rating 6 .* 1\.\.5; .* right scale'),
    ('a.csv', GOOD + '1,3,0.5\n', 'line 2: rating 0.5 is outside'),
    ('a.csv', GOOD + ',3,4\n', 'line 2: empty user id'),
    ('a.csv', GOOD + '1,,4\n', 'line 2: empty item id'),
    ('a.csv', GOOD + 'x, ,4\n', 'line 2: empty item id'),
    ('a.csv', '"1",2,3\n1,"",4\n', 'line 2: empty item id'),
    ('a.csv', '"1",2,3\n1,2\n', r'line 2: has 2 column\(s\)'),
    ('a.csv', '"a\nb",2,3\n1,2,x\n', "line 3: rating 'x'"),
    ('a.csv', '"1",2,3\n"1"x,2,3\n', 'line 2: '),
    ('a.csv', 'user,item,grade\n1,2,3\n',
     'line 1: no rating or count column among user, item, grade'),
    ('a.csv', 'user,item,plays,views\n1,2,3,4\n', "'plays' and 'views' could"),
    ('a.csv', 'user,uid,item,rating\n1,1,2,3\n', "'user' and 'uid' could both"),
    ('a.csv', '1,2,3,4\n1,3,3,soon\n', "line 2: timestamp 'soon'"),
    ('a.csv', '1,2,3,4\n1,3,3,2005-02-31\n', "timestamp '2005-02-31'"),
    ('a.csv', '1,2,3,4\n1,3,3,2005-02-03\n', 'mix numbers and dates'),
    ('a.csv', b'1,2,3\n\x81,2,3\n', 'line 2: byte 0x81 is neither'),
    ('a.csv', b'1,2,3\n1,\x00,3\n', 'line 2: holds a NUL byte'),
    ('a.csv', GOOD.encode('utf-16'), 'UTF-16'),
    ('a.zip', b'PK\x03\x04rest', 'is a zip archive; unpack'),
    ('a.txt', '1 2 3\n', 'line 1: unknown format'),
    ('a.txt', '\ufeff', 'line 1: unknown format'),
    ('u.data', 'user\titem\trating\ttime\n1\t2\t3\t4\n', 'line 1: .* a header'),
    ('ratings.dat', 'UserID::MovieID::Rating::T\n1::2::3::4\n', 'a header'),
    ('combined_data_1.txt', '7,3,2005-09-06\n1:\n', "before any 'movie:'"),
    ('x.txt', '1:\n7,3\n', r'line 2: has 2 column\(s\)'),
    ('x.txt', '1:\n2:\n', 'but no ratings'),
    ('x.txt', '1:\n7,x,2005-09-06\n', "line 2: rating 'x'"),
    ('x.txt', '1:\n7,3,2005-09-06\n2:\n7,9,2005-09-06\n', 'line 4: rating 9'),
    ('a.inter', 'user\titem\trating\n1\t2\t3\n', 'not a RecBole header'),
    ('a.parquet', b'PAR1 but not really', 'not readable Parquet'),
  ],
)  # fmt: skip
def test_each_mistake_is_one_clear_line(save, name, content, message):
  path = save(content, name)
  with pytest.raises(DataError, match=message) as caught:
    formats.read(path, scale=SCALE)
  assert str(path) in str(caught.value)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'format': 'xml'}, "format='xml' is not one of auto"),
    ({'columns': {'person': 0}}, "'person' is not one of user"),
    ({'columns': {'user': 'who'}}, "no user column 'who'"),
    ({'columns': {'user': 0, 'item': 1, 'rating': 7}}, r'7 is not in 0\.\.2'),
    ({'columns': {'user': 0}}, 'no item column'),
    ({'delimiter': '\n'}, 'delimiter='),
    ({'encoding': 'klingon'}, "encoding='klingon' is not known"),
    ({'scale': (5, 1)}, 'r_min < r_max'),
    ({'format': 'tsv'}, r'line 1: has 1 column\(s\)'),
    ({'titles': 'no/such/file'}, 'no such file of titles'),
  ],
)
def test_wrong_options_are_named(save, options, message):
  with pytest.raises(DataError, match=message):
    formats.read(save(GOOD), **({'scale': SCALE} | options))


def test_missing_file_and_directory(tmp_path):
  with pytest.raises(DataError, match='gone: no such file'):
    formats.read(tmp_path / 'gone', scale=SCALE)
  with pytest.raises(DataError, match='is a directory'):
    formats.read(tmp_path, scale=SCALE)


@settings(
  max_examples=300,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  st.lists(
    st.sampled_from(
      [b'1', b'23', b',', b',', b'\t', b';', b'::', b':', b'.', b'"', b'\r\n',
       b'\n', b'\n', b' ', b'-', b'e', b'\xe9', b'\xc3\xa9', b'user', b'rating',
       b'\0', b'2005-09-06', b'1,2,3\n', b'4::5::1\n', b'PAR1'],
    ),
    max_size=30,
  ),
  st.sampled_from(formats.FORMATS),
)  # fmt: skip
def test_any_bytes_give_ratings_or_one_clear_line(save, parts, format):
  path, message = save(b''.join(parts)), ''
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', UserWarning)
      ratings = formats.read(path, scale=(-99, 99), format=format)
  except DataError as error:
    message, ratings = str(error), None
  if ratings is None:
    assert str(path) in message
    assert '\n' not in message
  else:
    assert len(ratings) > 0


def test_duplicates_warn_with_the_first_line(save):
  path = save('1,2,3\n2,2,3\n1,2,5\n1,2,4\n')
  with pytest.warns(UserWarning, match='line 3: .* 2 such'):
    ratings = formats.read(path, scale=SCALE)
  assert triples(ratings) == [(2, 2, 3), (1, 2, 4)]
  with pytest.raises(DataError, match='line 3: '):
    formats.read(path, scale=SCALE, duplicates='error')


IDS = st.one_of(
  st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
  st.lists(
    st.text(
      st.characters(exclude_categories=['Cs', 'Cc']), min_size=1, max_size=12
    ).filter(lambda text: text.strip() and not text.startswith('\ufeff')),
    min_size=3,
    max_size=3,
  ),
)  # fmt: skip


@pytest.mark.parametrize('format', ['csv', 'tsv', 'inter', 'parquet'])
@settings(
  max_examples=40,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  users=IDS,
  values=st.lists(st.floats(1, 5, width=32), min_size=3, max_size=3),
  stamps=st.none() | st.lists(st.integers(-9, 2**40), min_size=3, max_size=3),
)
def test_written_ratings_are_read_back(tmp_path, format, users, values, stamps):
  ratings = from_arrays(
    np.array(users), ['a,b', 'c"d', "e'f"], values, scale=SCALE,
    timestamps=stamps,
  )  # fmt: skip
  path = writing.write(ratings, tmp_path / f'out.{format}', format)
  back = formats.read(path, scale=SCALE, format=format)
  assert triples(back) == triples(ratings)
  assert back.user_ids.dtype.kind == ratings.user_ids.dtype.kind
  np.testing.assert_array_equal(back.timestamp, ratings.timestamp)
  assert os.listdir(tmp_path) == [path.name]


def test_a_failed_write_leaves_the_old_file(tmp_path, save):
  path = save('old', 'out.inter')
  ratings = from_arrays(['a\tb'], [1], [1], scale=SCALE)
  with pytest.raises(DataError, match='holds a tab'):
    writing.write(ratings, path, 'inter')

  def fail_halfway():
    with files.atomic(path) as partial:
      partial.write_text('half')
      raise ZeroDivisionError

  with pytest.raises(ZeroDivisionError):
    fail_halfway()
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['out.inter']
  with pytest.raises(DataError, match='is not one of csv'):
    writing.write(ratings, path, 'xml')
  with pytest.raises(ValueError, match='no such directory'):
    writing.write(ratings, tmp_path / 'gone' / 'out.csv')


def test_parquet_nulls_and_types_are_named(tmp_path):
  path = tmp_path / 'a.parquet'
  columns = {'user': [1, None], 'item': ['a', 'b'], 'rating': [1.0, 2.0]}
  pq.write_table(pa.table(columns), path)
  with pytest.raises(DataError, match='row 1: the user is missing'):
    formats.read(path, scale=SCALE)
  pq.write_table(
    pa.table(columns | {'user': [1, 2], 'rating': ['x', 'y']}), path
  )
  with pytest.raises(DataError, match='rating column is'):
    formats.read(path, scale=SCALE)


@pytest.mark.parametrize(
  ('name', 'content', 'titles'),
  [
    ('u.item', 'Misérables, Les (1995)|x', {'1': 'Misérables, Les (1995)'}),
    ('movies.dat', 'Seven (a.k.a. Se7en)::x', {'1': 'Seven (a.k.a. Se7en)'}),
  ],
)
def test_latin_1_titles(save, name, content, titles):
  mark = '|' if '|' in content else '::'
  path = save(f'1{mark}{content}\n'.encode('latin-1'), name)
  assert read_titles(path) == titles


def test_titles_with_headers_commas_and_years(save):
  read = lambda text: read_titles(save(text))
  assert read('movieId,title,genres\n1,"Net, The (1995)",x\n') == {
    '1': 'Net, The (1995)'
  }
  assert read('1,2003,A, B, and C\n2,NULL,D\n') == {
    '1': 'A, B, and C (2003)',
    '2': 'D',
  }
  assert read(
    'item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n'
    '1\tToy Story\t1995\tx\n267\tunkonwn\tunkonwn\tx\n'
  ) == {'1': 'Toy Story (1995)', '267': 'unkonwn'}
  assert read('anime_ids\tname\tgenre\n5\tGintama&#039;\tx\n') == {
    '5': "Gintama'"
  }
  with pytest.raises(DataError, match='unknown format of titles'):
    read('a,b\n1,2\n')
  with pytest.raises(DataError, match=r'line 2: has 1 column\(s\)'):
    read('1::A::x\n2\n')


def test_ml_1m_loads_in_less_time_than_a_plain_loop_takes(data_dir):
  path = data_dir / 'ml-1m' / 'ratings.dat'
  began = time.process_time()
  ratings = formats.read(path, scale=SCALE)
  seconds = time.process_time() - began
  lines = [tuple(map(int, line.split('::'))) for line in path.open()]
  plain = time.process_time() - began - seconds
  assert (ratings.num_users, ratings.num_items) == (6040, 3706)
  assert len(ratings) == 1000209
  assert triples(ratings.take(np.arange(2))) == [(1, 1193, 5), (1, 661, 3)]
  assert len(lines) == len(ratings)
  # 0.5 s against 1.5 on an idle core; processor time, not the clock's.
  assert seconds < 2 * plain, f'{seconds:.2f} s, {plain:.2f}'


def test_ml_100k_agrees_with_a_plain_loop(data_dir):
  path = data_dir / 'ml-100k' / 'u.data'
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    ratings = formats.read(path, scale=SCALE)
  lines = [tuple(map(int, line.split('\t'))) for line in path.open()]
  assert triples(ratings) == [line[:3] for line in lines]
  np.testing.assert_array_equal(ratings.timestamp, [line[3] for line in lines])


def test_netflix_agrees_with_a_plain_loop(data_dir):
  path = data_dir / 'netflix' / 'combined_data_1.first20movies.txt'
  want, movie = [], None
  for line in path.read_text().splitlines():
    if line.endswith(':'):
      movie = int(line[:-1])
    else:
      user, rating, _ = line.split(',')
      want.append((int(user), movie, int(rating)))
  assert triples(formats.read(path, scale=SCALE)) == want


CLICKS = [(7, 20, 1.0), (7, 3, 1.0), (12, 20, 1.0)]


@pytest.mark.parametrize(
  ('name', 'content', 'options'),
  [
    ('a.csv', '7,20\n7,3\n12,20\n', {}),
    ('a.csv', '7,20\n7,3\n12,20\n7,3\n', {}),  # again
    ('a.tsv', 'user_id\titem_id\n7\t20\n7\t3\n12\t20\n', {}),
    ('a.csv', 'user,item,play_count\n7,20,9\n7,3,1\n12,20,2\n', {}),
    ('a.csv', 'customer_id,sku,quantity\n7,20,9\n7,3,1\n12,20,2\n', {}),
    ('a.csv', 'user,item,timestamp\n7,20,5\n7,3,6\n12,20,7\n', {}),
    ('a.inter', 'user_id:token\titem_id:token\n7\t20\n7\t3\n12\t20\n', {}),
    ('a.csv', PLAIN, {'max_count': 1}),
    ('a.csv', PLAIN, {'columns': {'user': 0, 'item': 1, 'count': 2}}),
    ('a.csv', PLAIN, {'columns': {'user': 0, 'item': 1}}),
    ('a.csv', 'user,item,rating\n' + PLAIN, {'columns': {'count': 'rating'}}),
    ('a.csv', 'u,i,x\n' + PLAIN, {'columns': {'user': 'u', 'item': 'i'}}),
    (
      'a.csv',
      '1,0\n1,1\n',
      {'format': 'dense', 'missing': 0, 'max_count': 1},
    ),
  ],
)
def test_files_of_clicks(save, name, content, options):
  found = formats.read(save(content, name), **options)
  assert found.clicks
  assert found.scale == (0, 1)
  want = CLICKS
  if options.get('format') == 'dense':
    want = [(1, 1, 1.0), (2, 1, 1.0), (2, 2, 1.0)]
  assert triples(found) == want


def test_names_of_ids_are_no_header(save):
  found = formats.read(save('user1,book1\nuser1,book2\nuser2,book1\n'))
  assert found.user_ids.tolist() == ['user1', 'user2']


def test_ratings_say_more_than_counts(save):
  path = save('user,item,rating,plays,views\n7,20,3,1,1\n7,3,4.5,1,1\n')
  assert not formats.read(path, scale=SCALE).clicks


def test_stars_that_are_taken_for_counts_are_noticed(save):
  path = save('user,item,rating\n7,20,3\n7,3,1\n')
  with pytest.warns(UserWarning, match='table.txt: ratings are read as counts'):
    assert formats.read(path, max_count=1).clicks


@pytest.mark.parametrize('format', writing.WRITE_FORMATS)
@pytest.mark.parametrize('most', [1, 5])
def test_clicks_are_written_and_read_again(tmp_path, format, most):
  made = from_arrays(
    [7, 7, 12], [20, 3, 20], [1, 9, 2], max_count=most, timestamps=[3, 2, 1]
  )
  path = tmp_path / ('a.inter' if format == 'inter' else 'a')
  writing.write(made, path, format)
  again = formats.read(path, max_count=most)
  assert again.clicks
  assert triples(again) == triples(made)
  np.testing.assert_array_equal(again.timestamp, made.timestamp)
