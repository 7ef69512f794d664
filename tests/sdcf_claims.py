"""What SDCF claims of given probabilities: the other way round than systems.

Reference: Jiang, Li and Lin (2019), Theorems 1 to 3 and the end of Section 3.4.
"""

import math

import numpy as np
from scipy import special


def epsilon_permanent(flip, num_rated):
  """eps_P = 2 h ln((1 - f/2) / (f/2)), Theorem 1."""
  return -2 * np.asarray(num_rated) * special.logit(np.asarray(flip) / 2)


def epsilon_instant(unrated_in_all, rated_in_all, num_rated):
  """eps_I = h ln(q* (1 - p*) / (p* (1 - q*))) of a single round, Theorem 2."""
  gap = special.logit(rated_in_all) - special.logit(unrated_in_all)
  return np.asarray(num_rated) * gap


def epsilon_value(bound, *, mean, deviation):
  """eps_g = -ln P(|x| < alpha) of x ~ N(mean, deviation^2), Theorem 3."""
  mean = abs(mean)
  # P = Phi(-low) - Phi(-high), as tails: no digit is lost where P is small.
  low, high = (mean - bound) / deviation, (mean + bound) / deviation
  if low < 0 and high > 0:
    return -math.log1p(-float(special.ndtr(low) + special.ndtr(-high)))
  log_low, log_high = special.log_ndtr(-low), special.log_ndtr(-high)
  return -float(log_low + np.log(-np.expm1(log_high - log_low)))


def bound(epsilon, *, mean, deviation):
  """The alpha with that eps_g: bisection in (0, max |mean +- 2 deviation|)."""
  low, high = 0.0, abs(mean) + 2 * deviation
  while high - low > 1e-12 * high:
    middle = (low + high) / 2
    small = epsilon_value(middle, mean=mean, deviation=deviation) <= epsilon
    low, high = (low, middle) if small else (middle, high)
  return high
