"""What is wrong in a file, or in a setting, is one line that says what."""

import json
import re
import socket
import struct
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpmf_jax import certificates, files, plans
from dpmf_jax.certificates import read as read_certificate
from dpmf_jax.federated import journal, sockets
from dpmf_jax.federated.plan import read_plan
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.untrusted_pmf import UntrustedPMFConfig
from dpmf_jax.ratings import attributes, formats, specification
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.titles import read_titles
from dpmf_jax.runs.folders import restore
from dpmf_jax.serving.models import load_model

DEEP = '[' * 5_000 + ']' * 5_000
IDS = {'users': [1, 2], 'items': ['a', 'b'], 'titles': {}, 'scale': [1, 5]}
LEAVES = {
  'factors': {'user': np.ones((2, 3), 'f4'), 'item': np.ones((2, 3), 'f4')},
  'offset': np.float32(3),
}


def says(message, path):
  """A context for an error of ours, on one line, about `path`."""
  return pytest.raises(ValueError, match=f'^{re.escape(str(path))}.*{message}$')


def one_line(error):
  assert '\n' not in str(error.value)
  assert type(error.value).__name__ in ('ValueError', 'DataError')


@pytest.fixture
def folder(tmp_path):
  files.write_json(tmp_path / 'ids.json', IDS)
  files.save_tree(tmp_path / 'model.safetensors', LEAVES)
  assert load_model(tmp_path).item_ids.tolist() == ['a', 'b']
  return tmp_path


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'movieId,title\n1,a\rb\n', 'line 2: new-line character seen .*'),
    (b'movieId,title\n1,' + b'x' * 131_073, 'line 2: field larger than .*'),
  ],
  ids=['lone CR', 'long field'],
)
def test_titles(tmp_path, content, message):
  path = tmp_path / 'titles.csv'
  path.write_bytes(content)
  with says(message, path) as error:
    read_titles(path)
  one_line(error)


def test_parquet(tmp_path):
  path = tmp_path / 'r.parquet'
  raw = pa.array([b'\xff\xfe', b'b'])
  broken = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
  columns = {'user': broken, 'item': [1, 2], 'rating': [1.0, 2.0]}
  pq.write_table(pa.table(columns), path)
  with says('the user column has text that is not UTF-8', path) as error:
    formats.read(path, scale=(1, 5))
  one_line(error)
  content = path.read_bytes()
  path.write_bytes(content.replace(b'rating', b'ratin\xbd'))
  with says("not readable Parquet: 'utf-8' codec .*", path) as error:
    formats.read(path, scale=(1, 5))
  one_line(error)
  columns = [[1, 2], [1, 2], [1, 2], [1.0, 2.0]]
  names = ['user', 'x', 'x', 'rating']
  pq.write_table(pa.table(columns, names=names), path)
  with says('not readable Parquet: Multiple matches .*', path) as error:
    formats.read(path, scale=(1, 5), columns={'item': 1})
  one_line(error)


@pytest.mark.parametrize('name', ['r.parquet', 'r.csv'])
def test_one_column_in_two_roles(tmp_path, name):
  path = tmp_path / name
  path.write_bytes(b'user,item,rating\n1,2,3\n')
  if name == 'r.parquet':
    columns = {'user': [1], 'item': [2], 'rating': [3.0]}
    pq.write_table(pa.table(columns), path)
  roles = {'user': 'user', 'item': 'user'}
  with says("column 'user' cannot be both user and item; pass .*", path):
    formats.read(path, scale=(1, 5), columns=roles)


def test_ids_as_an_array_that_would_fill_the_memory(tmp_path):
  path = tmp_path / 'r.csv'
  lines = [f'u{k},1,3' for k in range(3_000)]
  path.write_text('\n'.join([*lines, f'{"x" * 100_000},1,3']))
  with says('an id has 100000 characters, .* use ids of at most 256', path):
    formats.read(path, scale=(1, 5))


