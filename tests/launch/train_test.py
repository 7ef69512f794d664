"""`launch.train` and `launch.recommend` as people run them."""

import csv
import hashlib
import json
import os
import shutil
import stat
from datetime import datetime, timedelta

import numpy as np
import pytest

from dpmf_jax import files
from dpmf_jax.accounting import ledger
from dpmf_jax.certificates import validate
from dpmf_jax.ratings import writing
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import from_arrays


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('train')


@pytest.fixture(scope='module')
def ratings_file(folder):
  """A CSV with string ids, and its ratings."""
  made = synthetic(num_users=80, num_items=50, num_ratings=1500, seed=2)
  ratings = from_arrays(
    [f'user-{u}' for u in made.user],
    [f'item-{i}' for i in made.item],
    made.value,
    scale=made.scale,
  )
  path = folder / 'mine.csv'
  writing.write(ratings, path)
  return path


@pytest.fixture(scope='module')
def run(folder, ratings_file, launch):
  """A finished sound run with OS entropy: its folder and what it printed."""
  output = folder / 'run'
  done = launch(
    'train', f'--ratings={ratings_file}', '--epsilon=3', f'--output={output}',
    '--system=gaussian_mf', '--steps=10', f'--curves={folder / "curve.csv"}',
    alone=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  return output, done


def read(path):
  return json.loads(path.read_text())


def test_it_writes_what_it_says(run):
  output, done = run
  names = {path.name for path in output.iterdir()}
  assert names == {
    'model.safetensors', 'ids.json', 'metrics.json', 'learning_curve.png',
    'error_cdf.png', 'certificate.json', 'private',
  }  # fmt: skip
  assert stat.S_IMODE((output / 'private').stat().st_mode) == 0o700
  for picture in ('learning_curve.png', 'error_cdf.png'):
    assert (output / picture).read_bytes()[:4] == b'\x89PNG'
    assert stat.S_IMODE((output / picture).stat().st_mode) == 0o600
  assert 'Guarantee (proved): epsilon = 3' in done.stdout


def test_metrics_are_complete(run):
  metrics = read(run[0] / 'metrics.json')
  baselines = {'global_mean', 'user_mean', 'item_mean', 'bias'}
  assert metrics['baselines'].keys() == baselines
  for name in ('train_rmse', 'test_rmse', 'epsilon', 'delta', 'seconds'):
    assert metrics[name] > 0
  assert metrics['steps'] == 10
  assert [point['step'] for point in metrics['curve']] == list(range(11))
  cdf = metrics['error_cdf']
  assert cdf['errors'] == [k / 4 for k in range(17)]
  for part in ('train', 'test'):
    assert len(cdf[part]) == 17
    assert cdf[part] == sorted(cdf[part])
    assert cdf[part][-1] == 1


def test_curves_are_those_of_the_metrics(run, folder):
  curve = read(run[0] / 'metrics.json')['curve']
  with (folder / 'curve.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [float(row['test_rmse']) for row in rows] == [
    point['test_rmse'] for point in curve
  ]
  assert stat.S_IMODE((folder / 'curve.csv').stat().st_mode) == 0o600


def test_a_package_that_is_missing_is_named(launch, ratings_file, tmp_path):
  done = launch(
    'train', f'--ratings={ratings_file}', '--epsilon=3',
    f'--output={tmp_path / "out"}', '--tensorboard=logs',
    before='import sys; sys.modules |= dict.fromkeys('
    "['tensorboardX', 'torch.utils.tensorboard'])",
  )  # fmt: skip
  assert done.returncode == 2
  assert done.stderr == (
    'error: --tensorboard=logs needs a package that writes such logs: pip '
    'install tensorboardX\n'
  )


def test_certificate_is_of_this_run(run):
  document = read(run[0] / 'certificate.json')
  assert document['status'] == 'proved'
  assert document['epsilon'] == pytest.approx(3, rel=1e-6)
  assert document['relation'] == 'add_remove'
  assert document['parameters']['steps'] == 10
  assert document['randomness']['valid_for_release']
  assert 'num_train' not in json.dumps(document)  # N is private here


def test_certificate_says_when_and_with_what_generator(run):
  document = read(run[0] / 'certificate.json')
  made = datetime.fromisoformat(document['date'])
  assert made.utcoffset() == timedelta(0)
  assert document['run']
  assert document['randomness']['generator'] == 'threefry2x32, 64-bit key'


@pytest.mark.slow
def test_another_default_generator_changes_nothing(
  launch, ratings_file, tmp_path
):
  models = []
  for impl in ('threefry2x32', 'rbg'):
    done = launch(
      'train', f'--ratings={ratings_file}', f'--output={tmp_path / impl}',
      '--system=gaussian_mf', '--epsilon=3', '--steps=2', '--seed=5',
      env={**os.environ, 'JAX_DEFAULT_PRNG_IMPL': impl}, alone=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    models.append((tmp_path / impl / 'model.safetensors').read_bytes())
  assert models[0] == models[1]


def test_the_certificate_has_the_id_of_the_ledger(
  launch, ratings_file, tmp_path
):
  book = tmp_path / 'book.ledger'
  done = train(
    launch, ratings_file, tmp_path / 'run', '--epsilon=3', '--steps=2',
    f'--ledger={book}', '--budget_epsilon=4',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  (entry,) = ledger.entries(book)
  assert read(tmp_path / 'run' / 'certificate.json')['run'] == entry.id


def test_certificate_names_its_model(run):
  output = run[0]
  model = (output / 'model.safetensors').read_bytes()
  certificate = read(output / 'certificate.json')
  digest = hashlib.sha256(model).hexdigest()
  assert certificate['files'] == {'model.safetensors': digest}
  validate(certificate)


def test_model_holds_only_what_is_covered(run):
  leaves, metadata = files.load_leaves(run[0] / 'model.safetensors')
  assert set(leaves) == {'factors/user', 'factors/item', 'offset'}
  assert leaves['factors/user'].shape == (80, 4)
  assert not metadata


def test_the_key_is_gone_when_the_run_is_done(run):
  names = {path.name for path in (run[0] / 'private').iterdir()}
  assert names == {'seen.safetensors'}


def test_a_finished_run_is_not_written_over(run, launch, ratings_file):
  before = (run[0] / 'model.safetensors').read_bytes()
  done = launch(
    'train', f'--ratings={ratings_file}', '--epsilon=3', f'--output={run[0]}'
  )
  assert done.returncode == 2
  assert 'holds a finished run' in done.stderr
  assert len(done.stderr.splitlines()) == 1
  assert (run[0] / 'model.safetensors').read_bytes() == before


def test_recommendations_have_original_ids_and_no_seen_items(
  run, launch, tmp_path, ratings_file
):
  path = tmp_path / 'top.csv'
  done = launch(
    'recommend', f'--model={run[0]}', '--users=all', '--k=7', f'--output={path}'
  )
  assert done.returncode == 0, done.stderr
  rows = list(csv.DictReader(path.open()))
  assert list(rows[0]) == ['user', 'item', 'score', 'rank']
  assert len({row['user'] for row in rows}) == 80
  assert all(1 <= float(row['score']) <= 5 for row in rows)
  leaves, _ = files.load_leaves(run[0] / 'private' / 'seen.safetensors')
  ids = read(run[0] / 'ids.json')
  seen = {
    (ids['users'][u], ids['items'][i])
    for u, i in zip(leaves['user'], leaves['item'], strict=True)
  }
  assert not seen & {(row['user'], row['item']) for row in rows}


def test_recommendations_as_parquet_and_table(run, launch, tmp_path):
  import pyarrow.parquet

  path = tmp_path / 'top.parquet'
  flags = f'--model={run[0]}', '--users=user-3', '--k=4'
  launch('recommend', *flags, f'--output={path}')
  table = pyarrow.parquet.read_table(path)
  assert table.column_names == ['user', 'item', 'score', 'rank']
  assert table['rank'].to_pylist() == [1, 2, 3, 4]
  done = launch('recommend', *flags)
  assert done.stdout.splitlines()[0] == 'user user-3'
  assert all(item in done.stdout for item in table['item'].to_pylist())


def train(launch, ratings_file, output, *flags):
  named = any(flag.startswith('--system=') for flag in flags)
  return launch(
    'train', f'--ratings={ratings_file}', f'--output={output}', *flags,
    *([] if named else ['--system=gaussian_mf']),
  )  # fmt: skip


def test_a_seed_gives_the_same_bits_and_entropy_does_not(
  launch, ratings_file, tmp_path, run
):
  models = []
  for number in range(2):
    output = tmp_path / str(number)
    done = train(
      launch, ratings_file, output, '--epsilon=3', '--steps=10', '--seed=5'
    )
    assert 'FOR EXPERIMENTS ONLY' in done.stdout
    models.append((output / 'model.safetensors').read_bytes())
  assert models[0] == models[1]
  assert models[0] != (run[0] / 'model.safetensors').read_bytes()


@pytest.mark.slow
def test_paper_variant_releases_users_only(launch, ratings_file, tmp_path):
  done = train(
    launch, ratings_file, tmp_path / 'run', '--variant=paper', '--steps=5',
    '--epsilon_per_step=0.3', '--delta=1e-5',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert 'CLAIMED BY THE PAPER' in done.stdout
  leaves, _ = files.load_leaves(tmp_path / 'run' / 'model.safetensors')
  assert set(leaves) == {'factors/user', 'offset'}
  done = launch('recommend', f'--model={tmp_path / "run"}', '--users=user-1')
  assert done.returncode == 0
  assert 'no guarantee covers' in done.stderr


def features_file(path, role, number):
  """Two small numbers for each of so many, and what is said of them."""
  lines = [f'{role}-{n},{n % 7},{n % 3}' for n in range(number)]
  path.write_text(f'{role},year,size\n' + '\n'.join(lines) + '\n')
  return path, f'sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}'


@pytest.mark.slow
def test_user_features_are_read_and_named(launch, ratings_file, tmp_path):
  users, hashed = features_file(tmp_path / 'users.csv', 'user', 80)
  done = train(
    launch, ratings_file, tmp_path / 'run', '--system=objective_pmf',
    '--epsilon=3', f'--user_features={users}',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  document = read(tmp_path / 'run' / 'certificate.json')
  assert document['parameters']['user_features'] == hashed
  assert 'in 9 dimensions' in document['mechanism']  # 3 features
  model, _ = files.load_leaves(tmp_path / 'run' / 'model.safetensors')
  assert model['factors/item'].shape == (50, 4)
  refused = train(
    launch, ratings_file, tmp_path / 'no', '--epsilon=3',
    f'--user_features={users}',
  )  # fmt: skip
  assert refused.returncode == 2
  assert refused.stderr.strip() == (
    'error: --system=gaussian_mf takes no --user_features'
  )


@pytest.mark.slow
def test_a_rank_that_is_chosen_is_stated(launch, ratings_file, tmp_path):
  done = train(
    launch, ratings_file, tmp_path / 'run', '--system=dpals', '--epsilon=4'
  )
  assert done.returncode == 0, done.stderr
  document = read(tmp_path / 'run' / 'certificate.json')
  assert document['parameters']['rank'] == 0
  assert 'sweeps of rank 0,' in document['mechanism']
  # With votes, a tenth of what is summed.
  assert 'by at most 4.02035 in L2 norm' in document['mechanism']
  leaves, _ = files.load_leaves(tmp_path / 'run' / 'model.safetensors')
  # Popularity, a mean and a 1.
  assert leaves['factors/item'].shape == (50, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags',
  [
    ['--system=sdmf', '--variant=paper', '--steps=2', '--rank=4'],
    ['--system=local_mf', '--levels=1', '--levels=5', '--rank=0'],
    ['--system=untrusted_pmf'],
  ],
  ids=lambda flags: flags[0],
)
def test_systems_with_clients_say_what_is_sent(
  launch, ratings_file, tmp_path, flags
):
  done = train(launch, ratings_file, tmp_path / 'run', '--epsilon=4', *flags)
  assert done.returncode == 0, done.stderr
  metrics = read(tmp_path / 'run' / 'metrics.json')
  sent = metrics['communication']
  assert min(sent['bytes_up'], sent['bytes_down']) > 0
  if 'sdmf' in flags[0]:
    # 50 items of 4 factors down; up an item and its gradient for each rating.
    up = metrics['num_train'] / 80 * 20 + 1
    assert sent == {'bytes_down': 800, 'bytes_up': up}


@pytest.mark.slow
def test_nonprivate_has_no_epsilon(launch, ratings_file, tmp_path):
  done = train(
    launch,
    ratings_file,
    tmp_path / 'run',
    '--system=nonprivate',
    '--steps=5',
    '--test_fraction=0',
  )
  assert done.returncode == 0, done.stderr
  assert 'Guarantee: NONE' in done.stdout
  document = read(tmp_path / 'run' / 'certificate.json')
  assert (document['status'], document['epsilon']) == ('none', None)
  assert read(tmp_path / 'run' / 'metrics.json')['test_rmse'] is None


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_bits(
  launch, launch_killed, ratings_file, tmp_path
):
  flags = ['--system=gaussian_mf', '--epsilon=3', '--steps=400', '--seed=1']
  flags.append('--report_every=100')
  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  assert train(launch, ratings_file, whole, *flags).returncode == 0
  launch_killed(f'--ratings={ratings_file}', f'--output={broken}', *flags)
  checkpoint = broken / 'private' / 'checkpoint.safetensors'
  assert files.load_leaves(checkpoint)[0]['step'] == 100
  assert not (broken / 'model.safetensors').exists()
  assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o600
  run_id = files.load_leaves(checkpoint)[1]['run']

  other = train(launch, ratings_file, broken, *flags[:-1], '--rank=5')
  assert other.returncode == 2
  assert 'interrupted run with --rank=' in other.stderr
  assert ', this one has --rank=5; use' in other.stderr

  done = train(launch, ratings_file, broken, *flags)
  assert done.returncode == 0, done.stderr
  assert 'going on from step' in done.stdout
  models = [path / 'model.safetensors' for path in (broken, whole)]
  assert models[0].read_bytes() == models[1].read_bytes()
  found, want = (read(path / 'certificate.json') for path in (broken, whole))
  assert found.pop('run') == run_id
  assert want.pop('run') != run_id
  for document in (found, want):
    del document['date']
  assert found == want
  assert not checkpoint.exists()


def test_an_interrupted_run_with_entropy_keeps_its_key(
  launch, ratings_file, tmp_path
):
  # The key is on disk before the first step, so a run that is started again
  # cannot draw other noise for the same ratings.
  output = tmp_path / 'run'
  flags = '--epsilon=3', '--steps=50', '--step_size=3e38'
  done = train(launch, ratings_file, output, *flags)
  assert done.returncode == 2
  assert 'training diverged' in done.stderr
  path = output / 'private' / 'checkpoint.safetensors'
  key = files.load_leaves(path)[0]['key']
  train(launch, ratings_file, output, *flags)
  np.testing.assert_array_equal(files.load_leaves(path)[0]['key'], key)


def personalized(launch, path, output, *flags):
  done = train(launch, path, output, '--system=personalized_pmf', *flags)
  assert done.returncode == 0, done.stderr
  return done, read(output / 'certificate.json'), read(output / 'metrics.json')


@pytest.mark.slow
def test_a_threshold_comes_from_public_numbers(launch, ratings_file, tmp_path):
  done, document, metrics = personalized(
    launch, ratings_file, tmp_path / 'run', '--specification=fractions',
    '--threshold=mean', '--method=sampling', '--delta=0',
  )  # fmt: skip
  own = document['personal']
  assert own['threshold'] == pytest.approx(0.393)
  assert own['worst_case'] == document['epsilon'] == own['threshold']
  assert own['distribution']['largest'] == own['threshold']
  assert 'all pairs' in own['distribution']['of']
  assert document['parameters']['threshold'] == 'mean'
  assert 'personal   each rating has its own epsilon: 0.1' in done.stdout
  found = metrics['accounted_epsilons']
  assert found['of'] == 'the training ratings'
  # 1,200 ratings of standard deviation below 0.15: five deviations.
  assert abs(found['mean'] - own['distribution']['mean']) < 0.022


def test_a_column_is_for_the_curator_only(launch, ratings_file, tmp_path):
  header, *lines = ratings_file.read_text().splitlines()
  wishes = (f'{line},{0.2 + 0.1 * (n % 3)}' for n, line in enumerate(lines))
  path = tmp_path / 'levels.csv'
  path.write_text('\n'.join([f'{header},level', *wishes]) + '\n')
  _, document, metrics = personalized(
    launch, path, tmp_path / 'run', '--epsilon_column=level',
    '--threshold=0.5', '--delta=0',
  )  # fmt: skip
  assert document['personal']['distribution'] is None
  assert document['personal']['worst_case'] == 0.5
  assert metrics['accounted_epsilons']['largest'] == pytest.approx(
    0.4, rel=1e-3
  )
  assert metrics['accounted_epsilons']['largest'] <= 0.4
  for flag in ('mean', 'max', 'best'):
    done = train(
      launch, path, tmp_path / 'no', '--system=personalized_pmf',
      '--epsilon_column=level', f'--threshold={flag}',
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert 'would tell which ratings there are' in done.stderr


def test_a_file_of_users_gives_threshold_and_distribution(
  launch, ratings_file, tmp_path
):
  users = tmp_path / 'users.csv'
  wishes = [f'user-{n},{0.5 if n % 2 else 1.5}' for n in range(80)]
  users.write_text('\n'.join([*wishes, 'nobody,3']) + '\n')
  _, document, _ = personalized(
    launch, ratings_file, tmp_path / 'run', f'--epsilon_file={users}',
    '--threshold=max', '--delta=0',
  )  # fmt: skip
  assert document['epsilon'] == 3.0  # of somebody without ratings
  own = document['personal']['distribution']
  assert own['of'] == 'the users in the public file'
  np.testing.assert_allclose(own['quartiles'], [0.5, 1.5, 1.5], rtol=1e-3)
  assert own['largest'] == 3.0


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--epsilon=1', '--threshold=1', '--system=personalized_pmf',
      '--specification=fractions'], 'only one of --epsilon and --threshold'),
    (['--threshold=1'], '--threshold is for personalized systems'),
    (['--system=personalized_pmf', '--specification=fractions'],
     'or --threshold=best'),
    (['--epsilon=1', '--dataset=ml-100k'], 'one of --dataset=NAME and'),
    ([], 'for example --epsilon=1'),
    (['--epsilon=-1'], 'epsilon=-1.0 must be'),
    (['--epsilon=1', '--scale=5'], '--scale=5 must be'),
    (['--epsilon=1', '--scale=2,5'], 'is outside the scale 2..5'),
    (['--epsilon=1', '--test_fraction=1.5'], '--test_fraction=1.5 must be'),
    (['--epsilon=1', '--biases'], '--biases is not a setting of'),
    (['--epsilon=1', '--epsilon_per_step=0.1'], 'exactly one of'),
    (['--epsilon=1', '--devices=99'], 'error: --devices=99 is not in'),
    (['--epsilon=1', '--bogus=1'], 'bogus'),
    (['--epsilon=one'], 'epsilon'),
  ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_destroys_nothing(
  launch, ratings_file, tmp_path, flags, words
):
  output = tmp_path / 'run'
  done = train(launch, ratings_file, output, *flags)
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) == 1, done.stderr
  assert done.stderr.startswith('error: ')
  assert words in done.stderr
  assert not (output / 'certificate.json').exists()


def test_a_folder_with_other_files_is_left_alone(
  launch, ratings_file, tmp_path
):
  (tmp_path / 'thesis.tex').write_text('x')
  done = train(launch, ratings_file, tmp_path, '--epsilon=1')
  assert done.returncode == 2
  assert 'thesis.tex' in done.stderr
  assert [path.name for path in tmp_path.iterdir()] == ['thesis.tex']


@pytest.mark.slow
def test_public_ratings_are_read_and_kept_as_a_prior(
  launch, ratings_file, tmp_path
):
  kept = tmp_path / 'prior.safetensors'
  public = shutil.copy(ratings_file, tmp_path / f'public_{ratings_file.name}')
  given = '--system=power_mf', '--rank=0', '--epsilon=3'
  done = train(
    launch, ratings_file, tmp_path / 'a', *given,
    f'--public_ratings={public}', f'--save_prior={kept}',
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert 'items matched by id' in done.stdout
  assert 'not for publication' in done.stdout
  again = train(
    launch, ratings_file, tmp_path / 'b', *given, f'--public_ratings={kept}'
  )
  assert again.returncode == 0, again.stderr
  parameters = lambda name: read(tmp_path / name / 'certificate.json')[
    'parameters'
  ]
  one, other = map(parameters, 'ab')
  assert one['public_ratings'] == other['public_ratings']
  refused = train(
    launch, ratings_file, tmp_path / 'c', *given, f'--save_prior={kept}'
  )
  assert refused.returncode == 2
  assert refused.stderr.strip() == 'error: --save_prior needs --public_ratings'
  refused = train(
    launch, ratings_file, tmp_path / 'd', *given,
    f'--public_ratings={ratings_file}',
  )  # fmt: skip
  assert refused.returncode == 2
  assert 'are the ratings themselves' in refused.stderr


@pytest.mark.slow
def test_item_features_are_read_and_named(launch, ratings_file, tmp_path):
  facts, hashed = features_file(tmp_path / 'items.csv', 'item', 50)
  given = '--system=power_mf', '--rank=0', '--epsilon=3'
  done = train(
    launch, ratings_file, tmp_path / 'run', *given, f'--item_features={facts}'
  )
  assert done.returncode == 0, done.stderr
  document = read(tmp_path / 'run' / 'certificate.json')
  assert document['parameters']['item_features'] == hashed
  facts.write_text('item,year\nitem-1,3\n')
  refused = train(
    launch, ratings_file, tmp_path / 'no', *given, f'--item_features={facts}'
  )
  assert refused.returncode == 2
  assert '49 item(s) have no line' in refused.stderr


@pytest.mark.parametrize(
  ('given', 'said'),
  [
    (['--num_processes=2'], '--num_processes needs --coordinator=HOST:PORT'),
    (['--coordinator=host'], '--coordinator=host must be HOST:PORT, or auto'),
    (['--coordinator=host:1'], '--num_processes=None must be at least 1'),
    (
      ['--coordinator=host:1', '--num_processes=2', '--process_id=2'],
      '--process_id=2 must be in 0..1, below --num_processes',
    ),
  ],
)
def test_wrong_processes_are_an_error(launch, tmp_path, given, said):
  done = launch(
    'train', '--dataset=synthetic-1m', f'--output={tmp_path}/run', *given
  )
  assert done.returncode == 2
  assert done.stderr == f'error: {said}\n'
