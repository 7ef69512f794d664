"""Tables that were read before, kept on disk so that they are there at once.

Privacy: what is kept are the ratings, in a folder that nobody else may open
(mode 0700). Whoever deletes a file of ratings deletes this folder, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dpmf_jax import __version__, files
from dpmf_jax.ratings import formats
from dpmf_jax.ratings.table import Ratings

LEAST = 2**24  # bytes: of fewer the reading itself takes about a second
_MOST = 8  # tables; those not used for longest go first
_ARRAYS = ('user', 'item', 'value', 'user_ids', 'item_ids', 'timestamp')


def read(
  path: str | os.PathLike[str],
  folder: pathlib.Path,
  *,
  say: Callable[[str], None],
  least: int = LEAST,
  **options: Any,
) -> Ratings:
  """Returns what `formats.read` returns, and warns as it does.

  Args:
    path: of a file, or a pattern; see `formats.read`.
    folder: where tables are kept, for the same content, path and options.
    say: is told what is kept where, and what is wrong with the folder.
    least: bytes that the files have together for them to be kept.
    **options: of `formats.read`, without titles.
  """
  path = pathlib.Path(path)
  parts = formats.parts_of(path)
  if not all(map(pathlib.Path.is_file, parts)) or _size(parts) < least:
    return formats.read(path, **options)
  if problem := files.private_folder(folder):
    say(f'{problem}; ratings that are read are not kept')
    return formats.read(path, **options)
  before = _state(parts)
  file = folder / f'{_key(parts, options)}.table'
  if file.exists():
    try:
      table, told = _loaded(file)
    except (ValueError, OSError, KeyError) as error:
      say(f'{file}: is damaged, {error}; reading {path} again')
    else:
      for message in told:
        warnings.warn(message, stacklevel=2)
      return table
  with _told_again() as told:
    table = formats.read(path, **options)
  if _state(parts) == before:  # the key is of what was read
    try:
      _keep(file, table, told)
    except OSError as error:
      say(f'{folder}: cannot keep what was read: {error.strerror}')
    else:
      say(f'keeping what was read of {path} in {folder}, which is private')
  return table


def _size(parts: Sequence[pathlib.Path]) -> int:
  return sum(part.stat().st_size for part in parts)


def _state(parts: Sequence[pathlib.Path]) -> list[tuple[int, int]]:
  found = [part.stat() for part in parts]
  return [(state.st_size, state.st_mtime_ns) for state in found]


def _key(parts: Sequence[pathlib.Path], options: dict[str, Any]) -> str:
  """Returns a hash of all that a table depends on, and messages, with paths."""
  content = [[str(part), files.sha256(part)] for part in parts]
  given = sorted((name, repr(value)) for name, value in options.items())
  return files.sha256(json.dumps([__version__, content, given]).encode())


@contextlib.contextmanager
def _told_again() -> Iterator[list[str]]:
  """Yields the warnings of the block, which are given after it as well."""
  told: list[str] = []
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    yield told
  for warning in caught:
    told.append(str(warning.message))
    warnings.warn(told[-1], stacklevel=3)


def _loaded(file: pathlib.Path) -> tuple[Ratings, list[str]]:
  """Returns the table in a file, and what was said when it was read."""
  content = file.read_bytes()
  digest, content = content[:32].hex(), content[32:]
  if files.sha256(content) != digest:
    raise ValueError('it has another SHA-256 than it says')
  with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
    facts = json.loads(arrays['facts'].tobytes())
    told = facts.pop('told')
    found = {name: arrays[name] for name in _ARRAYS if name in arrays}
  with contextlib.suppress(OSError):
    os.utime(file)
  facts['scale'] = tuple(facts['scale'])
  return Ratings(**found, **facts, unique=True), told


def _keep(file: pathlib.Path, table: Ratings, told: Sequence[str]) -> None:
  """Writes a table, whole or not at all, and removes those beyond `_MOST`."""
  facts = {name: getattr(table, name) for name in ('scale', 'clicks', 'name')}
  text = json.dumps(facts | {'told': list(told)}).encode()
  arrays = {name: getattr(table, name) for name in _ARRAYS}
  arrays['facts'] = np.frombuffer(text, np.uint8)
  buffer = io.BytesIO()
  np.savez(buffer, **{k: a for k, a in arrays.items() if a is not None})
  content = buffer.getvalue()
  with files.atomic(file, mode=0o600) as partial, partial.open('wb') as out:
    out.write(bytes.fromhex(files.sha256(content)))
    out.write(content)
  # With what a kill has left of other writes, and nothing else in the folder.
  ours = re.compile(r'\.?[0-9a-f]{64}\.table(\..*\.partial)?')
  found = filter(lambda each: ours.fullmatch(each.name), file.parent.iterdir())
  used = {each: each.stat().st_mtime for each in found}
  for each in sorted(used, key=lambda each: -used[each])[_MOST:]:
    each.unlink(missing_ok=True)