BROKEN = {
  'deep': (DEEP, 'is nested more than 64 deep'),
  'half deep': ('{"a":' * 99 + '1' + '}' * 99, 'is nested more than 64 deep'),
  'long integer': ('{"a": ' + '9' * 5_000 + '}', 'an integer beyond 64 bits'),
  'integer': ('{"a": 18446744073709551616}', 'an integer beyond 64 bits'),
  'infinity': ('{"a": 1e999}', 'inf is not finite'),
  'nan': ('{"a": NaN}', 'nan is not finite'),
  'half a character': ('{"\\ud800": 1}', "half of a character, '.ud800'"),
  'list': ('[1]', 'is a list in JSON, not an object'),
  'null': ('null', 'is null in JSON, not an object'),
  'text': ('{', 'line 1: Expecting property name .*'),
  'bytes': (b'{"a": "\xff"}', 'is not UTF-8 text, at byte 7'),
}


@pytest.mark.parametrize('broken', BROKEN)
@pytest.mark.parametrize(
  ('name', 'read'),
  [
    ('ids.json', lambda path: load_model(path.parent)),
    ('certificate.json', lambda path: load_model(path.parent)),
    ('certificate.json', read_certificate),
    ('plan.json', read_plan),
    ('log.jsonl', lambda path: journal.read_log(path.parent)),
  ],
  ids=['ids', "a model's certificate", 'certificate', 'plan', 'log'],
)
def test_json(folder, name, read, broken):
  content, message = BROKEN[broken]
  content = content if isinstance(content, bytes) else content.encode()
  (folder / name).write_bytes(content)
  with says(message, folder / name) as error:
    read(folder / name)
  one_line(error)


def test_json_in_a_checkpoint(tmp_path):
  (tmp_path / 'private').mkdir()
  path = tmp_path / 'private' / 'checkpoint.safetensors'
  for content, message in BROKEN.values():
    if isinstance(content, bytes):
      continue
    files.save_tree(path, {'step': np.int32(0)}, metadata={'versions': content})
    with says(f'versions.*{message}', path) as error:
      restore(tmp_path, None, None, None, {})  # type: ignore
    one_line(error)


def test_json_that_is_too_long(tmp_path, monkeypatch):
  monkeypatch.setattr(files, '_MAX_JSON', 10)
  (tmp_path / 'x.json').write_text('{"a": 12345}')
  with says('has 12 bytes of JSON, at most 10', tmp_path / 'x.json'):
    files.read_json(tmp_path / 'x.json')


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'items': None}, "'items' must be a list of ids"),
    ({'items': 'ab'}, "'items' must be a list of ids"),
    ({'items': ['a', None]}, "items: 'None' is neither an integer nor .*"),
    ({'items': [True, 'b']}, "items: 'True' is neither an integer nor .*"),
    ({'items': [1.5, 2]}, "items: '1.5' is neither an integer nor a string"),
    ({'items': [2**63, 2]}, 'items: an id is beyond 64 bits; write it as .*'),
    ({'users': {'1': 2}}, "'users' must be a list of ids"),
    ({'users': [[1], [2]]}, r"users: '\[1\]' is neither an integer nor .*"),
    ({'titles': ['x']}, "'titles' must be an object of texts"),
    ({'clicks': 'yes'}, "'clicks' must be true or false"),
    ({'titles': {'a': 7}}, "'titles' must be an object of texts"),
    ({'items': ['a']}, r'lists \(2, 1\) users and items, but .* has \(2, 2\)'),
  ],
)
def test_types_in_ids(folder, changes, message):
  files.write_json(folder / 'ids.json', IDS | changes)
  with says(message, folder / 'ids.json') as error:
    load_model(folder)
  one_line(error)


def test_a_folder_s_scale(folder):
  files.write_json(folder / 'ids.json', IDS | {'scale': 'high'})
  with says("scale='high' is not a pair of finite numbers .*", folder):
    load_model(folder)


def certified(folder, **changed):
  """Writes the certificate of a run that is not private, with changes."""
  config = plans.config_of('nonprivate', 'none', scale=(1.0, 5.0))
  document = certificates.certificate(
    SPECS['nonprivate'].plan(config).guarantee,
    system='nonprivate',
    config=config,
    delta=None,
    randomness=certificates.randomness(certificates.SEED, 'threefry2x32'),
  )
  files.write_json(folder / 'certificate.json', document | changed)


@pytest.mark.parametrize(
  ('named', 'message'),
  [
    (['x'], "field files: .* is not of type 'object'"),
    ({'/proc/kcore': 'e' * 64}, "'/proc/kcore' is no name of a file"),
    ({'../ids.json': 'e' * 64}, "'../ids.json' is no name of a file"),
  ],
)
def test_files_of_a_certificate_are_in_its_folder(folder, named, message):
  certified(folder, files=named)
  with says(message, folder / 'certificate.json'):
    load_model(folder)


