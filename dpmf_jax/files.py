"""Files that are written whole or not at all, and arrays in named leaves."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tree

_MAX_JSON = 2**30  # bytes
_MAX_DEPTH = 64
_HALF = re.compile('[\ud800-\udfff]')  # of what JSON writes as two
_JSON_NAMES = {
  dict: 'an object',
  list: 'a list',
  str: 'a string',
  int: 'a number',
  float: 'a number',
  bool: 'a truth value',
  type(None): 'null',
}


def checked_path(path: Any, name: str) -> Path:
  """`path` as a Path; ValueError names the argument that it is."""
  if not isinstance(path, str | os.PathLike):
    raise ValueError(f'{name}={path!r} must be a path')
  return Path(path)


def cache_folder() -> Path:
  """Where things are kept that can be made, or fetched, again.

  $DPMF_CACHE or, in the user's folder for such things, dpmf_jax.
  """
  if given := os.environ.get('DPMF_CACHE'):
    return Path(given).expanduser()
  users = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return Path(users).expanduser() / 'dpmf_jax'


def private_folder(folder: Path) -> str:
  """'' if the folder is there now and ours alone, else what is wrong."""
  try:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
  except OSError as error:
    return f'{folder}: {error.strerror}'
  if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
    return f'{folder}: others may open it; make it yours alone (chmod 700)'
  return ''


@contextlib.contextmanager
def atomic(
  path: str | os.PathLike[str], *, mode: int | None = None
) -> Iterator[Path]:
  """Yields a temporary path that becomes `path` if the block succeeds.

  A reader sees the whole file or none of it; after an error the old file is
  as it was, and after a power cut one of them is there. `mode` is that of a
  new file by default. What a kill leaves is found by `partial_files`.
  """
  path = Path(path)
  if not path.parent.is_dir():
    raise ValueError(f'{path}: no such directory {path.parent}; make it first')
  if path.is_dir():
    raise ValueError(f'{path}: is a directory; name a file in it')
  handle, name = tempfile.mkstemp(
    prefix=f'.{path.name}.', suffix='.partial', dir=path.parent
  )
  partial = Path(name)
  try:
    os.close(handle)
    yield partial
    if mode is None:
      mask = os.umask(0)
      os.umask(mask)
      mode = 0o666 & ~mask  # mkstemp gives 0600
    partial.chmod(mode)
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)
  except OSError as error:
    if error.errno and error.filename is None:  # as of a full disk
      raise OSError(error.errno, error.strerror, str(path)) from None
    raise
  finally:
    partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
  """Waits until a file, or the names in a folder, are on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def partial_files(path: Path) -> list[Path]:
  """What writes of `path` that were killed have left beside it."""
  return [
    each
    for each in path.parent.iterdir()
    if each.name.startswith(f'.{path.name}.') and each.suffix == '.partial'
  ]


def sha256(*parts: bytes | Path | np.ndarray) -> str:
  """The SHA-256 of bytes, files and arrays' numbers, one after the other."""
  sha = hashlib.sha256()
  for part in parts:
    if isinstance(part, Path):
      with part.open('rb') as file:
        hashlib.file_digest(file, lambda: sha)
    else:
      known = isinstance(part, bytes)
      sha.update(part if known else np.ascontiguousarray(part).tobytes())
  return sha.hexdigest()


def write_bytes(
  path: str | os.PathLike[str], content: bytes, *, mode: int | None = None
) -> None:
  """Writes `content` to `path`, whole or not at all."""
  with atomic(path, mode=mode) as partial:
    partial.write_bytes(content)


def write_json(path: str | Path, value: Any, **options) -> None:
  """Writes `value` as JSON; NaN and infinity are refused."""
  text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
  write_bytes(path, (text + '\n').encode(), **options)


def read_json(path: str | Path, kind: type = dict) -> Any:
  """The dict in a JSON file, or the list; ValueError names a broken file."""
  path = Path(path)
  size = path.stat().st_size
  if size > _MAX_JSON:
    raise ValueError(f'{path}: has {size} bytes of JSON, at most {_MAX_JSON}')
  return parsed_json(path.read_bytes(), str(path), kind)


