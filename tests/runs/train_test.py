"""`dpmf_jax.train`: from ratings to a run, in one call."""

import dataclasses
import json

import jax
import numpy as np
import pandas as pd
import pytest

import dpmf_jax
from dpmf_jax.accounting import ledger
from dpmf_jax.ratings import specification, writing
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.runs import recording
from dpmf_jax.types import System

QUIET = {'progress': False, 'devices': 1}
CHEAP = {'system': 'power_mf', 'rank': 0, 'rounds': 1, 'epsilon': 1, **QUIET}


@pytest.fixture(scope='module')
def run(small_ratings):
  return dpmf_jax.train(small_ratings, epsilon=2, **QUIET)


def test_it_is_certified_and_serves(run, small_ratings):
  assert run.certificate['status'] == 'proved'
  assert run.certificate['epsilon'] <= 2
  assert run.certificate['system'] == 'power_mf'
  assert run.release.factors.user is None
  lists = run.recommend(small_ratings.user_ids[3], k=4)
  assert [each.rank for each in lists] == [1, 2, 3, 4]
  assert {each.user for each in lists} == {small_ratings.user_ids[3]}
  # The curator's own model knows users; what is released does not.
  assert not run.model.covered
  assert dpmf_jax.rmse(run, run.train) == pytest.approx(
    run.metrics['train_rmse'], rel=1e-5
  )


def test_it_says_how_good_and_how_private_it_is(run):
  for shown in (repr(run), run._repr_html_()):
    assert f'{run.metrics["test_rmse"]:.4f}' in shown
    assert 'user mean (not private)' in shown
    assert 'item factors' in shown
    assert 'all users get the same list, or nearly' in shown  # of rank 0
  assert 'Guarantee (proved): epsilon = ' in repr(run)
  assert '<img alt="learning curve"' in run._repr_html_()
  assert 'PROVED' in run._repr_html_()


def test_what_is_worse_than_a_mean_says_so_at_once(run):
  above = run.metrics['baselines']['user_mean'] + 1
  for error, worse in ((0.0, False), (above, True)):
    made = dataclasses.replace(run, metrics={**run.metrics, 'test_rmse': error})
    first = repr(made).splitlines()[1]
    for shown in (first, made._repr_html_()):
      assert ('is worse than the ' in shown) == worse
      assert ('the user mean (' in shown) == worse


def test_what_is_saved_is_what_a_folder_gets(run, small_ratings, tmp_path):
  seeded = {'epsilon': 2, 'key': 5, **QUIET}
  written = dpmf_jax.train(small_ratings, output=tmp_path / 'a', **seeded)
  kept = dpmf_jax.train(small_ratings, **seeded)
  assert kept.folder is None
  kept.save(tmp_path / 'b')
  assert written.folder == tmp_path / 'a'
  names = lambda folder: sorted(
    str(path.relative_to(folder)) for path in folder.rglob('*')
  )
  assert names(tmp_path / 'a') == names(tmp_path / 'b')
  model = lambda name: (tmp_path / name / 'model.safetensors').read_bytes()
  assert model('a') == model('b')
  served = dpmf_jax.load_model(tmp_path / 'b')
  assert dpmf_jax.recommend(served, k=3) == kept.recommend(k=3)
  with pytest.raises(ValueError, match='holds a finished run'):
    kept.save(tmp_path / 'b')


def test_ratings_come_in_any_form(run, small_ratings, tmp_path):
  """All of them are the same ratings, with the ids that they had."""
  path = tmp_path / 'mine.csv'
  writing.write(small_ratings, path)
  frame = small_ratings.to_dataframe().rename(
    columns={'user': 'userId', 'item': 'movieId'}
  )
  again = {'epsilon': 2, 'key': 5, **QUIET}
  want = dpmf_jax.train(small_ratings, **again)
  for given in (path, str(path), frame):
    found = dpmf_jax.train(given, scale=small_ratings.scale, **again)
    np.testing.assert_array_equal(
      found.whole.factors.item, want.whole.factors.item
    )
  sparse = dpmf_jax.train(small_ratings.to_csr(), **again)
  assert sparse.model.item_factors.shape == want.model.item_factors.shape


