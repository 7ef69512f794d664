"""A factorization machine in SDCF (SD-FM), as published, or open.

Reference: Jiang, Li and Lin (2019), section 5: the weights of users are
personal and never leave the client, all others are public. Clients choose
items and fake residuals as in SDMF, and send gradients of the items' weights
and, summed over what they send, of all other public weights. The paper gives
no figures and no step size; what was chosen here is in `SDFMConfig`.

Without features and with side_step = 0 it is SDMF, draw for draw.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpmf_jax.mechanisms import noise
from dpmf_jax.plans.sdcf import Average
from dpmf_jax.plans.sdfm import SDFMConfig, plan
from dpmf_jax.ratings.attributes import Attributes
from dpmf_jax.rows import Data
from dpmf_jax.systems.sdcf import fm, sgld, starting
from dpmf_jax.systems.sdcf import rounds as sdcf
from dpmf_jax.systems.sdcf.client_blocks import Profile, over_clients
from dpmf_jax.systems.sdcf.client_errors import selection, sent_errors
from dpmf_jax.systems.sdcf.types import (
  Client,
  Contribution,
  OpenState,
  Public,
  State,
  Summed,
  Total,
)
from dpmf_jax.types import Factors, Release, System


def step_sizes(eta: jax.Array, side: jax.Array, width: int) -> jax.Array:
  """[W]: eta for the vector, and side times eta for the linear weight."""
  return jnp.full(width, eta).at[-1].multiply(side)


def drawn(vector_key: jax.Array, weight_key: jax.Array, shape) -> jax.Array:
  """Normal draws [..., W] of vectors and, by another key, linear weights.

  So vectors have the noise that they have in SDMF.
  """
  *axes, width = shape
  vector = noise.coarse_normal(vector_key, (*axes, width - 1))
  weight = noise.coarse_normal(weight_key, (*axes, 1))
  return jnp.concatenate([vector, weight], axis=-1)


def shared_langevin(
  key: jax.Array,
  sums: Summed,
  shared: fm.Shared,
  eta: jax.Array,
  langevin: sgld.Langevin,
) -> fm.Shared:
  """Sums of gradients of eq. (6): every one with ridge and noise of its own.

  The constant w_0 has no ridge.
  """
  ridges = fm.Shared(jnp.float32(0), langevin.item_ridge, langevin.item_ridge)
  keys = fm.Shared(*jax.random.split(key, 3))

  def one(key, total, count, weight, ridge):
    axes = count.shape + (1,) * (weight.ndim - count.ndim)
    count = count.reshape(axes)
    ridge = ridge.reshape((1,) * (weight.ndim - ridge.ndim) + ridge.shape)
    drift = langevin.likelihood * total + count * weight * ridge
    return eta * drift - jnp.sqrt(eta * count) * noise.coarse_normal(
      key, weight.shape
    )

  return fm.Shared(
    *map(one, keys, sums.gradient, sums.received, shared, ridges)
  )


def client_round(
  key: jax.Array, client: Client, own: Profile, public: Public, *, capacity: int
) -> tuple[Client, Contribution]:
  """One client after a round, and what it tells in it; see `client_report`.

  Reference: Jiang, Li and Lin (2019), Algorithm 1 with the model of section 5.
  A client's factors are [v_u, w_u], and items are [v_i, w_i].
  """
  coin_key, fake_key, own_key, weight_key = jax.random.split(key, 4)
  p, langevin = client.factors, public.langevin
  num_items, width = public.item.shape
  eta = step_sizes(public.step_size, public.side, width)  # [W]
  user = fm.side(p, client.features, public.shared.user)
  items = fm.side(public.item, public.features, public.shared.item)

  chosen = selection(coin_key, client.memory, num_items, capacity)
  scores = fm.predictions(user, items, public.shared.offset)
  residual = jnp.where(own.rated, scores - own.value, 0.0)  # [I]
  error = sent_errors(
    fake_key, residual, own, chosen, public.epsilon_value, capacity
  )
  count = chosen.sent.sum().astype(jnp.float32)
  shared = fm.user_feature_gradients(
    error, count, items, user, client.features, public.shared.user
  )

  # The mean of h draws of noise is one draw.
  h = jnp.maximum(own.rated.sum(), 1).astype(jnp.float32)
  mean = fm.own_gradient(residual, items, user) / h
  move = eta * (
    langevin.likelihood * mean + p * langevin.user_ridge
  ) - jnp.sqrt(eta / h) * drawn(own_key, weight_key, (width,))
  moved = sdcf.moved_client(client, move, chosen.unsent, public)
  return moved, Contribution(error, chosen.sent, fm.error_vector(user), shared)


def gradients(
  keys: tuple[jax.Array, jax.Array],
  total: Total,
  at: Any,
  public: Public,
) -> Total:
  """`total` of items `at` as gradients of all that is public, with noise."""
  weight_key, shared_key = jax.random.split(keys[1])
  shared, langevin = public.shared, public.langevin
  items = fm.side(public.item[at], public.features[at], shared.item)
  pulled, received = total.gradient, total.received
  summed = fm.item_gradients(pulled, items)
  side_eta = public.step_size * public.side

  def part(key, columns, eta):
    return sdcf.langevin_sum(
      key,
      summed[:, columns],
      received,
      public.item[at][:, columns],
      eta,
      langevin.likelihood,
      langevin.item_ridge[columns],
    )

  # Vectors have the noise that they have in SDMF.
  vector = part(keys[0], slice(None, -1), public.step_size)
  weight = part(weight_key, slice(-1, None), side_eta)
  of_items = fm.item_feature_gradients(
    pulled, received, items, public.features[at], shared.item
  )
  sums = Summed(
    fm.Shared(pulled[:, -1].sum(), total.shared.gradient, of_items.gradient),
    fm.Shared(received.sum(), total.shared.received, of_items.received),
  )
  moved = shared_langevin(shared_key, sums, shared, side_eta, langevin)
  return Total(
    jnp.concatenate([vector, weight], axis=1),
    received,
    sums._replace(gradient=moved),
  )


client_report = functools.partial(
  sdcf.client_report, client_round=client_round, gradients=gradients
)


def _half_squares(user, item, shared, own: Profile, features: Factors):
  """Half of the squared errors of a block of clients [B]."""
  users = fm.side(user, features.user, shared.user)
  items = fm.side(item, features.item, shared.item)
  scores = jax.vmap(fm.predictions, (0, None, None))(
    users, items, shared.offset
  )
  return (jnp.where(own.rated, scores - own.value, 0.0) ** 2).sum() / 2


@dataclass(frozen=True)
class OpenRounds:
  """Gradients of all ratings, as a `System.step`; equal where settings are."""

  optimizer: optax.GradientTransformation
  average: Average

  def __call__(self, key: jax.Array, state: OpenState, data: Data):
    clients_key, *noise_keys = jax.random.split(key, 4)
    item, langevin = state.factors.item, state.hyper.langevin
    side = state.hyper.side
    width = item.shape[1]
    now = jnp.asarray(sgld.schedule(langevin)(state.round))
    eta = step_sizes(now, side, width)

    def run(keys, clients, own, public):
      p, x = clients
      item, shared, y, eta, langevin = public
      user_sums, item_sums, shared_sums = jax.grad(
        _half_squares, argnums=(0, 1, 2)
      )(p, item, shared, own, Factors(x, y))
      rated = own.rated.astype(jnp.float32)
      received, h = rated.sum(axis=0), rated.sum(axis=1)
      counts = fm.Shared(h.sum(), h @ (x != 0), received @ (y != 0))
      h = jnp.maximum(h, 1)[:, None]
      draw = lambda key: drawn(*jax.random.split(key), shape=(width,))
      move = eta[None, :] * (
        langevin.likelihood * user_sums / h + p * langevin.user_ridge[None, :]
      ) - jnp.sqrt(eta[None, :] / h) * jax.vmap(draw)(keys)
      shared = Summed(shared_sums, counts)
      return (p - move, x), Total(item_sums, received, shared)

    (user, _), total = over_clients(
      run,
      clients_key,
      (state.factors.user, state.features.user),
      data.by_user,
      state.blocks,
      (item, state.shared, state.features.item, eta, langevin),
      sdcf.total_shapes(*item.shape, shared=state.shared),
    )
    count = total.received[:, None]
    gradient = eta[None, :] * (
      langevin.likelihood * total.gradient
      + count * item * langevin.item_ridge[None, :]
    ) - jnp.sqrt(count * eta[None, :]) * drawn(
      *noise_keys[:2], shape=item.shape
    )
    shared = shared_langevin(
      noise_keys[2], total.shared, state.shared, now * side, langevin
    )
    total = total._replace(
      gradient=gradient, shared=total.shared._replace(gradient=shared)
    )
    return sdcf.open_state(state, user, total, self.optimizer, self.average)


def model(state: State | OpenState, data: Data) -> Release:
  """Both sides; in the paper's variant the users' never leaves the clients.

  A client makes its own from its weights and those of its features, which it
  was sent in the last round.
  """
  del data
  return fm.release(state.factors, state.features, state.shared)


def _of_users(shared: fm.Shared) -> jax.Array:
  return shared.user


def features_of(attributes: Attributes | None, data: Data) -> Factors:
  """Features [U, F] and [I, G] as JAX arrays; F = G = 0 without any."""
  users, items = data.by_user.num_rows, data.by_item.num_rows
  if attributes is None:
    return Factors(jnp.zeros((users, 0)), jnp.zeros((items, 0)))
  found = len(attributes.user), len(attributes.item)
  if found != (users, items):
    raise ValueError(
      f'attributes of {found[0]} users and {found[1]} items do not fit data '
      f'of {users} and {items}'
    )
  return Factors(jnp.asarray(attributes.user), jnp.asarray(attributes.item))


def sdfm(config: SDFMConfig) -> System:
  """SD-FM as published, or a factorization machine without privacy ('none').

  Privacy: as the paper claims, which is true of the bits and of nothing else
  that is sent; see `plans.sdcf.CLAIM` and `plans.sdfm.ASSUMED`.
  """
  optimizer = sgld.optimizer_of(config)

  def init(key: jax.Array, data: Data) -> Any:
    keys = sgld.start_keys(key)
    sizes = data.by_user.num_rows, data.by_item.num_rows
    vectors = sgld.uniform_factors(keys.factors, sizes, config)
    factors = Factors(*(jnp.pad(v, ((0, 0), (0, 1))) for v in vectors))
    features = features_of(config.attributes, data)
    counts = (each.shape[1] for each in features)
    shared = fm.no_weights(*counts, width=config.rank + 1)
    state: Any = starting.open_start(
      keys.ridges, data, factors, config, shared=shared, features=features
    )
    if config.variant == 'paper':
      state = starting.start(keys.bits, state, data, config)
    # Ridges of the linear weights come after those of the vectors.
    langevin = state.hyper.langevin
    weight = (config.ridge * langevin.likelihood)[None]
    ridges = (jnp.concatenate([ridge, weight]) for ridge in langevin[-2:])
    langevin = sgld.Langevin(*langevin[:-2], *ridges)
    side = jnp.float32(config.side_step)
    hyper = state.hyper._replace(langevin=langevin, side=side)
    return state._replace(hyper=hyper)

  step = OpenRounds(optimizer, config.average)
  if config.variant == 'paper':
    step = sdcf.Rounds(
      client_round,
      optimizer,
      config.average,
      config.sent,
      gradients=gradients,
      client_sums=_of_users,
    )
  return plan(config).system(init, step, model, scale=config.scale)