def parsed_json(text: str | bytes, where: str, kind: type = dict) -> Any:
  """The dict in JSON text, or the list; ValueError that begins with `where`.

  There is nothing in it that `write_json` would not write, and that readers
  would have to look out for: no infinity and no NaN, no integer beyond 64 bits,
  no half of a character, and nothing nested deeply.
  """
  try:
    text = text if isinstance(text, str) else text.decode('utf-8')
    value = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(f'{where}, line {error.lineno}: {error.msg}') from None
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{where}: is not UTF-8 text, at byte {error.start}'
    ) from None
  except RecursionError:
    raise ValueError(
      f'{where}: is nested more than {_MAX_DEPTH} deep'
    ) from None
  except ValueError:  # of more digits than Python converts
    raise ValueError(f'{where}: has an integer beyond 64 bits') from None
  if not isinstance(value, kind):
    wanted = 'an object' if kind is dict else 'a list'
    raise ValueError(
      f'{where}: is {_JSON_NAMES[type(value)]} in JSON, not {wanted}'
    )
  _check_json(value, where)
  return value


def _check_json(value: Any, where: str) -> None:
  """Raises ValueError for what `parsed_json` refuses; does not recurse."""
  stack = [(value, 1, where)]
  while stack:
    value, depth, where = stack.pop()
    if depth > _MAX_DEPTH:
      raise ValueError(f'{where}: is nested more than {_MAX_DEPTH} deep')
    if isinstance(value, dict):
      stack.extend((name, depth + 1, where) for name in value)
      for name, part in value.items():
        field = f'{where}, field {name[:40]}' if depth == 1 else where
        stack.append((part, depth + 1, field))
    elif isinstance(value, list):
      stack.extend((part, depth + 1, where) for part in value)
    elif isinstance(value, str):
      if not value.isascii() and _HALF.search(value):
        raise ValueError(f'{where}: has half of a character, {value[:40]!a}')
    elif isinstance(value, float):
      if not math.isfinite(value):
        raise ValueError(f'{where}: {value} is not finite')
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
      raise ValueError(f'{where}: has an integer beyond 64 bits')


def named_leaves(structure: Any) -> dict[str, np.ndarray]:
  """The arrays of a nested structure by path, e.g. 'factors/user'.

  Leaves that are None are left out.
  """
  return {
    '/'.join(map(str, path)): np.asarray(leaf)
    for path, leaf in tree.flatten_with_path(structure)
    if leaf is not None
  }


def save_tree(
  path: str | Path,
  structure: Any,
  *,
  metadata: Mapping[str, str] | None = None,
  mode: int | None = None,
) -> None:
  """Writes the leaves of `structure` to a safetensors file by their names."""
  leaves = named_leaves(structure)
  content = safetensors.numpy.save(
    {k: np.ascontiguousarray(v).reshape(v.shape) for k, v in leaves.items()},
    metadata=dict(metadata or {}),
  )
  write_bytes(path, content, mode=mode)


def load_leaves(path: str | Path) -> tuple[dict[str, np.ndarray], dict]:
  """The named leaves and the metadata of a safetensors file."""
  try:
    with safetensors.safe_open(path, framework='np') as file:
      leaves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
      return leaves, file.metadata() or {}
  except safetensors.SafetensorError as error:
    raise ValueError(
      f'{path} is not a whole safetensors file: {error}'
    ) from None


def load_tree(path: str | Path, like: Any) -> Any:
  """The structure `like` with the leaves that `save_tree` wrote.

  Raises ValueError where names, shapes or types differ.
  """
  leaves, _ = load_leaves(path)
  wanted = named_leaves(like)
  if leaves.keys() != wanted.keys():
    raise ValueError(
      f'{path} has other leaves than this run: '
      f'{sorted(leaves.keys() ^ wanted.keys())}'
    )
  for name, value in wanted.items():
    found = leaves[name]
    if (found.shape, found.dtype) != (value.shape, value.dtype):
      raise ValueError(
        f'{path}, leaf {name}: {found.dtype}{list(found.shape)} where this '
        f'run has {value.dtype}{list(value.shape)}'
      )
  return tree.map_structure_with_path(
    lambda p, x: None if x is None else leaves['/'.join(map(str, p))], like
  )
