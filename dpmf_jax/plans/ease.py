"""The settings of the linear model of all pairs of items; not private."""

from __future__ import annotations

import functools

from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec

# The equations are [I, I], and take about 20 I^2 bytes: 8 GB for so many.
MAX_ITEMS = 20_000


@declare.config
class EASEConfig:
  """Settings of a run, which is one step.

  Attributes:
    rank: Number of factors of items that are kept, those that weigh most; all
      of them, or as many as there are items, are the model itself.
    ridge: L2 penalty of weights between items, for each user.
    least_weight: What an interaction with the lowest rating counts; more for
      higher ones, up to 1. 1 where ratings mean nothing, as for clicks.
    liked_from: Part of the scale from which on an interaction counts 1.
    user_power: Users count as how much they did to the power of minus twice
      this.
    popularity_power: Items count as their popularity to the power of minus
      this.
  """

  scale: tuple[float, float] = declare.scale()
  rank: int = declare.rank(default=512, maximum=MAX_ITEMS)
  ridge: float = declare.setting(default=0.2, above=0)
  least_weight: float = declare.setting(default=0.1, minimum=0.01, maximum=1)
  liked_from: float = declare.setting(default=0.9, minimum=1e-3, maximum=1)
  user_power: float = declare.setting(default=0.25, minimum=0, maximum=1)
  popularity_power: float = declare.setting(default=0.1, minimum=0, maximum=1)


def check_items(num_items: int) -> None:
  """Raises ValueError where the equations would not fit into memory."""
  if num_items > MAX_ITEMS:
    raise ValueError(
      f'system=ease has a number for each pair of {num_items} items, which '
      f'takes {20 * num_items**2 / 2**30:.0f} GB: at most {MAX_ITEMS} items; '
      'use system=als with feedback=implicit, or fewer items'
    )


@functools.lru_cache
def plan(config: EASEConfig) -> Plan:
  del config
  released = ('user factors', 'item factors', 'popularity')
  return Plan(declare.no_guarantee('add_remove', released), 1)


SPEC = Spec(
  name='ease',
  task='ranking',
  help='A linear model of all pairs of items, a baseline of lists without any '
  'guarantee.',
  config=EASEConfig,
  plan=plan,
  variants={'none': {}},
  cases={'none': (Case({'scale': (1.0, 5.0), 'rank': 2}, 'known'),)},
)
