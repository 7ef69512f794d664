"""A sum of clipped rows with Gaussian noise, of any model's gradients."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmf_jax.accounting import tails
from dpmf_jax.accounting.events import (
  Gaussian,
  checked_multiplier,
  checked_positive,
)
from dpmf_jax.accounting.rounding import MAX_STD
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.mechanisms.clipping import SLACK, clip_rows
from dpmf_jax.mechanisms.noise import gaussian_noise
from dpmf_jax.types import Relation

# Up to so many numbers in a row `clipping.slack` is known to cover its norm.
_MAX_SIZE = 100_000
# Rounded numbers are at most 2^20 in size, which float32 rounds well.
_MAX_BITS = 20


@dataclasses.dataclass(frozen=True)
class Noisy:
  """What may be released, and what the accountant needs to know of it.

  A pytree whose only leaves are those of `value`: the rest is static, so that
  it comes out of jit and vmap as it is.

  Attributes:
    value: with noise.
    event: of this one release; several are
      `accounting.compose(first.event, second.event, ...)`.
    sensitivity: how far a record moves what noise was added to, in L2 norm.
  """

  value: Any
  event: Gaussian
  sensitivity: float


jax.tree_util.register_dataclass(
  Noisy, data_fields=['value'], meta_fields=['event', 'sensitivity']
)


def noisy_sum(
  key: jax.Array,
  rows: Any,
  *,
  norm: float,
  noise_multiplier: float,
  relation: Relation,
) -> Noisy:
  """The sum over the first axis of `rows`, each clipped to `norm`, with noise.

  Args:
    key: used for this once and never again.
    rows: a tree of [N, ...], a row for each record, such as the gradients of
      `jax.vmap(jax.grad(loss), ...)`. A record is what is protected: a rating,
      or a user with all that they add. One that is not there, or not sampled,
      is a row of zeros; N is public. Row n may depend on record n and on what
      is public or was released, and on no other record.
    norm: of a row, all leaves together; a Python number, as are all settings.
    noise_multiplier: noise over sensitivity.
    relation: 'add_remove', or 'replace' for twice the sensitivity.

  Privacy: sensitivity is `norm` where a record is there or not, and 2 `norm`
  where it changes to another. For a row is shortened to at most 2^b (1 - 1e-5)
  - sqrt(D)/2 units of norm / 2^b, and then rounded, which adds sqrt(D)/2 to the
  norm of D numbers at most: all rows are of integers, of norm 2^b (1 - 1e-5) at
  most, and a row depends on its record alone. A row that is not finite is
  zeros. With N 2^b <= 2^30 their sum is exact in int32, in whatever order, so
  that nothing but the record's own row can move it. `gaussian_noise` adds the
  noise: this is the Gaussian mechanism, with `event` for one release of it.

  >>> gradients = {'w': jnp.array([[3.0, 4.0], [0.3, 0.0]]), 'b': jnp.zeros(2)}
  >>> total = noisy_sum(jax.random.key(0), gradients, norm=1.0,
  ...                   noise_multiplier=0.5, relation='add_remove')
  >>> print(np.round(total.value['w'], 2), total.sensitivity)
  [1.16 0.88] 1.0
  """
  norm = checked_positive('norm', norm)
  multiplier = checked_multiplier(noise_multiplier)
  if relation not in ('add_remove', 'replace'):
    raise ValueError(f"{relation=} must be 'add_remove' or 'replace'")
  sensitivity = norm if relation == 'add_remove' else 2 * norm
  flat, restored = _flat(rows)
  bits = _bits(*flat.shape, noise=multiplier * sensitivity / norm)
  size = flat.shape[1]
  return Noisy(
    restored(
      gaussian_noise(
        key,
        integer_rows(flat, norm, bits).sum(axis=0, dtype=jnp.int32),
        multiplier * sensitivity,
        spacing=_unit(norm, bits),
      )
    ),
    Gaussian(
      multiplier,
      1,
      min(
        tails.uncovered(multiplier, size),
        tails.uncovered_jointly(multiplier, size),
      ),
    ),
    sensitivity,
  )


def integer_rows(rows: jax.Array, norm: float, bits: int) -> jax.Array:
  """`rows` [N, D] in units of norm / 2^bits, of norm 2^bits at most, int32."""
  room = 2.0**bits * (1 - SLACK) - rows.shape[1] ** 0.5 / 2
  return jnp.round(clip_rows(rows / _unit(norm, bits), room)).astype(jnp.int32)


def _unit(norm: float, bits: int) -> float:
  return float(np.float32(norm)) * 2.0**-bits


def _bits(records: int, size: int, *, noise: float) -> int:
  """As many as there is room for, in a sum of `records` and in its noise."""
  bits = min(
    _MAX_BITS,
    30 - (records - 1).bit_length(),
    math.floor(math.log2(MAX_STD / (noise * ROUNDED_UP))),
  )
  # Rounding may then take up to half of the norm, and mostly a thousandth.
  most = 4.0**bits if bits > 0 else 0.0
  if size > min(most, _MAX_SIZE):
    raise ValueError(
      f'rows are {records} of {size} numbers with noise of {noise:.3g} times '
      f'their norm, but int32 sums of so many hold {min(most, _MAX_SIZE):.0f}: '
      'sum fewer rows or numbers at a time, or use a larger epsilon'
    )
  return bits


def _flat(rows: Any) -> tuple[jax.Array, Any]:
  """[N, D], and what turns [D] into the tree of a sum."""
  leaves, structure = jax.tree.flatten(rows)
  lengths = {jnp.shape(leaf)[:1] for leaf in leaves}
  if len(lengths) != 1 or lengths == {()}:
    raise ValueError(
      'rows must be a tree of [N, ...] with one N, got shapes '
      f'{[jnp.shape(leaf) for leaf in leaves]}'
    )
  ((length,),) = lengths
  # Not -1, which is no number where there are no rows.
  sizes = [math.prod(jnp.shape(leaf)[1:]) for leaf in leaves]
  parts = [
    jnp.asarray(leaf, jnp.float32).reshape(length, size)
    for leaf, size in zip(leaves, sizes, strict=True)
  ]
  ends = np.cumsum(sizes)[:-1]

  def restored(total: jax.Array) -> Any:
    split = jnp.split(total, ends)
    shapes = (jnp.shape(leaf)[1:] for leaf in leaves)
    return structure.unflatten(map(jnp.reshape, split, shapes))

  return jnp.concatenate(parts, axis=1), restored
