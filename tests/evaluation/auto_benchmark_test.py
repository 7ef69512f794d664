"""What `benchmarks.auto` makes of figures that it has written before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def figures(name, auto):
  rows = {'user mean': {'rmse': [1.0, 1.0]}}
  for epsilon, value in auto.items():
    rows[f'auto, rating, epsilon {epsilon}'] = {'rmse': [value, value]}
    rows[f'means alone, rating, epsilon {epsilon}'] = {'rmse': [0.95, 0.95]}
  return {name: rows}


@pytest.mark.slow
def test_figures_of_several_runs_are_checked_and_drawn(tmp_path):
  paths = [tmp_path / 'a.json', tmp_path / 'b.json']
  made = figures('one', {1: 0.94, 2: 0.93}), figures('two', {1: 0.94, 2: 0.96})
  for path, written in zip(paths, made, strict=True):
    path.write_text(json.dumps(written))

  def run(*files):
    return subprocess.run(
      [
        sys.executable,
        '-m',
        'benchmarks.auto',
        f'--from_json={",".join(map(str, files))}',
        f'--figure={tmp_path / "auto.png"}',
      ],
      cwd=ROOT,
      env={**os.environ, 'PYTHONPATH': str(ROOT)},
      capture_output=True,
      text=True,
      check=False,
    )

  fine = run(paths[0])
  assert fine.returncode == 0, fine.stderr
  assert 'all that must hold does' in fine.stdout
  assert '| one | 1.000 | - | - | rating |' in fine.stdout
  both = run(*paths)
  assert both.returncode == 1
  assert 'two: rating, epsilon 2: 0.9600 is worse than 0.9500' in both.stdout
  assert (tmp_path / 'auto.png').stat().st_size > 1000
