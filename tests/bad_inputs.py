"""Files and flags that are wrong, as the rows of docs/misuse.md make them."""

import contextlib
import gzip
import os
import shlex
import sqlite3
import subprocess
from pathlib import Path

import forks

import dpmf_jax
from dpmf_jax.ratings import writing
from dpmf_jax.ratings.synthetic import synthetic

# What the page's commands are short for.
SHORT = {
  'train': 'train --ratings=bad.csv --epsilon=1 --output=out',
  'lists': 'recommend --model=run',
}


def prepare(folder: Path) -> None:
  """Makes `good.csv`, and in `run` and `book.db` a run on it, charged."""
  folder.mkdir()
  ratings = synthetic(
    num_users=60, num_items=40, num_ratings=700, rank=3, seed=1
  )
  writing.write(ratings, folder / 'good.csv')
  dpmf_jax.train(
    folder / 'good.csv', system='power_mf', epsilon=1, rank=0, rounds=1,
    test_fraction=0, progress=False, output=folder / 'run',
    ledger=folder / 'book.db', budget_epsilon=3,
  )  # fmt: skip


def run(
  folder: Path, statement: str, command: str
) -> subprocess.CompletedProcess:
  """What a command gave in a folder where something was done before."""
  with contextlib.chdir(folder):
    exec(statement, dict(_NAMES))
  first, *rest = shlex.split(command)
  script, *flags = shlex.split(SHORT.get(first, first))
  return forks.run(
    f'launch.{script}', *flags, *rest,
    before=f'import os; os.chdir({str(folder)!r})',
  )  # fmt: skip


def write(content: str | bytes, name: str = 'bad.csv') -> None:
  data = content.encode() if isinstance(content, str) else content
  Path(name).write_bytes(data)


def edit(name: str, old: str, new: str) -> None:
  text = Path(name).read_text()
  assert old in text
  Path(name).write_text(text.replace(old, new, 1))


def flip(name: str) -> None:
  """Changes the last bit of a file."""
  content = bytearray(Path(name).read_bytes())
  content[-1] ^= 1
  Path(name).write_bytes(content)


def cut(name: str) -> None:
  """Leaves half of a file."""
  content = Path(name).read_bytes()
  Path(name).write_bytes(content[: len(content) // 2])


def sql(statement: str) -> None:
  """Changes the ledger without asking the library."""
  with contextlib.closing(sqlite3.connect('book.db')) as connection:
    connection.execute(statement)
    connection.commit()


_NAMES = {
  'write': write, 'edit': edit, 'flip': flip, 'cut': cut, 'sql': sql,
  'gzip': gzip, 'os': os,
}  # fmt: skip
