"""What SDCF claims: two-stage randomized response, bounded made-up residuals.

A client flips its bits once (the permanent response, with f) and draws what to
send from them in every round (the instantaneous one, with p and q):

  B' = 1 with probability f/2, 0 with f/2, else B        eq. (9)
  an item is sent with probability q if B' = 1, else p   eq. (7)
  p* = (f/2) q + (1 - f/2) p      for an unrated item    eq. (10)
  q* = (1 - f/2) q + (f/2) p      for a rated item       eq. (11)
  h q* + (I - h) p* = z           sent in the mean       eq. (12)

Reference: Jiang, Li and Lin (2019), Section 3.4.

Privacy: of the bits, Theorem 1 holds, over any number of rounds. B' is drawn
once, each bit by a randomized response with ln((1 - f/2)/(f/2)), and two
profiles with h ones that differ in n of them differ in 2 n bits; n = h is the
paper's eps_P, and n = 1 one rating. Which items are sent, in all rounds
together, is drawn from B' and public numbers only, so it is post-processing.
All of it is for profiles with the same number h of ratings: f, p and q depend
on h, so adding a rating changes them; h must be public, or a public bound.
Of the values sent along, which B' does not determine, nothing holds: made-up
residuals are in [-alpha, alpha] and true ones need not be, so that the ratio of
likelihoods that Theorem 3 is about has no bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpmf_jax.accounting.events import checked_epsilon, checked_positive

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
    unsolved: whether no p and q in [0, 1] exist, so that they are clipped.
  """

  flip: np.ndarray
  unrated: np.ndarray
  rated: np.ndarray
  unrated_in_all: np.ndarray
  rated_in_all: np.ndarray
  unsolved: np.ndarray


def claimed_sdcf_flip(
  epsilon_permanent: float, num_rated: ArrayLike
) -> np.ndarray:
  """f of the permanent response, 2 / (1 + e^(eps_P / 2h)).

  Reference: Jiang, Li and Lin (2019), Theorem 1, solved for f.
  """
  epsilon = checked_epsilon(epsilon_permanent, 'epsilon_permanent')
  return 2 * special.expit(-epsilon / (2 * _counts(num_rated)))


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
  items = checked_positive('num_items', num_items)
  sent = checked_positive('sent', sent)
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

  Where no p and q in [0, 1] exist they are clipped. f is kept, and with it
  eps_P over all rounds. p and q come closer together, so that a round says less
  of B' than asked: p* and q* are those that clipped p and q have, their eps_I
  is at most epsilon_instant, and the mean number of items sent is no longer
  `sent`. The paper does not say what it does here.

  p and q exist where q*/p* and (1 - p*)/(1 - q*), whose product is
  e^(eps_I / h), are at most e^(eps_P / 2h): always for eps_P = 2 eps_I, as in
  the paper; with eps_P = eps_I only for p* + q* = 1.

  Reference: Jiang, Li and Lin (2019), eqs. (9) to (13).
  """
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
  spread, half = (q_all - p_all) * flip / 2 / (1 - flip), flip / 2
  p, q = p_all - spread, q_all + spread
  unsolved = (p < -_ROUNDING * p_all) | (1 - q < -_ROUNDING * (1 - q_all))
  p, q = np.clip(p, 0, 1), np.clip(q, 0, 1)
  p_all, q_all = half * q + (1 - half) * p, (1 - half) * q + half * p
  return Response(flip, p, q, p_all, q_all, unsolved)


def _counts(num_rated: ArrayLike) -> np.ndarray:
  h = np.asarray(num_rated, np.float64)
  if not np.all((h >= 1) & np.isfinite(h)):
    raise ValueError(f'num_rated must be >= 1, got {np.min(h)!r}')
  return h
