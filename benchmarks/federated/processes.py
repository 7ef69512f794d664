"""The processes of a trial on this host, none of which outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / 'dpmf_jax' / 'commands' / 'federated' / 'app'
# Nothing is sent to Flower's makers; quick looks for what there is to do.
_QUIET = {
  'FLWR_TELEMETRY_ENABLED': '0',
  'FLWR_DISABLE_UPDATE_CHECK': '1',
  'FLWR_SUPEREXEC_TASK_POLL_INTERVAL': '0.1',
}
_LISTENING = 300  # seconds
# Runs a command that is killed when its parent ends: PR_SET_PDEATHSIG of Linux.
# In the child, since JAX's threads do not survive code between fork and exec.
_BOUND = (
  'import ctypes, os, signal, sys; '
  'linux = sys.platform == "linux"; '
  'linux and ctypes.CDLL(None).prctl(1, int(signal.SIGKILL)); '
  'os.execvp(sys.argv[1], sys.argv[1:])'
)


class Processes:
  """Processes by name, with what they print in FOLDER/NAME.out."""

  def __init__(self, folder: Path):
    self.folder = folder
    self.running: dict[str, subprocess.Popen] = {}

  def start(self, name: str, command: list[str], **environment: str) -> None:
    """Starts a process; the one of that name must be gone."""
    paths = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    binaries = os.pathsep.join(
      [str(Path(sys.executable).parent), os.environ.get('PATH', '')]
    )
    with (self.folder / f'{name}.out').open('ab') as out:
      self.running[name] = subprocess.Popen(
        [sys.executable, '-S', '-c', _BOUND, *command],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,
        env={
          **os.environ,
          **_QUIET,
          'PYTHONPATH': paths,
          'PATH': binaries,
          **environment,
        },
      )

  def submit(self, command: list[str], *, port: int, **environment) -> None:
    """Runs a command to its end, once somebody listens on the port."""
    end = time.monotonic() + _LISTENING
    while True:
      self.check()
      with (
        contextlib.suppress(OSError),
        socket.create_connection(('127.0.0.1', port), 1),
      ):
        break
      if time.monotonic() > end:
        raise RuntimeError(f'nobody listens on port {port}')
      time.sleep(0.2)
    self.start('submit', command, **environment)
    code = self.running.pop('submit').wait(_LISTENING)
    if code:
      raise RuntimeError(
        f'{command[0]} ended with {code}; see {self.folder}/submit.out'
      )

  def kill(self, name: str) -> None:
    """Kills a process and those in its group, as a power cut would."""
    process = self.running.pop(name)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    process.wait()

  def ended(self) -> str | None:
    """Which process has ended, and how; None where all are running."""
    for name, process in self.running.items():
      code = process.poll()
      if code is not None:
        return f'{name} ended with {code}; see {self.folder / name}.out'
    return None

  def check(self) -> None:
    """Raises where a process has ended that should not."""
    if why := self.ended():
      raise RuntimeError(why)

  def stop(self) -> None:
    """Ends all: asks first, then kills whole groups."""
    for process in self.running.values():
      with contextlib.suppress(ProcessLookupError):
        process.terminate()
    for process in self.running.values():
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    for name in list(self.running):
      self.kill(name)


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[Processes]:
  """Yields `Processes` that are all gone afterwards."""
  made = Processes(folder)
  try:
    yield made
  finally:
    made.stop()


def free_port() -> int:
  """A TCP port that is free now."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]
