"""What steps would take on accelerators: projected, nothing is measured there.

  python -m benchmarks.projection

For one step of some systems it prints the floating-point operations and the
bytes moved that XLA counts (`cost_analysis` of the step, compiled for a CPU
with the layout of an accelerator), and how long they take at bandwidths that
are assumed. Shapes are enough for that: there are no ratings.

Bodies of loops count as often as they run (`costs.py`). Not counted:
eigenvalues of matrices [D, D], and all rounds but one of the random generator.
At the end a step on this CPU stands beside its counts, and counts by hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags

from benchmarks.costs import Cost, Counter
from dpmf_jax.accounting.rounding import least_shift
from dpmf_jax.commands import cli
from dpmf_jax.plans import SPECS
from dpmf_jax.plans.settings import settings_of
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import (
  SLOTS,
  Data,
  Rows,
  Side,
  chunk_slices,
  training_data,
)
from dpmf_jax.systems import build
from dpmf_jax.training import fit, in_float32
from dpmf_jax.types import System

_SYSTEMS = flags.DEFINE_list(
  'systems', ['power_mf', 'dpals', 'ranking_mf', 'gaussian_mf'], 'Which.'
)
_RANK = flags.DEFINE_integer('rank', 16, 'Of all systems.', 1)
_CHECK = flags.DEFINE_bool(
  'check',
  True,
  'Whether to run gaussian_mf on this CPU beside what is counted.',
)

# Items with factors, of ranking_mf, whose numbers are a million at most.
_KEPT = 65_000

# Assumed, not measured.
LAUNCHES = 50e-6  # seconds for a round of a loop: ten kernels of 5 us


class Case(NamedTuple):
  """A number of ratings on some hardware, of which bandwidths are assumed."""

  name: str
  users: int
  items: int
  ratings: int
  devices: int
  hosts: int
  memory: float  # bytes a second, of a device
  network: float | None  # the same between hosts, or chips; of each


SMALL = 138_000, 27_000, 20_000_000
# More users would be too many for sums of `lattice_bits`.
LARGE = 16_000_000, 1_000_000, 10_000_000_000
CASES = (
  Case('20M, a GPU of 1.5 TB/s', *SMALL, 1, 1, 1.5e12, None),
  Case('20M, a GPU of 2 TB/s', *SMALL, 1, 1, 2e12, None),
  Case('20M, 16 TPU chips of 0.8 TB/s', *SMALL, 16, 16, 0.8e12, 50e9),
  Case('10B, 64 hosts of 8 GPUs of 2 TB/s', *LARGE, 512, 64, 2e12, 50e9),
)


def main(argv: Sequence[str]) -> int:
  del argv
  print('Projected from counts of XLA and assumed bandwidths; not measured.\n')
  heading = 'system', 'GFlop', 'GB', 'rounds', 'MB of sums', 'ms', 'ms, sums'
  counted: dict[Any, Cost] = {}
  for case in CASES:
    print(f'{case.name} ({case.users:,} users, {case.items:,} items):')
    print(''.join(f'{word:>12}' for word in heading))
    for name in _SYSTEMS.value:
      shape = case[1:5]
      try:
        if (name, shape) not in counted:
          counted[name, shape] = step_cost(name, shape)
      except ValueError as error:
        print(f'{name:>12} is refused: {error}', flush=True)
        continue
      found = counted[name, shape]
      seconds = found.bytes / case.memory + LAUNCHES * found.rounds
      # A ring sends and receives all sums twice, but for one part in `hosts`.
      sent = 2 * (1 - 1 / case.hosts) * found.sums
      figures = (
        f'{found.flops / 1e9:.1f}',
        f'{found.bytes / 1e9:.2f}',
        f'{found.rounds:.0f}',
        f'{found.sums / 1e6:.0f}',
        f'{1e3 * seconds:.1f}',
        f'{1e3 * sent / case.network:.1f}' if case.network else '-',
      )
      print(''.join(f'{word:>12}' for word in (name, *figures)), flush=True)
    print()
  if _CHECK.value:
    check()
  return 0


def system_of(name: str, shape: tuple[int, ...]) -> System:
  users, items = shape[:2]
  longest = max(users, items)
  # As fine as sums of so many can be; ranking_mf leaves a bit for noise.
  bits = 30 - (name == 'ranking_mf') - (longest - 1).bit_length()
  given = {
    'scale': (1.0, 5.0),
    'epsilon': 1.0,
    'delta': 1e-6,
    'rank': _RANK.value,
    'lattice_bits': min(bits, 14),
    'shift': least_shift(longest, SLOTS),
  }
  if items > _KEPT:
    given['kept_items'] = _KEPT
  entry = SPECS[name]
  known = {each.name for each in settings_of(entry.config)}
  given = {k: v for k, v in given.items() if k in known}
  return build(name, entry.config(**entry.variants['sound'], **given))


def shapes_of(shape: tuple[int, ...], part: int = 1) -> Data:
  """The data of a device, without ratings; each row ends in half a slice.

  Of several devices each has its own users and their ratings, and all items;
  that `power_mf` sees 65,536 users on each is left out. Chunks are a `part` of
  what they would be.
  """
  users, items, ratings, devices = shape
  users = -(-users // devices)

  def side(num_rows: int, num_columns: int, ends: int, name: Side) -> Rows:
    slices = chunk_slices('gpu', num_rows, num_columns)
    used = ratings // devices // SLOTS + ends
    chunks = max(-(-used // slices), 2)
    array = lambda dtype, *more: jax.ShapeDtypeStruct(
      (chunks, slices // part, *more), dtype
    )
    return Rows(
      array(jnp.int32, SLOTS),
      array(jnp.float32, SLOTS),
      array(jnp.int32),
      array(jnp.int32),
      num_rows,
      num_columns,
      name,
      (1.0, 5.0),
    )

  return Data(
    side(users, items, users // 2, 'user'),
    side(items, users, items // 2, 'item'),
  )


def step_cost(name: str, shape: tuple[int, ...]) -> Cost:
  """Of one step on one device."""
  system, key = system_of(name, shape), jax.random.key(0)
  whole, half = shapes_of(shape), shapes_of(shape, 2)

  def step(words, state, data):
    return system.step(jax.random.wrap_key_data(words), state, data)

  def jaxpr_of(data):
    state = jax.jit(system.init).eval_shape(key, data)
    return jax.make_jaxpr(step)(jax.random.key_data(key), state, data)

  with in_float32():
    chunks = [len(rows.row) for rows in whole]
    counter = Counter(chunks, at_home=whole.by_user.num_rows)
    return counter.cost(jaxpr_of(whole), jaxpr_of(half))


def check() -> None:
  """Beside what is counted of gaussian_mf, by hand and on this CPU."""
  shape = 6_000, 3_700, 1_000_000, 1
  users, items, ratings, _ = shape
  for each in (SMALL + (1,), shape):
    cost = step_cost('gaussian_mf', each)
    width = -(-_RANK.value // 8) * 8
    slots = sum(rows.column.size for rows in shapes_of(each))
    flops = slots * 4 * width
    # A slot gathers a row: read and written; two products read it again. Its
    # rating, its column and its error, written and read, are numbers.
    moved = slots * (4 * 4 * width + 4 * 4)
    print(f'gaussian_mf, {each[2]:,} ratings, rank {_RANK.value}:')
    print(f'  {cost.flops / 1e9:.3f} GFlop, by hand {flops / 1e9:.3f}')
    print(f'  {cost.bytes / 1e9:.3f} GB, by hand {moved / 1e9:.3f}')
  made = synthetic(
    num_users=users, num_items=items, num_ratings=ratings, seed=0
  )
  data = training_data(made)
  system = system_of('gaussian_mf', shape)._replace(steps=4)
  run = lambda: jax.block_until_ready(fit(system, jax.random.key(0), data))
  run()
  began, processor = time.monotonic(), time.process_time()
  run()
  clock = (time.monotonic() - began) / system.steps
  busy = (time.process_time() - processor) / system.steps
  print(
    f'  a step took {1e3 * clock:.1f} ms on this CPU, {1e3 * busy:.1f} of the '
    f'processor: {cost.bytes / busy / 1e9:.1f} GB/s'
  )


if __name__ == '__main__':
  cli.run(main)
