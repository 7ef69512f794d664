"""Objective perturbation in which each rating has an epsilon of its own.

Reference: Zhang et al., Personalized Differential Privacy for Probabilistic
Matrix Factorization, Algorithm 1 (the sample) and then 2, and Theorem 6.

The specification comes with the ratings (`Rows.epsilon`) and is public.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from dpmf_jax import accounting
from dpmf_jax.accounting.rounding import WEIGHT_BITS, shift_rounding
from dpmf_jax.mechanisms import sampling
from dpmf_jax.plans.personalized_pmf import PersonalizedPMFConfig, plan
from dpmf_jax.ratings.specification import AskedEpsilons, summary
from dpmf_jax.rows import Data, rounded_down
from dpmf_jax.systems import noisy_equations, pmf
from dpmf_jax.types import Factors, Personal, System


def accounted_epsilons(
  config: PersonalizedPMFConfig, epsilons: ArrayLike, rank: int = 1
) -> np.ndarray:
  """The pure epsilon [N] that ratings have which ask for `epsilons` [N].

  It is computed from the weights and the chances that `personalized_pmf` uses,
  with all their rounding, and features of that rank; for the paper it is what
  Theorem 6 claims.

  Privacy: a weight v moves (count_scale A, b) by (v + D r)/(1 + D r) of what
  noise of epsilon = config.epsilon is made for, with r what rounding can add,
  and 0 by nothing. A chance is a number of coins over 2^32. Never more than was
  asked for: see `mechanisms.sampling`.
  """
  asked = jnp.asarray(rounded_down(np.asarray(epsilons, np.float64)))
  if config.method == 'weights':
    added = rank * shift_rounding(config.shift)
    weight = np.asarray(_weights(config, asked, rank), np.float64)
    # As `normal.lattice_equations` rounds it.
    weight = np.floor(np.ldexp(weight, WEIGHT_BITS))
    weight = np.ldexp(weight, -WEIGHT_BITS)
    share = np.where(weight > 0, (weight + added) / (1 + added), 0.0)
    return config.epsilon * share
  chance = sampling.probabilities(asked, config.epsilon)
  coins = np.asarray(sampling.coins_below(chance), np.float64)
  kept = np.where(np.asarray(chance) >= 1, 1.0, np.ldexp(coins, -32))
  return accounting.sampled_epsilon(kept, config.epsilon)


def personal(
  config: PersonalizedPMFConfig, asked: AskedEpsilons | None, rank: int = 1
) -> dict[str, Any]:
  """What a certificate says of each rating's own epsilon.

  Args:
    config: of the run.
    asked: the distribution of what is asked for, known without the ratings;
      None where it is not, and then nothing is said of it.
    rank: of the user features.
  """
  bound = (
    'is proved to be'
    if config.variant == 'sound'
    else 'is claimed by the paper, and not proved, to be'
  )
  note = (
    'The epsilon of a rating, at the delta stated and for adding or removing '
    f'it, {bound} at most what the specification gives it, and at most t.'
  )
  if asked is None:
    note += (
      ' How the epsilons are distributed is not said here: they stand beside '
      'the ratings, so it would tell of ratings.'
    )
    distribution = None
  else:
    accounted = accounted_epsilons(config, asked.epsilon, rank)
    distribution = summary(asked._replace(epsilon=accounted))
  return {
    'method': config.method,
    'threshold': config.epsilon,
    'distribution': distribution,
    'note': note,
  }


def _weights(
  config: PersonalizedPMFConfig, asked: jax.Array, rank: int
) -> jax.Array:
  """Of ratings, for method='weights'."""
  # An entry of A or b moves by this much more; A has D^2 of them.
  added = rank * shift_rounding(config.shift)
  return sampling.weights(asked, config.epsilon, added)


def personalized_pmf(
  config: PersonalizedPMFConfig, features: np.ndarray | None = None
) -> System:
  """Item factors in which no rating has more than its own epsilon.

  Args:
    config: settings.
    features: [U, D] public user features, as for `objective_pmf`.

  Privacy (sound): what is released is that of sound `objective_pmf` on
  ratings with weights, which are public. With 'weights' a rating of weight w
  moves the statistic by at most w times the sensitivity, so that it has
  epsilon w * config.epsilon, at most its own. With 'sampling' a mechanism with
  epsilon t for adding or removing a rating runs on a secret sample, see
  `accounting.sampled_epsilon`.
  """
  if config.variant == 'paper':
    if features is not None:
      raise ValueError("variant='paper' learns its user factors: give none")
    return _paper(config)
  rank = 1 if features is None else np.shape(features)[1]
  hyper = noisy_equations.hyper_of(config, rank)

  def init(key: jax.Array, data: Data) -> noisy_equations.State:
    asked = _asked(data.by_item)
    if config.method == 'weights':
      weight = _weights(config, asked, rank)
    else:
      chance = sampling.probabilities(asked, config.epsilon)
      weight = sampling.sample_cells(key, data.by_item, chance, by_user=False)
    return noisy_equations.start(data, features, hyper, weight)

  return plan(config, rank).system(
    init,
    noisy_equations.equations_step(config.relation, config.shift),
    noisy_equations.equations_model,
    personal=_personal(config, rank),
    scale=config.scale,
  )


def _paper(config: PersonalizedPMFConfig) -> System:
  hyper = pmf.hyper_of(config)

  def init(key: jax.Array, data: Data) -> pmf.State:
    start_key, sample_key = jax.random.split(key)
    kept = [
      sampling.sample_cells(
        jax.random.clone(sample_key),
        rows,
        sampling.probabilities(_asked(rows), config.epsilon),
        by_user=by_user,
      )
      for rows, by_user in ((data.by_user, True), (data.by_item, False))
    ]
    return pmf.start(
      start_key, data, hyper, rank=config.rank, weights=Factors(*kept)
    )

  system = pmf.stages_system(config, init, plan(config).guarantee)
  return system._replace(personal=_personal(config, 1))


def _personal(config: PersonalizedPMFConfig, rank: int) -> Personal:
  return Personal(
    statement=lambda asked: personal(config, asked, rank),
    accounted=lambda epsilons: accounted_epsilons(config, epsilons, rank),
  )


def _asked(rows) -> jax.Array:
  if rows.epsilon is None:
    raise ValueError(
      'the ratings have no specification: give each an epsilon of its own, as '
      'dpmf_jax.ratings.specification does'
    )
  return jnp.asarray(rows.epsilon)
