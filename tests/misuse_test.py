"""Every row of docs/misuse.md: what is wrong, and the line it gets."""

import re
import shutil
from pathlib import Path

import bad_inputs
import jax
import jax.numpy as jnp
import optax
import pytest

import dpmf_jax
from dpmf_jax.auditing.pairs import check_pair, library_pairs
from dpmf_jax.kernels.gradients import squared_error
from dpmf_jax.mechanisms import response
from dpmf_jax.ratings.specification import with_epsilon

PAGE = Path(__file__).resolve().parents[1] / 'docs' / 'misuse.md'
CALLS, COMMANDS = PAGE.read_text().split('## Files and flags')
ROWS = re.findall(r'^\| `(.+)` \| (.+) \|$', CALLS, re.M)
BAD_INPUTS = re.findall(r'^\| `(.+)` \| `(.+)` \| (.+) \|$', COMMANDS, re.M)
# A process each: some of them every time.
SOME = [
  pytest.param(*row, marks=[pytest.mark.slow] if number % 8 else [])
  for number, row in enumerate(BAD_INPUTS)
]


@pytest.fixture(scope='module')
def names(small_ratings):
  """What the calls on the page speak of."""
  ratings = small_ratings
  data = dpmf_jax.training_data(ratings)
  system = dpmf_jax.power_mf(
    epsilon=1.0, delta=1e-6, scale=(1, 5), rank=0, rounds=1
  )
  state = dpmf_jax.fit(system, jax.random.key(0), data)
  release = system.model(state, data)
  return {
    'dpmf_jax': dpmf_jax, 'jnp': jnp, 'optax': optax, 'response': response,
    'squared_error': squared_error, 'with_epsilon': with_epsilon,
    'key': jax.random.key(0), 'bits': jnp.arange(100) < 30,
    'ratings': ratings, 'data': data, 'system': system, 'state': state,
    'release': release,
    'model': dpmf_jax.model_from_release(release, ratings),
    'check_pair': check_pair,
    'clicks': dpmf_jax.from_arrays(
      ratings.user_ids[ratings.user],
      ratings.item_ids[ratings.item],
      name='visits',
    ),
    'pair': library_pairs('rating', 'replace', (1, 5))[0],
  }  # fmt: skip


def test_the_page_has_rows():
  assert len(ROWS) >= 15
  assert len(BAD_INPUTS) >= 60


@pytest.mark.parametrize(('call', 'line'), ROWS)
def test_it_is_refused_in_that_line(names, call, line):
  with pytest.raises((ValueError, TypeError)) as caught:
    eval(call, names)
  assert str(caught.value) == line


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  folder = tmp_path_factory.mktemp('misuse') / 'prepared'
  bad_inputs.prepare(folder)
  return folder


@pytest.mark.parametrize(('before', 'command', 'line'), SOME)
def test_a_script_says_it_in_that_line(
  prepared, tmp_path, before, command, line
):
  folder = tmp_path / 'here'
  shutil.copytree(prepared, folder)
  done = bad_inputs.run(folder, before, command)
  assert done.stderr == f'{line}\n'
  assert done.returncode == (1 if line.startswith('refused: ') else 2)
  assert not (folder / 'out' / 'certificate.json').exists()


def test_a_name_of_two_digits_is_one_user(names, small_ratings):
  user = str(small_ratings.user_ids[12])
  found = dpmf_jax.recommend(names['model'], user, k=2)
  assert [str(row.user) for row in found] == [user, user]
