import copy
import dataclasses
import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import stated
from certified import SECRET, THREEFRY, make

import dpmf_jax
from dpmf_jax import accounting, certificates
from dpmf_jax.certificates import rendering, wording
from dpmf_jax.plans import SPECS, config_of

FIELDS = {
  'status', 'epsilon', 'delta', 'unit', 'relation', 'adversary', 'released',
  'secret', 'assumptions', 'mechanism', 'accountant', 'parameters',
  'randomness', 'versions',
}  # fmt: skip


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
  # To the six digits that are printed; a millionth of the noise is to spare.
  assert epsilon == pytest.approx(document['epsilon'], rel=1e-5)


def test_a_fixed_seed_is_said_to_be_for_experiments():
  _, document = make(seed=3)
  assert document['randomness']['valid_for_release'] is False
  assert 'EXPERIMENTS' in wording.summary(document)
  _, document = make()
  assert document['randomness']['valid_for_release'] is True
  assert 'EXPERIMENTS' not in wording.summary(document)


def test_date_and_run_are_stated():
  before = datetime.now(UTC).replace(microsecond=0)
  document = make()[1]
  made = datetime.fromisoformat(document['date'])
  assert before <= made <= datetime.now(UTC)
  assert document['run'] != make()[1]['run']
  shown = str(wording.sections(document))
  assert document['date'] in shown
  assert document['run'] in shown


def test_a_proof_is_about_one_generator():
  assert make()[1]['randomness']['generator'] == THREEFRY
  other = certificates.randomness(certificates.ENTROPY, 'rbg')
  with pytest.raises(ValueError, match='proved is about threefry2x32'):
    make(randomness=other)
  for name, variant in (('gaussian_mf', 'paper'), ('nonprivate', 'none')):
    document = make(name, variant, randomness=other)[1]
    assert document['randomness']['generator'] == 'rbg'


def test_what_somebody_else_states_is_not_proved():
  """By another name, with other settings or with another guarantee."""
  system, document = make()
  config = config_of(
    'gaussian_mf', 'sound', scale=(1.0, 5.0), delta=1e-6, epsilon=3.0, steps=10
  )
  more = dataclasses.replace(system.guarantee, adversary='nobody in particular')
  given = {'delta': 1e-6, 'randomness': SECRET}
  for guarantee, name, settings in (
    (system.guarantee, 'mine', None),
    (system.guarantee, 'gaussian_mf', config),
    (more, 'gaussian_mf', config),
  ):
    found = certificates.certificate(
      guarantee, system=name, config=settings, **given
    )
    assert found['status'] == 'stated'
    assert found['epsilon'] == document['epsilon']
    said = wording.summary(found) + rendering.text(found)
    assert 'STATED BY ITS AUTHOR' in said
    assert 'roved' not in said.replace('has not proved', '').replace(
      'as far as is proved', ''
    )


def test_a_key_from_a_caller_is_not_said_to_be_entropy():
  document = make(
    randomness=certificates.randomness(certificates.CALLER, THREEFRY)
  )[1]
  assert document['randomness']['source'] == 'given by the caller'
  assert not document['randomness']['valid_for_release']
  words = ' '.join(rendering.text(document).split())
  assert 'how it was drawn is not known' in words


def test_text_says_what_the_status_is():
  assert 'NOT A GUARANTEE' in wording.summary(make(variant='paper')[1])
  assert 'not private' in wording.summary(make('nonprivate', 'none')[1])
  text = wording.summary(make(relation='replace')[1])
  assert 'proved' in text
  assert 'who rated what is public' in text


def test_delta_is_needed():
  system, _ = make()
  with pytest.raises(ValueError, match='delta is needed'):
    certificates.certificate(
      system.guarantee, system='x', config=None, delta=None,
      randomness=SECRET,
    )  # fmt: skip


def plain(event, delta):
  config = SPECS['nonprivate'].config(scale=(1.0, 5.0))
  return certificates.certificate(
    stated.guarantee(event, unit='user'), system='plain', config=config,
    delta=delta, randomness=SECRET,
  )  # fmt: skip


@pytest.mark.parametrize(
  ('event', 'delta', 'words'),
  [
    (accounting.Gaussian(3.0, 5), 1e-6, 'exact Gaussian'),
    (accounting.Laplace(2.0), 1e-6, 'exact curve of Laplace'),
    (accounting.RandomizedResponse(1.0, 10), 1e-6, 'optimal composition'),
    (accounting.Pure(1.0, 10), 0.0, 'sum of the epsilons'),
  ],
)
def test_the_accountant_is_the_rule_that_gave_epsilon(event, delta, words):
  document = plain(event, delta)
  assert words in document['accountant']
  assert document['epsilon'] == accounting.epsilon(event, delta)
  # A setting that JSON cannot hold is written down, not a reason to fail.
  assert wording.summary(document)


