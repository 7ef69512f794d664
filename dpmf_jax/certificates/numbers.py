"""What epsilon and delta allow, in odds and percentages, and as words.

Every number is rounded to the weaker promise.
"""

from __future__ import annotations

import decimal

_CONTEXT = decimal.Context(prec=60)


def posterior(epsilon: float, prior: float) -> decimal.Decimal:
  """The most that a belief `prior` can become: prior odds times e^epsilon.

  Reference: with prior odds p/(1-p), the posterior odds are at most
  e^epsilon p/(1-p) (Dwork and Roth 2014, section 2.3.2).
  """
  with decimal.localcontext(_CONTEXT):
    chance = decimal.Decimal(repr(prior))
    against = (1 - chance) / chance * (-decimal.Decimal(epsilon)).exp()
    return 1 / (1 + against)


def factor_words(epsilon: float | decimal.Decimal) -> str:
  """e^epsilon, rounded up to three figures (near 1, of what is above 1)."""
  with decimal.localcontext(_CONTEXT):
    exponent = decimal.Decimal(epsilon)
    if exponent > 20:
      return f'10^{rounded(exponent / decimal.Decimal(10).ln(), 3)}'
    if exponent > 1:
      return rounded(exponent.exp(), 3)
    if exponent == 0:
      return '1'
    above = max(exponent.exp() - 1, decimal.Decimal('1e-6'))
    above = decimal.Decimal(rounded(above, 3))
    return trimmed(1 + above)


def percent_words(chance: decimal.Decimal) -> str:
  """A chance in percent, rounded up; near 100% with more digits."""
  with decimal.localcontext(_CONTEXT):
    rest = 100 * (1 - chance)
    if rest < decimal.Decimal('1e-6'):
      return 'practically 100%'
    digits = max(1, 1 - rest.adjusted())
    step = decimal.Decimal(1).scaleb(-digits)
    shown = (100 * chance).quantize(step, decimal.ROUND_CEILING)
  return f'{trimmed(shown)}%'


def chance_words(chance: float | decimal.Decimal) -> str:
  """A small chance as 'one in a million', rounded to the larger chance."""
  with decimal.localcontext(_CONTEXT):
    chance = decimal.Decimal(str(chance))
    if chance > decimal.Decimal('0.1'):
      return percent_words(chance)
    count = 1 / chance
  words = {10**3: 'a thousand', 10**6: 'a million', 10**9: 'a billion'}
  if count in words:
    return f'one in {words[int(count)]}'
  if count.adjusted() >= 12:
    return f'one in 10^{count.adjusted()}'
  return f'one in {rounded(count, 3, decimal.ROUND_FLOOR)}'


def epsilon_words(epsilon: float) -> str:
  """epsilon to four figures, rounded up."""
  return rounded(decimal.Decimal(repr(epsilon)), 4)


def rounded(
  value: decimal.Decimal,
  figures: int,
  rounding: str = decimal.ROUND_CEILING,
) -> str:
  """`value` to so many figures, in digits where they are few enough."""
  with decimal.localcontext(_CONTEXT) as context:
    context.prec, context.rounding = figures, rounding
    value = +value
  if value == 0:
    return '0'
  if not -4 <= value.adjusted() < 12:
    mantissa = trimmed(value.scaleb(-value.adjusted()))
    return f'{mantissa}e{value.adjusted()}'
  return trimmed(value)


def trimmed(value: decimal.Decimal) -> str:
  """`value` in digits, without zeros at the end."""
  digits = f'{value:,f}'
  return digits.rstrip('0').rstrip('.') if '.' in digits else digits
