"""Whether a certificate says what this library states of what was run."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import dpmf_jax
from dpmf_jax import plans
from dpmf_jax.certificates import wording
from dpmf_jax.plans.settings import settings_of
from dpmf_jax.types import Guarantee

# What no version states in another way of the same system and settings.
_ALWAYS = 'status', 'unit', 'relation'


def check(
  document: Mapping[str, Any],
  said: Callable[[Guarantee, float | None], dict[str, Any]],
) -> None:
  """Raises ValueError where the plan of its system states something else.

  Args:
    document: a certificate that is valid by its schema.
    said: (guarantee, delta) -> the fields that a certificate gets from it.

  Not known, and not looked at, are systems that are not of this library, and
  of other versions, and of runs with features of users, all but status, unit
  and relation.
  """
  same = document['versions'].get('dpmf_jax') == dpmf_jax.__version__
  system, status = document['system'], document['status']
  if system not in plans.NAMES:
    if same and status == 'proved':
      raise ValueError(
        f"certificate, field status: 'proved' is said of systems of this "
        f'library alone, and {system[:80]!r} is none'
      )
    return
  guarantee = _guarantee(document)
  if guarantee is None:
    if same and status == 'proved':
      raise ValueError(
        f'certificate, field parameters: these are no settings of {system}, of '
        "which a status of 'proved' could be known"
      )
    return
  stated = {name: getattr(guarantee, name) for name in _ALWAYS}
  # Features of users are not written down, and words may differ with them.
  whole = same and 'user_features' not in document['parameters']
  if whole and (guarantee.event is None) == (document['event'] is None):
    stated |= said(guarantee, document['delta'])
    if 'public_ratings' in document['parameters']:
      stated['assumptions'].append(wording.PUBLIC_RATINGS)
    if 'item_features' in document['parameters']:
      stated['assumptions'].append(wording.ITEM_FEATURES)
  wrong = [name for name in stated if not _close(stated[name], document[name])]
  if status == 'stated' and wrong != ['status']:
    return  # another guarantee than the plan's: its author's own system
  if wrong:
    name = wrong[0]
    raise ValueError(
      f'certificate, field {name}: {_short(document[name])} is not what this '
      f'library states of {system} with these settings, {_short(stated[name])}'
    )


def _guarantee(document: Mapping[str, Any]) -> Guarantee | None:
  """What is stated of the system with the settings in a certificate."""
  spec, parameters = plans.SPECS[document['system']], document['parameters']
  settings = {}
  for each in settings_of(spec.config):
    if each.kind is object or each.name not in parameters:
      continue  # an optimizer is not written down, and nothing depends on it
    value = parameters[each.name]
    if isinstance(value, list):
      value = tuple(value)
    elif isinstance(value, str) and each.kind is not str:
      value = _literal(value)
    settings[each.name] = value
  if parameters.get('optimizer') is not None:
    settings.pop('step_size', None)
  # Of a deployment: the largest node knows all of its users' shares.
  sizes = parameters.get('node_sizes')
  try:
    features = () if sizes is None else (1, max(sizes))
    return spec.plan(spec.config(**settings), *features).guarantee
  except (ValueError, TypeError, OverflowError, ArithmeticError):
    return None


def _literal(text: str) -> Any:
  """What JSON has no word for, as Python wrote it: tuples, infinity."""
  try:
    return ast.literal_eval(text) if text[:1] == '(' else float(text)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return text


def _close(mine: Any, theirs: Any) -> bool:
  """Whether JSON values are the same, but for the last digits of numbers."""
  if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
    return mine.keys() == theirs.keys() and all(
      _close(value, theirs[name]) for name, value in mine.items()
    )
  if isinstance(mine, list) and isinstance(theirs, list):
    return len(mine) == len(theirs) and all(map(_close, mine, theirs))
  if isinstance(mine, int | float) and isinstance(theirs, int | float):
    return math.isclose(mine, theirs, rel_tol=1e-9)
  return mine == theirs


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f'{text[:76]} ...'
