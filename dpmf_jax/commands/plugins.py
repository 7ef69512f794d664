"""--plugin=MODULE: systems of others, for the commands that go by names.

Flags are made of the systems' settings, so that modules which register more of
them (`dpmf_jax.register`) are imported before: when this module is, by what is
on the command line or in a --flagfile. Nothing is imported that was not named
there, installed or not: whose code a certificate is about should be seen in the
command that made it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from dpmf_jax.commands import cli

_NAME = 'plugin'

flags.DEFINE_multi_string(
  _NAME,
  [],
  'A Python module that registers a system of your own (dpmf_jax.register), '
  'installed or in the current folder. It can be given several times.',
)


def named(argv: Sequence[str]) -> Iterator[str]:
  """The values of --plugin in what was typed."""
  try:
    words = flags.FLAGS.read_flags_from_files(list(argv), force_gnu=True)
  except flags.Error:
    words = argv  # which is said when flags are parsed
  for word, following in zip(words, [*words, ''][1:], strict=True):
    flag, equals, value = word.partition('=')
    if flag in (f'--{_NAME}', f'-{_NAME}'):
      yield value if equals else following


def load(argv: Sequence[str]) -> None:
  """Imports what --plugin names; ends the command where that fails."""
  for name in named(argv):
    # `python -m` has it in the path, a command that was installed has not.
    if os.getcwd() not in sys.path and '' not in sys.path:
      sys.path.append(os.getcwd())
    try:
      importlib.import_module(name)
    except (ImportError, ValueError) as error:
      cli.fail(f'--{_NAME}={name} cannot be imported: {error}', error)


load(sys.argv[1:])
