import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmf_jax.ratings.ids import by_row
from dpmf_jax.ratings.splits import random_split
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.rows import (
  SLICES,
  WIDE_SLICES,
  chunk_grid,
  chunk_slices,
  data_rows,
  device_mesh,
  needed_chunks,
  platform_of,
  put_rows,
  rounded_down,
  rows,
  training_data,
)


def entries(layout):
  """The (row, column, value) triples that a layout holds, sorted."""
  slots = layout.column.shape[-1]
  mask = np.arange(slots) < np.asarray(layout.length)[..., None]
  row = np.broadcast_to(np.asarray(layout.row)[..., None], mask.shape)
  columns = (
    row[mask],
    np.asarray(layout.column)[mask],
    np.asarray(layout.value)[mask],
  )
  return sorted(zip(*(c.tolist() for c in columns), strict=True))


@settings(max_examples=60)
@given(
  st.sets(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=70),
  st.integers(1, 5),
  st.integers(1, 4),
  st.integers(1, 3),
)
def test_rows_hold_each_rating_once(pairs, slots, slices, multiple):
  row, column = (np.array([p[k] for p in pairs], np.int32) for k in (0, 1))
  value = np.arange(1, len(pairs) + 1, dtype=np.float32)
  layout = rows(
    row, column, value, 7, 10,
    slots=slots, slices=slices, chunk_multiple=multiple,
  )  # fmt: skip
  assert layout.column.shape[1:] == (slices, slots)
  assert len(layout.column) % multiple == 0
  want = sorted(zip(row.tolist(), column.tolist(), value.tolist(), strict=True))
  assert entries(layout) == want
  assert (np.diff(layout.row.reshape(-1)) >= 0).all()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6))))
def test_the_order_of_pairs(pairs):
  row, column = (np.array([p[k] for p in pairs], np.int32) for k in (0, 1))
  want = np.lexsort((np.arange(len(pairs)), column, row))
  order, columns, starts = by_row(row, column, 5, 7)
  assert order.tolist() == want.tolist()
  assert columns.tolist() == column[want].tolist()
  assert np.diff(starts).tolist() == np.bincount(row, None, 5).tolist()


def test_slices_that_gather_near_columns_are_together():
  # Three users who rated the same 100 of 20,000 items.
  row, column = np.divmod(np.arange(300), 100)
  column = column * 200
  value = np.arange(1, 301, dtype=np.float32)
  layout = rows(row, column, value, 3, 20_000, slots=10, slices=4)
  used = layout.length.reshape(-1) > 0
  near = layout.column[..., 0].reshape(-1)[used] // 8192
  assert (np.diff(near) >= 0).all()
  assert np.unique(near).tolist() == [0, 1, 2]
  for group in range(3):
    assert (np.diff(layout.row.reshape(-1)[used][near == group]) >= 0).all()
  want = sorted(zip(row.tolist(), column.tolist(), value.tolist(), strict=True))
  assert entries(layout) == want


@pytest.mark.parametrize(('row', 'column'), [(3, 0), (0, 5), (-1, 0), (0, -1)])
def test_indices_beyond_the_table_are_refused(row, column):
  with pytest.raises(ValueError, match=r'must be in 0\.\.'):
    rows(np.array([0, row]), np.array([0, column]), np.ones(2), 3, 5)


def test_rows_know_their_side_their_scale_and_the_other_side(small_ratings):
  data = training_data(small_ratings)
  for side, shape in (('user', (60, 40)), ('item', (40, 60))):
    layout = getattr(data, f'by_{side}')
    assert (layout.num_rows, layout.num_columns) == shape
    assert (layout.side, layout.scale) == (side, (1.0, 5.0))


def test_layout_does_not_depend_on_order(small_ratings):
  shuffled = small_ratings.take(np.random.default_rng(0).permutation(700))
  first, second = data_rows(small_ratings), data_rows(shuffled)
  for a, b in zip(first, second, strict=True):
    for field in ('column', 'value', 'length', 'row'):
      np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def test_padding_is_index_zero_and_value_zero(small_ratings):
  layout = data_rows(small_ratings).by_user
  mask = np.arange(32) < layout.length[..., None]
  assert (~mask).any()
  assert (layout.column[~mask] == 0).all()
  assert (layout.value[~mask] == 0).all()


