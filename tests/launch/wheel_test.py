"""What `pip install` gives: one package, one command, from any folder."""

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import forks
import pytest

from dpmf_jax.commands import __main__ as commands

ROOT = Path(__file__).resolve().parents[2]


def pip(*arguments):
  """Runs pip, which finds nothing but what is installed."""
  subprocess.run(
    [sys.executable, '-m', 'pip', '--quiet', '--no-input', *arguments],
    check=True,
    env={**os.environ, 'PIP_NO_INDEX': '1'},
  )


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """The wheel of a copy of the checkout: building leaves files behind."""
  folder = tmp_path_factory.mktemp('wheel')
  source = folder / 'source'
  source.mkdir()
  for name in ('pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(ROOT / name, source)
  unneeded = shutil.ignore_patterns('__pycache__')
  for name in ('dpmf_jax', 'launch', 'docs', 'tests', 'benchmarks'):
    shutil.copytree(ROOT / name, source / name, ignore=unneeded)
  pip(
    'wheel', '--no-deps', '--no-build-isolation',
    f'--wheel-dir={folder}', str(source),
  )  # fmt: skip
  (built,) = folder.glob('*.whl')
  return built


@pytest.mark.slow
def test_the_wheel_has_one_package_and_one_command(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    (entries,) = (name for name in names if name.endswith('entry_points.txt'))
    points = configparser.ConfigParser()
    points.read_string(archive.read(entries).decode())
  tops = {name.split('/')[0] for name in names}
  assert {top for top in tops if not top.endswith('.dist-info')} == {'dpmf_jax'}
  assert points.sections() == ['console_scripts']
  assert dict(points['console_scripts']) == {
    'dpmf': 'dpmf_jax.commands.__main__:main'
  }
  # All modules, and the files that they read.
  tracked = {
    str(path.relative_to(ROOT))
    for path in (ROOT / 'dpmf_jax').rglob('*')
    if path.is_file() and path.suffix != '.pyc'
  }
  assert {name for name in names if name.startswith('dpmf_jax/')} == tracked


@pytest.mark.slow
def test_train_and_recommend_from_another_folder(wheel, tmp_path):
  site, work = tmp_path / 'site', tmp_path / 'work'
  work.mkdir()
  pip('install', '--no-deps', f'--target={site}', str(wheel))
  rows = (f'{u},{i},{1 + (u * i) % 5}\n' for u in range(9) for i in range(7))
  (work / 'ratings.csv').write_text('user,item,rating\n' + ''.join(rows))

  def dpmf(*words):
    return forks.printed([str(site / 'bin' / 'dpmf'), *words], work, site)

  assert dpmf().splitlines()[0] == 'usage: dpmf COMMAND --flag=value ...'
  shown = dpmf(
    'train', '--system=gaussian_mf', '--ratings=ratings.csv', '--epsilon=2',
    '--steps=2', '--output=run',
  )  # fmt: skip
  assert 'Guarantee (proved): epsilon = 2' in shown
  lists = dpmf('recommend', '--model=run', '--users=3', '--k=2')
  assert lists.splitlines()[0] == 'user 3'


@pytest.mark.parametrize('words', [(), ('--help',), ('-h',)])
def test_dpmf_lists_its_commands(words, launch):
  done = launch('commands', *words, room='dpmf_jax')
  assert done.returncode == 0
  assert done.stdout == commands.listing() + '\n'


def test_a_wrong_command_is_named(launch):
  done = launch('commands', 'trian', room='dpmf_jax')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith("error: there is no command 'trian'; there are")


@pytest.mark.parametrize('name', commands.COMMANDS)
def test_every_command_has_help(name, launch):
  done = launch('commands', name, '--help', room='dpmf_jax')
  assert done.returncode == 0, done.stderr
  assert f'dpmf {name}' in done.stdout