@pytest.mark.parametrize('parameters', [7, [1]])
def test_parameters_of_a_certificate_are_an_object(folder, parameters):
  certified(folder, parameters=parameters)
  message = "field parameters: .* is not of type 'object'"
  with says(message, folder / 'certificate.json'):
    load_model(folder)


def test_columns_of_biases_need_not_be_among_parameters(folder):
  certified(folder, parameters={'scale': [1, 5]})
  assert load_model(folder).bias_columns == ()


@pytest.mark.parametrize(
  ('leaves', 'message'),
  [
    ({'offset': np.ones(2, 'f4')}, r'leaf offset: has shape \[2\], not \[\]'),
    ({'offset': np.float32(np.nan)}, 'leaf offset: has nan'),
    ({'offset': np.int32(1)}, 'leaf offset: int32 must be floats'),
    ({'offset': None}, 'has no offset'),
    (
      {'factors': LEAVES['factors'] | {'user': np.ones((2, 4), 'f4')}},
      r'leaf factors/item: has shape \[2, 3\], not \[items, 4\]',
    ),
    ({'fit': {'prior': np.ones(3, 'f4')}}, r"has \['fit/prior'\], which is .*"),
    (
      {'fit': {'prior': np.ones(2, 'f4'), 'ridge': np.ones(3, 'f4')}},
      r'leaf fit/prior: has shape \[2\], not \[3\]',
    ),
  ],
)  # fmt: skip
def test_leaves_of_a_model(folder, leaves, message):
  path = folder / 'model.safetensors'
  files.save_tree(path, LEAVES | leaves)
  with says(message, path) as error:
    load_model(folder)
  one_line(error)


@pytest.mark.parametrize(
  ('leaves', 'message'),
  [
    ({'user': np.array([2])}, r'user is not in 0\.\.1 everywhere'),
    ({'user': np.array([-1])}, r'user is not in 0\.\.1 everywhere'),
    ({'user': np.array([0.5])}, 'has no user, places of users'),
    ({'item': None}, 'has no item, places of items'),
    ({'item': np.array([0, 1])}, r'leaf item: has shape \[2\], not \[1\]'),
  ],
)
def test_what_was_seen(folder, leaves, message):
  (folder / 'private').mkdir()
  certified(folder)
  path = folder / 'private' / 'seen.safetensors'
  good = {'user': np.array([0]), 'item': np.array([1])}
  files.save_tree(path, good | leaves)
  with says(message, path):
    load_model(folder)


PLAN = {
  'run': '00' * 16,
  'system': 'untrusted_pmf',
  'settings': {
    'variant': 'paper', 'relation': 'replace', 'scale': [1, 5], 'epsilon': 1.0,
  },
  'item_ids': ['a'],
  'nodes': [{'first': 0, 'size': 2}],
}  # fmt: skip


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'run': 'xy'}, 'is not a plan: .*hex.*'),
    ({'run': 7}, 'is not a plan: .*'),
    ({'nodes': [{'first': 0, 'size': '2'}]}, "is not a plan: .*size='2' of .*"),
    ({'nodes': [{'first': 0, 'size': 2**40}]}, 'is not a plan: .* of a node'),
    ({'nodes': 7}, 'is not a plan: .*'),
    ({'item_ids': [None]}, "is not a plan: item_ids: 'None' is neither .*"),
    ({'settings': {'scale': 7}}, 'is not a plan: .*'),
    (
      {'settings': PLAN['settings'] | {'rank': 2**63}},
      r'is not a plan: rank=9223372036854775808 must be in 1\.\.1000',
    ),
    ({'attempts': 'often'}, 'is not a plan: .*'),
  ],
)
def test_plans(tmp_path, changes, message):
  path = tmp_path / 'plan.json'
  path.write_text(json.dumps(PLAN))
  assert read_plan(path).num_users == 2
  path.write_text(json.dumps(PLAN | changes))
  with says(message, path) as error:
    read_plan(path)
  one_line(error)


