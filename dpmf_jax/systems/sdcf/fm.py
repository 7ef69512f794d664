"""A second-order factorization machine of users, items and their features.

Reference: Rendle (2012); Jiang, Li and Lin (2019), section 5, with d = 2:

  y = w_0 + sum_c w_c x_c + sum_{b < c} x_b x_c <v_b, v_c>

over the user (x = 1), the item (x = 1), F features of the user and G of the
item. With s and t the sums of x_c v_c over the features of the user and of
the item, all pairs but those on one side are <v_u + s, v_i + t>, and those on
one side are biases, so that for a user and an item

  y = w_0 + bias_u + bias_i + <v_u + s, v_i + t>

A weight and its vector are kept together, as [v, w] of width W = D + 1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.systems.sdcf.types import Summed
from dpmf_jax.types import Factors, Release


class Shared(NamedTuple):
  """Weights that are public and of no single item."""

  offset: jax.Array  # [] w_0
  user: jax.Array  # [F, W] of the features of users
  item: jax.Array  # [G, W] of the features of items


class Side(NamedTuple):
  """One side of a prediction, the user's or the item's, features put in."""

  features: jax.Array  # [..., D] the sum of the vectors of its features
  vector: jax.Array  # [..., D] its own vector, and that sum
  bias: jax.Array  # [...]


def no_weights(num_user: int, num_item: int, width: int) -> Shared:
  """Shared weights before the first round: all 0."""
  return Shared(
    jnp.zeros(()), jnp.zeros((num_user, width)), jnp.zeros((num_item, width))
  )


def side(own: jax.Array, features: jax.Array, table: jax.Array) -> Side:
  """One side [...] of own weights [..., W], features [..., F], table [F, W]."""
  vectors, weights = table[:, :-1], table[:, -1]
  vector, weight = own[..., :-1], own[..., -1]
  summed = features @ vectors
  # All pairs of features: half of the square of the sum, less the squares.
  pairs = (summed**2).sum(axis=-1) - features**2 @ (vectors**2).sum(axis=1)
  bias = weight + features @ weights + (vector * summed).sum(axis=-1)
  return Side(summed, vector + summed, bias + pairs / 2)


def predictions(user: Side, items: Side, offset: jax.Array) -> jax.Array:
  """[I] of one user."""
  return items.vector @ user.vector + items.bias + (user.bias + offset)


def release(factors: Factors, features: Factors, shared: Shared) -> Release:
  """Factors of rank D + 2 whose inner products are the predictions.

  Items are [v_i + t, bias_i + w_0, 1] and users [v_u + s, 1, bias_u].
  """
  user = side(factors.user, features.user, shared.user)
  item = side(factors.item, features.item, shared.item)
  ones = lambda bias: jnp.ones_like(bias)[:, None]
  item_bias = (item.bias + shared.offset)[:, None]
  return Release(
    Factors(
      jnp.concatenate(
        [user.vector, ones(user.bias), user.bias[:, None]], axis=1
      ),
      jnp.concatenate([item.vector, item_bias, ones(item.bias)], axis=1),
    ),
    jnp.float32(0),
  )


def own_gradient(error: jax.Array, items: Side, user: Side) -> jax.Array:
  """[W], the sum over items of errors [I] times the user's derivatives."""
  total = error.sum()
  vector = error @ items.vector + total * user.features
  return jnp.concatenate([vector, total[None]])


def error_vector(user: Side) -> jax.Array:
  """[W], what a client multiplies its errors by: [v_u + s, 1].

  Sums of it over clients, `pulled` below, are enough for the gradients of
  all weights but those of the features of users.
  """
  return jnp.concatenate([user.vector, jnp.ones(1)])


def item_gradients(pulled: jax.Array, items: Side) -> jax.Array:
  """[n, W], errors times the derivatives by each of the items' own weights."""
  error = pulled[:, -1:]
  vector = pulled[:, :-1] + error * items.features
  return jnp.concatenate([vector, error], axis=1)


def item_feature_gradients(
  pulled: jax.Array,
  received: jax.Array,
  items: Side,
  features: jax.Array,
  table: jax.Array,
) -> Summed:
  """Errors times the derivatives by the weights of the features of items.

  Args:
    pulled: [n, W].
    received: [n] how many errors there are for an item.
    items: [n].
    features: [n, G].
    table: [G, W], where the derivatives are taken.

  Returns:
    The sums [G, W], and how many errors are of items with a feature [G].
  """
  error = pulled[:, -1]
  # The derivative by v_c is x_c (the sum of all vectors but x_c v_c).
  whole = pulled[:, :-1] + error[:, None] * items.vector
  vector = features.T @ whole - (error @ features**2)[:, None] * table[:, :-1]
  weight = (error @ features)[:, None]
  return Summed(
    jnp.concatenate([vector, weight], axis=1),
    received @ (features != 0).astype(jnp.float32),
  )


def user_feature_gradients(
  error: jax.Array,
  count: jax.Array,
  items: Side,
  user: Side,
  features: jax.Array,
  table: jax.Array,
) -> Summed:
  """One client's errors times the derivatives by weights of its features.

  Args:
    error: [I].
    count: how many errors there are.
    items: [I].
    user: this client's side.
    features: [F] of this client.
    table: [F, W], where the derivatives are taken.

  Returns:
    The sums [F, W], and how many errors there are for each feature [F].
  """
  total = error.sum()
  whole = error @ items.vector + total * user.vector  # [D]
  own = (features**2 * total)[:, None] * table[:, :-1]
  vector = features[:, None] * whole[None, :] - own
  weight = (features * total)[:, None]
  return Summed(
    jnp.concatenate([vector, weight], axis=1), count * (features != 0)
  )
