"""Bytes to a process on the same host and back, through a Unix socket.

A node's worker listens on one, in a folder of its own: whatever brings
messages from the network, such as Flower's ClientApp, passes them on here and
sees nothing but messages.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_SIZE = struct.Struct('<Q')
MOST_BYTES = 2**31
_LONGEST = 600  # seconds that a worker may take


def asked(path: str | Path, data: bytes, seconds: float) -> bytes:
  """The answer of who listens at `path`; OSError where there is none."""
  with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
    link.settimeout(seconds)
    link.connect(str(path))
    _send(link, data)
    return _receive(link)


def serve(path: str | Path, handle: Callable[[bytes], bytes]) -> None:
  """Answers one question after the other, until the process ends."""
  path = Path(path)
  with contextlib.suppress(FileNotFoundError):
    path.unlink()  # of a process that was killed
  with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
    mask = os.umask(0o177)
    try:
      listening.bind(str(path))
    finally:
      os.umask(mask)
    listening.listen(8)
    while True:
      link, _ = listening.accept()
      with link:
        link.settimeout(60)
        # Who asked may have gone away: the answer is kept for the next time.
        with contextlib.suppress(OSError):
          _send(link, handle(_receive(link)))


def local_exchange(paths: Mapping[int, str | Path]):
  """An `Exchange` with workers on this host, without any network.

  An answer that comes after the time is up is handed over with those of the
  next call.
  """
  pool = concurrent.futures.ThreadPoolExecutor(max_workers=2 * len(paths) + 2)
  late: list[tuple[int, concurrent.futures.Future]] = []

  def ask(peer: int, data: bytes, end: float) -> bytes:
    while True:
      try:
        return asked(paths[peer], data, _LONGEST)
      except (OSError, EOFError):
        # A worker that is just starting has no socket yet.
        if time.monotonic() > end:
          raise
      time.sleep(0.25)

  def exchange(
    questions: Mapping[int, bytes], seconds: float
  ) -> Iterable[tuple[int, bytes]]:
    end = time.monotonic() + seconds
    pending = late + [
      (peer, pool.submit(ask, peer, data, end))
      for peer, data in questions.items()
    ]
    wanted = set(questions)
    while pending and wanted and time.monotonic() < end:
      concurrent.futures.wait(
        [future for _, future in pending],
        timeout=max(0.0, end - time.monotonic()),
        return_when=concurrent.futures.FIRST_COMPLETED,
      )
      for peer, future in [pair for pair in pending if pair[1].done()]:
        pending.remove((peer, future))
        with contextlib.suppress(OSError, EOFError):
          yield peer, future.result()
        # Gone or answered: nothing more comes from this question.
        if not any(who == peer for who, _ in pending):
          wanted.discard(peer)
    late[:] = pending

  return exchange


def _send(link: socket.socket, data: bytes) -> None:
  link.sendall(_SIZE.pack(len(data)) + data)


def _receive(link: socket.socket) -> bytes:
  (size,) = _SIZE.unpack(_exactly(link, _SIZE.size))
  if size > MOST_BYTES:
    raise OSError(f'a message of {size} bytes')
  return _exactly(link, size)


def _exactly(link: socket.socket, size: int) -> bytes:
  parts = []
  while size:
    part = link.recv(min(size, 2**20))
    if not part:
      raise EOFError('the other side went away')
    parts.append(part)
    size -= len(part)
  return b''.join(parts)
