"""What the pages show runs as it stands there: Python and commands, in order.

Blocks of `python` and `sh` run in a folder with the files that pages speak of.
A block of `bash` is shown and not run, and a comment above it says why.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import forks
import numpy as np
import pytest

import dpmf_jax

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r'^```(\w+)\n(.*?)^```$', re.S | re.M)
PAGES = (
  'index',
  'choose',
  'contributing',
  'reference/commands',
  *sorted(f'howto/{path.stem}' for path in ROOT.glob('docs/howto/*.md')),
)


def text_of(page):
  return (ROOT / 'docs' / f'{page}.md').read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Where pages are: ratings, clicks and lists, all made up and small."""
  made = dpmf_jax.synthetic(
    num_users=60, num_items=40, num_ratings=1500, seed=1
  ).columns()
  users, items, stars = made['user'], made['item'], made['rating'].astype(int)
  plays = np.random.default_rng(0).integers(1, 9, len(users))
  tables = {
    'ratings.csv': ('user,item,rating', (users, items, stars)),
    'events.csv': ('who,what,stars', (users, items, stars)),
    'part-1.csv': ('user,item,rating', (users, items, stars)),
    'clicks.csv': ('user,item', (users, items)),
    'plays.csv': ('user,item,plays', (users, items, plays)),
    'visits.csv': ('user,item,timestamp', (users, items, 10 + plays)),
    'new_users.csv': ('user,item,rating', (['new'] * 3, [1, 2, 3], [5, 1, 4])),
    'catalogue.txt': ('1', (range(2, 60),)),
    'customers.txt': ('1', (range(2, 100),)),
  }
  for name, (head, columns) in tables.items():
    lines = [','.join(map(str, row)) for row in zip(*columns, strict=True)]
    (tmp_path / name).write_text('\n'.join([head, *lines]) + '\n')
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setenv('PYTHONPATH', str(ROOT), prepend=os.pathsep)
  return tmp_path


def run_command(line, folder):
  """Runs a line of a block of `sh`; commands of the library in a fork."""
  words = shlex.split(line, comments=True)
  if words[:1] == ['export']:
    name, value = words[1].split('=')
    os.environ[name] = value
    return
  words, target = (words[:-2], words[-1]) if '>' in words else (words, None)
  if words[0] == 'dpmf':
    done = forks.run(
      'dpmf_jax.commands', *words[1:],
      before=f'import os, sys; os.chdir({str(folder)!r}); sys.path.append(".")',
    )  # fmt: skip
  else:
    if words[0] == 'python':
      words[0] = sys.executable
    done = subprocess.run(words, check=False, capture_output=True, text=True)
  assert done.returncode == 0, f'{line}\n{done.stdout}{done.stderr}'
  if target:
    (folder / target).write_text(done.stdout)


def run_python(code, names, folder):
  named = re.match(r'# (\w+\.py)\n', code)
  if named:  # a module, which commands import as well
    (folder / named[1]).write_text(code)
  exec(code, names)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('page', PAGES)
def test_what_a_page_shows_runs(page, folder, monkeypatch, capfd):
  monkeypatch.setattr(os, 'environ', os.environ.copy())
  names = {'__name__': 'page'}
  with contextlib.ExitStack() as stack:
    stack.callback(_forget, *_registered())
    for kind, text in BLOCK.findall(text_of(page)):
      if kind == 'python':
        run_python(text, names, folder)
      elif kind == 'sh':
        for line in text.replace('\\\n', ' ').splitlines():
          run_command(line, folder)
  assert 'Traceback' not in capfd.readouterr().err


def _registered():
  from dpmf_jax import systems
  from dpmf_jax.plans import SPECS

  return set(SPECS), set(systems._REGISTERED)


def _forget(specs, registered):
  """Takes back what a page registered: other tests go over all systems."""
  from dpmf_jax import systems
  from dpmf_jax.plans import SPECS

  for name in set(SPECS) - specs:
    del SPECS[name]
  for name in set(systems._REGISTERED) - registered:
    del systems._REGISTERED[name]


@pytest.mark.parametrize('page', PAGES)
def test_what_is_not_run_says_why(page):
  text = text_of(page)
  shown = len(re.findall(r'^```bash$', text, re.M))
  assert (
    len(re.findall(r'^<!-- not run: .+ -->\n```bash$', text, re.M)) == shown
  )
