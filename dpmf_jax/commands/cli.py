"""The wrapper that gives every script the same exit codes and error lines.

A script ends with

    if __name__ == '__main__':
      cli.run(main)

and `main(argv)` returns 0 or None when done, 1 when the thing asked for did
not hold. Wrong input or flags end with one line on stderr and exit code 2,
Ctrl-C with 130. `--help` shows its docstring and flags; see `help_page`. Set
DPMF_TRACEBACK=1 to see where an error came from.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from absl import app, flags

HELP = ('--help', '-help', '-h', '-?', '--helpshort')
_HELP_FULL = ('--helpfull', '-helpfull')
_WRONG_INPUT = 2
_INTERRUPTED = 130


def run(main: Callable[[Sequence[str]], Any]) -> NoReturn:
  """Never returns: runs `main` under absl and exits with its code."""

  def guarded(argv: Sequence[str]) -> Any:
    if len(argv) > 1:
      fail(f'unexpected argument {argv[1]!r}; flags start with --')
    try:
      code = main(argv)
      # A reader that went away (`| head`) shows here, not at exit.
      sys.stdout.flush()
      return code
    except BrokenPipeError:
      raise
    except (ValueError, OSError, flags.Error) as error:
      fail(line(error), error)

  warnings.formatwarning = lambda message, *_, **__: f'warning: {message}\n'
  for noisy in ('jax', 'matplotlib', 'PIL'):  # missing TPUs, fonts: not news
    logging.getLogger(noisy).setLevel(logging.WARNING)
  try:
    command = sys.modules[main.__module__]
    app.run(guarded, flags_parser=functools.partial(_parsed, command))
  except BrokenPipeError:
    # The interpreter would flush stdout again at exit, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    sys.exit(_INTERRUPTED)
  sys.exit(0)  # app.run exits by itself; this line is for the type checker


def scale(words: Sequence[str]) -> tuple[float, float]:
  """Returns the value of a --scale=LOWEST,HIGHEST flag."""
  try:
    low, high = map(float, words)
  except ValueError:
    low = high = 0.0
  if not low < high:
    raise ValueError(
      f'--scale={",".join(words)} must be the lowest and the highest possible '
      'rating, for example --scale=1,5'
    )
  return low, high


def _parsed(command: ModuleType, argv: Sequence[str]) -> list[str]:
  """Returns the arguments that are not flags; a wrong flag exits with 2."""
  asked = {*HELP, *_HELP_FULL}.intersection(argv)
  rest = []
  try:
    rest = flags.FLAGS([word for word in argv if word not in asked])
  except flags.Error as error:
    # Whoever asks for help may leave out what has to be given.
    if not (asked and flags.FLAGS.is_parsed()):
      fail(f'{_wrong_flag(line(error))} (see --help)')
  except SystemExit:
    sys.exit(0)  # absl ends --helpxml with 1, but it was asked for and given
  if asked:
    from dpmf_jax.commands import help_page

    print(help_page.page(command, full=not asked.isdisjoint(_HELP_FULL)))
    sys.exit(0)
  return rest


def _wrong_flag(line: str) -> str:
  """Returns what absl says of flags, without what only its users know."""
  missing = r'flag (--\w+)=None: Flag --\w+ must have a value other than None\.'
  return re.sub(missing, r'\1 must be given', line).removeprefix('ERROR:: ')


def line(error: BaseException) -> str:
  """Returns the message of an error on one line."""
  if isinstance(error, OSError) and error.strerror and error.filename:
    return f'{error.filename}: {error.strerror}'
  return in_flags(' '.join(str(error).split())) or type(error).__name__


def in_flags(message: str) -> str:
  """The library's words for arguments in those of scripts: flags."""

  def flag(found: re.Match[str]) -> str:
    name, equals, value = found.groups()
    # A plain word is a flag only if it can be nothing else.
    if name not in flags.FLAGS or not (equals or '_' in name):
      return found.group()
    return f'--{"no" * (value == "False")}{name}{"" if value else equals}'

  words = r'(?<![\w.\-/\'"])([a-z]\w*)\b(=?)((?<==)(?:True|False))?'
  # Values as a shell has them: --split=last, --scale=1,5.
  quoted = r"(--\w+=)(?:'([\w-]+)'|\((-?[\d.]+), (-?[\d.]+)\))"
  return re.sub(quoted, _plain_value, re.sub(words, flag, message))


def _plain_value(found: re.Match[str]) -> str:
  flag, word, low, high = found.groups()
  return f'{flag}{word or f"{float(low):g},{float(high):g}"}'


def fail(message: str, error: BaseException | None = None) -> NoReturn:
  """Never returns: ends with the message as one line, and with code 2."""
  if error is not None and os.environ.get('DPMF_TRACEBACK'):
    traceback.print_exception(error)
  sys.stdout.flush()
  print(f'error: {message}', file=sys.stderr)
  sys.exit(_WRONG_INPUT)
