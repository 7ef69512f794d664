"""The flag for attributes of users and items, for systems that have them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from absl import flags

_ATTRIBUTES = flags.DEFINE_bool(
  'attributes',
  False,
  'sdfm: use genres, age, gender and occupation, which are then public, from '
  'the folder of --dataset=ml-100k or ml-1m.',
)


def settings(
  fields: Container[str],
  ratings: Any,
  *,
  dataset: str | None,
  data_dir: str | None,
) -> dict[str, Any]:
  """The setting `attributes`, where the flag asks for it.

  `fields` are those that the config of the system has.
  """
  if not _ATTRIBUTES.value:
    return {}
  from dpmf_jax.ratings import attributes, catalog

  if 'attributes' not in fields:
    raise ValueError('--attributes is for --system=sdfm alone')
  if dataset is None:
    raise ValueError('--attributes needs --dataset=ml-100k or ml-1m')
  folder = catalog.fetch(dataset, data_dir=data_dir, quiet=True)
  return {'attributes': attributes.movielens(ratings, folder)}
