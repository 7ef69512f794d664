"""Tests of the folder for compiled programs."""

import os
import stat

import pytest

from dpmf_jax.commands import compiled

VARIABLE = 'JAX_COMPILATION_CACHE_DIR'


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.delenv('DPMF_CACHE', raising=False)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setenv(VARIABLE, 'set, so that it is put back')
  monkeypatch.setenv('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.0')
  return tmp_path / 'dpmf_jax' / 'compiled'


def test_programs_are_kept_in_a_private_folder(cache, monkeypatch):
  monkeypatch.delenv(VARIABLE)
  compiled.keep()
  folder = os.environ[VARIABLE]
  assert os.path.dirname(folder) == str(cache)
  for path in (cache, folder):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_programs_that_others_may_write_are_not_run(cache, monkeypatch):
  monkeypatch.delenv(VARIABLE)
  cache.mkdir(parents=True)
  cache.chmod(0o777)
  compiled.keep()
  assert VARIABLE not in os.environ


def test_a_folder_that_is_named_stays(cache):
  compiled.keep()
  assert os.environ[VARIABLE].startswith('set')
  assert not cache.exists()
