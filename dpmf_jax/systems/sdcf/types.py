"""What clients and the server of SDCF keep and send; see `sdcf`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from dpmf_jax.systems.sdcf import sgld
from dpmf_jax.systems.sdcf.client_blocks import Blocks
from dpmf_jax.types import Factors


class Memory(NamedTuple):
  """What one client keeps between rounds, besides factors and ratings.

  The permanent bits are kept, not drawn again from a kept key: that takes an
  eighth of a byte per item, saves a draw for each in every round, and a
  client that keeps them cannot draw others by mistake.

  Attributes:
    bits: [ceil(I/8)] uint8, the permanent bits B', packed.
    unrated, rated: p and q as `response.Coins`.
    converged: whether its factors hardly moved when it last took part.
    unsent: items that its last message had no room for.
    active: false without any rating; such a client never takes part.
  """

  bits: jax.Array
  unrated: jax.Array
  rated: jax.Array
  converged: jax.Array
  unsent: jax.Array
  active: jax.Array


class Client(NamedTuple):
  """What stays with one client."""

  factors: jax.Array  # [W]
  memory: Memory
  features: Any = None  # [F] where a system has any


class Contribution(NamedTuple):
  """What a client tells in a round, laid out by item and before noise.

  Attributes:
    error: [I], by which gradients are scaled; 0 where nothing is sent.
    sent: [I] bool.
    vector: [W], what errors are multiplied by in the gradients of items.
    shared: a `Summed` of what only this client can sum, or None.
  """

  error: jax.Array
  sent: jax.Array
  vector: jax.Array
  shared: Any = None


class Upload(NamedTuple):
  """What one client sends in a round: neither ratings nor its factors.

  Attributes:
    item: [M] int32, ascending; I in slots that are not used.
    gradient: [M, W] of each of these items.
    converged: bool, whether its own factors hardly move any more.
    shared: a `Summed` of what is public and of no single item, or None.
  """

  item: jax.Array
  gradient: jax.Array
  converged: jax.Array
  shared: Any = None


class Summed(NamedTuple):
  """Gradients of a tree of arrays, and how many of them were summed."""

  gradient: Any
  received: Any  # float32, without the last axis of the gradient


class Total(NamedTuple):
  """The reports of a round, summed: all that the server needs of them.

  Before noise, `gradient` is the sum of error times vector, and `shared` that
  of `Contribution.shared`.
  """

  gradient: Any  # [I, W]
  received: Any  # [I] gradients received for each item, float32
  shared: Any = None


class Server(NamedTuple):
  """What is public, as the server keeps it."""

  item: jax.Array  # [I, W]
  optimizer: Any  # of optax
  round: jax.Array  # int32, rounds done
  stopped: jax.Array  # int32, the round after which it stopped; 0 while going
  shared: Any = None


class State(NamedTuple):
  factors: Factors
  memory: Memory  # of all clients, [U, ...]
  optimizer: Any  # of optax
  round: jax.Array  # int32, rounds done
  stopped: jax.Array  # int32, the round after which it stopped, or 0
  unsolved: jax.Array  # int32, clients with clipped p and q
  sent: jax.Array  # gradients that the server got in the last round
  blocks: Blocks
  hyper: Any  # `traced`
  shared: Any  # what is public and of no single item
  features: Any  # Factors of [U, F] and [I, G]


class OpenState(NamedTuple):
  """The state of a system without privacy; fields as in `State`."""

  factors: Factors
  optimizer: Any
  round: jax.Array
  blocks: Blocks
  hyper: Any
  shared: Any
  features: Any


class Public(NamedTuple):
  """What the server tells every client in a round."""

  item: jax.Array  # [I, W]
  step_size: jax.Array  # eta_t
  langevin: sgld.Langevin
  epsilon_value: jax.Array
  tolerance: jax.Array
  side: Any = None
  shared: Any = None
  features: Any = None  # [I, G]
