"""What public ratings say of items, and which items are the same."""

import dataclasses

import numpy as np
import pytest

import dpmf_jax
from dpmf_jax.ratings import matching, priors
from dpmf_jax.ratings.synthetic import synthetic
from dpmf_jax.ratings.table import from_arrays

RATINGS = synthetic(num_users=150, num_items=40, num_ratings=3_000, seed=3)


@pytest.fixture(scope='module')
def prior():
  return priors.prior_of(RATINGS, rank=3, list_rank=5)


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    ('Matrix, The (1999)', 'The Matrix (1999)'),
    ('Postino, Il (Postman, The) (1994)', 'Il Postino (1994)'),
    ("Schindler's List (1993)", 'Schindlers  List (1993)'),
    ('Léon (1994)', 'Leon (1994)'),
    ('Sense & Sensibility (1995)', 'Sense and Sensibility (1995)'),
  ],
)
def test_titles_are_compared_as_they_are_meant(one, other):
  assert matching.normalised(one) == matching.normalised(other)


def test_titles_of_other_years_are_other_items():
  old, new = 'Sabrina (1954)', 'Sabrina (1995)'
  assert matching.normalised(old) != matching.normalised(new)


def test_items_are_matched_by_title_and_else_by_id():
  titles = {'1': 'Heat (1995)', '2': 'Nothing of it (1990)', '3': ''}
  found, by = matching.same_items(
    [1, 2, 3], titles, ['3', '9', '8'], ['', 'heat (1995)', 'Heat (1995)']
  )
  assert (found.tolist(), by) == ([1, -1, -1], 'title')
  found, by = matching.same_items([1, 2, 3], titles, ['3', '1'], ['', ''])
  assert (found.tolist(), by) == ([1, -1, 0], 'id')


def test_means_and_errors_are_those_of_the_ratings(prior):
  low, high = RATINGS.scale
  count = np.bincount(RATINGS.item, minlength=40)
  mean = np.bincount(RATINGS.item, RATINGS.value, 40) / count
  found = (low + high) / 2 + (high - low) / 4 * prior.mean
  often = count > 50
  assert np.abs(found - mean)[often].max() < 0.35
  assert np.corrcoef(found, mean)[0, 1] > 0.9
  spread = RATINGS.value.var() / ((high - low) / 4) ** 2
  assert 0.2 * spread < prior.error < spread


def test_what_goes_together_has_like_factors_in_lists():
  users = np.repeat(np.arange(100), 5)
  items = (users % 2) * 10 + np.tile(np.arange(5), 100) + (users // 2) % 6
  found = priors.prior_of(from_arrays(users, items, scale=None, max_count=1))
  assert not found.has_ratings
  likes = found.listed @ found.listed.T
  half = np.array([int(i) for i in found.item_ids]) >= 10
  np.fill_diagonal(likes, 0.0)
  assert likes[half][:, half].mean() > likes[half][:, ~half].mean() + 0.01


def test_a_prior_is_read_as_it_was_written(prior, tmp_path):
  path = tmp_path / 'prior.safetensors'
  dpmf_jax.save_prior(prior, path)
  found = dpmf_jax.public_prior(path)
  for name, value in found._asdict().items():
    assert np.array_equal(value, getattr(prior, name)), name
  assert found.digest == priors.prior_of(RATINGS, rank=1).digest
  other = dataclasses.replace(RATINGS, value=6 - RATINGS.value)
  assert found.digest != priors.prior_of(other, rank=1).digest


def test_files_that_are_no_prior_are_refused(prior, tmp_path):
  path = tmp_path / 'prior.safetensors'
  with pytest.raises(ValueError, match='no such file of a public prior'):
    priors.load_prior(path)
  path.write_bytes(b'12')
  with pytest.raises(ValueError, match='not a whole safetensors file'):
    priors.load_prior(path)
  priors.files.save_tree(path, {'mean': np.zeros(2)})
  with pytest.raises(ValueError, match='is not a public prior'):
    priors.load_prior(path)
  dpmf_jax.save_prior(prior._replace(mean=prior.mean[1:]), path)
  with pytest.raises(ValueError, match='leaf mean: must be finite and'):
    priors.load_prior(path)
  dpmf_jax.save_prior(prior._replace(error=np.float32(np.nan)), path)
  with pytest.raises(ValueError, match='leaf error'):
    priors.load_prior(path)
  with pytest.raises(ValueError, match=r'ends in \.safetensors'):
    priors.save_prior(prior, tmp_path / 'prior.bin')


def test_what_is_matched_is_said_of_items_alone(prior):
  half = from_arrays([0, 1], [3, 77], [1, 5], scale=(1, 5))
  found = priors.matched(prior, half)
  assert found.place.tolist() == [prior.item_ids.index('3'), -1]
  assert '1 of 2 items matched by id' in str(found)
  # Other ratings of the same items leave it as it is.
  more = from_arrays([0, 1, 1, 2], [3, 77, 3, 77], [1, 5, 2, 2], scale=(1, 5))
  assert str(priors.matched(prior, more)) == str(found)
  assert found.taken('factor')[1].tolist() == [0.0] * 3
  with pytest.raises(ValueError, match='none of the 1 items'):
    priors.matched(prior, from_arrays([0], [99], [1], scale=(1, 5)))
