"""The quickstart runs from top to bottom, as it would on Colab."""

from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_quickstart_runs(monkeypatch):
  # The kernel is a fresh process: the strict settings of the tests are not
  # those of a notebook user.
  monkeypatch.delenv('JAX_DEBUG_KEY_REUSE', raising=False)
  notebook = nbformat.read(ROOT / 'notebooks' / 'quickstart.ipynb', 4)
  client = nbclient.NotebookClient(
    notebook, timeout=None, resources={'metadata': {'path': str(ROOT)}}
  )
  client.execute()
  printed = ''.join(
    output.get('text', '')
    for cell in notebook.cells
    if cell.cell_type == 'code'
    for output in cell.outputs
  )
  assert 'Guarantee (proved): epsilon = 2' in printed
  assert 'user 42' in printed
  assert any(
    'image/png' in output.get('data', {})
    for cell in notebook.cells
    if cell.cell_type == 'code'
    for output in cell.outputs
  )
