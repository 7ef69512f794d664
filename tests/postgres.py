"""A PostgreSQL server of the tests' own, in a folder and on a socket of it."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

PASSWORD = 's3cr:t/p@ss'
_PLACES = '/usr/lib/postgresql/*/bin', '/usr/pgsql-*/bin', '/usr/local/bin'
# The server does not run as root: there Debian's user of this name has it.
_USER = 'postgres'


def binaries() -> Path | None:
  """The folder of initdb and postgres, the newest; None: not installed."""
  found = [
    path
    for place in _PLACES
    for path in sorted(Path('/').glob(f'{place[1:]}/postgres'))
  ]
  return found[-1].parent if found else None


@contextlib.contextmanager
def server() -> Iterator[str]:
  """The URL of a server that is stopped and removed at the end."""
  # Not pytest's folder: a socket has a short path, and its owner may enter.
  folder = Path(tempfile.mkdtemp(prefix='dpmf-pg-', dir='/tmp'))
  try:
    secret = folder / 'secret'
    secret.write_text(PASSWORD)
    words = []
    if os.getuid() == 0:
      for path in (folder, secret):
        shutil.chown(path, _USER)
      words = ['setpriv', f'--reuid={_USER}', f'--regid={_USER}']
      words += ['--clear-groups', '--pdeathsig=QUIT']
    found = binaries()
    assert found is not None
    data = folder / 'data'
    subprocess.run(
      [*words, found / 'initdb', '-D', data, '--username=test', '--no-sync',
       '--no-locale', '--auth=scram-sha-256', f'--pwfile={secret}'],
      check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    settings = {
      'listen_addresses': '',
      'unix_socket_directories': folder,
      'max_connections': 250,
      'fsync': 'off',  # no test stops the machine
      'log_min_messages': 'log',
      'log_checkpoints': 'off',
    }
    process = subprocess.Popen(
      [*words, found / 'postgres', '-D', data]
      + [f'--{name}={value}' for name, value in settings.items()],
      stderr=subprocess.PIPE,
      text=True,
      cwd=folder,
    )
    try:
      assert process.stderr is not None
      log = []
      for line in process.stderr:
        log.append(line)
        if 'ready to accept connections' in line:
          break
      else:
        raise RuntimeError(f'the server does not start: {"".join(log)}')
      password = quote(PASSWORD, safe='')
      yield f'postgresql://test:{password}@/postgres?host={folder}'
    finally:
      process.send_signal(signal.SIGQUIT)
      process.communicate()
  finally:
    shutil.rmtree(folder)
