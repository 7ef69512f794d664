"""Randomized response of a record in whole coins, and the epsilon of that.

`mechanisms.records` answers for a (user, item) cell, blank or a rating.
"""

from __future__ import annotations

import decimal
import math

GRID = 240  # 1..5 and 0..10 are exact on it, half stars within 0.01 of one
COINS = 2**32
MAX_LEVELS = 16
MAX_EPSILON = 20.0  # 2^32 coins tell no larger one


def lie_coins(epsilon: float, categories: int) -> int:
  """How many of 2^32 coins give each category that is not the truth.

  Privacy: of Q, the truth has the rest, 2^32 - (K - 1) Q. Q is the least
  integer that is not below 2^32 / (e^epsilon + K - 1), so that
  2^32 - (K - 1) Q <= e^epsilon Q: no answer is more than e^epsilon times as
  likely for one content of a cell as for another. Decimals of 60 digits, of
  which the last ten are given away, round to the safe side.
  """
  with decimal.localcontext() as context:
    context.prec = 60
    odds = decimal.Decimal(epsilon).exp() + (categories - 1)
    coins = COINS / odds * (1 + decimal.Decimal('1e-50'))
    return int(coins.to_integral_value(decimal.ROUND_CEILING))


def true_epsilon(lie: int, categories: int) -> float:
  """The epsilon that whole coins have, rounded up.

  Below what `lie_coins` was asked for by less than 1e-6 up to epsilon 8.
  """
  truth = COINS - (categories - 1) * lie
  return abs(math.log(truth / lie)) * (1 + 1e-15) + 1e-15
