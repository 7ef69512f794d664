"""Notebooks run from top to bottom, in a checkout and as on Colab."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACE = "PLACE = '/content'"
# What each must print when it is run.
SAID = {
  'quickstart': ('Guarantee (proved): epsilon = 5', 'user 42', 'Star Wars'),
  'choose': (
    '943 x 1,682    one user    epsilon 0.5  dpals, rank 0',
    '6,040 x 3,706  one user    epsilon 8    dpals, rank 4',
  ),
  'clicks': ('Guarantee (proved): epsilon = 5', '1. item ', 'fan ['),
  'accountant': (
    '2.2541  exact',
    'a claim cannot be part of a proof',
    'refused',
  ),
  'break_gaussian_mf': ('as published: stated 0.33', 'gaussian_mf: refuted'),
  'personalised': (
    'Guarantee (proved): epsilon = 1',
    'personal   each rating has its own epsilon: 0.04998 to 1',
    'claimed: each rating is kept with chance',
  ),
  'sdmf_server': (
    'Claimed: 60 rounds in which clients choose items',
    'eps_g = eps_I = 0.25                0.98',
    'sdmf:paper:rank=10:steps=60  -               2  ',
  ),
  'federated': (
    'Guarantee (proved): epsilon = 0.9999, delta = 0',
    'received  SEALED     4 messages   515,632 bytes',
    '600 of 800 reports arrived in round 0, and 800 are needed',
    'all nodes, epsilon 1 for one rating',
  ),
  'own_system': (
    'prior=0.0 must be in (0, 1000]',
    'own_means: not refuted',
    'own system: refuted',
    'Guarantee (STATED BY ITS AUTHOR, NOT CHECKED HERE): epsilon = 1',
  ),
}
# This one needs no data and no JAX, and is quick.
QUICK = 'accountant'


def notebook_of(name):
  return nbformat.read(ROOT / 'notebooks' / f'{name}.ipynb', 4)


def outputs(name, folder, place='/content'):
  """What the cells print when a notebook is run in a folder."""
  notebook = notebook_of(name)
  install = notebook.cells[1]
  assert install.source.count(PLACE) == 1
  install.source = install.source.replace(PLACE, f'PLACE = {place!r}')
  client = nbclient.NotebookClient(
    notebook, timeout=None, resources={'metadata': {'path': str(folder)}}
  )
  client.execute()
  return ''.join(texts(notebook))


def texts(notebook):
  for cell in notebook.cells:
    for output in cell.get('outputs', ()):
      yield output.get('text', '')


@pytest.fixture
def strict_no_more(monkeypatch):
  """Strict settings of tests are not those of a user, whose kernel is fresh."""
  monkeypatch.delenv('JAX_DEBUG_KEY_REUSE', raising=False)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(
      name, marks=() if name == QUICK else (pytest.mark.slow, pytest.mark.long)
    )
    for name in SAID
  ],
)
def test_a_notebook_runs(name, strict_no_more):
  printed = outputs(name, ROOT / 'notebooks')
  for words in SAID[name]:
    assert words in printed


@pytest.mark.parametrize('name', SAID)
def test_what_is_kept_of_a_notebook_is_small_and_of_a_whole_run(name):
  assert (ROOT / 'notebooks' / f'{name}.ipynb').stat().st_size < 150_000
  notebook = notebook_of(name)
  kept = ''.join(texts(notebook))
  for words in SAID[name]:
    assert words in kept
  code = [cell for cell in notebook.cells if cell.cell_type == 'code']
  numbers = [cell.execution_count for cell in code]
  assert numbers == list(range(1, len(code) + 1))
  assert notebook.cells[1].source == notebook_of(QUICK).cells[1].source


def test_all_notebooks_are_tested():
  found = {path.stem for path in (ROOT / 'notebooks').glob('*.ipynb')}
  assert found == set(SAID)


@pytest.fixture(params=['checkout', 'wheel'])
def colab(request, tmp_path, monkeypatch):
  """A folder with a checkout or a wheel, and pip that installs aside."""
  content, site = tmp_path / 'content', tmp_path / 'site'
  checkout = (content if request.param == 'checkout' else tmp_path) / 'dpmf_jax'
  checkout.mkdir(parents=True)
  content.mkdir(exist_ok=True)
  site.mkdir()
  for name in ('pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(ROOT / name, checkout)
  for name in ('dpmf_jax', 'launch'):
    shutil.copytree(ROOT / name, checkout / name)
  monkeypatch.setenv('PIP_NO_DEPS', '1')
  monkeypatch.setenv('PIP_NO_BUILD_ISOLATION', 'off')  # which is pip's yes
  if request.param == 'wheel':
    command = [sys.executable, '-m', 'pip', 'wheel', '-q', str(checkout)]
    subprocess.run([*command, '-w', str(content)], check=True)
  monkeypatch.setenv('PYTHONPATH', str(site), prepend=os.pathsep)
  monkeypatch.setenv('PIP_TARGET', str(site))
  return content


@pytest.mark.slow
def test_a_notebook_installs_the_library_on_colab(
  colab, tmp_path, strict_no_more
):
  printed = outputs(QUICK, colab, str(colab))
  assert (tmp_path / 'site' / 'dpmf_jax' / '__init__.py').is_file()
  for words in SAID[QUICK]:
    assert words in printed
