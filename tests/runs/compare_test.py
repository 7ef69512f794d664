"""`compare`: a run for each system, epsilon and seed, and a table of them."""

import csv
import io
import json
import stat

import jax
import numpy as np
import pytest

import dpmf_jax
from dpmf_jax import training
from dpmf_jax.evaluation import comparison
from dpmf_jax.ratings import splits
from dpmf_jax.runs.entries import entries_of

PLAIN = {'epsilons': [1, 5], 'seeds': 2, 'devices': 1, 'progress': False}
SOUND = 'gaussian_mf:steps=2'
PAPER = 'gaussian_mf:paper:steps=30'
OPEN = 'nonprivate:steps=1:rank=2'


@pytest.fixture(scope='module')
def kept(small_ratings, tmp_path_factory):
  """A comparison of what is proved, claimed and neither, and its folder."""
  folder = tmp_path_factory.mktemp('compare') / 'out'
  found = dpmf_jax.compare(
    small_ratings, systems=[SOUND, PAPER, OPEN], output=folder, **PLAIN
  )
  return found, folder


def rows_of(found, system):
  return [row for row in found.rows if row['system'] == system]


def test_there_is_a_row_for_each_system_and_epsilon(kept):
  found, _ = kept
  asked = [(row['system'], row['epsilon']) for row in found.rows]
  assert asked == [
    (SOUND, 1), (SOUND, 5), (PAPER, 1), (PAPER, 5), (OPEN, None),
    ('global mean', None), ('user mean', None), ('item mean', None),
    ('bias', None),
  ]  # fmt: skip
  assert {row['runs'] for row in found.rows} == {2}


def test_a_claim_is_not_in_the_place_of_a_proof(kept):
  found, _ = kept
  proved, claimed, plain = (rows_of(found, s) for s in (SOUND, PAPER, OPEN))
  assert [row['proved_epsilon'] for row in proved] == pytest.approx(
    [1, 5], 1e-3
  )
  assert [row['claimed_epsilon'] for row in claimed] == pytest.approx([1, 5])
  assert {row['claimed_epsilon'] for row in proved + plain} == {None}
  assert {row['proved_epsilon'] for row in claimed + plain} == {None}
  assert (plain[0]['status'], plain[0]['unit']) == ('none', None)
  for text in (str(found), found.markdown(), found.html()):
    assert 'is not a guarantee' in ' '.join(text.split())
  head, lines = found.table()
  (line,) = (x for x in lines if x[:3] == [PAPER, '-', '5'])
  assert head[:4] == ['system', 'proved epsilon', 'claimed epsilon', 'protects']
  assert line[3] == 'one rating, claimed'


def test_a_row_is_the_mean_of_what_train_gives(kept, small_ratings):
  found, _ = kept
  errors = [
    dpmf_jax.train(
      small_ratings, system='gaussian_mf', steps=2, epsilon=5, key=seed,
      split_seed=seed, devices=1, progress=False,
    ).metrics['test_rmse']
    for seed in range(2)
  ]  # fmt: skip
  row = rows_of(found, SOUND)[1]
  assert row['rmse'] == pytest.approx(np.mean(errors), rel=1e-6)
  error = abs(errors[0] - errors[1]) / 2  # of two: std / sqrt(2)
  assert row['rmse_se'] == pytest.approx(error, rel=1e-5)


def test_baselines_are_those_of_the_same_splits(kept, small_ratings):
  found, _ = kept
  errors = [
    dpmf_jax.baselines(*splits.random_split(small_ratings, 0.2, seed=seed))
    for seed in range(2)
  ]
  (row,) = rows_of(found, 'item mean')
  wanted = np.mean([each['item_mean'] for each in errors])
  assert row['rmse'] == pytest.approx(wanted)


def test_every_form_says_first_that_it_is_not_private(kept):
  found, folder = kept
  said = comparison.NOTE
  assert said.startswith('NOT PRIVATE')
  assert ' '.join(str(found).split()).startswith(said)
  assert (folder / 'table.md').read_text().startswith(f'**{said}**')
  page = (folder / 'table.html').read_text()
  assert page.index(said) < page.index('<table>')
  assert 'src="data:image/png;base64,' in page


def test_the_files_are_for_their_owner(kept):
  found, folder = kept
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  names = {path.name for path in folder.iterdir()}
  assert names == {*comparison.FILES, 'cells.jsonl'}
  for path in folder.iterdir():
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert (folder / 'plot.png').read_bytes()[:4] == b'\x89PNG'
  table = list(csv.DictReader(io.StringIO((folder / 'table.csv').read_text())))
  assert [float(row['rmse']) for row in table] == [
    r['rmse'] for r in found.rows
  ]
  assert table[4]['proved_epsilon'] == ''


