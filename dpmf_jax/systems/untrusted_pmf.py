"""PMF with a recommender that is not trusted, as published and sound.

Reference: Hua, Xia and Zhong, Differentially Private Matrix Factorization
(2015), scenarios 2 and 3.

Users keep their ratings and vectors. The recommender keeps item factors and
sees sums over users; a third party adds up masked reports. What the parties
send one another is in `federated`, what each sees in `untrusted.views`.
"""

from __future__ import annotations

import jax
import numpy as np

from dpmf_jax.plans.untrusted_pmf import UntrustedPMFConfig, plan
from dpmf_jax.rows import Data
from dpmf_jax.systems.untrusted import rounds as untrusted_rounds
from dpmf_jax.systems.untrusted import sums as untrusted_sums
from dpmf_jax.types import System


def untrusted_pmf(
  config: UntrustedPMFConfig, features: np.ndarray | None = None
) -> System:
  """Item factors from secure sums; the system is their simulator.

  Args:
    config: settings.
    features: [U, D] user features for the sound variant, known without
      looking at the ratings; by default a constant, with which items have a
      mean each. Rows longer than 1 in L1 norm are shortened.

  Privacy (sound): one rating moves (A, b) of one item by at most
  `rating_move` in L1 norm, as integers (`untrusted_sums.rating_terms`), and
  all sums are exact on the ring. At least U - c - d users arrived and do not
  collude. The shares of noise in their reports add up to two-sided geometric
  noise on every coordinate (`mechanisms.shares`), so that the sum, and what is
  made of it, is epsilon-DP for their ratings; the colluders' reports are
  constants to be taken off, and any further shares are independent noise. That
  is what the recommender sees. The third party sees reports under masks that it
  does not know, which are uniform and independent of everything, and what is
  published. Every user reports on every item, so that nobody sees who rated
  what.
  """
  if config.variant == 'paper':
    if features is not None:
      raise ValueError("variant='paper' learns its user factors: give none")
    return _paper(config)
  rank = 1 if features is None else np.shape(features)[1]
  planned = plan(config, rank)

  def init(key: jax.Array, data: Data) -> untrusted_sums.State:
    del key
    num_users = data.by_user.num_rows
    given = np.ones((num_users, 1)) if features is None else features
    if len(given) != num_users:
      raise ValueError(
        f'features of {len(given)} rows must have one for each of the '
        f'{num_users} users'
      )
    counts = untrusted_sums.feature_counts(given)
    hyper = untrusted_sums.hyper_of(config, num_users)
    return untrusted_sums.start(data, counts, hyper)

  colluding = config.unneeded > 0
  return planned.system(
    init,
    untrusted_sums.SumsStep(config.relation, config.noise_bits, colluding),
    untrusted_sums.sums_model,
    views=untrusted_sums.views(colluding),
    scale=config.scale,
  )


def _paper(config: UntrustedPMFConfig) -> System:
  def init(key: jax.Array, data: Data) -> untrusted_rounds.State:
    hyper = untrusted_rounds.hyper_of(config, data.by_user.num_rows)
    return untrusted_rounds.start(key, data, hyper, rank=config.rank)

  return plan(config).system(
    init,
    untrusted_rounds.STEPS[config.attendance],
    untrusted_rounds.rounds_model,
    views=untrusted_rounds.VIEWS,
    scale=config.scale,
  )
