"""Named data sets: where they are looked for, and how they are recognised.

A data set is looked for in `data_dir`, in $DPMF_DATA_DIR, in the cache
(`cache_dir` or `files.cache_folder`) and then fetched, if it may
be. Every file is compared with its SHA-256 before each use.
"""

from __future__ import annotations

import importlib.resources
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpmf_jax.files import cache_folder
from dpmf_jax.ratings import formats, sources
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import DataError, Ratings

StrPath = str | os.PathLike[str]


class _Dataset(NamedTuple):
  folder: str
  ratings: str
  titles: tuple[str, ...]  # the first one found is read
  format: str
  scale: tuple[float, float]
  licence: str
  archive: str | None
  options: Mapping[str, Any] = {}  # of `formats.read`


_GROUPLENS = 'https://files.grouplens.org/datasets/movielens/'
_FILES = {
  'ml-100k': _Dataset(
    'ml-100k', 'u.data', ('u.item', 'ml-100k.item'), 'u.data', (1, 5),
    'movielens', _GROUPLENS + 'ml-100k.zip',
  ),
  'ml-1m': _Dataset(
    'ml-1m', 'ratings.dat', ('movies.dat',), 'ratings.dat', (1, 5),
    'movielens', _GROUPLENS + 'ml-1m.zip',
  ),
  'netflix-slice': _Dataset(
    'netflix', 'Netflix_Dataset_Rating.sample_242k.csv', ('movie_titles.csv',),
    'csv', (1, 5), 'netflix', None,
  ),
  'anime-slice': _Dataset(
    'anime', 'anime_ratings.dat', ('anime_info.dat',), 'tsv', (1, 10),
    'anime', None,
  ),
  'jester-1': _Dataset(
    'jester', 'jester-data-1.csv.gz', (), 'dense', (-10, 10), 'jester', None,
    # A line begins with how many jokes its user rated.
    {'missing': 99, 'columns': {'item': 1}},
  ),
}  # fmt: skip
_SYNTHETIC = {  # users, items, ratings; all with seed 1
  'synthetic-small': (200, 100, 4_000),
  'synthetic-100k': (943, 1_682, 100_000),
  'synthetic-1m': (6_040, 3_706, 1_000_000),
  'synthetic-10m': (69_878, 10_677, 10_000_000),
}
_LICENCES = {
  'movielens': (
    'MovieLens data (GroupLens, University of Minnesota): for research; no '
    'redistribution and no commercial use without permission; cite Harper and '
    'Konstan (2015), doi:10.1145/2827872.'
  ),
  'netflix': (
    'Netflix Prize data: no longer distributed by Netflix; check that you may '
    'use it, and do not redistribute it.'
  ),
  'anime': (
    'Anime ratings: collected through the myanimelist.net API, published on '
    'Kaggle (CooperUnion) and reduced by A. Fortes; their README grants no '
    'licence, so do not redistribute them.'
  ),
  'jester': (
    'Jester ratings (K. Goldberg, UC Berkeley): for research, do not '
    'redistribute them; cite Goldberg, Roeder, Gupta and Perkins (2001), '
    'doi:10.1023/A:1011419012209.'
  ),
}
NAMES = (*_FILES, *_SYNTHETIC)
_SUMS = importlib.resources.files('dpmf_jax.ratings') / 'SHA256SUMS'
_SHA256 = {
  name: digest
  for digest, name in map(str.split, _SUMS.read_text().splitlines())
}


def load(
  name: str,
  *,
  data_dir: StrPath | None = None,
  cache_dir: StrPath | None = None,
  quiet: bool = False,
) -> Ratings:
  """Returns the named data set, fetched first if need be; see `fetch`."""
  _check_name(name)
  if name in _SYNTHETIC:
    users, items, count = _SYNTHETIC[name]
    return synthetic(
      num_users=users, num_items=items, num_ratings=count, seed=1, name=name
    )
  spec = _FILES[name]
  folder = fetch(name, data_dir=data_dir, cache_dir=cache_dir, quiet=quiet)
  titles = next((f for f in spec.titles if (folder / f).is_file()), None)
  if titles is None and spec.titles and not quiet:
    _say(f'{folder}: no {" or ".join(spec.titles)}, so items have no titles')
  return formats.read(
    folder / spec.ratings,
    scale=spec.scale,
    format=spec.format,
    titles=folder / titles if titles else None,
    name=name,
    **spec.options,
  )


