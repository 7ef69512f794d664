"""Objective perturbation for PMF, as published and as it is sound.

Reference: Zhang et al., Personalized Differential Privacy for Probabilistic
Matrix Factorization, Algorithm 2 (DP-PMF); Hua, Xia and Zhong, Differentially
Private Matrix Factorization, the trusted recommender.
"""

from __future__ import annotations

import jax
import numpy as np

from dpmf_jax.plans.objective_pmf import ObjectivePMFConfig, plan
from dpmf_jax.rows import Data
from dpmf_jax.systems import (
  huber_means,
  learned_features,
  noisy_equations,
  pmf,
)
from dpmf_jax.types import System


def objective_pmf(
  config: ObjectivePMFConfig, features: np.ndarray | None = None
) -> System:
  """Item factors by objective perturbation; user factors stay secret.

  Args:
    config: settings.
    features: [U, D] user features for the sound variant, known without
      looking at the ratings; by default a constant, with which items have a
      mean each. Rows longer than 1 are shortened.

  Privacy (sound): with the users' features public, the minimum of the
  perturbed objective of an item, 1/2 sum (y - p.q)^2 + ridge/2 |q|^2 + eta.q,
  is (A + ridge)^-1 (b - eta): a function of A and of b with L2-Laplace noise.
  One changed value moves b of one item by at most `sensitivity` and A not at
  all ('replace'); one rating more or less moves (count_scale * A, b), which
  then gets the noise as a whole ('add_remove'). So a release is epsilon-DP
  with epsilon = sensitivity / scale, and any function of it is; here that is
  the estimate that knows the noise (`shrunk_solution`).
  """
  if config.variant == 'paper':
    if features is not None:
      raise ValueError("variant='paper' learns its user factors: give none")
    return _paper(config)
  if config.feature_share:
    if features is not None:
      raise ValueError('feature_share learns features: give none')
    return learned_features.with_learned_features(config)
  rank = 1 if features is None else np.shape(features)[1]
  if config.loss == 'huber':
    if features is not None:
      raise ValueError("loss='huber' has no user features; use 'squared'")
    step, hyper = huber_means.huber_step, huber_means.hyper_of(config)
  else:
    step = noisy_equations.equations_step(config.relation, config.shift)
    hyper = noisy_equations.hyper_of(config, rank)

  def init(key: jax.Array, data: Data) -> noisy_equations.State:
    del key
    return noisy_equations.start(data, features, hyper)

  return plan(config, rank).system(
    init, step, noisy_equations.equations_model, scale=config.scale
  )


def _paper(config: ObjectivePMFConfig) -> System:
  hyper = pmf.hyper_of(config)

  def init(key: jax.Array, data: Data) -> pmf.State:
    return pmf.start(key, data, hyper, rank=config.rank)

  return pmf.stages_system(config, init, plan(config).guarantee)
