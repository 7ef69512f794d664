"""Bytes to a process on the same host and back, through a Unix socket.

A node's worker listens on one, in a folder of its own: whatever brings
messages from the network, such as Flower's ClientApp, passes them on here and
sees nothing but messages. Connections are those of `multiprocessing`, of which
only `send_bytes` and `recv_bytes` are used: nothing is unpickled.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

MAX_BYTES = 2**31
_LONGEST = 600  # seconds that a worker may take
_STALLED = 60  # and that it waits for who has asked


def asked(path: str | Path, data: bytes, seconds: int) -> bytes:
  """The answer of who listens at `path`; OSError, EOFError if there is none."""
  with Client(str(path), 'AF_UNIX') as link:
    _give_up_after(link, seconds)
    link.send_bytes(data)
    return link.recv_bytes(MAX_BYTES)


def serve(path: str | Path, handle: Callable[[bytes], bytes]) -> None:
  """Answers one question after the other, until the process ends."""
  Path(path).unlink(missing_ok=True)  # of a process that was killed
  mask = os.umask(0o177)
  try:
    listening = Listener(str(path), 'AF_UNIX', backlog=8)
  finally:
    os.umask(mask)
  with listening:
    while True:
      # Who asked may have gone away: the answer is kept for the next time. Or
      # they say that more follows than there is memory for. What `handle`
      # raises, such as for a disk that is full, is no fault of theirs.
      gone = contextlib.suppress(OSError, EOFError, MemoryError)
      with contextlib.ExitStack() as open_links:
        link = data = None
        with gone:
          link = open_links.enter_context(listening.accept())
          _give_up_after(link, _STALLED)
          data = link.recv_bytes(MAX_BYTES)
        if link is None or data is None:
          continue
        answer = handle(data)
        with gone:
          link.send_bytes(answer)


def _give_up_after(link: Any, seconds: int) -> None:
  """Returns nothing; reads and writes that take longer are BlockingIOError."""
  limit = struct.pack('ll', seconds, 0)
  with socket.socket(fileno=os.dup(link.fileno())) as same:
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
      same.setsockopt(socket.SOL_SOCKET, option, limit)


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
