"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import dpmf_jax

README = Path(__file__).resolve().parents[1] / 'README.md'


def test_the_quickstart_is_ten_lines_that_run(tmp_path, monkeypatch, capsys):
  (code,) = re.findall(r'```python\n(.*?)```', README.read_text(), re.S)
  assert len(code.strip().splitlines()) <= 11  # one is blank
  # Of the same shape as what is shown, and smaller.
  made = dpmf_jax.synthetic(
    num_users=60, num_items=300, num_ratings=3000, seed=1
  )
  monkeypatch.setattr(dpmf_jax, 'load', lambda name: made, raising=False)
  monkeypatch.chdir(tmp_path)
  exec(code, {})
  shown = capsys.readouterr().out
  assert 'Guarantee (proved): epsilon = ' in shown
  assert dpmf_jax.load_model('runs/first').fit is not None