def fetch(
  name: str,
  *,
  data_dir: StrPath | None = None,
  cache_dir: StrPath | None = None,
  quiet: bool = False,
) -> pathlib.Path:
  """Returns the folder that holds the named data set, its files checked.

  A wrong file in a data directory is an error; one in the cache is moved
  aside and fetched again. `quiet` leaves out progress bars and all notes but
  the one that a source failed.
  """
  _check_name(name)
  if name in _SYNTHETIC:
    raise DataError(f'{name} is generated from its seed: nothing to fetch')
  spec, tried = _FILES[name], []
  say = (lambda text: None) if quiet else _say
  cache = _cache(cache_dir)
  named = (('data_dir', data_dir), ('DPMF_DATA_DIR', _env('DPMF_DATA_DIR')))
  for label, root in named:
    if root is None:
      continue
    folder = _find(spec, label, pathlib.Path(root))
    if folder is not None:
      if problem := _problem(spec, folder):
        raise DataError(f'{problem}; replace the file or choose another folder')
      _note_licence(spec, cache, quiet)
      return folder
    tried.append(f'{root} ({label}) has no {spec.folder}/{spec.ratings}')
    say(f'{tried[-1]}; trying elsewhere')

  folder = cache / name
  if spec.archive is not None:
    if folder.exists():
      problem = _problem(spec, folder)
      if not problem:
        _note_licence(spec, cache, quiet)
        return folder
      aside = sources.set_aside(folder)
      say(f'{problem}; moved to {aside}, fetching again')
    if _download(name, spec, folder, tried, quiet):
      _note_licence(spec, cache, quiet)
      return folder
  else:
    tried.append('it has no public address to fetch it from')
  raise DataError(
    f'{name} was not found: {"; ".join(tried)}. Put {spec.ratings} at '
    f'DIR/{spec.folder}/{spec.ratings} and set data_dir or DPMF_DATA_DIR to DIR'
  )


def _download(
  name: str,
  spec: _Dataset,
  folder: pathlib.Path,
  tried: list[str],
  quiet: bool,
) -> bool:
  """Returns whether a source gave the right files; they are in the cache."""
  archive = str(spec.archive)
  wanted = (spec.ratings, spec.titles[0])
  attempts: list[tuple[str, Callable[[], dict[str, bytes]]]] = [
    (
      archive,
      lambda: sources.download_zip(archive, name, wanted, quiet=quiet),
    )
  ]
  if name == 'ml-100k':
    wheel = lambda: sources.recbole_wheel(quiet=quiet)
    attempts.append(('the RecBole wheel on the package index', wheel))
  for number, (label, attempt) in enumerate(attempts):
    if not quiet:
      _say(f'fetching {name} from {label}')
    try:
      files = attempt()
      for file, content in files.items():
        if problem := sources.mismatch(file, content, _SHA256[file]):
          raise sources.SourceError(f'{label}: {problem}')
    except sources.SourceError as error:
      tried.append(str(error))
      rest = attempts[number + 1 :]
      # Said even if quiet: the user should know where the data comes from.
      _say(f'{error}; ' + (f'trying {rest[0][0]}' if rest else 'none left'))
      continue
    sources.install(folder, files)
    if problem := _problem(spec, folder):
      raise DataError(f'{problem}; remove {folder} and try again')
    return True
  return False


def _find(
  spec: _Dataset, label: str, root: pathlib.Path
) -> pathlib.Path | None:
  """Returns the folder in `root`, or `root` itself, that has the ratings."""
  if not root.is_dir():
    raise DataError(f'{label}={root} is not a directory; check the path')
  for folder in (root / spec.folder, root):
    if (folder / spec.ratings).is_file():
      return folder
  return None


def _problem(spec: _Dataset, folder: pathlib.Path) -> str:
  """Returns what is wrong with a data set's files, '' if nothing."""
  if not (folder / spec.ratings).is_file():
    return f'{folder}: no {spec.ratings}'
  for file in (spec.ratings, *spec.titles):
    path = folder / file
    problem = path.is_file() and sources.mismatch(path, path, _SHA256[file])
    if problem:
      return problem
  return ''


def _note_licence(spec: _Dataset, cache: pathlib.Path, quiet: bool) -> None:
  """Says on what terms the data may be used, once for each cache."""
  marker = cache / f'.licence-{spec.licence}-shown'
  if quiet or marker.exists():
    return
  _say(_LICENCES[spec.licence])
  try:
    cache.mkdir(parents=True, exist_ok=True)
    marker.touch()
  except OSError:
    pass  # a cache that cannot be written: the note appears again, no harm


def _check_name(name: str) -> None:
  if not isinstance(name, str):
    raise DataError(
      f'name is a {type(name).__name__}, but must be one of '
      f'{", ".join(NAMES)}; train takes frames and matrices as they are'
    )
  if name not in NAMES:
    raise DataError(f'dataset {name!r} is not one of {", ".join(NAMES)}')


def _cache(cache_dir: StrPath | None) -> pathlib.Path:
  return pathlib.Path(cache_dir or cache_folder()).expanduser()


def _env(variable: str) -> str | None:
  return os.environ.get(variable) or None


def _say(text: str) -> None:
  print(text, file=sys.stderr)
