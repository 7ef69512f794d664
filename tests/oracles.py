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

  `confidence` and `known` are [R, C]: c and p. The ridge is times the square
  root of how many are known.
  """
  found = np.zeros((len(confidence), other.shape[1]))
  for r in range(len(confidence)):
    weight = np.diag(confidence[r])
    own = ridge * max((known[r] > 0).sum(), 1) ** 0.5
    matrix = other.T @ weight @ other + own * np.eye(other.shape[1])
    found[r] = np.linalg.solve(matrix, other.T @ weight @ known[r])
  return found


def ranking(scores, train, test, ks, *, threshold=None, items=None):
  """Ranking metrics of one user list after another, from the definitions.

  `items` are those that can be relevant; all by default. Others that are held
  out, too, are no negatives of AUC.
  """
  per_user = []
  auc = []
  for u in range(len(scores)):
    seen = set(train.item[train.user == u].tolist())
    held = {
      i
      for i, v in zip(
        test.item[test.user == u].tolist(),
        test.value[test.user == u].tolist(),
        strict=True,
      )
      if i not in seen and (threshold is None or v >= threshold)
    }
    relevant = held if items is None else held & set(items)
    if not relevant:
      continue
    candidates = [i for i in range(scores.shape[1]) if i not in seen]
    # Best first, and what is irrelevant first among ties.
    candidates.sort(key=lambda i: (-scores[u, i], i in relevant))
    ranks = [r for r, i in enumerate(candidates, 1) if i in relevant]
    row = {}
    for k in ks:
      hits = [r for r in ranks if r <= k]
      row[f'recall@{k}'] = len(hits) / len(ranks)
      gain = sum(1 / np.log2(r + 1) for r in hits)
      best = sum(1 / np.log2(r + 1) for r in range(1, min(len(ranks), k) + 1))
      row[f'ndcg@{k}'] = gain / best
    precisions = [sum(other <= r for other in ranks) / r for r in ranks]
    row['map'] = np.mean(precisions)
    row['mrr'] = 1 / ranks[0]
    per_user.append(row)
    negatives = [i for i in candidates if i not in held]
    if negatives:
      auc.append(
        np.mean(
          [
            (scores[u, i] > scores[u, j]) + 0.5 * (scores[u, i] == scores[u, j])
            for i in relevant
            for j in negatives
          ]
        )
      )
  if not per_user:
    return {'users': 0}
  means = {key: np.mean([row[key] for row in per_user]) for key in per_user[0]}
  return {'users': len(per_user), **means, 'auc': np.mean(auc)}


def ridge_users(ratings, item, *, offset, prior, ridge):
  """Each user's own regression, one after another, in float64."""
  rows = []
  for u in range(ratings.num_users):
    mine = ratings.user == u
    q = item[ratings.item[mine]].astype(np.float64)
    y = ratings.value[mine] - offset - q @ prior
    rows.append(prior + np.linalg.solve(q.T @ q + np.diag(ridge), q.T @ y))
  return np.array(rows)


def user_regressions(ratings, item, *, ridge, priors, offset):
  """Each user's ridge regression of ratings on items, around a prior."""
  rows = []
  for user in range(ratings.num_users):
    own = ratings.user == user
    x, y = item[ratings.item[own]], ratings.value[own] - offset
    right = x.T @ y + ridge @ priors[user]
    rows.append(np.linalg.solve(x.T @ x + ridge, right))
  return np.array(rows)
