"""Steps lower for every platform, and loop over chunks on the device."""

import re

import jax
import pytest
from jax import export

from dpmf_jax.plans import SPECS
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.rows import training_data
from dpmf_jax.systems import build

PLATFORMS = ('cpu', 'cuda', 'tpu')
# Their first state is of NumPy.
NOT_TRACED = ('sdmf', 'sdbpr', 'sdfm')
CASES = [(name, variant) for name in SPECS for variant in SPECS[name].variants]
# Rounds of loops that are not over ratings: random bits, solvers, digits.
MOST = 32
# Times that the text of a step goes through all ratings: power_mf has most, of
# five kinds of steps, of which it takes one at a time.
PASSES = 6


def lowered(name, variant, data):
  """The text of a step, for all platforms."""
  entry = SPECS[name]
  given = {'scale': (1.0, 5.0), 'delta': 1e-6, 'epsilon': 3.0, 'steps': 4}
  given |= {'rank': 2}
  known = entry.config.__dataclass_fields__
  given = {k: v for k, v in given.items() if k in known}
  system = build(name, entry.config(**{**entry.variants[variant], **given}))
  key = jax.random.key(0)
  made = system.init if name in NOT_TRACED else jax.jit(system.init).eval_shape
  step = lambda words, state, data: system.step(
    jax.random.wrap_key_data(words), state, data
  )
  words = jax.random.key_data(key)
  whole = export.export(jax.jit(step), platforms=PLATFORMS)
  return whole(words, made(key, data), data).mlir_module()


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


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_steps_are_loops_over_chunks_on_any_platform(case, small_ratings):
  ratings = with_epsilon(small_ratings, 3.0)
  data = training_data(ratings, slots=1, slices=2)
  chunks = {len(rows.row) for rows in data}
  assert min(chunks) > MOST
  text = lowered(*case, data)
  found = bounds(text)
  assert found
  over_ratings = [rounds for rounds in found if rounds > MOST]
  assert set(over_ratings) <= chunks
  assert len(over_ratings) <= PASSES
  assert 'callback' not in text  # to Python, on the host
