"""Lists of ids that do not tell who has a rating, and what is said without."""

import json

import certified
import jax
import numpy as np
import pytest

from dpmf_jax import certificates, files
from dpmf_jax.certificates import wording
from dpmf_jax.plans import SPECS
from dpmf_jax.ratings import formats
from dpmf_jax.ratings.specification import with_epsilon
from dpmf_jax.ratings.table import DataError, from_arrays, with_public_ids
from dpmf_jax.ratings.writing import write
from dpmf_jax.rows import training_data
from dpmf_jax.runs import folders
from dpmf_jax.serving import models, recommendations
from dpmf_jax.systems import build
from dpmf_jax.training import fit

CASES = {
  'gaussian_mf': ('gaussian_mf', {'steps': 2}),
  'power_mf': ('power_mf', {'rank': 2, 'rounds': 1}),
  'power_mf, means': ('power_mf', {'rank': 0}),
  'objective_pmf': ('objective_pmf', {}),
  'objective_pmf, huber': ('objective_pmf', {'loss': 'huber'}),
  'personalized_pmf': ('personalized_pmf', {}),
  'untrusted_pmf': ('untrusted_pmf', {}),
  'local_mf': ('local_mf', {}),
  'local_mf, user': ('local_mf', {'unit': 'user'}),
  'local_ranking': ('local_ranking', {'rank': 0}),
  'dpals': ('dpals', {'steps': 2}),
  'moments': ('moments', {'rank': 2}),
  'moments, rating': ('moments', {'rank': 2, 'unit': 'rating'}),
}


def built(case):
  name, settings = CASES[case]
  entry = SPECS[name]
  common = {'scale': (1.0, 5.0), 'delta': 1e-5, 'epsilon': 2.0}
  fields = entry.config.__dataclass_fields__
  common = {k: v for k, v in common.items() if k in fields}
  config = entry.config(**{**entry.variants['sound'], **common, **settings})
  return config, build(name, config)


@pytest.fixture(scope='module')
def table():
  """Ratings of 21 users; item x and user lonely have one each."""
  rng = np.random.default_rng(0)
  pairs = [(f'u{u}', f'i{i}') for u in range(20) for i in range(12)]
  pairs = [pairs[k] for k in rng.permutation(len(pairs))[:120]]
  pairs += [('u3', 'x'), ('lonely', 'i1')]
  values = rng.integers(1, 6, len(pairs))
  return [(u, i, int(v)) for (u, i), v in zip(pairs, values, strict=True)]


def ratings_of(table, **lists):
  found = from_arrays(*zip(*table, strict=True), scale=(1, 5))
  return with_epsilon(with_public_ids(found, **lists), 2.0)


def lists_for(unit):
  """All ids there may be, some of which never occur."""
  users = [f'u{u}' for u in range(20)] + ['lonely', 'never']
  items = [f'i{i}' for i in range(12)] + ['x', 'new']
  if unit == 'user':
    return {'items': items, 'num_users': len(users)}
  return {'items': items, 'users': users}


# What takes long to compile.
LONG = (
  'power_mf', 'power_mf, means', 'local_mf', 'gaussian_mf', 'dpals',
  'moments', 'moments, rating', 'local_ranking',
)  # fmt: skip


