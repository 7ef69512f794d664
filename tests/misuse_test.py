"""Every row of docs/misuse.md: a call that is wrong, and the line it gets."""

import re
from pathlib import Path

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
ROWS = re.findall(r'^\| `(.+)` \| (.+) \|$', PAGE.read_text(), re.M)


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


@pytest.mark.parametrize(('call', 'line'), ROWS)
def test_it_is_refused_in_that_line(names, call, line):
  with pytest.raises((ValueError, TypeError)) as caught:
    eval(call, names)
  assert str(caught.value) == line


def test_a_name_of_two_digits_is_one_user(names, small_ratings):
  user = str(small_ratings.user_ids[12])
  found = dpmf_jax.recommend(names['model'], user, k=2)
  assert [str(row.user) for row in found] == [user, user]
