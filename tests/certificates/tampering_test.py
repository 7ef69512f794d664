"""What is changed afterwards is noticed: models, certificates, signatures."""

import json
import subprocess

import numpy as np
import pytest
from certified import make

import dpmf_jax
from dpmf_jax import certificates
from dpmf_jax.certificates import signatures


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
