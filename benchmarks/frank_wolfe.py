"""Private Frank-Wolfe after Jain, Thakkar and Thakurta (2018).

Differentially Private Matrix Completion Revisited, ICML 2018, with joint
privacy of whole users. Written from what is known of the algorithm, without the
full text at hand: details may differ from the paper's. In each of T rounds
every user has a residual row A_u = P(Y_u - R_u) on their own items, of norm at
most L. The server gets W = sum over users of A_u^T A_u with symmetric Gaussian
noise, and sends its top eigenvector v and the root of its eigenvalue l. Every
user then moves their own row: Y_u = (1 - 1/T) Y_u - (k/T) (A_u v / l') v^T with
l' a bit more than l, and shortens it to norm L on their own items. k bounds the
nuclear norm.

Here W has the noise of an exact accountant, T releases of sensitivity L^2 on
the upper triangle, which is less than the paper's sqrt(64 T ln(1/delta))
L^2 / epsilon: figures are better than those of the paper's constants. Ratings
are less the user's own mean, which is free.
NumPy, for a table of few items.
"""

from __future__ import annotations

import numpy as np

from dpmf_jax.accounting.gaussian import mu_of


def frank_wolfe(
  value: np.ndarray,
  rated: np.ndarray,
  *,
  epsilon: float,
  delta: float,
  rounds: int,
  nuclear_norm: float,
  row_norm: float,
  seed: int,
) -> np.ndarray:
  """Predictions [U, I] of all cells.

  Args:
    value: [U, I] ratings; any number where `rated` is False.
    rated: [U, I] bool.
    epsilon, delta: of all rounds, for whole users; epsilon infinite is without
      noise.
    rounds: T.
    nuclear_norm: k.
    row_norm: L.
    seed: of the noise; this is a benchmark, and nothing is released.
  """
  rng = np.random.default_rng(seed)
  users, items = value.shape
  number = np.maximum(rated.sum(axis=1, keepdims=True), 1)
  own = (value * rated).sum(axis=1, keepdims=True) / number
  target = _shortened(np.where(rated, value - own, 0.0), row_norm)
  mu = np.inf if np.isinf(epsilon) else mu_of(epsilon, delta)
  # Residuals are shortened, too: a user moves W by at most L^2.
  std = row_norm**2 * rounds**0.5 / mu
  found = np.zeros((users, items), np.float32)
  for _ in range(rounds):
    residual = _shortened(np.where(rated, found - target, 0.0), row_norm)
    noise = rng.normal(size=(items, items)) * std
    noisy = residual.T @ residual + (noise + noise.T) / 2
    sizes, axes = np.linalg.eigh(noisy)
    # About what noise adds to the root of the largest.
    size = np.sqrt(max(sizes[-1], 0.0)) + np.sqrt(std) * items**0.25 + 1e-9
    axis = axes[:, -1].astype(np.float32)
    along = (residual @ axis) * np.float32(nuclear_norm / size)
    found = (1 - 1 / rounds) * found - along[:, None] * axis[None] / rounds
    length = np.linalg.norm(np.where(rated, found, 0.0), axis=1, keepdims=True)
    found *= np.minimum(1.0, row_norm / np.maximum(length, 1e-9))
    found = found.astype(np.float32)
  return found + own


def _shortened(rows: np.ndarray, norm: float) -> np.ndarray:
  """`rows` with each of them brought to `norm` at most, in float32."""
  length = np.linalg.norm(rows, axis=1, keepdims=True)
  return (rows * np.minimum(1.0, norm / np.maximum(length, 1e-9))).astype(
    np.float32
  )
