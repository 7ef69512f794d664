"""The settings of SDMF as published, and what the paper claims for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpmf_jax import accounting
from dpmf_jax.plans.langevin import LangevinSettings
from dpmf_jax.plans.settings import require
from dpmf_jax.types import Guarantee


@dataclass(frozen=True, kw_only=True)
class SDCFSettings(LangevinSettings):
  """What the systems of SDCF have in common, besides Langevin steps.

  Attributes:
    epsilon: eps_P, which the paper claims for a client's bits over all
      rounds; twice epsilon_instant if None.
    epsilon_instant: eps_I, which it claims for the bits of one round; half of
      epsilon if None. One of both is needed.
    sent: z, how many items a client sends in a round, on average; None is the
      mean number of ratings of a client, which is then public.
    online: chance of a client to be online in a round.
    tolerance: a client says that it has converged when its factors move by
      less than this part of their norm; 0 never stops. What it says is
      computed from its ratings, and no guarantee covers it.
    agreement: the part of the clients that must have said so; when the items
      move by less than `tolerance`, too, nothing changes from then on.
  """

  variant: Literal['paper', 'none'] = 'paper'
  epsilon: float | None = None
  epsilon_instant: float | None = None
  sent: float | None = None
  online: float = 1.0
  tolerance: float = 0.0
  agreement: float = 1.0

  def __post_init__(self):
    super().__post_init__()
    private = self.variant != 'none'
    if private and self.epsilon is None and self.epsilon_instant is None:
      raise ValueError('pass epsilon (eps_P) or epsilon_instant (eps_I)')
    holds = lambda x: x is None or 0 < x < np.inf
    require(
      self,
      variant=(self.variant in ('paper', 'none'), "'paper' or 'none'"),
      epsilon=(holds(self.epsilon), 'positive and finite'),
      epsilon_instant=(holds(self.epsilon_instant), 'positive and finite'),
      sent=(holds(self.sent), 'positive and finite'),
      online=(0 < self.online <= 1, 'in (0, 1]'),
      tolerance=(0 <= self.tolerance < np.inf, 'at least 0 and finite'),
      agreement=(0 < self.agreement <= 1, 'in (0, 1]'),
    )


@dataclass(frozen=True, kw_only=True)
class SDMFConfig(SDCFSettings):
  """Public facts about a run; nothing here may be computed from ratings.

  Attributes:
    epsilon_value: eps_g, which the paper claims for fake residuals: they are
      drawn in [-alpha, alpha] with P(|x| < alpha) = e^-eps_g. 0 is alpha = inf.
  """

  epsilon_value: float = 1.0

  def __post_init__(self):
    super().__post_init__()
    require(
      self,
      variant=(self.variant == 'paper', "'paper'"),
      epsilon_value=(0 <= self.epsilon_value < np.inf, 'at least 0 and finite'),
    )


PAPER: dict[str, Any] = {'variant': 'paper'}

ADVERSARY = 'the server and whoever reads what clients send to it'
CLAIM = (
  'This is what the paper claims for which items are sent, in all rounds '
  'together, and it is true of that alone. Gradients are sent along, without '
  'a bound that holds: true residuals need not be in the range of the fake '
  'ones, and with the step sizes that learn their noise is a few per cent of '
  'the signal.',
  'f, p and q depend on how many items a client rated: the claim is for '
  'profiles of the same size, or sizes that are public.',
  'The number of ratings, and with it the mean number of a client, is public.',
  'Whether a client says that it has converged, and when training stops, '
  'depends on ratings without noise.',
)


def epsilons(config: SDCFSettings) -> tuple[float, float]:
  """(eps_P, eps_I), the one that was not given from the other: eps_P is
  twice eps_I."""
  permanent, instant = config.epsilon, config.epsilon_instant
  if permanent is None:
    assert instant is not None  # checked by the config
    return 2 * instant, instant
  return permanent, permanent / 2 if instant is None else instant


def claims(config: SDCFSettings) -> dict[str, accounting.ClaimedPure]:
  """The paper's claims, one by one: they are about different things.

  'permanent' is for the bits in all rounds (Theorem 1), 'instant' for those
  of one round (Theorem 2), 'value' for one fake gradient (Theorem 3).
  """
  permanent, instant = epsilons(config)
  made = {
    'permanent': accounting.ClaimedPure(permanent),
    'instant': accounting.ClaimedPure(instant),
  }
  value = getattr(config, 'epsilon_value', None)
  if value is not None:
    made['value'] = accounting.ClaimedPure(value)
  return made


def guarantee(config: SDCFSettings, released: tuple[str, ...]) -> Guarantee:
  """The claim for a client's bits over all rounds, eps_P."""
  permanent, instant = epsilons(config)
  value = getattr(config, 'epsilon_value', None)
  fake = '' if value is None else f', eps_g = {value:g} for fake residuals'
  return Guarantee(
    status='claimed',
    unit='rating',
    relation='add_remove',
    adversary=ADVERSARY,
    released=released,
    secret=('ratings', 'user factors', 'permanent bits', 'random keys'),
    assumptions=CLAIM,
    mechanism=f'{config.steps} rounds in which clients choose items by two '
    f'randomized responses, eps_P = {permanent:g} for all rounds and eps_I = '
    f'{instant:g} for one{fake}, and send Langevin gradients of them',
    event=claims(config)['permanent'],
  )
