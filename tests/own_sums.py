"""A system of somebody else, in one file: noisy sums of the ratings of items.

python -m launch.train --plugin=own_sums --system=own_sums --epsilon=1 ...
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmf_jax import accounting
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Plan, Spec
from dpmf_jax.systems import register
from dpmf_jax.types import Factors, Guarantee, Relation, Release, System


@declare.config
class OwnSumsConfig:
  """Public facts about a run.

  Attributes:
    drawn: part of the noise that is drawn; less than 1 is a bug.
  """

  relation: Relation = declare.relation('add_remove')
  scale: tuple[float, float] = declare.scale()
  epsilon: float = declare.epsilon()
  delta: float = declare.delta(above=0, maximum=0.25)
  drawn: float = declare.setting(default=1.0, above=0, maximum=1)


def plan(config: OwnSumsConfig) -> Plan:
  multiplier = accounting.calibrate_noise_multiplier(
    epsilon=config.epsilon, delta=config.delta
  )
  # A rating adds at most 1 to the sum of its item.
  stated = Guarantee(
    status='proved',  # says the author
    unit='rating',
    relation='add_remove',
    adversary='anyone who sees the sums',
    released=('item factors',),
    secret=('ratings', 'user factors', 'random key'),
    assumptions=('floats are real numbers',),
    mechanism=f'sums with Gaussian noise of {multiplier:.6g}',
    event=accounting.Gaussian(multiplier),
  )
  return Plan(stated, 1, {'sums': multiplier}, {'sums': 1.0})


class State(NamedTuple):
  factors: Factors
  std: jax.Array
  middle: jax.Array
  half: jax.Array


def own_sums(config: OwnSumsConfig) -> System:
  planned, (low, high) = plan(config), config.scale

  def init(key, data):
    del key
    users, items = data.by_user.num_rows, data.by_item.num_rows
    return State(
      Factors(jnp.ones((users, 1)), jnp.zeros((items, 1))),
      jnp.float32(planned.noise['sums'] * config.drawn),
      jnp.float32((low + high) / 2),
      jnp.float32((high - low) / 2),
    )

  return System(init, step, model, planned.steps, planned.guarantee)


def step(key, state, data):
  rows = data.by_item
  slot = jnp.arange(rows.value.shape[-1])[None, None, :]
  there = slot < rows.length[..., None]
  terms = jnp.where(there, (rows.value - state.middle) / state.half, 0.0)
  sums = jax.ops.segment_sum(
    terms.sum(-1).ravel(), rows.row.ravel(), rows.num_rows
  )
  noise = state.std * jax.random.normal(key, sums.shape)
  item = (sums + noise)[:, None]
  return state._replace(factors=state.factors._replace(item=item))


def model(state, data):
  del data
  return Release(state.factors, state.middle)


SPEC = Spec(
  name='own_sums',
  help='Noisy sums, by somebody else.',
  config=OwnSumsConfig,
  plan=plan,
  variants={'sound': {'relation': 'add_remove'}},
)
register(SPEC, own_sums)
