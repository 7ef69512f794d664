"""Command lines run in forks of a process that has made the imports once.

A process for each command line would spend most of its time on imports. The
server that `run` starts makes them all but starts no backend of JAX, whose
threads a fork would not have, and runs each script, as it is, in a fork.
"""

import atexit
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(
  module: str,
  *flags: str,
  env: Mapping[str, str] | None = None,
  before: str = '',
) -> subprocess.CompletedProcess:
  """What `python -m MODULE FLAGS` gave; `before` is code to run before it."""
  env = dict(os.environ if env is None else env)
  server = _server()
  assert server.stdin is not None
  assert server.stdout is not None
  server.stdin.write(json.dumps([module, flags, env, before]) + '\n')
  server.stdin.flush()
  return subprocess.CompletedProcess(
    [module, *flags], *json.loads(server.stdout.readline())
  )


def run_alone(module: str, *flags: str, **options):
  """The same in a process of its own, as people start it."""
  return subprocess.run(
    [sys.executable, '-m', module, *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    **options,
  )


def printed(command: list[str], folder: Path, path: Path) -> str:
  """What a command prints in a folder, with modules from `path`."""
  done = subprocess.run(
    command,
    cwd=folder,
    capture_output=True,
    text=True,
    check=False,
    env={**os.environ, 'PYTHONPATH': str(path)},
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


@functools.cache
def _server() -> subprocess.Popen:
  server = subprocess.Popen(
    [sys.executable, __file__],
    cwd=ROOT,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  atexit.register(server.communicate)  # the end of its input is its own
  return server


def _serve() -> None:
  sys.path[0] = str(ROOT)
  _import_everything()
  gc.collect()
  gc.freeze()  # or each fork would copy what its collector looks at
  for line in sys.stdin:
    with _file() as out, _file() as err:
      child = os.fork()
      if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os._exit(_code(*json.loads(line)))
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      texts = [_text(file) for file in (out, err)]
    print(json.dumps([code, *texts]), flush=True)


def _code(module, flags, env, before) -> int:
  """The exit code of a script, which has printed all that it has to."""
  os.environ.clear()
  os.environ.update(env)
  sys.argv = [module, *flags]
  try:
    exec(before, {})
    runpy.run_module(module, run_name='__main__', alter_sys=True)
    code = 0
  except SystemExit as end:
    code = 0 if end.code is None else int(end.code)
  except BaseException:
    traceback.print_exc()
    code = 1
  atexit._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  return code


def _file():
  return tempfile.TemporaryFile('w+')


def _text(file) -> str:
  file.seek(0)
  return file.read()


def _import_everything() -> None:
  """Imports the library and what it imports late; no command: flags clash."""
  import dpmf_jax

  for room in pkgutil.iter_modules(dpmf_jax.__path__, 'dpmf_jax.'):
    if room.name == 'dpmf_jax.commands':
      continue
    found = importlib.import_module(room.name)
    path = getattr(found, '__path__', ())
    for module in pkgutil.walk_packages(path, f'{room.name}.'):
      importlib.import_module(module.name)
  for name in ('jsonschema', 'matplotlib.figure', 'scipy.stats'):
    importlib.import_module(name)
  # The first picture looks for fonts.
  from dpmf_jax.evaluation import plots

  plots.learning_curve(io.BytesIO(), [], {'mean': 1.0}, title='')


if __name__ == '__main__':
  _serve()
