import ast
import importlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpmf_jax
from dpmf_jax.plans import SPECS, config_of
from dpmf_jax.systems import build

SETTINGS = {'scale': (1, 5), 'epsilon': 2}


def names_for_the_type_checker():
  """Name -> module, and none for the functions of systems and rooms."""
  tree = ast.parse(Path(dpmf_jax.__file__).read_text())
  (block,) = (
    node
    for node in tree.body
    if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'
  )
  found = {}
  for node in block.body:
    if isinstance(node, ast.ImportFrom) and node.module.startswith('dpmf_jax'):
      module = node.module.removeprefix('dpmf_jax').removeprefix('.')
      found |= {alias.name: module for alias in node.names}
    elif isinstance(node, ast.Assign | ast.AnnAssign):
      target = node.targets[0] if isinstance(node, ast.Assign) else node.target
      found[target.id] = ''
  del found['_P']
  return found


def test_names_for_the_type_checker_are_those_at_run_time():
  rooms = dict.fromkeys(dpmf_jax._rooms(), '')
  assert names_for_the_type_checker() == dpmf_jax._public() | rooms


def test_every_name_loads():
  for name, module in dpmf_jax._public().items():
    found = getattr(dpmf_jax, name)
    if module:
      home = importlib.import_module(f'dpmf_jax.{module}')
      assert found is getattr(home, name)
    assert name in dir(dpmf_jax)
    assert name in dpmf_jax.__all__


def test_rooms_are_loaded_on_first_touch_and_jax_only_with_them():
  code = """
import sys, dpmf_jax
assert dpmf_jax.accounting.epsilon is dpmf_jax.epsilon
assert dpmf_jax.ratings.table.Ratings is dpmf_jax.Ratings
dpmf_jax.power_mf, dpmf_jax.PowerMFConfig, dir(dpmf_jax)
assert 'jax' not in sys.modules
dpmf_jax.rows
assert 'jax' in sys.modules
"""
  subprocess.run([sys.executable, '-c', code], check=True)


def test_a_name_that_is_not_there():
  with pytest.raises(AttributeError, match="no attribute 'power_fm'"):
    _ = dpmf_jax.power_fm


@pytest.mark.parametrize('name', SPECS)
def test_a_factory_makes_what_a_config_makes(name):
  spec = SPECS[name]
  for variant in spec.variants:
    case = spec.cases[variant][0].settings
    made = getattr(dpmf_jax, name)(variant=variant, **case)
    config = config_of(name, variant, **case)
    assert made.guarantee == build(name, config).guarantee
    assert made.step == build(name, config).step


@pytest.mark.parametrize('name', SPECS)
def test_a_factory_says_what_it_takes(name):
  function = getattr(dpmf_jax, name)
  assert function.__name__ == name
  assert pickle.loads(pickle.dumps(function)) is function
  for parameter in inspect.signature(function).parameters:
    assert f'\n  {parameter}: ' in function.__doc__


def test_a_factory_by_keywords():
  system = dpmf_jax.power_mf(delta=1e-6, relation='add_remove', **SETTINGS)
  assert dpmf_jax.epsilon(system.guarantee, delta=1e-6) == pytest.approx(2)
  plain = dpmf_jax.gaussian_mf(delta=1e-6, **SETTINGS)
  assert (plain.guarantee.status, plain.guarantee.relation) == (
    'proved',
    'add_remove',
  )
  published = dpmf_jax.gaussian_mf(variant='paper', delta=1e-6, **SETTINGS)
  assert published.guarantee.status == 'claimed'


@pytest.mark.parametrize(
  ('name', 'settings', 'said'),
  [
    ('power_mf', {'epsilon': 2, 'delta': 1e-6}, "power_mf: .*'scale'"),
    ('power_mf', {**SETTINGS, 'delta': 1e-6, 'ranks': 2}, "'ranks'"),
    ('power_mf', {**SETTINGS, 'delta': 1e-6, 'features': 1}, "'features'"),
    ('power_mf', {'epsilom': 2, 'delta': 1e-6}, "unexpected .*'epsilom'"),
    ('sdmf', SETTINGS, "sdmf: .*'variant'"),
  ],
)
def test_a_factory_says_what_is_wrong(name, settings, said):
  with pytest.raises(TypeError, match=said):
    getattr(dpmf_jax, name)(**settings)


def test_a_scale_is_no_text():
  with pytest.raises(ValueError, match=r"scale='1,5' must be \(lowest, highe"):
    dpmf_jax.power_mf(epsilon=2, delta=1e-6, scale='1,5')


def test_a_system_is_no_event():
  system = dpmf_jax.power_mf(delta=1e-6, **SETTINGS)
  with pytest.raises(ValueError, match='got a System: use its `guarantee`'):
    dpmf_jax.epsilon(system, 1e-6)


def test_a_variant_that_is_not_there():
  said = "variant='none' must be 'sound' or 'paper'"
  with pytest.raises(ValueError, match=said):
    dpmf_jax.gaussian_mf(variant='none', delta=1e-6, **SETTINGS)


@pytest.mark.parametrize('unit', ['rating', 'user'])
def test_auto_is_what_its_rule_chooses(unit):
  facts = {'num_users': 943, 'num_items': 1682, 'epsilon': 5, 'delta': 1e-6}
  system = dpmf_jax.auto(**facts, scale=(1, 5), unit=unit)
  assert system.guarantee.unit == unit
  assert dpmf_jax.epsilon(system.guarantee, delta=1e-6) == pytest.approx(5)
  name, settings = dpmf_jax.plans.auto.recommended(unit, **facts)
  named = getattr(dpmf_jax, name)(
    epsilon=5, delta=1e-6, scale=(1, 5), **settings
  )
  assert named.guarantee == system.guarantee


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
