"""What the releases in a ledger cost, when that holds, and what would fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from dpmf_jax.accounting import accountant, filters, gaussian
from dpmf_jax.accounting.events import Composed, Event, Gaussian
from dpmf_jax.accounting.ledger_rows import UNLIMITED, Book, Entry, Header

NOT_VALID = 'not valid if later runs were chosen after seeing earlier ones'


class BudgetExceeded(ValueError):  # noqa: N818
  """A run would spend more than is left; nothing is spent."""


def statement_of(book: Book) -> dict[str, Any]:
  """What `ledger.statement` says."""
  ledger, counted = book.header, counted_epsilon(book, book.events)
  adaptive, holds = _adaptive(book, counted)
  return {
    'dataset': ledger.dataset,
    'unit': ledger.unit,
    'relation': ledger.relation,
    'releases': len(book.entries),
    'status': 'proved',
    'delta': ledger.delta,
    'epsilon': epsilon_of(ledger, book.events),
    'caveat': NOT_VALID,
    'budget_epsilon': book.budget,
    'counted_epsilon': counted,
    'left_epsilon': left_epsilon(book),
    'adaptive_epsilon': adaptive,
    'holds': holds,
    'head': book.hashes[-1],
  }


def summary_of(book: Book) -> str:
  """What `ledger.summary` says."""
  counted = counted_epsilon(book, book.events)
  of = '' if book.budget == UNLIMITED else f' of {plain(book.budget)}'
  return (
    f'ledger: {_releases(len(book.entries))}, epsilon {shown(counted)}{of} '
    f'spent at delta {plain(book.header.delta)}; {_adaptive(book, counted)[1]}'
  )


def epsilon_of(
  ledger: Header, parts: Sequence[Event], delta: float | None = None
) -> float:
  """The epsilon of all events together by the accountant's best rule."""
  if not parts:
    return 0.0
  # Composing may round up. One event alone keeps its own epsilon, so that a
  # run that was calibrated to the whole budget fits into it.
  event = parts[0] if len(parts) == 1 else Composed(tuple(parts))
  accountant.check_relation(event, ledger.relation)
  return accountant.epsilon(event, ledger.delta if delta is None else delta)


def counted_epsilon(book: Book, parts: Sequence[Event]) -> float:
  """The epsilon that the budget counts, or the total where there is none."""
  rule = book.header.rule or rule_of(book, parts)
  # A first run is chosen before anything is released: its own epsilon holds.
  if book.budget == UNLIMITED or rule is None or len(parts) <= 1:
    return epsilon_of(book.header, parts)
  return filters.counted(parts, delta=book.header.delta, by=rule)


def rule_of(book: Book, parts: Sequence[Event]) -> filters.Rule | None:
  """What a budget is kept by from the first run on, if there is one."""
  if book.budget == UNLIMITED or not parts:
    return None
  return filters.rule(parts[0], budget=book.budget, delta=book.header.delta)


def _adaptive(book: Book, counted: float) -> tuple[float | None, str]:
  """(epsilon, words) for runs that are chosen after seeing earlier ones."""
  first, now = book.header.budget_epsilon, book.budget
  if first == UNLIMITED:
    begun = 'no budget' if now == UNLIMITED else 'begun without a budget'
    return None, f'{begun}: {NOT_VALID}'
  if book.header.rule is None:
    return None, f'begun by an earlier version: {NOT_VALID}'
  before = 0
  for record in book.later:
    if isinstance(record, Entry):
      before += 1
    elif record.budget_epsilon == UNLIMITED or record.budget_epsilon > first:
      return None, (
        f'the budget was raised after {_releases(before)}: epsilon '
        f'{plain(first)} holds for what was released before that, and the '
        f'total of all is {NOT_VALID}'
      )
  if counted > first:
    return None, f'more than its budget, which was not kept: {NOT_VALID}'
  which = 'the budget' if now == first else 'the budget it was begun with'
  return first, (
    f'if later runs are chosen after seeing earlier ones, what holds is '
    f'{which}, epsilon {plain(first)} at delta {plain(book.header.delta)}'
  )


def left_epsilon(book: Book) -> float | None:
  """The epsilon of Gaussian noise that would still fit; None: any would."""
  budget, delta = book.budget, book.header.delta
  if budget == UNLIMITED:
    return None
  whole = gaussian.mu_of(budget, delta)
  # Less than this, and rounding would decide whether it fits.
  low, high = 1e-4 * whole, whole
  fits = lambda mu: (
    counted_epsilon(book, [*book.events, Gaussian(1 / mu)]) <= budget
  )
  if not fits(low):
    return 0.0
  while high - low > 1e-6 * low:
    middle = math.sqrt(low * high)
    low, high = (middle, high) if fits(middle) else (low, middle)
  return gaussian.epsilon_of(low, delta) * (1 - 1e-7)


def check_fits(name: str, book: Book, event: Event) -> None:
  """Raises BudgetExceeded where the budget does not have room for the event."""
  budget, delta = book.budget, book.header.delta
  if budget == UNLIMITED:
    return
  together = counted_epsilon(book, [*book.events, event])
  if together <= budget:
    return
  releases = _releases(len(book.entries))
  if math.isinf(together):
    ends = book.header.rule.ends if book.header.rule else filters.ENDS_SHARE
    raise BudgetExceeded(
      f'{name} has {releases}, and with this run the ends of noise that is '
      f'drawn in floats cost more than {ends:g} of delta {plain(delta)}; use '
      'a larger delta, in a ledger of its own'
    )
  alone = epsilon_of(book.header, [event])
  before = counted_epsilon(book, book.events)
  more = ', counted for runs that may be chosen after seeing others'
  raise BudgetExceeded(
    f'{name} has {releases} of epsilon {shown(before)}, this '
    f'run is {shown(alone)}, and together they are {shown(together)}'
    f'{more if together > before + alone else ""}: more than the budget '
    f'of {plain(budget)} (all at delta {plain(delta)}); '
    + what_fits(left_epsilon(book))
  )


def what_fits(left: float | None) -> str:
  """How much a further run could spend, in words."""
  if left is None:
    return 'nothing is refused'
  if left == 0:
    return 'nothing is left'
  return f'Gaussian noise with epsilon {shown(left, down=True)} would still fit'


def shown(epsilon: float, *, down: bool = False) -> str:
  """Four digits of an epsilon, rounded to the safe side."""
  rounding = ROUND_FLOOR if down else ROUND_CEILING
  # Nine digits first, or 1 + 1e-16 would be shown as 1.001.
  context = Context(prec=4, rounding=rounding)
  return f'{float(context.create_decimal(f"{epsilon:.9g}")):g}'


def plain(number: float) -> str:
  """All digits of what was asked for: fewer might say less than holds."""
  digits, e, power = str(number).removesuffix('.0').partition('e')
  return f'{digits}e{int(power)}' if e else digits


def _releases(count: int) -> str:
  return f'{count} release{"" if count == 1 else "s"}'
