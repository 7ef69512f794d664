"""The flags that say which ratings a command is about."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmf_jax.commands import cli, declaring, reading


class _Declared:
  """Which ratings a command is about.

  Attributes:
    dataset: A named data set, such as ml-100k, ml-1m or synthetic-1m.
    data_dir: Where data sets are looked for first.
    ratings: A ratings file, instead; or several, such as 'parts/*.parquet'.
    scale: Lowest and highest rating that --ratings can hold, 1,5 by default. A
      public fact: it is never taken from the data.
    max_count: --ratings has counts, of clicks or plays, and so many of one
      count at most: a public fact. 1, the default of a file without ratings,
      makes all interactions alike.
    ratings_cache: Folder that keeps what was read of large --ratings, which the
      next run then has at once. It holds private ratings, and only you may open
      it; by default it is tables in $DPMF_CACHE, $XDG_CACHE_HOME/dpmf_jax or
      ~/.cache/dpmf_jax. none keeps nothing.
  """

  dataset: str | None = None
  data_dir: str | None = None
  ratings: str | None = None
  scale: Sequence[str] | None = None
  max_count: int | None = None
  ratings_cache: str | None = None


GIVEN = declaring.define(_Declared)
FLAGS = declaring.names(_Declared)


def load(titles: str | None = None):
  """The ratings that the flags name.

  Args:
    titles: the file with item titles for --ratings, or None.
  """
  from dpmf_jax.ratings import catalog, formats, given
  from dpmf_jax.runs import processes

  dataset, path = GIVEN.dataset, GIVEN.ratings
  if dataset is not None and path is None:
    reading.check_unused('--dataset')
    if GIVEN.max_count is not None:
      raise ValueError('--max_count is for --ratings=FILE, not for --dataset')
    return processes.owned(catalog.load(dataset, data_dir=GIVEN.data_dir))
  if path is None or dataset is not None:
    raise ValueError('pass one of --dataset=NAME and --ratings=FILE')
  named = formats.read_titles(titles) if titles else {}
  ratings = _read(path, **options())
  if scale() is None and processes.alike(ratings.value):
    given.check_default_scale(ratings)
  return dataclasses.replace(ratings, titles=named, unique=True)


def scale() -> tuple[float, float] | None:
  """The value of --scale; None where it is not given."""
  return None if GIVEN.scale is None else cli.scale(GIVEN.scale)


def options() -> dict[str, Any]:
  """What `formats.read` is to know of --ratings."""
  from dpmf_jax.ratings import given

  most = GIVEN.max_count
  default = given.SCALE if most is None else None
  limits = {'scale': scale() or default, 'max_count': most}
  return limits | reading.options()


def _read(path: str, **options: Any):
  """The ratings of --ratings, maybe as they were read before.

  Of several processes each reads its part files. Where there are fewer files
  than processes all read them all; each gets the ratings of its own users.
  """
  from dpmf_jax import files
  from dpmf_jax.ratings import formats, kept
  from dpmf_jax.runs import processes

  if among := processes.among():
    parts = formats.parts_of(Path(path))
    processes.check_same({'files of ratings': [str(part) for part in parts]})
    if len(parts) >= among.total:
      return formats.read(path, among=among, **options)
  if GIVEN.ratings_cache == 'none':
    return processes.owned(formats.read(path, **options))
  folder = Path(GIVEN.ratings_cache or files.cache_folder() / 'tables')
  say = lambda line: print(line, file=sys.stderr)
  table = kept.read(path, folder.expanduser(), say=say, **options)
  return processes.owned(table)
