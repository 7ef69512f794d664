"""The papers' figures: names, quick runs, resuming, and what is compiled."""

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reproduce import data, drawing, measures, running, table
from benchmarks.reproduce.figures import FIGURES, PAPERS
from dpmf_jax import training
from dpmf_jax.ratings import catalog
from dpmf_jax.ratings.table import DataError, from_arrays
from dpmf_jax.ratings.writing import write

ROOT = Path(__file__).resolve().parents[2]
# Those that have least to compile.
FAST = ('gaussian/step-epsilon', 'dpmf/cdf', 'pdp/fig5', 'sdcf/fig5')
STEPS = FIGURES['gaussian/step-epsilon']


@pytest.fixture(scope='module')
def sets():
  return running.Sets(data.Source(), quick=True)


def checked(folder, name, rows):
  """What holds of every figure: a row per point, and a picture."""
  figure = FIGURES[name]
  drawing.draw(folder / f'{name}.png', figure, rows)
  assert (folder / f'{name}.png').read_bytes().startswith(b'\x89PNG')
  with (folder / f'{name}.csv').open(newline='') as file:
    assert list(csv.DictReader(file)) == rows
  assert {row['figure'] for row in rows} == {name}
  assert {row['note'] for row in rows} == {
    'synthetic ratings, which are made up'
  }
  assert np.isfinite([float(row['mean']) for row in rows]).all()
  for row in rows:
    assert bool(row['commit'])
    assert not (row['claimed_epsilon'] and row['proved_epsilon'])
    assert not (row['claimed_epsilon'] and row['form'] == 'sound')
    assert not (row['proved_epsilon'] and row['form'] != 'sound')
    if row['form'] == 'sound' and row['seeds']:
      assert float(row['proved_epsilon']) > 0
  for axis in figure.axes:
    base = axis.metric.split(' by ')[0]
    assert {axis.metric, base} & {row['metric'] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize('name', FAST)
def test_a_figure_of_each_paper(name, sets, tmp_path):
  checked(tmp_path, name, running.run(FIGURES[name], tmp_path, sets))


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(FIGURES.keys() - set(FAST)))
def test_all_other_figures(name, sets, tmp_path):
  checked(tmp_path, name, running.run(FIGURES[name], tmp_path, sets))


def test_every_paper_has_a_fast_one():
  assert [name.split('/')[0] for name in FAST] == list(PAPERS)


def test_the_page_has_a_row_for_each_figure():
  text = (ROOT / 'docs' / 'reproduction.md').read_text()
  found = re.findall(r'^\| `(\w+/[\w-]+)`', text, re.M)
  assert found == list(FIGURES)


def test_what_is_committed_is_what_the_command_writes():
  folder = ROOT / 'docs' / 'results' / 'reproduction'
  names = {
    str(path.relative_to(folder).with_suffix(''))
    for path in folder.glob('*/*.csv')
  }
  assert names <= FIGURES.keys()
  for name in names:
    rows = table.read(folder / f'{name}.csv')
    assert rows, 'it has other columns'
    assert (folder / f'{name}.png').is_file()
    assert {row['data'] for row in rows} <= set(FIGURES[name].data)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(sets, tmp_path, monkeypatch):
  class Killed(BaseException):
    pass

  ran = []
  rows_of = running.rows_of

  def counted(case, *rest):
    ran.append(case)
    return rows_of(case, *rest)

  def die(text):
    if len(ran) == 2:
      raise Killed

  monkeypatch.setattr(running, 'rows_of', counted)
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  running.run(STEPS, whole, sets)
  number, path = len(ran), Path(f'{STEPS.name}.csv')
  ran.clear()
  with pytest.raises(Killed):
    running.run(STEPS, broken, sets, die)
  part = (broken / path).read_text()
  assert (whole / path).read_text().startswith(part)
  running.run(STEPS, broken, sets)
  assert len(ran) == number  # none of them twice
  assert (broken / path).read_text() == (whole / path).read_text()
  # The same runs in another figure: they are not made again.
  running.run(FIGURES['gaussian/step-both'], broken, sets)
  assert len(ran) == number
  # But for the curve by steps, which these figures do not show.
  curve = dataclasses.replace(STEPS, axes=FIGURES['gaussian/iterations'].axes)
  running.run(curve, broken, sets)
  assert len(ran) > number


@pytest.mark.slow
def test_another_data_set_leaves_rows_of_the_others(sets, tmp_path):
  first = running.run(STEPS, tmp_path, sets)
  path = tmp_path / f'{STEPS.name}.csv'
  other = [row | {'data': 'ml-100k'} for row in first]
  stale = [row | {'seeds': 'seeds 0..9'} for row in first]
  table.write(path, other + stale)
  both = dataclasses.replace(STEPS, data=('ml-100k', 'synthetic'))
  full = running.Sets(data.Source(), quick=False, only=['synthetic'])
  few = lambda name: STEPS.cases('quick')
  again = running.run(dataclasses.replace(both, cases=few), tmp_path, full)
  assert [row['data'] for row in again] == (
    ['synthetic'] * len(first) + ['ml-100k'] * len(first)
  )


