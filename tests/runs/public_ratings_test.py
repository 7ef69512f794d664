"""Runs that public ratings are given to."""

import dataclasses

import numpy as np
import pytest

import dpmf_jax
from dpmf_jax import certificates
from dpmf_jax.certificates import wording
from dpmf_jax.ratings import priors

QUIET = {'progress': False, 'report_every': 100}


@pytest.fixture(scope='module')
def prior(small_ratings):
  return priors.prior_of(small_ratings, rank=3, list_rank=4)


@pytest.fixture(scope='module')
def run(small_ratings, prior):
  return dpmf_jax.train(
    small_ratings, epsilon=5, system='power_mf', rank=0, public_ratings=prior,
    **QUIET,
  )  # fmt: skip


def test_the_certificate_names_them_and_says_what_is_not_protected(
  run, prior, tmp_path
):
  found = run.certificate
  assert found['status'] == 'proved'
  stated = found['parameters']['public_ratings']
  assert stated == f'{prior.name}, sha256 {prior.digest}'
  assert found['assumptions'][-1] == wording.PUBLIC_RATINGS
  assert found['not_covered'][-1] == wording.UNPROTECTED
  run.save(tmp_path / 'run')
  written = certificates.read(tmp_path / 'run')
  assert written['assumptions'] == found['assumptions']
  # One that does not say it is not what this library states.
  path = tmp_path / 'run' / 'certificate.json'
  text = path.read_text()
  path.write_text(text.replace('nor chosen by looking', 'or chosen by looking'))
  with pytest.raises(ValueError, match='field assumptions'):
    certificates.read(path)


def test_what_is_released_tells_nothing_of_how_much_was_matched(run):
  assert run.metrics['public_ratings'].keys() == {
    'items', 'ratings', 'by', 'used',
  }  # fmt: skip
  assert 'matched' not in str(run.certificate)


def test_models_are_served_as_others_are(run, small_ratings, tmp_path):
  model = dpmf_jax.load_model(run.save(tmp_path / 'run'))
  users = small_ratings.user_ids[:5]
  own = dict(zip(model.user_ids.tolist(), model.user_factors, strict=True))
  again = dpmf_jax.fold_in(model, run.train)
  for user, row in zip(
    again.user_ids.tolist(), again.user_factors, strict=True
  ):
    assert np.array_equal(own[user], row)
  first = dpmf_jax.recommend(model, users, k=3, why=1)
  assert [row.item for row in run.recommend(users, k=3)] == [
    row.item for row in first
  ]
  assert dpmf_jax.similar_items(model, small_ratings.item_ids[:1], k=2)


def test_it_goes_on_only_with_the_same_public_ratings(
  small_ratings, prior, run
):
  other = dataclasses.replace(small_ratings, value=small_ratings.value[::-1])
  digest = priors.prior_of(other, rank=1, list_rank=1).digest
  assert digest != prior.digest
  assert digest not in run.certificate['parameters']['public_ratings']


@pytest.mark.parametrize(
  ('changed', 'words'),
  [
    ({'system': 'gaussian_mf'}, 'system=gaussian_mf takes no public_ratings'),
    ({'public_ratings': 'no.safetensors'}, 'no such file of a public prior'),
    ({'public_ratings': 7}, 'ratings of type int are not known'),
  ],
)
def test_what_cannot_be_used_is_refused(small_ratings, prior, changed, words):
  given = {'epsilon': 1, 'public_ratings': prior, **QUIET, **changed}
  with pytest.raises(ValueError, match=words):
    dpmf_jax.train(small_ratings, **given)


@pytest.mark.parametrize('named', [False, True])
def test_ratings_are_not_public_and_private_at_once(
  small_ratings, tmp_path, named
):
  given = small_ratings
  if named:
    given = tmp_path / 'ratings.csv'
    given.write_text('user,item,rating\n1,1,5\n1,2,3\n2,1,4\n')
  with pytest.raises(ValueError, match='are the ratings themselves'):
    dpmf_jax.train(given, epsilon=1, public_ratings=given, **QUIET)


@pytest.mark.slow
def test_lists_have_public_factors_with_weights_of_their_own(
  small_ratings, prior, tmp_path
):
  run = dpmf_jax.train(
    small_ratings, epsilon=5, task='ranking', public_ratings=prior, **QUIET
  )
  fit, item = run.release.fit, run.release.factors.item
  assert fit.weight.shape == item.shape
  model = dpmf_jax.load_model(run.save(tmp_path / 'run'))
  own = dict(zip(model.user_ids.tolist(), model.user_factors, strict=True))
  again = dpmf_jax.fold_in(model, run.train)
  for user, row in zip(
    again.user_ids.tolist(), again.user_factors, strict=True
  ):
    np.testing.assert_allclose(own[user], row, rtol=1e-6)
  listed = dpmf_jax.recommend(model, small_ratings.user_ids[:3], k=2, why=2)
  assert len(listed) == 6
