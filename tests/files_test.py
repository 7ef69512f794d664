import json
import os
import resource
import stat
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpmf_jax import files


class Pair(NamedTuple):
  left: Any
  right: Any


def test_a_tree_comes_back_with_names_and_bits(tmp_path):
  tree = Pair({'a': np.arange(6.0).reshape(2, 3)}, (np.float32(2.5), None))
  path = tmp_path / 'tree.safetensors'
  files.save_tree(path, tree, metadata={'x': 'y'})
  leaves, metadata = files.load_leaves(path)
  assert sorted(leaves) == ['left/a', 'right/0']
  assert metadata == {'x': 'y'}
  back = files.load_tree(path, tree)
  np.testing.assert_array_equal(back.left['a'], tree.left['a'])
  assert back.right[0] == np.float32(2.5)
  assert back.right[1] is None
  assert back.right[0].shape == ()


def test_a_tree_of_other_shape_is_refused(tmp_path):
  path = tmp_path / 'tree.safetensors'
  files.save_tree(path, {'a': np.zeros(3)})
  with pytest.raises(ValueError, match=r'leaf a: float64\[3\]'):
    files.load_tree(path, {'a': np.zeros(4)})
  with pytest.raises(ValueError, match='other leaves'):
    files.load_tree(path, {'b': np.zeros(3)})


def test_a_torn_file_is_named(tmp_path):
  path = tmp_path / 'model.safetensors'
  files.save_tree(path, {'a': np.zeros(100)})
  path.write_bytes(path.read_bytes()[:-50])
  with pytest.raises(ValueError, match=r'model\.safetensors is not a whole'):
    files.load_leaves(path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
  path = tmp_path / 'x.json'
  files.write_json(path, {'old': 1})

  def fail(*_):
    raise OSError('disk full')

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(OSError, match='disk full'):
    files.write_json(path, {'new': 2})
  assert json.loads(path.read_text()) == {'old': 1}
  assert [p.name for p in tmp_path.iterdir()] == ['x.json']


def test_nan_never_gets_into_a_file(tmp_path):
  with pytest.raises(ValueError, match='not JSON compliant'):
    files.write_json(tmp_path / 'x.json', {'rmse': float('nan')})
  assert not list(tmp_path.iterdir())


def test_modes_are_set(tmp_path):
  files.write_bytes(tmp_path / 'secret', b'x', mode=0o600)
  assert stat.S_IMODE((tmp_path / 'secret').stat().st_mode) == 0o600


def test_broken_json_is_located(tmp_path):
  (tmp_path / 'ids.json').write_text('{"a": 1,\n oops}')
  with pytest.raises(ValueError, match=r'ids.json, line 2'):
    files.read_json(tmp_path / 'ids.json')


def test_a_full_disk_names_the_file(tmp_path):
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
  try:
    with pytest.raises(OSError, match=r'large.*model\.safetensors'):
      files.write_bytes(tmp_path / 'model.safetensors', bytes(2000))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert not list(tmp_path.iterdir())


def test_what_killed_writes_leave_is_told_from_other_files(tmp_path):
  path = tmp_path / 'model.json'
  with files.atomic(path) as partial:
    other = tmp_path / '.model.json.backup'
    other.touch()
    assert files.partial_files(path) == [partial]
