"""Attacks on rounds of gradients with fixed noise, by who sees their sums.

Reference for what is attacked: Hua, Xia and Zhong (2015), scenarios 2 and 3.
None of them needs to break a mask: all work on sums that the recommender is
meant to see.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Guess(NamedTuple):
  place: int  # of the hypothesis that fits best
  misfit: np.ndarray  # [V] how far each hypothesis is from what was seen


def difference_attack(sums: ArrayLike, expected: ArrayLike) -> Guess:
  """Which hypothesis the difference of two rounds' sums fits best.

  The same noise is in both sums, so that their difference has none.

  Args:
    sums: [2, ...] of two rounds, with the same noise.
    expected: [V, 2, ...] without noise, for each of V hypotheses about the
      one unknown rating: what somebody computes who knows all others.
  """
  sums, expected = np.asarray(sums), np.asarray(expected)
  seen = sums[1] - sums[0]
  moved = expected[:, 1] - expected[:, 0]
  away = (moved - seen[None]).reshape(len(moved), -1)
  misfit = np.linalg.norm(away, axis=1)
  return Guess(int(misfit.argmin()), misfit)


def isolated_gradient(present: ArrayLike, absent: ArrayLike) -> np.ndarray:
  """A user's gradient [..., D] from sums with and without them.

  With dynamic users noise does not depend on who is online: serving the same
  item twice, and the second time not to one user, isolates that user.
  """
  return np.asarray(present, np.float64) - np.asarray(absent, np.float64)


class Recovered(NamedTuple):
  rating: float
  vector: np.ndarray  # [D]


def recovered_rating(gradients: ArrayLike, items: ArrayLike) -> Recovered:
  """A user's rating and vector from two isolated gradients of one item.

  A gradient is g = 2 (p.q - r) p. With d its direction and p = a d,
  g.d = 2 a^2 (d.q) - 2 a r is linear in d.q: two served q give a^2 and a r.
  The sign of a is that with which the rating is not negative.

  Args:
    gradients: [2, D], at two different item factors.
    items: [2, D], the factors that were served.
  """
  gradients, items = np.asarray(gradients), np.asarray(items)
  lengths = np.linalg.norm(gradients, axis=1)
  direction = gradients[lengths.argmax()] / lengths.max()
  along, served = gradients @ direction, items @ direction
  square = (along[0] - along[1]) / (2 * (served[0] - served[1]))
  if not square > 0:
    raise ValueError('the gradients are not those of one user at two items')
  product = square * served[0] - along[0] / 2  # a r
  length = np.sqrt(square) * (1 if product >= 0 else -1)
  return Recovered(float(product / length), length * direction)


def loss_given_scales(
  moved: ArrayLike, noise_scales: ArrayLike, scale: float
) -> float:
  """The mean privacy loss against who knows H.

  For the recommender the noise of coordinate l is Gaussian of variance
  2 H[l] scale^2, and a statistic that moves by `moved` has a mean loss of
  sum moved^2 / (2 variance). With pure epsilon-DP it would be at most epsilon
  for every H; but H is exponential, and as near to 0 as one waits for.
  """
  variance = 2 * np.asarray(noise_scales, np.float64) * scale**2
  return float(np.sum(np.square(moved) / (2 * variance)))
