"""Runs of a comparison: what is held out in each, and which are done."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from dpmf_jax import files
from dpmf_jax.evaluation.comparison import FILES
from dpmf_jax.keys import random_key
from dpmf_jax.ratings import splits
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.runs import folders
from dpmf_jax.runs.entries import Entry

Split = Literal['random', 'last', 'one']
CELLS = 'cells.jsonl'


class Part(NamedTuple):
  """What is held out in a run, and the seed of its noise."""

  split: Split
  share: float | None
  folds: int | None
  seed: int
  number: int

  def sides(self, ratings: Ratings) -> tuple[Ratings, Ratings]:
    """(train, test)."""
    seed = self.seed
    if self.folds:
      return splits.fold(ratings, self.number, folds=self.folds, seed=seed)
    if self.split == 'last':
      return splits.hold_out_last(ratings, seed=seed)
    if self.split == 'one':
      return splits.hold_out_per_user(ratings, 1, seed=seed)
    assert self.share is not None
    return splits.random_split(ratings, self.share, seed=seed)

  def key(self) -> jax.Array:
    """As in `train` with that seed; each fold has its own."""
    key, _ = jax.random.split(random_key(self.seed))
    return jax.random.fold_in(key, self.number) if self.folds else key


class Cell(NamedTuple):
  """A run, and what tells whether it is done."""

  part: Part
  entry: Entry
  key: str


def held_out_share(
  split: str, fraction: float | None, folds: int | None
) -> float | None:
  """The part that is held out at random; None where something else is."""
  if split not in ('random', 'last', 'one'):
    raise ValueError(f"split={split!r} must be 'random', 'last' or 'one'")
  if folds is not None:
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
      raise ValueError(f'folds={folds!r} must be an integer from 2')
    if split != 'random':
      raise ValueError(
        f"folds={folds} is for split='random': 'last' and 'one' hold out one "
        'rating of each user'
      )
  if fraction is None:
    return None if folds or split != 'random' else 0.2
  if folds or split != 'random':
    raise ValueError(
      f"test_fraction={fraction} is for split='random' without folds: leave it "
      'out'
    )
  if not 0 < fraction < 1:
    raise ValueError(f'test_fraction={fraction} must be in (0, 1)')
  return fraction


def protocol(
  split: Split, share: float | None, folds: int | None, seeds: int
) -> str:
  """What is held out, in words."""
  times = f'{seeds} seed{"s" * (seeds > 1)}'
  if folds:
    return f'{folds} folds and {times}'
  held_out = {
    'random': f'{share or 0:.0%} of ratings held out at random',
    'last': 'the last rating of each user held out',
    'one': 'one random rating of each user held out',
  }
  return f'{held_out[split]}, {times}'


def digest(ratings: Ratings) -> str:
  """A hash of all that a split and a run depend on."""
  lists = (ratings.user_ids.astype(str), ratings.item_ids.astype(str))
  return files.sha256(
    folders.digest(ratings).encode(),
    as_json([each.tolist() for each in lists]),
    as_json([ratings.scale, ratings.clicks, ratings.most_users]),
    b'' if ratings.timestamp is None else ratings.timestamp,
  )


def as_json(value: Any) -> bytes:
  """The value as bytes, of which a hash can be made."""
  return json.dumps(value).encode()


@contextlib.contextmanager
def kept(
  output: str | Path | None, overwrite: bool
) -> Iterator[tuple[dict[str, Any], Callable[[Cell, Any], None]]]:
  """Yields the runs of before by their keys, and what keeps another one."""
  if output is None:
    yield {}, lambda cell, found: None
    return
  folder = files.checked_path(output, 'output')
  path = folder / CELLS
  if folder.exists() and not folder.is_dir():
    raise ValueError(f'output={folder} is a file, not a folder')
  folder.mkdir(parents=True, exist_ok=True, mode=0o700)
  with folders.locked(folder, f'output={folder}'):
    for name in (CELLS, *FILES):  # what a kill has left
      for left in files.partial_files(folder / name):
        left.unlink()
    if any(folder.iterdir()) and not path.exists():
      raise ValueError(
        f'output={folder} holds other files; choose an empty or new folder'
      )
    lines = [] if overwrite or not path.exists() else _lines(path)

    def keep(cell: Cell, found: dict[str, Any]) -> None:
      label, epsilon, _ = cell.entry
      facts = {'key': cell.key, 'system': label, 'epsilon': epsilon}
      lines.append(facts | cell.part._asdict() | found)
      text = ''.join(json.dumps(line) + '\n' for line in lines)
      files.write_bytes(path, text.encode(), mode=0o600)

    yield {line['key']: line for line in lines}, keep


def _lines(path: Path) -> list[dict[str, Any]]:
  found = []
  for number, text in enumerate(path.read_text().splitlines(), 1):
    where = f'{path}, line {number}'
    line = files.parsed_json(text, where)
    if not {'key', 'found', 'seconds'} <= line.keys():
      raise ValueError(f'{where}: is no run; pass overwrite=True to begin anew')
    found.append(line)
  return found
