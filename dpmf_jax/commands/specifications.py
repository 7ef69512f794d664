"""The flags of `dpmf train` that say which epsilon each rating is to have."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

from absl import flags

from dpmf_jax.commands import declaring
from dpmf_jax.ratings import specification
from dpmf_jax.ratings.specification import AskedEpsilons
from dpmf_jax.ratings.table import Ratings


class _Declared:
  """Which epsilon each rating is to have.

  Attributes:
    epsilon_column: personalized: column of --ratings with the epsilon of each
      rating.
    epsilon_file: personalized: a file of user,epsilon; every rating has that of
      its user.
    specification: personalized: fractions draws three groups of ratings, as
      published.
    threshold: personalized: the epsilon that noise is made for (t), in place of
      --epsilon: a number, or mean, max or best of what --specification or
      --epsilon_file lets be asked for. best balances noise against ratings that
      are used less; no rule looks at ratings.
  """

  epsilon_column: str | None = None
  epsilon_file: str | None = None
  specification: Literal['fractions'] | None = None
  threshold: str | None = None


_FLAGS = declaring.define(_Declared)
_FRACTIONS = specification.Fractions._field_defaults
for _name, _default in _FRACTIONS.items():
  _text = f'fractions: {specification.FRACTIONS[_name]}'
  declaring.flag(_name, float, _text, default=_default)
_SEED = flags.DEFINE_integer(
  'specification_seed', 0, 'fractions: public seed of the groups.'
)
_SOURCES = 'epsilon_column', 'epsilon_file', 'specification'
FLAGS = (*_SOURCES, 'threshold', *_FRACTIONS, _SEED.name)


def check(
  *,
  system: str,
  personalized: bool,
  path: str | None,
  epsilon: float | None = None,
) -> None:
  """Raises ValueError where the flags do not fit together, or the system.

  Args:
    system: its name.
    personalized: whether it reads a specification.
    path: the file of ratings, or None.
    epsilon: --epsilon, or None.
  """
  if _FLAGS.threshold is not None:
    _check_threshold(system, personalized, epsilon)
  given = [name for name in _SOURCES if flags.FLAGS[name].value is not None]
  for name in (*_FRACTIONS, _SEED.name):
    if declaring.present(name) and _FLAGS.specification != 'fractions':
      raise ValueError(f'--{name} needs --specification=fractions')
  if not given:
    if personalized:
      raise ValueError(
        f'--system={system} gives each rating an epsilon of its own: pass '
        '--epsilon_column=NAME, --epsilon_file=FILE or '
        '--specification=fractions'
      )
    return
  if not personalized:
    raise ValueError(
      f'--{given[0]} is for personalized systems: --system={system} gives '
      'every rating the same epsilon'
    )
  if len(given) > 1:
    raise ValueError(f'pass only one of --{" and --".join(given)}')
  if _FLAGS.epsilon_column is not None and path is None:
    raise ValueError('--epsilon_column is a column of --ratings=FILE')


def _check_threshold(
  system: str, personalized: bool, epsilon: float | None
) -> None:
  if not personalized:
    raise ValueError(
      f'--threshold is for personalized systems: --system={system} gives '
      'every rating the same epsilon'
    )
  if epsilon is not None:
    raise ValueError('pass only one of --epsilon and --threshold')
  rule = _rule()
  if isinstance(rule, float):
    return
  if _FLAGS.epsilon_column is not None:
    raise ValueError(
      f'--threshold={rule} with --epsilon_column would tell which ratings '
      'there are: pass a number that was chosen without looking at them'
    )
  if _FLAGS.epsilon_file is None and _FLAGS.specification is None:
    raise ValueError(
      f'--threshold={rule} needs --epsilon_file or --specification'
    )


def _rule() -> Any:
  """The rule that --threshold names, or its number."""
  words = _FLAGS.threshold or ''
  if words in ('mean', 'max', 'best'):
    return words
  try:
    number = float(words)
  except ValueError:
    number = math.nan
  if not 0 < number < math.inf:
    raise ValueError(
      f'--threshold={words} must be mean, max, best or a positive number'
    )
  return number


def asked() -> AskedEpsilons | None:
  """The public distribution of epsilons; None where only ratings have them."""
  if _FLAGS.epsilon_file is not None:
    return specification.asked_by_users(_table(_FLAGS.epsilon_file))
  if _FLAGS.specification == 'fractions':
    return specification.asked_by_fractions(**_fractions())
  return None


@functools.cache
def _table(path: str) -> specification.Column:
  """The file of users, read once."""
  return specification.read_users(path)


def threshold() -> Any:
  """A number, the name of a rule, or None without --threshold."""
  return None if _FLAGS.threshold is None else _rule()


def attach(ratings: Ratings, *, path: str | None, **layout: Any) -> Ratings:
  """`ratings` with the specification that the flags name, if any.

  Args:
    ratings: before any split.
    path: the file that they are from, or None.
    **layout: of that file; see `reading.layout`.
  """
  if _FLAGS.epsilon_column is not None:
    assert path is not None  # see `check`
    return specification.from_column(
      ratings, path, _FLAGS.epsilon_column, **layout
    )
  if _FLAGS.epsilon_file is not None:
    return specification.from_user_table(
      ratings, _table(_FLAGS.epsilon_file), _FLAGS.epsilon_file
    )
  if _FLAGS.specification == 'fractions':
    return specification.from_fractions(
      ratings, seed=_SEED.value, **_fractions()
    )
  return ratings


def public() -> dict[str, str]:
  """What a certificate says of the specification: empty if there is none."""
  found = {}
  if _FLAGS.epsilon_column is not None:
    found['specification'] = f'column {_FLAGS.epsilon_column} of the ratings'
  elif _FLAGS.epsilon_file is not None:
    found['specification'] = 'a file of users'
  elif _FLAGS.specification == 'fractions':
    shown = _fractions() | {'seed': _SEED.value}
    words = (f'{name} {value:g}' for name, value in shown.items())
    found['specification'] = f'fractions: {", ".join(words)}'
  return found


def _fractions() -> dict[str, Any]:
  return {name: flags.FLAGS[name].value for name in _FRACTIONS}