@pytest.mark.parametrize(
  ('changed', 'words'),
  [
    ({'epsilon': None}, 'for example epsilon=1'),
    ({'epsilon': -1}, 'epsilon'),
    ({'system': 'powr_mf'}, 'system=powr_mf is not one of gaussian_mf, .*auto'),
    ({'steps': 3}, 'steps=3 is not a setting of system=power_mf'),
    ({'variant': 'paper', 'system': 'power_mf'}, 'variant=paper is not one'),
    ({'system': 'sdmf', 'variant': 'sound', 'rank': -1}, 'rank must be'),
    ({'steps': 3, 'epsilon': None}, 'for example epsilon=1'),
    ({'epsilom': 2, 'epsilon': None}, r'epsilom=2 is not .*mean epsilon\?'),
    ({'Rank': 2}, r'Rank=2 is not a setting .*did you mean rank\?'),
    ({'seed': 1}, 'seed=1 is not an argument of train: key is the seed'),
    ({'columns': {}}, 'columns={} is not an argument .*from_dataframe'),
    ({'delta': '1e-6'}, "delta must be a number, got '1e-6'"),
    ({'test_fraction': '.2'}, "test_fraction='.2' must be in"),
    ({'split': 'first'}, "split='first' must be 'random' or 'last'"),
    ({'split': 'last', 'test_fraction': 0.5}, 'test_fraction=0.5 is for split'),
    ({'split': 'last'}, "has no timestamps, which split='last' needs"),
    ({'split_seed': -1}, 'split_seed=-1 must be an integer in'),
    ({'split_seed': 'a'}, "split_seed='a' must be an integer in"),
    ({'key': 'a'}, "key='a' must be None, an integer"),
    ({'key': 1.5}, 'key=1.5 must be None, an integer'),
    ({'key': True}, 'key=True must be None, an integer'),
    ({'overwrite': 'no'}, "overwrite='no' must be True or False"),
    ({'output': 3}, 'output=3 must be the path of a folder'),
    ({'devices': '1'}, "devices='1' is not in"),
    ({'ranking_k': 5}, 'ranking_k=5 must be a list'),
    ({'test_fraction': 1}, r'test_fraction=1 must be in \[0, 1\)'),
    ({'ranking_k': [0]}, 'ranking_k=0 must be'),
    ({'ranking_threshold': 4}, 'needs ranking_k'),
    ({'scale': (0, 1)}, r'scale=\(0, 1\) is not that of'),
    ({'num_users': 100}, 'num_users=100 is for what protects whole users'),
    ({'user_features': np.ones((60, 2))}, 'takes no user_features'),
    ({'threshold': 'best'}, 'threshold=best is for personalized systems'),
    ({'budget_epsilon': 3}, 'budget_epsilon=3 needs a ledger'),
  ],
)
def test_wrong_arguments_are_one_line_without_flags(
  small_ratings, changed, words
):
  with pytest.raises(ValueError, match=words) as caught:
    dpmf_jax.train(small_ratings, **{'epsilon': 1, **QUIET, **changed})
  assert '--' not in str(caught.value)
  assert '\n' not in str(caught.value)


def test_ratings_of_an_unknown_kind_are_refused():
  with pytest.raises(ValueError, match='ratings of type list are not known'):
    dpmf_jax.train([1, 2, 3], epsilon=1)


def test_a_name_that_is_no_data_set_is_told_those_that_are():
  with pytest.raises(ValueError, match=r'ml100k: no such file, .*ml-100k, '):
    dpmf_jax.train('ml100k', epsilon=1)


