"""Means around public facts of items, which noisy sums must bear out."""

import json

import certified
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmf_jax
from dpmf_jax import certificates
from dpmf_jax.certificates import wording
from dpmf_jax.plans import config_of
from dpmf_jax.rows import training_data
from dpmf_jax.systems import build, item_facts
from dpmf_jax.systems.public import Totals
from dpmf_jax.training import fit

ITEMS = 300


def sums(features, slopes):
  draw = np.random.default_rng(2)
  mean = 0.3 + features @ slopes + 0.3 * draw.normal(size=ITEMS)
  number = 1 + draw.exponential(30, size=ITEMS)
  total = number * mean + 20 * draw.normal(size=ITEMS)
  numbers = (number, total, np.full(ITEMS, 400.0), 3.0, 1.0)
  return Totals(*map(jnp.float32, numbers)), mean


def test_facts_that_means_follow_are_found_and_others_are_not():
  features = item_facts.standard(
    np.random.default_rng(1).normal(size=(ITEMS, 4))
  )
  given, mean = sums(features, np.array([0.4, -0.3, 0.0, 0.0]))
  found = item_facts.means_by_facts(given, jnp.asarray(features))
  plain = item_facts.means_by_facts(given, jnp.zeros((ITEMS, 0)))
  assert found.evidence > plain.evidence + 10
  error = lambda fitted: np.mean(np.square(np.asarray(fitted.mean) - mean))
  assert error(found) < 0.7 * error(plain)
  unrelated = features[::-1]
  none = item_facts.means_by_facts(given, jnp.asarray(unrelated))
  assert none.evidence < plain.evidence + 3


@pytest.mark.slow
def test_what_is_released_is_made_of_noisy_sums_and_facts(small_ratings):
  config = config_of(
    'power_mf', 'sound', scale=(1, 5), epsilon=1.0, delta=1e-6, rank=0
  )
  own, data = build('power_mf', config), training_data(small_ratings)
  state = fit(own, jax.random.key(1), data)
  draw = np.random.default_rng(4)
  system = item_facts.with_facts('power_mf', own, draw.normal(size=(40, 3)))
  assert system._replace(model=own.model) == own  # steps, noise, guarantee
  other = training_data(
    dpmf_jax.synthetic(
      num_users=60, num_items=40, num_ratings=700, rank=3, seed=8
    )
  )
  one, two = (system.release(state, each) for each in (data, other))
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    assert np.array_equal(a, b)
  # Facts that say nothing leave the system's own items as they are.
  expected = own.release(state, data).factors.item
  assert np.array_equal(one.factors.item, expected)


def test_the_certificate_says_that_facts_are_public(tmp_path):
  config = config_of(
    'power_mf', 'sound', scale=(1, 5), epsilon=1.0, delta=1e-6, rank=0
  )
  document = certificates.certificate(
    build('power_mf', config).guarantee,
    delta=1e-6,
    system='power_mf',
    config=config,
    randomness=certified.SECRET,
    parameters={'item_features': 'sha256 of something'},
  )
  assert document['status'] == 'proved'
  path = tmp_path / 'certificate.json'
  path.write_text(json.dumps(document))
  certificates.read(path)
  assert document['assumptions'].pop() == wording.ITEM_FEATURES
  path.write_text(json.dumps(document))
  with pytest.raises(ValueError, match='field assumptions'):
    certificates.read(path)


@pytest.mark.parametrize(
  ('changed', 'words'),
  [
    ({'item_features': np.ones((3, 2))}, r'must have a row for each of the 40'),
    ({'item_features': np.full((40, 2), np.nan)}, 'must be finite numbers'),
    (
      {'system': 'gaussian_mf'},
      'takes no item_features: use power_mf or dpals',
    ),
    ({'public_ratings': 'ml-1m.safetensors'}, 'no such file'),
  ],
)
def test_what_cannot_be_used_is_refused(small_ratings, changed, words):
  given = {
    'epsilon': 1, 'item_features': np.eye(40)[:, :2], 'progress': False,
    **changed,
  }  # fmt: skip
  with pytest.raises(ValueError, match=words):
    dpmf_jax.train(small_ratings, **given)
