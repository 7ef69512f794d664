"""Secure distributed matrix factorization (SDMF), as published.

Reference: Jiang, Li and Lin, Towards a more reliable privacy-preserving
recommender system (2019), Algorithms 1 and 2. Their U is our user factors,
V our item factors, K our rank.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from dpmf_jax.mechanisms import noise
from dpmf_jax.plans.sdmf import SDMFConfig, plan
from dpmf_jax.rows import Data
from dpmf_jax.systems.sdcf import messages as sdcf_messages
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf import sgld, starting
from dpmf_jax.systems.sdcf.client_blocks import Profile
from dpmf_jax.systems.sdcf.client_errors import selection, sent_errors
from dpmf_jax.systems.sdcf.types import Client, Contribution, Public, State
from dpmf_jax.types import System


def client_round(
  key: jax.Array, client: Client, own: Profile, public: Public, *, capacity: int
) -> tuple[Client, Contribution]:
  """One client after a round, and what it tells in it; see `client_report`.

  Reference: Jiang, Li and Lin (2019), Algorithm 1, lines 7 to 30, but for the
  ridge and noise of what is sent.
  """
  coin_key, fake_key, own_key = jax.random.split(key, 3)
  p, eta, langevin = client.factors, public.step_size, public.langevin
  chosen = selection(coin_key, client.memory, len(public.item), capacity)
  residual = jnp.where(own.rated, public.item @ p - own.value, 0.0)  # [I]
  error = sent_errors(
    fake_key, residual, own, chosen, public.epsilon_value, capacity
  )

  # Lines 14, 15 and 30. The mean of h draws of noise is one draw.
  h = jnp.maximum(own.rated.sum(), 1).astype(jnp.float32)
  move = eta * (
    langevin.likelihood * (residual @ public.item) / h + p * langevin.user_ridge
  ) - jnp.sqrt(eta / h) * noise.coarse_normal(own_key, p.shape)
  moved = sdcf.moved_client(client, move, chosen.unsent, public)
  return moved, Contribution(error, chosen.sent, p)


client_report = functools.partial(
  sdcf.client_report, client_round=client_round, gradients=sdcf.item_gradients
)


def sdmf(config: SDMFConfig) -> System:
  """SDMF as published, simulated round by round.

  Privacy: as the paper claims, which is true of the bits and of nothing else
  that is sent; see `plans.sdcf.CLAIM`.
  """

  def init(key: jax.Array, data: Data) -> State:
    keys = sgld.start_keys(key)
    sizes = data.by_user.num_rows, data.by_item.num_rows
    factors = sgld.uniform_factors(keys.factors, sizes, config)
    begun = starting.open_start(keys.ridges, data, factors, config)
    return starting.start(keys.bits, begun, data, config)

  return plan(config).system(
    init,
    sdcf.Rounds(
      client_round, sgld.optimizer_of(config), config.average, config.sent
    ),
    sdcf.model,
    scale=config.scale,
  )


def sdmf_by_messages(config: SDMFConfig) -> System:
  """`sdmf` with noise in every message, as a deployment runs it.

  The same in distribution; see `sdcf_messages`.
  """
  step = sdcf_messages.MessageRounds(
    client_report, sgld.optimizer_of(config), config.average, config.sent
  )
  return sdmf(config)._replace(step=step)
