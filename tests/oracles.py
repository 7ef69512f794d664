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
