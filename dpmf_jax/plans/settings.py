"""Settings: each is declared once, with its bounds and its help.

  from dpmf_jax.plans import settings as declare

  @declare.config
  class ToyConfig:
    '''Public facts about a run.

    Attributes:
      weight: how much it weighs.
    '''
    rank: int = declare.rank(default=4)
    weight: float = declare.setting(default=2.0, above=0, maximum=10)

Checks, flags, `--help` and the tables of docs/systems.md are made of that. What
concerns several settings at once is a method `check`, which runs after these.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple, TypeVar

from dpmf_jax.accounting.events import checked_count, checked_number
from dpmf_jax.types import Guarantee, Relation

_Class = TypeVar('_Class')


class _Declared(NamedTuple):
  """The arguments of `setting`."""

  help: str
  minimum: float | None
  above: float | None
  maximum: float | None
  below: float | None
  choices: tuple[Any, ...] | None
  holds: Callable[[Any], bool] | None
  must: str
  flag: bool


def setting(
  default: Any = dataclasses.MISSING,
  *,
  help: str = '',
  minimum: float | None = None,
  above: float | None = None,
  maximum: float | None = None,
  below: float | None = None,
  choices: tuple[Any, ...] | None = None,
  holds: Callable[[Any], bool] | None = None,
  must: str = '',
  flag: bool = True,
) -> Any:
  """A field of a config; needed where it has no default.

  Args:
    default: its value where none is given.
    help: what it is, where the class's docstring does not say it under
      `Attributes:`.
    minimum, above, maximum, below: bounds of a number; numbers are finite.
    choices: values, where not all of the field's `Literal` are allowed.
    holds, must: a check of another kind, and what it asks for.
    flag: whether scripts have a flag for it.
  """
  declared = _Declared(
    help, minimum, above, maximum, below, choices, holds, must, flag
  )
  return dataclasses.field(default=default, metadata={'declared': declared})


class Setting(NamedTuple):
  """A declared setting of a config class.

  Attributes:
    kind: int, float, bool, str (one of `choices`), tuple (of floats), or
      object for what has no flag.
    default: `dataclasses.MISSING` where it has to be given.
  """

  name: str
  kind: type
  optional: bool
  default: Any
  choices: tuple[Any, ...] | None
  help: str
  declared: _Declared

  @property
  def bound(self) -> str:
    """What a value must be, in words; empty if anything is."""
    said, declared = self.declared.must, self.declared
    if self.choices:
      said = ' or '.join(map(repr, self.choices))
    elif self.kind is int or self.kind is float:
      said = said or _interval(declared, self.kind)
    return f'{said}, or None' if self.optional and said else said

  def checked(self, value: Any) -> Any:
    """`value` as a Python number, or an error unless it is allowed.

    Plans are cached by config: what equals another value, such as a float of
    16 bits, must be computed with as that one is.
    """
    if value is None and self.optional:
      return None
    value = self._converted(value)
    declared, good = self.declared, True
    if self.choices:
      good = value in self.choices
    elif self.kind in (int, float):
      good = (
        -math.inf < value < math.inf
        and (declared.minimum is None or value >= declared.minimum)
        and (declared.above is None or value > declared.above)
        and (declared.maximum is None or value <= declared.maximum)
        and (declared.below is None or value < declared.below)
      )
    if good and declared.holds:
      good = declared.holds(value)
    if not good:
      raise ValueError(f'{self.name}={value!r} must be {self.bound}')
    return value

  def _converted(self, value: Any) -> Any:
    if self.kind is int:
      # 10.5 bits would pass every bound and be cut to 10 further on.
      return checked_count(self.name, value)
    if self.kind is tuple:
      if isinstance(value, str):
        raise ValueError(f'{self.name}={value!r} must be {self.bound}')
      try:
        return tuple(checked_number(self.name, number) for number in value)
      except TypeError:
        raise ValueError(f'{self.name}={value!r} must be numbers') from None
    if self.kind is bool and not isinstance(value, bool):
      raise ValueError(f'{self.name}={value!r} must be True or False')
    if self.kind is not float:
      return value
    if isinstance(value, bool) or not isinstance(value, Real):
      raise ValueError(f'{self.name}={value!r} must be {self.bound}')
    try:
      return float(value)
    except OverflowError:
      return math.inf  # which no bound allows


def _interval(declared: _Declared, kind: type) -> str:
  low = declared.minimum if declared.above is None else declared.above
  high = declared.maximum if declared.below is None else declared.below
  if low is not None and high is not None:
    if kind is int:
      return f'in {low}..{high}'
    opening = '[' if declared.above is None else '('
    return f'in {opening}{low:g}, {high:g}{")" if declared.below else "]"}'
  if low is None:
    return 'finite'
  if kind is int:
    return f'at least {low}'
  said = 'positive' if declared.above == 0 else f'at least {low:g}'
  return f'{said} and finite'


@functools.cache
def settings_of(config: type) -> tuple[Setting, ...]:
  """The settings of a config class, in the order of their declaration."""
  hints, texts = typing.get_type_hints(config), attributes_of(config)
  return tuple(
    _setting(field, hints[field.name], texts)
    for field in dataclasses.fields(config)
    if 'declared' in field.metadata
  )


def attributes_of(config: type) -> dict[str, str]:
  """What docstrings of the class and its bases say of attributes, by name."""
  texts = {}
  for cls in reversed(config.__mro__):
    _, _, section = inspect.cleandoc(cls.__doc__ or '').partition('Attributes:')
    for name, text in re.findall(r'^  (\w+): ((?:.|\n   )*)', section, re.M):
      texts[name] = ' '.join(text.split())
  return texts


def kind_of(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
  """An annotation's class, choices of a `Literal`, and whether None is one."""
  parts = (hint,)
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    parts = typing.get_args(hint)
  (kind,) = (part for part in parts if part is not type(None))
  optional, origin = type(None) in parts, typing.get_origin(kind)
  if origin is typing.Literal:
    return str, typing.get_args(kind), optional
  return origin or kind, (), optional


