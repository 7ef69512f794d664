"""Building blocks: their examples, what they promise, jit and vmap."""

import doctest
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax import accounting, blocks
from dpmf_jax.kernels import lattice
from dpmf_jax.kernels.gradients import gradients
from dpmf_jax.mechanisms import noise, sampling
from dpmf_jax.mechanisms.noisy_sum import integer_rows
from dpmf_jax.rows import training_data
from dpmf_jax.types import Factors

FUNCTIONS = [name for name in blocks.__all__ if name != 'Noisy']


@pytest.mark.parametrize('name', FUNCTIONS)
def test_examples_run_and_privacy_is_said(name):
  block = getattr(blocks, name)
  names = {'jax': jax, 'jnp': jnp, 'np': np, 'Factors': Factors}
  names |= {each: getattr(blocks, each) for each in blocks.__all__}
  (example,) = doctest.DocTestFinder(recurse=False).find(
    block, name, globs=names
  )
  assert example.examples
  said = []
  doctest.DocTestRunner().run(example, out=said.append)
  assert not said, ''.join(said)
  if not name.endswith('_data'):
    assert 'Privacy: ' in block.__doc__


# Ratings from arrays.


def factors_of(ratings, rank=3, seed=0):
  rng = np.random.default_rng(seed)
  shapes = (ratings.num_users, rank), (ratings.num_items, rank)
  return Factors(*(jnp.asarray(rng.normal(size=s), 'float32') for s in shapes))


def as_coo(ratings, **more):
  return blocks.coo_data(
    ratings.user,
    ratings.item,
    ratings.value,
    num_users=ratings.num_users,
    num_items=ratings.num_items,
    **more,
  )


