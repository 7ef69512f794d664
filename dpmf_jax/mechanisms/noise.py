"""Noise with an explicit key and an explicit scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from dpmf_jax.accounting.events import checked_positive
from dpmf_jax.accounting.rounding import (
  DITHER_BITS,
  MAX_STD,
  dither_bits,
  rounded_up,
)
from dpmf_jax.accounting.sensitivity import ROUNDED_UP
from dpmf_jax.homes import trimmed
from dpmf_jax.rows import AXIS, own_rows

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_BLOCKS = 16
# Fewer draws than this come in one block: keys would cost more than draws.
_FEW = 2**11
# Four of uint32, of one shape.
Words = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
# Draws that a device makes at a time for its own rows: what they take beside
# themselves stays in a core's cache.
_AT_ONCE = 2**13


class Draws(NamedTuple):
  """Independent draws, of N(0, 1) or as is said, and uniform integers."""

  value: jax.Array  # float32
  uniform: jax.Array  # int32 in 0 .. 2^DITHER_BITS - 1


def draws(
  key: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  mesh: Mesh | None = None,
  *,
  spread: Sequence[bool] = (),
) -> list[Draws]:
  """Draws for each of `shapes`, from 64 random bits each.

  Box-Muller: the radius of a pair comes from two 32-bit words and its angle
  from a third, so that radii have no gaps up to `tails.REACH` and end at 9.5.
  JAX's own `normal` takes one of 2^23 values, which leaves gaps in its tails
  that are wider than the lattice that noise is rounded to; with 32 bits for the
  radius its 20 largest values would still be that far apart. With a mesh
  every device makes its share of the draws; the values do not depend on it.

  `spread` says for each of `shapes`, if any, that its rows are drawn on the
  devices that have them and stay there (`homes`).
  """
  sizes = [math.prod(shape) for shape in shapes]
  # Each of 16 blocks has a key of its own, so that devices share the work and
  # the values do not depend on how many there are.
  num_blocks = 1 if sum(sizes) < _FEW else _BLOCKS
  size = -(-sum(sizes) // (2 * num_blocks))
  counters = jnp.arange(4 * size, dtype=jnp.uint32).reshape(4, size)
  hashed = jax.vmap(lambda key: _words(key, *counters))
  draw = lambda keys: _pairs(hashed(keys))
  # The type is said, because the default is uint64 where x64 is enabled.
  keys = jax.random.bits(unrolled(key), (num_blocks, 2), 'uint32')
  if any(spread) and mesh is not None:
    return _draws_at_home(keys, size, shapes, mesh, spread)
  if mesh is None or num_blocks % mesh.size:
    blocks = draw(keys)
  else:
    blocks = jax.shard_map(
      draw,
      mesh=mesh,
      in_specs=Spec(AXIS),
      out_specs=Spec(AXIS),
      check_vma=False,
    )(keys)
    blocks = jax.lax.with_sharding_constraint(
      blocks, NamedSharding(mesh, Spec())
    )
  flat = Draws(*(part.reshape(-1) for part in blocks))
  ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
  return [
    Draws(*(part[end - size : end].reshape(shape) for part in flat))
    for shape, size, end in zip(shapes, sizes, ends, strict=True)
  ]


def _draws_at_home(
  keys: jax.Array,
  size: int,
  shapes: Sequence[tuple[int, ...]],
  mesh: Mesh,
  spread: Sequence[bool],
) -> list[Draws]:
  """`draws` with some shapes spread by rows, the others everywhere.

  A device makes the draws of a range of places, each from its own counters:
  twice the work of pairs, of which both draws are used in `draws`.
  """

  def at(keys: jax.Array, place: jax.Array) -> Draws:
    block, rest = place // np.uint32(2 * size), place % np.uint32(2 * size)
    second, number = rest // np.uint32(size), rest % np.uint32(size)
    own = keys[jnp.minimum(block, len(keys) - 1)]
    counters = (number + np.uint32(part * size) for part in range(4))
    words = _words((own[:, 0], own[:, 1]), *counters)
    pairs = jax.lax.optimization_barrier(_pairs(words))
    return Draws(*(jnp.where(second, pair[1], pair[0]) for pair in pairs))

  def shared(keys: jax.Array, start: int, part: int) -> Draws:
    first = jax.lax.axis_index(AXIS).astype(jnp.uint32) * np.uint32(part)
    some = min(part, _AT_ONCE)
    places = jnp.arange(-(-part // some), dtype=jnp.uint32) * np.uint32(some)
    more = jnp.arange(some, dtype=jnp.uint32) + np.uint32(start)
    found = jax.lax.map(lambda place: at(keys, first + place + more), places)
    return Draws(*(draws.reshape(-1)[:part] for draws in found))

  sizes = [math.prod(shape) for shape in shapes]
  parts = [
    own_rows(rows, mesh) * math.prod(row)
    if own
    else -(-(rows * math.prod(row)) // mesh.size)
    for (rows, *row), own in zip(shapes, spread, strict=True)
  ]
  starts = [sum(sizes[:place]) for place in range(len(sizes))]
  if max(map(sum, zip(starts, parts, strict=True))) * mesh.size >= 2**32:
    raise ValueError(
      f'{sum(sizes)} draws of a step are too many for tables that are spread: '
      'at most 2^32'
    )
  found = [
    jax.shard_map(
      lambda keys, start=start, part=part: shared(keys, start, part),
      mesh=mesh,
      in_specs=Spec(),
      out_specs=Spec(AXIS),
      check_vma=False,
    )(keys)
    for start, part in zip(starts, parts, strict=True)
  ]
  everywhere = NamedSharding(mesh, Spec())

  def placed(part: jax.Array, shape: tuple[int, ...], own: bool) -> jax.Array:
    if own:
      return trimmed(part.reshape(-1, *shape[1:]), shape[0], mesh)
    part = jax.lax.with_sharding_constraint(part, everywhere)
    return part[: math.prod(shape)].reshape(shape)

  return [
    Draws(*(placed(part, shape, own) for part in draws))
    for draws, shape, own in zip(found, shapes, spread, strict=True)
  ]


def coarse_normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """N(0, 1) draws in float32 from 32 random bits each, ends at 6.7.

  In half the time of `draws`, of `jax.random.normal` too.

  Privacy: for noise that no proof rests on, such as that of a sampler; see
  `draws` for what such draws give away.
  """
  size = math.prod(shape)
  half = -(-size // 2)
  high, turn = words(key, 2 * half).reshape(2, half)
  zeros = jnp.zeros_like(high)
  drawn = _pairs((high, turn, zeros, zeros)).value
  return drawn.reshape(-1)[:size].reshape(shape)


def words(key: jax.Array, size: int) -> jax.Array:
  """Random uint32 words [size], in a third of the time of `random.bits`."""
  even = size + size % 2
  # The type is said, because the default is uint64 where x64 is enabled.
  return _hashed(jax.random.bits(unrolled(key), (2,), 'uint32'), even)[:size]


def unrolled(key: jax.Array) -> jax.Array:
  """A key of which `jax.random` draws what it would of `key`, to be used once.

  Programs that draw of it take .2 to .5 s less to compile: on a CPU JAX runs
  the rounds of the hash as a loop of ten kernels.
  """
  options: Any = jax.config
  hashed = jax.random.key_impl(key) == 'threefry2x32'
  if not (hashed and options.jax_threefry_partitionable):
    return key
  jax.random.bits(key, (0,))  # tells JAX's checker that the key is used
  return jax.random.wrap_key_data(jax.random.key_data(key), impl=_UNROLLED)


def _random_bits(key: jax.Array, width: int, shape: Sequence[int]) -> jax.Array:
  """What JAX's own hash gives for `shape`, which it counts in 64 bits."""
  if width != 32 or (size := math.prod(shape)) > 2**32:
    return _THREEFRY.random_bits(key, width, shape)
  counters = jnp.arange(size, dtype=jnp.uint32)
  x, y = _mixed(key, jnp.zeros_like(counters), counters)
  return jax.lax.optimization_barrier(x ^ y).reshape(shape)


