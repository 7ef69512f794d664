"""Getting public data files: downloads, checksums and the cache on disk."""

from __future__ import annotations

import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence

import tqdm

from dpmf_jax import files
from dpmf_jax.ratings.ids import DataError

_TIMEOUT = 15.0  # seconds without an answer
_PIP_TIMEOUT = 180.0
_WHEEL = 'recbole==1.2.1'
_IN_WHEEL = 'recbole/dataset_example/ml-100k/'


class SourceError(Exception):
  """A source that did not give the data; the next one may."""


def mismatch(file: object, content: bytes | pathlib.Path, want: str) -> str:
  """Returns what is wrong with the checksum, or '' if it is as expected."""
  found = files.sha256(content)
  if found == want:
    return ''
  return f'{file}: SHA-256 is {found}, expected {want}'


def download_zip(
  url: str, folder: str, wanted: Sequence[str], *, quiet: bool
) -> dict[str, bytes]:
  """Returns the wanted files of `folder` in the zip archive at the url."""
  chunks, name = [], url.rsplit('/', 1)[-1]
  try:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
      size = int(answer.headers.get('Content-Length') or 0) or None
      with tqdm.tqdm(
        desc=name, total=size, unit='B', unit_scale=True, disable=quiet or None
      ) as bar:
        while chunk := answer.read(1 << 16):
          chunks.append(chunk)
          bar.update(len(chunk))
  except (OSError, ValueError) as error:  # URLError is an OSError
    raise SourceError(f'{url}: {getattr(error, "reason", error)}') from error
  return read_zip(b''.join(chunks), {f: f'{folder}/{f}' for f in wanted}, url)


def recbole_wheel(*, quiet: bool) -> dict[str, bytes]:
  """Returns ML-100K as it lies in the RecBole wheel, which is not installed.

  Its ml-100k.inter is u.data below a header line.
  """
  command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
  command += ['--no-input', '--disable-pip-version-check']
  command += ['--only-binary=:all:', _WHEEL]
  with tempfile.TemporaryDirectory() as folder:
    error = _run(command + ['--dest', folder], f'pip download {_WHEEL}', quiet)
    wheels = list(pathlib.Path(folder).glob('recbole-*.whl'))
    if error or not wheels:
      raise SourceError(f'pip download {_WHEEL}: {error or "no wheel came"}')
    content = wheels[0].read_bytes()
  files = read_zip(
    content,
    {
      'u.data': _IN_WHEEL + 'ml-100k.inter',
      'ml-100k.item': _IN_WHEEL + 'ml-100k.item',
    },
    wheels[0].name,
  )
  files['u.data'] = files['u.data'].partition(b'\n')[2]
  return files


def read_zip(
  content: bytes, members: Mapping[str, str], where: str
) -> dict[str, bytes]:
  """Returns name -> bytes for the members of a zip archive held in memory."""
  try:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
      return {name: archive.read(path) for name, path in members.items()}
  except (zipfile.BadZipFile, KeyError, EOFError) as error:
    raise SourceError(f'{where}: not the archive expected: {error}') from error


def install(folder: pathlib.Path, files: Mapping[str, bytes]) -> None:
  """Puts the files into a new folder, which appears complete or not at all."""
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = tempfile.mkdtemp(prefix=f'.{folder.name}.', dir=folder.parent)
  except OSError as error:
    raise DataError(
      f'{folder.parent}: cannot keep data there: {error.strerror}; '
      'set DPMF_CACHE or cache_dir to a directory you may write'
    ) from error
  try:
    for name, content in files.items():
      pathlib.Path(partial, name).write_bytes(content)
    os.chmod(partial, 0o755)  # mkdtemp gives 0700; a cache may be shared
    try:
      os.replace(partial, folder)
    except OSError:
      # Another process was faster if the folder is there now; its files are
      # checked by the caller like any others.
      if not folder.is_dir():
        raise
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def set_aside(folder: pathlib.Path) -> pathlib.Path:
  """Returns where a damaged folder has been moved to."""
  number = 1
  while (target := folder.with_name(f'{folder.name}.bad-{number}')).exists():
    number += 1
  os.replace(folder, target)
  return target


def _run(command: list[str], label: str, quiet: bool) -> str:
  """Returns '' if the command succeeds, else the last line it complained."""
  began = time.monotonic()
  with (
    tempfile.TemporaryFile() as output,
    tqdm.tqdm(
      desc=label, bar_format='{desc} {elapsed}', disable=quiet or None
    ) as bar,
    subprocess.Popen(
      command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    ) as process,
  ):
    try:
      while process.poll() is None:
        if time.monotonic() - began > _PIP_TIMEOUT:
          return f'no end after {_PIP_TIMEOUT:g} s'
        time.sleep(0.1)
        bar.refresh()
    finally:
      if process.poll() is None:
        process.kill()
    if process.returncode == 0:
      return ''
    output.seek(0)
    lines = output.read().decode('utf-8', 'replace').strip().splitlines()
    return lines[-1].strip() if lines else f'exit code {process.returncode}'
