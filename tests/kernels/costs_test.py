"""Counts of operations, with all rounds of loops."""

import jax
import jax.numpy as jnp

from benchmarks.costs import Counter


def test_bodies_of_loops_count_as_often_as_they_run():
  size, outer, inner = 64, 7, 5

  def product(x, _):
    return x @ x, None

  def twice_nested(x, _):
    return jax.lax.scan(product, x, None, inner)[0], None

  def program(x):
    return jax.lax.scan(twice_nested, x, None, outer)[0] @ x

  jaxpr = jax.make_jaxpr(jax.jit(program))(jnp.ones((size, size)))
  cost = Counter().cost(jaxpr)
  products = outer * inner + 1
  assert products * 2 * size**3 <= cost.flops < 1.01 * products * 2 * size**3
  # Each reads both and writes one; loops may copy what they carry.
  moved = products * 3 * 4 * size**2
  assert 0.6 * moved < cost.bytes < 3 * moved
  assert (cost.rounds, cost.sums) == (0, 0)


def test_the_longest_alternative_counts():
  def program(x):
    loop = lambda rounds: (
      lambda: jax.lax.fori_loop(0, rounds, lambda _, y: y @ x, x)
    )
    return jax.lax.cond(x[0, 0] > 0, loop(9), loop(3))

  cost = Counter().cost(jax.make_jaxpr(program)(jnp.ones((32, 32))))
  assert 9 * 2 * 32**3 <= cost.flops < 1.1 * 9 * 2 * 32**3


def test_tables_count_once_and_chunks_as_often_as_there_are():
  chunks, slices, rank, rows = 9, 64, 16, 100_000

  def jaxpr(slices):
    table, index = jnp.ones((rows, rank)), jnp.zeros((chunks, slices), int)
    add = lambda total, at: (total + jnp.sin(table[at]).sum(axis=0), None)
    sums = lambda table, index: jax.lax.scan(add, table[0], index)[0]
    return jax.make_jaxpr(sums)(table, index)

  counter = Counter([chunks])
  cost = counter.cost(jaxpr(slices), jaxpr(slices // 2))
  assert (cost.rounds, cost.sums) == (chunks, 4 * rank)
  at_home = Counter([chunks], at_home=rank)
  kept = at_home.cost(jaxpr(slices), jaxpr(slices // 2))
  assert kept == cost._replace(sums=0)
  gathered = 4 * chunks * slices * rank
  table = 4 * rows * rank
  assert gathered < cost.bytes < 3 * table + 10 * gathered