def test_epsilons_and_splits_compile_nothing(small_ratings, compiled):
  """Besides the first run of a system, which compiles it."""
  steps = training._block._cache_size()
  systems = ['gaussian_mf:steps=2:rank=3', 'nonprivate:steps=2:rank=3']
  run = {**PLAIN, 'folds': 3, 'seeds': 1, 'systems': systems}
  del run['epsilons']
  dpmf_jax.compare(small_ratings, epsilons=[1], **run)
  assert compiled()  # it was counted
  assert training._block._cache_size() == steps + 2  # for all three folds
  found = dpmf_jax.compare(small_ratings, epsilons=[0.5, 2, 4], **run)
  assert compiled() == []
  assert len(found.rows) == 8


@pytest.fixture
def compiled():
  """What was compiled since it was last asked."""
  names = []

  def listen(event, seconds, **_):
    if event == '/jax/core/compile/backend_compile_duration':
      names.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)

  def since():
    found = names.copy()
    names.clear()
    return found

  yield since
  jax.monitoring.unregister_event_duration_listener(listen)


def test_what_is_there_is_not_run_again(kept, small_ratings, monkeypatch):
  found, folder = kept
  before = (folder / 'cells.jsonl').read_text()
  monkeypatch.setattr('dpmf_jax.runs.compare.fit', None)  # would be called
  again = dpmf_jax.compare(
    small_ratings, systems=[SOUND, PAPER, OPEN], output=folder, **PLAIN
  )
  assert again.rows == found.rows
  assert (folder / 'cells.jsonl').read_text() == before


def killed_after(runs, monkeypatch):
  """Ends the comparison after so many runs, as Ctrl-C does."""
  done = []

  def fit(*args, **options):
    if len(done) == runs:
      raise KeyboardInterrupt
    done.append(1)
    return training.fit(*args, **options)

  monkeypatch.setattr('dpmf_jax.runs.compare.fit', fit)


@pytest.mark.parametrize('runs', [1, 3])
def test_a_killed_comparison_goes_on(
  small_ratings, tmp_path, monkeypatch, runs
):
  call = {'systems': [SOUND, OPEN], 'output': tmp_path / 'out', **PLAIN}
  killed_after(runs, monkeypatch)
  with pytest.raises(KeyboardInterrupt):
    dpmf_jax.compare(small_ratings, **call)
  lines = (tmp_path / 'out' / 'cells.jsonl').read_text().splitlines()
  systems = [json.loads(line)['system'] for line in lines]
  assert systems == [SOUND, SOUND, OPEN, 'baselines'][: len(lines)]
  assert len(lines) == (1 if runs == 1 else 4)
  killed_after(6 - runs, monkeypatch)
  found = dpmf_jax.compare(small_ratings, **call)
  monkeypatch.undo()
  whole = dpmf_jax.compare(small_ratings, systems=[SOUND, OPEN], **PLAIN)
  strip = lambda rows: [{**row, 'seconds': 0} for row in rows]
  assert strip(found.rows) == strip(whole.rows)


def test_other_ratings_settings_or_versions_are_run_again(
  kept, small_ratings, monkeypatch
):
  _, folder = kept
  killed_after(0, monkeypatch)
  call = {'systems': [SOUND, PAPER, OPEN], 'output': folder, **PLAIN}
  other = small_ratings.take(np.arange(len(small_ratings)) > 0)
  for change in ({'delta': 1e-5}, {'test_fraction': 0.3}, {'overwrite': True}):
    with pytest.raises(KeyboardInterrupt):
      dpmf_jax.compare(small_ratings, **call | change)
  with pytest.raises(KeyboardInterrupt):
    dpmf_jax.compare(other, **call)
  monkeypatch.setattr('dpmf_jax.__version__', '99')
  with pytest.raises(KeyboardInterrupt):
    dpmf_jax.compare(small_ratings, **call)


@pytest.mark.parametrize(
  ('how', 'said', 'runs'),
  [
    ({'folds': 3, 'seeds': 2}, '3 folds and 2 seeds', 6),
    ({'split': 'one', 'seeds': 1}, 'one random rating of each user', 1),
    ({'split': 'last', 'seeds': 1}, 'the last rating of each user', 1),
  ],
)
def test_what_is_held_out(small_ratings, how, said, runs):
  users, items = small_ratings.user, small_ratings.item
  ratings = dpmf_jax.from_arrays(
    users, items, small_ratings.value, scale=(1, 5), timestamps=items + users
  )
  found = dpmf_jax.compare(
    ratings,
    systems=[SOUND, OPEN],
    epsilons=[2],
    devices=1,
    progress=False,
    **how,
  )
  assert said in str(found)
  assert {row['runs'] for row in found.rows} == {runs}
  assert (found.rows[0]['rmse_se'] is None) == (runs == 1)


