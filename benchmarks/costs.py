"""Operations and bytes of a program by XLA's count, all rounds of its loops.

XLA counts the body of a loop once. Here every loop is found in the jaxpr, its
body is counted alone, and what it costs is multiplied by its rounds. Of
alternatives (`cond`) that counts which has the largest sums over ratings, or
else the most operations. Not counted: calls of a library, such as eigenvalues,
and loops whose rounds are not in the jaxpr, such as those of the random
generator.

Of a loop over chunks XLA counts all of a table in each round, of which a few
rows are gathered. So its body is counted for chunks of half the size, too: what
does not grow with a chunk counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

# Compiles in seconds; constants of a million numbers are not worked out.
_QUICK = {
  'xla_backend_optimization_level': 0,
  'xla_disable_hlo_passes': 'constant_folding',
}


class Cost(NamedTuple):
  """Attributes:
  flops: floating-point operations.
  bytes: read and written.
  rounds: of loops over chunks.
  sums: bytes of what these loops sum up, which is added over all devices.
  """

  flops: float = 0.0
  bytes: float = 0.0
  rounds: float = 0.0
  sums: float = 0.0

  def plus(self, other: Cost, times: int = 1) -> Cost:
    pairs = zip(self, other, strict=True)
    return Cost(*(x + times * y for x, y in pairs))


class Counter:
  """Counts programs; each body of a loop is compiled once, for a CPU.

  Args:
    chunks: numbers of rounds by which loops over chunks are known.
    at_home: rows of the tables whose sums stay on their device.
  """

  def __init__(self, chunks: Sequence[int] = (), at_home: int = 0):
    self._chunks, self._at_home = frozenset(chunks), at_home
    # With the jaxprs, so that an id stays its own.
    self._known: dict[int, tuple[ClosedJaxpr, Cost]] = {}

  def cost(self, jaxpr: ClosedJaxpr, half: ClosedJaxpr | None = None) -> Cost:
    """Of a program; `half` is the same for chunks of half the size."""
    half = jaxpr if half is None else half
    return self._once(jaxpr, ()).plus(self._more(jaxpr.jaxpr, half.jaxpr))

  def _once(self, jaxpr: ClosedJaxpr, written: Sequence[int]) -> Cost:
    """What XLA counts; `written` are arguments that may be written to."""
    if id(jaxpr) not in self._known:
      given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jaxpr.in_avals]
      program = jax.jit(jaxpr_as_fun(jaxpr), donate_argnums=tuple(written))
      compiled = program.lower(*given).compile(compiler_options=_QUICK)
      found = compiled.cost_analysis() or {}
      cost = Cost(found.get('flops', 0.0), found.get('bytes accessed', 0.0))
      self._known[id(jaxpr)] = jaxpr, cost
    return self._known[id(jaxpr)][1]

  def _more(self, jaxpr: Any, half: Any) -> Cost:
    """What all rounds of loops cost, less what is counted of them anyway."""
    total = Cost()
    for eqn, other in zip(jaxpr.eqns, half.eqns, strict=True):
      if eqn.primitive.name == 'scan':
        total = total.plus(self._loop(eqn.params, other.params))
        continue
      inside = map(_inside, (eqn.params, other.params))
      found = [self._more(*pair) for pair in zip(*inside, strict=True)]
      if eqn.primitive.name == 'cond':
        found = [max(found, key=lambda cost: (cost.sums, cost.flops))]
      for cost in found:
        total = total.plus(cost)
    return total

  def _loop(self, params: dict[str, Any], other: dict[str, Any]) -> Cost:
    body, rounds, first = (
      params[name] for name in ('jaxpr', 'length', 'num_consts')
    )
    written = range(first, first + params['num_carry'])
    once = self._once(body, written)
    if rounds not in self._chunks:
      inner = once.plus(self._more(body.jaxpr, other['jaxpr'].jaxpr))
      return Cost().plus(inner, rounds).plus(once, -1)
    grows = once.plus(self._once(other['jaxpr'], written), -1)
    sums = body.in_avals[first]  # the first that is carried
    size = float(sums.size * sums.dtype.itemsize)
    size = 0.0 if sums.shape[:1] == (self._at_home,) else size
    found = Cost().plus(grows, 2 * (rounds - 1))
    return found._replace(rounds=rounds, sums=size)


def _inside(params: dict[str, Any]) -> list[Any]:
  """Programs in an equation: branches, of a CPU if they are for platforms."""
  programs = list(params.get('branches', params.values()))
  if platforms := params.get('branches_platforms'):
    programs = [
      each
      for each, names in zip(programs, platforms, strict=True)
      if names and 'cpu' in names
    ]
  inner = (getattr(each, 'jaxpr', each) for each in programs)
  return [each for each in inner if hasattr(each, 'eqns')]
