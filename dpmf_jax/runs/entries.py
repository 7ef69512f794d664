"""What `compare` runs: systems at epsilons, of what somebody types.

A system is written NAME:VARIANT:SETTING=VALUE; the name is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dpmf_jax import plans
from dpmf_jax.plans import selection
from dpmf_jax.plans.settings import settings_of
from dpmf_jax.plans.spec import Task
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.runs import choosing
from dpmf_jax.runs.choosing import Chosen

# Where there are more items, equations of all pairs of them take long.
_EASE_ITEMS = 5_000


class Entry(NamedTuple):
  """What stands in a row, or several: a system at an epsilon, or baselines.

  Attributes:
    label: of the row.
    epsilon: that was asked for; None where there is none.
    chosen: what to run; None for baselines.
  """

  label: str
  epsilon: float | None
  chosen: Chosen | None

  @property
  def identity(self) -> list[Any]:
    if self.chosen is None:
      return [self.label]
    chosen = self.chosen
    return [self.label, chosen.name, chosen.variant, repr(chosen.config)]


def entries_of(
  systems: Sequence[str],
  epsilons: Sequence[float],
  delta: float | None,
  task: Task,
  table: Ratings,
) -> list[Entry]:
  """What is run, with baselines last; ValueError where any of it cannot be.

  A system without privacy is added where there is none.
  """
  if isinstance(systems, str) or not systems:
    raise ValueError(
      f"systems={systems!r} must be a list, such as ['auto', 'power_mf']"
    )
  if twice := [each for each in systems if [*systems].count(each) > 1]:
    raise ValueError(
      f'systems={",".join(systems)} has {twice[0]!r} twice: leave one out'
    )
  found = []
  for text in systems:
    found += _of_system(text, epsilons, delta, task, table)
  if all(entry.epsilon is not None for entry in found):
    found += _of_system(_not_private(task, table), epsilons, None, task, table)
  return [*found, Entry('baselines', None, None)]


def _not_private(task: Task, table: Ratings) -> str:
  if task == 'rating':
    return 'als'
  return 'ease' if table.num_items <= _EASE_ITEMS else 'als:feedback=implicit'


def _of_system(
  text: str,
  epsilons: Sequence[float],
  delta: float | None,
  task: Task,
  table: Ratings,
) -> list[Entry]:
  """The entries of one of `systems`, one for each epsilon if it has any."""
  try:
    name, variant, given = _parsed(text)
    run_as = selection.run_as(name, variant)
    spec = None if name == 'auto' else selection.spec_of(run_as)
    if spec and spec.personalized:
      raise ValueError(
        'it needs an epsilon for each rating; use train, or objective_pmf here'
      )
    plain = spec and (
      'epsilon' not in selection.fields(spec) or variant == 'none'
    )
    return [
      Entry(
        text,
        epsilon,
        _chosen(name, variant, given, epsilon, delta, task, table),
      )
      for epsilon in ([None] if plain else epsilons)
    ]
  except ValueError as error:
    raise ValueError(f'systems={text} cannot be run: {error}') from None


def _chosen(
  name: str,
  variant: str | None,
  given: dict[str, Any],
  epsilon: float | None,
  delta: float | None,
  task: Task,
  table: Ratings,
) -> Chosen:
  wanted = task if name == 'auto' else None
  spec = plans.SPECS.get(selection.run_as(name, variant))
  if spec and 'delta' not in selection.fields(spec):
    delta = None
  found = choosing.chosen(
    name,
    {'epsilon': epsilon, **given},
    table,
    task=wanted,
    variant=variant,
    delta=delta,
  )
  if found.task == 'ranking' and task == 'rating':
    raise ValueError(
      'it makes lists, and predicts no ratings: use task=ranking, or leave it '
      'out'
    )
  return found


def _parsed(text: str) -> tuple[str, str | None, dict[str, Any]]:
  """(name, variant, settings) of 'NAME:VARIANT:SETTING=VALUE'."""
  name, *rest = str(text).split(':')
  variant, given = None, {}
  for word in rest:
    setting, equals, value = word.partition('=')
    if not equals and variant is None and word in plans.VARIANTS:
      variant = word
    elif equals and setting not in (*given, 'epsilon', 'delta', 'scale'):
      given[setting] = _value(name, variant, setting, value)
    else:
      raise ValueError(
        f'{word!r} must be a variant ({", ".join(plans.VARIANTS)}) or '
        'SETTING=VALUE, each once; epsilons and delta are arguments'
      )
  return name, variant, given


def _value(name: str, variant: str | None, setting: str, value: str) -> Any:
  """The value of a setting as its system declares it."""
  known = plans.SPECS.values()
  if name != 'auto':
    known = [selection.spec_of(selection.run_as(name, variant))]
  declared = (each for spec in known for each in settings_of(spec.config))
  kinds = {each.kind for each in declared if each.name == setting}
  convert: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: {'true': True, 'false': False}.__getitem__,
    str: str,
  }
  if not kinds:
    return value  # what is wrong with it is said where it is used
  try:
    return convert[kinds.pop()](value)
  except (ValueError, KeyError):
    raise ValueError(f'{setting}={value} is not a value of it') from None
