"""The ledger on its databases: at once, killed, tampered with, out of reach."""

import json
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy as sa
import stated
from postgres import PASSWORD

from dpmf_jax import accounting
from dpmf_jax.accounting import (
  calibrate_noise_multiplier,
  events,
  ledger,
  ledger_database,
  ledger_rows,
)
from dpmf_jax.ratings import writing
from dpmf_jax.ratings.synthetic import synthetic

ROOT = Path(__file__).resolve().parents[2]
FACTS = {**stated.FACTS, 'budget_epsilon': 3}
RUN = events.Gaussian(50.0)


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'made-up.db'


@pytest.fixture(params=['sqlite', 'postgresql'])
def where(request):
  fixture = {'sqlite': 'path', 'postgresql': 'postgresql'}[request.param]
  return str(request.getfixturevalue(fixture))


def rows(where):
  return ledger_database.look(where)


def sql(where, *statements):
  """Runs statements without asking the library."""
  if '://' not in where:
    with sqlite3.connect(where) as connection:
      for statement in statements:
        connection.execute(statement)
    connection.close()
  else:
    with psycopg.connect(where) as connection:
      for statement in statements:
        connection.execute(statement)


# Both databases.


def test_it_is_the_same_ledger_on_both(where):
  parts = [events.Gaussian(20.0), events.Pure(0.1), events.Gaussian(9.0, 2)]
  for part in parts:
    ledger.spend(where, part, system='some', what='here', **FACTS)
  assert [entry.event for entry in ledger.entries(where)] == parts
  assert ledger.total(where) == accounting.epsilon(
    events.Composed(tuple(parts)), 1e-6
  )
  with pytest.raises(ledger.BudgetExceeded, match='would still fit'):
    ledger.spend(where, events.Gaussian(1.0), **FACTS)
  change = ledger.set_budget(where, 0.5, reason=' second\nstudy ')
  assert change.reason == 'second study'
  with pytest.raises(ledger.BudgetExceeded, match='nothing is left'):
    ledger.spend(where, RUN, **FACTS | {'budget_epsilon': None})
  assert ledger.statement(where)['adaptive_epsilon'] == 3
  assert [row.number for row in rows(where)] == [1, 2, 3, 4, 5]


def test_what_is_in_a_row(where):
  entry = ledger.spend(
    where, RUN, system='power_mf', digest='abc', entry_id='one', **FACTS
  )
  begun, release = rows(where)
  assert (begun.previous, release.previous) == ('', begun.hash)
  assert release.id == entry.id == 'one'
  content = json.loads(begun.content)
  assert content['schema'] == 'dpmf_jax-ledger-3'
  # What was fixed before the first release, should constants change.
  assert content['rule'].keys() == {'main', 'mixed', 'pure', 'ends', 'order'}
  assert content['budget_epsilon'] == 3
  content = json.loads(release.content)
  assert content.pop('time')[:2] == '20'
  assert content == {
    'kind': 'release',
    'system': 'power_mf',
    'variant': '',
    'event': {
      'Gaussian': {'noise_multiplier': 50.0, 'count': 1, 'uncovered': 0.0}
    },
    'digest': 'abc',
    'what': '',
    'delta': 1e-6,
  }


def test_a_refused_first_run_leaves_nothing(where):
  large = events.Gaussian(1.0)
  for budget, error in ((3, ledger.BudgetExceeded), (None, ValueError)):
    for dry_run in (True, False):
      with pytest.raises(error):
        ledger.spend(
          where,
          large,
          dry_run=dry_run,
          **FACTS | {'budget_epsilon': budget},
        )
  if '://' not in where:
    assert os.listdir(Path(where).parent) == []
  else:
    with pytest.raises(ValueError, match='is empty: not a ledger yet'):
      ledger.entries(where)
  # With another budget, as there is none yet.
  ledger.spend(where, large, **FACTS | {'budget_epsilon': 10})
  assert ledger.header(where).budget_epsilon == 10


def test_an_id_of_another_row_is_none_of_a_run(where):
  ledger.spend(where, RUN, **FACTS)
  taken = ledger.header(where).id
  with pytest.raises(ValueError, match=f"{taken} is the id of 'Header'"):
    ledger.spend(where, RUN, entry_id=taken, **FACTS)