def _setting(
  field: dataclasses.Field, hint: Any, texts: dict[str, str]
) -> Setting:
  declared: _Declared = field.metadata['declared']
  kind, choices, optional = kind_of(hint)
  if kind not in (int, float, bool, str, tuple):
    kind = object
  return Setting(
    field.name,
    kind,
    optional,
    field.default,
    declared.choices or choices or None,
    declared.help or texts.get(field.name, ''),
    declared,
  )


# Settings that several systems have.


def _is_scale(scale: Any) -> bool:
  low, high = scale if len(scale) == 2 else (0.0, 0.0)
  # float32 holds labels and noise of such a width.
  return 1e-6 <= high - low <= 1e6


def scale() -> Any:
  return setting(
    help='(lowest, highest) possible rating.',
    holds=_is_scale,
    must='(lowest, highest) with lowest < highest, 1e-6 to 1e6 apart',
    flag=False,
  )


def relation(*allowed: Relation) -> Any:
  return setting(
    choices=allowed or None,
    help='Neighbouring relation. replace: the value of a rating is protected, '
    'who rated what is public. add_remove: that a rating exists is protected, '
    'too (the default of sound variants).',
  )


def rank(default: Any, *, minimum: int = 1, maximum: int = 1_000) -> Any:
  return setting(
    default, minimum=minimum, maximum=maximum, help='Number of factors.'
  )


def epsilon(default: Any = dataclasses.MISSING, **bounds: Any) -> Any:
  limits: Any = {'above': 0} | bounds
  return setting(
    default,
    **limits,
    help='Target epsilon; noise is calibrated to it.',
  )


def delta(default: Any = dataclasses.MISSING, **bounds: Any) -> Any:
  return setting(default, **bounds, help='Delta of the guarantee.')


