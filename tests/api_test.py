import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import dpmf_jax
from dpmf_jax.plans import SPECS


def test_names_for_the_type_checker_are_those_at_run_time():
  tree = ast.parse(Path(dpmf_jax.__file__).read_text())
  found = {
    alias.name: node.module.removeprefix('dpmf_jax.')
    for node in ast.walk(tree)
    if isinstance(node, ast.ImportFrom) and node.module.startswith('dpmf_jax.')
    for alias in node.names
    if alias.name != 'SPECS'
  }
  assert found == dpmf_jax._modules()


def test_every_name_loads():
  for name, module in dpmf_jax._modules().items():
    home = importlib.import_module(f'dpmf_jax.{module}')
    assert getattr(dpmf_jax, name) is getattr(home, name)


def test_importing_the_package_does_not_start_jax():
  code = 'import sys, dpmf_jax; assert "jax" not in sys.modules'
  subprocess.run([sys.executable, '-c', code], check=True)


def test_no_system_imports_another():
  folder = Path(dpmf_jax.__file__).parent / 'systems'
  for name in SPECS:
    source = (folder / f'{name}.py').read_text()
    for other in set(SPECS) - {name}:
      # A config of another system may be read; what it runs may not.
      assert not re.search(rf'systems(\.| import ){other}\b', source)
