"""Gets a named data set and says where it is and what is in it.

Example:

  dpmf fetch_data --dataset=ml-100k

The files are looked for in --data_dir, in $DPMF_DATA_DIR and in the cache,
then fetched from their publisher, and always compared with their checksums.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from dpmf_jax.commands import declaring
from dpmf_jax.ratings import catalog

_DATASET = flags.DEFINE_enum(
  'dataset', None, catalog.NAMES, 'Which data set to get.', required=True
)


class _Declared:
  """What to get, and where it is kept.

  Attributes:
    data_dir: A directory that has the data set as a folder, or is that folder.
    cache_dir: Where fetched data is kept; by default $DPMF_CACHE,
      $XDG_CACHE_HOME/dpmf_jax or ~/.cache/dpmf_jax.
  """

  data_dir: str | None = None
  cache_dir: str | None = None


_FLAGS = declaring.define(_Declared)


def main(argv: Sequence[str]) -> None:
  del argv
  name = _DATASET.value
  data_dir, cache_dir = _FLAGS.data_dir, _FLAGS.cache_dir
  if name.startswith('synthetic-'):
    print(f'{name}: generated from a fixed seed, no file')
    ratings = catalog.load(name)
  else:
    folder = catalog.fetch(name, data_dir=data_dir, cache_dir=cache_dir)
    print(f'{name}: {folder}')
    ratings = catalog.load(
      name, data_dir=data_dir, cache_dir=cache_dir, quiet=True
    )
  low, high = ratings.scale
  print(
    f'{ratings.num_users} users, {ratings.num_items} items, '
    f'{len(ratings)} ratings, scale {low:g} to {high:g}'
  )