def test_gradients_are_those_of_any_layout(small_ratings):
  factors = factors_of(small_ratings)
  want = gradients(training_data(small_ratings), factors, offset=3.0)
  dense = np.full((60, 40), np.nan, np.float32)
  dense[small_ratings.user, small_ratings.item] = small_ratings.value
  order = np.random.default_rng(0).permutation(700)
  for data in (
    as_coo(small_ratings),
    as_coo(small_ratings.take(order)),
    blocks.dense_data(dense),
    blocks.dense_data(np.nan_to_num(dense), ~np.isnan(dense)),
  ):
    found = jax.jit(lambda d: gradients(d, factors, offset=3.0))(data)
    for one, other in zip(found, want, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_arrays_may_be_traced_and_batched(small_ratings):
  factors = factors_of(small_ratings)

  def item_gradient(user, item, value, mask):
    data = blocks.coo_data(
      user, item, value, num_users=60, num_items=40, mask=mask
    )
    return gradients(data, factors).item

  masks = np.random.default_rng(1).random((3, 700)) < 0.5
  user, item = small_ratings.user, small_ratings.item
  many = jax.jit(jax.vmap(item_gradient, (None, None, None, 0)))(
    user, item, small_ratings.value, masks
  )
  for one, mask in zip(many, masks, strict=True):
    part = training_data(small_ratings.take(mask))
    np.testing.assert_allclose(
      one, gradients(part, factors).item, rtol=1e-4, atol=1e-4
    )
  # Where values are not known, what is out of range is not there.
  wrong = np.where(masks[0], item, 40)
  far = jax.jit(item_gradient)(
    user, wrong, small_ratings.value, masks[0] | True
  )
  np.testing.assert_allclose(far, many[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ('users', 'items', 'said'),
  [
    ([0, 2], [0, 0], r'\(2, 0\) is an index out of range'),
    ([0, 1], [0, -1], r'\(1, -1\) is an index out of range'),
    ([1, 1], [2, 2], r'\(1, 2\) is a pair that was rated before'),
    ([0, 1], [0], r'must be \[N\]'),
  ],
)
def test_wrong_arrays_are_refused(users, items, said):
  with pytest.raises(ValueError, match=said):
    blocks.coo_data(users, items, [1.0, 2.0], num_users=2, num_items=3)


@pytest.mark.parametrize('users', [[0.5, 1.0], ['a', 'b'], [True, False]])
def test_indices_are_integers(users):
  with pytest.raises(ValueError, match=r'^users have type .* integers from 0'):
    blocks.coo_data(users, [0, 1], [1.0, 2.0], num_users=2, num_items=3)


@pytest.mark.parametrize('norm', [-1, 0.0, float('nan'), '1', None])
def test_rows_are_not_clipped_to_what_is_no_norm(norm):
  with pytest.raises(ValueError, match='norm must be'):
    blocks.clip_rows(jnp.ones((2, 2)), norm)


def test_masked_ratings_may_be_anything():
  data = blocks.coo_data(
    [0, 0, 9], [1, 1, -5], [1.0, math.nan, math.inf],
    num_users=2, num_items=3, mask=[True, False, False],
  )  # fmt: skip
  total, count = blocks.squared_error(
    data.by_user, jnp.ones((2, 1)), jnp.ones((3, 1))
  )
  assert (float(total), int(count)) == (0.0, 1)


def test_nan_is_no_rating():
  arrays = [0], [0]
  sizes = {'num_users': 1, 'num_items': 1}
  with pytest.raises(ValueError, match='NaN, which is no rating'):
    blocks.coo_data(*arrays, [math.nan], **sizes)


def test_in_a_trace_nan_is_in_the_scale():
  @jax.jit
  def residual(value):
    ones = Factors(jnp.ones((1, 1)), jnp.ones((1, 1)))
    sums = lattice.gradients(
      blocks.coo_data([0], [0], value, num_users=1, num_items=1), ones,
      clip_norm=jnp.float32(1), offset=jnp.float32(8), low=jnp.float32(1),
      high=jnp.float32(5), residual_bound=jnp.float32(10), shift=jnp.int32(0),
    )  # fmt: skip
    return sums.user[0, 0] * 10 / 2**18

  # As far as a rating can move it, and no further.
  found = [float(residual(jnp.array([x]))) for x in (1.0, 5.0, math.nan)]
  assert max(found) - min(found) <= 4 + 10 / 2**8


@pytest.mark.parametrize('kind', ['float16', 'bfloat16'])
def test_small_floats_do_not_lengthen_what_is_clipped(kind):
  rows = 3 * jax.random.normal(jax.random.key(0), (500, 16))
  counts = lattice.columns(rows.astype(kind), jnp.float32(1)).counts
  assert np.linalg.norm(np.asarray(counts, 'float64'), axis=1).max() < 2**10
  # Nor does one too large for them tell who rated it.
  far = jnp.array([[math.inf, 1.0]], kind)
  assert np.isfinite(lattice.columns(far, jnp.float32(1)).counts).all()
  with pytest.raises(TypeError, match='make them float32'):
    blocks.clip_rows(rows.astype(kind), 1.0)


# Noise.


@pytest.mark.parametrize('add', [blocks.gaussian_noise, blocks.laplace_noise])
def test_noise_is_for_integers_alone(add):
  key = jax.random.key(0)
  for wrong in (jnp.ones(3), jnp.ones(3, 'uint32'), [jnp.ones(2, 'bfloat16')]):
    with pytest.raises(TypeError, match='noise is private on integers alone'):
      add(jax.random.clone(key), wrong, 1.0)
  for wrong in (0.0, -1.0, math.nan, 'much'):
    with pytest.raises(ValueError, match=r'(std|scale) must be '):
      add(jax.random.clone(key), jnp.ones(3, int), wrong)
  with pytest.raises(ValueError, match='must be a number, got'):
    jax.jit(add)(jax.random.clone(key), jnp.ones(3, int), 1.0)
  with pytest.raises(ValueError, match=r'too large for spacing=1.0'):
    add(jax.random.clone(key), jnp.ones(3, int), 2.0**23)


@pytest.mark.parametrize(
  ('add', 'variance'),
  [(blocks.gaussian_noise, 1), (blocks.laplace_noise, 2)],
)
def test_noise_has_its_size_on_the_lattice(add, variance):
  counts = {'a': jnp.full((200, 50), 7), 'b': jnp.zeros(10_000, 'int8')}
  noisy = jax.jit(lambda key: add(key, counts, 3.0, spacing=0.25))(
    jax.random.key(1)
  )
  a, b = np.asarray(noisy['a']) - 7 / 4, np.asarray(noisy['b'])
  for found in (a, b):
    np.testing.assert_array_equal(found * 4, np.round(found * 4))
    # Five standard errors of the variance, whose kurtosis is 6 at most.
    assert abs(found.var() / (9 * variance) - 1) < 5 * math.sqrt(5 / 10_000)
    assert abs(found.mean()) < 5 * found.std() / 100
  assert abs(np.corrcoef(a.ravel(), b)[0, 1]) < 0.05


@pytest.mark.parametrize(
  'block',
  [
    lambda key: blocks.gaussian_noise(key, jnp.arange(6), 2.0),
    lambda key: blocks.laplace_noise(key, jnp.arange(6), 2.0),
    lambda key: blocks.nonprivate_gaussian_noise(key, jnp.arange(6.0), 2.0),
    lambda key: blocks.randomized_response(key, jnp.arange(6) % 2, 0.5),
    lambda key: blocks.sample(key, jnp.full(6, 0.5)),
  ],
)
def test_batches_of_keys_are_keys_of_a_batch(block):
  keys = jax.random.split(jax.random.key(0), 8)
  many = np.asarray(jax.jit(jax.vmap(block))(keys))
  assert len(np.unique(many, axis=0)) > 4
  np.testing.assert_allclose(many[3], block(jax.random.clone(keys)[3]))


def test_chances_are_those_asked_for():
  chance = jnp.tile(jnp.array([0.0, 0.3, 1.0, -1.0, jnp.nan, 2.0]), (5000, 1))
  kept = np.asarray(jax.jit(blocks.sample)(jax.random.key(2), chance))
  assert kept.dtype == bool
  counts = kept.sum(axis=0)
  assert counts[[0, 2, 3, 4, 5]].tolist() == [0, 5000, 0, 0, 5000]
  assert abs(counts[1] - 1500) < 5 * math.sqrt(5000 * 0.3 * 0.7)


def test_no_chance_is_larger_than_was_asked_for(monkeypatch):
  # What float32 makes of 0.1 is larger.
  chances = np.array([0.1, 1e-7, 1 / 3])
  coins = np.ceil(chances * 2**32).astype('uint32')  # the first that is not
  monkeypatch.setattr(sampling, '_words', lambda key, size: jnp.asarray(coins))
  assert not blocks.sample(jax.random.key(0), chances).any()


def test_noise_is_not_for_numbers_that_float32_has_no_digits_for():
  key, tiny = jax.random.key(0), 2e-45
  with pytest.raises(ValueError, match='must be positive, both at least'):
    blocks.gaussian_noise(key, jnp.arange(3), 2 * tiny, spacing=tiny)


# Sums of rows.


def summed(rows, **settings):
  given = {'norm': 1.0, 'noise_multiplier': 1.0, 'relation': 'add_remove'}
  return blocks.noisy_sum(jax.random.key(3), rows, **{**given, **settings})


def silenced(monkeypatch):
  """Sums without their noise: as they are before it is added."""
  add = lambda self, counts, draws: counts.astype('float32') * self.spacing
  monkeypatch.setattr(noise.LatticeNoise, 'add', add)


@settings(max_examples=60)
@given(
  st.integers(0, 2**31 - 1),
  st.sampled_from([1, 2, 7, 64]),
  st.sampled_from([3, 8, 20]),
  st.floats(-12, 12),
)
def test_integer_rows_are_never_longer_than_their_norm(seed, size, bits, log):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(20, size)) * np.exp(log + rng.normal(size=(20, 1)))
  norm = float(np.exp(rng.normal()))
  found = np.asarray(integer_rows(jnp.asarray(rows, 'float32'), norm, bits))
  longest = np.linalg.norm(found.astype(np.float64), axis=1).max()
  assert longest <= 2**bits * (1 - 9e-6)
  # And what is short stays what it is, up to rounding.
  unit = norm * 2.0**-bits
  short = np.linalg.norm(rows, axis=1) < norm * 0.999 - unit * size**0.5
  np.testing.assert_allclose(
    found[short] * unit, rows[short], atol=unit * 0.501, rtol=1e-5
  )


def neighbours(rng, rows, relation):
  """`rows`, and the same with one of them gone, or the worst other one."""
  other = rows.copy()
  place = rng.integers(len(rows))
  other[place] = 0.0 if relation == 'add_remove' else -rows[place] * 3.0
  return other


@pytest.mark.parametrize('relation', ['add_remove', 'replace'])
def test_no_record_moves_a_sum_by_more_than_its_sensitivity(
  monkeypatch, relation
):
  silenced(monkeypatch)
  worst, rng = 0.0, np.random.default_rng(0)
  total = jax.jit(lambda rows: summed(rows, norm=0.7, relation=relation))
  for _ in range(300):
    rows = rng.normal(size=(30, 5)) * np.exp(2 * rng.normal(size=(30, 1)))
    rows = rows.astype(np.float32)
    first, second = total(rows), total(neighbours(rng, rows, relation))
    moved = np.asarray(first.value, np.float64) - np.asarray(second.value)
    assert np.linalg.norm(moved) <= first.sensitivity
    worst = max(worst, np.linalg.norm(moved) / first.sensitivity)
  assert first.sensitivity == (0.7 if relation == 'add_remove' else 1.4)
  assert worst > 0.999


def test_a_sum_of_no_rows_is_noise():
  found = summed({'w': jnp.ones((0, 2, 3)), 'b': jnp.ones(0)}, norm=2.0)
  assert found.value['w'].shape == (2, 3)
  assert (found.value['w'] != 0).any()


def test_a_sum_is_that_of_its_clipped_rows(monkeypatch):
  silenced(monkeypatch)
  rng = np.random.default_rng(1)
  rows = {
    'w': rng.normal(size=(50, 2, 3)).astype('float32'),
    'b': rng.normal(size=50).astype('float32'),
  }
  found = summed(rows, norm=2.0)
  flat = np.concatenate([rows['w'].reshape(50, -1), rows['b'][:, None]], axis=1)
  flat *= np.minimum(1, 2 / np.linalg.norm(flat, axis=1, keepdims=True))
  want = flat.sum(axis=0)
  np.testing.assert_allclose(found.value['w'].ravel(), want[:6], atol=2e-3)
  np.testing.assert_allclose(found.value['b'], want[6], atol=2e-3)


def test_a_sum_leaves_jit_and_vmap_with_its_event():
  rows = jnp.ones((10, 4))
  run = lambda key: blocks.noisy_sum(
    key, rows, norm=1.0, noise_multiplier=2.0, relation='replace'
  )
  many = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4000))
  assert many.value.shape == (4000, 4)
  assert many.event.noise_multiplier == 2.0
  assert 0 < many.event.uncovered < 1e-12
  found = np.asarray(many.value, np.float64)
  np.testing.assert_allclose(found.mean(axis=0), 5.0, atol=5 * 4 / 4000**0.5)
  np.testing.assert_allclose(found.std(axis=0), 4.0, rtol=0.06)
  # Sixty of them are one event, without loss.
  steps = accounting.Composed((many.event,) * 60)
  alone = accounting.Gaussian(2.0, 60, 60 * many.event.uncovered)
  assert accounting.epsilon(steps, 1e-5) == pytest.approx(
    accounting.epsilon(alone, 1e-5)
  )