def published(case, ratings, folder):
  """What of a run may be published, without noise and what it moves."""
  config, system = built(case)
  data = training_data(ratings)
  state = fit(system, jax.random.key(0), data)
  (folder / 'private').mkdir(parents=True)
  model = system.model(state, data)
  folders.write_model(folder, model, system.guarantee, ratings)
  lists = certificates.id_lists(ratings, system.guarantee)
  document = certificates.certificate(
    system.guarantee,
    system=CASES[case][0],
    config=config,
    delta=1e-5,
    randomness=certified.SEEDED,
    lists=lists,
  )
  folders.finish(folder, document)
  leaves, metadata = files.load_leaves(folder / 'model.safetensors')
  shapes = {name: (leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
  document = files.read_json(folder / 'certificate.json')
  # A hash of the model, of which noise is part, and what is new in each run.
  for name in ('files', 'date', 'run'):
    del document[name]
  ids = (folder / 'ids.json').read_text()
  return {'model': (shapes, metadata), 'ids': ids, 'certificate': document}


def neighbours(table, unit):
  """The ratings less what must not show."""
  if unit == 'user':
    for user in ('u3', 'lonely'):
      yield [row for row in table if row[0] != user]
  else:
    yield [row for row in table if row[1] != 'x']
    yield [row for row in table if row[0] != 'lonely']


@pytest.mark.parametrize(
  'case',
  [
    pytest.param(case, marks=pytest.mark.slow if case in LONG else ())
    for case in CASES
  ],
)
def test_nothing_that_is_published_tells_a_neighbour(case, table, tmp_path):
  unit = built(case)[1].guarantee.unit
  lists = lists_for(unit)
  whole = published(case, ratings_of(table, **lists), tmp_path / 'whole')
  assert 'except' not in wording.summary(whole['certificate'])
  for number, less in enumerate(neighbours(table, unit)):
    folder = tmp_path / str(number)
    assert published(case, ratings_of(less, **lists), folder) == whole


@pytest.mark.slow
@pytest.mark.parametrize('case', ['power_mf, means', 'dpals'])
def test_without_public_lists_the_headline_says_what_they_tell(
  case, table, tmp_path
):
  unit = built(case)[1].guarantee.unit
  whole = published(case, ratings_of(table), tmp_path / 'whole')
  less = next(iter(neighbours(table, unit)))
  assert published(case, ratings_of(less), tmp_path / 'less') != whole
  words = ' '.join(wording.summary(whole['certificate']).split())
  if unit == 'user':
    exception = 'how many users there are and that every item in ids.json has a'
    assert 'num_users' not in whole['certificate']['parameters']
  else:
    exception = 'that every user and every item in ids.json has a'
  assert f', except {exception} rating (taken from the ratings)' in words


def test_users_who_might_be_there_are_not_served(table, tmp_path):
  ratings = ratings_of(table, **lists_for('user'))
  assert ratings.num_users == 22
  published('dpals', ratings, tmp_path)
  model = models.load_model(tmp_path)
  assert len(model.user_ids) == len(model.user_factors) == 21
  found = recommendations.recommend(model, None, k=2)
  assert {row.user for row in found} == set(ratings.user_ids.tolist())


@pytest.mark.parametrize('relation', ['replace', 'add_remove'])
def test_where_who_rated_what_is_public_lists_tell_nothing_new(relation):
  shown = wording._shown_by_lists({'relation': relation})
  assert (shown == '') == (relation == 'replace')


def test_ids_are_matched_as_text_and_keep_their_ratings(table):
  first = ratings_of(table)
  again = ratings_of(table, **lists_for('rating'))
  assert again.public == {'users', 'items'}
  rows = lambda r: [
    (r.user_ids[u], r.item_ids[i], v)
    for u, i, v in zip(r.user, r.item, r.value, strict=True)
  ]
  assert rows(first) == rows(again)
  numbers = from_arrays([1, 2], ['7', 'b'], [3, 4], scale=(1, 5))
  listed = with_public_ids(numbers, users=['2', '1', '3'], items=['b', 7])
  assert listed.user_ids.tolist() == [1, 2, 3]
  assert listed.user.tolist() == [0, 1]


@pytest.mark.parametrize(
  ('lists', 'words'),
  [
    ({'items': ['i1']}, 'item i0 is not in the public list of 1 items; add it'),
    ({'users': ['u1', 'u1']}, 'has u1 more than once'),
    ({'users': ['u1'], 'num_users': 3}, 'users or num_users, not both'),
    ({'num_users': 20}, 'num_users=20 is below the number of users in'),
  ],
)
def test_lists_that_do_not_hold_are_refused(table, lists, words):
  with pytest.raises(DataError, match=words):
    ratings_of(table, **lists)


def test_a_file_of_ids(tmp_path):
  path = tmp_path / 'items.txt'
  path.write_text('item_id\n7\n\n 9 \nfoo bar\n')
  assert formats.read_ids(path, 'item').tolist() == ['7', '9', 'foo bar']
  path.write_text('movie1\nmovie2\n')  # no header, though it begins like one
  assert formats.read_ids(path, 'item').tolist() == ['movie1', 'movie2']
  path.write_bytes(b'\xef\xbb\xbf')
  with pytest.raises(DataError, match='has no item ids'):
    formats.read_ids(path, 'item')
  path.write_text('7\n9\n7\n')
  with pytest.raises(
    DataError, match=r'items.txt, line 3: item 7 is in line 1'
  ):
    formats.read_ids(path, 'item')
  path.write_text('item\n\n')
  with pytest.raises(DataError, match='has no item ids'):
    formats.read_ids(path, 'item')


@pytest.mark.slow
def test_the_script_takes_lists(launch, table, tmp_path):
  """Whole users: with a public bound nothing tells that there is one less."""
  items = tmp_path / 'items.txt'
  items.write_text('\n'.join(lists_for('user')['items']))
  documents, ids = [], []
  for number, rows in enumerate((table, *neighbours(table, 'user'))):
    source = tmp_path / 'ratings.csv'
    write(ratings_of(rows), source)
    folder = tmp_path / f'run{number}'
    ran = launch(
      'train',
      '--system=auto',
      '--unit=user',
      '--epsilon=1',
      '--delta=1e-3',
      '--seed=0',
      '--devices=1',
      f'--ratings={source}',
      f'--item_ids={items}',
      '--num_users=30',
      f'--output={folder}',
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads((folder / 'certificate.json').read_text())
    assert document['parameters']['num_users'] == 30
    assert document['lists'] == {'users': 'secret', 'items': 'public'}
    for name in ('files', 'date', 'run'):
      del document[name]
    documents.append(document)
    ids.append((folder / 'ids.json').read_bytes())
  assert documents[1:] == documents[:1] * 2
  assert ids[1:] == ids[:1] * 2
  ran = launch(
    'train',
    '--system=gaussian_mf',
    '--epsilon=1',
    f'--ratings={source}',
    '--num_users=30',
    f'--output={tmp_path / "other"}',
  )
  assert ran.returncode == 2
  assert 'use --user_ids' in ran.stderr
