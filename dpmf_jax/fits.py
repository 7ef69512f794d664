"""What a user fits to released items: priors and ridges, all public.

A user's row x minimises the sum of (offset + <x, q> - r)^2 over their own
ratings plus that of ridge_c (x_c - prior_c)^2 over columns c.

Privacy: priors and ridges are public settings, or are computed from released
user factors. Nothing here may come from private/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Fit(NamedTuple):
  """The ridge regression of a user's own ratings on item factors."""

  prior: np.ndarray  # [D], what a user without ratings gets
  ridge: np.ndarray  # [D], positive; infinity holds a column at its prior


def fit_of_released_users(user: np.ndarray) -> Fit:
  """The fit around the mean of released user factors [U, D].

  Columns vary as they do among those users, around ratings with a variance of
  1. A column that all users have in common, such as the 1 that meets an item's
  bias, is held.
  """
  user = user.astype(np.float64)
  with np.errstate(divide='ignore'):
    ridge = 1 / np.where(np.ptp(user, axis=0) == 0, 0, user.var(axis=0))
  return Fit(user.mean(axis=0), ridge)


def _feature_and_bias(parameters: Mapping[str, Any], width: int) -> Fit | None:
  """That of `systems.noisy_equations`, for users with a constant feature.

  Where they have public features of their own these are the prior, and are
  not known here.
  """
  if width != 2:
    return None
  ridge = [parameters['vector_ridge'], parameters['bias_ridge']]
  return Fit(np.array([1.0, 0.0]), np.array(ridge))


# Systems that do not release users: what each user does, from the public
# parameters in the certificate and the width of the items' rows. A test
# compares it with what the system does with its own users.
FITS = {
  ('objective_pmf', 'sound'): _feature_and_bias,
  ('personalized_pmf', 'sound'): _feature_and_bias,
}


def fit_of_system(certificate: Mapping[str, Any], width: int) -> Fit | None:
  """What the certificate's system does; None where that is not known."""
  parameters = certificate.get('parameters', {})
  name = (certificate.get('system', ''), parameters.get('variant', ''))
  return FITS[name](parameters, width) if name in FITS else None
