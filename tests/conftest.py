"""Strict JAX settings for every test, and the fixtures they share."""

import gc
import itertools
import os
import signal
import sys
import uuid
from pathlib import Path

# Before JAX starts: catch reused keys, and have devices to shard over.
os.environ.setdefault('JAX_DEBUG_KEY_REUSE', '1')
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Tests mostly compile: what one of them has, others and later runs need not.
# In the virtual environment, or where make would have it.
os.environ.setdefault(
  'JAX_COMPILATION_CACHE_DIR',
  f'{sys.prefix}/compiled'
  if sys.prefix != sys.base_prefix
  else str(Path(__file__).parents[1] / '.venv' / 'compiled'),
)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')

import forks
import hypothesis
import jax
import postgres
import pytest

jax.config.update('jax_num_cpu_devices', 4)
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Machines stall: an example that takes long has not failed.
hypothesis.settings.register_profile('patient', deadline=None)
hypothesis.settings.load_profile('patient')


def pytest_collection_modifyitems(items):
  """What takes a minute first, so that no worker is left alone with it."""
  items.sort(key=lambda item: item.get_closest_marker('long') is None)


def pytest_collection_finish():
  """The collector took a tenth of tests' time, mostly on what imports made."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(10_000)


_tests = itertools.count(1)


def pytest_runtest_teardown():
  """Forgets compiled programs before they are too many.

  Each takes several memory maps, of which Linux allows a process 65,530. XLA
  crashes without them.
  """
  maps = Path('/proc/self/maps')
  if next(_tests) % 5 or not maps.exists():
    return
  with maps.open('rb') as lines:
    number = sum(1 for _ in lines)
  if number > 20_000:
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def data_dir() -> Path:
  """Where the real ratings are; skips, saying so, where there are none."""
  folder = os.environ.get('DPMF_DATA_DIR')
  if not folder or not Path(folder).is_dir():
    pytest.skip('real ratings not found: set DPMF_DATA_DIR to their folder')
  return Path(folder)


@pytest.fixture(scope='session')
def launch():
  """Runs `python -m launch.NAME ...` in a fork that has its imports made.

  With `alone` in a new process, as people do: also the way to give settings of
  JAX, which are read when it is imported.
  """

  def run(name: str, *flags: str, room='launch', alone=False, **options):
    started = forks.run_alone if alone else forks.run
    return started(f'{room}.{name}', *flags, **options)

  return run


# Ends the process as by SIGKILL, right after its first checkpoint of a step: no
# other process has to be quick enough to do it.
_KILLED = """
import os, signal
from dpmf_jax import files

save = files.save_tree

def save_and_die(path, tree, **options):
  save(path, tree, **options)
  if path.name == 'checkpoint.safetensors' and tree['step'] > 0:
    os.kill(os.getpid(), signal.SIGKILL)

files.save_tree = save_and_die
"""


@pytest.fixture
def launch_killed():
  """Runs `python -m launch.train ...` until it dies at its first checkpoint."""

  def run(*flags: str) -> None:
    done = forks.run(
      'launch.train', *flags, '--checkpoint_seconds=0', before=_KILLED
    )
    assert done.returncode == -signal.SIGKILL, done.stderr

  return run


@pytest.fixture(scope='session')
def small_ratings():
  """Synthetic ratings: 60 users, 40 items, 700 ratings, scale 1..5."""
  from dpmf_jax.ratings.synthetic import synthetic

  return synthetic(num_users=60, num_items=40, num_ratings=700, rank=3, seed=1)


@pytest.fixture(scope='session')
def postgresql_server():
  """The URL of a server; skips, saying so, where there is no PostgreSQL."""
  if postgres.binaries() is None:
    pytest.skip('PostgreSQL is not installed (Debian: apt install postgresql)')
  with postgres.server() as url:
    yield url


@pytest.fixture
def postgresql(postgresql_server):
  """The URL of a schema of its own on that server."""
  import psycopg

  name = f'test_{uuid.uuid4().hex}'
  with psycopg.connect(postgresql_server) as connection:
    connection.execute(f'CREATE SCHEMA {name}')
  return f'{postgresql_server}&options=-csearch_path%3D{name}'