def test_ages_are_plain_numbers(tmp_path):
  ratings = synthetic(num_users=1, num_items=1, num_ratings=1, seed=0)
  path = tmp_path / 'u.user'
  for age in ('²4', '9' * 5_000, '0', '-1', ''):
    path.write_text(f'1|{age}|M|writer|85711', encoding='utf-8')
    with says('line 1: age .* is not known', path):
      attributes.movielens(ratings, tmp_path)


def test_a_transcript_that_is_cut_off(tmp_path):
  book = journal.journal(tmp_path, transcript=True)
  book.keep('sent', 3, b'abcdef')
  path = tmp_path / 'transcript.bin'
  whole = path.read_bytes()
  for size in range(1, len(whole)):
    path.write_bytes(whole[:size])
    with says('is cut off in the message at byte 0', path):
      list(journal.read_transcript(tmp_path))


@pytest.mark.parametrize('given', [[], {}, 'adam', 1])
def test_an_optimizer_is_one_of_optax(given):
  with pytest.raises(ValueError, match=r'optimizer=.* must be an optax tra'):
    SPECS['nonprivate'].config(scale=(1, 5), optimizer=given)


@pytest.mark.parametrize('bits', [1, 12, 20])
@pytest.mark.parametrize('epsilon', [2**64, 1e300])
def test_an_epsilon_beyond_all_noise_is_refused_at_once(epsilon, bits):
  with pytest.raises(ValueError, match='use a smaller epsilon, or fewer bits'):
    UntrustedPMFConfig(
      variant='sound',
      relation='replace',
      scale=(1, 5),
      epsilon=epsilon,
      noise_bits=bits,
    )


@pytest.mark.parametrize('huge', ['1e200', '-1e30'])
def test_a_feature_that_leaves_nothing_of_the_others(tmp_path, huge):
  ratings = synthetic(num_users=3, num_items=2, num_ratings=6, seed=0)
  path = tmp_path / 'features.csv'
  path.write_text(f'1,20\n2,30\n3,{huge}\n')
  with says('line 3: these features have norm 1e.*: correct it', path):
    attributes.read_user_features(ratings, path)
  # All of them may be large, and some be 0.
  path.write_text('1,2e200\n2,0\n3,1e200\n')
  found = attributes.read_user_features(ratings, path)
  np.testing.assert_allclose(found[:, 1] * 2**0.5, [1, 0, 0.5])


def test_a_user_without_an_epsilon(tmp_path):
  ratings = synthetic(num_users=3, num_items=2, num_ratings=6, seed=0)
  path = tmp_path / 'epsilons.csv'
  path.write_text('1,.5\n3,1\n')
  with says(r'1 user\(s\) have no epsilon, the first is 2', path):
    table = specification.read_users(path)
    specification.from_user_table(ratings, table, path)


LITTLE_MEMORY = """
import resource, socket, sys, threading
from dpmf_jax.federated import sockets

path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_AS, (2**31 - 2**28,) * 2)
serve = lambda: sockets.serve(path, lambda data: data[::-1])
thread = threading.Thread(target=serve, daemon=True)
thread.start()
while thread.is_alive():
  try:
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    break
  except OSError:
    link.close()
link.sendall((2**31 - 1).to_bytes(4, 'big'))
link.close()
assert sockets.asked(path, b'abc', 600) == b'cba'
"""


def test_a_worker_answers_after_more_was_promised_than_it_has_memory(tmp_path):
  command = [sys.executable, '-c', LITTLE_MEMORY, str(tmp_path / 's')]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


def test_a_worker_answers_after_connections_that_were_closed_early(tmp_path):
  path = tmp_path / 's'
  serve = threading.Thread(
    target=sockets.serve, args=(path, lambda data: data[::-1]), daemon=True
  )
  serve.start()
  size = struct.Struct('!i')
  for sent in (
    b'', b'\0', size.pack(5) + b'ab', size.pack(-1), size.pack(-2),
    size.pack(-1) + b'\xff' * 8, size.pack(2**31 - 1), size.pack(3) + b'abc',
  ):  # fmt: skip
    while True:
      link = socket.socket(socket.AF_UNIX)
      try:
        link.connect(str(path))
        break
      except OSError:  # it does not listen yet
        link.close()
        assert serve.is_alive()
    with link:
      link.sendall(sent)
    assert sockets.asked(path, b'abc', 600) == b'cba'
