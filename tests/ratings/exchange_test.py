"""Ratings among processes, which are threads here."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmf_jax.ratings import exchange, formats
from dpmf_jax.ratings.table import DataError


def together(count, work) -> list[Any]:
  """What `work(among)` gives in each of so many threads, or raises."""
  barrier = threading.Barrier(count)
  sent = [None] * count

  def exchanged_by(number):
    def exchanged(parts):
      sent[number] = list(parts)
      barrier.wait()
      found = [each[number] for each in sent]
      barrier.wait()
      return found

    return exchanged

  def run(number):
    try:
      return work(exchange.Among(number, count, exchanged_by(number)))
    except BaseException:
      barrier.abort()
      raise

  with ThreadPoolExecutor(count) as pool:
    futures = [pool.submit(run, number) for number in range(count)]
    return [future.exception() or future.result() for future in futures]


def rated(ratings):
  stamp = ratings.timestamp
  return sorted(
    zip(
      ratings.user_ids[ratings.user].tolist(),
      ratings.item_ids[ratings.item].tolist(),
      ratings.value.tolist(),
      ratings.user.tolist(),
      ratings.item.tolist(),
      [None] * len(ratings) if stamp is None else stamp.tolist(),
      strict=True,
    )
  )


def written(folder, *texts):
  for number, text in enumerate(texts):
    (folder / f'{number}.csv').write_text(text)
  return folder / '*.csv'


_MANY = '\n'.join(f'{u},{i},{(u + i) % 5 + 1},{u * i}' for u in range(9, 40)
                  for i in range(u % 7 + 1))  # fmt: skip


@pytest.mark.filterwarnings('ignore:.*rated before')
@pytest.mark.parametrize(
  'texts',
  [
    (_MANY, '7,0,3,9\n8,0,4,9', '9,0,1,9\n7,5,2,9'),  # 9 rates 0 again
    (_MANY, 'x,0,3,9\n8,0,4,9', '9,0,1,9\n7,01,2,9'),  # ids of both kinds
    ('user,item\n1,2\n2,3\n5,5', 'user,item\n1,2\n3,4\n7,7\n9,9\n8,8'),
  ],
)
def test_all_have_together_what_one_reads(tmp_path, texts):
  path = written(tmp_path, *texts)
  whole = formats.read(path, scale=(1, 5))
  parts = together(2, lambda at: formats.read(path, scale=(1, 5), among=at))
  assert sorted(itertools.chain(*map(rated, parts))) == rated(whole)
  users = [set(part.user.tolist()) for part in parts]
  assert not users[0] & users[1]
  for part in parts:
    np.testing.assert_array_equal(part.user_ids, whole.user_ids)
    np.testing.assert_array_equal(part.item_ids, whole.item_ids)
    assert (part.clicks, part.scale) == (whole.clicks, whole.scale)


def test_counts_are_added_up_before_they_are_cut(tmp_path):
  plays = ''.join(f'{user},2,0.4\n{user},3,0\n' for user in range(20))
  path = written(tmp_path, *[f'user,item,plays\n{plays}7,4,2\n'] * 2)
  whole = formats.read(path, max_count=2)
  parts = together(2, lambda at: formats.read(path, max_count=2, among=at))
  assert sorted(itertools.chain(*map(rated, parts))) == rated(whole)


def test_a_rating_outside_the_scale_is_found_where_it_is(tmp_path):
  path = written(tmp_path, _MANY, '7,0,3,9\n8,0,6,9')
  found = together(2, lambda at: formats.read(path, scale=(1, 5), among=at))
  assert isinstance(found[1], DataError)
  assert '1.csv, line 2: rating 6 is outside the scale' in str(found[1])
  assert isinstance(found[0], threading.BrokenBarrierError)


def test_other_columns_are_an_error(tmp_path):
  path = written(tmp_path, _MANY, '7,0\n8,0')
  found = together(2, lambda at: formats.read(path, scale=(1, 5), among=at))
  assert any('has other columns than' in str(error) for error in found)


def test_a_process_without_users_is_an_error(tmp_path):
  path = written(tmp_path, '7,0,3', '7,1,3')
  found = together(2, lambda at: formats.read(path, scale=(1, 5), among=at))
  assert any('use fewer processes' in str(error) for error in found)


def test_parts_keep_their_order():
  every = [Path(f'{number}.csv') for number in range(7)]
  for count in range(1, 6):
    parts = [exchange.Among(k, count, list).parts(every) for k in range(count)]
    assert list(itertools.chain(*parts)) == every
    assert all(parts)
