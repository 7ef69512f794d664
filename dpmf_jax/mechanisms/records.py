"""Randomized response of a record: a (user, item) cell, blank or a rating.

A client turns each cell into one of K categories, 0 for blank and 1 .. K - 1
for levels of the rating scale, and answers once with the category or with one
of the others. A profile holds cells as uint8: 0 is blank, 1 .. GRID + 1 is a
rating in steps of 1/GRID of the scale.

Reference: Warner (1965); Kairouz, Bonawitz and Ramage (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.accounting.records import COINS, GRID, MAX_LEVELS, lie_coins
from dpmf_jax.rows import Data, Rows

Rounding = Literal['nearest', 'stochastic']
_CLIENTS = 64  # simulated at a time


class Response(NamedTuple):
  """A randomized response, as arrays: another one does not compile again.

  Attributes:
    lower: [GRID + 2] uint8, the category of a cell.
    up: [GRID + 2] uint32, how many of 2^32 coins raise it by one.
    lie: [] uint32, how many coins give each category that is not the truth.
    categories: [] int32, K.
  """

  lower: jax.Array
  up: jax.Array
  lie: jax.Array
  categories: jax.Array


class Estimates(NamedTuple):
  """Unbiased estimates from an answer, and their variance at a blank cell.

  Attributes:
    rated: [MAX_LEVELS + 1] of 'there is a rating', by answer.
    total: [MAX_LEVELS + 1] of (level - center), 0 for a blank, by answer.
    rated_variance, total_variance: [].
  """

  rated: jax.Array
  total: jax.Array
  rated_variance: jax.Array
  total_variance: jax.Array


def response(
  levels: Sequence[float],
  *,
  scale: tuple[float, float],
  rounding: Rounding,
  epsilon: float,
) -> Response:
  """The response whose categories are blank and `levels`, ascending.

  A rating becomes the nearest level (the lower of two), or with 'stochastic'
  one of the two around it by a coin, so that it is the rating on average;
  beyond the first and the last it becomes that one.

  Privacy: nothing depends on how ratings become categories, see `answers`.
  """
  low, high = scale
  values = low + np.arange(GRID + 1) * ((high - low) / GRID)
  place = np.interp(values, levels, np.arange(len(levels), dtype=np.float64))
  below = np.floor(place).astype(np.int64)
  if rounding == 'stochastic':
    raised = np.floor((place - below) * COINS).astype(np.uint32)
  else:
    raised = np.zeros(GRID + 1, np.uint32)
    # A hair below one half, so that a tie goes down whatever its last bit.
    middle = np.searchsorted(
      (np.asarray(levels[:-1]) + np.asarray(levels[1:])) / 2,
      values - 1e-9 * (high - low),
    )
    below = middle.astype(np.int64)
  blank = np.zeros(1)
  return Response(
    lower=jnp.asarray(np.concatenate([blank, below + 1]), jnp.uint8),
    up=jnp.asarray(np.concatenate([blank, raised]).astype(np.uint32)),
    lie=jnp.uint32(lie_coins(epsilon, len(levels) + 1)),
    categories=jnp.int32(len(levels) + 1),
  )


def answers(
  key: jax.Array, profile: jax.Array, response: Response
) -> jax.Array:
  """The answers [I] uint8 of one client about its cells `profile` [I].

  Privacy: each cell has two words of random bits of its own. The first makes
  it a category and tells nothing by itself. Given the category x, the second
  is a uniform c in 0 .. 2^32 - 1: the answer is the (c // Q)-th of the other
  categories if c < (K - 1) Q, and else x. So exactly Q of 2^32 coins give
  each other category, and `lie_coins` bounds the ratio of any two contents;
  a mixture over x keeps to it. It is epsilon-DP for a cell that changes from
  anything to anything, for a server that sees all answers. A client answers
  once and keeps the answer: a second one costs epsilon again.
  """
  words = jax.random.bits(key, (2, *profile.shape), 'uint32')
  raised = words[0] < response.up[profile]
  category = response.lower[profile].astype(jnp.int32) + raised
  # Compared before it is cut to int32, which holds half of the coins.
  place = words[1] // response.lie
  lies = place < (response.categories - 1).astype(jnp.uint32)
  place = jnp.where(lies, place, 0).astype(jnp.int32)
  other = place + (place >= category)
  return jnp.where(lies, other, category).astype(jnp.uint8)


def estimates(
  levels: Sequence[float], lie: int, *, center: float, spacing: float
) -> Estimates:
  """What an answer says of a cell, counted from `center` in steps of `spacing`.

  With q = Q / 2^32 and d = 1 - K q, an indicator of category v has the mean
  q + d [x = v], so that (1[y = v] - q) / d is unbiased for [x = v], and so is
  every sum of these.
  """
  categories = len(levels) + 1
  q = lie / COINS
  gain = (COINS - categories * lie) / COINS
  if gain <= 0:
    raise ValueError(f'lie={lie} coins of {categories} categories tell nothing')
  chance = np.full(categories, q)
  chance[0] = 1 - (categories - 1) * q

  def table(values: np.ndarray) -> tuple[jax.Array, jax.Array]:
    by_answer = (values - q * values.sum()) / gain
    padded = np.zeros(MAX_LEVELS + 1)
    padded[:categories] = by_answer
    variance = chance @ np.square(by_answer)
    return jnp.asarray(padded, jnp.float32), jnp.float32(variance)

  rated = np.concatenate([[0.0], np.ones(len(levels))])
  shifted = np.concatenate([[0.0], (np.asarray(levels) - center) / spacing])
  rated, rated_variance = table(rated)
  total, total_variance = table(shifted)
  return Estimates(rated, total, rated_variance, total_variance)


def codes(value: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
  """Ratings as uint8 cells 1 .. GRID + 1; beyond the scale, its end."""
  steps = jnp.clip(jnp.round((value - low) / (high - low) * GRID), 0, GRID)
  return jnp.where(jnp.isnan(steps), 0, steps + 1).astype(jnp.uint8)


def profiles(
  rows: Rows, num_items: int, low: jax.Array, high: jax.Array
) -> jax.Array:
  """The cells [U, I] uint8 of all users: what clients have, in a simulation."""
  used = jnp.arange(rows.column.shape[-1])[None, None] < rows.length[..., None]
  row = jnp.broadcast_to(rows.row[..., None], rows.column.shape)
  # Padding goes beyond the last item, where it is dropped.
  column = jnp.where(used, rows.column, num_items)
  empty = jnp.zeros((rows.num_rows, num_items), jnp.uint8)
  return empty.at[row, column].set(codes(rows.value, low, high), mode='drop')


def all_answers(
  key: jax.Array,
  data: Data,
  response: Response,
  low: jax.Array,
  high: jax.Array,
) -> jax.Array:
  """The answers [U, I] uint8 of all clients, in a simulation.

  Privacy: ratings are read by `profiles` on behalf of each client, and go
  through `answers`, with a key for each client, once.
  """
  num_users, num_items = data.by_user.num_rows, data.by_item.num_rows
  cells = profiles(data.by_user, num_items, low, high)

  def answered(client):
    user, profile = client
    return answers(jax.random.fold_in(key, user), profile, response)

  return jax.lax.map(
    answered,
    (jnp.arange(num_users), cells),
    batch_size=min(_CLIENTS, num_users),
  )
