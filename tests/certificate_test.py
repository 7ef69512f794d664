import json

import pytest

from dpmf_jax import accounting, certificate
from dpmf_jax.systems import SYSTEMS

FIELDS = {
  'status', 'epsilon', 'delta', 'unit', 'relation', 'adversary', 'released',
  'secret', 'assumptions', 'mechanism', 'accountant', 'parameters',
  'randomness', 'versions',
}  # fmt: skip


def make(name='gaussian_mf', variant='sound', seed=None, **settings):
  entry = SYSTEMS[name]
  common = {'scale': (1.0, 5.0)}
  if name != 'nonprivate':
    common |= {'delta': 1e-6, 'epsilon': 1.5, 'steps': 10}
  config = entry.config(**{**entry.variants[variant], **common, **settings})
  system = entry.build(config)
  return system, certificate.certificate(
    system.guarantee,
    system=name,
    config=config,
    delta=getattr(config, 'delta', None),
    seed=seed,
  )


@pytest.mark.parametrize(
  ('name', 'variant', 'status'),
  [
    ('gaussian_mf', 'sound', 'proved'),
    ('gaussian_mf', 'paper', 'claimed'),
    ('nonprivate', 'none', 'none'),
  ],
)
def test_it_is_complete_and_json(name, variant, status):
  system, document = make(name, variant)
  assert not FIELDS - document.keys()
  assert json.loads(json.dumps(document, allow_nan=False)) == document
  assert document['status'] == status
  if status != 'none':
    assert document['epsilon'] == accounting.epsilon(system.guarantee, 1e-6)
    assert document['epsilon'] == pytest.approx(1.5, rel=1e-6)


def test_the_noise_that_is_stated_gives_the_epsilon_that_is_stated():
  _, document = make(user_share=0.3)
  words = document['mechanism'].split()
  # '... deviation X to the user gradient and Y to the item gradient; ...'
  user = float(words[words.index('deviation') + 1])
  item = float(words[words.index('and') + 1])
  delta_2 = float(words[words.index('most') + 1])
  mu = delta_2 * (10 * (1 / user**2 + 1 / item**2)) ** 0.5
  epsilon = accounting.gaussian.epsilon_of(mu, 1e-6)
  assert epsilon == pytest.approx(document['epsilon'], rel=1e-4)


def test_a_fixed_seed_is_said_to_be_for_experiments():
  _, document = make(seed=3)
  assert document['randomness']['valid_for_release'] is False
  assert 'EXPERIMENTS' in certificate.text(document)
  _, document = make()
  assert document['randomness']['valid_for_release'] is True
  assert 'EXPERIMENTS' not in certificate.text(document)


def test_text_says_what_the_status_is():
  assert 'NOT TRUE' in certificate.text(make(variant='paper')[1])
  assert 'not private' in certificate.text(make('nonprivate', 'none')[1])
  text = certificate.text(make(relation='replace')[1])
  assert 'proved' in text
  assert 'who rated what is public' in text


def test_delta_is_needed():
  system, _ = make()
  with pytest.raises(ValueError, match='delta is needed'):
    certificate.certificate(
      system.guarantee, system='x', config=None, delta=None, seed=None
    )