def test_transactions_are_serialisable_and_on_the_disk(where):
  ledger.spend(where, RUN, **FACTS)
  asked = lambda words: ledger_database._transacted(
    where, lambda made: made.exec_driver_sql(words).scalar(), write=True
  )
  if '://' not in where:
    assert asked('PRAGMA synchronous') == 3  # EXTRA: FULL, and the folder
    assert asked('PRAGMA journal_mode') == 'delete'
  else:
    assert asked('SHOW transaction_isolation') == 'serializable'
    sql(where, 'ALTER ROLE test SET synchronous_commit TO off')
    try:
      assert asked('SHOW synchronous_commit') == 'on'
    finally:
      sql(where, 'ALTER ROLE test RESET synchronous_commit')


# Many processes, all at the gate before the first may spend. They are forked
# from one that has no JAX, which is what takes time to import.
_MANY = """
import json, os, sys
from dpmf_jax.accounting import Gaussian, ledger, ledger_database, epsilon
import psycopg, sqlalchemy.dialects.postgresql.psycopg
where, processes, multiplier, budget = json.loads(sys.argv[1])
assert 'jax' not in sys.modules
epsilon(Gaussian(multiplier), 1e-6)  # imports what is imported late
gate, opened = os.pipe()
children = []
for number in range(processes):
  child = os.fork()
  if child == 0:
    code = 3
    try:
      os.close(opened)
      os.read(gate, 1)
      ledger.spend(
        where, Gaussian(multiplier), delta=1e-6, unit='rating',
        relation='replace', dataset='made-up', budget_epsilon=budget,
        what=str(number),
      )
      code = 0
    except ledger.BudgetExceeded:
      code = 1
    except BaseException as error:
      print(repr(error), file=sys.stderr)
    finally:
      os._exit(code)
  children.append(child)
os.close(opened)
codes = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
print(json.dumps(codes))
"""


