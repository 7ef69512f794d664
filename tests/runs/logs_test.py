"""Learning curves as logs: what they hold, and who may read them."""

import csv
import stat
import sys
import types

import pytest

import dpmf_jax
from dpmf_jax.runs import logs

RUN = {
  'system': 'gaussian_mf', 'epsilon': 2, 'steps': 4, 'report_every': 1,
  'key': 1, 'devices': 1, 'progress': False,
}  # fmt: skip


class Writer:
  """Stands for the writers of TensorBoard's files."""

  def __init__(self, folder, purge_step):
    self.folder, self.purge_step = folder, purge_step
    self.points, self.closed = [], False
    WRITERS.append(self)

  def add_scalar(self, tag, value, step):
    self.points.append((tag, value, step))

  def flush(self):
    pass

  def close(self):
    self.closed = True


WRITERS = []


@pytest.fixture
def writers(monkeypatch):
  WRITERS.clear()
  fake = types.SimpleNamespace(SummaryWriter=Writer)
  monkeypatch.setitem(sys.modules, 'tensorboardX', fake)
  return WRITERS


def rows_of(path):
  with path.open() as file:
    return list(csv.DictReader(file))


def test_logs_are_the_curve_of_the_run(small_ratings, tmp_path, writers):
  path, folder = tmp_path / 'curve.csv', tmp_path / 'board'
  run = dpmf_jax.train(small_ratings, curves=path, tensorboard=folder, **RUN)
  curve = run.metrics['curve']
  rows = rows_of(path)
  assert list(rows[0]) == [
    'round',
    'step',
    'train_rmse',
    'test_rmse',
    'seconds',
  ]
  for name in ('round', 'train_rmse', 'test_rmse'):
    assert [float(row[name]) for row in rows] == [x[name] for x in curve]
  (writer,) = writers
  assert (writer.folder, writer.closed) == (str(folder), True)
  assert writer.points == [
    (f'rmse/{part}', point[f'{part}_rmse'], point['round'])
    for point in curve
    for part in ('train', 'test')
  ]


def test_they_are_for_their_owner(small_ratings, tmp_path, writers):
  path, folder = tmp_path / 'curve.csv', tmp_path / 'board'
  dpmf_jax.train(small_ratings, curves=path, tensorboard=folder, **RUN)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
  folder.chmod(0o755)
  with pytest.raises(ValueError, match='board: others may open it'):
    dpmf_jax.train(small_ratings, tensorboard=folder, **RUN)


def progress(step):
  return types.SimpleNamespace(step=step, state=None)


def test_they_count_rounds(tmp_path, writers):
  curve = []
  path = tmp_path / 'curve.csv'
  with logs.logged(curve, path, tmp_path) as log:
    for step in range(2, 7):
      ended = {'round': step // 2 - 1} if step % 2 == 0 else {}
      curve.append({'step': step, **ended, 'train_rmse': 1 / step})
      log(progress(step - 2))
  assert [(x['round'], x['step']) for x in rows_of(path)] == [
    ('0', '2'), ('1', '4'), ('2', '6'),
  ]  # fmt: skip
  assert [step for _, _, step in writers[0].points] == [0, 1, 2]


def test_a_run_that_goes_on_keeps_what_came_before(tmp_path, writers):
  path = tmp_path / 'curve.csv'
  for start in (0, 2):
    curve = []
    with logs.logged(curve, path, tmp_path) as log:
      for step in range(start, 5):
        curve.append({'step': step, 'round': step, 'train_rmse': start + step})
        log(progress(step))
  assert [row['train_rmse'] for row in rows_of(path)] == [
    '0',
    '1',
    '4',
    '5',
    '6',
  ]
  assert [writer.purge_step for writer in writers] == [0, 2]


def test_a_missing_package_is_named(small_ratings, tmp_path, monkeypatch):
  for name in logs._WRITERS:
    monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(ValueError, match=r'pip install tensorboardX$'):
    dpmf_jax.train(small_ratings, tensorboard=tmp_path / 'board', **RUN)
  assert not (tmp_path / 'board').exists()


def test_another_writer_will_do(monkeypatch, writers):
  monkeypatch.setitem(sys.modules, 'tensorboardX', None)
  torch = types.SimpleNamespace(SummaryWriter='that of torch')
  for name in ('torch', 'torch.utils'):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
  monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', torch)
  assert logs._summary_writer('board') == 'that of torch'


def test_they_are_not_beside_what_is_released(small_ratings, tmp_path, writers):
  output = tmp_path / 'run'
  said = 'is not private, and would be in output='
  for name in ('curves', 'tensorboard'):
    with pytest.raises(ValueError, match=f'^{name}=.*{said}'):
      dpmf_jax.train(
        small_ratings, output=output, **{name: output / 'log'}, **RUN
      )
  assert not output.exists()
  private = output / 'private' / 'curve.csv'
  dpmf_jax.train(small_ratings, output=output, curves=private, **RUN)
  assert len(rows_of(private)) == 5


def test_other_logs_are_not_written_over(small_ratings, tmp_path, writers):
  path = tmp_path / 'curve.csv'
  path.write_text('mine')
  said = 'curve.csv is there already; choose another file or pass overwrite'
  with pytest.raises(ValueError, match=said):
    dpmf_jax.train(small_ratings, curves=path, **RUN)
  with pytest.raises(ValueError, match='holds other files; choose an empty'):
    logs.check(None, tmp_path, output=None, replace=False)
  assert path.read_text() == 'mine'
  dpmf_jax.train(small_ratings, curves=path, overwrite=True, **RUN)
  assert len(rows_of(path)) == 5


def test_lists_have_no_curve(small_ratings, tmp_path):
  with pytest.raises(
    ValueError, match='is for errors of ratings, and system=ra'
  ):
    dpmf_jax.train(
      small_ratings, task='ranking', epsilon=2, curves=tmp_path / 'curve.csv'
    )
