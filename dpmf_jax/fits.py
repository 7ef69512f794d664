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
  if width != 2 or parameters['variant'] != 'sound':
    return None
  ridge = [parameters['vector_ridge'], parameters['bias_ridge']]
  return Fit(np.array([1.0, 0.0]), np.array(ridge))


def _unit(parameters: Mapping[str, Any]) -> float:
  """A quarter of the width of the scale."""
  low, high = parameters['scale']
  return (high - low) / 4


def _dpals(parameters: Mapping[str, Any], width: int) -> Fit:
  """That of `systems.dpals`: a vector, the item's mean, a bias."""
  vector = parameters['final_vector_ridge'] * _unit(parameters) ** 2
  rank = width - 2
  return Fit(
    np.array([0.0] * rank + [1.0, 0.0]),
    np.array([vector] * rank + [np.inf, parameters['final_bias_ridge']]),
  )


def _power_mf(parameters: Mapping[str, Any], width: int) -> Fit:
  """That of `systems.power_mf`: a slope on means, a bias, a vector."""
  slope, vector = (
    parameters[name] * _unit(parameters) ** 2
    for name in ('slope_ridge', 'vector_ridge')
  )
  rank = width - 2
  return Fit(
    np.array([1.0, 0.0] + [0.0] * rank),
    np.array([slope, parameters['bias_ridge']] + [vector] * rank),
  )


def _local_mf(parameters: Mapping[str, Any], width: int) -> Fit:
  """That of `systems.local_mf`: a slope on means, a vector, a bias."""
  rank = width - 2
  mean, vector, bias = (
    parameters[f'{name}_ridge'] for name in ('mean', 'vector', 'bias')
  )
  return Fit(
    np.array([1.0] + [0.0] * rank + [0.0]),
    np.array([mean] + [vector] * rank + [bias]),
  )


# Systems that do not release users: what each user does, from the public
# parameters in the certificate and the width of the items' rows. A test
# compares it with what the system does with its own users.
FITS = {
  'objective_pmf': _feature_and_bias,
  'personalized_pmf': _feature_and_bias,
  'dpals': _dpals,
  'power_mf': _power_mf,
  'local_mf': _local_mf,
}


def fit_of_system(certificate: Mapping[str, Any], width: int) -> Fit | None:
  """What the certificate's system does; None where that is not known."""
  name = certificate.get('system', '')
  known = FITS.get(name)
  return known and known(certificate['parameters'], width)
