"""Slow NumPy loops written from the papers, to check the kernels against."""

import numpy as np


def clip_row(row, norm):
  return row / max(1.0, np.linalg.norm(row) / norm)


def gaussian_mf_gradients(
  ratings, user, item, *, clip_norm, offset=0.0, residual_bound=np.inf
):
  """Algorithm 1, lines 3 to 5 without ridge, one rating at a time."""
  grad_user, grad_item = np.zeros_like(user), np.zeros_like(item)
  for u, i, r in zip(ratings.user, ratings.item, ratings.value, strict=True):
    e = offset + user[u] @ item[i] - r
    e = np.clip(e, -residual_bound, residual_bound)
    grad_user[u] += e * clip_row(item[i], clip_norm)
    grad_item[i] += e * clip_row(user[u], clip_norm)
  return grad_user, grad_item


def gaussian_mf_step(ratings, user, item, *, step_size, ridge, clip_norm):
  """Algorithm 1, lines 3 to 9 with sigma = 0."""
  grad_user, grad_item = gaussian_mf_gradients(
    ratings, user, item, clip_norm=clip_norm
  )
  return (
    user - step_size * (grad_user + ridge * user),
    item - step_size * (grad_item + ridge * item),
  )


def rmse(ratings, user, item, *, offset=0.0, scale=None):
  total = 0.0
  for u, i, r in zip(ratings.user, ratings.item, ratings.value, strict=True):
    prediction = offset + user[u] @ item[i]
    if scale is not None:
      prediction = min(max(prediction, scale[0]), scale[1])
    total += (prediction - r) ** 2
  return np.sqrt(total / len(ratings))


def user_terms(
  value, item, bias, vector, weight, *, mean, weights, bound, scale
):
  """A user's terms {item: [2 + D]} in `dpals`, one rating at a time."""
  terms = {}
  for i, r in zip(item, value, strict=True):
    y = np.clip(r - mean[i] - bias, -bound, bound)
    terms[i] = weights[i] * weight * np.array([scale, y, *(y * vector)])
  return terms


def als_explicit(
  ratings, rows, own, other, other_bias, *, offset, ridge, bias_ridge
):
  """Best (factors, bias) of each row, dense, one row at a time.

  `rows` is 'user' or 'item', whose factors are solved for.
  """
  row, column = ratings.user, ratings.item
  if rows == 'item':
    row, column = column, row
  found = np.zeros((own, other.shape[1] + 1))
  for r in range(own):
    at = row == r
    count = max(at.sum(), 1)
    x = np.concatenate([other[column[at]], np.ones((at.sum(), 1))], axis=1)
    y = ratings.value[at] - offset - other_bias[column[at]]
    penalty = np.diag([ridge] * other.shape[1] + [bias_ridge]) * np.sqrt(count)
    found[r] = np.linalg.solve(x.T @ x + penalty, x.T @ y)
  return found


def als_implicit(confidence, known, other, *, ridge):
  """Hu, Koren and Volinsky (2008), eq. (4), dense over all pairs.

  `confidence` and `known` are [R, C]: c and p.
  """
  found = np.zeros((len(confidence), other.shape[1]))
  for r in range(len(confidence)):
    weight = np.diag(confidence[r])
    matrix = other.T @ weight @ other + ridge * np.eye(other.shape[1])
    found[r] = np.linalg.solve(matrix, other.T @ weight @ known[r])
  return found
