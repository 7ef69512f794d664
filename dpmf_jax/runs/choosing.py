"""What to run on these ratings, of what somebody asks for."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from dpmf_jax import accounting, plans
from dpmf_jax.plans import selection
from dpmf_jax.plans.spec import Plan, Spec, Task
from dpmf_jax.ratings.specification import AskedEpsilons
from dpmf_jax.ratings.table import Ratings
from dpmf_jax.systems import build
from dpmf_jax.types import System

Threshold = float | Literal['mean', 'max', 'best']


class Chosen(NamedTuple):
  """A system, and what is known of it."""

  name: str
  variant: str
  system: System
  plan: Plan
  delta: float | None
  config: Any = None
  spec: Spec | None = None
  features: tuple[int, ...] = ()  # what the plan took besides the config
  task: Task = 'rating'


def chosen(
  asked_for: str | System,
  given: dict[str, Any],
  ratings: Ratings,
  *,
  task: Task | None = None,
  variant: str | None = None,
  delta: float | None = None,
  threshold: Threshold | None = None,
  asked: AskedEpsilons | None = None,
  features: np.ndarray | None = None,
  items_known: bool = False,
  in_ledger: bool = False,
) -> Chosen:
  """What to run on these ratings."""
  wanted = task or ('ranking' if ratings.clicks else 'rating')
  if wanted == 'rating' and ratings.clicks:
    raise ValueError(
      f'task=rating is to predict ratings, and {ratings.name} has clicks: use '
      'task=ranking, or leave it out'
    )
  if isinstance(asked_for, System):
    if named := [name for name, value in given.items() if value is not None]:
      raise ValueError(
        f'{named[0]}={given[named[0]]} is a setting of systems by name; the '
        'system given has its own'
      )
    stated = plans.as_stated(asked_for.guarantee)
    own = asked_for._replace(guarantee=stated)
    delta = selection.DELTA if delta is None else delta
    plan = Plan(stated, own.steps)
    return Chosen('own system', 'own', own, plan, delta, task=wanted)
  name, more = asked_for, {}
  if name == 'auto':
    name, given, more = selection.automatic(
      given,
      task=wanted,
      delta=delta,
      num_users=ratings.num_users,
      num_items=ratings.num_items,
      items_known=items_known,
      in_ledger=in_ledger,
    )
  spec = selection.spec_of(selection.run_as(name, variant))
  if ratings.epsilon is not None and not spec.personalized:
    raise ValueError(
      f'{ratings.name} has an epsilon for each rating, which system={name} '
      'does not read: use system=personalized_pmf, or ratings without them'
    )
  if threshold is not None:
    method = given.get('method') or getattr(spec.config, 'method', 'weights')
    given = given | {
      'epsilon': _noise_epsilon(
        threshold, asked, method, spec, given['epsilon']
      )
    }
  name, variant, spec, config = selection.selected(
    name, given, variant=variant, delta=delta, scale=ratings.scale, **more
  )
  learned = spec.task_of(config)
  if learned == 'rating' and ratings.clicks:
    raise ValueError(
      f'system={name} predicts ratings, and {ratings.name} has clicks: use '
      'system=auto or ranking_mf'
    )
  if task not in (None, learned):
    raise ValueError(
      f'task={task} is not what system={name} is for, which is {learned}'
    )
  if spec.resolved:
    config = spec.resolved(config, ratings.num_users, ratings.num_items)
  if features is not None and not spec.takes_features:
    raise ValueError(f'system={name} takes no user_features')
  taken = () if features is None else (features,)
  ranks = tuple(np.shape(each)[1] for each in taken)
  return Chosen(
    name,
    variant,
    build(name, config, *taken),
    spec.plan(config, *ranks),
    getattr(config, 'delta', None),
    config,
    spec,
    ranks,
    learned,
  )


def _noise_epsilon(
  rule: Threshold,
  asked: AskedEpsilons | None,
  method: Any,
  spec: Spec,
  epsilon: float | None,
) -> float:
  """The epsilon that noise is made for, without a look at ratings."""
  if not spec.personalized:
    raise ValueError(
      f'threshold={rule} is for personalized systems: system={spec.name} gives '
      'every rating the same epsilon'
    )
  if epsilon is not None:
    raise ValueError('pass only one of epsilon and threshold')
  if not isinstance(rule, str):
    return float(rule)
  if asked is None:
    raise ValueError(
      f'threshold={rule} needs the public distribution of epsilons (asked)'
    )
  return accounting.personal_threshold(
    asked.epsilon, rule, asked.share, method=method
  )