@pytest.mark.slow
def test_epsilons_seeds_and_folds_share_a_program(sets):
  splits = sets.splits('synthetic', 'none')
  (case, *_) = FIGURES['pdp/fig5'].cases('quick')
  run = lambda case: running.rows_of(case, splits, sets.source)
  run(dataclasses.replace(case, runs=1))
  before = training._block._cache_size()
  other = {**case.settings, 'epsilon': 0.9}
  run(dataclasses.replace(case, runs=3, settings=other))
  assert training._block._cache_size() == before


def test_folds_are_all_of_the_ratings_once(sets):
  splits = sets.splits('synthetic', 'none')
  tests = [splits.part('tenfold', n, None).test for n in range(data.FOLDS)]
  pairs = [(p.user * 1000 + p.item) for p in tests]
  whole = splits.dataset.ratings
  np.testing.assert_array_equal(
    np.sort(np.concatenate(pairs)), np.sort(whole.user * 1000 + whole.item)
  )


@pytest.mark.slow
def test_steps_stop_once_the_error_hardly_falls(sets):
  splits = sets.splits('synthetic', 'none')
  (case, *_) = STEPS.cases('quick')
  config = running.config_of(case, splits.dataset.ratings, sets.source)
  config = dataclasses.replace(config, steps=200)
  found = measures.converged(
    'gaussian_mf', config, splits.part('all', 0, None), 0, least_fall=10.0
  )
  # The first time that there are 100 steps to look back over.
  assert found[measures.STEPS] == measures.WINDOW + measures.LOOK
  curve = found[f'{measures.TRAINING} by step']
  assert list(curve) == [100, 125]
  assert found[measures.OVERALL] == measures.overall(config, 125)


@pytest.mark.parametrize(
  ('kept', 'users'), [('none', 150), ('ten', None), ('active', 0)]
)
def test_a_file_is_filtered_as_in_the_paper(kept, users, sets, tmp_path):
  whole = sets.splits('synthetic', 'none').dataset.ratings
  path = tmp_path / 'mine.csv'
  write(whole, path)
  source = data.Source(ratings=str(path), scale=(1.0, 5.0))
  if users == 0:
    with pytest.raises(ValueError, match='no user has more than 200'):
      data.dataset('given', source, kept)
    return
  found = data.dataset('given', source, kept)
  if users is None:
    users = (np.bincount(whole.user) > 10).sum()
  assert found.ratings.num_users == users
  assert found.said.startswith('mine.csv')


def test_list(launch):
  done = launch('reproduce', '--list')
  assert done.returncode == 0
  assert [line.split()[0] for line in done.stdout.splitlines()] == [*FIGURES]


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    ((), 'pass --list, --figure=NAME, --paper=NAME or --all'),
    (('--figure=pdp/fig9',), '--figure=pdp/fig9 must be one of gaussian/'),
    (('--paper=hua',), '--paper=hua must be one of gaussian, dpmf'),
  ],
)
def test_wrong_names(flags, said, launch):
  done = launch('reproduce', *flags)
  assert done.returncode == 2
  assert said in done.stderr


def test_the_command_writes_what_it_says(launch, tmp_path):
  done = launch('reproduce', '--figure=pdp/tables', f'--output={tmp_path}')
  assert done.returncode == 0, done.stderr
  assert 'Ratings were made up' in done.stdout
  assert {path.name for path in (tmp_path / 'pdp').iterdir()} == {
    'tables.csv', 'tables.png',
  }  # fmt: skip


def test_active_slice_follows_its_order():
  # User 1 rates items 1-4, user 2 items 1-3, user 3 item 4 only.
  users, items = [1, 1, 1, 1, 2, 2, 2, 3], [1, 2, 3, 4, 1, 2, 3, 4]
  table = from_arrays(users, items, np.arange(8) / 2 + 1, scale=(1, 5))
  part = data.active_slice(table, min_user=1, max_user=9, min_item=1)
  # Without user 3, item 4 has one rating left and goes as well.
  np.testing.assert_array_equal(part.user_ids, [1, 2])
  np.testing.assert_array_equal(part.item_ids, [1, 2, 3])
  assert len(part) == 6
  part = data.active_slice(table, min_user=1, max_user=4, min_item=0)
  np.testing.assert_array_equal(part.user_ids, [2])
  with pytest.raises(DataError, match='widen the slice'):
    data.active_slice(table)


def test_active_slice_of_the_real_anime(data_dir):
  ratings = catalog.load('anime-slice', data_dir=data_dir, quiet=True)
  part = data.active_slice(ratings)
  per_user = np.bincount(ratings.user)
  kept = np.isin(ratings.user_ids, part.user_ids)
  assert per_user[kept].min() > 200
  assert per_user[kept].max() < 2500
  assert np.bincount(part.item).min() > 100
