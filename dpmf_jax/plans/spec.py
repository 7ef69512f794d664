"""What everything but a system's own arithmetic needs to know of it."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from dpmf_jax import accounting
from dpmf_jax.types import Guarantee, Release, System

# The settings that scripts start from for a sound variant beside a paper's.
SOUND = {'variant': 'sound', 'relation': 'add_remove'}

Task = Literal['rating', 'ranking']

# How the initial state is known to an attacker; see `auditing.sampling`.
Start = Literal['random', 'known', 'aligned']


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is run, what it costs and what is promised; made of public facts.

  Attributes:
    guarantee: the statement, with the event that is spent in all steps.
    steps: how many there are.
    noise: scales of the noise as it is drawn, by what it is added to, in units
      that `guarantee.mechanism` names.
    sensitivity: how far a unit of privacy moves these, by the same names.
    shares: part of the squared loss that each step spends, where steps of a
      Gaussian event differ; None where they are alike.
    first_round: how many steps come before the first round.
    round_steps: how many steps make a round; a step is one where none is said.
  """

  guarantee: Guarantee
  steps: int
  noise: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  sensitivity: Mapping[str, float] = dataclasses.field(default_factory=dict)
  shares: tuple[float, ...] | None = None
  first_round: int = 0
  round_steps: int = 1

  def __post_init__(self):
    # Plans are cached, so one that is changed would be everybody's.
    for name in ('noise', 'sensitivity'):
      kept = types.MappingProxyType(dict(getattr(self, name)))
      object.__setattr__(self, name, kept)

  def rounds(self, steps: int) -> int | None:
    """How many rounds the first `steps` are; None within one, or before all."""
    done, rest = divmod(steps - self.first_round, self.round_steps)
    return None if rest or done < 0 else done

  def spent(self, steps: int) -> accounting.Event | None:
    """What the first `steps` do; None where there is no guarantee."""
    event = self.guarantee.event
    if not 0 <= steps <= self.steps:
      raise ValueError(f'steps={steps} must be in 0..{self.steps}')
    if event is None or steps == self.steps:
      return event
    if steps and self.shares and isinstance(event, accounting.Gaussian):
      less = event.noise_multiplier / sum(self.shares[:steps]) ** 0.5
      return dataclasses.replace(event, noise_multiplier=less)
    # Systems that release once spend all of it then.
    return accounting.prefix(event, min(steps, accounting.count_of(event)))

  def epsilon(self, steps: int, delta: float) -> float | None:
    """What the first `steps` cost; None where there is no guarantee.

    A delta of 0 stands for the least there is.
    """
    spent = self.spent(steps)
    if spent is None or steps == 0:
      return None if spent is None else 0.0
    return accounting.epsilon(
      spent, delta or accounting.uncovered(self.guarantee)
    )

  def system(
    self,
    init: Callable[..., Any],
    step: Callable[..., Any],
    model: Callable[..., Release],
    **more: Any,
  ) -> System:
    """The system that these functions are; `more` of its fields."""
    return System(init, step, model, self.steps, self.guarantee, **more)


def plan_by_rank(plan: Callable[..., Plan]) -> Callable[..., Plan]:
  """`plan`, cached by config and rank of features, which is 1 if not given."""
  cached = functools.lru_cache(plan)
  return functools.wraps(plan)(
    lambda config, rank=1, *more: cached(config, rank, *more)
  )


class Case(NamedTuple):
  """Settings at which an attack on a few ratings is strong, for audits.

  Attributes:
    settings: of the config, besides those of the variant.
    start: what is known of the initial state; see `auditing.sampling`.
    ranges: setting -> (lowest, highest), over which the search for worse
      cases looks, on a logarithmic scale; integers stay integers.
    own_epsilon: the epsilon that the specification gives each rating, for
      personalised systems; it is what is stated, then.
    view: the one of `System.views` that the adversary sees, where that is
      more than the release.
  """

  settings: Mapping[str, Any]
  start: Start
  ranges: Mapping[str, tuple[float, float]] = {}
  own_epsilon: float | None = None
  view: str | None = None


class Spec(NamedTuple):
  """A system, without its arithmetic, which is in `systems/` by its name.

  Attributes:
    name: of the system and of its two modules.
    help: what it is, in a sentence, for `--help` and docs/systems.md.
    config: its config class.
    plan: config -> Plan, cached; with `rank=` of the user features besides
      where `takes_features`.
    variants: variant -> settings that a script starts from; library callers
      give every setting that has no default in the config class themselves.
    cases: variant -> what an audit tries; one that is not here is tried at
      epsilon 1.
    takes_features: whether the system may be given features of users.
    personalized: whether each rating has an epsilon of its own.
    traffic: (config, num_users=, num_items=, num_ratings=) -> bytes that a
      client receives and sends in a round, by name, or None; None for a system
      without clients.
    resolved: (config, num_users, num_items) -> config with what these numbers
      choose; None where they choose nothing.
    task: what it learns: ratings, or which items come first; a config with a
      `task` of its own says it instead.
  """

  name: str
  help: str
  config: Callable[..., Any]
  plan: Callable[..., Plan]
  variants: Mapping[str, Mapping[str, Any]] = types.MappingProxyType(
    {'sound': types.MappingProxyType({})}
  )
  cases: Mapping[str, tuple[Case, ...]] = types.MappingProxyType({})
  takes_features: bool = False
  personalized: bool = False
  traffic: Callable[..., dict[str, float] | None] | None = None
  resolved: Callable[..., Any] | None = None
  task: Task = 'rating'

  def task_of(self, config: Any) -> Task:
    """What it learns with these settings."""
    return getattr(config, 'task', self.task)