def pure_delta(*, default: float) -> Any:
  """Of systems whose proof needs a delta for the ends of noise alone."""
  return delta(default, minimum=0, below=1)


def steps(default: int, **bounds: Any) -> Any:
  limits: Any = {'minimum': 1} | bounds
  return setting(default, **limits, help='Number of steps.')


def step_size(default: float) -> Any:
  return setting(default, above=0, help='Step size.')


def ridge(default: float, **bounds: Any) -> Any:
  limits: Any = {'minimum': 0} | bounds
  return setting(default, **limits, help='L2 penalty of factors.')


def own_ridge(default: float, what: str, **bounds: Any) -> Any:
  limits: Any = {'above': 0} | bounds
  return setting(
    default,
    **limits,
    help=f'Ridge of {what} in the fit that each user makes of their own '
    'ratings; it stays with the user.',
  )


def optimizer(*, default: None, instead_of: str) -> Any:
  return setting(
    default,
    help=f'An optax transformation, instead of {instead_of}.',
    holds=lambda given: hasattr(given, 'init') and hasattr(given, 'update'),
    must='an optax transformation',
    flag=False,
  )


@typing.dataclass_transform(
  frozen_default=True,
  kw_only_default=True,
  field_specifiers=(
    setting,
    scale,
    relation,
    rank,
    epsilon,
    delta,
    pure_delta,
    steps,
    step_size,
    ridge,
    own_ridge,
    optimizer,
  ),
)
def config(cls: type[_Class]) -> type[_Class]:
  """`cls` as a frozen dataclass that checks its settings when it is made."""

  def check_all(self: Any) -> None:
    for each in settings_of(type(self)):
      value = each.checked(getattr(self, each.name))
      object.__setattr__(self, each.name, value)
    if hasattr(self, 'check'):
      self.check()

  setattr(cls, '__post_init__', check_all)  # noqa: B010
  return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def slope(config: Any) -> float:
  """By how much more an interaction counts for each unit of its rating."""
  width = config.liked_from * (config.scale[1] - config.scale[0])
  return (1 - config.least_weight) / width


def no_guarantee(
  relation: Relation,
  released: tuple[str, ...],
  mechanism: str = 'none',
) -> Guarantee:
  """What is stated of a system that is not private."""
  return Guarantee(
    status='none',
    unit='rating',
    relation=relation,
    adversary='none: this system is not private',
    released=released,
    secret=(),
    assumptions=(),
    mechanism=mechanism,
    event=None,
  )


def check_one_step_size(config: Any) -> None:
  """Raises ValueError for a step size beside an optimizer, which has its own.

  One that is the default cannot be told from none.
  """
  default = type(config).__dataclass_fields__['step_size'].default
  if config.optimizer is not None and config.step_size != default:
    raise ValueError(
      f'step_size={config.step_size} would be ignored beside optimizer=: give '
      'one of them'
    )


def check_scale_near_zero(config: Any) -> None:
  """Raises ValueError where float32 would round ratings too much."""
  low, high = config.scale
  if max(abs(low), abs(high)) > 64 * (high - low):
    raise ValueError(
      f'scale={config.scale!r} must be within 64 widths of 0, for float32: '
      'shift the ratings'
    )


def check_max_epsilon(config: Any, most: float) -> None:
  """Raises ValueError where epsilon is so large that noise ends before it."""
  if config.epsilon > most:
    raise ValueError(
      f'epsilon={config.epsilon} must be at most {most:.4g}, where noise ends'
    )


def check_min_delta(config: Any, uncovered: float) -> None:
  """Raises ValueError where delta is less than the ends of the noise cost.

  A delta of 0 stands for what they cost.
  """
  if 0 < config.delta < uncovered:
    raise ValueError(
      # Rounded up, so that what is asked for is enough.
      f'delta={config.delta!r} must be at least {uncovered * 1.005:.3g}, which '
      'the ends of the noise leave uncovered, or 0 for the least there is'
    )
