"""The quickstart runs from top to bottom, in a checkout and as on Colab."""

import os
import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACE = '/content/dpmf_jax'


@pytest.fixture
def colab(tmp_path, monkeypatch):
  """A folder with the checkout in it, and pip that installs aside, offline."""
  content, site = tmp_path / 'content', tmp_path / 'site'
  checkout = content / 'dpmf_jax'
  checkout.mkdir(parents=True)
  site.mkdir()
  for name in ('pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(ROOT / name, checkout)
  for name in ('dpmf_jax', 'launch'):
    shutil.copytree(ROOT / name, checkout / name)
  monkeypatch.setenv('PYTHONPATH', str(site), prepend=os.pathsep)
  monkeypatch.setenv('PIP_TARGET', str(site))
  monkeypatch.setenv('PIP_NO_DEPS', '1')
  monkeypatch.setenv('PIP_NO_BUILD_ISOLATION', 'off')  # which is pip's yes
  return content


def outputs(folder, source=PLACE):
  """What the cells print and show when the notebook is run in a folder."""
  notebook = nbformat.read(ROOT / 'notebooks' / 'quickstart.ipynb', 4)
  install = notebook.cells[1]
  assert install.source.count(PLACE) == 1
  install.source = install.source.replace(PLACE, source)
  client = nbclient.NotebookClient(
    notebook, timeout=None, resources={'metadata': {'path': str(folder)}}
  )
  client.execute()
  found = [
    output
    for cell in notebook.cells
    if cell.cell_type == 'code'
    for output in cell.outputs
  ]
  texts = ''.join(output.get('text', '') for output in found)
  pages = [output.get('data', {}).get('text/html', '') for output in found]
  return texts, ''.join(pages)


@pytest.mark.slow
@pytest.mark.parametrize('place', ['checkout', 'colab'])
def test_quickstart_runs(place, monkeypatch, request, tmp_path):
  # The kernel is a fresh process: the strict settings of the tests are not
  # those of a notebook user.
  monkeypatch.delenv('JAX_DEBUG_KEY_REUSE', raising=False)
  if place == 'checkout':
    texts, pages = outputs(ROOT / 'notebooks')
  else:
    content = request.getfixturevalue('colab')
    texts, pages = outputs(content, str(content / 'dpmf_jax'))
    assert (tmp_path / 'site' / 'dpmf_jax' / '__init__.py').is_file()
  assert 'Guarantee (proved): epsilon = 2' in texts
  assert 'user 42' in texts
  assert 'user me' in texts
  assert 'data:image/png;base64' in pages
