"""Compiled programs, kept from one run of a script to the next."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from dpmf_jax import files


def keep() -> None:
  """Has JAX keep what it compiles; call it before JAX is imported.

  The folder is ours alone, since programs in it are run: `compiled` in
  `files.cache_folder`. JAX_COMPILATION_CACHE_DIR names another one, and
  JAX_ENABLE_COMPILATION_CACHE=false keeps nothing.
  """
  # Small programs, too: a run has dozens, which take longer to compile than to
  # read.
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  if 'JAX_COMPILATION_CACHE_DIR' in os.environ:
    return
  folder = files.cache_folder() / 'compiled'
  if files.private_folder(folder) or files.private_folder(folder / _machine()):
    return
  os.environ['JAX_COMPILATION_CACHE_DIR'] = str(folder / _machine())


def _machine() -> str:
  """Differs between processors that do not run each other's programs."""
  known = ''
  if (cpus := Path('/proc/cpuinfo')).exists():
    known = ''.join(re.findall('^flags.*$', cpus.read_text(), re.M)[:1])
  return f'{platform.machine()}-{files.sha256(known.encode())[:8]}'
