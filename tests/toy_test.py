"""A system of one's own: two files and a line, found everywhere."""

import json
import shutil
import sys
from pathlib import Path

import forks
import pytest

ROOT = Path(__file__).resolve().parents[1]

PLAN = """
import functools

from dpmf_jax import accounting
from dpmf_jax.accounting import tails
from dpmf_jax.plans import assumptions
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Relation


@declare.config
class ToyMeansConfig:
  \"\"\"Public facts about a run.\"\"\"

  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.delta(above=0, maximum=0.25)
  toy_weight: float = declare.setting(
    default=2.0, above=0, maximum=10, help='How heavy the toy is.'
  )


@functools.lru_cache
def plan(config):
  event = accounting.drawn_gaussian(
    lambda multiplier: tails.uncovered(multiplier, 2),
    delta=config.delta,
    epsilon=config.epsilon,
  )
  std = event.noise_multiplier * 1.5
  stated = Guarantee(
    status='proved',
    unit='rating',
    relation='add_remove',
    adversary='anyone',
    released=('item factors',),
    secret=('ratings', 'user factors', 'random key'),
    assumptions=(assumptions.SAME_FLOATS,),
    mechanism=f'item means with Gaussian noise of {std:.6g}',
    event=event,
  )
  return Plan(stated, 1, {'means': std}, {'means': 1.5})


SPEC = Spec(
  name='toy_means',
  help='Noisy means, for a test.',
  config=ToyMeansConfig,
  plan=plan,
  variants={'sound': {'relation': 'add_remove'}},
  cases={
    'sound': (
      Case({'scale': (1.0, 5.0), 'epsilon': 1.0, 'delta': 1e-5}, 'known'),
    )
  },
)
"""
SYSTEM = """
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax.plans.toy_means import ToyMeansConfig, plan
from dpmf_jax.types import Factors, Release, System


class State(NamedTuple):
  factors: Factors
  noise: jax.Array


def toy_means(config: ToyMeansConfig) -> System:
  planned = plan(config)

  def init(key, data):
    users, items = data.by_user.num_rows, data.by_item.num_rows
    return State(
      Factors(jnp.ones((users, 1)), jnp.zeros((items, 1))),
      jnp.float32(planned.noise['means']),
    )

  return System(
    init=init,
    step=step,
    model=model,
    steps=planned.steps,
    guarantee=planned.guarantee,
  )


def step(key, state, data):
  # Noise alone: what it would be added to does not matter here.
  item = state.noise * jax.random.normal(key, state.factors.item.shape)
  return state._replace(factors=state.factors._replace(item=item))


def model(state, data):
  del data
  return Release(state.factors, jnp.float32(3))
"""


@pytest.fixture(scope='module')
def house(tmp_path_factory):
  """A copy of the code with one more system."""
  root = tmp_path_factory.mktemp('house')
  for name in ('dpmf_jax', 'launch', 'docs'):
    shutil.copytree(ROOT / name, root / name)
  (root / 'dpmf_jax' / 'plans' / 'toy_means.py').write_text(PLAN)
  (root / 'dpmf_jax' / 'systems' / 'toy_means.py').write_text(SYSTEM)
  names = root / 'dpmf_jax' / 'plans' / '__init__.py'
  line = "  'gaussian_mf',\n"
  assert names.read_text().count(line) == 1
  names.write_text(names.read_text().replace(line, f"{line}  'toy_means',\n"))
  return root


def ran(house, *arguments):
  return forks.printed([sys.executable, *arguments], house, house)


def test_flags_and_help(house):
  shown = ran(house, '-m', 'launch.train', '--system=toy_means', '--help')
  assert 'toy_means: Noisy means, for a test.' in shown
  assert '--toy_weight: How heavy the toy is. (in (0, 10]; default 2' in shown


def test_accounting(house):
  said = ran(house, '-m', 'launch.account', '--system=toy_means', '--epsilon=1')
  found = json.loads(said)
  assert found['epsilon'] == pytest.approx(1, rel=1e-6)
  assert found['status'] == 'proved'
  assert found['sigma'] == found['noise']['means']


@pytest.mark.slow
def test_training(house, tmp_path):
  ran(
    house,
    '-m',
    'launch.train',
    '--system=toy_means',
    '--dataset=synthetic-100k',
    '--epsilon=1',
    '--toy_weight=3',
    f'--output={tmp_path}/run',
  )
  certificate = json.loads((tmp_path / 'run' / 'certificate.json').read_text())
  assert certificate['parameters']['toy_weight'] == 3
  assert certificate['epsilon'] == pytest.approx(1, rel=1e-6)


@pytest.mark.slow
def test_audit(house, tmp_path):
  ran(
    house,
    '-m',
    'launch.audit',
    '--system=toy_means',
    '--runs=400',
    f'--output={tmp_path}/audit.json',
  )
  found = json.loads((tmp_path / 'audit.json').read_text())['findings']
  assert {finding['system'] for finding in found} == {'toy_means'}


def test_api_and_docs(house):
  code = """
import dpmf_jax
from docs import build
config = dpmf_jax.ToyMeansConfig(
  relation='add_remove', scale=(1.0, 5.0), epsilon=1.0, delta=1e-6
)
system = dpmf_jax.toy_means(scale=(1.0, 5.0), epsilon=1.0, delta=1e-6)
assert system.guarantee == dpmf_jax.systems.build('toy_means', config).guarantee
assert '| `toy_weight` | `2.0` | in (0, 10] |' in build.systems()
"""
  ran(house, '-c', code)
