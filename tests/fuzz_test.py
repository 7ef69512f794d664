"""A little of `python -m tests.fuzz`, which can go on for hours."""

import fuzz
import pytest

from tests import fuzz_ledgers
from tests.mutations import Target, changed_bytes


def check(targets, numbers, folder):
  problems = [
    f'{name}, {number}: {said}'
    for name, number, said, _ in fuzz.found(targets, iter(numbers), folder)
    if said is not None
  ]
  assert not problems, '\n'.join(problems[:5])


def test_readers_and_decoders(tmp_path):
  targets = {
    **dict(fuzz.ratings_targets()),
    **dict(fuzz.federated_targets(tmp_path)),
    **dict(fuzz_ledgers.targets(tmp_path)),
    **dict(fuzz.settings_targets()),
  }
  check(targets, range(20), tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_all_of_them_for_longer(tmp_path):
  check(fuzz.targets(tmp_path), range(20, 600), tmp_path)


def test_what_does_not_end_is_found(tmp_path):
  def read(content, folder):
    while content != b'good':
      pass

  target = Target([b'good'], read, True, lambda rng, content: b'bad')
  with fuzz.limited(0.01):  # of the processor, however long that takes
    said = fuzz.problem('x', target, 1, tmp_path)
  assert said.startswith('takes too long')
  assert 'in read' in said


def test_what_is_wrong_is_found(tmp_path):
  """Errors of others, of two lines, and about no file."""

  def raises(error):
    def read(content, folder):
      if content != b'good':
        raise error

    return Target([b'good'], read, True, changed_bytes)

  for error, said in (
    (KeyError('x'), 'KeyError'),
    (UnicodeDecodeError('utf-8', b'', 0, 1, tmp_path.name), 'UnicodeDecodeErr'),
    (ValueError(f'{tmp_path.name}\nx'), 'more than a line'),
    (ValueError('x'), 'does not name the file'),
  ):
    target = raises(error)
    assert fuzz.problem('x', target, 0, tmp_path) is None
    found = [fuzz.problem('x', target, n, tmp_path) for n in range(1, 9)]
    assert all(said in each for each in found if each)
    assert any(found)
