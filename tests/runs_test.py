"""A run as a folder: its key, its checkpoint and its end."""

import json

import jax
import numpy as np
import pytest
from certificate_test import make

from dpmf_jax import files, runs
from dpmf_jax.sharding import training_data
from dpmf_jax.training import Report

SETTINGS = {'rank': 4}


@pytest.fixture
def interrupted(tmp_path, small_ratings):
  """A folder with a checkpoint after step 3, and what resumes it."""
  system, data = make()[0], training_data(small_ratings)
  folder = runs.prepare(tmp_path / 'run')
  key = runs.random_key(5)
  save = runs.checkpointer(folder, key, SETTINGS, run='this run', seconds=0)
  save(Report(3, system.init(key, data), None))
  restore = lambda: runs.restore(
    folder, system, data, runs.random_key(None), SETTINGS
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
    jax.random.key_data(key), jax.random.key_data(runs.random_key(5))
  )
  assert runs.run_id(folder) == 'this run'


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
    key = runs.random_key(seed)
  assert runs.generator(key) == 'threefry2x32, 64-bit key'
  if seed is not None:
    want = jax.random.key_data(jax.random.key(seed, impl='threefry2x32'))
    np.testing.assert_array_equal(jax.random.key_data(key), want)


def test_the_generator_is_that_of_the_key():
  assert runs.generator(jax.random.key(0, impl='rbg')) == 'rbg, 128-bit key'


def test_what_is_written_last_is_valid(interrupted):
  folder, _ = interrupted
  (folder / 'model.safetensors').write_bytes(b'model')
  with pytest.raises(ValueError, match='field epsilon'):
    runs.finish(folder, make()[1] | {'epsilon': None})
  # It can still be finished.
  assert not (folder / runs.FINISHED).exists()
  assert (folder / 'private' / 'checkpoint.safetensors').exists()
  runs.finish(folder, make()[1])
  assert (folder / runs.FINISHED).exists()
  assert not (folder / 'private' / 'checkpoint.safetensors').exists()