def printed_by(code, *arguments):
  """The JSON that a process of its own prints."""
  done = subprocess.run(
    [sys.executable, '-c', code, json.dumps(arguments)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  print(done.stderr)  # shown where a test fails
  assert done.returncode == 0
  return json.loads(done.stdout)


@pytest.mark.parametrize(
  ('processes', 'room'),
  [(12, 5), pytest.param(200, 50, marks=pytest.mark.slow)],
)
def test_at_once_as_many_spend_as_there_is_room_for(where, processes, room):
  multiplier = calibrate_noise_multiplier(epsilon=2.99, delta=1e-6, count=room)
  one_more = events.Gaussian(multiplier, room + 1)
  assert accounting.epsilon(one_more, 1e-6) > 3
  codes = printed_by(_MANY, where, processes, multiplier, 3)
  assert (codes.count(0), codes.count(1)) == (room, processes - room)
  written = ledger.entries(where)
  accepted = {str(number) for number, code in enumerate(codes) if code == 0}
  assert {entry.what for entry in written} == accepted
  assert len(written) == len({entry.id for entry in written}) == room
  assert ledger.total(where) <= 3


# Runs that are killed anywhere, and started again until they were charged. One
# that was, says so, as it would draw noise.
_KILLED = """
import json, os, random, signal, sys, time, traceback
from dpmf_jax.accounting import Gaussian, ledger, ledger_database, epsilon
import psycopg, sqlalchemy.dialects.postgresql.psycopg
where, spends, kills = json.loads(sys.argv[1])
random.seed(1)
epsilon(Gaussian(50.0), 1e-6)
ids = [f'run {number}' for number in range(spends)]
waiting, told, killed = list(ids), [], 0

def begun(run):
  heard, say = os.pipe()
  child = os.fork()
  if child == 0:
    code = 3
    try:
      entry = ledger.spend(
        where, Gaussian(50.0), delta=1e-6, unit='rating', relation='replace',
        dataset='made-up', budget_epsilon='unlimited', entry_id=run,
      )
      assert entry.id == run
      os.write(say, b'charged')
      code = 0
    except BaseException:
      traceback.print_exc()
    finally:
      os._exit(code)
  os.close(say)
  return child, run, heard

while waiting or killed < kills:
  runs = [waiting.pop() if waiting else random.choice(ids) for _ in range(4)]
  children = [begun(run) for run in set(runs)]
  for child, _, _ in children:
    if killed < kills and random.random() < 0.6:
      time.sleep(random.uniform(0, 0.06))  # anywhere: nothing depends on it
      os.kill(child, signal.SIGKILL)
  for child, run, heard in children:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    killed += code != 0
    if os.read(heard, 9) == b'charged':
      told.append(run)
    elif run not in told and run not in waiting:
      waiting.append(run)
    os.close(heard)
print(json.dumps([told, killed]))
"""


@pytest.mark.parametrize(
  ('spends', 'kills'), [(12, 4), pytest.param(500, 200, marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings('ignore:.*has no budget')
def test_whoever_is_killed_loses_nothing_and_pays_once(where, spends, kills):
  told, killed = printed_by(_KILLED, where, spends, kills)
  assert killed >= kills
  written = [entry.id for entry in ledger.entries(where)]
  assert len(written) == len(set(written)) == spends
  assert set(told) == set(written)
  if '://' not in where:
    assert os.listdir(Path(where).parent) == [Path(where).name]


# Tampering.


def rewritten(where, number, change):
  """Alters a row, and gives it the hash of what it says then."""
  row = rows(where)[number - 1]
  content = change(row.content)
  sha = ledger_rows._hash(row.previous, row.id, content)
  quoted = content.replace("'", "''")
  return (
    f"UPDATE dpmf_ledger SET content='{quoted}', hash='{sha}' "
    f'WHERE number={number}'
  )


ALTERED = (
  "UPDATE dpmf_ledger SET content=replace(content, '50.0', '5000.0') "
  'WHERE number=3'
)
TAMPERED = {
  'more noise': (ALTERED, 'row 3: altered: its hash is not that'),
  'a deleted row': (
    'DELETE FROM dpmf_ledger WHERE number=3',
    'row 3: missing: it was removed',
  ),
  'a deleted row, renumbered': (
    'DELETE FROM dpmf_ledger WHERE number=3; '
    'UPDATE dpmf_ledger SET number=3 WHERE number=4',
    'row 3: does not follow row 2',
  ),
  'rows in another order': (
    'UPDATE dpmf_ledger SET number=9 WHERE number=3; '
    'UPDATE dpmf_ledger SET number=3 WHERE number=2; '
    'UPDATE dpmf_ledger SET number=2 WHERE number=9',
    'row 2: does not follow row 1',
  ),
  'another id': (
    "UPDATE dpmf_ledger SET id='other' WHERE number=3",
    'row 3: altered',
  ),
  'another budget': (
    "UPDATE dpmf_ledger SET content=replace(content, '3.0', '30.0') "
    'WHERE number=1',
    'row 1: altered',
  ),
  'a larger delta': (
    "UPDATE dpmf_ledger SET content=replace(content, '1e-06', '0.5')",
    'row 1: altered',
  ),
  'another hash': (
    "UPDATE dpmf_ledger SET hash='abc' WHERE number=2",
    'row 2: altered',
  ),
  'no first row': (
    'DELETE FROM dpmf_ledger WHERE number=1',
    'row 1: missing',
  ),
}


@pytest.mark.parametrize('name', TAMPERED)
def test_what_was_tampered_with_is_named(where, name):
  for _ in range(3):
    ledger.spend(where, RUN, **FACTS)
  statements, words = TAMPERED[name]
  sql(where, *statements.split('; '))
  before = rows(where)
  for attempt in (
    lambda: ledger.spend(where, RUN, **FACTS),
    lambda: ledger.set_budget(where, 5, reason='some'),
    lambda: ledger.report(where),
  ):
    with pytest.raises(ValueError, match=words) as error:
      attempt()
    assert str(error.value).startswith(ledger_database.name_of(where))
    assert '\n' not in str(error.value)
  assert rows(where) == before


@pytest.mark.parametrize(
  ('old', 'new', 'words'),
  [
    ('1e-06', '0.5', 'row 3: delta must be 1e-06, got 0.5'),
    ('"Gaussian"', '"Unheard"', "row 3: event 'Unheard' is not known"),
    ('"Gaussian"', '"ClaimedPure"', "row 3: event 'ClaimedPure'"),
    ('"what"', '"where"', 'row 3: what is missing'),
    ('"count":1', '"count":-1', 'row 3: count must be'),
    ('"uncovered":0.0', '"uncovered":1e-06', 'row 3: delta must be in'),
    ('release', 'rebate', "row 3: kind must be 'release' or 'budget'"),
    ('"digest":""', '"digest":7', 'row 3: digest must be a string, got 7'),
    ('{', '[' * 100_000, 'row 3: '),
    ('50.0', '1' + '0' * 400, 'row 3: '),
    ('{', '', 'row 3: '),
  ],
)
def test_a_row_is_read_with_care_whatever_its_hash(path, old, new, words):
  for _ in range(2):
    ledger.spend(path, RUN, **FACTS)
  sql(str(path), rewritten(path, 3, lambda text: text.replace(old, new)))
  with pytest.raises(ValueError, match=words) as error:
    ledger.entries(path)
  assert '\n' not in str(error.value)


def test_the_same_id_twice(path):
  # In a table that was made anew without its constraints.
  for name in ('one', 'two'):
    ledger.spend(path, RUN, entry_id=name, **FACTS)
  first, second, third = rows(path)
  sha = ledger_rows._hash(third.previous, 'one', third.content)
  sql(
    str(path),
    'CREATE TABLE copy AS SELECT * FROM dpmf_ledger',
    'DROP TABLE dpmf_ledger',
    'ALTER TABLE copy RENAME TO dpmf_ledger',
    f"UPDATE dpmf_ledger SET id='one', hash='{sha}' WHERE number=3",
  )
  assert [row.id for row in rows(path)] == [first.id, second.id, 'one']
  with pytest.raises(ValueError, match='row 3: a second one with the id one'):
    ledger.entries(path)


def test_what_was_cut_off_is_missed_by_who_noted_the_head(where):
  for _ in range(3):
    ledger.spend(where, RUN, **FACTS)
  head = ledger.statement(where)['head']
  ledger.spend(where, RUN, **FACTS)
  assert ledger.report(where, head=head)['releases'] == 4
  sql(where, 'DELETE FROM dpmf_ledger WHERE number>3')
  assert ledger.report(where)['releases'] == 2  # the chain cannot know
  with pytest.raises(ValueError, match='no row with the hash'):
    ledger.report(where, head=head)


# Files.


def test_a_file_is_its_owners_and_nothing_is_beside_it(path):
  ledger.spend(path, RUN, **FACTS)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert os.listdir(path.parent) == [path.name]
  ledger.spend(f'sqlite:///{path}', RUN, **FACTS)
  assert len(ledger.entries(path)) == 2


def test_an_empty_file_is_a_ledger_that_was_not_begun(path):
  path.touch()
  with pytest.raises(ValueError, match='is empty'):
    ledger.entries(path)
  ledger.spend(path, RUN, **FACTS)
  assert len(ledger.entries(path)) == 1


def test_a_full_disk_spends_nothing_and_breaks_nothing(path):
  ledger.spend(path, RUN, **FACTS)
  before = path.read_bytes()
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
  try:
    with pytest.raises(OSError, match=str(path)) as error:
      ledger.spend(path, RUN, **FACTS)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert '\n' not in str(error.value)
  assert path.read_bytes() == before
  ledger.spend(path, RUN, **FACTS)
  assert len(ledger.entries(path)) == 2


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    (b'some text that is long enough to be a header', 'not a SQLite database'),
    (b'{"schema": "dpmf_jax-ledger-2", ...}\n', 'dpmf account --import_ledger'),
  ],
)
def test_other_files_are_left_as_they_are(path, content, words):
  path.write_bytes(content)
  for attempt in (
    lambda: ledger.spend(path, RUN, **FACTS),
    lambda: ledger.entries(path),
  ):
    with pytest.raises(OSError, match=words) as error:
      attempt()
    assert str(error.value).startswith(str(path))
  assert path.read_bytes() == content


def test_flipped_bits_are_never_another_total(path):
  for _ in range(3):
    ledger.spend(path, RUN, **FACTS)
  whole, found = path.read_bytes(), []
  total = ledger.total(path)
  for place in range(0, len(whole), 97):
    path.write_bytes(
      whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
    )
    try:
      found.append(ledger.total(path))
    except (ValueError, OSError) as error:
      found.append(str(path) in str(error))
  assert set(found) == {total, True}


def test_a_broken_schema_is_named(path):
  ledger.spend(path, RUN, **FACTS)
  whole = path.read_bytes()
  begin = whole.index(b'CREATE TABLE')
  said = set()
  for place in range(begin - 40, begin + 200):
    path.write_bytes(whole[:place] + b'\xff' + whole[place + 1 :])
    try:
      ledger.total(path)
    except (ValueError, OSError) as error:
      said.add(str(error))
  assert f'{path}: the database is broken' in said
  assert all(words.startswith(str(path)) for words in said)


# Servers.


@pytest.mark.parametrize(
  'url',
  [
    'mysql://u:s3cr@host/d',
    'postgresql://u:s3cr@t:x@host/d',
    'postgresql://u:x@s3cr@host/d',
    'postgresql://u:s3cr@host:port/d',
    'postgresql://u:s3cr@host:99999999/d',
    's3cr://',
  ],
)
def test_a_url_that_is_none_is_not_repeated(url):
  for attempt in (
    lambda: ledger.spend(url, RUN, **FACTS),
    lambda: ledger.entries(url),
  ):
    with pytest.raises((ValueError, OSError)) as error:
      attempt()
    assert 's3cr' not in str(error.value)
    assert '\n' not in str(error.value)


def test_a_server_that_refuses_or_is_not_there_has_one_line(
  postgresql, tmp_path
):
  url = sa.make_url(postgresql)
  for other, words in (
    (url.set(password='wr0ng'), 'password authentication failed'),
    (url.set(database='nowhere'), '"nowhere" does not exist'),
    (url.set(query={'host': str(tmp_path)}), 'No such file or directory'),
  ):
    text = other.render_as_string(hide_password=False)
    with pytest.raises(OSError, match=words) as error:
      ledger.entries(text)
    message = str(error.value)
    assert message.startswith('postgresql://test@/')
    assert '\n' not in message
    for secret in (PASSWORD, 's3cr', 'wr0ng'):
      assert secret not in message


def test_the_password_is_in_no_message(postgresql):
  seen = []
  with pytest.raises(ValueError, match='is empty') as error:
    ledger.entries(postgresql)
  seen.append(error)
  with pytest.raises(ledger.BudgetExceeded) as error:
    ledger.spend(postgresql, events.Gaussian(0.1), **FACTS)
  seen.append(error)
  ledger.spend(postgresql, RUN, **FACTS)
  shown = [str(each.value) for each in seen]
  shown += [ledger.summary(postgresql), json.dumps(ledger.report(postgresql))]
  for text in shown:
    assert 's3cr' not in text
  assert 'postgresql://test@/postgres' in shown[-1]


def test_who_may_only_add_rows_can_spend_and_not_alter(postgresql):
  ledger.spend(postgresql, RUN, **FACTS)
  url = sa.make_url(postgresql)
  schema = url.query['options'].split('=')[1]
  sql(
    postgresql,
    "CREATE ROLE runner LOGIN PASSWORD 'r'",
    f'GRANT USAGE ON SCHEMA {schema} TO runner',
    'GRANT SELECT, INSERT ON dpmf_ledger TO runner',
  )
  runner = url.set(username='runner', password='r')
  runner = runner.render_as_string(hide_password=False)
  ledger.spend(runner, RUN, **FACTS)
  assert len(ledger.entries(runner)) == 2
  for words in ('DELETE FROM dpmf_ledger', ALTERED):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
      sql(runner, words)


def test_whoever_waits_is_told(path, monkeypatch):
  ledger.spend(path, RUN, **FACTS)
  monkeypatch.setattr(ledger_database, '_SECONDS', 0)
  held = sqlite3.connect(path, isolation_level=None)
  held.execute('BEGIN IMMEDIATE')
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    with pytest.raises(UserWarning, match='still waiting, as others write'):
      ledger.spend(path, RUN, **FACTS)
  held.close()
  ledger.spend(path, RUN, **FACTS)
  assert len(ledger.entries(path)) == 2


def test_whoever_has_no_ledger_does_not_wait_for_its_imports():
  code = """
import json, sys
from dpmf_jax.accounting import ledger
print(json.dumps(sorted({'sqlalchemy', 'psycopg', 'jax'} & sys.modules.keys())))
"""
  assert printed_by(code) == []


def test_without_the_driver_it_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, 'psycopg', None)
  with pytest.raises(ValueError, match=r'pip install "dpmf_jax\[postgresql\]"'):
    ledger.entries('postgresql://user@host/database')


@pytest.mark.slow
def test_training_on_a_server_writes_its_password_nowhere(
  launch, postgresql, tmp_path
):
  ratings, output = tmp_path / 'mine.csv', tmp_path / 'run'
  made = synthetic(num_users=40, num_items=30, num_ratings=500, seed=3)
  writing.write(made, ratings)
  flags = (
    f'--ratings={ratings}', f'--output={output}', '--system=gaussian_mf',
    '--steps=5', '--epsilon=2', f'--ledger={postgresql}', '--budget_epsilon=3',
  )  # fmt: skip
  first = launch('train', *flags)
  assert first.returncode == 0, first.stderr
  assert 'ledger: 1 release, epsilon 2 of 3 spent' in first.stdout
  again = launch('train', *flags, '--overwrite', '--epsilon=2.5')
  assert again.returncode == 1
  assert 'refused: postgresql://test@/postgres has 1 release' in again.stderr
  shown = launch('account', f'--ledger={postgresql}', '--format=html')
  assert shown.returncode == 0, shown.stderr
  texts = [done.stdout + done.stderr for done in (first, again, shown)]
  written = [path.read_bytes() for path in output.rglob('*') if path.is_file()]
  assert len(written) > 4
  for secret in (PASSWORD, quote(PASSWORD, safe='')):
    assert not any(secret in text for text in texts)
    assert not any(secret.encode() in content for content in written)
