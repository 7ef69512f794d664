"""A run as a folder: its key, its checkpoint and its end."""

import dataclasses
import itertools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from certified import make

from dpmf_jax import accounting, certificates, files, keys
from dpmf_jax.plans import SPECS, config_of
from dpmf_jax.rows import training_data
from dpmf_jax.runs import folders, recording
from dpmf_jax.training import Progress
from dpmf_jax.types import Factors

SETTINGS = {'rank': 4}


@pytest.fixture
def interrupted(tmp_path, small_ratings):
  """A folder with a checkpoint after step 3, and what resumes it."""
  system, data = make()[0], training_data(small_ratings)
  key = keys.random_key(5)
  with folders.opened(tmp_path / 'run') as folder:
    save = folders.checkpointer(
      folder, key, SETTINGS, run='this run', steps=9, seconds=0
    )
    save(Progress(3, system.init(key, data)))
  restore = lambda: folders.restore(
    folder, system, data, keys.random_key(), SETTINGS
  )
  return folder, restore


def rewritten(path, **metadata):
  """The checkpoint with other metadata; None takes an entry away."""
  leaves, old = files.load_leaves(path)
  new = {k: v for k, v in (old | metadata).items() if v is not None}
  files.save_tree(path, leaves, metadata=new)


def test_it_goes_on_with_its_key_and_id(interrupted):
  folder, restore = interrupted
  key, start = restore()
  assert start is not None
  assert start[0] == 3
  np.testing.assert_array_equal(
    jax.random.key_data(key), jax.random.key_data(keys.random_key(5))
  )
  assert folders.run_id(folder) == 'this run'


@pytest.mark.parametrize('package', ['dpmf_jax', 'jax', 'jaxlib'])
@pytest.mark.parametrize('version', ['0.0.9', None])
def test_a_checkpoint_of_another_version_is_refused(
  interrupted, package, version
):
  folder, restore = interrupted
  path = folder / 'private' / 'checkpoint.safetensors'
  versions = json.loads(files.load_leaves(path)[1].get('versions', '{}'))
  rewritten(path, versions=json.dumps(versions | {package: version}))
  with pytest.raises(ValueError, match=f'of {package} {version or "unknown"}'):
    restore()
  assert path.exists()  # for whoever has that version


def test_a_checkpoint_without_versions_is_refused(interrupted):
  folder, restore = interrupted
  rewritten(folder / 'private' / 'checkpoint.safetensors', versions=None)
  with pytest.raises(ValueError, match='of dpmf_jax unknown') as caught:
    restore()
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('seed', [3, None])
def test_keys_are_threefry_whatever_the_default_is(seed):
  with jax.default_prng_impl('rbg'):
    key = keys.random_key(seed)
  assert keys.generator(key) == 'threefry2x32, 64-bit key'
  if seed is not None:
    want = jax.random.key_data(jax.random.key(seed, impl='threefry2x32'))
    np.testing.assert_array_equal(jax.random.key_data(key), want)


def test_the_generator_is_that_of_the_key():
  assert keys.generator(jax.random.key(0, impl='rbg')) == 'rbg, 128-bit key'


def test_what_is_written_last_is_valid(interrupted):
  folder, _ = interrupted
  (folder / 'model.safetensors').write_bytes(b'model')
  with pytest.raises(ValueError, match='field epsilon'):
    folders.finish(folder, make()[1] | {'epsilon': None})
  # It can still be finished.
  assert not (folder / folders.FINISHED).exists()
  assert (folder / 'private' / 'checkpoint.safetensors').exists()
  folders.finish(folder, make()[1])
  assert (folder / folders.FINISHED).exists()
  assert not (folder / 'private' / 'checkpoint.safetensors').exists()


def test_where_a_key_is_from_is_carried(interrupted):
  assert keys.source_of(keys.random_key()) == certificates.ENTROPY
  assert keys.source_of(keys.random_key(5)) == certificates.SEED
  # What was a seed's does not become secret by another way.
  assert keys.source_of(jax.random.key(5)) == certificates.SEED
  assert keys.source_of(jax.random.key(11)) == certificates.CALLER
  secret = keys.random_key()
  for key in (*jax.random.split(secret), jax.random.fold_in(secret, 1)):
    assert keys.source_of(key) == certificates.CALLER
  _, restore = interrupted
  assert keys.source_of(restore()[0]) == certificates.SEED


