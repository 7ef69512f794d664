"""What the README shows runs as it stands there, and fits on a screen."""

import csv
import re
from pathlib import Path

import dpmf_jax

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / 'README.md').read_text()


def test_it_is_one_screen():
  assert len(README.splitlines()) <= 60


def test_three_lines_of_python_run(tmp_path, monkeypatch, capsys):
  (code,) = re.findall(r'```python\n(.*?)```', README, re.S)
  assert len(code.strip().splitlines()) <= 5  # an import, a blank and three
  made = dpmf_jax.synthetic(
    num_users=60, num_items=40, num_ratings=1500, seed=1
  )
  rows = zip(
    *(column.tolist() for column in made.columns().values()), strict=True
  )
  with (tmp_path / 'ratings.csv').open('w') as file:
    csv.writer(file).writerows([('user', 'item', 'rating'), *rows])
  monkeypatch.chdir(tmp_path)
  exec(code, {})
  shown = capsys.readouterr().out
  assert 'Guarantee (proved): epsilon = ' in shown
  assert shown.count('Recommendation(') == 5


def test_its_links_and_commands_are_there():
  links = re.findall(r'\]\(([^)]+)\)', README)
  assert len(links) > 15
  for link in links:
    assert (ROOT / link).exists(), link
  makefile = (ROOT / 'Makefile').read_text()
  for target in re.findall(r'(?:^|[`;] ?)make ([a-z-]+)', README, re.M):
    assert re.search(rf'^{target}:', makefile, re.M), target


def test_the_picture_has_figures_of_the_results():
  results = (ROOT / 'docs' / 'results.md').read_text()
  with (ROOT / 'docs' / 'results' / 'lists.csv').open() as file:
    figures = [row['ndcg_at_10'] for row in csv.DictReader(file)]
  assert len(figures) == 16
  for figure in figures:
    assert figure in results, figure
