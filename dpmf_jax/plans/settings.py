"""What the systems' configs have in common."""

from __future__ import annotations

from typing import Any

from dpmf_jax.types import Guarantee, Relation


def require(config: object, **checks: tuple[bool, str]) -> None:
  """Raises ValueError for the first field whose check does not hold.

  Args:
    config: the config that has the fields.
    **checks: field name -> (whether it holds, what it must be).
  """
  for field, (holds, bound) in checks.items():
    if not holds:
      raise ValueError(f'{field}={getattr(config, field)!r} must be {bound}')


def scale_check(scale: tuple[float, float]) -> tuple[bool, str]:
  """The check of a (lowest, highest) rating scale, for `require`."""
  low, high = scale
  # float32 holds labels and noise of such a width.
  holds = 1e-6 <= high - low <= 1e6
  return holds, '(lowest, highest) with lowest < highest, 1e-6 to 1e6 apart'


def relation_check(relation: str) -> tuple[bool, str]:
  """The check of a neighbouring relation, for `require`."""
  return relation in ('replace', 'add_remove'), "'replace' or 'add_remove'"


def variant_check(variant: str) -> tuple[bool, str]:
  """The check of a variant that is 'paper' or 'sound', for `require`."""
  return variant in ('paper', 'sound'), "'paper' or 'sound'"


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


def check_most_epsilon(config: Any, most: float) -> None:
  """Raises ValueError where epsilon is so large that noise ends before it."""
  if config.epsilon > most:
    raise ValueError(
      f'epsilon={config.epsilon} must be at most {most:.4g}, where noise ends'
    )


def check_least_delta(config: Any, uncovered: float) -> None:
  """Raises ValueError where delta is less than the ends of the noise cost.

  A delta of 0 stands for what they cost.
  """
  if 0 < config.delta < uncovered:
    raise ValueError(
      # Rounded up, so that what is asked for is enough.
      f'delta={config.delta!r} must be at least {uncovered * 1.005:.3g}, which '
      'the ends of the noise leave uncovered, or 0 for the least there is'
    )