def test_levels_are_in_the_slots_of_their_ratings(small_ratings):
  assert all(layout.epsilon is None for layout in data_rows(small_ratings))
  epsilon = np.random.default_rng(0).uniform(0.1, 1.0, 700)
  given = dataclasses.replace(small_ratings, epsilon=epsilon)
  pairs = zip(small_ratings.user, small_ratings.item, strict=True)
  wanted = dict(zip(pairs, epsilon, strict=True))
  for mesh in (None, device_mesh(2)):
    data = training_data(given, mesh=mesh, slices=4)
    for side, layout in zip((0, 1), data, strict=True):
      level, column = np.asarray(layout.epsilon), np.asarray(layout.column)
      assert level.dtype == np.float32
      mask = np.arange(32) < np.asarray(layout.length)[..., None]
      assert (level[~mask] == 0).all()
      row = np.broadcast_to(np.asarray(layout.row)[..., None], mask.shape)
      ids = (row[mask], column[mask])[:: -1 if side else 1]
      exact = np.array([wanted[pair] for pair in zip(*ids, strict=True)])
      got = level[mask].astype(np.float64)
      assert (got <= exact).all()
      np.testing.assert_allclose(got, exact, rtol=2**-23)
  plain = data_rows(small_ratings).by_user
  np.testing.assert_array_equal(plain.value, data_rows(given).by_user.value)
  doubled = jax.jit(lambda layout: 2 * layout.epsilon)(put_rows(data.by_user))
  np.testing.assert_array_equal(doubled, 2 * np.asarray(data.by_user.epsilon))


@settings(max_examples=200)
@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_rounding_down_is_the_next_below(value):
  [low] = rounded_down(np.array([value]))
  assert low.dtype == np.float32
  assert float(low) <= value
  with np.errstate(over='ignore'):
    above = np.nextafter(low, np.float32(np.inf))
  assert float(above) > value


def test_device_layout_takes_at_most_30_bytes_per_rating():
  from dpmf_jax.ratings.synthetic import synthetic

  ratings = synthetic(num_users=600, num_items=370, num_ratings=60_000, seed=0)
  data = training_data(ratings)
  total = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
  assert total / len(ratings) <= 30


@pytest.mark.parametrize(
  ('num_columns', 'dtype'), [(2**16 - 1, np.uint16), (2**16, np.int32)]
)
def test_columns_take_two_bytes_where_these_hold_them(num_columns, dtype):
  row, column = np.array([0, 0, 1]), np.array([0, num_columns - 1, 5])
  value = np.array([1.0, 2.0, 3.0], np.float32)
  layout = rows(row, column, value, 2, num_columns)
  assert layout.column.dtype == dtype
  want = zip(row.tolist(), column.tolist(), value.tolist(), strict=True)
  assert entries(layout) == sorted(want)


def test_rows_are_sharded_over_a_mesh(small_ratings):
  mesh = device_mesh(2)
  layout = training_data(small_ratings, mesh=mesh, slices=4).by_user
  assert len(layout.column.sharding.device_set) == 2
  assert dataclasses.replace(put_rows(layout), mesh=None).mesh is None


def test_too_many_devices_is_an_error():
  with pytest.raises(ValueError, match=r'^devices=99 is not in'):
    device_mesh(99)


def test_chunks_are_for_the_platform(small_ratings):
  assert platform_of(None) == platform_of(device_mesh(2)) == 'cpu'
  assert chunk_slices('cpu', 138_000, 27_000) == SLICES
  for platform in ('gpu', 'tpu'):
    assert chunk_slices(platform, 138_000, 27_000) == WIDE_SLICES
    # No more than twice what the table can have, and half of it is enough.
    assert chunk_slices(platform, 1_000, 33) == 1024
    assert chunk_slices(platform, 3, 5) == chunk_slices(platform, 0, 0) == 64
  for platform, slices in (('cpu', 64), ('gpu', 64), ('gpu', None)):
    layout = data_rows(small_ratings, platform=platform, slices=slices).by_user
    assert layout.row.shape[1] == 64
    assert entries(layout) == entries(data_rows(small_ratings).by_user)
  assert needed_chunks(small_ratings) == tuple(
    len(layout.row) for layout in data_rows(small_ratings)
  )


def test_one_rating_more_has_chunks_of_the_same_shape():
  """So that neighbours run one program, also on wide hardware."""
  size = 40 * 64 * 32  # all that is there is in some table of this size
  row, column = np.divmod(np.arange(size), 64)
  shapes = {
    rows(
      row[:count],
      column[:count],
      np.ones(count),
      size // 64,
      64,
      platform='gpu',
    ).row.shape[1]
    for count in (1, size // 2, size // 2 + 1, size)
  }
  assert len(shapes) == 1


def test_numbers_of_chunks_are_on_a_coarse_grid():
  for least in range(1, 3000):
    number = chunk_grid(least)
    assert least <= number <= least * 17 / 16
    assert chunk_grid(number) == number


def test_splits_of_one_data_set_have_one_shape():
  """So that what is compiled for one of them is compiled for all."""
  table = synthetic(num_users=900, num_items=400, num_ratings=60_000, seed=0)
  shapes = set()
  for seed in range(6):
    train, _ = random_split(table, 0.2, seed=seed)
    shapes.add(tuple(len(each.row) for each in data_rows(train, slices=8)))
  assert len(shapes) == 1
