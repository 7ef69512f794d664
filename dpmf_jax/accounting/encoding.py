"""Events as JSON values and back, for any class in `accounting.events`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from dpmf_jax.accounting import events


def encode(event: events.Event) -> dict[str, Any]:
  """An event as JSON values: {class name: {field: value}}.

  Raises ValueError for an event that `decode` would not give back.
  """
  try:
    encoded = _encoded(event)
    same = decode(json.loads(json.dumps(encoded, allow_nan=False))) == event
  except (TypeError, ValueError) as error:
    raise ValueError(f'{event!r} cannot be written down: {error}') from None
  if not same:
    raise ValueError(f'{event!r} cannot be written down without loss')
  return encoded


def decode(values: Any) -> events.Event:
  """The event that `encode` wrote; any class in `accounting.events`."""
  if not isinstance(values, dict) or len(values) != 1:
    raise ValueError(f'event must be {{class: fields}}, got {values!r}')
  [(name, fields)] = values.items()
  kind: Any = getattr(events, name, None)
  if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
    raise ValueError(f'event {name!r} is not known to this version')
  if not isinstance(fields, dict):
    raise ValueError(f'event {name!r} must have fields, got {fields!r}')
  known = {each.name for each in dataclasses.fields(kind) if each.init}
  for key in fields.keys() - known:
    raise ValueError(f'event {name!r} has no field {key!r}')
  try:
    made: Any = kind(**{key: _decoded(value) for key, value in fields.items()})
    return made
  except TypeError as error:
    raise ValueError(f'event {name!r}: {error}') from None


def _encoded(value: Any) -> Any:
  if dataclasses.is_dataclass(value):
    fields = (field.name for field in dataclasses.fields(value) if field.init)
    named = {name: _encoded(getattr(value, name)) for name in fields}
    return {type(value).__name__: named}
  if isinstance(value, tuple | list):
    return [_encoded(part) for part in value]
  return value


def _decoded(value: Any) -> Any:
  if isinstance(value, dict):
    return decode(value)
  if isinstance(value, list):
    return tuple(_decoded(part) for part in value)
  return value