def test_rows_that_are_not_finite_add_nothing(monkeypatch):
  silenced(monkeypatch)
  rows = jnp.array([[1.0, 0.0], [jnp.nan, 1.0], [jnp.inf, 0.0], [0.0, 1.0]])
  np.testing.assert_allclose(summed(rows).value, [1, 1], atol=1e-4)


@pytest.mark.parametrize(
  ('wrong', 'said'),
  [
    ({'norm': 0.0}, 'norm must be > 0'),
    ({'noise_multiplier': 0.0}, 'noise_multiplier must be > 0'),
    ({'relation': 'add'}, "must be 'add_remove' or 'replace'"),
    ({'noise_multiplier': 1e8}, 'use a larger epsilon'),
    ({'rows': jnp.ones(())}, r'must be a tree of \[N, ...\]'),
    ({'rows': (jnp.ones(2), jnp.ones(3))}, 'with one N'),
    ({'rows': jnp.ones((2, 200_000))}, 'sum fewer rows or numbers'),
  ],
)
def test_sums_that_would_not_be_exact_are_refused(wrong, said):
  with pytest.raises(ValueError, match=said):
    summed(**{'rows': jnp.ones((3, 2)), **wrong})


# Gradients.

STEP = {'scale': (1, 5), 'offset': 3.5, 'noise_multiplier': 1.0}