def test_epsilons_of_ratings_are_not_ignored(small_ratings):
  asked = specification.with_epsilon(small_ratings, 0.5)
  with pytest.raises(ValueError, match='use system=personalized_pmf'):
    dpmf_jax.train(asked, epsilon=1, **QUIET)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_ratings_alone(
  small_ratings, tmp_path, monkeypatch
):
  given = {
    'system': 'personalized_pmf', 'epsilon': 1, 'output': tmp_path / 'run',
    'user_features': np.eye(60)[:, :2], 'public': {'user_features': 'a file'},
    **QUIET,
  }  # fmt: skip
  record = recording.Recorder.__call__

  def interrupt(self, progress):
    if progress.step:
      raise KeyboardInterrupt
    record(self, progress)

  first = specification.with_epsilon(small_ratings, 0.5)
  with monkeypatch.context() as patch:
    patch.setattr(recording.Recorder, '__call__', interrupt)
    with pytest.raises(KeyboardInterrupt):
      dpmf_jax.train(first, **given)
  other = specification.with_epsilon(small_ratings, 0.7)
  with pytest.raises(ValueError, match='interrupted run with epsilons='):
    dpmf_jax.train(other, **given)
  with pytest.raises(ValueError, match='interrupted run with features='):
    dpmf_jax.train(first, **{**given, 'user_features': np.eye(60)[:, 1:3]})
  with pytest.raises(ValueError, match='interrupted run with key=None'):
    dpmf_jax.train(first, key=jax.random.key(5), **given)
  run = dpmf_jax.train(first, **given)
  source = run.certificate['randomness']['source']
  assert source == 'operating system entropy'


def test_a_ledger_is_charged_without_a_folder(small_ratings, tmp_path):
  book = tmp_path / 'book'
  given = {'system': 'power_mf', 'rank': 0, 'rounds': 1, 'ledger': book}
  run = dpmf_jax.train(
    small_ratings, epsilon=1, budget_epsilon=1.5, **given, **QUIET
  )
  assert [run.certificate['run']] == [each.id for each in ledger.entries(book)]
  with pytest.raises(ledger.BudgetExceeded):
    dpmf_jax.train(small_ratings, epsilon=1, **given, **QUIET)
  for key in (3, jax.random.key(3)):
    with pytest.raises(ValueError, match='key is for experiments'):
      dpmf_jax.train(small_ratings, epsilon=0.1, key=key, **given, **QUIET)


def test_the_certificate_says_where_the_key_is_from(small_ratings):
  for key, source in (
    (None, 'operating system entropy'),
    (3, 'fixed seed'),
    (dpmf_jax.random_key(), 'operating system entropy'),
    (jax.random.key(77), 'given by the caller'),
  ):
    run = dpmf_jax.train(small_ratings, key=key, **CHEAP)
    assert run.certificate['randomness']['source'] == source


def test_a_key_is_for_one_run(small_ratings, tmp_path, monkeypatch):
  key, words = dpmf_jax.random_key(), 'key was used by an earlier run'
  given = {**CHEAP, 'key': key, 'output': tmp_path / 'run'}

  def interrupt(self, progress):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(recording.Recorder, '__call__', interrupt)
    with pytest.raises(KeyboardInterrupt):
      dpmf_jax.train(small_ratings, **given)
  # What goes on is the same run.
  run = dpmf_jax.train(small_ratings, **given)
  assert run.certificate['randomness']['valid_for_release']
  for more in ({'epsilon': 2}, {'output': tmp_path / 'other'}):
    with pytest.raises(ValueError, match=words):
      dpmf_jax.train(small_ratings, **{**CHEAP, 'key': key, **more})


def test_a_run_is_not_saved_over_one_that_can_go_on(
  run, small_ratings, tmp_path, monkeypatch
):
  folder = tmp_path / 'run'

  def interrupt(self, progress):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(recording.Recorder, '__call__', interrupt)
    with pytest.raises(KeyboardInterrupt):
      dpmf_jax.train(small_ratings, output=folder, **CHEAP)
  with pytest.raises(ValueError, match='holds an interrupted run'):
    run.save(folder)
  assert dpmf_jax.train(small_ratings, output=folder, **CHEAP).folder == folder


@pytest.mark.parametrize('name', ['epsilon', 'dataset', 'num_users'])
def test_public_facts_do_not_replace_what_is_so(small_ratings, name):
  with pytest.raises(ValueError, match=f'public has {name!r}'):
    dpmf_jax.train(small_ratings, public={name: '0.1'}, **CHEAP)


