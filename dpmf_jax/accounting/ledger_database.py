"""A ledger as a table: in a SQLite file, or on a PostgreSQL server.

  look('ledger.db')                    all rows, in order
  change('postgresql://...', decide)   decides by them, and adds to them

Both happen in one serialisable transaction. SQLite lets one process write at a
time, and is told to return only when rows are on the disk. PostgreSQL ends all
but one of those who would write the next row, and they decide again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from dpmf_jax import files
from dpmf_jax.accounting.ledger_rows import Row

_T = TypeVar('_T')

_TABLE = sa.Table(
  'dpmf_ledger',
  sa.MetaData(),
  sa.Column('number', sa.Integer, primary_key=True, autoincrement=False),
  sa.Column('id', sa.Text, nullable=False, unique=True),
  sa.Column('content', sa.Text, nullable=False),
  sa.Column('previous', sa.Text, nullable=False),
  sa.Column('hash', sa.Text, nullable=False),
)
# What PostgreSQL says to those who were second: serialization_failure,
# deadlock_detected, unique_violation, and of the table and its type
# duplicate_table and duplicate_object.
_AGAIN = {'40001', '40P01', '23505', '42P07', '42710'}
_SECONDS = 5  # to wait for others in SQLite, which does not hear Ctrl-C then
# Closing any descriptor of a file ends all locks of the process on it.
_ONE_THREAD = threading.Lock()
_OLD_FORMAT = b'{"schema": "dpmf_jax-ledger-'


def look(where: str | os.PathLike[str]) -> list[Row]:
  """All rows, none where nothing was ever written.

  Raises FileNotFoundError where there is no file.
  """
  path = _path_of(where)
  if path is not None:
    os.stat(path)
  return _transacted(where, _rows, write=False)


def change(
  where: str | os.PathLike[str],
  decide: Callable[[list[Row]], tuple[_T, list[Row]]],
) -> _T:
  """What `decide(rows)` gives, after its further rows are on the disk.

  It is called again if others have written meanwhile. If it raises, nothing is
  written, and a new file is not even made.
  """
  path = _path_of(where)
  if path is not None and not path.exists():
    decide([])
    with _ONE_THREAD:
      os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))

  def work(connection: sa.Connection) -> _T:
    result, more = decide(_rows(connection))
    if more:
      _TABLE.create(connection, checkfirst=True)
      connection.execute(_TABLE.insert(), [row._asdict() for row in more])
    return result

  return _transacted(where, work, write=True)


def name_of(where: str | os.PathLike[str]) -> str:
  """What messages call it: a path, or a URL without password and options."""
  path = _path_of(where)
  if path is not None:
    return str(path)
  url = _url(os.fspath(where))
  kept = sa.URL.create(
    'postgresql', url.username, None, url.host, url.port, url.database
  )
  return kept.render_as_string()


def _rows(connection: sa.Connection) -> list[Row]:
  if not sa.inspect(connection).has_table(_TABLE.name):
    return []
  found = connection.execute(sa.select(_TABLE).order_by(_TABLE.c.number))
  return [Row(*row) for row in found]


def _transacted(
  where: str | os.PathLike[str],
  work: Callable[[sa.Connection], _T],
  *,
  write: bool,
) -> _T:
  """What `work` gives in a transaction, which is then on the disk."""
  path = _path_of(where)
  engine = _sqlite(path, write) if path else _postgresql(_url(str(where)))
  alone = _ONE_THREAD if path else contextlib.nullcontext()
  try:
    with alone, engine.connect() as connection:
      for attempt in itertools.count():
        try:
          with connection.begin():
            if write and path is None:
              connection.exec_driver_sql('SET LOCAL synchronous_commit TO on')
            return work(connection)
        except exc.DBAPIError as error:
          if not _was_second(error.orig):
            raise
        if attempt == 10:
          warnings.warn(
            f'{name_of(where)}: still waiting, as others write to it',
            stacklevel=2,
          )
        # At random, and the longer the more there are, or all meet again.
        time.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 6)))
  except exc.DBAPIError as error:
    raise OSError(f'{name_of(where)}: {_reason(error, path)}') from None
  except UnicodeError:  # of names in a broken file
    raise OSError(f'{name_of(where)}: the database is broken') from None
  raise AssertionError('counting does not end')


def _was_second(error: Any) -> bool:
  """Whether somebody else was faster, so that it is to be tried again."""
  busy = getattr(error, 'sqlite_errorcode', 0) & 0xFF == sqlite3.SQLITE_BUSY
  return busy or getattr(error, 'sqlstate', None) in _AGAIN


def _sqlite(path: Path, write: bool) -> sa.Engine:
  connected = functools.partial(
    sqlite3.connect,
    f'{path.absolute().as_uri()}?mode=rw',
    uri=True,
    timeout=_SECONDS,
    isolation_level=None,  # transactions begin as is said below
  )

  def begin(connection: sa.Connection) -> None:
    # FULL, and the folder too: else a power cut could undo a transaction.
    connection.exec_driver_sql('PRAGMA synchronous = EXTRA')
    connection.exec_driver_sql('BEGIN IMMEDIATE' if write else 'BEGIN')

  engine = sa.create_engine(
    'sqlite://', creator=connected, poolclass=sa.pool.NullPool
  )
  event.listen(engine, 'begin', begin)
  return engine


def _postgresql(url: sa.URL) -> sa.Engine:
  try:
    return sa.create_engine(
      url,
      isolation_level='SERIALIZABLE',
      poolclass=sa.pool.NullPool,
      use_native_hstore=False,
      # Of a database that says SQL_ASCII words would come as bytes.
      connect_args={'client_encoding': 'utf8'},
    )
  except ImportError:
    raise ValueError(
      'a ledger on PostgreSQL needs psycopg 3, which is not installed: pip '
      'install "dpmf_jax[postgresql]"'
    ) from None


def _path_of(where: str | os.PathLike[str]) -> Path | None:
  """The SQLite file; None for a database that is named by a URL."""
  if not isinstance(where, str) or '://' not in where:
    return files.checked_path(where, 'ledger')
  url = _url(where)
  return Path(url.database or '') if url.drivername == 'sqlite' else None


def _url(text: str) -> sa.URL:
  """The parts of a URL; errors do not repeat it, as a password may be in it."""
  with contextlib.suppress(exc.ArgumentError, ValueError):
    url = sa.make_url(text)
    known = {
      'sqlite': 'sqlite',
      'postgresql': 'postgresql+psycopg',
      'postgresql+psycopg': 'postgresql+psycopg',
    }
    # With an @ in the host, a part of the password is.
    if url.drivername in known and '@' not in (url.host or ''):
      return url.set(drivername=known[url.drivername])
  raise ValueError(
    'the ledger is no URL such as postgresql://user@host:5432/database, nor '
    'the path of a file; in a password @ is %40, : is %3A and / is %2F'
  )


def _reason(error: exc.DBAPIError, path: Path | None) -> str:
  """Why the database refused, on one line."""
  words = ' '.join(str(error.orig).split())
  if path is None or 'not a database' not in words:
    return words
  with _ONE_THREAD, path.open('rb') as file:
    if file.read(len(_OLD_FORMAT)) != _OLD_FORMAT:
      return 'not a SQLite database'
  return (
    'a ledger of an earlier version, a file of lines; make a database of it '
    f'with dpmf account --import_ledger={path} --ledger=NEW.db'
  )
