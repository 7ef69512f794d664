"""What users vote for: how freely they all fit what is released.

Whether vectors, and slopes on means and popularity, help depends on the data: a
user of few ratings is better off without. Each user says how likely their own
ratings are under some alternatives (`dpals_users.evidence`), in a term that is
as long as a small part of their others; all of these are summed and get noise.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.mechanisms.clipping import SLACK
from dpmf_jax.plans.dpals import NEVER

# Longest vote, in logarithms of odds.
_LONGEST = 2.0
# What earlier votes count after a sweep, since items change.
_MEMORY = 0.6
# What must speak against the first alternative, in standard deviations.
_DOUBT = 2.0


class Votes(NamedTuple):
  """Noisy sums of votes so far; released."""

  total: jax.Array  # [G] in logarithms of odds against the first
  variance: jax.Array  # [] of the noise of each


def start(alternatives: jax.Array) -> Votes:
  return Votes(jnp.zeros(len(alternatives)), jnp.zeros(()))


def terms(
  evidence: jax.Array,
  rated: jax.Array,
  *,
  bound: jax.Array,
  spacing: jax.Array,
) -> jax.Array:
  """Each user's votes, [U, G] int32 of `spacing`.

  Args:
    evidence: [U, G] for G alternatives.
    rated: [U] bool, who has ratings.
    bound: on the L2 norm of a user's votes.
    spacing: of the lattice.

  Privacy: a function of the user's own arguments, number by number. The norm is
  at most `bound`, also in float32; cutting towards zero makes it no larger.
  Votes that are not finite count as none, and a user without ratings has none.
  """
  odds = evidence - evidence[:, :1]
  norm = jnp.sqrt(_squares(odds))
  scale = bound * (1 - SLACK) / jnp.maximum(norm, _LONGEST)
  there = (jnp.isfinite(norm) & rated)[:, None]
  vote = jnp.where(there, odds * scale[:, None], 0.0)
  return (vote / spacing).astype(jnp.int32)


def _squares(odds: jax.Array) -> jax.Array:
  """Sums [U], one after the other: in another order bits may differ."""
  total = jnp.zeros(len(odds))
  for k in range(odds.shape[1]):
    total = total + odds[:, k] * odds[:, k]
  return total


def updated(
  votes: Votes, noisy: jax.Array, std: jax.Array, bound: jax.Array
) -> Votes:
  """Votes with those of a sweep, `noisy` [G] with noise `std`."""
  unit = _LONGEST / bound
  noisy = jnp.where(jnp.isfinite(noisy), noisy, 0.0)
  return Votes(
    _MEMORY * votes.total + noisy * unit,
    _MEMORY**2 * votes.variance + jnp.square(std * unit),
  )


def chosen(votes: Votes, alternatives: jax.Array) -> jax.Array:
  """The row of `alternatives` [G, 3] with most votes.

  Infinite where it is better not to use what the ridge is of.
  """
  doubt = _DOUBT * jnp.sqrt(votes.variance)
  best = jnp.argmax(votes.total.at[0].add(doubt))
  ridges = alternatives[best]
  return jnp.where(ridges == NEVER, jnp.inf, ridges)


def vectors_help(votes: Votes, alternatives: jax.Array) -> jax.Array:
  """Whether the best alternative with vectors is ahead of those without."""
  without = alternatives[:, 0] == NEVER
  most = lambda which: jnp.max(jnp.where(which, votes.total, -jnp.inf))
  return most(~without) > most(without)
