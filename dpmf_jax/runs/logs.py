"""Learning curves as logs that can be watched while a run trains.

Privacy: errors are computed from ratings without noise, and no certificate
covers them. Logs are for the curator only: nobody else may open the files.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmf_jax import files
from dpmf_jax.training import Progress

# What can write the files of TensorBoard, the smallest first.
_WRITERS = ('tensorboardX', 'torch.utils.tensorboard')
_TAGS = {'train_rmse': 'rmse/train', 'test_rmse': 'rmse/test'}
_Point = Mapping[str, Any]


def check(
  curves: Any,
  tensorboard: Any,
  *,
  output: str | Path | None,
  replace: bool,
) -> None:
  """Raises ValueError where logs cannot be written, before anything runs.

  Args:
    curves, tensorboard: see `train`.
    output: the folder of the run, which has no room for them but in private/.
    replace: whether there may be logs already: of the run that goes on, or of
      one that is replaced.
  """
  if curves is not None:
    path = files.checked_path(curves, 'curves')
    _check_apart('curves', path, output)
    if path.exists() and not replace:
      raise ValueError(
        f'curves={path} is there already; choose another file or pass '
        'overwrite=True'
      )
  if tensorboard is not None:
    path = files.checked_path(tensorboard, 'tensorboard')
    _summary_writer(path)
    _check_apart('tensorboard', path, output)
    if problem := files.private_folder(path):
      raise ValueError(f'tensorboard={problem}')
    if any(path.iterdir()) and not replace:
      raise ValueError(
        f'tensorboard={path} holds other files; choose an empty or new folder, '
        'or pass overwrite=True to write beside them'
      )


def _check_apart(name: str, path: Path, output: str | Path | None) -> None:
  if output is None:
    return
  folder, path = Path(output).absolute(), path.absolute()
  inside = path == folder or folder in path.parents
  if inside and folder / 'private' not in path.parents:
    raise ValueError(
      f'{name}={path} is not private, and would be in output={output}, beside '
      f'what is released: use {Path(output) / "private" / path.name}'
    )


@contextlib.contextmanager
def logged(
  curve: Sequence[_Point], curves: Any, tensorboard: Any
) -> Iterator[Callable[[Progress], None]]:
  """Yields a callback that logs the last point of `curve`, after a round.

  Points within a round, after the users and before the items, are left out.

  Args:
    curve: which another callback has added to.
    curves, tensorboard: see `train`.
  """
  with contextlib.ExitStack() as stack:
    logs: dict[str, Callable[[_Point], None]] = {}
    if tensorboard is not None:
      logs['tensorboard'] = _tensorboard_log(Path(tensorboard), stack)

    def callback(report: Progress) -> None:
      if curves is not None and 'curves' not in logs:
        logs['curves'] = _csv_log(Path(curves), report.step)
      if 'round' in curve[-1]:
        for log in logs.values():
          log(curve[-1])

    yield callback


def _csv_log(path: Path, start: int) -> Callable[[_Point], None]:
  """What writes the whole file again with every point, for its owner alone.

  Of a run that goes on from step `start` the file has what came before.
  """
  rows: list[dict[str, Any]] = []
  if start and path.exists():
    with path.open(newline='') as file:
      rows += (x for x in csv.DictReader(file) if int(x['step']) < start)

  def log(point: _Point) -> None:
    rows.append({'round': point['round'], **point})
    out = io.StringIO()
    writer = csv.DictWriter(
      out, list(rows[-1]), lineterminator='\n', extrasaction='ignore'
    )
    writer.writeheader()
    writer.writerows(rows)
    files.write_bytes(path, out.getvalue().encode(), mode=0o600)

  return log


def _tensorboard_log(
  folder: Path, stack: contextlib.ExitStack
) -> Callable[[_Point], None]:
  """What adds points to logs in a folder; the stack closes them."""
  opened = []

  def log(point: _Point) -> None:
    step = point['round']
    if not opened:
      # What a run that was killed logged from here on does not count.
      writer = _summary_writer(folder)
      opened.append(writer(str(folder), purge_step=step))
      stack.callback(opened[0].close)
    for name, tag in _TAGS.items():
      if name in point:
        opened[0].add_scalar(tag, point[name], step)
    opened[0].flush()

  return log


def _summary_writer(folder: Path) -> Any:
  for name in _WRITERS:
    with contextlib.suppress(ImportError):
      return importlib.import_module(name).SummaryWriter
  raise ValueError(
    f'tensorboard={folder} needs a package that writes such logs: pip install '
    'tensorboardX'
  )