@pytest.mark.parametrize('relation', ['add_remove', 'replace'])
def test_no_rating_moves_gradients_by_more_than_their_sensitivity(
  monkeypatch, relation
):
  silenced(monkeypatch)
  rng, worst = np.random.default_rng(2), 0.0
  user, item = np.divmod(np.arange(12), 4)

  @jax.jit
  def step(values, mask, factors):
    data = blocks.coo_data(
      user, item, values, num_users=3, num_items=4, mask=mask
    )
    return blocks.noisy_gradients(
      jax.random.key(0), data, factors, relation=relation, **STEP
    )

  for _ in range(300):
    size = np.exp(rng.normal())
    factors = Factors(
      *(size * rng.normal(size=(n, 2)).astype('float32') for n in (3, 4))
    )
    values, mask = rng.uniform(1, 5, 12), rng.random(12) < 0.6
    values, mask = values.astype('float32'), mask.astype(bool)
    other, less = values.copy(), mask.copy()
    place = rng.integers(12)
    if relation == 'replace':
      other[place] = 1.0 if values[place] > 3 else 5.0
    else:
      less[place] = not mask[place]
    first, second = step(values, mask, factors), step(other, less, factors)
    for one, two in zip(first.value, second.value, strict=True):
      moved = np.asarray(one, np.float64) - np.asarray(two)
      assert np.linalg.norm(moved) <= first.sensitivity
      worst = max(worst, np.linalg.norm(moved) / first.sensitivity)
  assert worst > 0.95


