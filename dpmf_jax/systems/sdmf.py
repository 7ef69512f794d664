"""Secure distributed matrix factorization (SDMF), as published.

Reference: Jiang, Li and Lin, Towards a more reliable privacy-preserving
recommender system (2019), Algorithms 1 and 2. Their U is our user factors,
V our item factors, K our rank.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.data.rows import Data
from dpmf_jax.mechanisms import noise
from dpmf_jax.systems import sdcf, sgld
from dpmf_jax.systems.client_blocks import Own
from dpmf_jax.systems.client_errors import chosen_items, sent_errors
from dpmf_jax.systems.sdmf_config import SDMFConfig, guarantee
from dpmf_jax.types import System


def client_report(
  key: jax.Array,
  client: sdcf.Client,
  own: Own,
  public: sdcf.Public,
  *,
  capacity: int,
) -> tuple[sdcf.Client, sdcf.Report]:
  """One client after a round, and what it sends in it.

  Reference: Jiang, Li and Lin (2019), Algorithm 1, lines 7 to 30.

  Args:
    key: of this client and round.
    client: what it keeps.
    own: its ratings.
    public: what the server sent.
    capacity: slots M of a message.

  Privacy: which items are sent is post-processing of the permanent bits.
  What is sent with them is not covered by anything that holds.
  """
  coin_key, fake_key, noise_key, own_key = jax.random.split(key, 4)
  p, kept = client.factors, client.kept
  eta, langevin = public.step_size, public.langevin
  num_items, rank = public.item.shape
  item, unsent = chosen_items(coin_key, kept, num_items, capacity)  # [M]
  residual = jnp.where(own.rated, public.item @ p - own.value, 0.0)  # [I]
  h = jnp.maximum(own.rated.sum(), 1).astype(jnp.float32)
  at = jnp.minimum(item, num_items - 1)
  e = sent_errors(fake_key, residual, own, at, public.epsilon_value)

  # Lines 20 and 27, eq. (6).
  gradient = eta * (
    langevin.likelihood * e[:, None] * p[None, :]
    + public.item[at] * langevin.item_ridge[None, :]
  ) - jnp.sqrt(eta) * noise.coarse_normal(noise_key, (capacity, rank))

  # Lines 14, 15 and 30. The mean of h draws of noise is one draw.
  move = eta * (
    langevin.likelihood * (residual @ public.item) / h + p * langevin.user_ridge
  ) - jnp.sqrt(eta / h) * noise.coarse_normal(own_key, (rank,))
  converged = sdcf.hardly_moved(p, p - move, public.tolerance)
  kept = kept._replace(converged=converged, unsent=unsent)
  return (
    client._replace(factors=p - move, kept=kept),
    sdcf.Report(item, gradient, converged),
  )


@functools.cache
def _step(
  optimizer: optax.GradientTransformation,
  average: sgld.Average,
  sent: float | None,
):
  """A round; one object for equal arguments, see `System.step`."""
  return sdcf.round_step(client_report, optimizer, average, sent)


def sdmf(config: SDMFConfig) -> System:
  """SDMF as published, simulated round by round.

  Privacy: as the paper claims, which is true of the bits and of nothing else
  that is sent; see `sdmf_config.CLAIM`.
  """

  def init(key: jax.Array, data: Data) -> sdcf.State:
    factor_key, bits_key, ridge_key = jax.random.split(key, 3)
    factors = sgld.uniform_factors(
      factor_key, data, config.rank, config.init_size
    )
    return sdcf.start(bits_key, ridge_key, data, factors, config)

  return System(
    init=init,
    step=_step(sgld.optimizer_of(config), config.average, config.sent),
    model=sdcf.model,
    release=sdcf.release,
    steps=config.steps,
    guarantee=guarantee(config, ('item factors', 'what clients send')),
  )