def test_somebody_elses_system_is_stated(small_ratings, tmp_path):
  """One that is a copy of ours, but for what it calls itself."""
  ours = dpmf_jax.power_mf(
    epsilon=1.0, delta=1e-6, scale=small_ratings.scale, rank=0, rounds=1
  )
  theirs = System(*ours)
  run = dpmf_jax.train(small_ratings, system=theirs, key=1, **QUIET)
  assert run.certificate['status'] == 'stated'
  assert 'STATED BY ITS AUTHOR' in repr(run)
  with pytest.raises(ValueError, match='epsilon=1 is a setting of systems by'):
    dpmf_jax.train(small_ratings, system=theirs, epsilon=1)
  run.save(tmp_path / 'run')
  saved = json.loads((tmp_path / 'run' / 'certificate.json').read_text())
  assert saved['status'] == 'stated'
  assert run.guarantee.status == 'stated'
  book = tmp_path / 'book'
  with pytest.raises(ValueError, match='whose epsilon is only stated'):
    dpmf_jax.train(
      small_ratings, system=theirs, ledger=book, budget_epsilon=2, **QUIET
    )
  assert not book.exists()


def test_a_ranking_stands_beside_popularity(small_ratings, tmp_path):
  """And no error of ratings is measured of it, printed or drawn."""
  run = dpmf_jax.train(
    small_ratings, task='ranking', unit='user', epsilon=5, delta=1e-5, **QUIET
  )
  assert run.certificate['system'] == 'ranking_mf'
  assert run.certificate['unit'] == 'user'
  found = run.metrics['ranking']
  assert found['threshold'] == pytest.approx(1 + 4 * 2 / 3)
  assert found['baselines'].keys() == {
    'popularity', 'noisy popularity, same budget'
  }  # fmt: skip
  for shown in (repr(run), run._repr_html_()):
    assert 'RMSE' not in shown
    (line,) = (each for each in shown.splitlines() if '  NDCG@10  ' in each)
    beside = [found, *found['baselines'].values()]
    assert line.split()[1:] == [f'{each["ndcg@10"]:.4f}' for each in beside]
    for said in ('items shown@10', 'lists differ@10', 'NDCG@10, tail ('):
      assert shown.count(said) == 1
  run.save(tmp_path / 'run')
  assert not (tmp_path / 'run' / 'error_cdf.png').exists()
  served = dpmf_jax.load_model(tmp_path / 'run')
  assert dpmf_jax.recommend(served, k=3, why=2) == run.recommend(k=3, why=2)
  me = dpmf_jax.fold_in(served, {'me': {small_ratings.item_ids[0]: 5}})
  assert len(dpmf_jax.recommend(me, 'me', k=3)) == 3


def test_a_system_has_its_own_task(small_ratings):
  with pytest.raises(ValueError, match='task=ranking is not what system=dpals'):
    dpmf_jax.train(
      small_ratings, task='ranking', system='dpals', epsilon=1, **QUIET
    )


def test_a_budget_that_no_noisy_popularity_has_loses_no_run(small_ratings):
  given = {**CHEAP, 'delta': 0.0, 'ranking_k': [5], 'key': 1}
  found = dpmf_jax.train(small_ratings, **given).metrics['ranking']
  assert found['baselines'].keys() == {'popularity'}


@pytest.fixture(scope='module')
def visits(small_ratings):
  """A frame of clicks, with times."""
  columns = small_ratings.columns()
  times = np.random.default_rng(0).permutation(len(small_ratings))
  return pd.DataFrame(
    {'user': columns['user'], 'item': columns['item'], 'time': times}
  )


def test_clicks_are_ranked(visits, tmp_path):
  """Without a flag, a scale or a rating anywhere."""
  path = tmp_path / 'visits.csv'
  visits.to_csv(path, index=False)
  given = {'rank': 0, 'unit': 'user', 'epsilon': 5, 'key': 1}
  run = dpmf_jax.train(path, **given, **QUIET)
  assert run.certificate['system'] == 'ranking_mf'
  assert run.certificate['parameters']['max_count'] == 1
  assert run.train.clicks
  found = run.metrics['ranking']
  assert found['threshold'] is None
  assert found['relevant'] == run.metrics['num_test']
  assert 'RMSE' not in repr(run)
  again = dpmf_jax.train(visits, **given, **QUIET)
  np.testing.assert_array_equal(
    again.whole.factors.item, run.whole.factors.item
  )
  run.save(tmp_path / 'run')
  served = dpmf_jax.load_model(tmp_path / 'run')
  assert served.clicks
  assert dpmf_jax.recommend(served, k=3) == run.recommend(k=3)
  one, two = visits.item[:2].tolist()
  wanted = dpmf_jax.recommend(dpmf_jax.fold_in(served, {'me': [one, two]}))
  frame = pd.DataFrame({'user': ['me', 'me'], 'item': [one, two]})
  for mine in (frame, frame.assign(plays=[3, 1]), {'me': {one: 1, two: 4}}):
    assert dpmf_jax.recommend(dpmf_jax.fold_in(served, mine)) == wanted
  ratings = dpmf_jax.from_arrays(['me'], [one], [4], scale=(1, 5))
  with pytest.raises(ValueError, match='has ratings, and the model is of clic'):
    dpmf_jax.fold_in(served, ratings)