@pytest.mark.parametrize(
  ('task', 'added'), [('rating', 'als'), ('ranking', 'ease')]
)
def test_a_model_without_privacy_is_beside_them(small_ratings, task, added):
  labels = lambda *systems: [
    entry.label
    for entry in entries_of(systems, [1.0], None, task, small_ratings)
  ]
  assert labels('auto') == ['auto', added, 'baselines']
  assert labels('auto', OPEN) == ['auto', OPEN, 'baselines']


@pytest.mark.slow
def test_lists(small_ratings):
  found = dpmf_jax.compare(
    small_ratings,
    systems=['ranking_mf:unit=user:rank=0', SOUND, 'ease'],
    task='ranking',
    epsilons=[5],
    seeds=1,
    ranking_k=5,
    devices=1,
    progress=False,
  )
  assert found.metrics == ('ndcg@5', 'recall@5', 'map', 'mrr', 'auc')
  names = [row['system'].split(':')[0] for row in found.rows]
  assert names == ['ranking_mf', 'gaussian_mf', 'ease', 'popularity']
  assert [row['unit'] for row in found.rows] == ['user', 'rating', None, None]
  train, test = splits.random_split(small_ratings, 0.2, seed=0)
  popular = dpmf_jax.ranking_metrics(
    dpmf_jax.evaluation.popular.popularity(train), train, test, 5,
    threshold=1 + 8 / 3,
  )  # fmt: skip
  assert found.rows[-1]['ndcg@5'] == popular['ndcg@5']
  assert 'NDCG@5' in str(found)


def test_a_run_that_diverges_has_no_figures():
  row = comparison.summary([{'rmse': 1.0}, {'rmse': None}])
  assert row == {'runs': 2, 'diverged': 1, 'rmse': None, 'rmse_se': None}


@pytest.mark.parametrize(
  ('wrong', 'said'),
  [
    ({'systems': 'auto'}, "systems='auto' must be a list"),
    ({'systems': []}, r'systems=\[\] must be a list'),
    ({'systems': ['als', 'als']}, "systems=als,als has 'als' twice"),
    ({'systems': ['powr']}, 'systems=powr cannot be run: system=powr is not'),
    ({'systems': ['power_mf:paper']}, 'variant=paper is not one of'),
    ({'systems': ['power_mf:loud']}, "'loud' must be a variant"),
    ({'systems': ['power_mf:rank=x']}, 'rank=x is not a value of it'),
    ({'systems': ['power_mf:steps=2']}, 'steps=2 is not a setting of'),
    ({'systems': ['power_mf:epsilon=2']}, 'epsilons and delta are arguments'),
    ({'systems': ['personalized_pmf']}, 'needs an epsilon for each rating'),
    ({'systems': ['ranking_mf']}, 'it makes lists, and predicts no ratings'),
    ({'epsilons': 1}, 'epsilons=1 must be several'),
    ({'epsilons': [1, -1]}, r'epsilons=\[1, -1\] must be several positive'),
    ({'seeds': 0}, 'seeds=0 must be an integer from 1'),
    ({'folds': 1}, 'folds=1 must be an integer from 2'),
    ({'folds': 3, 'split': 'last'}, "folds=3 is for split='random'"),
    ({'folds': 3, 'test_fraction': 0.2}, 'test_fraction=0.2 is for split='),
    ({'test_fraction': 1}, r'test_fraction=1 must be in \(0, 1\)'),
    ({'split': 'late'}, "split='late' must be 'random', 'last' or 'one'"),
    ({'task': 'ranking', 'ranking_k': 0}, 'ranking_k=0 must be an integer'),
  ],
)
def test_wrong_arguments_are_named_before_anything_runs(
  small_ratings, monkeypatch, wrong, said
):
  monkeypatch.setattr('dpmf_jax.runs.compare.fit', None)
  with pytest.raises(ValueError, match=said):
    dpmf_jax.compare(small_ratings, **{'systems': ['als'], **wrong})


def test_a_folder_with_other_files_is_left_alone(small_ratings, tmp_path):
  (tmp_path / 'thesis.tex').write_text('')
  with pytest.raises(ValueError, match='holds other files'):
    dpmf_jax.compare(small_ratings, systems=['als'], output=tmp_path)
  (tmp_path / 'cells.jsonl').write_text('{}\n')
  with pytest.raises(ValueError, match='line 1: is no run'):
    dpmf_jax.compare(small_ratings, systems=['als'], output=tmp_path)
