"""What a budget counts, where runs are chosen after seeing earlier releases.

`accounting.epsilon` of all runs is a bound for runs that were fixed in
advance. Whoever looks at releases and stops when they tell most, or goes on
with more or with other noise, can reach a larger delta. What holds then is a
budget that was fixed before the first run, if every run is refused that does
not fit by a rule of which that is proved: a filter. There are three here:

  pure      the sum of pure epsilons
  gaussian  the exact epsilon of sqrt(sum of mu^2), if the first run is Gaussian
  renyi     the sum of Renyi divergences at one order, fixed in advance

Privacy: runs that all fit by the same one of several filters, whichever that
turns out to be, are (budget, sum of the filters' deltas)-DP. So each filter has
a part of delta. `docs/privacy/ledger.md` has the proofs. Of the other
rules of `accounting.composition` ('optimal', 'exact', 'pld', 'basic' for
mixtures, 'renyi' at the best order) nothing of the kind is proved, and of
'basic' it is wrong.

Reference: Rogers, Roth, Ullman and Vadhan (2016), for filters and pure sums;
Smith and Thakurta (2022) and Koskela, Tobaben and Honkela (2023), for Gaussian
noise; Feldman and Zrnic (2021), for Renyi divergences.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dpmf_jax.accounting import composition, gaussian, rdp
from dpmf_jax.accounting.events import (
  Composed,
  Either,
  Event,
  Gaussian,
  ProvedEvent,
  PureEvent,
  checked_positive,
  leaves,
  pure_epsilon,
  uncovered,
)

_ULP = sys.float_info.epsilon
# Parts of delta, less than 1 together. Gaussian runs lose next to nothing, and
# mixtures that begin with one cost little more at so small a delta. Pure sums
# need no delta; a little lets 0.1 + 0.2 fit into 0.3 in spite of rounding. The
# last is for what the ends of all runs' noise leave uncovered. A ledger keeps
# those that it was begun with, whatever they are in a later version.
MAIN_SHARE = 0.9949
MIXED_SHARE = 0.00009
PURE_SHARE = 0.000001
ENDS_SHARE = 0.005
# Coarse, so that the best one is the same on every machine.
_ORDERS = tuple(1 + 2 ** (power / 4) for power in range(-40, 81))


class Rule(NamedTuple):
  """What is fixed before the first release: parts of delta, and the order."""

  main: float
  mixed: float
  pure: float
  ends: float
  order: float


def rule(first: Event, *, budget: float, delta: float) -> Rule:
  """The rule for a budget, of which the first run is no choice after seeing."""
  rest = MIXED_SHARE if _all(first, Gaussian) else MAIN_SHARE
  order = fixed_order(budget, rest * delta)
  return Rule(MAIN_SHARE, MIXED_SHARE, PURE_SHARE, ENDS_SHARE, order)


def checked(found: Rule) -> Rule:
  """The rule with Python numbers, or an error if it is none."""
  found = Rule(*(checked_positive(*pair) for pair in found._asdict().items()))
  if sum(found[:4]) >= 1 or found.order <= 1:
    raise ValueError(f'{found} is no filter: parts of delta must be below 1')
  return found


def counted(runs: Sequence[Event], *, delta: float, by: Rule) -> float:
  """The epsilon that a budget counts for runs, in the order they were made.

  They fit if it is at most the budget. Whoever asks before each run, and makes
  none that does not fit, releases (budget, delta)-DP, however runs are chosen.
  A first run may be made as well if its own epsilon fits: it is chosen before
  anything is seen, and if no filter takes it none takes any more.
  """
  return min(bounds(runs, delta=delta, by=by).values())


def bounds(
  runs: Sequence[Event], *, delta: float, by: Rule
) -> dict[str, float]:
  """The epsilon of each filter that takes the runs, by its name.

  None does where the ends of noise cost more than their part of delta.
  """
  together, found = Composed(tuple(runs)), {}
  if uncovered(together) > by.ends * delta:
    return {'none': math.inf}
  together = Composed(composition.merged(together))  # of exact noise
  if _all(together, PureEvent):
    total = min(composition.epsilon_bounds(together, 0.0).values())
    # What is (x + t)-DP is (x, t)-DP.
    found['pure'] = max(total - by.pure * delta, 0.0)
  # The first run is no choice after a release, so it may decide.
  begun_gaussian = _all(Composed(tuple(runs[:1])), Gaussian)
  rest = (by.mixed if begun_gaussian else by.main) * delta
  if begun_gaussian:
    mu = gaussian.compose(map(_mu, leaves(together))) * (1 + 2 * _ULP)
    found['gaussian'] = gaussian.epsilon_of(mu, by.main * delta)
  found['renyi'] = rdp.epsilon_canonne(
    composition.curve_of(together), rest, by.order
  ).epsilon
  return found


@lru_cache(maxsize=8)
def fixed_order(budget: float, delta: float) -> float:
  """The Renyi order for a budget, whatever will be run.

  The best one if half of it is spent on Gaussian noise and half is pure: pure
  epsilons are bounds at every order, so they do not move it.
  """
  rho = gaussian.mu_of(budget / 2, delta) ** 2 / 2
  curve = lambda order: rho * order
  return min(
    _ORDERS, key=lambda order: rdp.epsilon_canonne(curve, delta, order).epsilon
  )


def _all(event: Event, kind: Any) -> bool:
  return all(isinstance(leaf, kind) for leaf in leaves(event))


def _mu(event: ProvedEvent) -> float:
  """A mu for which the event is mu-GDP, rounded up.

  Privacy: what is epsilon-DP is sqrt(pi/2) epsilon-GDP. Its trade-off curve is
  above that of randomized response, two straight lines, and a convex curve
  with the same ends is below these if it is at their corner: if
  Phi(mu/2) >= 1/(1 + e^-epsilon). Both sides of Phi(sqrt(pi/8) x) >=
  1/(1 + e^-x) agree at 0 and at infinity. The log of the ratio of their slopes
  is 2 log cosh(x/2) - pi x^2/16, whose own slope tanh(x/2) - pi x/8 is concave
  and 0 at 0. So the difference of the two rises first and then falls. What is
  chosen of several by what came before has at most the largest mu of them.
  """
  if isinstance(event, Either):
    one = max(
      gaussian.compose(map(_mu, leaves(part))) * (1 + 2 * _ULP)
      for part in event.events
    )
  elif isinstance(event, PureEvent):
    one = math.sqrt(math.pi / 2) * pure_epsilon(event)
  else:  # a sample as if all of it had been used
    one = 1 / event.noise_multiplier
  return math.sqrt(event.count) * one * (1 + 4 * _ULP)
