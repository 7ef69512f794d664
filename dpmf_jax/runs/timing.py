"""Where the seconds of a run go, for whoever sets logging to DEBUG."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import jax

_LOG = logging.getLogger('dpmf_jax')
_COMPILED = '/jax/core/compile/'  # tracing, lowering and compiling


def laps() -> Callable[[str], None]:
  """What logs, under a name, the seconds since it was called before."""
  last = time.monotonic()

  def lap(name: str) -> None:
    nonlocal last
    now = time.monotonic()
    _LOG.debug('%s: %.2f s', name, now - last)
    last = now

  return lap


def compiling() -> Callable[[], float]:
  """What returns the seconds that JAX has spent on programs since then."""
  spent = 0.0

  def add(event: str, duration_secs: float, **_) -> None:
    nonlocal spent
    if event.startswith(_COMPILED):
      spent += duration_secs

  jax.monitoring.register_event_duration_secs_listener(add)
  return lambda: spent
