"""What SDCF claims: two-stage randomized response and bounded fake residuals.

A client flips its bits once (the permanent response, with f) and draws what to
send from them in every round (the instantaneous one, with p and q):

  B' = 1 with probability f/2, 0 with f/2, else B        eq. (9)
  an item is sent with probability q if B' = 1, else p   eq. (7)
  p* = (f/2) q + (1 - f/2) p      for an unrated item    eq. (10)
  q* = (1 - f/2) q + (f/2) p      for a rated item       eq. (11)
  h q* + (I - h) p* = z           sent in the mean       eq. (12)

Reference: Jiang, Li and Lin (2019), Section 3.4. What holds of it is proved in
`personalized.proved_sdcf_bits`; Theorem 3, on the values, bounds nothing.

All of it is for profiles with the same number h of ratings. f, p and q depend
on h, so adding a rating changes them; h must be public, or a public bound.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpmf_jax.accounting.events import checked_epsilon, checked_number

# Rounding can put a p that is zero this far (relative to p*) below it.
_ROUNDING = 1e-9


class Response(NamedTuple):
  """The probabilities of one client, or of many as arrays over h.

  Attributes:
    flip: f of the permanent response.
    unrated: p, of sending an item whose permanent bit is 0.
    rated: q, of sending an item whose permanent bit is 1.
    unrated_in_all: p*, of sending an unrated item, both stages together.
    rated_in_all: q*, of sending a rated item, both stages together.
  """

  flip: np.ndarray
  unrated: np.ndarray
  rated: np.ndarray
  unrated_in_all: np.ndarray
  rated_in_all: np.ndarray


def claimed_sdcf_flip(
  epsilon_permanent: float, num_rated: ArrayLike
) -> np.ndarray:
  """f of the permanent response, 2 / (1 + e^(eps_P / 2h)).

  Reference: Jiang, Li and Lin (2019), Theorem 1, solved for f.
  """
  epsilon = checked_epsilon(epsilon_permanent, 'epsilon_permanent')
  return 2 * special.expit(-epsilon / (2 * _counts(num_rated)))


def claimed_sdcf_epsilon_permanent(
  flip: ArrayLike, num_rated: ArrayLike
) -> np.ndarray:
  """eps_P = 2 h ln((1 - f/2) / (f/2)).

  Reference: Jiang, Li and Lin (2019), Theorem 1.
  """
  flip = np.asarray(flip, np.float64)
  if not np.all((flip > 0) & (flip <= 1)):
    raise ValueError(f'flip must be in (0, 1], got {_worst(flip, 0, 1)!r}')
  return -2 * _counts(num_rated) * special.logit(flip / 2)


def claimed_sdcf_epsilon_instant(
  unrated_in_all: ArrayLike, rated_in_all: ArrayLike, num_rated: ArrayLike
) -> np.ndarray:
  """eps_I = h ln(q* (1 - p*) / (p* (1 - q*))), of a single round.

  Reference: Jiang, Li and Lin (2019), Theorem 2.
  """
  gap = special.logit(rated_in_all) - special.logit(unrated_in_all)
  return _counts(num_rated) * gap


def claimed_sdcf_rates(
  *, epsilon_instant: float, num_rated: ArrayLike, num_items: int, sent: float
) -> tuple[np.ndarray, np.ndarray]:
  """(p*, q*) that have eps_I and send `sent` items in the mean.

  Reference: Jiang, Li and Lin (2019), Theorem 2 and eq. (12), by bisection on
  the log-odds of p*; those of q* are larger by eps_I / h. Past eps_I / h = 36
  q* may round to 1, and then it is no probability of that epsilon any more.
  """
  epsilon = checked_epsilon(epsilon_instant, 'epsilon_instant')
  h = _counts(num_rated)
  items, sent = _positive('num_items', num_items), _positive('sent', sent)
  if not np.all(h <= items):
    raise ValueError(
      f'num_rated must be at most num_items = {items:g}, got {h.max():g}'
    )
  if not sent < items:
    raise ValueError(f'sent must be below num_items = {items:g}, got {sent!r}')
  shift = epsilon / h
  low, high = np.full(h.shape, -750.0) - shift, np.full(h.shape, 750.0)
  for _ in range(120):  # an interval of 1500 and more, to the last digit
    middle = (low + high) / 2
    mean = h * special.expit(middle + shift)
    too_many = mean + (items - h) * special.expit(middle) > sent
    low, high = (
      np.where(too_many, low, middle),
      np.where(too_many, middle, high),
    )
  return special.expit(low), special.expit(low + shift)


def claimed_sdcf_response(
  *,
  epsilon_permanent: float,
  epsilon_instant: float,
  num_rated: ArrayLike,
  num_items: int,
  sent: float,
) -> Response:
  """All probabilities of both stages, from the two epsilons, h, I and z.

  Reference: Jiang, Li and Lin (2019), eqs. (9) to (13). There eps_P = 2 eps_I,
  for which p and q always exist.

  Raises:
    ValueError: where no p and q in [0, 1] exist. Both need that q*/p* and
      (1 - p*)/(1 - q*), whose product is e^(eps_I / h), are at most
      e^(eps_P / 2h). With eps_P = eps_I that is so only for p* + q* = 1.
  """
  exact = _unclipped(
    epsilon_permanent, epsilon_instant, num_rated, num_items, sent
  )
  outside = _outside(exact)
  if np.any(outside):
    p_all, q_all = exact.unrated_in_all, exact.rated_in_all
    h = np.broadcast_to(_counts(num_rated), p_all.shape)
    ratio = np.log(np.maximum(q_all / p_all, (1 - p_all) / (1 - q_all)))
    needed = np.where(outside, 2 * h * ratio, 0.0)
    worst = int(np.argmax(needed))
    raise ValueError(
      f'epsilon_permanent must be at least {needed.flat[worst]:.6g} for '
      f'epsilon_instant = {epsilon_instant!r} and {h.flat[worst]:g} rated, got '
      f'{epsilon_permanent!r}: no p and q in [0, 1] exist for '
      f'{int(outside.sum())} of {outside.size} users (2 epsilon_instant always '
      'will do; or clip them by claimed_sdcf_clipped_response)'
    )
  return _clipped(exact)


def claimed_sdcf_clipped_response(
  *,
  epsilon_permanent: float,
  epsilon_instant: float,
  num_rated: ArrayLike,
  num_items: int,
  sent: float,
) -> Response:
  """The same with p and q clipped to [0, 1], where they would be outside.

  f is kept, and with it eps_P over all rounds. p and q come closer together,
  so that a round says less of B' than asked: p* and q* are those that clipped
  p and q have, `claimed_sdcf_epsilon_instant` of them is at most
  epsilon_instant, and the mean number of items sent is no longer `sent`. The
  paper does not say what it does here.
  """
  return _clipped(
    _unclipped(epsilon_permanent, epsilon_instant, num_rated, num_items, sent)
  )


def claimed_sdcf_unsolved(
  *,
  epsilon_permanent: float,
  epsilon_instant: float,
  num_rated: ArrayLike,
  num_items: int,
  sent: float,
) -> np.ndarray:
  """Whether no p and q in [0, 1] exist, for each h."""
  return _outside(
    _unclipped(epsilon_permanent, epsilon_instant, num_rated, num_items, sent)
  )


def claimed_sdcf_epsilon_value(
  bound: float, *, mean: float, deviation: float
) -> float:
  """eps_g = -ln P(|x| < alpha) of x ~ N(mean, deviation^2), alpha = `bound`.

  Reference: Jiang, Li and Lin (2019), Theorem 3, by the erf formula.

  Privacy: none. Fake residuals are in [-alpha, alpha] and true ones need not
  be, so the ratio of the likelihoods that it is about has no bound.
  """
  bound, deviation = (
    _positive('bound', bound),
    _positive('deviation', deviation),
  )
  mean = abs(checked_number('mean', mean))
  # P = Phi(-low) - Phi(-high), as tails: no digit is lost where P is small.
  low, high = (mean - bound) / deviation, (mean + bound) / deviation
  if low < 0 and high > 0:
    return -math.log1p(-float(special.ndtr(low) + special.ndtr(-high)))
  log_low, log_high = special.log_ndtr(-low), special.log_ndtr(-high)
  return -float(log_low + np.log(-np.expm1(log_high - log_low)))


def claimed_sdcf_bound(
  epsilon_value: float, *, mean: float, deviation: float
) -> float:
  """The alpha with that eps_g, at most 1e-12 (relative) above it.

  Reference: Jiang, Li and Lin (2019), end of Section 3.4: bisection in
  (0, max |mean +- 2 deviation|).

  Raises:
    ValueError: for an eps_g so small that it needs an alpha past that range.
  """
  target = checked_epsilon(epsilon_value, 'epsilon_value')
  mean = abs(checked_number('mean', mean))
  deviation = _positive('deviation', deviation)
  at = lambda bound: claimed_sdcf_epsilon_value(
    bound, mean=mean, deviation=deviation
  )
  low, high = 0.0, mean + 2 * deviation
  if at(high) > target:
    raise ValueError(
      f'epsilon_value must be at least {at(high):.6g} for mean {mean:g} and '
      f'deviation {deviation:g}, got {target!r}: the paper searches below '
      f'{high:g} only, and past it the bound may as well be inf'
    )
  while high - low > 1e-12 * high:
    middle = (low + high) / 2
    low, high = (low, middle) if at(middle) <= target else (middle, high)
  return high


def _unclipped(
  epsilon_permanent: float,
  epsilon_instant: float,
  num_rated: ArrayLike,
  num_items: int,
  sent: float,
) -> Response:
  flip = claimed_sdcf_flip(epsilon_permanent, num_rated)
  if not np.all(flip < 1):
    raise ValueError(
      'epsilon_permanent must be > 0, got 0.0: with f = 1 no p and q give two '
      'different rates'
    )
  p_all, q_all = claimed_sdcf_rates(
    epsilon_instant=epsilon_instant,
    num_rated=num_rated,
    num_items=num_items,
    sent=sent,
  )
  # Eqs. (10) and (11), solved: p + q = p* + q*, (1 - f)(q - p) = q* - p*.
  spread = (q_all - p_all) * flip / 2 / (1 - flip)
  return Response(flip, p_all - spread, q_all + spread, p_all, q_all)


def _outside(exact: Response) -> np.ndarray:
  return (exact.unrated < -_ROUNDING * exact.unrated_in_all) | (
    1 - exact.rated < -_ROUNDING * (1 - exact.rated_in_all)
  )


def _clipped(response: Response) -> Response:
  p, q = np.clip(response.unrated, 0, 1), np.clip(response.rated, 0, 1)
  half = response.flip / 2
  return Response(
    response.flip, p, q, half * q + (1 - half) * p, (1 - half) * q + half * p
  )


def _counts(num_rated: ArrayLike) -> np.ndarray:
  h = np.asarray(num_rated, np.float64)
  if not np.all((h >= 1) & np.isfinite(h)):
    raise ValueError(f'num_rated must be >= 1, got {np.min(h)!r}')
  return h


def _worst(values: np.ndarray, low: float, high: float) -> float:
  return float(values.flat[np.argmax(~((values > low) & (values <= high)))])


def _positive(name: str, value: float) -> float:
  value = checked_number(name, value)
  if value <= 0:
    raise ValueError(f'{name} must be > 0, got {value!r}')
  return value