def test_a_ranking_of_stars_takes_clicks_for_the_highest(small_ratings):
  given = {'task': 'ranking', 'rank': 0, 'unit': 'user', 'epsilon': 5}
  model = dpmf_jax.train(small_ratings, **given, **QUIET).model
  item = small_ratings.item_ids[3]
  lists = [
    dpmf_jax.recommend(dpmf_jax.fold_in(model, {'me': mine}), k=5)
    for mine in ([item], {item: 5})
  ]
  assert lists[0] == lists[1]


def test_the_last_visit_of_each_user_may_be_held_out(visits):
  given = {'rank': 0, 'unit': 'user', 'epsilon': 5, 'split': 'last'}
  run = dpmf_jax.train(visits, **given, **QUIET)
  assert run.metrics['num_test'] == visits.user.nunique()
  facts = run.certificate['parameters']
  assert facts['split'].startswith('last: the latest of each user is held out')
  assert 'test_fraction' not in facts


def test_users_who_might_be_there_get_no_lists(visits):
  given = {'rank': 0, 'unit': 'user', 'epsilon': 5, 'num_users': 100}
  found = dpmf_jax.train(visits, **given, **QUIET).metrics['ranking']
  assert found['users'] + found['users_left_out'] == visits.user.nunique()


def test_what_ranks_is_not_judged_by_errors(small_ratings, visits):
  given = {'system': 'als', 'feedback': 'implicit', 'steps': 1, **QUIET}
  for ratings in (small_ratings, visits):
    run = dpmf_jax.train(ratings, **given)
    assert run.metrics['task'] == 'ranking'
    assert 'RMSE' not in repr(run)
    assert run.metrics['ranking']['baselines'].keys() == {'popularity'}


def test_items_that_are_spread_release_the_same_bits(tmp_path, monkeypatch):
  ratings = synthetic(num_users=30, num_items=15, num_ratings=200, seed=2)
  given = {
    'system': 'gaussian_mf', 'epsilon': 4, 'rank': 2, 'steps': 3, 'key': 3,
    'devices': 2, 'progress': False, 'checkpoint_seconds': 0,
    'report_every': 1,
  }  # fmt: skip
  whole = dpmf_jax.train(ratings, **given)
  spread = dpmf_jax.train(ratings, item_tables='spread', **given)
  jax.tree.map(np.testing.assert_array_equal, whole.whole, spread.whole)

  report = recording.Recorder.__call__

  def report_and_stop(self, progress):
    report(self, progress)
    if progress.step == 2:
      raise KeyboardInterrupt

  # Interrupted with the one and finished with the other.
  for places in (('spread', 'everywhere'), ('everywhere', 'spread')):
    given['output'] = tmp_path / places[0]
    with monkeypatch.context() as patch:
      patch.setattr(recording.Recorder, '__call__', report_and_stop)
      with pytest.raises(KeyboardInterrupt):
        dpmf_jax.train(ratings, item_tables=places[0], **given)
    again = dpmf_jax.train(ratings, item_tables=places[1], **given)
    jax.tree.map(np.testing.assert_array_equal, whole.whole, again.whole)


@pytest.mark.parametrize(
  ('system', 'where'), [('als', 'spread'), ('gaussian_mf', 'nowhere')]
)
def test_tables_of_items_are_somewhere(system, where):
  ratings = synthetic(num_users=30, num_items=15, num_ratings=200, seed=2)
  more = {} if system == 'als' else {'epsilon': 4}
  with pytest.raises(ValueError, match='item_tables'):
    dpmf_jax.train(ratings, system=system, item_tables=where, **more)