def test_noisy_gradients_are_a_step_of_gaussian_mf(small_ratings):
  data, factors = training_data(small_ratings), factors_of(small_ratings)
  noisy = blocks.noisy_gradients(
    jax.random.key(0), data, factors, relation='add_remove',
    **{**STEP, 'noise_multiplier': 0.5},
  )  # fmt: skip
  assert noisy.event.noise_multiplier == 0.5
  assert noisy.event.count == 1
  other = blocks.noisy_gradients(
    jax.random.key(0), as_coo(small_ratings, scale=(1.0, 5.0)), factors,
    relation='add_remove', **{**STEP, 'noise_multiplier': 0.5},
  )  # fmt: skip
  # Sums are exact: layouts have the same bits.
  jax.tree.map(np.testing.assert_array_equal, noisy, other)


def test_gradients_of_another_scale_are_refused(small_ratings):
  data, factors = training_data(small_ratings), factors_of(small_ratings)
  with pytest.raises(ValueError, match='but the ratings have scale='):
    blocks.noisy_gradients(
      jax.random.key(0), data, factors, relation='replace',
      **{**STEP, 'scale': (0, 1), 'offset': 0.5},
    )  # fmt: skip


NUMBER = r'\d+\.?\d*(?:e-\d+)?'


@pytest.mark.slow
def test_the_page_does_what_it_says(capsys):
  page = (Path(__file__).parents[1] / 'docs/building_blocks.md').read_text()
  fenced = re.findall(r'^```(\w*)\n(.*?)^```$', page, re.S | re.M)
  code, names = [text for kind, text in fenced if kind == 'python'], {}
  for part in code:
    exec(part, names)
  printed = capsys.readouterr().out
  want = ''.join(text for kind, text in fenced if not kind)
  assert re.sub(NUMBER, '#', printed) == re.sub(NUMBER, '#', want)
  found, said = (
    [float(number) for number in re.findall(NUMBER, text)]
    for text in (printed, want)
  )
  # Floats differ a little between machines.
  np.testing.assert_allclose(found, said, atol=0.05)
  assert 1 < names['found'].gaussian < names['epsilon'] < 2.001
  # 30 lines, as it promises.
  assert len([line for line in code[0].splitlines() if line]) <= 30


def test_the_page_lists_all_blocks():
  page = (Path(__file__).parents[1] / 'docs/building_blocks.md').read_text()
  listed = re.findall(r'^\| `(\w+)\(', page, re.M)
  assert sorted(listed) == FUNCTIONS


def test_three_arrays_may_have_no_rating():
  none = jnp.zeros(0, jnp.int32)
  data = blocks.coo_data(none, none, none, num_users=2, num_items=3)
  assert int(data.by_item.length.sum()) == 0
  total, count = blocks.squared_error(
    data.by_user, jnp.ones((2, 4)), jnp.ones((3, 4))
  )
  assert (float(total), float(count)) == (0, 0)
