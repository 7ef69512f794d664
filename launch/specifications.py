"""The flags of `launch.train` that say which epsilon each rating is to have."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from absl import flags

if TYPE_CHECKING:  # --help should not wait for it
  from dpmf_jax.data.ratings import Ratings

_COLUMN = flags.DEFINE_string(
  'epsilon_column',
  None,
  'personalized: column of --ratings with the epsilon of each rating.',
)
_FILE = flags.DEFINE_string(
  'epsilon_file',
  None,
  'personalized: a file of user,epsilon; every rating has that of its user.',
)
_SPECIFICATION = flags.DEFINE_enum(
  'specification',
  None,
  ['fractions'],
  'personalized: fractions draws three groups of ratings, as published.',
)
# The arguments of `specification.from_fractions`, with its defaults.
_FRACTIONS = {
  'conservative': flags.DEFINE_float(
    'conservative',
    0.54,
    'fractions: part with epsilon uniform between --lowest and --middle.',
  ),
  'moderate': flags.DEFINE_float(
    'moderate',
    0.37,
    'fractions: part with epsilon uniform between --middle and --highest.',
  ),
  'lowest': flags.DEFINE_float('lowest', 0.1, 'fractions: smallest epsilon.'),
  'middle': flags.DEFINE_float('middle', 0.2, 'fractions: epsilon in between.'),
  'highest': flags.DEFINE_float(
    'highest', 1.0, 'fractions: epsilon of all other ratings.'
  ),
  'seed': flags.DEFINE_integer(
    'specification_seed', 0, 'fractions: public seed of the groups.'
  ),
}


def check(*, system: str, personalized: bool, path: str | None) -> None:
  """Raises ValueError where the flags do not fit together, or the system.

  Args:
    system: its name.
    personalized: whether it reads a specification.
    path: the file of ratings, or None.
  """
  sources = (_COLUMN, _FILE, _SPECIFICATION)
  given = [flag.name for flag in sources if flag.value is not None]
  for flag in _FRACTIONS.values():
    if flag.present and _SPECIFICATION.value != 'fractions':
      raise ValueError(f'--{flag.name} needs --specification=fractions')
  if not given:
    return
  if not personalized:
    raise ValueError(
      f'--{given[0]} is for personalized systems: --system={system} gives '
      'every rating the same epsilon'
    )
  if len(given) > 1:
    raise ValueError(f'pass only one of --{" and --".join(given)}')
  if _COLUMN.value is not None and path is None:
    raise ValueError('--epsilon_column is a column of --ratings=FILE')


def attach(ratings: Ratings, *, path: str | None, format: str) -> Ratings:
  """`ratings` with the specification that the flags name, if any.

  Args:
    ratings: before any split.
    path: the file that they are from, or None.
    format: of that file.
  """
  from dpmf_jax.data import specification

  if _COLUMN.value is not None:
    assert path is not None  # see `check`
    return specification.from_column(
      ratings, path, _COLUMN.value, format=format
    )
  if _FILE.value is not None:
    return specification.from_user_file(ratings, _FILE.value)
  if _SPECIFICATION.value == 'fractions':
    settings: dict[str, Any] = _fractions()
    return specification.from_fractions(ratings, **settings)
  return ratings


def public() -> dict[str, str]:
  """What a certificate says of the specification: empty if there is none."""
  if _COLUMN.value is not None:
    return {'specification': f'column {_COLUMN.value} of the ratings'}
  if _FILE.value is not None:
    return {'specification': 'a file of users'}
  if _SPECIFICATION.value == 'fractions':
    words = (f'{name} {value:g}' for name, value in _fractions().items())
    return {'specification': f'fractions: {", ".join(words)}'}
  return {}


def digest(ratings: Ratings) -> dict[str, str]:
  """A hash of the epsilons, for a run that goes on; empty if there are none."""
  if ratings.epsilon is None:
    return {}
  return {'epsilons': hashlib.sha256(ratings.epsilon.tobytes()).hexdigest()}


def _fractions() -> dict[str, Any]:
  return {name: flag.value for name, flag in _FRACTIONS.items()}
