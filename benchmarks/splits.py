"""Data sets and their splits by flags, and figures as they are written."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from absl import flags

from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.table import Ratings

_SEEDS = flags.DEFINE_list('seeds', ['3', '4', '5'], 'Of splits and noise.')
_DATASETS = flags.DEFINE_list('datasets', ['ml-100k', 'ml-1m'], 'Which.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'Where the ratings are.')
_JSON = flags.DEFINE_string('json', None, 'File for all the figures.')

# By seed: what is trained on, and what is held out.
Splits = dict[int, tuple[Ratings, Ratings]]


def split_datasets(
  load: Callable[..., Ratings] = catalog.load,
) -> Iterator[tuple[str, Ratings, Splits]]:
  """(name, ratings, their 80/20 splits) of each data set."""
  for name in _DATASETS.value:
    ratings = load(name, data_dir=_DATA_DIR.value, quiet=True)
    yield (
      name,
      ratings,
      {seed: random_split(ratings, 0.2, seed=seed) for seed in seeds()},
    )


def seeds() -> list[int]:
  return list(map(int, _SEEDS.value))


def data_dir() -> str | None:
  return _DATA_DIR.value


def write(figures: dict[str, Any]) -> None:
  """Writes --json; after each row, as the whole takes long."""
  if _JSON.value:
    text = json.dumps(figures, indent=2)
    pathlib.Path(_JSON.value).write_text(text + '\n')
