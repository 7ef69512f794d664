"""Small dense matrices, one at a time.

Batches in LAPACK block CPU devices that share their threads, for good (jaxlib
0.10.2), so that a vmapped call loops.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

one_at_a_time = jax.custom_batching.sequential_vmap


def eigen(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Eigenvalues [D], ascending, and vectors of a symmetric matrix [D, D]."""
  if len(matrix) == 1:
    return matrix[0], jnp.ones_like(matrix)
  return one_at_a_time(lambda a: tuple(jnp.linalg.eigh(a)))(matrix)