def test_an_infinite_epsilon_is_refused():
  with pytest.raises(ValueError, match='field epsilon: inf is not finite'):
    plain(accounting.Gaussian(1e-100, 10**110), 1e-6)


# The schema


def test_the_schema_in_docs_is_the_one_that_is_used():
  root = Path(dpmf_jax.__file__).parents[1]
  used = (root / 'dpmf_jax/certificates/certificate.schema.json').read_bytes()
  assert (root / 'docs' / 'certificate.schema.json').read_bytes() == used


def test_the_schema_is_a_schema_and_has_the_version():
  from jsonschema import Draft202012Validator

  schema = certificates.schema()
  Draft202012Validator.check_schema(schema)
  assert schema['$schema'].endswith('2020-12/schema')
  assert schema['$id'].endswith(certificates.SCHEMA)
  assert schema['properties']['schema']['const'] == certificates.SCHEMA
  # Nothing that we write is missing from it; `personal` is not always there,
  # and `files` once they are written.
  assert set(schema['required']) == make()[1].keys()
  assert schema['properties'].keys() == make()[1].keys() | {
    'personal',
    'files',
  }


def broken(path, value):
  """A certificate with one field set, or without it for `...`."""
  document = copy.deepcopy(make()[1])
  *parents, last = path.split('.')
  inner = document
  for name in parents:
    inner = inner[int(name) if isinstance(inner, list) else name]
  if value is ...:
    del inner[last]
  else:
    inner[int(last) if isinstance(inner, list) else last] = value
  return document


@pytest.mark.parametrize('name', sorted(certificates.schema()['required']))
def test_every_field_is_needed(name):
  with pytest.raises(ValueError, match=f"'{name}' is a required property"):
    certificates.validate(broken(name, ...))


@pytest.mark.parametrize(
  ('path', 'value'),
  [
    ('schema', 'dpmf_jax-certificate-1'),
    ('date', '17 November'),
    ('date', '2025-11-17T02:25:00'),
    ('run', ''),
    ('status', 'certain'),
    ('epsilon', None),
    ('epsilon', -0.1),
    ('epsilon', '1.5'),
    ('epsilon', True),
    ('epsilon', math.nan),
    ('epsilon', math.inf),
    ('delta', None),
    ('delta', 1),
    ('delta', 1.5),
    ('delta', -1e-9),
    ('delta', math.nan),
    ('unit', 'film'),
    ('relation', 'add'),
    ('adversary', ''),
    ('adversary', None),
    ('released', []),
    ('released', 'user factors'),
    ('released.0', ''),
    ('secret.0', 3),
    ('not_covered', None),
    ('assumptions', {}),
    ('assumptions.1', None),
    ('groups', None),
    ('groups.0.size', 1),
    ('groups.1.delta', 1.5),
    ('mechanism', ' \n '),
    ('event', None),
    ('accountant', 1),
    ('system', []),
    ('parameters', []),
    ('parameters.rank', math.inf),
    ('randomness', None),
    ('randomness.source', 'dice'),
    ('randomness.valid_for_release', 'no'),
    ('randomness.note', ''),
    ('versions', {}),
    ('versions.jax', 0.1),
  ],
)
def test_a_broken_field_is_named(path, value):
  document = broken(path, value)
  with pytest.raises(ValueError, match=f'^certificate, field {path}: '):
    certificates.validate(document)


def test_what_goes_together():
  document = make('nonprivate', 'none')[1]
  certificates.validate(document | {'note': 'fields may be added'})
  for name, value in (('epsilon', 0.5), ('delta', 0.5), ('event', {'X': {}})):
    with pytest.raises(ValueError, match=f'field {name}'):
      certificates.validate(document | {name: value})
  certificates.validate(make()[1] | {'delta': 0})
  fixed = make(seed=1)[1]
  fixed['randomness']['valid_for_release'] = True
  with pytest.raises(ValueError, match=r'field randomness\.valid_for_release'):
    certificates.validate(fixed)
  for document in ([], None, 'proved', 3):
    with pytest.raises(ValueError, match='certificate: '):
      certificates.validate(document)


def test_a_long_value_does_not_make_a_long_message():
  with pytest.raises(ValueError, match='epsilon') as caught:
    certificates.validate(make()[1] | {'epsilon': 'x' * 10**5})
  assert len(str(caught.value)) < 250


def test_read(tmp_path):
  path = tmp_path / 'certificate.json'
  document = make()[1]
  path.write_text(json.dumps(document))
  assert certificates.read(tmp_path) == certificates.read(path) == document
  for content, words in {
    b'{"schema": ': 'line 1',
    b'\xff\xfe': 'not UTF-8',
    b'[' * 10**6: 'nested more than 64 deep',
    b'{}': 'required property',
  }.items():
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
      certificates.read(tmp_path)
    assert str(path) in str(caught.value)


def test_no_jax_is_needed():
  code = (
    'import sys; from dpmf_jax import certificates; from dpmf_jax.certificates '
    'import rendering, wording; certificates.schema(); '
    'assert "jax" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
