"""What is changed afterwards is noticed: models, certificates, signatures."""

import json
import subprocess

import numpy as np
import optax
import pytest
from certified import SECRET, make

import dpmf_jax
from dpmf_jax import certificates, plans
from dpmf_jax.certificates import signatures
from dpmf_jax.plans import selection


@pytest.fixture(scope='module')
def trained(tmp_path_factory, small_ratings):
  """The folder of a run."""
  folder = tmp_path_factory.mktemp('tampering') / 'run'
  dpmf_jax.train(
    small_ratings, system='ranking_mf', unit='user', epsilon=2, rank=1,
    rounds=1, test_fraction=0, progress=False, output=folder,
  )  # fmt: skip
  return folder


def test_every_changed_bit_of_a_model_is_noticed(trained):
  path = trained / 'model.safetensors'
  content = path.read_bytes()
  begin = 8 + int.from_bytes(content[:8], 'little')
  places = np.random.default_rng(0).integers(8 * begin, 8 * len(content), 100)
  try:
    for place in places.tolist():
      changed = bytearray(content)
      changed[place // 8] ^= 1 << place % 8
      path.write_bytes(changed)
      for read in (dpmf_jax.load_model, certificates.read):
        with pytest.raises(
          ValueError, match='its SHA-256 is another'
        ) as caught:
          read(trained)
        assert str(path) in str(caught.value)
  finally:
    path.write_bytes(content)
  dpmf_jax.load_model(trained)
  assert certificates.read(trained)['status'] == 'proved'


@pytest.mark.parametrize('factor', [0.1, 0.999, 1.001])
def test_an_epsilon_that_is_not_of_the_event_is_noticed(tmp_path, factor):
  document = make()[1]
  document |= {'epsilon': document['epsilon'] * factor}
  (tmp_path / 'certificate.json').write_text(json.dumps(document))
  with pytest.raises(ValueError, match=r'json: .* is not what its event costs'):
    certificates.read(tmp_path)


def test_an_epsilon_of_another_version_may_be_larger(tmp_path):
  document = make()[1]
  document['versions']['dpmf_jax'] = '0.0.9'
  path = tmp_path / 'certificate.json'
  path.write_text(json.dumps(document | {'epsilon': document['epsilon'] * 2}))
  certificates.read(path)
  path.write_text(json.dumps(document | {'epsilon': document['epsilon'] / 2}))
  with pytest.raises(ValueError, match='is not what its event costs'):
    certificates.read(path)


def every_certificate():
  """Of each system and variant, with other settings than the usual."""
  for name in plans.NAMES:
    for variant in plans.SPECS[name].variants:
      yield name, variant, {}
  optimizer = {'optimizer': optax.adam(0.1)}
  yield 'gaussian_mf', 'sound', optimizer
  yield 'local_mf', 'sound', {'levels': (1.0, 2.0, 5.0)}
  yield 'local_mf', 'sound', {'unit': 'user', 'epsilon': 8.0}
  yield 'power_mf', 'sound', {'number_share': 0.002}
  yield 'power_mf', 'sound', {'number_share': 0.002, 'level_share': 0.02}
  yield 'ranking_mf', 'sound', {'unit': 'user', 'rank': 0, 'epsilon': 8.0}


def made(name, variant, settings):
  known = selection.fields(plans.SPECS[name])
  common = {'scale': (1.0, 5.0), 'epsilon': 1.5, 'delta': 1e-6}
  given = {k: v for k, v in common.items() if k in known} | settings
  config = plans.config_of(name, variant, **given)
  return certificates.certificate(
    plans.SPECS[name].plan(config).guarantee,
    system=name,
    config=config,
    delta=getattr(config, 'delta', 0.0),
    randomness=SECRET,
  )


@pytest.mark.parametrize(
  ('name', 'variant', 'settings'), [*every_certificate()]
)
def test_another_status_unit_relation_or_mechanism_is_noticed(
  tmp_path, name, variant, settings
):
  document = made(name, variant, settings)
  path = tmp_path / 'certificate.json'
  path.write_text(json.dumps(document))
  assert certificates.read(path)['status'] == document['status']
  others = {
    'unit': ('rating', 'user'),
    'relation': ('replace', 'add_remove'),
    'mechanism': ('twice the noise',),
    'assumptions': (['none'],),
  }
  if document['event'] is not None:
    others['status'] = 'proved', 'claimed', 'stated'
  for field, values in others.items():
    for value in values:
      if value == document[field]:
        continue
      path.write_text(json.dumps(document | {field: value}))
      with pytest.raises(
        ValueError, match=f'json: certificate, field {field}: .* is not what '
      ):
        certificates.read(path)


def test_a_status_without_its_event_is_noticed(tmp_path):
  """Proved is made none, and none proved."""
  proved, none = make()[1], made('als', 'none', {})
  private = ('status', 'event', 'epsilon', 'delta')
  for one, other in ((proved, none), (none, proved)):
    path = tmp_path / 'certificate.json'
    path.write_text(json.dumps(one | {name: other[name] for name in private}))
    with pytest.raises(ValueError, match=r'field status: .* is not what this'):
      certificates.read(path)


def test_no_other_system_is_proved(tmp_path):
  path = tmp_path / 'certificate.json'
  document = make()[1]
  path.write_text(json.dumps(document | {'system': 'mine'}))
  with pytest.raises(ValueError, match="library alone, and 'mine' is none"):
    certificates.read(path)
  path.write_text(json.dumps(document | {'system': 'mine', 'status': 'stated'}))
  certificates.read(path)
  path.write_text(json.dumps(document | {'parameters': {}}))
  with pytest.raises(ValueError, match='no settings of gaussian_mf, of which'):
    certificates.read(path)
  # Of another version less is known.
  document['versions']['dpmf_jax'] = '0.0.9'
  path.write_text(json.dumps(document | {'mechanism': 'other words'}))
  certificates.read(path)
  path.write_text(json.dumps(document | {'status': 'claimed'}))
  with pytest.raises(ValueError, match="field status: 'claimed' is not what"):
    certificates.read(path)


def test_a_model_is_not_read_beside_another_statement(trained):
  path = trained / 'certificate.json'
  content = path.read_text()
  epsilon = json.loads(content)['epsilon']
  try:
    for old, new in (
      (f'"epsilon": {epsilon}', '"epsilon": 0.5'),
      ('"status": "proved"', '"status": "claimed"'),
      ('"unit": "user"', '"unit": "rating"'),
    ):
      assert old in content
      path.write_text(content.replace(old, new))
      with pytest.raises(ValueError, match=r'json: certificate, field .* not'):
        dpmf_jax.load_model(trained)
  finally:
    path.write_text(content)


@pytest.fixture
def pair(tmp_path):
  """A new pair of keys, as openssl writes them."""
  private, public = tmp_path / 'key.pem', tmp_path / 'public.pem'
  made = ('openssl', 'genpkey', '-algorithm', 'ed25519', '-out', private)
  subprocess.run(made, check=True)
  subprocess.run(
    ('openssl', 'pkey', '-in', private, '-pubout', '-out', public), check=True
  )
  return private, public


def test_a_signature_is_of_one_key_and_one_certificate(trained, tmp_path, pair):
  private, public = pair
  with pytest.raises(ValueError, match='the certificate is not signed'):
    signatures.verify(trained, public)
  path = signatures.sign(trained, private)
  signatures.verify(trained, public)
  proof = trained / 'certificate.json'
  content, signature = proof.read_bytes(), path.read_bytes()
  for changed, wrong in (
    (proof, content.replace(b'"proved"', b'"stated"')),
    (path, b'0000' + signature[4:]),
    (path, b'no base64'),
  ):
    old = changed.read_bytes()
    assert wrong != old
    changed.write_bytes(wrong)
    with pytest.raises(ValueError, match='is not a signature of certificate'):
      signatures.verify(trained, public)
    changed.write_bytes(old)
  signatures.verify(trained, public)
  with pytest.raises(ValueError, match='is not an Ed25519 public key'):
    signatures.verify(trained, private)
  with pytest.raises(ValueError, match='is not an Ed25519 private key'):
    signatures.sign(trained, public)


@pytest.mark.parametrize('name', [b'BQYDK2Va', b'BQYDK2Vx'])
def test_keys_of_other_kinds_are_refused(trained, pair, name):
  private, public = pair
  for path in pair:  # 1.3.101.112 in base64: Ed25519, made unknown or Ed448
    content = path.read_bytes()
    other = content.replace(b'BQYDK2Vw', name)
    assert other != content
    path.write_bytes(other)
  with pytest.raises(ValueError, match='is not an Ed25519 public key'):
    signatures.verify(trained, public)
  with pytest.raises(ValueError, match='is not an Ed25519 private key'):
    signatures.sign(trained, private)
