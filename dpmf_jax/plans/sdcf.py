"""What the plans of SDCF's systems share: settings, the claim, traffic.

Reference: Jiang, Li and Lin (2019), Algorithms 1 and 2, and Welling and Teh
(2011) for Langevin steps, whose formulas are in `systems.sdcf.sgld`.
"""

from __future__ import annotations

from typing import Any, Literal

from dpmf_jax import accounting
from dpmf_jax.plans import settings as declare
from dpmf_jax.plans.spec import Case, Plan, Spec
from dpmf_jax.types import Guarantee, Optimizer

Average = Literal['item', 'all']


@declare.config
class LangevinSettings:
  """What all systems that take Langevin steps have in common.

  In the letters of `systems.sdcf.sgld`: step_size is eta_0 times S, and ridge
  is Lambda over S.

  Attributes:
    decay: gamma of the step size eta_t = eta_0 / t^gamma.
    likelihood_scale: S, how many ratings the gradient of one stands for; by
      default the number of ratings, which is then public.
    ridges: fixed: all factors have the same ridge. gamma: each has its own,
      drawn from Gamma(1) times the ridge, as in the paper.
    average: What the sum of an item's gradients is divided by: the gradients of
      that item, or all of the round, as the paper writes.
  """

  scale: tuple[float, float] = declare.scale()
  delta: float = declare.pure_delta(default=0.0)
  rank: int = declare.rank(default=50)
  steps: int = declare.steps(default=100)
  step_size: float = declare.step_size(default=0.4)
  decay: float = declare.setting(default=0.6, minimum=0)
  likelihood_scale: float | None = declare.setting(default=None, above=0)
  ridge: float = declare.ridge(default=0.01)
  ridges: Literal['fixed', 'gamma'] = declare.setting(default='fixed')
  average: Average = declare.setting(default='item')
  optimizer: Optimizer | None = declare.optimizer(
    default=None,
    instead_of="plain descent along the items' mean gradient, which has eta_t "
    'in it',
  )


# The paper to the letter, for MovieLens-100K: nothing is learned.
LITERAL: dict[str, Any] = {
  'likelihood_scale': 1.0,
  'step_size': 5e-6,
  'average': 'all',
  'ridges': 'gamma',
}


@declare.config
class SDCFSettings(LangevinSettings):
  """What the systems of SDCF have in common, besides Langevin steps.

  Attributes:
    variant: paper: as published, with the paper's claim. none: clients send
      gradients of what they rated, without any privacy.
    epsilon: eps_P, which the paper claims for a client's bits over all rounds;
      by default twice epsilon_instant.
    epsilon_instant: eps_I, which the paper claims for the bits of one round; by
      default half of epsilon. One of both is needed.
    sent: z, how many items a client sends in a round, on average; by default
      the mean number of ratings of a client, which is then public.
    online: Chance of a client to be online in a round.
    tolerance: A client says that it has converged when its factors move by less
      than this part of their norm; 0 never stops. What it says is computed from
      its ratings, and no guarantee covers it.
    agreement: Part of the clients that must have converged for training to
      stop, once the items move by less than tolerance, too.
  """

  variant: Literal['paper', 'none'] = declare.setting(
    default='paper', flag=False
  )
  epsilon: float | None = declare.setting(default=None, above=0)
  epsilon_instant: float | None = declare.setting(default=None, above=0)
  sent: float | None = declare.setting(default=None, above=0)
  online: float = declare.setting(default=1.0, above=0, maximum=1)
  tolerance: float = declare.setting(default=0.0, minimum=0)
  agreement: float = declare.setting(default=1.0, above=0, maximum=1)

  def check(self):
    given = self.epsilon is not None or self.epsilon_instant is not None
    if self.variant != 'none' and not given:
      raise ValueError('pass epsilon (eps_P) or epsilon_instant (eps_I)')


def epsilon_value_setting() -> Any:
  return declare.setting(
    1.0,
    minimum=0,
    help='eps_g, which the paper claims for fake residuals: they are drawn in '
    '[-alpha, alpha] with P(|x| < alpha) = e^-eps_g. 0 is alpha = inf.',
  )


VARIANTS = {'paper': {'variant': 'paper'}, 'none': {'variant': 'none'}}

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


def sdcf_plan(
  config: SDCFSettings,
  *,
  epsilon_value: float | None = None,
  assumed: tuple[str, ...] = (),
) -> Plan:
  """The claim for a client's bits over all rounds, eps_P; or that none is made.

  Coins are not in it: they depend on how many items a client rated.

  Args:
    config: of the system.
    epsilon_value: eps_g, where it draws fake residuals.
    assumed: what the claim leans on besides `CLAIM`.
  """
  if config.variant == 'none':
    factors = ('user factors', 'item factors')
    return Plan(declare.no_guarantee('add_remove', factors), config.steps)
  permanent, instant = epsilons(config)
  fake = ''
  if epsilon_value is not None:
    fake = f', eps_g = {epsilon_value:g} for fake residuals'
  claimed = Guarantee(
    status='claimed',
    unit='rating',
    relation='add_remove',
    adversary='the server and whoever reads what clients send to it',
    released=('item factors', 'what clients send'),
    secret=('ratings', 'user factors', 'permanent bits', 'random keys'),
    assumptions=CLAIM + assumed,
    mechanism=f'{config.steps} rounds in which clients choose items by two '
    f'randomized responses, eps_P = {permanent:g} for all rounds and eps_I = '
    f'{instant:g} for one{fake}, and send Langevin gradients of them',
    event=accounting.ClaimedPure(permanent),
  )
  return Plan(claimed, config.steps)


def traffic(
  config: SDCFSettings,
  *,
  num_users: int,
  num_items: int,
  num_ratings: int,
  width: int | None = None,
  shared: int = 0,
) -> dict[str, float] | None:
  """Bytes that a client that is online receives and, on average, sends.

  None without clients. Down: item weights in float32. Up: for each gradient an
  item number and float32 values, and one byte with the convergence bit. Both
  ways: `shared` float32 weights of no single item.

  `width` is that of an item's weights, if it is not the rank.
  """
  if config.variant == 'none':
    return None
  sent = num_ratings / num_users if config.sent is None else config.sent
  width = width or config.rank
  return {
    'bytes_down': 4.0 * (num_items * width + shared),
    'bytes_up': sent * (4.0 + 4.0 * width) + 4.0 * shared + 1,
  }


# Few rounds: what is released is a mean of what few clients sent.
_CASE: dict[str, Any] = {'scale': (1.0, 5.0), 'rank': 2, 'steps': 2}


def cases(**more: float) -> dict[str, tuple[Case, ...]]:
  """What an audit tries, as published, with further settings, and without."""
  paper = Case({**_CASE, 'epsilon': 1.0, **more}, 'random')
  return {'paper': (paper,), 'none': (Case(_CASE, 'random'),)}


def spec(**fields: Any) -> Spec:
  """That of a system of SDCF, as published and without privacy."""
  return Spec(**{'variants': VARIANTS, 'traffic': traffic} | fields)
