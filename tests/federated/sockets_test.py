"""Workers on sockets: who goes away is forgotten, own errors are not."""

import contextlib
import errno
import pathlib
import shutil
import tempfile
import threading
from multiprocessing import util

import pytest

from dpmf_jax.federated import sockets


@pytest.fixture
def path():
  folder = tempfile.mkdtemp(prefix='dpmf')  # paths of sockets are short
  # After the listener, which removes the socket when the process ends.
  util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-100)
  return pathlib.Path(folder) / 'socket'


def started(path, handle):
  """A thread that serves, and the errors that end it."""
  ended = []

  def serve():
    try:
      sockets.serve(path, handle)
    except OSError as error:
      ended.append(error)

  thread = threading.Thread(target=serve, daemon=True)
  thread.start()
  return thread, ended


def linked(path, thread):
  """A connection, once there is somebody who listens."""
  while thread.is_alive():
    with contextlib.suppress(OSError):
      return sockets.Client(str(path), 'AF_UNIX')
  raise AssertionError('nobody listens')


def test_who_goes_away_early_does_not_end_a_worker(path):
  thread, ended = started(path, lambda data: data[::-1])
  for sent in (None, b'abc'):  # and without waiting for the answer
    with linked(path, thread) as link:
      if sent is not None:
        link.send_bytes(sent)
  assert sockets.asked(path, b'abc', 600) == b'cba'
  assert not ended


def test_an_error_of_its_own_does(path):
  def full(data):
    raise OSError(errno.ENOSPC, 'No space left on device', 'state.safetensors')

  thread, ended = started(path, full)
  with linked(path, thread) as link:
    link.send_bytes(b'abc')
    with pytest.raises((EOFError, OSError)):
      link.recv_bytes()
  thread.join()
  assert ended[0].filename == 'state.safetensors'
