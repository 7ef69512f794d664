"""Building blocks for private matrix factorization of one's own.

Pure functions of arrays, to be jitted and vmapped; each says what it protects.
docs/building_blocks.md has a table of them, and a loop made of them.
"""

from dpmf_jax.kernels.gradients import gradients, squared_error
from dpmf_jax.mechanisms.clipping import clip_rows
from dpmf_jax.mechanisms.laplace import laplace_noise
from dpmf_jax.mechanisms.noise import gaussian_noise, nonprivate_gaussian_noise
from dpmf_jax.mechanisms.noisy_sum import Noisy, noisy_sum
from dpmf_jax.mechanisms.response import debiased_counts, randomized_response
from dpmf_jax.mechanisms.sampling import sample
from dpmf_jax.rows import coo_data, dense_data
from dpmf_jax.systems.gaussian_mf import noisy_gradients

__all__ = [
  'Noisy',
  'clip_rows',
  'coo_data',
  'debiased_counts',
  'dense_data',
  'gaussian_noise',
  'gradients',
  'laplace_noise',
  'noisy_gradients',
  'noisy_sum',
  'nonprivate_gaussian_noise',
  'randomized_response',
  'sample',
  'squared_error',
]