@pytest.mark.parametrize('size', [1e30, np.inf, np.nan])
def test_training_that_diverged_is_an_error_of_one_line(small_ratings, size):
  system, data = make()[0], training_data(small_ratings)
  state = system.init(keys.random_key(5), data)
  recorder = recording.Recorder(system, data, None, small_ratings.scale)
  recorder(Progress(0, state))
  # Of both signs: sums of products of 1e30 are of infinities of both.
  sign = np.where(np.arange(state.factors.item.shape[1]) % 2, -1, 1)
  factors = Factors(*(jnp.ones_like(x) * size for x in state.factors))
  factors = factors._replace(item=factors.item * sign[None])
  wrong = 'training diverged: .* not finite after step 3; use a smaller step_s'
  with pytest.raises(ValueError, match=wrong):
    recorder(Progress(3, state._replace(factors=factors)))
  assert [each['step'] for each in recorder.curve] == [0]


def drawn_keys(count):
  """Keys [count, 2] uint32 without a seed."""
  return np.stack(
    [jax.random.key_data(keys.random_key(None)) for _ in range(count)]
  )


def rank_of_bits(words):
  """The rank over GF(2) of the bits of words [N, 2] uint32, in 0..64."""
  left = [int(high) << 32 | int(low) for high, low in words]
  rank = 0
  while left:
    pivot = left.pop()
    if pivot:
      rank += 1
      last = pivot & -pivot
      left = [row ^ pivot if row & last else row for row in left]
  return rank


def test_all_64_bits_of_a_key_without_a_seed_are_random():
  """A key with a word that is constant, or a copy, is found by trying."""
  words = drawn_keys(193)
  # Bits that were constant, equal or sums of others would take away from the
  # rank of the differences. That of 192 random rows is below 64 with a chance
  # of 2^-128.
  assert rank_of_bits(words[1:] ^ words[:1]) == 64
  # Nor does a word come back, as it would from a few bits stretched: 193
  # random words of 32 bits have two alike with a chance of 4e-6.
  for word in words.T:
    assert len(np.unique(word)) == len(word)


def test_a_key_without_a_seed_is_not_from_a_generator_that_can_be_seeded():
  found = []
  for _ in range(2):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what is not to be used
    found.append(drawn_keys(1))
  assert (found[0] != found[1]).any()  # false alarm 2^-64


def test_a_key_with_a_seed_is_that_of_jax():
  found = jax.random.key_data(keys.random_key(7))
  np.testing.assert_array_equal(found, jax.random.key_data(jax.random.key(7)))


def test_the_bar_shows_what_steps_of_different_noise_cost():
  config = config_of(
    'power_mf', 'sound', scale=(1.0, 5.0), epsilon=2.0, delta=1e-6, rank=3
  )
  plan = SPECS['power_mf'].plan(config)
  spent = [plan.epsilon(steps, 1e-6) for steps in range(plan.steps + 1)]
  assert spent[0] == 0
  assert all(a < b for a, b in itertools.pairwise(spent))
  assert spent[-1] == pytest.approx(2.0, rel=1e-9)
  # The item means have a fifth of the squared loss.
  event = plan.guarantee.event
  alone = dataclasses.replace(
    event, noise_multiplier=event.noise_multiplier / 0.2**0.5
  )
  assert spent[1] == pytest.approx(accounting.epsilon(alone, 1e-6))


@pytest.mark.parametrize(
  ('error', 'kept'),
  [(ValueError('refused'), False), (OSError('connection lost'), True)],
)
def test_a_run_that_may_have_been_charged_keeps_its_id(tmp_path, error, kept):
  checkpoint = tmp_path / 'private' / 'checkpoint.safetensors'
  checkpoint.parent.mkdir()
  checkpoint.touch()

  def spend():
    raise error

  with pytest.raises(type(error)):
    folders.charger(tmp_path, spend, fresh=True)(None)
  assert checkpoint.exists() == kept
