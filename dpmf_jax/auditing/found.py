"""Cases that the search found, kept so that they are tried again and again."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from dpmf_jax.auditing.pairs import Pair, neighbours
from dpmf_jax.files import read_json, write_json
from dpmf_jax.plans import SPECS, config_of
from dpmf_jax.plans.spec import Start
from dpmf_jax.ratings.table import Ratings

FILE = pathlib.Path(__file__).with_name('found.json')


class Record(NamedTuple):
  """A case that was bad for one variant of a system."""

  system: str
  variant: str
  settings: Mapping[str, Any]
  start: Start
  start_seed: int  # of the initial state, which the attacker may know
  pair: Pair


def records(path: pathlib.Path = FILE) -> tuple[Record, ...]:
  """All that was found so far."""
  made = []
  for entry in read_json(path, list):
    settings = dict(entry['settings'])
    settings['scale'] = tuple(settings['scale'])
    tables = neighbours(entry['first'], entry['second'], settings['scale'])
    made.append(
      Record(
        entry['system'],
        entry['variant'],
        settings,
        entry['start'],
        entry['start_seed'],
        Pair(entry['name'], *tables),
      )
    )
  return tuple(made)


def settings_for(record: Record, variant: str) -> dict[str, Any] | None:
  """The record's settings for another variant of its system.

  None where that variant cannot be about the same neighbours.
  """
  if variant == record.variant:
    return dict(record.settings)
  # The presets of the variant where it was found belong to the case, but for
  # what says which variant it is, and for what the other must have and it
  # does not.
  settings = {
    **SPECS[record.system].variants[record.variant],
    **record.settings,
  }
  settings = {
    name: value
    for name, value in settings.items()
    if value is not None and name != 'variant'
  }
  try:
    config_of(record.system, variant, **settings)
  except ValueError:
    return None
  return settings


def add(record: Record, path: pathlib.Path = FILE) -> None:
  """Writes the record to the file, after those that are there."""
  entries = read_json(path, list) if path.exists() else []
  entries.append(
    {
      'name': record.pair.name,
      'system': record.system,
      'variant': record.variant,
      'start': record.start,
      'start_seed': record.start_seed,
      'settings': dict(record.settings),
      'first': _rows(record.pair.first),
      'second': _rows(record.pair.second),
    }
  )
  write_json(path, entries)


def _rows(ratings: Ratings) -> list[tuple[int, int, float]]:
  return [
    (int(user), int(item), float(value))
    for user, item, value in zip(
      ratings.user, ratings.item, ratings.value, strict=True
    )
  ]
