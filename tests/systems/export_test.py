"""Steps lower for every platform, and are short loops over large chunks."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

from dpmf_jax.plans import SPECS
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.rows import SLOTS, Data, Rows, chunk_slices, training_data
from dpmf_jax.systems import build
from dpmf_jax.training import in_float32
from dpmf_jax.types import Kinds

WIDE = ('cuda', 'tpu')  # which have one layout
# Their first state is of NumPy, and they go through clients, not ratings.
NOT_TRACED = ('sdmf', 'sdbpr', 'sdfm')
CASES = [(name, variant) for name in SPECS for variant in SPECS[name].variants]
# Rounds of loops that are not over ratings: random bits, solvers, digits.
MOST = 32
# Times that the text of a step, or of a kind of them, goes through all ratings.
PASSES = 4
# The shape of MovieLens-20M, and the most rounds of a loop over its ratings.
USERS, ITEMS, RATINGS = 138_000, 27_000, 20_000_000
FEW_ITEMS, FOR_FEW_ITEMS = 900, ('moments', 'ease')
MOST_CHUNKS = 64
# Loops over a table of users (and items), whoever rated what; and over chunks
# of 256 numbers for each rating, which are cut into four to fit into memory.
LONGER = {
  'moments': {-(-USERS // 32)},
  'local_mf': {-(-USERS // 64), USERS // 64},
  'local_ranking': {-(-USERS // 64), USERS // 64},
  'ease': {4 * 47, 4 * 39},
}


def large_data(items):
  """Shapes of RATINGS ratings of USERS users, with most padding, on a GPU."""

  def side(num_rows, num_columns, name):
    slices = chunk_slices('gpu', num_rows, num_columns)
    chunks = -(-(RATINGS // SLOTS + num_rows) // slices)
    of = lambda *shape: jax.ShapeDtypeStruct((chunks, slices, *shape), 'int32')
    floats = jax.ShapeDtypeStruct((chunks, slices, SLOTS), jnp.float32)
    return Rows(
      column=of(SLOTS),
      value=floats,
      length=of(),
      row=of(),
      num_rows=num_rows,
      num_columns=num_columns,
      side=name,
      scale=(1.0, 5.0),
      epsilon=floats,
    )

  return Data(side(USERS, items, 'user'), side(items, USERS, 'item'))


def lowered(name, variant, data, platforms):
  """The texts of a step, of each kind where there are some, as `fit` has it."""
  entry = SPECS[name]
  given = {'scale': (1.0, 5.0), 'delta': 1e-6, 'epsilon': 3.0, 'steps': 4}
  given |= {'rank': 2}
  known = entry.config.__dataclass_fields__
  given = {k: v for k, v in given.items() if k in known}
  system = build(name, entry.config(**{**entry.variants[variant], **given}))
  key = jax.random.key(0)
  made = system.init if name in NOT_TRACED else jax.jit(system.init).eval_shape
  words, state = jax.random.key_data(key), made(key, data)

  def text(kind):
    step = lambda words, state, data: kind(
      jax.random.wrap_key_data(words), state, data
    )
    whole = export.export(jax.jit(step), platforms=platforms)
    with in_float32():
      return whole(words, state, data).mlir_module()

  kinds = isinstance(system.step, Kinds)
  return [text(kind) for kind in (system.step.each if kinds else [system.step])]


def bounds(text):
  """How often loops go round, of those whose conditions have a constant."""
  constant = r'(%\w+) = stablehlo.constant dense<(\d+)> : tensor<i32>'
  found = []
  for function in text.split('func.func'):  # a name is of one value in each
    values = dict(re.findall(constant, function))
    for cond in re.findall(r'cond \{(.*?)stablehlo.return', function, re.S):
      compared = re.findall(r'compare\s+LT, %\w+, (%\w+)', cond)
      found += [int(values[name]) for name in compared if name in values]
  return found


def check_text(text):
  """No calls of Python on the host, and float32 in all dots."""
  assert 'callback' not in text
  dots = [line for line in text.splitlines() if 'stablehlo.dot_general' in line]
  assert not [
    dot for dot in dots if 'precision = [HIGHEST, HIGHEST]' not in dot
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
  'case', [case for case in CASES if case[0] not in NOT_TRACED], ids='-'.join
)
def test_steps_are_few_rounds_on_wide_hardware(case):
  data = large_data(FEW_ITEMS if case[0] in FOR_FEW_ITEMS else ITEMS)
  chunks = {len(rows.row) for rows in data}
  assert MOST < min(chunks) <= max(chunks) <= MOST_CHUNKS
  some = 0
  for text in lowered(*case, data, WIDE):
    check_text(text)
    found = [rounds for rounds in bounds(text) if rounds > MOST]
    some += len(found)
    assert set(found) <= chunks | LONGER.get(case[0], set())
    assert len([rounds for rounds in found if rounds in chunks]) <= PASSES
  assert some


@pytest.mark.slow
@pytest.mark.parametrize(
  'case', [case for case in CASES if case[0] in NOT_TRACED], ids='-'.join
)
def test_rounds_of_clients_are_loops_on_any_platform(case, small_ratings):
  ratings = with_epsilon(small_ratings, 3.0)
  data = training_data(ratings, slots=1, slices=2)
  chunks = {len(rows.row) for rows in data}
  assert min(chunks) > MOST
  (text,) = lowered(*case, data, ('cpu', *WIDE))
  check_text(text)
  found = bounds(text)
  assert found
  assert {rounds for rounds in found if rounds > MOST} <= chunks


@pytest.mark.parametrize('precision', [None, 'highest'])
def test_a_dot_of_fewer_bits_is_seen(precision):
  product = lambda x: jnp.matmul(x, x, precision=precision)
  text = jax.jit(product).lower(jnp.ones((2, 2))).as_text()
  assert 'dot_general' in text
  if precision is None:
    with pytest.raises(AssertionError):
      check_text(text)
  else:
    check_text(text)