_THREEFRY = jax.extend.random.threefry_prng_impl
_UNROLLED = jax.extend.random.define_prng_impl(
  key_shape=(2,),
  seed=_THREEFRY.seed,
  split=_THREEFRY.split,
  random_bits=_random_bits,
  fold_in=_THREEFRY.fold_in,
  name='threefry2x32_unrolled',
  tag='fryu',
)


def _hashed(key: jax.Array, size: int) -> jax.Array:
  """Random uint32 words [size], an even number, from a key of two words.

  Those of `jax.extend.random.threefry_2x32(key, arange(size))`, in half the
  time, since JAX runs its rounds as a loop on a CPU. `jax.random.bits` uses
  the same hash, but one word of the two that it gives.

  Reference: Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3.
  """
  counters = jnp.arange(size, dtype=jnp.uint32)
  x, y = _mixed(key, counters[: size // 2], counters[size // 2 :])
  # The barrier keeps XLA from hashing again wherever a word is used.
  return jax.lax.optimization_barrier(jnp.concatenate([x, y]))


def _words(key: Any, *counters: jax.Array) -> Words:
  """Four random words [n] from four counters [n], hashed in pairs."""
  first, third = _mixed(key, *counters[::2])
  second, fourth = _mixed(key, *counters[1::2])
  return jax.lax.platform_dependent(
    first,
    second,
    third,
    fourth,
    cpu=_in_one_array,
    default=lambda *words: words,
  )


def _in_one_array(*words: jax.Array) -> Words:
  """`words`, as they are, through an array that has all of them.

  On a CPU XLA makes one kernel for each array, which would hash once for one
  word of a pair and again for the other. Complex numbers have both. Nothing is
  computed with them, so that bits of NaN or tiny numbers stay; whether other
  platforms copy them as they are is not known.
  """
  parts = [jax.lax.bitcast_convert_type(word, jnp.float32) for word in words]
  both = jnp.stack(
    [jax.lax.complex(*parts[::2]), jax.lax.complex(*parts[1::2])]
  )
  (first, second), (third, fourth) = (
    jax.lax.bitcast_convert_type(part, jnp.uint32)
    for part in (both.real, both.imag)
  )
  return first, second, third, fourth


def _mixed(key: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The hash of counters x and y under a key of two words."""
  first, second = key
  keys = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
  x, y = x + first, y + second
  for turn in range(5):
    for bits in _ROTATIONS[turn % 2]:
      x = x + y
      y = x ^ (y << bits | y >> (32 - bits))
    x = x + keys[(turn + 1) % 3]
    y = y + keys[(turn + 2) % 3] + np.uint32(turn + 1)
  return x, y


def _pairs(words: Words) -> Draws:
  """Draws [..., 2, n] from four uint32 words [..., n].

  Not under vmap, in which stacks are made in another order and then copied.
  """
  high, turn, uniforms, last = words
  low = (last.astype(jnp.float32) + 0.5) * 2.0**-64
  uniform = high.astype(jnp.float32) * 2.0**-32 + low  # (0, 1]
  radius = jnp.sqrt(-2.0 * jnp.log(uniform))
  # The angle is a quarter turn, from the two highest bits, and -1/8 to 1/8 of
  # a turn from the others, where short polynomials (Cephes) do: jnp.sin and
  # jnp.cos took more than half of the time of all draws on a CPU.
  part = jax.lax.bitcast_convert_type(turn << 2, jnp.int32)
  x = part.astype(jnp.float32) * (math.pi * 2.0**-33)
  z = x * x
  sin = ((-1.9515296e-4 * z + 8.3321609e-3) * z - 1.6666655e-1) * z * x + x
  cos = (2.4433157e-5 * z - 1.3887316e-3) * z + 4.1666646e-2
  cos = cos * z * z - 0.5 * z + 1.0
  radius = jnp.where(turn >> 31, -radius, radius)
  aside = (turn >> 30) & 1
  first = radius * jnp.where(aside, -sin, cos)
  second = radius * jnp.where(aside, cos, sin)
  halves = jnp.stack([uniforms >> DITHER_BITS, uniforms & 0xFFFF], axis=-2)
  return Draws(jnp.stack([first, second], axis=-2), halves.astype(jnp.int32))


class LatticeNoise(NamedTuple):
  """Noise for integers that count multiples of `spacing`.

  `lattice_noise` makes it, so that none is too large for int32, rounded down
  or without the dither that it needs.

  Attributes:
    std: standard deviation, or the scale of noise that is not Gaussian;
      float32, of a shape that is broadcast to that of the counts.
    spacing: [] of the lattice.
    dither: [] int32, bits.
  """

  std: jax.Array
  spacing: jax.Array
  dither: jax.Array

  def add(self, counts: jax.Array, draws: Draws) -> jax.Array:
    """`counts` * spacing with noise, all in multiples of `spacing`.

    Args:
      counts: integers, at most 2^30 in size.
      draws: of the shape of `counts`.

    Privacy: round(count + z) = count + round(z) for integer counts, so this
    post-processes the Gaussian mechanism on counts * spacing. With
    std = m * (L2 sensitivity of counts * spacing) its noise multiplier is m.
    The integer sum is exact, and turning it into a float is post-processing.
    So is the dither, a uniform integer of up to 2^-6 of the noise: it is there
    because a float32 z / spacing has a grid of its own, which alone would give
    the low bits of the count away. What is left of floating point is the end of
    the tails, which `accounting.tails` bounds, and the generator. A draw that
    is not finite gives NaN, never the count.
    """
    noise = draws.value * (self.std / self.spacing)
    steps = jnp.round(noise).astype(jnp.int32)
    half = (jnp.int32(1) << self.dither) >> 1
    dither = (draws.uniform >> (DITHER_BITS - self.dither)) - half
    total = (counts + steps + dither).astype(jnp.float32) * self.spacing
    return jnp.where(jnp.isfinite(noise), total, jnp.nan)


def lattice_noise(
  std: float | np.ndarray, spacing: float, *, limit: str
) -> LatticeNoise:
  """The noise of that size on a lattice, checked, with its dither.

  Args:
    std: one number, or several that share a dither.
    spacing: of the lattice.
    limit: the setting that makes the lattice, and what to do, for the error.
  """
  largest = float(np.max(std))
  # Below that float32 has few digits, or none.
  least = float(np.finfo(np.float32).tiny)
  if not (np.min(std) >= least and spacing >= least):
    raise ValueError(
      f'noise of {std!r} on {spacing!r} must be positive, both at least '
      f'{least:.3g}, for float32'
    )
  if largest > MAX_STD * spacing:
    raise ValueError(f'noise of {largest:.3g} is too large for {limit}')
  return LatticeNoise(
    jnp.asarray(rounded_up(std)),
    jnp.float32(spacing),
    jnp.int32(dither_bits(largest, spacing)),
  )


# Operation by operation they take seconds the first time.
_draws = jax.jit(draws, static_argnums=1)


def gaussian_noise(
  key: jax.Array, tree: Any, std: float, *, spacing: float = 1.0
) -> Any:
  """`tree` of integers, times `spacing`, with noise N(0, std^2) on each number.

  Args:
    key: used for this once and never again.
    tree: of int32, or of smaller integers, at most 2^30 in size: exact counts,
      or exact sums of what was rounded to multiples of `spacing`. Floats are
      refused: their own rounding would tell of them.
    std: of the noise, a Python number; at most 2^22 times `spacing`.
    spacing: what an integer counts.

  Returns:
    float32, multiples of `spacing`.

  Privacy: the Gaussian mechanism with multiplier m = std / sensitivity, the
  latter the largest L2 norm by which a record moves all the numbers, times
  `spacing`: `accounting.Gaussian(m, 1, tails.uncovered(m, n))` where a record
  moves n of them. See `LatticeNoise.add`; noise is a millionth larger.

  >>> counts = {'men': jnp.array([12, 7]), 'women': jnp.array([9, 14])}
  >>> noisy = gaussian_noise(jax.random.key(0), counts, std=2.0)
  >>> noisy['men'].tolist(), noisy['women'].tolist()
  ([11.0, 8.0], [9.0, 14.0])
  """
  std = checked_positive('std', std)
  return with_noise(tree, std, spacing, lambda shapes: _draws(key, shapes))


def with_noise(
  tree: Any,
  size: float,
  spacing: float,
  drawn: Callable[[tuple[tuple[int, ...], ...]], Sequence[Draws]],
) -> Any:
  """`tree` of integers times `spacing`, with `size` times what is `drawn`."""
  leaves, structure = jax.tree.flatten(tree)
  for leaf in leaves:
    if not np.can_cast(jnp.result_type(leaf), np.int32):
      raise TypeError(
        f'noise is private on integers alone, of at most 32 bits, but a leaf '
        f'is {jnp.result_type(leaf)}: sum what is rounded to a lattice '
        '(noisy_sum does), or use nonprivate_gaussian_noise'
      )
  spacing = checked_positive('spacing', spacing)
  leaves = [jnp.asarray(leaf, jnp.int32) for leaf in leaves]
  limit = f'{spacing=}: at most 2^22 of them; use a larger one'
  noise = lattice_noise(size * ROUNDED_UP, spacing, limit=limit)
  drawn_leaves = drawn(tuple(leaf.shape for leaf in leaves))
  return structure.unflatten(map(noise.add, leaves, drawn_leaves))


def nonprivate_gaussian_noise(key: jax.Array, tree: Any, std: Any) -> Any:
  """`tree` of floats with noise N(0, std^2) on each number; not private.

  Privacy: none is promised. The sums that it is added to are rounded by their
  other terms, and what float32 can be after noise tells what it was before.

  >>> noisy = nonprivate_gaussian_noise(jax.random.key(0), jnp.zeros(2), 1.0)
  >>> print(np.round(noisy, 2))
  [2.01 1.09]
  """
  leaves, structure = jax.tree.flatten(tree)
  drawn = _draws(key, tuple(jnp.shape(leaf) for leaf in leaves))
  noisy = [x + std * z.value for x, z in zip(leaves, drawn, strict=True)]
  return structure.unflatten(noisy)
