"""Flags that are declared as a class: a line each, and what its docstring says.

  class _Declared:
    '''What a command is told.

    Attributes:
      output: Folder to write.
      rank: Number of factors.
    '''

    output: str
    rank: Annotated[int, {'lower_bound': 1}] = 4

  _FLAGS = declaring.define(_Declared)

`_FLAGS.rank` is the value of --rank once flags are parsed. Flags without a
default have to be given. A `Literal` lists values, and a `Sequence` takes
several.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from absl import flags

from dpmf_jax.plans.settings import attributes_of, kind_of

# What is defined here belongs to the command that asks for it.
flags.disclaim_key_flags()

_Flags = TypeVar('_Flags')
_KINDS = {
  str: flags.DEFINE_string,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_bool,
  Sequence: flags.DEFINE_list,
  tuple: flags.DEFINE_multi_float,
}


def define(declared: type[_Flags]) -> _Flags:
  """The values of the flags that the class declares, once they are parsed."""
  texts = attributes_of(declared)
  hints = typing.get_type_hints(declared, include_extras=True)
  for name, hint in hints.items():
    more: dict[str, Any] = {'required': not hasattr(declared, name)}
    if typing.get_origin(hint) is typing.Annotated:
      hint, bounds = typing.get_args(hint)
      more |= bounds
    kind, choices, _ = kind_of(hint)
    default = getattr(declared, name, None)
    default = list(default) if isinstance(default, tuple) else default
    flag(name, kind, texts[name], choices, default=default, **more)
  return cast(_Flags, flags.FLAGS)


def flag(
  name: str, kind: Any, text: str, choices: Sequence[str] = (), **more: Any
) -> flags.FlagHolder:
  """A flag of a kind, or one of the choices; `more` as absl takes it."""
  more = {'default': None, 'help': text} | more
  if choices:
    return flags.DEFINE_enum(name, enum_values=list(choices), **more)
  return _KINDS[kind](name, **more)


def names(declared: type) -> tuple[str, ...]:
  """Of the flags that the class declares."""
  return tuple(typing.get_type_hints(declared))


def values(declared: type) -> dict[str, Any]:
  """Of the flags that the class declares, by name."""
  return {name: flags.FLAGS[name].value for name in names(declared)}


def present(name: str) -> bool:
  """Whether a flag was given, be it with the value that it has by itself."""
  return bool(flags.FLAGS[name].present)
